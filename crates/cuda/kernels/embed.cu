// Gradient of the embedding table, in the order of rows and without atomics.
//
// A block looks at one row of the batch (grid x) and some columns (grid y). If an earlier row has
// the same id it leaves; else it adds up every row of that id, in order, into the table's row.

#define THREADS 256

template <int VEC>
__device__ void embed_backward(const u32* ids, const bf16* d_out, u64 stride, float* d_table, u64 table_stride,
                               u32 vocabulary, u32 rows, u32 cols) {
    __shared__ u32 matches[THREADS];
    __shared__ u32 warp_counts[THREADS / 32];
    const u32 first = blockIdx.x;
    const u32 id = ids[first];
    if (id >= vocabulary) return;
    for (u32 base = 0; base < first; base += THREADS * 4) {
        bool seen = false;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const u32 row = base + k * THREADS + threadIdx.x;
            if (row < first) seen |= ids[row] == id;
        }
        if (__syncthreads_or(seen)) return;
    }
    const u32 c = (blockIdx.y * THREADS + threadIdx.x) * VEC;
    float sum[VEC] = {};
    if (c < cols) Access<VEC>::load(d_table + id * table_stride + c, sum);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u32 base = first; base < rows; base += THREADS) {
        const u32 row = base + threadIdx.x;
        const bool match = row < rows && ids[row] == id;
        const u32 ballot = __ballot_sync(0xffffffffu, match);
        if (lane == 0) warp_counts[warp] = __popc(ballot);
        __syncthreads();
        u32 place = 0, n_matches = 0;
        for (u32 w = 0; w < THREADS / 32; w++) {
            if (w < warp) place += warp_counts[w];
            n_matches += warp_counts[w];
        }
        if (match) matches[place + __popc(ballot & ((1u << lane) - 1u))] = row;
        __syncthreads();
        if (c < cols)
            for (u32 i = 0; i < n_matches; i++) {
                float v[VEC];
                Access<VEC>::load(d_out + (u64)matches[i] * stride + c, v);
#pragma unroll
                for (int k = 0; k < VEC; k++) sum[k] += v[k];
            }
        __syncthreads();
    }
    if (c < cols) Access<VEC>::store(d_table + id * table_stride + c, sum);
}

#define EMBED_BACKWARD(VEC)                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        embed_backward_##VEC(const u32* ids, const bf16* d_out, u64 stride, float* d_table, u64 table_stride,          \
                             u32 vocabulary, u32 rows, u32 cols) {                                                     \
        embed_backward<VEC>(ids, d_out, stride, d_table, table_stride, vocabulary, rows, cols);                        \
    }
EMBED_BACKWARD(1)
EMBED_BACKWARD(8)
