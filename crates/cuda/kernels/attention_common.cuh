// What every attention kernel shares: argument layouts, tile lookup, swizzled shared memory, and
// the warp-level matrix instructions of compute capability 8.0 as inline PTX.
//
// A tile in shared memory has rows of HEAD_DIM bf16; the 16-byte chunk c of row r lies at chunk
// c ^ (r & 7), so that the eight rows a matrix load reads fall into different banks.

typedef unsigned short bf16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE static __device__ __forceinline__

constexpr int D = HEAD_DIM;
constexpr int ROW_BYTES = D * 2;
constexpr int CHUNKS = D / 8;
constexpr float LOG2E = 1.4426950408889634f;
constexpr float LN2 = 0.6931471805599453f;
#define NEG_INF (__int_as_float(0xff800000))

// Mirrored by `ForwardArgs` on the host. Strides are elements between tokens.
struct ForwardArgs {
    const bf16 *q, *k, *v;
    bf16 *out;
    float *lse;
    const int *offsets;
    i64 q_stride, k_stride, v_stride, out_stride;
    int tokens, n_seqs, q_heads, kv_heads;
    float scale;
    int max_pages;
    // Only for keys and values in pages.
    const int *row_line, *positions, *block_tables;
};

// Mirrored by `BackwardArgs` on the host.
struct BackwardArgs {
    const bf16 *q, *k, *v, *out, *d_out;
    bf16 *d_q, *d_k, *d_v;
    const float *lse;
    float *delta;
    const int *offsets;
    i64 q_stride, k_stride, v_stride, out_stride, d_out_stride, d_q_stride, d_k_stride, d_v_stride;
    int tokens, n_seqs, q_heads, kv_heads;
    float scale;
    int parts;
    float *partial;   // [parts, 2, tokens, kv_heads, D], where parts > 1
};

struct Tile {
    int start;   // the sequence's first token
    int length;  // its tokens
    int count;   // its tiles
    int index;   // this tile's number, from 0
};

// Finds the block's tile among the sequences, each of which is cut into tiles of `rows` tokens.
// Every warp searches for itself. False for the blocks beyond the last tile.
DEVICE bool find_tile(const int *offsets, int n_seqs, int block, int rows, Tile &tile) {
    int lane = threadIdx.x & 31;
    int before = 0;
    for (int first = 0; first < n_seqs; first += 32) {
        int i = first + lane, start = 0, length = 0;
        if (i < n_seqs) {
            start = offsets[i];
            length = offsets[i + 1] - start;
        }
        int count = (length + rows - 1) / rows, end = count;
        for (int step = 1; step < 32; step <<= 1) {
            int other = __shfl_up_sync(0xffffffffu, end, step);
            if (lane >= step) end += other;
        }
        int total = __shfl_sync(0xffffffffu, end, 31);
        if (block < before + total) {
            int owner = __ffs(__ballot_sync(0xffffffffu, block < before + end)) - 1;
            tile.start = __shfl_sync(0xffffffffu, start, owner);
            tile.length = __shfl_sync(0xffffffffu, length, owner);
            tile.count = __shfl_sync(0xffffffffu, count, owner);
            tile.index = block - before - __shfl_sync(0xffffffffu, end - count, owner);
            return true;
        }
        before += total;
    }
    return false;
}

DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

DEVICE u32 chunk_at(u32 tile, int row, int chunk) {
    return tile + row * ROW_BYTES + ((chunk ^ (row & 7)) << 4);
}

DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE u32 pack(float low, float high) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

DEVICE float low_of(u32 x) { return __int_as_float(x << 16); }
DEVICE float high_of(u32 x) { return __int_as_float(x & 0xffff0000u); }

DEVICE float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

DEVICE float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Copies 16 bytes to shared memory in the background, or zeros where `valid` is false.
DEVICE void copy16(u32 to, const void *from, bool valid) {
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

DEVICE void copy4(u32 to, const void *from, bool valid) {
    int bytes = valid ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING> DEVICE void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Starts the copy of `ROWS` rows whose first is at `from`; rows from `valid` on become zeros.
template <int ROWS, int THREADS>
DEVICE void copy_tile(u32 to, const bf16 *from, i64 stride, int valid) {
    constexpr int STEP = THREADS / CHUNKS;
    int chunk = threadIdx.x % CHUNKS, row = threadIdx.x / CHUNKS;
    const bf16 *source = from + row * stride + chunk * 8;
#pragma unroll
    for (int i = 0; i < ROWS / STEP; i++) {
        bool inside = row < valid;
        copy16(chunk_at(to, row, chunk), inside ? source : from, inside);
        row += STEP;
        source += STEP * stride;
    }
}

DEVICE void load_matrices(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

DEVICE void load_matrices_transposed(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// Left operand [16, 16] from rows `row..row+16`, columns `16 * step..`.
DEVICE void load_left(u32 (&r)[4], u32 tile, int row, int step) {
    int lane = threadIdx.x & 31;
    load_matrices(r, chunk_at(tile, row + (lane & 15), 2 * step + (lane >> 4)));
}

// Right operand [16, 16] (two column tiles) of a product with the transposed tile: rows
// `row..row+16` of the tile are the product's columns.
DEVICE void load_right(u32 (&r)[4], u32 tile, int row, int step) {
    int lane = threadIdx.x & 31;
    load_matrices(
        r, chunk_at(tile, row + (lane & 7) + ((lane >> 4) << 3), 2 * step + ((lane >> 3) & 1)));
}

// Right operand [16, 16] (two column tiles) of a product with the tile itself: rows `row..row+16`
// are summed over, columns `16 * step..` are the product's columns.
DEVICE void load_right_transposed(u32 (&r)[4], u32 tile, int row, int step) {
    int lane = threadIdx.x & 31;
    load_matrices_transposed(r, chunk_at(tile, row + (lane & 15), 2 * step + (lane >> 4)));
}

// c[16, 8] += a[16, 16] b[16, 8]. With g = lane / 4 and t = lane % 4, c holds rows g and g + 8,
// columns 2t and 2t + 1.
DEVICE void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two neighbouring accumulator tiles [16, 8] as one left operand [16, 16].
DEVICE void accumulator_as_left(u32 (&a)[4], const float (&first)[4], const float (&second)[4]) {
    a[0] = pack(first[0], first[1]);
    a[1] = pack(first[2], first[3]);
    a[2] = pack(second[0], second[1]);
    a[3] = pack(second[2], second[3]);
}

// Writes a warp's 16 accumulated rows as bf16, each row times its factor, through 16 rows of
// shared memory that only this warp uses. Rows from `valid` on are left out.
DEVICE void store_rows(const float (&c)[D / 8][4], float factor_low, float factor_high,
                       u32 staging, bf16 *to, i64 stride, int valid) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
        u32 low = pack(c[n][0] * factor_low, c[n][1] * factor_low);
        u32 high = pack(c[n][2] * factor_high, c[n][3] * factor_high);
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(chunk_at(staging, g, n) + 4 * t), "r"(low)
                     : "memory");
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(chunk_at(staging, g + 8, n) + 4 * t),
                     "r"(high)
                     : "memory");
    }
    __syncwarp();
    constexpr int STEP = 32 / CHUNKS;
    int chunk = lane % CHUNKS;
#pragma unroll
    for (int i = 0; i < 16 / STEP; i++) {
        int row = lane / CHUNKS + i * STEP;
        uint4 x;
        asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "r"(chunk_at(staging, row, chunk))
                     : "memory");
        if (row < valid) *(uint4 *)(to + row * stride + chunk * 8) = x;
    }
}
