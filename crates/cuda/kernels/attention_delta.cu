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
