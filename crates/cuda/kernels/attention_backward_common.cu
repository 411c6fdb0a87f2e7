// What both backward sets share: the row sums before the two kernels, and the parts of dK and dV.
//
// Where key heads and tiles are too few to fill the card, the heads of a group are cut into parts.
// Each part's float32 sums go to scratch, and a last kernel adds them in order.

// delta[head, token] = sum over the head's columns of d_out * out; one warp a row.
extern "C" __global__ void __launch_bounds__(256) attention_delta(const BackwardArgs a) {
    int lane = threadIdx.x & 31;
    i64 row = (i64)blockIdx.x * 8 + (threadIdx.x >> 5);
    if (row >= (i64)a.tokens * a.q_heads) return;
    i64 token = row / a.q_heads;
    int head = (int)(row % a.q_heads);
    const u32 *x = (const u32 *)(a.out + token * a.out_stride + head * D) + lane;
    const u32 *y = (const u32 *)(a.d_out + token * a.d_out_stride + head * D) + lane;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < D / 64; i++) {
        u32 u = x[32 * i], w = y[32 * i];
        sum += low_of(u) * low_of(w) + high_of(u) * high_of(w);
    }
    for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) a.delta[head * (i64)a.tokens + token] = sum;
}

struct Heads {
    int first, count;
};

// The query heads that this block sums over.
DEVICE Heads part_of_group(const BackwardArgs &a, int kv_head) {
    int group = a.q_heads / a.kv_heads, part = blockIdx.z;
    int first = part * group / a.parts;
    return {kv_head * group + first, (part + 1) * group / a.parts - first};
}

DEVICE i64 part_row(const BackwardArgs &a, int part, int which, i64 token, int kv_head) {
    return (((i64)(2 * part + which) * a.tokens + token) * a.kv_heads + kv_head) * D;
}

// Writes a warp's 16 accumulated rows to this part's share of the scratch.
DEVICE void store_part(const BackwardArgs &a, const float (&c)[D / 8][4], int which, i64 token,
                       int kv_head, int valid) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = g + 8 * half;
        if (row >= valid) continue;
        float *to = a.partial + part_row(a, blockIdx.z, which, token + row, kv_head);
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *(float2 *)(to + 8 * n + 2 * t) = make_float2(c[n][2 * half], c[n][2 * half + 1]);
    }
}

// Four columns a thread; blockIdx.y is 0 for dK and 1 for dV.
extern "C" __global__ void __launch_bounds__(256) attention_keys_merge(const BackwardArgs a) {
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    int column = (int)(i % (D / 4)) * 4, which = blockIdx.y;
    i64 row = i / (D / 4);
    if (row >= (i64)a.tokens * a.kv_heads) return;
    i64 token = row / a.kv_heads;
    int kv_head = (int)(row % a.kv_heads);
    float4 sum = make_float4(0, 0, 0, 0);
    for (int part = 0; part < a.parts; part++) {
        float4 x = *(const float4 *)(a.partial + part_row(a, part, which, token, kv_head) + column);
        sum.x += x.x;
        sum.y += x.y;
        sum.z += x.z;
        sum.w += x.w;
    }
    float factor = which ? 1.0f : a.scale;
    uint2 packed = make_uint2(pack(sum.x * factor, sum.y * factor), pack(sum.z * factor, sum.w * factor));
    bf16 *to = which ? a.d_v + token * a.d_v_stride : a.d_k + token * a.d_k_stride;
    *(uint2 *)(to + kv_head * D + column) = packed;
}
