// Causal grouped-query attention, backward, for compute capability 8.0 and later.
//
// With P = exp(scale QK' - lse), dV = P'dO, dP = dO V', dS = P * (dP - delta), dQ = scale dS K and
// dK = scale dS'Q, where delta is the row sum of dO * O (Dao, FlashAttention, 2022, appendix B).
// One kernel walks over the queries for a tile of keys and sums dK and dV over the heads of the
// group; another walks over the keys for a tile of queries and sums dQ. P and dP are so computed
// twice (seven products instead of five), but every gradient is summed in registers in one fixed
// order: the result does not change from run to run, and neither atomics nor float32 scratch of
// the size of dQ are needed. The first kernel works on transposed scores, whose accumulators are
// the left operands of its other two products as they stand.

#ifndef STAGES
#define STAGES 2
#endif
constexpr int THREADS = 256;
constexpr int KEYS = 128, QUERIES = 64;   // the tiles of dK and dV
constexpr int ROWS = 128, COLUMNS = 64;   // the tiles of dQ

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_keys(const BackwardArgs a) {
    extern __shared__ __align__(128) unsigned char shared[];
    constexpr int STAGE = 2 * QUERIES * ROW_BYTES + 2 * QUERIES * 4;
    u32 k_tile = shared_address(shared);
    u32 v_tile = k_tile + KEYS * ROW_BYTES;
    u32 stages = v_tile + KEYS * ROW_BYTES;

    Tile tile;
    if (!find_tile(a.offsets, a.n_seqs, blockIdx.y, KEYS, tile)) return;
    int kv_head = blockIdx.x;
    Heads heads = part_of_group(a, kv_head);
    int k0 = tile.index * KEYS, k_valid = min(tile.length - k0, KEYS);
    const bf16 *k = a.k + (i64)(tile.start + k0) * a.k_stride + kv_head * D;
    const bf16 *v = a.v + (i64)(tile.start + k0) * a.v_stride + kv_head * D;
    copy_tile<KEYS, THREADS>(k_tile, k, a.k_stride, k_valid);
    copy_tile<KEYS, THREADS>(v_tile, v, a.v_stride, k_valid);

    // Queries before the tile do not see its keys.
    int first = k0 / QUERIES, end = (tile.length + QUERIES - 1) / QUERIES;
    int per_head = end - first, n_steps = heads.count * per_head;

    // Rows past the sequence become zeros in q, d_out, lse and delta, and so add nothing.
    auto load = [&](int step) {
        int head = heads.first + step / per_head;
        int q0 = (first + step % per_head) * QUERIES;
        u32 stage = stages + (step % STAGES) * STAGE;
        i64 token = tile.start + q0;
        int valid = tile.length - q0;
        copy_tile<QUERIES, THREADS>(stage, a.q + token * a.q_stride + head * D, a.q_stride, valid);
        copy_tile<QUERIES, THREADS>(stage + QUERIES * ROW_BYTES,
                                    a.d_out + token * a.d_out_stride + head * D, a.d_out_stride,
                                    valid);
        int i = threadIdx.x;
        if (i < 2 * QUERIES) {
            int r = i % QUERIES;
            const float *from = (i < QUERIES ? a.lse : a.delta) + head * (i64)a.tokens;
            bool inside = r < valid;
            copy4(stage + 2 * QUERIES * ROW_BYTES + 4 * i, from + (inside ? token + r : 0), inside);
        }
        copies_commit();
    };

    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int row0 = k0 + 16 * warp;
    float scale = a.scale * LOG2E;
    float d_k[D / 8][4] = {}, d_v[D / 8][4] = {};

    load(0);
    for (int step = 0; step < n_steps; step++) {
        if (STAGES > 1 && step + 1 < n_steps) {
            load(step + 1);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        int q0 = (first + step % per_head) * QUERIES;
        u32 q_tile = stages + (step % STAGES) * STAGE;
        u32 o_tile = q_tile + QUERIES * ROW_BYTES;
        u32 statistics = o_tile + QUERIES * ROW_BYTES;
        if (q0 + QUERIES - 1 >= row0) {
            float p[QUERIES / 8][4] = {}, d[QUERIES / 8][4] = {};
#pragma unroll
            for (int i = 0; i < D / 16; i++) {
                u32 left[4], right[4];
                load_left(left, k_tile, 16 * warp, i);
#pragma unroll
                for (int j = 0; j < QUERIES / 16; j++) {
                    load_right(right, q_tile, 16 * j, i);
                    multiply(p[2 * j], left, right[0], right[1]);
                    multiply(p[2 * j + 1], left, right[2], right[3]);
                }
            }
            bool masked = q0 < row0 + 15;
#pragma unroll
            for (int j = 0; j < QUERIES / 8; j++) {
                float lse[2];
                asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];"
                             : "=f"(lse[0]), "=f"(lse[1])
                             : "r"(statistics + (8 * j + 2 * t) * 4)
                             : "memory");
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float x = exp2_fast(p[j][e] * scale - lse[e & 1] * LOG2E);
                    bool hidden = row0 + g + 8 * (e >> 1) > q0 + 8 * j + 2 * t + (e & 1);
                    p[j][e] = masked && hidden ? 0.0f : x;
                }
            }
#pragma unroll
            for (int i = 0; i < D / 16; i++) {
                u32 left[4], right[4];
                load_left(left, v_tile, 16 * warp, i);
#pragma unroll
                for (int j = 0; j < QUERIES / 16; j++) {
                    load_right(right, o_tile, 16 * j, i);
                    multiply(d[2 * j], left, right[0], right[1]);
                    multiply(d[2 * j + 1], left, right[2], right[3]);
                }
            }
#pragma unroll
            for (int i = 0; i < QUERIES / 16; i++) {
                u32 left[4], right[4];
                accumulator_as_left(left, p[2 * i], p[2 * i + 1]);
#pragma unroll
                for (int j = 0; j < D / 16; j++) {
                    load_right_transposed(right, o_tile, 16 * i, j);
                    multiply(d_v[2 * j], left, right[0], right[1]);
                    multiply(d_v[2 * j + 1], left, right[2], right[3]);
                }
            }
#pragma unroll
            for (int j = 0; j < QUERIES / 8; j++) {
                float delta[2];
                asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];"
                             : "=f"(delta[0]), "=f"(delta[1])
                             : "r"(statistics + (QUERIES + 8 * j + 2 * t) * 4)
                             : "memory");
#pragma unroll
                for (int e = 0; e < 4; e++) d[j][e] = p[j][e] * (d[j][e] - delta[e & 1]);
            }
#pragma unroll
            for (int i = 0; i < QUERIES / 16; i++) {
                u32 left[4], right[4];
                accumulator_as_left(left, d[2 * i], d[2 * i + 1]);
#pragma unroll
                for (int j = 0; j < D / 16; j++) {
                    load_right_transposed(right, q_tile, 16 * i, j);
                    multiply(d_k[2 * j], left, right[0], right[1]);
                    multiply(d_k[2 * j + 1], left, right[2], right[3]);
                }
            }
        }
        __syncthreads();
        if (STAGES == 1 && step + 1 < n_steps) load(step + 1);
    }

    int row = 16 * warp;
    i64 token = tile.start + k0 + row;
    if (a.parts > 1) {
        store_part(a, d_k, 0, token, kv_head, k_valid - row);
        store_part(a, d_v, 1, token, kv_head, k_valid - row);
        return;
    }
    store_rows(d_k, a.scale, a.scale, k_tile + row * ROW_BYTES,
               a.d_k + token * a.d_k_stride + kv_head * D, a.d_k_stride, k_valid - row);
    store_rows(d_v, 1.0f, 1.0f, v_tile + row * ROW_BYTES,
               a.d_v + token * a.d_v_stride + kv_head * D, a.d_v_stride, k_valid - row);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_queries(const BackwardArgs a) {
    extern __shared__ __align__(128) unsigned char shared[];
    constexpr int STAGE = 2 * COLUMNS * ROW_BYTES;
    u32 q_tile = shared_address(shared);
    u32 o_tile = q_tile + ROWS * ROW_BYTES;
    u32 stages = o_tile + ROWS * ROW_BYTES;

    Tile tile;
    if (!find_tile(a.offsets, a.n_seqs, blockIdx.y, ROWS, tile)) return;
    int head = blockIdx.x, kv_head = head / (a.q_heads / a.kv_heads);
    int q0 = (tile.count - 1 - tile.index) * ROWS, q_valid = min(tile.length - q0, ROWS);
    int n_steps = (q0 + q_valid + COLUMNS - 1) / COLUMNS;
    i64 token0 = tile.start + q0;
    copy_tile<ROWS, THREADS>(q_tile, a.q + token0 * a.q_stride + head * D, a.q_stride, q_valid);
    copy_tile<ROWS, THREADS>(o_tile, a.d_out + token0 * a.d_out_stride + head * D, a.d_out_stride,
                             q_valid);

    auto load = [&](int step) {
        u32 stage = stages + (step % STAGES) * STAGE;
        int key = step * COLUMNS;
        i64 token = tile.start + key;
        copy_tile<COLUMNS, THREADS>(stage, a.k + token * a.k_stride + kv_head * D, a.k_stride,
                                    tile.length - key);
        copy_tile<COLUMNS, THREADS>(stage + COLUMNS * ROW_BYTES,
                                    a.v + token * a.v_stride + kv_head * D, a.v_stride,
                                    tile.length - key);
        copies_commit();
    };

    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int row0 = q0 + 16 * warp;
    float scale = a.scale * LOG2E;
    float lse[2] = {}, delta[2] = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int r = 16 * warp + 8 * half + g;
        if (r < q_valid) {
            lse[half] = a.lse[head * (i64)a.tokens + token0 + r] * LOG2E;
            delta[half] = a.delta[head * (i64)a.tokens + token0 + r];
        }
    }
    float d_q[D / 8][4] = {};

    load(0);
    for (int step = 0; step < n_steps; step++) {
        if (STAGES > 1 && step + 1 < n_steps) {
            load(step + 1);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        int key0 = step * COLUMNS;
        u32 k_tile = stages + (step % STAGES) * STAGE;
        u32 v_tile = k_tile + COLUMNS * ROW_BYTES;
        if (key0 <= row0 + 15) {
            float p[COLUMNS / 8][4] = {}, d[COLUMNS / 8][4] = {};
#pragma unroll
            for (int i = 0; i < D / 16; i++) {
                u32 left[4], right[4];
                load_left(left, q_tile, 16 * warp, i);
#pragma unroll
                for (int j = 0; j < COLUMNS / 16; j++) {
                    load_right(right, k_tile, 16 * j, i);
                    multiply(p[2 * j], left, right[0], right[1]);
                    multiply(p[2 * j + 1], left, right[2], right[3]);
                }
                load_left(left, o_tile, 16 * warp, i);
#pragma unroll
                for (int j = 0; j < COLUMNS / 16; j++) {
                    load_right(right, v_tile, 16 * j, i);
                    multiply(d[2 * j], left, right[0], right[1]);
                    multiply(d[2 * j + 1], left, right[2], right[3]);
                }
            }
            bool masked = key0 + COLUMNS - 1 > row0;
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int half = e >> 1;
                    float x = exp2_fast(p[j][e] * scale - lse[half]) * (d[j][e] - delta[half]);
                    bool hidden = key0 + 8 * j + 2 * t + (e & 1) > row0 + 8 * half + g;
                    p[j][e] = masked && hidden ? 0.0f : x;
                }
            }
#pragma unroll
            for (int i = 0; i < COLUMNS / 16; i++) {
                u32 left[4], right[4];
                accumulator_as_left(left, p[2 * i], p[2 * i + 1]);
#pragma unroll
                for (int j = 0; j < D / 16; j++) {
                    load_right_transposed(right, k_tile, 16 * i, j);
                    multiply(d_q[2 * j], left, right[0], right[1]);
                    multiply(d_q[2 * j + 1], left, right[2], right[3]);
                }
            }
        }
        __syncthreads();
        if (STAGES == 1 && step + 1 < n_steps) load(step + 1);
    }
    store_rows(d_q, a.scale, a.scale, q_tile + 16 * warp * ROW_BYTES,
               a.d_q + (token0 + 16 * warp) * a.d_q_stride + head * D, a.d_q_stride,
               q_valid - 16 * warp);
}
