// Root-mean-square norms of runs of `width` columns, forward and backward.
//
// A group is one run of one row: group g is run `g % runs` of row `g / runs`. A team of
// `blockDim.x` threads (a power of two) works on one group and keeps its elements in registers,
// CHUNKS times VEC a thread, all loaded before the first is used; `blockDim.y` teams make a block.
// Teams within a warp reduce by shuffles, larger ones are a whole block each. Wider runs than
// registers hold are read twice.

struct Groups {
    u32 runs;
    u32 width;
    u64 n_groups;
};

// Sums of both numbers over a team, in all its threads. `shared` has two halves that reductions
// take in turn, so that one barrier is enough for each.
__device__ __forceinline__ float2 team_sums(float2 x, float2 (*shared)[32], u32& turn) {
    const u32 width = min(blockDim.x, 32);
    x.x = lane_sum(x.x, width);
    x.y = lane_sum(x.y, width);
    if (blockDim.x <= 32) return x;
    const u32 n_warps = blockDim.x / 32;
    float2* half = shared[turn & 1];
    turn++;
    if (threadIdx.x % 32 == 0) half[threadIdx.x / 32] = x;
    __syncthreads();
    x = half[threadIdx.x % n_warps];
    x.x = lane_sum(x.x, n_warps);
    x.y = lane_sum(x.y, n_warps);
    return x;
}

template <int VEC>
__device__ __forceinline__ void load_weight(const void* weight, bool weight_f32, u32 c, float* w) {
    if (weight_f32)
        Access<VEC>::load((const float*)weight + c, w);
    else
        Access<VEC>::load((const bf16*)weight + c, w);
}

// Where a team's group lies: its row, and its first column.
struct Place {
    bool live;
    u64 row;
    u32 first;

    __device__ __forceinline__ Place(const Groups& groups, u64 turn) {
        const u64 g = (turn * gridDim.x + blockIdx.x) * blockDim.y + threadIdx.y;
        live = g < groups.n_groups;
        row = live ? (groups.runs == 1 ? g : g / groups.runs) : 0;
        first = live ? (u32)(g - row * groups.runs) * groups.width : 0;
    }
};

// With DELTA: sum += delta first, rounded to bf16, and the norm is of that.
template <int VEC, int CHUNKS, bool DELTA>
__device__ void rms_norm(const bf16* delta, u64 delta_stride, const bf16* x, bf16* sum, u64 x_stride,
                         const void* weight, bool weight_f32, float epsilon, bf16* out, u64 out_stride, Groups groups) {
    __shared__ float2 shared[2][32];
    u32 reductions = 0;
    // Every team of a block makes the same number of turns, so that all lanes take part in shuffles.
    const u64 turns = (groups.n_groups + (u64)gridDim.x * blockDim.y - 1) / ((u64)gridDim.x * blockDim.y);
    for (u64 turn = 0; turn < turns; turn++) {
        const Place place(groups, turn);
        Packed<VEC> at_hand[CHUNKS], deltas[CHUNKS];
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            const u32 c = (k * blockDim.x + threadIdx.x) * VEC;
            if (place.live && c < groups.width) {
                at_hand[k].load(x + place.row * x_stride + place.first + c);
                if (DELTA) deltas[k].load(delta + place.row * delta_stride + place.first + c);
            }
        }
        float squares = 0.0f;
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            const u32 c = (k * blockDim.x + threadIdx.x) * VEC;
            if (place.live && c < groups.width) {
                float v[VEC];
                at_hand[k].unpack(v);
                if (DELTA) {
                    float d[VEC];
                    deltas[k].unpack(d);
#pragma unroll
                    for (int i = 0; i < VEC; i++) v[i] += d[i];
                    at_hand[k].pack(v);
                    at_hand[k].store(sum + place.row * x_stride + place.first + c);
                    at_hand[k].unpack(v);
                }
#pragma unroll
                for (int i = 0; i < VEC; i++) squares += v[i] * v[i];
            }
        }
        squares = team_sums(make_float2(squares, 0.0f), shared, reductions).x;
        const float inverse = rsqrtf(squares / groups.width + epsilon);
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            const u32 c = (k * blockDim.x + threadIdx.x) * VEC;
            if (place.live && c < groups.width) {
                float w[VEC], v[VEC];
                load_weight<VEC>(weight, weight_f32, c, w);
                at_hand[k].unpack(v);
#pragma unroll
                for (int i = 0; i < VEC; i++) w[i] *= v[i] * inverse;
                Access<VEC>::store(out + place.row * out_stride + place.first + c, w);
            }
        }
    }
}

// The same for runs of any width: two passes over memory, one block a group.
template <bool DELTA>
__device__ void rms_norm_wide(const bf16* delta, u64 delta_stride, const bf16* x, bf16* sum, u64 x_stride,
                              const void* weight, bool weight_f32, float epsilon, bf16* out, u64 out_stride,
                              Groups groups) {
    __shared__ float shared[33];
    for (u64 g = blockIdx.x; g < groups.n_groups; g += gridDim.x) {
        const u64 row = g / groups.runs;
        const u32 first = (u32)(g - row * groups.runs) * groups.width;
        float squares = 0.0f;
        for (u32 c = threadIdx.x; c < groups.width; c += blockDim.x) {
            float v = to_float(x[row * x_stride + first + c]);
            if (DELTA) {
                v = rounded<bf16>(v + to_float(delta[row * delta_stride + first + c]));
                store_one(sum + row * x_stride + first + c, v);
            }
            squares += v * v;
        }
        const float inverse = rsqrtf(block_sum(squares, shared) / groups.width + epsilon);
        for (u32 c = threadIdx.x; c < groups.width; c += blockDim.x) {
            float w;
            load_weight<1>(weight, weight_f32, c, &w);
            const bf16* source = DELTA ? sum : x;
            store_one(out + row * out_stride + first + c, to_float(source[row * x_stride + first + c]) * inverse * w);
        }
    }
}

// d_x = inverse * (w d_out - x inverse^2 / width * sum(w d_out x)), added where `accumulate`.
// With PARTIAL, each block writes its sum over its groups of d_out * x * inverse to its row of
// `partial`; `sum_partials` adds these in order.
template <int VEC, int CHUNKS, bool PARTIAL>
__device__ void rms_norm_backward(const bf16* x, u64 x_stride, const void* weight, bool weight_f32, float epsilon,
                                  const bf16* d_out, u64 d_out_stride, bf16* d_x, u64 d_x_stride, bool accumulate,
                                  float* partial, Groups groups) {
    __shared__ float2 shared[2][32];
    u32 reductions = 0;
    float d_weight[PARTIAL ? CHUNKS : 1][VEC] = {};
    const u64 turns = (groups.n_groups + (u64)gridDim.x * blockDim.y - 1) / ((u64)gridDim.x * blockDim.y);
    for (u64 turn = 0; turn < turns; turn++) {
        const Place place(groups, turn);
        Packed<VEC> at_hand[CHUNKS], d_at_hand[CHUNKS], before[CHUNKS];
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            const u32 c = (k * blockDim.x + threadIdx.x) * VEC;
            if (place.live && c < groups.width) {
                at_hand[k].load(x + place.row * x_stride + place.first + c);
                d_at_hand[k].load(d_out + place.row * d_out_stride + place.first + c);
                if (accumulate) before[k].load(d_x + place.row * d_x_stride + place.first + c);
            }
        }
        float squares = 0.0f, product = 0.0f;
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            const u32 c = (k * blockDim.x + threadIdx.x) * VEC;
            if (place.live && c < groups.width) {
                float w[VEC], v[VEC], d[VEC];
                load_weight<VEC>(weight, weight_f32, c, w);
                at_hand[k].unpack(v);
                d_at_hand[k].unpack(d);
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    squares += v[i] * v[i];
                    product += v[i] * d[i] * w[i];
                }
            }
        }
        const float2 sums = team_sums(make_float2(squares, product), shared, reductions);
        const float inverse = rsqrtf(sums.x / groups.width + epsilon);
        const float pull = sums.y * inverse * inverse / groups.width;
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            const u32 c = (k * blockDim.x + threadIdx.x) * VEC;
            if (place.live && c < groups.width) {
                float w[VEC], v[VEC], d[VEC], result[VEC];
                load_weight<VEC>(weight, weight_f32, c, w);
                at_hand[k].unpack(v);
                d_at_hand[k].unpack(d);
                if (accumulate) {
                    before[k].unpack(result);
                } else {
#pragma unroll
                    for (int i = 0; i < VEC; i++) result[i] = 0.0f;
                }
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    result[i] += inverse * (w[i] * d[i] - v[i] * pull);
                    if (PARTIAL) d_weight[k][i] += d[i] * v[i] * inverse;
                }
                Access<VEC>::store(d_x + place.row * d_x_stride + place.first + c, result);
            }
        }
    }
    if (!PARTIAL) return;
    float* mine = partial + (u64)blockIdx.x * groups.width;
    if (blockDim.y == 1) {
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            const u32 c = (k * blockDim.x + threadIdx.x) * VEC;
            if (c < groups.width) Access<VEC>::store(mine + c, d_weight[PARTIAL ? k : 0]);
        }
        return;
    }
    // Small teams add up within their block, in order of teams.
    __shared__ float teams[256 * VEC];
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
#pragma unroll
        for (int i = 0; i < VEC; i++)
            teams[(threadIdx.y * blockDim.x + threadIdx.x) * VEC + i] = d_weight[PARTIAL ? k : 0][i];
        __syncthreads();
        const u32 chunk = blockDim.x * VEC;
        for (u32 c = threadIdx.y * blockDim.x + threadIdx.x; c < chunk; c += blockDim.x * blockDim.y) {
            float total = 0.0f;
            for (u32 y = 0; y < blockDim.y; y++) total += teams[y * chunk + c];
            if (k * chunk + c < groups.width) mine[k * chunk + c] = total;
        }
        __syncthreads();
    }
}

// Any width: one block a group, two passes; `partial` rows are the blocks', zeroed here first.
__device__ void rms_norm_backward_wide(const bf16* x, u64 x_stride, const void* weight, bool weight_f32, float epsilon,
                                       const bf16* d_out, u64 d_out_stride, bf16* d_x, u64 d_x_stride, bool accumulate,
                                       float* partial, Groups groups) {
    __shared__ float shared[33];
    float* mine = partial == nullptr ? nullptr : partial + (u64)blockIdx.x * groups.width;
    if (mine != nullptr)
        for (u32 c = threadIdx.x; c < groups.width; c += blockDim.x) mine[c] = 0.0f;
    for (u64 g = blockIdx.x; g < groups.n_groups; g += gridDim.x) {
        const u64 row = g / groups.runs;
        const u32 first = (u32)(g - row * groups.runs) * groups.width;
        float squares = 0.0f, product = 0.0f;
        for (u32 c = threadIdx.x; c < groups.width; c += blockDim.x) {
            const float v = to_float(x[row * x_stride + first + c]);
            float w;
            load_weight<1>(weight, weight_f32, c, &w);
            squares += v * v;
            product += v * w * to_float(d_out[row * d_out_stride + first + c]);
        }
        squares = block_sum(squares, shared);
        product = block_sum(product, shared);
        const float inverse = rsqrtf(squares / groups.width + epsilon);
        const float pull = product * inverse * inverse / groups.width;
        for (u32 c = threadIdx.x; c < groups.width; c += blockDim.x) {
            const float v = to_float(x[row * x_stride + first + c]);
            const float d = to_float(d_out[row * d_out_stride + first + c]);
            float w;
            load_weight<1>(weight, weight_f32, c, &w);
            bf16* target = d_x + row * d_x_stride + first + c;
            const float before = accumulate ? to_float(*target) : 0.0f;
            store_one(target, before + inverse * (w * d - v * pull));
            // A thread keeps to its columns, so nothing else touches this sum.
            if (mine != nullptr) mine[c] += d * v * inverse;
        }
    }
}

#define NORM(VEC, CHUNKS)                                                                                              \
    extern "C" __global__ void __launch_bounds__(512)                                                                  \
        rms_norm_##VEC##_##CHUNKS(const bf16* x, u64 x_stride, const void* weight, u32 weight_f32, float epsilon,      \
                                  bf16* out, u64 out_stride, u32 runs, u32 width, u64 n_groups) {                      \
        rms_norm<VEC, CHUNKS, false>(nullptr, 0, x, nullptr, x_stride, weight, weight_f32, epsilon, out, out_stride,   \
                                     Groups{runs, width, n_groups});                                                   \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(512)                                                                  \
        add_rms_norm_##VEC##_##CHUNKS(const bf16* delta, u64 delta_stride, bf16* sum, u64 sum_stride,                  \
                                      const void* weight, u32 weight_f32, float epsilon, bf16* out, u64 out_stride,    \
                                      u32 runs, u32 width, u64 n_groups) {                                             \
        rms_norm<VEC, CHUNKS, true>(delta, delta_stride, sum, sum, sum_stride, weight, weight_f32, epsilon, out,       \
                                    out_stride, Groups{runs, width, n_groups});                                        \
    }                                                                                                                  \
    NORM_BACKWARD(rms_norm_backward_##VEC##_##CHUNKS, VEC, CHUNKS, false)                                              \
    NORM_BACKWARD(rms_norm_backward_partial_##VEC##_##CHUNKS, VEC, CHUNKS, true)
#define NORM_BACKWARD(NAME, VEC, CHUNKS, PARTIAL)                                                                      \
    extern "C" __global__ void __launch_bounds__(512)                                                                  \
        NAME(const bf16* x, u64 x_stride, const void* weight, u32 weight_f32, float epsilon, const bf16* d_out,        \
             u64 d_out_stride, bf16* d_x, u64 d_x_stride, u32 accumulate, float* partial, u32 runs, u32 width,         \
             u64 n_groups) {                                                                                           \
        rms_norm_backward<VEC, CHUNKS, PARTIAL>(x, x_stride, weight, weight_f32, epsilon, d_out, d_out_stride, d_x,    \
                                                d_x_stride, accumulate, partial, Groups{runs, width, n_groups});       \
    }
NORM(1, 1)
NORM(8, 1)
NORM(8, 4)

extern "C" __global__ void __launch_bounds__(1024)
    rms_norm_wide(const bf16* x, u64 x_stride, const void* weight, u32 weight_f32, float epsilon, bf16* out,
                  u64 out_stride, u32 runs, u32 width, u64 n_groups) {
    rms_norm_wide<false>(nullptr, 0, x, nullptr, x_stride, weight, weight_f32, epsilon, out, out_stride,
                         Groups{runs, width, n_groups});
}
extern "C" __global__ void __launch_bounds__(1024)
    add_rms_norm_wide(const bf16* delta, u64 delta_stride, bf16* sum, u64 sum_stride, const void* weight,
                      u32 weight_f32, float epsilon, bf16* out, u64 out_stride, u32 runs, u32 width, u64 n_groups) {
    rms_norm_wide<true>(delta, delta_stride, sum, sum, sum_stride, weight, weight_f32, epsilon, out, out_stride,
                        Groups{runs, width, n_groups});
}
extern "C" __global__ void __launch_bounds__(1024)
    rms_norm_backward_wide(const bf16* x, u64 x_stride, const void* weight, u32 weight_f32, float epsilon,
                           const bf16* d_out, u64 d_out_stride, bf16* d_x, u64 d_x_stride, u32 accumulate,
                           float* partial, u32 runs, u32 width, u64 n_groups) {
    rms_norm_backward_wide(x, x_stride, weight, weight_f32, epsilon, d_out, d_out_stride, d_x, d_x_stride, accumulate,
                           partial, Groups{runs, width, n_groups});
}

// out[c] += sum over rows, in order, of partial[row, c]: the second half of every sum whose order
// is fixed. Threads of x take columns, threads of y take interleaved rows.
extern "C" __global__ void __launch_bounds__(1024) sum_partials(const float* partial, float* out, u32 rows, u32 cols) {
    __shared__ float shared[32][33];
    const u32 c = blockIdx.x * 32 + threadIdx.x;
    float sum = 0.0f;
    if (c < cols)
        for (u64 row = threadIdx.y; row < rows; row += 32) sum += partial[row * cols + c];
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && c < cols) {
        float total = 0.0f;
        for (int y = 0; y < 32; y++) total += shared[y][threadIdx.x];
        out[c] += total;
    }
}

// partial[block, c] = the sum of the block's rows: rows `blockIdx.y`, `+ gridDim.y`, ... The
// block is 32 threads of x, VEC columns each, times 8 of y.
template <typename T, int VEC>
__device__ void sum_rows(const T* x, u64 stride, float* partial, u32 rows, u32 cols) {
    __shared__ float shared[8][32 * VEC + 1];
    const u32 c = (blockIdx.x * 32 + threadIdx.x) * VEC;
    float sum[VEC] = {};
    if (c < cols)
        for (u64 row = blockIdx.y * 8 + threadIdx.y; row < rows; row += gridDim.y * 8) {
            float v[VEC];
            Access<VEC>::load(x + row * stride + c, v);
#pragma unroll
            for (int i = 0; i < VEC; i++) sum[i] += v[i];
        }
#pragma unroll
    for (int i = 0; i < VEC; i++) shared[threadIdx.y][threadIdx.x * VEC + i] = sum[i];
    __syncthreads();
    for (u32 i = threadIdx.y * 32 + threadIdx.x; i < 32 * VEC; i += 256) {
        const u32 column = blockIdx.x * 32 * VEC + i;
        if (column >= cols) continue;
        float total = 0.0f;
        for (int y = 0; y < 8; y++) total += shared[y][i];
        partial[(u64)blockIdx.y * cols + column] = total;
    }
}
#define SUM_ROWS(T, t, VEC)                                                                                            \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        sum_rows_##t##_##VEC(const T* x, u64 stride, float* partial, u32 rows, u32 cols) {                             \
        sum_rows<T, VEC>(x, stride, partial, rows, cols);                                                              \
    }
SUM_ROWS(bf16, b, 1)
SUM_ROWS(bf16, b, 8)
SUM_ROWS(float, f, 1)
SUM_ROWS(float, f, 8)
