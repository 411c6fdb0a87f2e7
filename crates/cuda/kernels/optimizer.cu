// AdamW with f32 or 8-bit moments, and the sum of squares for gradient clipping.

struct Settings {
    float learning_rate;
    float beta1;
    float beta2;
    float epsilon;
    float weight_decay;
    float gradient_scale;
    float correction1; // 1 - beta1^update
    float correction2; // 1 - beta2^update
};

__device__ __forceinline__ float updated(const Settings& s, float weight, float first, float second) {
    const float root = sqrtf(second / s.correction2) + s.epsilon;
    return weight - s.learning_rate * (first / s.correction1 / root + s.weight_decay * weight);
}

template <int VEC>
__device__ void adamw(Settings s, const float* gradient, float* master, float* first, float* second, bf16* copy, u64 n) {
    const u64 stride = (u64)gridDim.x * blockDim.x * VEC;
    for (u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * VEC; i < n; i += stride) {
        float g[VEC], w[VEC], m[VEC], v[VEC];
        Access<VEC>::load(gradient + i, g);
        Access<VEC>::load(master + i, w);
        Access<VEC>::load(first + i, m);
        Access<VEC>::load(second + i, v);
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            g[k] *= s.gradient_scale;
            m[k] = s.beta1 * m[k] + (1.0f - s.beta1) * g[k];
            v[k] = s.beta2 * v[k] + (1.0f - s.beta2) * g[k] * g[k];
            w[k] = updated(s, w[k], m[k], v[k]);
        }
        Access<VEC>::store(master + i, w);
        Access<VEC>::store(first + i, m);
        Access<VEC>::store(second + i, v);
        if (copy != nullptr) Access<VEC>::store(copy + i, w);
    }
}

#define ADAMW(VEC)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        adamw_##VEC(float learning_rate, float beta1, float beta2, float epsilon, float weight_decay,                  \
                    float gradient_scale, float correction1, float correction2, const float* gradient, float* master,  \
                    float* first, float* second, bf16* copy, u64 n) {                                                  \
        adamw<VEC>(Settings{learning_rate, beta1, beta2, epsilon, weight_decay, gradient_scale, correction1,           \
                            correction2},                                                                              \
                   gradient, master, first, second, copy, n);                                                          \
    }
ADAMW(1)
ADAMW(8)

// The index of the entry of a sorted table of 256 that is nearest to y.
__device__ __forceinline__ u32 nearest(const float* table, float y) {
    u32 low = 0;
    for (u32 step = 128; step > 0; step /= 2) {
        const u32 at = low + step;
        if (at < 256 && y > 0.5f * (table[at - 1] + table[at])) low = at;
    }
    return low;
}

// A warp takes a block of 256 elements, eight a lane. `maps` holds the signed map, then the
// unsigned one.
extern "C" __global__ void __launch_bounds__(256)
    adamw_8bit(float learning_rate, float beta1, float beta2, float epsilon, float weight_decay, float gradient_scale,
               float correction1, float correction2, const float* gradient, float* master, u8* first, float* first_max,
               u8* second, float* second_max, bf16* copy, u64 n, const float* maps) {
    __shared__ float tables[512];
    tables[threadIdx.x] = maps[threadIdx.x];
    tables[256 + threadIdx.x] = maps[256 + threadIdx.x];
    __syncthreads();
    const Settings s{learning_rate, beta1, beta2, epsilon, weight_decay, gradient_scale, correction1, correction2};
    const u32 lane = threadIdx.x % 32;
    const u64 n_blocks = (n + 255) / 256;
    for (u64 block = (u64)blockIdx.x * 8 + threadIdx.x / 32; block < n_blocks; block += (u64)gridDim.x * 8) {
        const float old_first = first_max[block], old_second = second_max[block];
        float m[8], v[8];
        float m_max = 0.0f, v_max = 0.0f;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            // Neighbouring lanes take neighbouring elements.
            const u64 i = block * 256 + k * 32 + lane;
            m[k] = v[k] = 0.0f;
            if (i < n) {
                const float g = gradient[i] * s.gradient_scale;
                m[k] = s.beta1 * (tables[first[i]] * old_first) + (1.0f - s.beta1) * g;
                v[k] = s.beta2 * (tables[256 + second[i]] * old_second) + (1.0f - s.beta2) * g * g;
                const float w = updated(s, master[i], m[k], v[k]);
                master[i] = w;
                if (copy != nullptr) store_one(copy + i, w);
                m_max = fmaxf(m_max, fabsf(m[k]));
                v_max = fmaxf(v_max, v[k]);
            }
        }
        m_max = lane_max(m_max, 32);
        v_max = lane_max(v_max, 32);
        const float m_divisor = m_max > 0.0f ? m_max : 1.0f, v_divisor = v_max > 0.0f ? v_max : 1.0f;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const u64 i = block * 256 + k * 32 + lane;
            if (i < n) {
                first[i] = (u8)nearest(tables, m[k] / m_divisor);
                second[i] = (u8)nearest(tables + 256, v[k] / v_divisor);
            }
        }
        if (lane == 0) {
            first_max[block] = m_max;
            second_max[block] = v_max;
        }
    }
}

// partial[block] = the sum of squares of the block's share.
template <int VEC>
__device__ void sum_squares(const float* x, u64 n, float* partial) {
    __shared__ float shared[33];
    float sum = 0.0f;
    const u64 stride = (u64)gridDim.x * blockDim.x * VEC;
    for (u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * VEC; i < n; i += stride) {
        float v[VEC];
        Access<VEC>::load(x + i, v);
#pragma unroll
        for (int k = 0; k < VEC; k++) sum += v[k] * v[k];
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
extern "C" __global__ void __launch_bounds__(512) sum_squares_1(const float* x, u64 n, float* partial) {
    sum_squares<1>(x, n, partial);
}
extern "C" __global__ void __launch_bounds__(512) sum_squares_8(const float* x, u64 n, float* partial) {
    sum_squares<8>(x, n, partial);
}
