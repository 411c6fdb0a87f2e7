// Attention of single query rows over paged keys and values, for sampling.
//
// Each block takes one row, one key head with the query heads that share it (up to 16, the rows of
// one matrix instruction) and one split of the row's pages; its four warps take pages in turn. Every
// byte of keys and values is read once, straight into the registers of the matrix instructions: a
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

template <bool WIDE> DEVICE void paged(const PagedArgs &a) {
    __shared__ float tile[WARPS][WIDE ? 16 : 8][D];
    __shared__ float tops[WARPS][16], totals[WARPS][16];
    int group = a.q_heads / a.kv_heads, pieces = (group + 15) / 16;
    int kv_head = blockIdx.x / pieces, head0 = kv_head * group + (blockIdx.x % pieces) * 16;
    int n_heads = min(group - (int)(blockIdx.x % pieces) * 16, 16);
    int row = blockIdx.y, split = blockIdx.z;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;

    int position = a.positions[row];
    int pages = position < 0 ? 0 : position / PAGE + 1;
    int share = (pages + a.n_splits - 1) / a.n_splits;
    int last = min(pages, (split + 1) * share);
    const int *table = a.block_tables + (i64)a.row_line[row] * a.max_pages;
    auto base = [&](int page) { return ((i64)table[page] * a.kv_heads + kv_head) * PAGE * D; };

    const bf16 *q = a.q + row * a.q_stride + (i64)head0 * D;
    uint4 q_low[PARTS], q_high[PARTS];
#pragma unroll
    for (int c = 0; c < PARTS; c++) {
        uint4 zero = make_uint4(0, 0, 0, 0);
        q_low[c] = g < n_heads ? *(const uint4 *)(q + g * D + (4 * c + t) * 8) : zero;
        q_high[c] = WIDE && g + 8 < n_heads ? *(const uint4 *)(q + (g + 8) * D + (4 * c + t) * 8)
                                            : zero;
    }

    float scale = a.scale * LOG2E;
    float o[D / 8][4] = {};
    float top[2] = {NEG_INF, NEG_INF}, sum[2] = {};
    uint4 k[2][PARTS], v[HALVES][4];
    int page = split * share + warp;
    i64 next = 0;
    if (page < last) {
        next = base(page);
        load_keys(k, a.k_pages + next, g, t);
        load_values(v, a.v_pages + next, g, t);
    }
    for (; page < last; page += WARPS) {
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
        bool more = page + WARPS < last;
        if (more) {
            next = base(page + WARPS);
            load_keys(k, a.k_pages + next, g, t);
        }
        int key0 = page * PAGE;
        if (key0 + PAGE - 1 > position) {
            // Slots past the position were perhaps never written, so their values are dropped
            // rather than weighted with zero.
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (key0 + 8 * j + 2 * t + (e & 1) > position) s[j][e] = NEG_INF;
#pragma unroll
            for (int r = 0; r < 4; r++)
                if (key0 + 2 * t + (r & 1) + (r >> 1) * 8 > position)
#pragma unroll
                    for (int h = 0; h < HALVES; h++) v[h][r] = make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int half = 0; half < (WIDE ? 2 : 1); half++) {
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
        if (!WIDE) left[1] = left[3] = 0;
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
    for (int half = 0; half < (WIDE ? 2 : 1); half++) {
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
    __syncthreads();
    for (int i = threadIdx.x; i < n_heads * D; i += WARPS * 32) {
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
        int head = head0 + r;
        if (a.n_splits == 1) {
            a.out[row * a.out_stride + (i64)head * D + column] = (bf16)(pack(value, 0) & 0xffff);
        } else {
            i64 at = ((i64)split * a.n_rows + row) * a.q_heads + head;
            if (best > NEG_INF) a.partial[at * D + column] = value;
            if (column == 0)
                a.partial_lse[at] = best > NEG_INF ? best * scale + log2f(total) : NEG_INF;
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) attention_paged(const PagedArgs a) {
    paged<false>(a);
}

// For groups of more than eight query heads.
extern "C" __global__ void __launch_bounds__(WARPS * 32) attention_paged_wide(const PagedArgs a) {
    paged<true>(a);
}

// One block a query head and row, one thread a column. A row without a position becomes zeros.
extern "C" __global__ void __launch_bounds__(D) attention_paged_merge(const PagedArgs a) {
    int head = blockIdx.x, row = blockIdx.y, column = threadIdx.x;
    i64 step = (i64)a.n_rows * a.q_heads, at = (i64)row * a.q_heads + head;
    float best = NEG_INF;
    for (int s = 0; s < a.n_splits; s++) best = fmaxf(best, a.partial_lse[s * step + at]);
    float total = 0, value = 0;
    for (int s = 0; s < a.n_splits; s++) {
        float lse = a.partial_lse[s * step + at];
        if (lse == NEG_INF) continue;
        float weight = exp2_fast(lse - best);
        total += weight;
        value += weight * a.partial[(s * step + at) * D + column];
    }
    value = total > 0 ? value / total : 0;
    a.out[row * a.out_stride + (i64)head * D + column] = (bf16)(pack(value, 0) & 0xffff);
}
