// Causal grouped-query attention, forward, for compute capability 8.0 and later.
//
// One block takes 128 queries of one head and walks over the keys in tiles of 64, keeping the
// running maximum and sum of each row (online softmax, Milakov and Gimelshein 2018; tiling after
// Dao, FlashAttention-2, 2023). Four warps of 32 rows: with 16 rows a warp would read shared
// memory faster than it can be read. Keys ascend, so every row meets an unmasked key in the first
// tile and no maximum stays infinite. With PAGED, keys and values come through a block table and
// the queries are chunks at the end of their contexts.

constexpr int BM = 128, BN = 64, THREADS = 128;

#ifdef PAGED
constexpr int PAGE = 16;
#define KERNEL attention_chunks

DEVICE void copy_paged(u32 to, const bf16 *pages, const int *table, int first, int kv_heads,
                       int kv_head, int length) {
    constexpr int STEP = THREADS / CHUNKS;
    int chunk = threadIdx.x % CHUNKS, row = threadIdx.x / CHUNKS;
#pragma unroll
    for (int i = 0; i < BN / STEP; i++, row += STEP) {
        int key = first + row;
        bool inside = key < length;
        i64 page = inside ? table[key / PAGE] : 0;
        const bf16 *source =
            pages + ((page * kv_heads + kv_head) * PAGE + key % PAGE) * D + chunk * 8;
        copy16(chunk_at(to, row, chunk), inside ? source : pages, inside);
    }
}
#else
#define KERNEL attention_forward
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 2) KERNEL(const ForwardArgs a) {
    extern __shared__ __align__(128) unsigned char shared[];
    u32 q_tile = shared_address(shared);
    u32 k_tile = q_tile + BM * ROW_BYTES;
    u32 v_tile = k_tile + BN * ROW_BYTES;

    Tile tile;
    if (!find_tile(a.offsets, a.n_seqs, blockIdx.y, BM, tile)) return;
    int head = blockIdx.x, kv_head = head / (a.q_heads / a.kv_heads);
    // Late tiles see the most keys, so they start first.
    int q0 = (tile.count - 1 - tile.index) * BM;
    int q_valid = min(tile.length - q0, BM);
#ifdef PAGED
    int past = a.positions[tile.start];
    const int *table = a.block_tables + (i64)a.row_line[tile.start] * a.max_pages;
#define COPY_K(n) copy_paged(k_tile, a.k, table, (n) * BN, a.kv_heads, kv_head, past + tile.length)
#define COPY_V(n) copy_paged(v_tile, a.v, table, (n) * BN, a.kv_heads, kv_head, past + tile.length)
#else
    constexpr int past = 0;
    const bf16 *k = a.k + tile.start * a.k_stride + kv_head * D;
    const bf16 *v = a.v + tile.start * a.v_stride + kv_head * D;
#define COPY_K(n)                                                                                  \
    copy_tile<BN, THREADS>(k_tile, k + (i64)(n) * BN * a.k_stride, a.k_stride, tile.length - (n) * BN)
#define COPY_V(n)                                                                                  \
    copy_tile<BN, THREADS>(v_tile, v + (i64)(n) * BN * a.v_stride, a.v_stride, tile.length - (n) * BN)
#endif
    int n_tiles = (past + q0 + q_valid + BN - 1) / BN;

    const bf16 *q = a.q + (i64)(tile.start + q0) * a.q_stride + head * D;
    copy_tile<BM, THREADS>(q_tile, q, a.q_stride, q_valid);
    COPY_K(0);
    copies_commit();

    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int row0 = past + q0 + 32 * warp;
    float scale = a.scale * LOG2E;
    float o[2][D / 8][4] = {};
    float maximum[2][2], sum[2][2] = {};
    for (int m = 0; m < 2; m++) maximum[m][0] = maximum[m][1] = NEG_INF;

    for (int n = 0; n < n_tiles; n++) {
        copies_wait<0>();
        __syncthreads();
        COPY_V(n);
        copies_commit();

        int key0 = n * BN;
        // A warp whose rows all lie before the tile has nothing to do in it.
        bool active = key0 <= row0 + 31;
        float s[2][BN / 8][4] = {};
        if (active) {
#pragma unroll
            for (int k = 0; k < D / 16; k++) {
                u32 left[2][4];
                load_left(left[0], q_tile, 32 * warp, k);
                load_left(left[1], q_tile, 32 * warp + 16, k);
#pragma unroll
                for (int j = 0; j < BN / 16; j++) {
                    u32 right[4];
                    load_right(right, k_tile, 16 * j, k);
#pragma unroll
                    for (int m = 0; m < 2; m++) {
                        multiply(s[m][2 * j], left[m], right[0], right[1]);
                        multiply(s[m][2 * j + 1], left[m], right[2], right[3]);
                    }
                }
            }
        }
        copies_wait<0>();
        __syncthreads();
        if (n + 1 < n_tiles) {
            COPY_K(n + 1);
            copies_commit();
        }
        if (!active) continue;

        bool masked = key0 + BN - 1 > row0;
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float top = NEG_INF;
#pragma unroll
                for (int j = 0; j < BN / 8; j++) {
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float &x = s[m][j][2 * half + e];
                        if (masked && key0 + 8 * j + 2 * t + e > row0 + 16 * m + 8 * half + g)
                            x = NEG_INF;
                        top = fmaxf(top, x);
                    }
                }
                top = fmaxf(maximum[m][half], quad_max(top));
                float shrink = exp2_fast((maximum[m][half] - top) * scale);
                maximum[m][half] = top;
                float offset = top * scale, total = 0;
#pragma unroll
                for (int j = 0; j < BN / 8; j++) {
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float &x = s[m][j][2 * half + e];
                        x = exp2_fast(x * scale - offset);
                        total += x;
                    }
                }
                sum[m][half] = sum[m][half] * shrink + total;
#pragma unroll
                for (int j = 0; j < D / 8; j++) {
                    o[m][j][2 * half] *= shrink;
                    o[m][j][2 * half + 1] *= shrink;
                }
            }
        }
#pragma unroll
        for (int k = 0; k < BN / 16; k++) {
            u32 left[2][4];
            accumulator_as_left(left[0], s[0][2 * k], s[0][2 * k + 1]);
            accumulator_as_left(left[1], s[1][2 * k], s[1][2 * k + 1]);
#pragma unroll
            for (int j = 0; j < D / 16; j++) {
                u32 right[4];
                load_right_transposed(right, v_tile, 16 * k, j);
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    multiply(o[m][2 * j], left[m], right[0], right[1]);
                    multiply(o[m][2 * j + 1], left[m], right[2], right[3]);
                }
            }
        }
    }

#pragma unroll
    for (int m = 0; m < 2; m++) {
        int row = 32 * warp + 16 * m;
        float total[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            total[half] = quad_sum(sum[m][half]);
            int r = row + 8 * half + g;
            if (a.lse && t == 0 && r < q_valid)
                a.lse[(i64)head * a.tokens + tile.start + q0 + r] =
                    maximum[m][half] * a.scale + logf(total[half]);
        }
        store_rows(o[m], 1.0f / total[0], 1.0f / total[1], q_tile + row * ROW_BYTES,
                   a.out + (i64)(tile.start + q0 + row) * a.out_stride + head * D, a.out_stride,
                   q_valid - row);
    }
}
