// Copies, casts, sums of views, gathers and scatters by row, SwiGLU, biases.
//
// Every kernel walks a [rows, cols] view: threads of x take columns, threads of y take rows, the
// grid strides over rows. `cols` and strides are in elements.

template <typename F, typename T, int VEC>
__device__ void copy(const F* from, u64 from_stride, T* to, u64 to_stride, u32 rows, u32 cols) {
    for (u64 row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += gridDim.x * blockDim.y)
        for (u32 c = (blockIdx.y * blockDim.x + threadIdx.x) * VEC; c < cols; c += gridDim.y * blockDim.x * VEC) {
            float v[VEC];
            Access<VEC>::load(from + row * from_stride + c, v);
            Access<VEC>::store(to + row * to_stride + c, v);
        }
}

template <typename F, typename T, int VEC>
__device__ void add_scaled(const F* from, u64 from_stride, float scale, T* to, u64 to_stride, u32 rows, u32 cols) {
    for (u64 row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += gridDim.x * blockDim.y)
        for (u32 c = (blockIdx.y * blockDim.x + threadIdx.x) * VEC; c < cols; c += gridDim.y * blockDim.x * VEC) {
            float v[VEC], sum[VEC];
            Access<VEC>::load(from + row * from_stride + c, v);
            Access<VEC>::load(to + row * to_stride + c, sum);
#pragma unroll
            for (int i = 0; i < VEC; i++) sum[i] += scale * v[i];
            Access<VEC>::store(to + row * to_stride + c, sum);
        }
}

// to[i] = from[ids[i]]; a row beyond the table becomes NaN, which no later step can overlook.
template <typename F, typename T, int VEC>
__device__ void gather_rows(const F* from, u64 from_stride, u32 n_from, const u32* ids, T* to, u64 to_stride, u32 rows,
                            u32 cols) {
    for (u64 row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += gridDim.x * blockDim.y) {
        const u64 source = ids[row];
        for (u32 c = (blockIdx.y * blockDim.x + threadIdx.x) * VEC; c < cols; c += gridDim.y * blockDim.x * VEC) {
            float v[VEC];
            if (source < n_from) {
                Access<VEC>::load(from + source * from_stride + c, v);
            } else {
#pragma unroll
                for (int i = 0; i < VEC; i++) v[i] = NAN;
            }
            Access<VEC>::store(to + row * to_stride + c, v);
        }
    }
}

// to[ids[i]] += from[i]; no id occurs twice.
template <typename F, typename T, int VEC>
__device__ void scatter_add_rows(const F* from, u64 from_stride, const u32* ids, T* to, u64 to_stride, u32 n_to,
                                 u32 rows, u32 cols) {
    for (u64 row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += gridDim.x * blockDim.y) {
        const u64 target = ids[row];
        if (target >= n_to) continue;
        for (u32 c = (blockIdx.y * blockDim.x + threadIdx.x) * VEC; c < cols; c += gridDim.y * blockDim.x * VEC) {
            float v[VEC], sum[VEC];
            Access<VEC>::load(from + row * from_stride + c, v);
            Access<VEC>::load(to + target * to_stride + c, sum);
#pragma unroll
            for (int i = 0; i < VEC; i++) sum[i] += v[i];
            Access<VEC>::store(to + target * to_stride + c, sum);
        }
    }
}

#define FOR_TYPES(F, f, T, t, VEC)                                                                                     \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        copy_##f##t##_##VEC(const F* from, u64 from_stride, T* to, u64 to_stride, u32 rows, u32 cols) {                \
        copy<F, T, VEC>(from, from_stride, to, to_stride, rows, cols);                                                 \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) add_scaled_##f##t##_##VEC(                                       \
        const F* from, u64 from_stride, float scale, T* to, u64 to_stride, u32 rows, u32 cols) {                       \
        add_scaled<F, T, VEC>(from, from_stride, scale, to, to_stride, rows, cols);                                    \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        gather_rows_##f##t##_##VEC(const F* from, u64 from_stride, u32 n_from, const u32* ids, T* to, u64 to_stride,   \
                                   u32 rows, u32 cols) {                                                               \
        gather_rows<F, T, VEC>(from, from_stride, n_from, ids, to, to_stride, rows, cols);                             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        scatter_add_rows_##f##t##_##VEC(const F* from, u64 from_stride, const u32* ids, T* to, u64 to_stride,          \
                                        u32 n_to, u32 rows, u32 cols) {                                                \
        scatter_add_rows<F, T, VEC>(from, from_stride, ids, to, to_stride, n_to, rows, cols);                          \
    }
#define FOR_WIDTHS(F, f, T, t)                                                                                         \
    FOR_TYPES(F, f, T, t, 1)                                                                                           \
    FOR_TYPES(F, f, T, t, 8)

FOR_WIDTHS(bf16, b, bf16, b)
FOR_WIDTHS(bf16, b, float, f)
FOR_WIDTHS(float, f, bf16, b)
FOR_WIDTHS(float, f, float, f)

// out += bias, for products whose library call cannot add it.
template <typename B, typename T, int VEC>
__device__ void add_bias(const B* bias, T* out, u64 stride, u32 rows, u32 cols) {
    for (u64 row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += gridDim.x * blockDim.y)
        for (u32 c = (blockIdx.y * blockDim.x + threadIdx.x) * VEC; c < cols; c += gridDim.y * blockDim.x * VEC) {
            float b[VEC], v[VEC];
            Access<VEC>::load(bias + c, b);
            Access<VEC>::load(out + row * stride + c, v);
#pragma unroll
            for (int i = 0; i < VEC; i++) v[i] += b[i];
            Access<VEC>::store(out + row * stride + c, v);
        }
}
#define ADD_BIAS(B, b, T, t, VEC)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        add_bias_##b##t##_##VEC(const B* bias, T* out, u64 stride, u32 rows, u32 cols) {                               \
        add_bias<B, T, VEC>(bias, out, stride, rows, cols);                                                            \
    }
ADD_BIAS(bf16, b, bf16, b, 1)
ADD_BIAS(bf16, b, bf16, b, 8)
ADD_BIAS(bf16, b, float, f, 1)
ADD_BIAS(bf16, b, float, f, 8)
ADD_BIAS(float, f, bf16, b, 1)
ADD_BIAS(float, f, bf16, b, 8)
ADD_BIAS(float, f, float, f, 1)
ADD_BIAS(float, f, float, f, 8)

__device__ __forceinline__ float sigmoid(float x) {
    return 1.0f / (1.0f + __expf(-x));
}

template <int VEC>
__device__ void swiglu(const bf16* gate, u64 gate_stride, const bf16* up, u64 up_stride, bf16* out, u64 out_stride,
                       u32 rows, u32 cols) {
    for (u64 row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += gridDim.x * blockDim.y)
        for (u32 c = (blockIdx.y * blockDim.x + threadIdx.x) * VEC; c < cols; c += gridDim.y * blockDim.x * VEC) {
            float g[VEC], u[VEC];
            Access<VEC>::load(gate + row * gate_stride + c, g);
            Access<VEC>::load(up + row * up_stride + c, u);
#pragma unroll
            for (int i = 0; i < VEC; i++) u[i] *= g[i] * sigmoid(g[i]);
            Access<VEC>::store(out + row * out_stride + c, u);
        }
}

// Each thread reads its elements of all inputs before it writes, so outputs may be inputs.
template <int VEC>
__device__ void swiglu_backward(const bf16* gate, u64 gate_stride, const bf16* up, u64 up_stride, const bf16* d_out,
                                u64 d_out_stride, bf16* d_gate, u64 d_gate_stride, bf16* d_up, u64 d_up_stride,
                                u32 rows, u32 cols) {
    for (u64 row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += gridDim.x * blockDim.y)
        for (u32 c = (blockIdx.y * blockDim.x + threadIdx.x) * VEC; c < cols; c += gridDim.y * blockDim.x * VEC) {
            float g[VEC], u[VEC], d[VEC];
            Access<VEC>::load(gate + row * gate_stride + c, g);
            Access<VEC>::load(up + row * up_stride + c, u);
            Access<VEC>::load(d_out + row * d_out_stride + c, d);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float s = sigmoid(g[i]);
                const float silu = g[i] * s;
                const float d_silu = d[i] * u[i];
                u[i] = d[i] * silu;
                g[i] = d_silu * (s + silu * (1.0f - s));
            }
            Access<VEC>::store(d_gate + row * d_gate_stride + c, g);
            Access<VEC>::store(d_up + row * d_up_stride + c, u);
        }
}
#define SWIGLU(VEC)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        swiglu_##VEC(const bf16* gate, u64 gate_stride, const bf16* up, u64 up_stride, bf16* out, u64 out_stride,      \
                     u32 rows, u32 cols) {                                                                             \
        swiglu<VEC>(gate, gate_stride, up, up_stride, out, out_stride, rows, cols);                                    \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        swiglu_backward_##VEC(const bf16* gate, u64 gate_stride, const bf16* up, u64 up_stride, const bf16* d_out,     \
                              u64 d_out_stride, bf16* d_gate, u64 d_gate_stride, bf16* d_up, u64 d_up_stride,          \
                              u32 rows, u32 cols) {                                                                    \
        swiglu_backward<VEC>(gate, gate_stride, up, up_stride, d_out, d_out_stride, d_gate, d_gate_stride, d_up,       \
                             d_up_stride, rows, cols);                                                                 \
    }
SWIGLU(1)
SWIGLU(8)

// Rotary embedding in place. A unit is VEC pairs (j, j + half); `table` rows hold cosines, then
// sines. A thread of x takes a unit of the row, so `cols / 2 / VEC` units in all.
template <int VEC>
__device__ void rotary(bf16* x, u64 stride, u32 head_dim, const u32* positions, const float* table, u32 n_positions,
                       float sign, u32 rows, u32 cols) {
    const u32 half = head_dim / 2;
    const u32 units_per_head = half / VEC;
    const u32 units = cols / 2 / VEC;
    for (u64 row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += gridDim.x * blockDim.y) {
        const u32 position = positions[row];
        for (u32 unit = blockIdx.y * blockDim.x + threadIdx.x; unit < units; unit += gridDim.y * blockDim.x) {
            const u32 head = unit / units_per_head;
            const u32 j = (unit - head * units_per_head) * VEC;
            bf16* p = x + row * stride + (u64)head * head_dim + j;
            float a[VEC], b[VEC], c[VEC], s[VEC];
            Access<VEC>::load(p, a);
            Access<VEC>::load(p + half, b);
            if (position < n_positions) {
                Access<VEC>::load(table + (u64)position * head_dim + j, c);
                Access<VEC>::load(table + (u64)position * head_dim + half + j, s);
            } else {
#pragma unroll
                for (int i = 0; i < VEC; i++) c[i] = s[i] = NAN;
            }
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float sine = sign * s[i];
                const float first = a[i] * c[i] - b[i] * sine;
                b[i] = b[i] * c[i] + a[i] * sine;
                a[i] = first;
            }
            Access<VEC>::store(p, a);
            Access<VEC>::store(p + half, b);
        }
    }
}
#define ROTARY(VEC)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        rotary_##VEC(bf16* x, u64 stride, u32 head_dim, const u32* positions, const float* table, u32 n_positions,     \
                     float sign, u32 rows, u32 cols) {                                                                 \
        rotary<VEC>(x, stride, head_dim, positions, table, n_positions, sign, rows, cols);                             \
    }
ROTARY(1)
ROTARY(8)

// Keys and values of new tokens into the pages of the cache, [page, kv head, slot in page, dim].
template <int VEC>
__device__ void write_kv(const bf16* k, u64 k_stride, const bf16* v, u64 v_stride, const u32* slots, bf16* keys,
                         bf16* values, u32 n_kv, u32 dim, u32 page_tokens, u64 n_slots, u32 rows) {
    const u32 cols = n_kv * dim;
    for (u64 row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += gridDim.x * blockDim.y) {
        const u64 slot = slots[row];
        if (slot >= n_slots) continue;
        const u64 page = slot / page_tokens;
        const u32 offset = slot % page_tokens;
        for (u32 c = (blockIdx.y * blockDim.x + threadIdx.x) * VEC; c < cols; c += gridDim.y * blockDim.x * VEC) {
            const u32 head = c / dim;
            const u64 at = ((page * n_kv + head) * page_tokens + offset) * dim + (c - head * dim);
            float x[VEC];
            Access<VEC>::load(k + row * k_stride + c, x);
            Access<VEC>::store(keys + at, x);
            Access<VEC>::load(v + row * v_stride + c, x);
            Access<VEC>::store(values + at, x);
        }
    }
}
#define WRITE_KV(VEC)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        write_kv_##VEC(const bf16* k, u64 k_stride, const bf16* v, u64 v_stride, const u32* slots, bf16* keys,         \
                       bf16* values, u32 n_kv, u32 dim, u32 page_tokens, u64 n_slots, u32 rows) {                      \
        write_kv<VEC>(k, k_stride, v, v_stride, slots, keys, values, n_kv, dim, page_tokens, n_slots, rows);           \
    }
WRITE_KV(1)
WRITE_KV(8)
