// Drawing the next token. One block of 1024 threads a row, which lies in the second-level cache
// after its first reading.
//
// Thresholds: the logits are counted and weighed in BINS steps below the largest one; the step in
// which a threshold lies is gathered into shared memory, where the threshold itself is searched
// bit by bit. Weights are added as integers, so the order of atomics does not matter. Where the
// step holds more logits than there is room for, or is the last one, the bits are searched over
// the whole row instead.

#define THREADS 1024
#define BINS 2048
#define BINS_PER_UNIT 64.0f
#define LIST 2048
#define TILE 4096
#define MAX_TILES 256
// One in the fixed-point numbers of weights; the sum of 2^22 weights fits 64 bits.
#define ONE 1099511627776.0f

// A logit's bits, turned so that unsigned order is the order of numbers.
__device__ __forceinline__ u32 key_of(float x) {
    const u32 bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ u64 mix(u64 z) {
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

__device__ __forceinline__ float uniform(u64 seed, u64 counter) {
    const u64 bits = mix(mix(seed + 0x9e3779b97f4a7c15ull) ^ counter);
    return (float)(bits >> 40) * (1.0f / 16777216.0f);
}

struct Shared {
    float reduce[33];
    float best[32];
    u32 best_id[32];
    u64 sums[32];
    u32 counts[BINS];
    u64 weights[BINS];
    float list[LIST];
    u32 n_list;
    u32 bin;
    u64 above;
    u32 key;
    double tile_sums[MAX_TILES];
    double scan[32];
    double before;
    double goal;
    u32 tile;
    u32 token;
};

template <typename T>
struct Row {
    const T* logits;
    u32 cols;
    float scale; // one over the temperature, 1 for a greedy row
    float best;  // the largest logit

    // Proportional to the probability.
    __device__ __forceinline__ float weight(float logit) const {
        return __expf((logit - best) * scale);
    }
    __device__ __forceinline__ u64 fixed_weight(float logit) const {
        return (u64)(weight(logit) * ONE);
    }
    // The step below the largest logit, growing as logits fall.
    __device__ __forceinline__ u32 bin(float logit) const {
        const float steps = (best - logit) * scale * BINS_PER_UNIT;
        return steps < (float)(BINS - 1) ? (u32)steps : BINS - 1;
    }
    // Calls `visit(id, logit)` for the thread's share of all logits.
    template <int VEC, typename Visit>
    __device__ __forceinline__ void each(Visit visit) const {
        for (u32 c = threadIdx.x * VEC; c < cols; c += THREADS * VEC) {
            float v[VEC];
            Access<VEC>::load(logits + c, v);
#pragma unroll
            for (int i = 0; i < VEC; i++) visit(c + i, v[i]);
        }
    }
};

__device__ __forceinline__ u64 block_sum_integers(u64 x, Shared& shared) {
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    if (threadIdx.x % 32 == 0) shared.sums[threadIdx.x / 32] = x;
    __syncthreads();
    x = shared.sums[threadIdx.x % 32];
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    __syncthreads();
    return x;
}

// The smallest logit's key that a threshold keeps: the largest key t for which the measure of the
// logits of key >= t reaches `target`; 0 where all together do not. The measure is 1 (COUNT) or
// the weight.
template <typename T, int VEC, bool COUNT>
__device__ u32 threshold(const Row<T>& row, u64 target, Shared& shared) {
    // The bin in which the running measure reaches the target: two bins a thread.
    const u32 b = threadIdx.x * 2;
    const u64 first = COUNT ? shared.counts[b] : shared.weights[b];
    const u64 second = COUNT ? shared.counts[b + 1] : shared.weights[b + 1];
    u64 running = first + second;
    for (int offset = 1; offset < 32; offset *= 2) {
        const u64 other = __shfl_up_sync(0xffffffffu, running, offset);
        if (threadIdx.x % 32 >= offset) running += other;
    }
    if (threadIdx.x % 32 == 31) shared.sums[threadIdx.x / 32] = running;
    if (threadIdx.x == 0) {
        shared.bin = BINS;
        shared.n_list = 0;
    }
    __syncthreads();
    u64 before = running - first - second;
    for (u32 w = 0; w < threadIdx.x / 32; w++) before += shared.sums[w];
    if (before < target && before + first >= target) {
        shared.bin = b;
        shared.above = before;
    } else if (before + first < target && before + first + second >= target) {
        shared.bin = b + 1;
        shared.above = before + first;
    }
    __syncthreads();
    const u32 bin = shared.bin;
    if (bin == BINS) return 0;
    const u64 rest = target - shared.above;
    const bool listed = bin < BINS - 1 && shared.counts[bin] <= LIST;
    if (listed) {
        row.template each<VEC>([&](u32, float logit) {
            if (row.bin(logit) == bin) shared.list[atomicAdd(&shared.n_list, 1u)] = logit;
        });
        __syncthreads();
    }
    // Bit by bit: a bit stays where what is at or above the key still reaches the rest.
    u32 found = 0;
    for (int bit = 31; bit >= 0; bit--) {
        const u32 candidate = found | 1u << bit;
        u64 sum = 0;
        const auto weigh = [&](float logit) {
            if (key_of(logit) >= candidate) sum += COUNT ? 1 : row.fixed_weight(logit);
        };
        if (listed) {
            for (u32 i = threadIdx.x; i < shared.n_list; i += THREADS) weigh(shared.list[i]);
        } else {
            row.template each<VEC>([&](u32, float logit) {
                if (row.bin(logit) == bin) weigh(logit);
            });
        }
        if (block_sum_integers(sum, shared) >= rest) found = candidate;
    }
    return found;
}

template <typename T, int VEC>
__device__ void sample(const T* logits, u64 stride, u32 cols, const float* temperatures, const u32* top_ks,
                       const float* top_ps, const float* min_ps, const u32* seeds, const u32* draws, u32* tokens,
                       float* logprobs, float* raw_logprobs) {
    __shared__ Shared shared;
    const u32 r = blockIdx.x;
    const float temperature = temperatures[r];
    const bool greedy = !(temperature > 0.0f);
    Row<T> row{logits + (u64)r * stride, cols, greedy ? 1.0f : 1.0f / temperature, 0.0f};

    // The largest logit, the lowest id among equals.
    float best = -INFINITY;
    u32 best_id = 0;
    row.template each<VEC>([&](u32 c, float x) {
        if (x > best) {
            best = x;
            best_id = c;
        }
    });
    const auto better = [&](float other, u32 other_id) {
        if (other > best || (other == best && other_id < best_id)) {
            best = other;
            best_id = other_id;
        }
    };
    for (int offset = 16; offset > 0; offset /= 2)
        better(__shfl_xor_sync(0xffffffffu, best, offset), __shfl_xor_sync(0xffffffffu, best_id, offset));
    if (threadIdx.x % 32 == 0) {
        shared.best[threadIdx.x / 32] = best;
        shared.best_id[threadIdx.x / 32] = best_id;
    }
    for (u32 b = threadIdx.x; b < BINS; b += THREADS) {
        shared.counts[b] = 0;
        shared.weights[b] = 0;
    }
    __syncthreads();
    for (int w = 0; w < 32; w++) better(shared.best[w], shared.best_id[w]);
    row.best = best;

    const u32 top_k = top_ks[r];
    const float top_p = top_ps[r];
    const float min_p = min_ps[r];
    const bool limited = !greedy && top_k > 0 && top_k < cols;
    const bool nucleus = !greedy && top_p < 1.0f;

    // Sums of exp(z - max z), z the scaled logits, and of the same of the logits.
    float sum_z = 0.0f, sum_raw = 0.0f;
    if (limited || nucleus) {
        row.template each<VEC>([&](u32, float x) {
            const float weight = row.weight(x);
            sum_raw += __expf(x - best);
            sum_z += weight;
            const u32 bin = row.bin(x);
            atomicAdd(&shared.counts[bin], 1u);
            if (nucleus) atomicAdd(&shared.weights[bin], (u64)(weight * ONE));
        });
    } else {
        row.template each<VEC>([&](u32, float x) {
            sum_raw += __expf(x - best);
            sum_z += row.weight(x);
        });
    }
    sum_z = block_sum(sum_z, shared.reduce);
    sum_raw = block_sum(sum_raw, shared.reduce);

    if (greedy) {
        if (threadIdx.x == 0) {
            tokens[r] = best_id;
            logprobs[r] = -logf(sum_raw);
            raw_logprobs[r] = -logf(sum_raw);
        }
        return;
    }

    u32 floor = 0;
    if (limited) floor = threshold<T, VEC, true>(row, top_k, shared);
    if (nucleus) floor = max(floor, threshold<T, VEC, false>(row, (u64)(top_p * sum_z * ONE), shared));
    if (min_p > 0.0f) floor = max(floor, key_of(best + logf(fminf(min_p, 1.0f)) / row.scale));

    // Sums of the kept weights by tiles of ids, each tile by one warp in fixed order.
    const u32 tile = TILE * ((cols + TILE * MAX_TILES - 1) / (TILE * MAX_TILES));
    const u32 n_tiles = (cols + tile - 1) / tile;
    for (u32 t = threadIdx.x / 32; t < n_tiles; t += THREADS / 32) {
        double sum = 0.0;
        const u32 end = min(cols, (t + 1) * tile);
        for (u32 c = t * tile + threadIdx.x % 32 * VEC; c < end; c += 32 * VEC) {
            float v[VEC];
            float part = 0.0f;
            Access<VEC>::load(row.logits + c, v);
#pragma unroll
            for (int i = 0; i < VEC; i++) part += key_of(v[i]) >= floor ? row.weight(v[i]) : 0.0f;
            sum += part;
        }
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if (threadIdx.x % 32 == 0) shared.tile_sums[t] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double total = 0.0;
        for (u32 t = 0; t < n_tiles; t++) total += shared.tile_sums[t];
        const u64 seed = (u64)seeds[2 * r] | (u64)seeds[2 * r + 1] << 32;
        const double goal = uniform(seed, draws[r]) * total;
        double before = 0.0;
        u32 chosen = n_tiles, last = 0;
        double last_before = 0.0;
        for (u32 t = 0; t < n_tiles; t++) {
            if (shared.tile_sums[t] > 0.0) {
                last = t;
                last_before = before;
            }
            if (before + shared.tile_sums[t] > goal) {
                chosen = t;
                break;
            }
            before += shared.tile_sums[t];
        }
        // Rounding can keep the sum from passing the goal: then it is the last kept token.
        if (chosen == n_tiles) {
            chosen = last;
            before = last_before;
        }
        shared.tile = chosen;
        shared.before = before;
        shared.goal = goal;
        shared.token = 0xffffffffu;
        shared.key = 0;
    }
    __syncthreads();
    const double goal = shared.goal;
    double before = shared.before;
    const u32 start = shared.tile * tile;
    const u32 end = min(cols, start + tile);
    u32 last_kept = 0;
    for (u32 base = start; base < end; base += THREADS) {
        const u32 c = base + threadIdx.x;
        double weight = 0.0;
        if (c < end) {
            const float logit = to_float(row.logits[c]);
            if (key_of(logit) >= floor) weight = row.weight(logit);
        }
        if (weight > 0.0) last_kept = c + 1;
        // Inclusive scan over the block in the order of ids.
        double running = weight;
        for (int offset = 1; offset < 32; offset *= 2) {
            const double other = __shfl_up_sync(0xffffffffu, running, offset);
            if (threadIdx.x % 32 >= offset) running += other;
        }
        if (threadIdx.x % 32 == 31) shared.scan[threadIdx.x / 32] = running;
        __syncthreads();
        double earlier = before;
        for (u32 w = 0; w < threadIdx.x / 32; w++) earlier += shared.scan[w];
        if (weight > 0.0 && earlier + running > goal) atomicMin(&shared.token, c);
        for (int w = 0; w < 32; w++) before += shared.scan[w];
        __syncthreads();
        if (shared.token != 0xffffffffu) break;
    }
    atomicMax(&shared.key, last_kept);
    __syncthreads();
    if (threadIdx.x == 0) {
        // Not passed within its tile, by rounding: the tile's last kept token.
        u32 token = shared.token;
        if (token == 0xffffffffu) token = shared.key > 0 ? shared.key - 1 : best_id;
        const float x = to_float(row.logits[token]);
        tokens[r] = token;
        logprobs[r] = (x - best) * row.scale - logf(sum_z);
        raw_logprobs[r] = x - best - logf(sum_raw);
    }
}

#define SAMPLE(T, t, VEC)                                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        sample_##t##_##VEC(const T* logits, u64 stride, u32 cols, const float* temperatures, const u32* top_ks,        \
                           const float* top_ps, const float* min_ps, const u32* seeds, const u32* draws, u32* tokens,  \
                           float* logprobs, float* raw_logprobs) {                                                     \
        sample<T, VEC>(logits, stride, cols, temperatures, top_ks, top_ps, min_ps, seeds, draws, tokens, logprobs,     \
                       raw_logprobs);                                                                                  \
    }
SAMPLE(bf16, b, 1)
SAMPLE(bf16, b, 8)
SAMPLE(float, f, 1)
SAMPLE(float, f, 8)
