// What every kernel text begins with: types, bfloat16 conversions, vector access, reductions.
//
// bfloat16 is handled as its bits, since the compiler at run time has no headers. `VEC` is the
// number of elements that a thread moves at once: 8 where the host found all pointers, widths and
// strides to be multiples of 16 bytes, else 1.

#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// bfloat16 as a type of its own, so that templates can tell it from integers.
struct bf16 {
    u16 bits;
};

__device__ __forceinline__ float to_float(bf16 x) {
    return __uint_as_float((u32)x.bits << 16);
}
__device__ __forceinline__ float to_float(float x) {
    return x;
}

// Rounds two numbers to nearest even and packs them, the first in the low half.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

__device__ __forceinline__ void store_one(bf16* p, float x) {
    p->bits = (u16)(pack_bf16(x, 0.0f) & 0xffffu);
}
__device__ __forceinline__ void store_one(float* p, float x) {
    *p = x;
}

// x rounded to T and back.
template <typename T>
__device__ __forceinline__ float rounded(float x);
template <>
__device__ __forceinline__ float rounded<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ float rounded<bf16>(float x) {
    return __uint_as_float(pack_bf16(0.0f, x) & 0xffff0000u);
}

template <int VEC>
struct Access;

template <>
struct Access<1> {
    template <typename T>
    static __device__ __forceinline__ void load(const T* p, float* v) {
        v[0] = to_float(*p);
    }
    template <typename T>
    static __device__ __forceinline__ void store(T* p, const float* v) {
        store_one(p, v[0]);
    }
};

template <>
struct Access<8> {
    static __device__ __forceinline__ void load(const bf16* p, float* v) {
        const uint4 w = *reinterpret_cast<const uint4*>(p);
        const u32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = __uint_as_float(words[i] << 16);
            v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    }
    static __device__ __forceinline__ void load(const float* p, float* v) {
        const float4 a = reinterpret_cast<const float4*>(p)[0];
        const float4 b = reinterpret_cast<const float4*>(p)[1];
        v[0] = a.x;
        v[1] = a.y;
        v[2] = a.z;
        v[3] = a.w;
        v[4] = b.x;
        v[5] = b.y;
        v[6] = b.z;
        v[7] = b.w;
    }
    static __device__ __forceinline__ void store(bf16* p, const float* v) {
        uint4 w;
        w.x = pack_bf16(v[0], v[1]);
        w.y = pack_bf16(v[2], v[3]);
        w.z = pack_bf16(v[4], v[5]);
        w.w = pack_bf16(v[6], v[7]);
        *reinterpret_cast<uint4*>(p) = w;
    }
    static __device__ __forceinline__ void store(float* p, const float* v) {
        reinterpret_cast<float4*>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
        reinterpret_cast<float4*>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
    }
};

// VEC elements of bf16 as they lie in memory: half the registers of floats while they wait.
template <int VEC>
struct Packed;
template <>
struct Packed<1> {
    bf16 element;
    __device__ __forceinline__ void load(const bf16* p) {
        element = *p;
    }
    __device__ __forceinline__ void store(bf16* p) const {
        *p = element;
    }
    __device__ __forceinline__ void pack(const float* v) {
        store_one(&element, v[0]);
    }
    __device__ __forceinline__ void unpack(float* v) const {
        v[0] = to_float(element);
    }
};
template <>
struct Packed<8> {
    uint4 words;
    __device__ __forceinline__ void load(const bf16* p) {
        words = *reinterpret_cast<const uint4*>(p);
    }
    __device__ __forceinline__ void store(bf16* p) const {
        *reinterpret_cast<uint4*>(p) = words;
    }
    __device__ __forceinline__ void pack(const float* v) {
        words.x = pack_bf16(v[0], v[1]);
        words.y = pack_bf16(v[2], v[3]);
        words.z = pack_bf16(v[4], v[5]);
        words.w = pack_bf16(v[6], v[7]);
    }
    __device__ __forceinline__ void unpack(float* v) const {
        const u32 w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = __uint_as_float(w[i] << 16);
            v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
        }
    }
};

// The sum over `width` neighbouring lanes (a power of two up to 32), in all of them.
__device__ __forceinline__ float lane_sum(float x, int width) {
    for (int offset = width / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}
__device__ __forceinline__ float lane_max(float x, int width) {
    for (int offset = width / 2; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

// The sum over the block, in all threads; `shared` holds 33 numbers. The order is fixed by the
// size of the block. May be called again at once.
__device__ __forceinline__ float block_sum(float x, float* shared) {
    const int thread = threadIdx.x + threadIdx.y * blockDim.x;
    const int n_warps = (blockDim.x * blockDim.y + 31) / 32;
    x = lane_sum(x, 32);
    if (thread % 32 == 0) shared[thread / 32] = x;
    __syncthreads();
    if (thread < 32) {
        float total = thread < n_warps ? shared[thread] : 0.0f;
        total = lane_sum(total, 32);
        if (thread == 0) shared[32] = total;
    }
    __syncthreads();
    const float result = shared[32];
    __syncthreads();
    return result;
}
__device__ __forceinline__ float block_max(float x, float* shared) {
    const int thread = threadIdx.x + threadIdx.y * blockDim.x;
    const int n_warps = (blockDim.x * blockDim.y + 31) / 32;
    x = lane_max(x, 32);
    if (thread % 32 == 0) shared[thread / 32] = x;
    __syncthreads();
    if (thread < 32) {
        float total = thread < n_warps ? shared[thread] : -INFINITY;
        total = lane_max(total, 32);
        if (thread == 0) shared[32] = total;
    }
    __syncthreads();
    const float result = shared[32];
    __syncthreads();
    return result;
}
