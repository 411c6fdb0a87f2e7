// Drawing the next token. One block of 1024 threads a row, which lies in the second-level cache
// after its first reading, so the passes that truncation needs cost little.
//
// Thresholds are searched on keys: the bits of a logit, turned so that unsigned order is the order
// of numbers. Each pass of a search narrows the key by three bits, counting (or weighing) what lies
// at or above seven candidates at once, in a fixed order.

#define THREADS 1024
#define TILE 4096
#define MAX_TILES 256

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
    float weights[7][32];
    double tile_sums[MAX_TILES];
    double scan[32];
    double before;
    double goal;
    u32 best_id[32];
    float best[32];
    u32 key;
    u32 tile;
    u32 token;
};

template <typename T>
struct Row {
    const T* logits;
    u32 cols;
    float scale; // one over the temperature, 1 for a greedy row
    float best;  // the largest logit

    __device__ __forceinline__ float logit(u32 c) const {
        return to_float(logits[c]);
    }
    // Proportional to the probability.
    __device__ __forceinline__ float weight(float logit) const {
        return expf((logit - best) * scale);
    }
};

// The largest key t with sum of a measure over the logits of key >= t reaching `target`, at least
// `floor`; the measure is 1 (`COUNT`) or the weight. Sums are per thread, per warp, per block,
// always in the same order.
template <typename T, bool COUNT>
__device__ u32 search(const Row<T>& row, float target, u32 floor, Shared& shared) {
    u32 found = 0;
    // 33 bits in steps of three: the highest step covers the top two bits.
    for (int shift = 30; shift >= 0; shift -= 3) {
        const u32 n_candidates = shift == 30 ? 3 : 7;
        float sums[7] = {};
        u32 counts[7] = {};
        for (u32 c = threadIdx.x; c < row.cols; c += THREADS) {
            const float logit = row.logit(c);
            const u32 key = key_of(logit);
            if (key < floor || (key >> shift) <= (found >> shift)) continue;
            const u32 reached = (key >> shift) - (found >> shift);
            const float weight = COUNT ? 1.0f : row.weight(logit);
#pragma unroll
            for (u32 i = 0; i < 7; i++) {
                if (COUNT)
                    counts[i] += reached > i;
                else
                    sums[i] += reached > i ? weight : 0.0f;
            }
        }
#pragma unroll
        for (int i = 0; i < 7; i++) {
            // Counts below 2^24 are exact as floats.
            const float sum = lane_sum(COUNT ? (float)counts[i] : sums[i], 32);
            if (threadIdx.x % 32 == 0) shared.weights[i][threadIdx.x / 32] = sum;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            u32 step = 0;
            for (u32 i = 0; i < n_candidates; i++) {
                float sum = 0.0f;
                for (int w = 0; w < 32; w++) sum += shared.weights[i][w];
                if (sum >= target) step = i + 1;
            }
            shared.key = found + (step << shift);
        }
        __syncthreads();
        found = shared.key;
        __syncthreads();
    }
    return found > floor ? found : floor;
}

template <typename T>
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
    for (u32 c = threadIdx.x; c < cols; c += THREADS) {
        const float x = to_float(row.logits[c]);
        if (x > best) {
            best = x;
            best_id = c;
        }
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, best, offset);
        const u32 other_id = __shfl_xor_sync(0xffffffffu, best_id, offset);
        if (other > best || (other == best && other_id < best_id)) {
            best = other;
            best_id = other_id;
        }
    }
    if (threadIdx.x % 32 == 0) {
        shared.best[threadIdx.x / 32] = best;
        shared.best_id[threadIdx.x / 32] = best_id;
    }
    __syncthreads();
    best = shared.best[0];
    best_id = shared.best_id[0];
    for (int w = 1; w < 32; w++)
        if (shared.best[w] > best || (shared.best[w] == best && shared.best_id[w] < best_id)) {
            best = shared.best[w];
            best_id = shared.best_id[w];
        }
    row.best = best;

    // Sums of exp(z - max z), z the scaled logits, and of the same of the logits.
    float sum_z = 0.0f, sum_raw = 0.0f;
    for (u32 c = threadIdx.x; c < cols; c += THREADS) {
        const float x = to_float(row.logits[c]);
        sum_raw += expf(x - best);
        sum_z += row.weight(x);
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
    const u32 top_k = top_ks[r];
    const float top_p = top_ps[r];
    const float min_p = min_ps[r];
    if (top_k > 0 && top_k < cols) floor = search<T, true>(row, (float)top_k, floor, shared);
    if (top_p < 1.0f) floor = search<T, false>(row, top_p * sum_z, floor, shared);
    if (min_p > 0.0f) floor = max(floor, key_of(best + logf(fminf(min_p, 1.0f)) / row.scale));

    // Sums of the kept weights by tiles of ids, each tile by one warp in fixed order.
    const u32 tile = TILE * ((cols + TILE * MAX_TILES - 1) / (TILE * MAX_TILES));
    const u32 n_tiles = (cols + tile - 1) / tile;
    for (u32 t = threadIdx.x / 32; t < n_tiles; t += THREADS / 32) {
        double sum = 0.0;
        const u32 end = min(cols, (t + 1) * tile);
        for (u32 c = t * tile + threadIdx.x % 32; c < end; c += 32) {
            const float logit = row.logit(c);
            if (key_of(logit) >= floor) sum += row.weight(logit);
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
        if (c < end && key_of(row.logit(c)) >= floor) weight = row.weight(row.logit(c));
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
    __syncthreads();
    // Not passed within its tile, by rounding: the tile's last kept token.
    if (shared.token == 0xffffffffu) {
        __syncthreads();
        if (threadIdx.x == 0) shared.key = 0;
        __syncthreads();
        atomicMax(&shared.key, last_kept);
        __syncthreads();
        if (threadIdx.x == 0) shared.token = shared.key > 0 ? shared.key - 1 : best_id;
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        const u32 token = shared.token;
        const float x = to_float(row.logits[token]);
        tokens[r] = token;
        logprobs[r] = (x - best) * row.scale - logf(sum_z);
        raw_logprobs[r] = x - best - logf(sum_raw);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sample_b(const bf16* logits, u64 stride, u32 cols, const float* temperatures, const u32* top_ks,
             const float* top_ps, const float* min_ps, const u32* seeds, const u32* draws, u32* tokens,
             float* logprobs, float* raw_logprobs) {
    sample<bf16>(logits, stride, cols, temperatures, top_ks, top_ps, min_ps, seeds, draws, tokens, logprobs,
                 raw_logprobs);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    sample_f(const float* logits, u64 stride, u32 cols, const float* temperatures, const u32* top_ks,
             const float* top_ps, const float* min_ps, const u32* seeds, const u32* draws, u32* tokens,
             float* logprobs, float* raw_logprobs) {
    sample<float>(logits, stride, cols, temperatures, top_ks, top_ps, min_ps, seeds, draws, tokens, logprobs,
                  raw_logprobs);
}
