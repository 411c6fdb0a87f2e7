// Attention of single query rows over paged keys and values, for sampling.
//
// Each block takes one row, one key head with the query heads that share it and one split of the
// row's pages; its four warps take pages in turn. Every byte of keys and values is read once, straight into the registers of the matrix instructions: a
// sum over the head dimension may run in any order, and so may the columns of the result, so each
// lane loads 16 neighbouring bytes where the instruction's own order would have it load 4. Splits
// are merged by a second kernel (Dao et al., Flash-Decoding, 2023). No launch parameter depends on
// a length, so a captured graph serves every step.

// Mirrored by `PagedArgs` on the host.
struct PagedArgs {
    const bf16 *q, *k_pages, *v_pages;
    bf16 *out;
    float *partial;         // [n_splits, n_rows, q_heads, D]
    float *partial_lse;     // [n_splits, n_rows, q_heads], base 2
    const int *row_line, *positions, *block_tables;
    i64 q_stride, out_stride;
    int n_rows, q_heads, kv_heads, max_pages, n_splits;
    float scale;
};

constexpr int PAGE = 16, WARPS = 4, PARTS = D / 32, HALVES = D / 64;

DEVICE u32 word(const uint4 &x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }

// The transpose of an 8 by 8 matrix whose row g, columns 2t and 2t + 1 lie in lane 4g + t.
DEVICE u32 transpose(u32 x) {
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

DEVICE uint4 load_once(const bf16 *p) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(p));
    return x;
}

// Keys 8j + g, columns 8(4c + t)..: both operands of the first product use this order.
DEVICE void load_keys(uint4 (&k)[2][PARTS], const bf16 *page, int g, int t) {
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int c = 0; c < PARTS; c++) k[j][c] = load_once(page + (8 * j + g) * D + (4 * c + t) * 8);
}

// Keys 2t, 2t + 1, 2t + 8, 2t + 9, columns 64h + 8g..
DEVICE void load_values(uint4 (&v)[HALVES][4], const bf16 *page, int g, int t) {
#pragma unroll
    for (int h = 0; h < HALVES; h++)
#pragma unroll
        for (int r = 0; r < 4; r++)
            v[h][r] = load_once(page + (2 * t + (r & 1) + (r >> 1) * 8) * D + 64 * h + 8 * g);
}

// What a block works on.
struct Place {
    int kv_head, head0, n_heads, row, split, position, first, last;
    const int *table;
};

DEVICE Place place(const PagedArgs &a, int heads_at_once) {
    Place p;
    int group = a.q_heads / a.kv_heads, pieces = (group + heads_at_once - 1) / heads_at_once;
    int skipped = blockIdx.x % pieces * heads_at_once;
    p.kv_head = blockIdx.x / pieces;
    p.head0 = p.kv_head * group + skipped;
    p.n_heads = min(group - skipped, heads_at_once);
    p.row = blockIdx.y;
    p.split = blockIdx.z;
    p.position = a.positions[p.row];
    int pages = p.position < 0 ? 0 : p.position / PAGE + 1;
    int share = (pages + a.n_splits - 1) / a.n_splits;
    p.first = p.split * share;
    p.last = min(pages, p.first + share);
    p.table = a.block_tables + (i64)a.row_line[p.row] * a.max_pages;
    return p;
}

DEVICE i64 page_offset(const PagedArgs &a, const Place &p, int page) {
    return ((i64)p.table[page] * a.kv_heads + p.kv_head) * PAGE * D;
}

// Zeroes values in slots past the position: they were perhaps never written, so that a weight of
// zero would not do.
DEVICE void drop_values(uint4 (&v)[HALVES][4], int room, int t) {
#pragma unroll
    for (int r = 0; r < 4; r++)
        if (2 * t + (r & 1) + (r >> 1) * 8 > room)
#pragma unroll
            for (int h = 0; h < HALVES; h++) v[h][r] = make_uint4(0, 0, 0, 0);
}

// Merges the four warps' sums and writes the block's heads, or this split's part of them.
template <int ROWS>
DEVICE void finish(const PagedArgs &a, const Place &p, const float (&tile)[WARPS][ROWS][D],
                   const float (&tops)[WARPS][ROWS], const float (&totals)[WARPS][ROWS]) {
    float scale = a.scale * LOG2E;
    __syncthreads();
    for (int i = threadIdx.x; i < p.n_heads * D; i += WARPS * 32) {
        int r = i / D, column = i % D;
        float best = NEG_INF;
#pragma unroll
        for (int w = 0; w < WARPS; w++) best = fmaxf(best, tops[w][r]);
        float total = 0, value = 0;
        if (best > NEG_INF) {
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                float weight = exp2_fast((tops[w][r] - best) * scale);
                total += totals[w][r] * weight;
                value += tile[w][r][column] * weight;
            }
            value /= total;
        }
        int head = p.head0 + r;
        if (a.n_splits == 1) {
            a.out[p.row * a.out_stride + (i64)head * D + column] =
                (bf16)(pack(value, 0) & 0xffff);
        } else {
            i64 at = ((i64)p.split * a.n_rows + p.row) * a.q_heads + head;
            if (best > NEG_INF) a.partial[at * D + column] = value;
            if (column == 0)
                a.partial_lse[at] = best > NEG_INF ? best * scale + log2f(total) : NEG_INF;
        }
    }
}

// Up to eight query heads: keys are the rows of the products and heads their columns, so that the
// sums take half the registers and three blocks fit a multiprocessor.
extern "C" __global__ void __launch_bounds__(WARPS * 32, 3) attention_paged(const PagedArgs a) {
    __shared__ float tile[WARPS][8][D];
    __shared__ float tops[WARPS][8], totals[WARPS][8];
    Place p = place(a, 8);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    float scale = a.scale * LOG2E;
    float o[D / 16][4] = {};
    float top[2] = {NEG_INF, NEG_INF}, sum[2] = {};
    uint4 q[PARTS], k[2][PARTS], v[HALVES][4];
    int page = p.first + warp;
    if (page < p.last) {
        i64 at = page_offset(a, p, page);
        load_keys(k, a.k_pages + at, g, t);
        load_values(v, a.v_pages + at, g, t);
    }
    const bf16 *from = a.q + p.row * a.q_stride + (i64)(p.head0 + g) * D + 8 * t;
#pragma unroll
    for (int c = 0; c < PARTS; c++)
        q[c] = g < p.n_heads ? *(const uint4 *)(from + 32 * c) : make_uint4(0, 0, 0, 0);

    for (; page < p.last; page += WARPS) {
        float s[4] = {};
#pragma unroll
        for (int c = 0; c < PARTS; c++) {
            u32 first[4] = {k[0][c].x, k[1][c].x, k[0][c].y, k[1][c].y};
            u32 second[4] = {k[0][c].z, k[1][c].z, k[0][c].w, k[1][c].w};
            multiply(s, first, q[c].x, q[c].y);
            multiply(s, second, q[c].z, q[c].w);
        }
        bool more = page + WARPS < p.last;
        i64 next = more ? page_offset(a, p, page + WARPS) : 0;
        if (more) load_keys(k, a.k_pages + next, g, t);
        int room = p.position - page * PAGE;
        if (room < PAGE - 1) {
            if (g > room) s[0] = s[1] = NEG_INF;
            if (g + 8 > room) s[2] = s[3] = NEG_INF;
            drop_values(v, room, t);
        }
        float shrink[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float best = fmaxf(s[e], s[2 + e]);
#pragma unroll
            for (int step = 4; step < 32; step <<= 1)
                best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, step));
            best = fmaxf(top[e], best);
            shrink[e] = exp2_fast((top[e] - best) * scale);
            top[e] = best;
            s[e] = exp2_fast((s[e] - best) * scale);
            s[2 + e] = exp2_fast((s[2 + e] - best) * scale);
            sum[e] = sum[e] * shrink[e] + s[e] + s[2 + e];
        }
#pragma unroll
        for (int n = 0; n < D / 16; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[n][e] *= shrink[e & 1];
        u32 b0 = transpose(pack(s[0], s[1])), b1 = transpose(pack(s[2], s[3]));
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 left[4];
                left[0] = __byte_perm(word(v[h][0], i), word(v[h][1], i), 0x5410);
                left[1] = __byte_perm(word(v[h][0], i), word(v[h][1], i), 0x7632);
                left[2] = __byte_perm(word(v[h][2], i), word(v[h][3], i), 0x5410);
                left[3] = __byte_perm(word(v[h][2], i), word(v[h][3], i), 0x7632);
                multiply(o[4 * h + i], left, b0, b1);
            }
        if (more) load_values(v, a.v_pages + next, g, t);
    }

#pragma unroll
    for (int e = 0; e < 2; e++) {
        float total = sum[e];
#pragma unroll
        for (int step = 4; step < 32; step <<= 1)
            total += __shfl_xor_sync(0xffffffffu, total, step);
        if (g == 0) {
            tops[warp][2 * t + e] = top[e];
            totals[warp][2 * t + e] = total;
        }
#pragma unroll
        for (int n = 0; n < D / 16; n++)
            *(float2 *)&tile[warp][2 * t + e][64 * (n / 4) + 8 * g + 2 * (n % 4)] =
                make_float2(o[n][e], o[n][2 + e]);
    }
    finish<8>(a, p, tile, tops, totals);
}

// Groups of more than eight query heads, sixteen at a time as the rows of the products.
extern "C" __global__ void __launch_bounds__(WARPS * 32) attention_paged_wide(const PagedArgs a) {
    __shared__ float tile[WARPS][16][D];
    __shared__ float tops[WARPS][16], totals[WARPS][16];
    Place p = place(a, 16);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const bf16 *from = a.q + p.row * a.q_stride + (i64)(p.head0 + g) * D + 8 * t;
    uint4 q_low[PARTS], q_high[PARTS], zero = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int c = 0; c < PARTS; c++) {
        q_low[c] = g < p.n_heads ? *(const uint4 *)(from + 32 * c) : zero;
        q_high[c] = g + 8 < p.n_heads ? *(const uint4 *)(from + 8 * D + 32 * c) : zero;
    }
    float scale = a.scale * LOG2E;
    float o[D / 8][4] = {};
    float top[2] = {NEG_INF, NEG_INF}, sum[2] = {};
    uint4 k[2][PARTS], v[HALVES][4];
    int page = p.first + warp;
    if (page < p.last) {
        i64 at = page_offset(a, p, page);
        load_keys(k, a.k_pages + at, g, t);
        load_values(v, a.v_pages + at, g, t);
    }
    for (; page < p.last; page += WARPS) {
        float s[2][4] = {};
#pragma unroll
        for (int c = 0; c < PARTS; c++) {
            u32 first[4] = {q_low[c].x, q_high[c].x, q_low[c].y, q_high[c].y};
            u32 second[4] = {q_low[c].z, q_high[c].z, q_low[c].w, q_high[c].w};
#pragma unroll
            for (int j = 0; j < 2; j++) {
                multiply(s[j], first, k[j][c].x, k[j][c].y);
                multiply(s[j], second, k[j][c].z, k[j][c].w);
            }
        }
        bool more = page + WARPS < p.last;
        i64 next = more ? page_offset(a, p, page + WARPS) : 0;
        if (more) load_keys(k, a.k_pages + next, g, t);
        int room = p.position - page * PAGE;
        if (room < PAGE - 1) {
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (8 * j + 2 * t + (e & 1) > room) s[j][e] = NEG_INF;
            drop_values(v, room, t);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float best = fmaxf(fmaxf(s[0][2 * half], s[0][2 * half + 1]),
                               fmaxf(s[1][2 * half], s[1][2 * half + 1]));
            best = fmaxf(top[half], quad_max(best));
            float shrink = exp2_fast((top[half] - best) * scale), total = 0;
            top[half] = best;
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &x = s[j][2 * half + e];
                    x = exp2_fast((x - best) * scale);
                    total += x;
                }
            sum[half] = sum[half] * shrink + total;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                o[n][2 * half] *= shrink;
                o[n][2 * half + 1] *= shrink;
            }
        }
        u32 left[4];
        accumulator_as_left(left, s[0], s[1]);
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                u32 order = i & 1 ? 0x7632 : 0x5410;
                u32 b0 = __byte_perm(word(v[h][0], i / 2), word(v[h][1], i / 2), order);
                u32 b1 = __byte_perm(word(v[h][2], i / 2), word(v[h][3], i / 2), order);
                multiply(o[8 * h + i], left, b0, b1);
            }
        if (more) load_values(v, a.v_pages + next, g, t);
    }

#pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = quad_sum(sum[half]);
        int r = g + 8 * half;
        if (t == 0) {
            tops[warp][r] = top[half];
            totals[warp][r] = total;
        }
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int e = 0; e < 2; e++)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    tile[warp][r][64 * h + 8 * (2 * t + e) + i] = o[8 * h + i][2 * half + e];
    }
    finish<16>(a, p, tile, tops, totals);
}

constexpr int MOST_SPLITS = 64;

// One block a query head and row, one thread a column. A row without a position becomes zeros.
extern "C" __global__ void __launch_bounds__(D) attention_paged_merge(const PagedArgs a) {
    __shared__ float lse[MOST_SPLITS];
    int head = blockIdx.x, row = blockIdx.y, column = threadIdx.x;
    i64 step = (i64)a.n_rows * a.q_heads, at = (i64)row * a.q_heads + head;
    if (column < a.n_splits) lse[column] = a.partial_lse[column * step + at];
    __syncthreads();
    float best = NEG_INF;
    for (int s = 0; s < a.n_splits; s++) best = fmaxf(best, lse[s]);
    float total = 0, value = 0;
#pragma unroll 8
    for (int s = 0; s < a.n_splits; s++) {
        // An empty split wrote no values.
        bool empty = lse[s] == NEG_INF;
        float weight = empty ? 0.0f : exp2_fast(lse[s] - best);
        total += weight;
        value += weight * (empty ? 0.0f : a.partial[(s * step + at) * D + column]);
    }
    value = total > 0 ? value / total : 0;
    a.out[row * a.out_stride + (i64)head * D + column] = (bf16)(pack(value, 0) & 0xffff);
}
