// 4-bit NormalFloat (QLoRA, arXiv 2305.14314) and 8-bit integers: quantising at load time, and
// dequantising one matrix into a scratch buffer before its product.
//
// Blocks run over the flattened matrix. NF4 keeps two codes a byte, the first element in the high
// nibble, and a maximum for every 64; the maxima are f32, or 8-bit codes of the signed dynamic map
// in blocks of 256 around their mean. Int8 keeps a scale for every 32.

__constant__ float NF4[16] = {-1.0f,
                              -0.6961928009986877f,
                              -0.5250730514526367f,
                              -0.39491748809814453f,
                              -0.28444138169288635f,
                              -0.18477343022823334f,
                              -0.09105003625154495f,
                              0.0f,
                              0.07958029955625534f,
                              0.16093020141124725f,
                              0.24611230194568634f,
                              0.33791524171829224f,
                              0.44070982933044434f,
                              0.5626170039176941f,
                              0.7229568362236023f,
                              1.0f};

// Eight neighbouring lanes take a block of 64. `n` is a multiple of 64.
extern "C" __global__ void __launch_bounds__(256) quantise_nf4(const float* x, u64 n, u32* codes, float* maxima) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    const u64 units = n / 8;
    // `units` is a multiple of 8, and so a whole group of lanes leaves together.
    for (u64 unit = (u64)blockIdx.x * blockDim.x + threadIdx.x; unit < units; unit += stride) {
        float v[8];
        Access<8>::load(x + unit * 8, v);
        float max = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) max = fmaxf(max, fabsf(v[i]));
        const u32 lanes = 0xffu << (threadIdx.x % 32 / 8 * 8);
        for (int offset = 4; offset > 0; offset /= 2) max = fmaxf(max, __shfl_xor_sync(lanes, max, offset));
        const float inverse = max > 0.0f ? 1.0f / max : 0.0f;
        u32 word = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float y = v[i] * inverse;
            u32 code = 0;
#pragma unroll
            for (int k = 0; k < 15; k++) code += y > 0.5f * (NF4[k] + NF4[k + 1]);
            word |= code << (i / 2 * 8 + (i % 2 == 0 ? 4 : 0));
        }
        codes[unit] = word;
        if (threadIdx.x % 8 == 0) maxima[unit / 8] = max;
    }
}

// The second level: one block of 256 threads for 256 maxima.
extern "C" __global__ void __launch_bounds__(256)
    quantise_maxima(const float* maxima, u64 n, float offset, const float* map, u8* codes, float* second_maxima) {
    __shared__ float shared[33];
    __shared__ float table[256];
    table[threadIdx.x] = map[threadIdx.x];
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    const float x = i < n ? maxima[i] - offset : 0.0f;
    const float max = block_max(fabsf(x), shared);
    const float y = max > 0.0f ? x / max : 0.0f;
    // The nearest of the sorted map: the number of midpoints below.
    u32 low = 0;
    for (u32 step = 128; step > 0; step /= 2) {
        const u32 at = low + step;
        if (at < 256 && y > 0.5f * (table[at - 1] + table[at])) low = at;
    }
    if (i < n) codes[i] = (u8)low;
    if (threadIdx.x == 0) second_maxima[blockIdx.x] = max;
}

extern "C" __global__ void __launch_bounds__(256) quantise_int8(const float* x, u64 n, u32* codes, float* scales) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    const u64 units = n / 4;
    // Eight neighbouring lanes take a block of 32; `n` is a multiple of 32.
    for (u64 unit = (u64)blockIdx.x * blockDim.x + threadIdx.x; unit < units; unit += stride) {
        const float4 v = *reinterpret_cast<const float4*>(x + unit * 4);
        const float values[4] = {v.x, v.y, v.z, v.w};
        float max = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) max = fmaxf(max, fabsf(values[i]));
        const u32 lanes = 0xffu << (threadIdx.x % 32 / 8 * 8);
        for (int offset = 4; offset > 0; offset /= 2) max = fmaxf(max, __shfl_xor_sync(lanes, max, offset));
        const float scale = max / 127.0f;
        u32 word = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int code = scale > 0.0f ? __float2int_rn(values[i] / scale) : 0;
            word |= ((u32)code & 0xffu) << (8 * i);
        }
        codes[unit] = word;
        if (threadIdx.x % 8 == 0) scales[unit / 8] = scale;
    }
}

// The maximum of block `block`.
template <bool DOUBLE>
__device__ __forceinline__ float nf4_maximum(const void* maxima, const float* second_maxima, const float* map,
                                             float offset, u64 block) {
    if (DOUBLE) return map[((const u8*)maxima)[block]] * second_maxima[block / 256] + offset;
    return ((const float*)maxima)[block];
}

// out[0..n] = elements `first`.. of the matrix; both are multiples of 8. A thread unpacks one
// word of eight codes at a time, UNROLL of them in flight.
template <bool DOUBLE>
__device__ void dequantise_nf4(const u32* codes, const void* maxima, const float* second_maxima, const float* map,
                               float offset, u64 first, u64 n, bf16* out) {
    __shared__ float book[16];
    __shared__ float table[256];
    if (threadIdx.x < 16) book[threadIdx.x] = NF4[threadIdx.x];
    if (DOUBLE) table[threadIdx.x] = map[threadIdx.x];
    __syncthreads();
    const u64 units = n / 8;
    const u64 first_unit = first / 8;
    const int UNROLL = 4;
    for (u64 base = (u64)blockIdx.x * 256 * UNROLL + threadIdx.x; base < units; base += (u64)gridDim.x * 256 * UNROLL) {
        u32 words[UNROLL];
        float scales[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            const u64 unit = base + k * 256;
            if (unit < units) {
                words[k] = codes[first_unit + unit];
                scales[k] = nf4_maximum<DOUBLE>(maxima, second_maxima, table, offset, (first_unit + unit) / 8);
            }
        }
#pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            const u64 unit = base + k * 256;
            if (unit < units) {
                float v[8];
#pragma unroll
                for (int i = 0; i < 8; i++)
                    v[i] = book[(words[k] >> (i / 2 * 8 + (i % 2 == 0 ? 4 : 0))) & 15u] * scales[k];
                Access<8>::store(out + unit * 8, v);
            }
        }
    }
}
extern "C" __global__ void __launch_bounds__(256)
    dequantise_nf4(const u32* codes, const float* maxima, u64 first, u64 n, bf16* out) {
    dequantise_nf4<false>(codes, maxima, nullptr, nullptr, 0.0f, first, n, out);
}
extern "C" __global__ void __launch_bounds__(256)
    dequantise_nf4_double(const u32* codes, const u8* maxima, const float* second_maxima, const float* map,
                          float offset, u64 first, u64 n, bf16* out) {
    dequantise_nf4<true>(codes, maxima, second_maxima, map, offset, first, n, out);
}

extern "C" __global__ void __launch_bounds__(256)
    dequantise_int8(const u32* codes, const float* scales, u64 first, u64 n, bf16* out) {
    const u64 units = n / 8;
    for (u64 unit = (u64)blockIdx.x * 256 + threadIdx.x; unit < units; unit += (u64)gridDim.x * 256) {
        const u64 at = first / 8 + unit;
        const uint2 words = reinterpret_cast<const uint2*>(codes)[at];
        const float scale = scales[at / 4];
        float v[8];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = (float)((int)(words.x << (24 - 8 * i)) >> 24) * scale;
            v[4 + i] = (float)((int)(words.y << (24 - 8 * i)) >> 24) * scale;
        }
        Access<8>::store(out + unit * 8, v);
    }
}

// out[row] = row ids[row] of a quantised table, `cols` a multiple of 8; a row beyond the table
// becomes NaN. `unpack(unit, v)` gives the eight elements from `unit * 8` on.
template <typename Unpack>
__device__ void embed_quantised(Unpack unpack, const u32* ids, u32 n_table, bf16* out, u64 stride, u32 rows, u32 cols) {
    for (u64 row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += gridDim.x * blockDim.y) {
        const u64 id = ids[row];
        for (u32 c = (blockIdx.y * blockDim.x + threadIdx.x) * 8; c < cols; c += gridDim.y * blockDim.x * 8) {
            float v[8];
            if (id < n_table) {
                unpack((id * cols + c) / 8, v);
            } else {
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] = NAN;
            }
            Access<8>::store(out + row * stride + c, v);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    embed_nf4(const u32* codes, const float* maxima, const u32* ids, u32 n_table, bf16* out, u64 stride, u32 rows,
              u32 cols) {
    const auto unpack = [=](u64 unit, float* v) {
        for (int i = 0; i < 8; i++)
            v[i] = NF4[(codes[unit] >> (i / 2 * 8 + (i % 2 == 0 ? 4 : 0))) & 15u] * maxima[unit / 8];
    };
    embed_quantised(unpack, ids, n_table, out, stride, rows, cols);
}
extern "C" __global__ void __launch_bounds__(256)
    embed_nf4_double(const u32* codes, const u8* maxima, const float* second_maxima, const float* map, float offset,
                     const u32* ids, u32 n_table, bf16* out, u64 stride, u32 rows, u32 cols) {
    const auto unpack = [=](u64 unit, float* v) {
        const float max = nf4_maximum<true>(maxima, second_maxima, map, offset, unit / 8);
        for (int i = 0; i < 8; i++)
            v[i] = NF4[(codes[unit] >> (i / 2 * 8 + (i % 2 == 0 ? 4 : 0))) & 15u] * max;
    };
    embed_quantised(unpack, ids, n_table, out, stride, rows, cols);
}
extern "C" __global__ void __launch_bounds__(256)
    embed_int8(const u32* codes, const float* scales, const u32* ids, u32 n_table, bf16* out, u64 stride, u32 rows,
               u32 cols) {
    const auto unpack = [=](u64 unit, float* v) {
        const float scale = scales[unit / 4];
        for (int i = 0; i < 8; i++)
            v[i] = (float)((int)(codes[2 * unit + i / 4] << (24 - 8 * (i % 4))) >> 24) * scale;
    };
    embed_quantised(unpack, ids, n_table, out, stride, rows, cols);
}
