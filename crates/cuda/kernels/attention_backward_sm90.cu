// Causal grouped-query attention, backward, for compute capability 9.0.
//
// The same two kernels as attention_backward.cu, whose head gives the equations, with warpgroup
// products: two warpgroups compute, a third feeds them. Scores are transposed in the first kernel,
// so that in both the accumulated P and dS are left operands in registers as they stand, and
// nothing passes through shared memory. The products of step n that only add up run beside the
// scores of step n + 1.

constexpr int KEYS = 128, QUERIES = 64;   // the tiles of dK and dV
constexpr int ROWS = 128, COLUMNS = 64;   // the tiles of dQ
constexpr int RING = 3, THREADS = 384;

// The 16 rows of `ROW_BYTES` that a warp may use as staging: a part of its warpgroup's own share of
// a tile of 128 rows.
DEVICE u32 own_share(u32 tile, int group, int warp) {
    constexpr int WARP_BYTES = 16 * ROW_BYTES, SHARE = 64 * 128;
    return tile + warp * WARP_BYTES / SHARE * 128 * 128 + group * SHARE + warp * WARP_BYTES % SHARE;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_keys(const BackwardArgs a, const __grid_constant__ TensorMap q_map,
                   const __grid_constant__ TensorMap k_map,
                   const __grid_constant__ TensorMap v_map,
                   const __grid_constant__ TensorMap d_out_map) {
    extern __shared__ unsigned char shared[];
    __shared__ u64 barriers[1 + 4 * RING];
    __shared__ float statistics[RING][2][QUERIES];
    constexpr int TILE_BYTES = QUERIES * ROW_BYTES;
    u32 k_tile = (shared_address(shared) + 1023) & ~1023u;
    u32 v_tile = k_tile + KEYS * ROW_BYTES;
    u32 q_tiles = v_tile + KEYS * ROW_BYTES;
    u32 o_tiles = q_tiles + RING * TILE_BYTES;
    u32 kv_full = shared_address(barriers), q_full = kv_full + 8, o_full = q_full + 8 * RING;
    u32 statistics_full = o_full + 8 * RING, free = statistics_full + 8 * RING;

    Tile tile;
    if (!find_tile(a.offsets, a.n_seqs, blockIdx.y, KEYS, tile)) return;
    int kv_head = blockIdx.x;
    Heads heads = part_of_group(a, kv_head);
    int k0 = tile.index * KEYS, k_valid = min(tile.length - k0, KEYS);
    // Queries before the tile do not see its keys.
    int first = k0 / QUERIES, end = (tile.length + QUERIES - 1) / QUERIES;
    int per_head = end - first, n_steps = heads.count * per_head;

    if (threadIdx.x == 0) {
        barrier_init(kv_full, 1);
        for (int s = 0; s < RING; s++) {
            barrier_init(q_full + 8 * s, 1);
            barrier_init(o_full + 8 * s, 1);
            barrier_init(statistics_full + 8 * s, 32);
            barrier_init(free + 8 * s, 8);
        }
        barriers_publish();
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_shrink<24>();
        int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        if (threadIdx.x == 0) {
            barrier_expect(kv_full, 2 * KEYS * ROW_BYTES);
            copy_slabs<KEYS>(k_tile, &k_map, kv_head * D, tile.start + k0, kv_full);
            copy_slabs<KEYS>(v_tile, &v_map, kv_head * D, tile.start + k0, kv_full);
        }
        if (warp < 2) {
            int head = heads.first, query = first;
            for (int n = 0; n < n_steps; n++) {
                int s = n % RING;
                barrier_wait(free + 8 * s, (n / RING + 1) & 1);
                int token = tile.start + query * QUERIES;
                if (threadIdx.x == 0) {
                    barrier_expect(q_full + 8 * s, TILE_BYTES);
                    copy_slabs<QUERIES>(q_tiles + s * TILE_BYTES, &q_map, head * D, token,
                                        q_full + 8 * s);
                    barrier_expect(o_full + 8 * s, TILE_BYTES);
                    copy_slabs<QUERIES>(o_tiles + s * TILE_BYTES, &d_out_map, head * D, token,
                                        o_full + 8 * s);
                } else if (warp == 1) {
                    int valid = tile.length - query * QUERIES;
                    i64 at = head * (i64)a.tokens + token;
#pragma unroll
                    for (int i = 0; i < QUERIES; i += 32) {
                        bool inside = i + lane < valid;
                        i64 from = inside ? at + i + lane : 0;
                        copy4(shared_address(&statistics[s][0][i + lane]), a.lse + from, inside);
                        copy4(shared_address(&statistics[s][1][i + lane]), a.delta + from, inside);
                    }
                    barrier_arrive_after_copies(statistics_full + 8 * s);
                }
                if (++query == end) {
                    query = first;
                    head++;
                }
            }
        }
    } else {
        registers_grow<240>();
        int group = warpgroup() - 1;
        int warp = (threadIdx.x >> 5) & 3, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
        int row0 = k0 + 64 * group + 16 * warp + g;
        float scale = a.scale * LOG2E;
        float d_k[D / 8][4] = {}, d_v[D / 8][4] = {};
        float s[QUERIES / 8][4], d[QUERIES / 8][4];
        u32 p[QUERIES / 16][4], e[QUERIES / 16][4];
        // With narrow heads the registers hold the tile's keys and values too.
        u32 k_rows[D / 16][4], v_rows[D / 16][4];

        auto start_scores = [&](int n) {
            u32 q_tile = q_tiles + n % RING * TILE_BYTES;
            barrier_wait(q_full + 8 * (n % RING), (n / RING) & 1);
            products_begin();
            if (D == 64)
                multiply_rows<QUERIES>(s, k_rows, q_tile);
            else
                multiply_columns<KEYS, QUERIES>(s, k_tile, 64 * group, q_tile);
            products_commit();
        };
        auto start_d = [&](int n) {
            u32 o_tile = o_tiles + n % RING * TILE_BYTES;
            barrier_wait(o_full + 8 * (n % RING), (n / RING) & 1);
            products_begin();
            if (D == 64)
                multiply_rows<QUERIES>(d, v_rows, o_tile);
            else
                multiply_columns<KEYS, QUERIES>(d, v_tile, 64 * group, o_tile);
            products_commit();
        };
        auto add_d_k = [&](int n) {
            products_begin();
#pragma unroll
            for (int i = 0; i < QUERIES / 16; i++)
                product(d_k, e[i], along_rows<QUERIES>(q_tiles + n % RING * TILE_BYTES, i));
            products_commit();
        };

        pin(d_k);
        pin(d_v);
        barrier_wait(kv_full, 0);
        if (D == 64) {
            load_rows<KEYS>(k_rows, k_tile, 64 * group + 16 * warp);
            load_rows<KEYS>(v_rows, v_tile, 64 * group + 16 * warp);
        }
        start_scores(0);
        start_d(0);
        products_wait<1>();
        pin(s);
        int query = first;
        for (int n = 0;; n++) {
            int stage = n % RING, q0 = query * QUERIES;
            if (++query == end) query = first;
            barrier_wait(statistics_full + 8 * stage, (n / RING) & 1);
            // A product's accumulators are written by nothing else while others are under way, so
            // the weights are apart from the scores.
            float w[QUERIES / 8][4];
#pragma unroll
            for (int j = 0; j < QUERIES / 8; j++) {
                float2 lse = *(const float2 *)&statistics[stage][0][8 * j + 2 * t];
                lse.x *= LOG2E;
                lse.y *= LOG2E;
#pragma unroll
                for (int i = 0; i < 4; i++)
                    w[j][i] = exp2_fast(s[j][i] * scale - (i & 1 ? lse.y : lse.x));
            }
            // Queries before a key, and those of the next sequence, which the copy brought along.
            if (q0 < k0 + 64 * group + 63 || q0 + QUERIES > tile.length) {
#pragma unroll
                for (int j = 0; j < QUERIES / 8; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        int at = q0 + 8 * j + 2 * t + (i & 1);
                        if (at < row0 + 8 * (i >> 1) || at >= tile.length) w[j][i] = 0;
                    }
            }
#pragma unroll
            for (int i = 0; i < QUERIES / 16; i++) accumulator_as_left(p[i], w[2 * i], w[2 * i + 1]);
            products_begin();
#pragma unroll
            for (int i = 0; i < QUERIES / 16; i++)
                product(d_v, p[i], along_rows<QUERIES>(o_tiles + stage * TILE_BYTES, i));
            products_commit();
            products_wait<1>();
            pin(d);
            pin(e);
            if (n > 0 && lane == 0) barrier_arrive(free + 8 * ((n - 1) % RING));
#pragma unroll
            for (int j = 0; j < QUERIES / 8; j++) {
                float2 delta = *(const float2 *)&statistics[stage][1][8 * j + 2 * t];
#pragma unroll
                for (int i = 0; i < 4; i++) w[j][i] *= d[j][i] - (i & 1 ? delta.y : delta.x);
            }
#pragma unroll
            for (int i = 0; i < QUERIES / 16; i++) accumulator_as_left(e[i], w[2 * i], w[2 * i + 1]);
            if (n + 1 == n_steps) {
                add_d_k(n);
                break;
            }
            // The next scores go before dK, so that their softmax runs beside it. The sum of dV ends
            // first: its operand's registers are needed.
            products_wait<0>();
            pin(p);
            start_scores(n + 1);
            add_d_k(n);
            start_d(n + 1);
            products_wait<2>();
            pin(s);
        }
        products_wait<0>();
        pin(d_k);
        pin(d_v);

        named_wait(1 + group, 128);
        int row = 64 * group + 16 * warp;
        i64 token = tile.start + k0 + row;
        if (a.parts > 1) {
            store_part(a, d_k, 0, token, kv_head, k_valid - row);
            store_part(a, d_v, 1, token, kv_head, k_valid - row);
            return;
        }
        store_rows(d_k, a.scale, a.scale, own_share(k_tile, group, warp),
                   a.d_k + token * a.d_k_stride + kv_head * D, a.d_k_stride, k_valid - row);
        store_rows(d_v, 1.0f, 1.0f, own_share(v_tile, group, warp),
                   a.d_v + token * a.d_v_stride + kv_head * D, a.d_v_stride, k_valid - row);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_queries(const BackwardArgs a, const __grid_constant__ TensorMap q_map,
                      const __grid_constant__ TensorMap k_map,
                      const __grid_constant__ TensorMap v_map,
                      const __grid_constant__ TensorMap d_out_map) {
    extern __shared__ unsigned char shared[];
    __shared__ u64 barriers[1 + 3 * RING];
    constexpr int TILE_BYTES = COLUMNS * ROW_BYTES;
    u32 q_tile = (shared_address(shared) + 1023) & ~1023u;
    u32 o_tile = q_tile + ROWS * ROW_BYTES;
    u32 k_tiles = o_tile + ROWS * ROW_BYTES;
    u32 v_tiles = k_tiles + RING * TILE_BYTES;
    u32 q_full = shared_address(barriers), k_full = q_full + 8, v_full = k_full + 8 * RING;
    u32 free = v_full + 8 * RING;

    Tile tile;
    if (!find_tile(a.offsets, a.n_seqs, blockIdx.y, ROWS, tile)) return;
    int head = blockIdx.x, kv_head = head / (a.q_heads / a.kv_heads);
    int q0 = (tile.count - 1 - tile.index) * ROWS, q_valid = min(tile.length - q0, ROWS);
    int n_steps = (q0 + q_valid + COLUMNS - 1) / COLUMNS;

    if (threadIdx.x == 0) {
        barrier_init(q_full, 1);
        for (int s = 0; s < RING; s++) {
            barrier_init(k_full + 8 * s, 1);
            barrier_init(v_full + 8 * s, 1);
            barrier_init(free + 8 * s, 8);
        }
        barriers_publish();
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_shrink<24>();
        if (threadIdx.x == 0) {
            barrier_expect(q_full, 2 * ROWS * ROW_BYTES);
            copy_slabs<ROWS>(q_tile, &q_map, head * D, tile.start + q0, q_full);
            copy_slabs<ROWS>(o_tile, &d_out_map, head * D, tile.start + q0, q_full);
            for (int n = 0; n < n_steps; n++) {
                int s = n % RING, token = tile.start + n * COLUMNS;
                barrier_wait(free + 8 * s, (n / RING + 1) & 1);
                barrier_expect(k_full + 8 * s, TILE_BYTES);
                copy_slabs<COLUMNS>(k_tiles + s * TILE_BYTES, &k_map, kv_head * D, token,
                                    k_full + 8 * s);
                barrier_expect(v_full + 8 * s, TILE_BYTES);
                copy_slabs<COLUMNS>(v_tiles + s * TILE_BYTES, &v_map, kv_head * D, token,
                                    v_full + 8 * s);
            }
        }
    } else {
        registers_grow<240>();
        int group = warpgroup() - 1;
        int warp = (threadIdx.x >> 5) & 3, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
        int row0 = q0 + 64 * group + 16 * warp + g;
        float scale = a.scale * LOG2E;
        float lse[2] = {}, delta[2] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = row0 + 8 * half;
            if (r < tile.length) {
                i64 at = head * (i64)a.tokens + tile.start + r;
                lse[half] = a.lse[at] * LOG2E;
                delta[half] = a.delta[at];
            }
        }
        float d_q[D / 8][4] = {}, s[COLUMNS / 8][4], d[COLUMNS / 8][4];
        u32 e[COLUMNS / 16][4], q_rows[D / 16][4], o_rows[D / 16][4];

        auto scores = [&](int n) {
            int stage = n % RING, parity = (n / RING) & 1;
            u32 k_tile = k_tiles + stage * TILE_BYTES, v_tile = v_tiles + stage * TILE_BYTES;
            barrier_wait(k_full + 8 * stage, parity);
            products_begin();
            multiply_rows<COLUMNS>(s, q_rows, k_tile);
            products_commit();
            barrier_wait(v_full + 8 * stage, parity);
            products_begin();
            multiply_rows<COLUMNS>(d, o_rows, v_tile);
            products_commit();
        };

        pin(d_q);
        barrier_wait(q_full, 0);
        load_rows<ROWS>(q_rows, q_tile, 64 * group + 16 * warp);
        load_rows<ROWS>(o_rows, o_tile, 64 * group + 16 * warp);
        scores(0);
        for (int n = 0;; n++) {
            int stage = n % RING, key0 = n * COLUMNS;
            products_wait<1>();
            pin(s);
            pin(e);
            if (n > 0 && lane == 0) barrier_arrive(free + 8 * ((n - 1) % RING));
            float w[COLUMNS / 8][4];
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) w[j][i] = exp2_fast(s[j][i] * scale - lse[i >> 1]);
            if (key0 + COLUMNS - 1 > q0 + 64 * group) {
#pragma unroll
                for (int j = 0; j < COLUMNS / 8; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (key0 + 8 * j + 2 * t + (i & 1) > row0 + 8 * (i >> 1)) w[j][i] = 0;
            }
            products_wait<0>();
            pin(d);
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) w[j][i] *= d[j][i] - delta[i >> 1];
#pragma unroll
            for (int i = 0; i < COLUMNS / 16; i++) accumulator_as_left(e[i], w[2 * i], w[2 * i + 1]);
            products_begin();
#pragma unroll
            for (int i = 0; i < COLUMNS / 16; i++)
                product(d_q, e[i], along_rows<COLUMNS>(k_tiles + stage * TILE_BYTES, i));
            products_commit();
            if (n + 1 == n_steps) break;
            scores(n + 1);
        }
        products_wait<0>();
        pin(d_q);

        named_wait(1 + group, 128);
        int row = 64 * group + 16 * warp;
        store_rows(d_q, a.scale, a.scale, own_share(q_tile, group, warp),
                   a.d_q + (tile.start + q0 + row) * a.d_q_stride + head * D, a.d_q_stride,
                   q_valid - row);
    }
}
