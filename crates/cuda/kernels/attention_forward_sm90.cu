// Causal grouped-query attention, forward, for compute capability 9.0.
//
// As attention_forward.cu, with warpgroup products: two warpgroups of 64 queries each compute while
// a third feeds them through the tensor copy engine. A warpgroup has the scores of tile n and the
// values of tile n - 1 in the matrix units at once, and the two take turns, so that one's softmax
// runs beside the other's products (Shah et al., FlashAttention-3, 2024).

constexpr int BM = 128, BN = 128, RING = 2, THREADS = 384;
constexpr int TILE_BYTES = BN * ROW_BYTES;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_forward(const ForwardArgs a, const __grid_constant__ TensorMap q_map,
                      const __grid_constant__ TensorMap k_map,
                      const __grid_constant__ TensorMap v_map) {
    extern __shared__ unsigned char shared[];
    __shared__ u64 barriers[1 + 4 * RING];
    u32 q_tile = (shared_address(shared) + 1023) & ~1023u;
    u32 k_tiles = q_tile + BM * ROW_BYTES;
    u32 v_tiles = k_tiles + RING * TILE_BYTES;
    u32 q_full = shared_address(barriers);
    u32 k_full = q_full + 8, v_full = k_full + 8 * RING;
    u32 k_free = v_full + 8 * RING, v_free = k_free + 8 * RING;

    Tile tile;
    if (!find_tile(a.offsets, a.n_seqs, blockIdx.y, BM, tile)) return;
    int head = blockIdx.x, kv_head = head / (a.q_heads / a.kv_heads);
    int q0 = (tile.count - 1 - tile.index) * BM;
    int q_valid = min(tile.length - q0, BM);
    int n_tiles = (q0 + q_valid + BN - 1) / BN;

    if (threadIdx.x == 0) {
        barrier_init(q_full, 1);
        for (int s = 0; s < RING; s++) {
            barrier_init(k_full + 8 * s, 1);
            barrier_init(v_full + 8 * s, 1);
            barrier_init(k_free + 8 * s, 8);
            barrier_init(v_free + 8 * s, 8);
        }
        barriers_publish();
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_shrink<24>();
        if (threadIdx.x == 0) {
            barrier_expect(q_full, BM * ROW_BYTES);
            copy_slabs<BM>(q_tile, &q_map, head * D, tile.start + q0, q_full);
            for (int n = 0; n < n_tiles; n++) {
                int s = n % RING, parity = (n / RING + 1) & 1;
                barrier_wait(k_free + 8 * s, parity);
                barrier_expect(k_full + 8 * s, TILE_BYTES);
                copy_slabs<BN>(k_tiles + s * TILE_BYTES, &k_map, kv_head * D, tile.start + n * BN,
                               k_full + 8 * s);
                barrier_wait(v_free + 8 * s, parity);
                barrier_expect(v_full + 8 * s, TILE_BYTES);
                copy_slabs<BN>(v_tiles + s * TILE_BYTES, &v_map, kv_head * D, tile.start + n * BN,
                               v_full + 8 * s);
            }
        }
    } else {
        registers_grow<240>();
        int group = warpgroup() - 1;
        int warp = (threadIdx.x >> 5) & 3, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
        int row0 = q0 + 64 * group + 16 * warp + g;
        float scale = a.scale * LOG2E;
        float o[D / 8][4] = {}, s[BN / 8][4];
        u32 p[BN / 16][4];
        float maximum[2] = {NEG_INF, NEG_INF}, sum[2] = {}, shrink[2];

        auto scores = [&](int n) {
            u32 k_tile = k_tiles + n % RING * TILE_BYTES;
            products_begin();
multiply_columns<BM, BN>(s, q_tile, 64 * group, k_tile);
            products_commit();
        };
        auto weigh = [&](int n) {
            u32 v_tile = v_tiles + n % RING * TILE_BYTES;
            products_begin();
#pragma unroll
            for (int i = 0; i < BN / 16; i++)
                product(o, p[i], along_rows<BN>(v_tile, i));
            products_commit();
        };
        auto softmax = [&](int n) {
            int key0 = n * BN;
            // The warpgroup's first row decides, so that the branch is uniform.
            if (key0 + BN - 1 > q0 + 64 * group) {
#pragma unroll
                for (int j = 0; j < BN / 8; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        if (key0 + 8 * j + 2 * t + (e & 1) > row0 + 8 * (e >> 1)) s[j][e] = NEG_INF;
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float top = maximum[half];
#pragma unroll
                for (int j = 0; j < BN / 8; j++)
                    top = fmaxf(top, fmaxf(s[j][2 * half], s[j][2 * half + 1]));
                top = quad_max(top);
                shrink[half] = exp2_fast((maximum[half] - top) * scale);
                maximum[half] = top;
                float offset = top * scale, total = 0;
#pragma unroll
                for (int j = 0; j < BN / 8; j++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float &x = s[j][2 * half + e];
                        x = exp2_fast(x * scale - offset);
                        total += x;
                    }
                sum[half] = sum[half] * shrink[half] + total;
            }
        };
        auto pack_all = [&]() {
#pragma unroll
            for (int i = 0; i < BN / 16; i++) accumulator_as_left(p[i], s[2 * i], s[2 * i + 1]);
        };

        if (group == 1 && n_tiles > 1) named_arrive(1, 256);
        barrier_wait(q_full, 0);
        barrier_wait(k_full, 0);
        scores(0);
        products_wait<0>();
        pin(s);
        if (lane == 0) barrier_arrive(k_free);
        softmax(0);
        pack_all();
        for (int n = 1; n < n_tiles; n++) {
            int now = n % RING, before = (n - 1) % RING;
            barrier_wait(k_full + 8 * now, (n / RING) & 1);
            named_wait(1 + group, 256);
            scores(n);
            barrier_wait(v_full + 8 * before, ((n - 1) / RING) & 1);
            weigh(n - 1);
            if (group == 0 || n + 1 < n_tiles) named_arrive(2 - group, 256);
            products_wait<1>();
            pin(s);
            if (lane == 0) barrier_arrive(k_free + 8 * now);
            softmax(n);
            products_wait<0>();
            pin(o);
            pin(p);
            if (lane == 0) barrier_arrive(v_free + 8 * before);
#pragma unroll
            for (int j = 0; j < D / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) o[j][e] *= shrink[e >> 1];
            pack_all();
        }
        int last = n_tiles - 1;
        barrier_wait(v_full + 8 * (last % RING), (last / RING) & 1);
        weigh(last);
        products_wait<0>();
        pin(o);

        float total[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            total[half] = quad_sum(sum[half]);
            int r = 64 * group + 16 * warp + 8 * half + g;
            if (a.lse && t == 0 && r < q_valid)
                a.lse[(i64)head * a.tokens + tile.start + q0 + r] =
                    maximum[half] * a.scale + logf(total[half]);
        }
        // The warpgroup's own share of the query tile, which it no longer reads, is its staging.
        named_wait(3 + group, 128);
        constexpr int WARP_BYTES = 16 * ROW_BYTES, SHARE = 64 * 128;
        u32 staging = q_tile + warp * WARP_BYTES / SHARE * BM * 128 + group * SHARE +
                      warp * WARP_BYTES % SHARE;
        int row = 64 * group + 16 * warp;
        store_rows(o, 1.0f / total[0], 1.0f / total[1], staging,
                   a.out + (i64)(tile.start + q0 + row) * a.out_stride + head * D, a.out_stride,
                   q_valid - row);
    }
}
