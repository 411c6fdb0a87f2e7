// The head of the model: log-probabilities of targets without storing a softmax, and their
// gradient in place. One block a row; z = logit / temperature.

// Below every logit that counts; finite, so that differences of two of them are numbers.
#define LOWEST -3.0e38f

struct Online {
    float max;
    float sum;    // of exp(z - max)
    float moment; // of exp(z - max) * z, for the entropy
};

__device__ __forceinline__ Online merged(Online a, Online b) {
    const float max = fmaxf(a.max, b.max);
    const float fa = __expf(a.max - max), fb = __expf(b.max - max);
    return Online{max, a.sum * fa + b.sum * fb, a.moment * fa + b.moment * fb};
}

// The merger over the block, in all threads; the order is fixed by the size of the block.
__device__ __forceinline__ Online block_merged(Online x, Online* shared) {
    for (int offset = 16; offset > 0; offset /= 2) {
        Online other;
        other.max = __shfl_xor_sync(0xffffffffu, x.max, offset);
        other.sum = __shfl_xor_sync(0xffffffffu, x.sum, offset);
        other.moment = __shfl_xor_sync(0xffffffffu, x.moment, offset);
        x = merged(x, other);
    }
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    Online total = shared[0];
    for (u32 w = 1; w < blockDim.x / 32; w++) total = merged(total, shared[w]);
    __syncthreads();
    return total;
}

// Takes in N logits: one rescaling for all of them where the maximum rises.
template <int N, bool MOMENT>
__device__ __forceinline__ void take(Online& own, float* v, float inverse_temperature) {
    float max = own.max;
#pragma unroll
    for (int i = 0; i < N; i++) {
        v[i] *= inverse_temperature;
        max = fmaxf(max, v[i]);
    }
    if (max > own.max) {
        const float factor = __expf(own.max - max);
        own.sum *= factor;
        if (MOMENT) own.moment *= factor;
        own.max = max;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float e = __expf(v[i] - own.max);
        own.sum += e;
        // A logit of minus infinity has no weight; times its weight it would be NaN.
        if (MOMENT) own.moment += e * fmaxf(v[i], LOWEST);
    }
}

template <typename T, int VEC, bool MOMENT>
__device__ __forceinline__ Online row_online(const T* row, u32 cols, float inverse_temperature) {
    Online own{LOWEST, 0.0f, 0.0f};
    const u32 step = blockDim.x * VEC;
    u32 c = threadIdx.x * VEC;
    // Two loads in flight.
    for (; c + step < cols; c += 2 * step) {
        float v[2 * VEC];
        Access<VEC>::load(row + c, v);
        Access<VEC>::load(row + c + step, v + VEC);
        take<2 * VEC, MOMENT>(own, v, inverse_temperature);
    }
    if (c < cols) {
        float v[VEC];
        Access<VEC>::load(row + c, v);
        take<VEC, MOMENT>(own, v, inverse_temperature);
    }
    return own;
}

template <typename T, int VEC>
__device__ void log_softmax_gather(const T* logits, u64 stride, u32 cols, const u32* targets, float inverse_temperature,
                                   float* logprob, float* lse, float* entropy) {
    __shared__ Online shared[32];
    const T* row = logits + (u64)blockIdx.x * stride;
    const Online own = entropy == nullptr ? row_online<T, VEC, false>(row, cols, inverse_temperature)
                                          : row_online<T, VEC, true>(row, cols, inverse_temperature);
    const Online total = block_merged(own, shared);
    if (threadIdx.x == 0) {
        const float log_sum = total.max + logf(total.sum);
        const u32 target = targets[blockIdx.x];
        lse[blockIdx.x] = log_sum;
        // Rounded as in the sum, so that a lone logit has probability 1.
        const float z = target < cols ? __fmul_rn(to_float(row[target]), inverse_temperature) : NAN;
        logprob[blockIdx.x] = z - log_sum;
        if (entropy != nullptr) entropy[blockIdx.x] = log_sum - total.moment / total.sum;
    }
}

// The grid is (parts of a row, rows). A thread reads its elements before it writes them, so the
// output may be the logits themselves.
template <typename T, typename O, int VEC>
__device__ void log_softmax_gather_backward(const T* logits, u64 stride, u32 cols, const u32* targets,
                                            float inverse_temperature, const float* lse, const float* d_logprob,
                                            O* d_logits, u64 d_stride) {
    const T* row = logits + (u64)blockIdx.y * stride;
    O* d_row = d_logits + (u64)blockIdx.y * d_stride;
    const u32 target = targets[blockIdx.y];
    const float log_sum = lse[blockIdx.y];
    const float d = d_logprob[blockIdx.y] * inverse_temperature;
    for (u32 c = (blockIdx.x * blockDim.x + threadIdx.x) * VEC; c < cols; c += gridDim.x * blockDim.x * VEC) {
        float v[VEC];
        if (d == 0.0f) {
            // A masked row: no gradient, whatever its logits are.
#pragma unroll
            for (int i = 0; i < VEC; i++) v[i] = 0.0f;
        } else {
            Access<VEC>::load(row + c, v);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float p = __expf(v[i] * inverse_temperature - log_sum);
                v[i] = d * ((c + i == target ? 1.0f : 0.0f) - p);
            }
        }
        Access<VEC>::store(d_row + c, v);
    }
}

#define HEAD(T, t, VEC)                                                                                                \
    extern "C" __global__ void __launch_bounds__(1024)                                                                 \
        log_softmax_gather_##t##_##VEC(const T* logits, u64 stride, u32 cols, const u32* targets,                      \
                                       float inverse_temperature, float* logprob, float* lse, float* entropy) {        \
        log_softmax_gather<T, VEC>(logits, stride, cols, targets, inverse_temperature, logprob, lse, entropy);         \
    }
#define HEAD_BACKWARD(T, t, O, o, VEC)                                                                                 \
    extern "C" __global__ void __launch_bounds__(256) log_softmax_gather_backward_##t##o##_##VEC(                      \
        const T* logits, u64 stride, u32 cols, const u32* targets, float inverse_temperature, const float* lse,        \
        const float* d_logprob, O* d_logits, u64 d_stride) {                                                           \
        log_softmax_gather_backward<T, O, VEC>(logits, stride, cols, targets, inverse_temperature, lse, d_logprob,     \
                                               d_logits, d_stride);                                                    \
    }
HEAD(bf16, b, 1)
HEAD(bf16, b, 8)
HEAD(float, f, 1)
HEAD(float, f, 8)
HEAD_BACKWARD(bf16, b, bf16, b, 1)
HEAD_BACKWARD(bf16, b, bf16, b, 8)
HEAD_BACKWARD(bf16, b, float, f, 1)
HEAD_BACKWARD(bf16, b, float, f, 8)
HEAD_BACKWARD(float, f, bf16, b, 1)
HEAD_BACKWARD(float, f, bf16, b, 8)
HEAD_BACKWARD(float, f, float, f, 1)
HEAD_BACKWARD(float, f, float, f, 8)
