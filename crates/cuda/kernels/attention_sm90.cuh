// What the attention kernels for compute capability 9.0 share: warpgroup matrix instructions, the
// tensor copy engine and its barriers, as inline PTX.
//
// Tiles in shared memory are made by the copy engine with its 128-byte swizzle: HALVES slabs one
// after the other, each of 64 columns (128 bytes) by the tile's rows. A slab starts at a multiple
// of 1,024 bytes.

constexpr int HALVES = D / 64;

struct __align__(64) TensorMap {
    u64 words[16];
};

DEVICE void barrier_init(u32 barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

// Makes initialised barriers visible to the copy engine.
DEVICE void barriers_publish() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

DEVICE void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives and announces bytes that the copy engine will bring.
DEVICE void barrier_expect(u32 barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Arrives once this thread's cp.async copies are done.
DEVICE void barrier_arrive_after_copies(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

DEVICE void barrier_wait(u32 barrier, int parity) {
    asm volatile("{ .reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra finished;\n"
                 "bra again;\n"
                 "finished: }" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

// Copies ROWS rows of one head into a tile; rows past the buffer become zeros.
template <int ROWS>
DEVICE void copy_slabs(u32 to, const TensorMap *map, int column, int row, u32 barrier) {
#pragma unroll
    for (int h = 0; h < HALVES; h++)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile"
                     ".mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                         to + h * ROWS * 128),
                     "l"(map), "r"(column + 64 * h), "r"(row), "r"(barrier)
                     : "memory");
}

template <int REGISTERS> DEVICE void registers_shrink() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> DEVICE void registers_grow() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

DEVICE void named_wait(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

DEVICE void named_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// The low word of a matrix descriptor: the start, and the bytes between slabs of 64 columns (used
// when the columns are the product's). The high word, 128-byte swizzle and 1,024 bytes between
// groups of eight rows, is always 0x40000040.
DEVICE u32 describe(u32 address, int slab_bytes) {
    return ((slab_bytes >> 4) << 16) | ((address & 0x3ffff) >> 4);
}

// Operand whose rows are the product's rows (or columns), at step `step` of 16 along the head
// dimension.
template <int ROWS> DEVICE u32 along_columns(u32 tile, int row, int step) {
    return describe(tile + row * 128, 16) + (((step / 4) * ROWS * 128 + (step % 4) * 32) >> 4);
}

// Right operand whose rows are summed over, at step `step` of 16 rows; its D columns are the
// product's.
template <int ROWS> DEVICE u32 along_rows(u32 tile, int step) {
    return describe(tile, ROWS * 128) + ((step * 16 * 128) >> 4);
}

// The number of the thread's warpgroup, in a form that the compiler knows to be one for the warp.
DEVICE int warpgroup() { return __shfl_sync(0xffffffffu, threadIdx.x / 128, 0); }

DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int PENDING> DEVICE void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving uses of accumulators across a wait.
template <int N> DEVICE void pin(float (&c)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+f"(c[i][e])::"memory");
}

template <int N> DEVICE void pin(u32 (&c)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+r"(c[i][e])::"memory");
}

// Sixteen terms more of an asynchronous product of one warpgroup, c[64, 8N] += a b. Both operands
// from shared memory (`along_columns`; the FIRST terms overwrite c), or the left one from registers
// and the right one summed over its rows (`along_rows`). Warp w of the warpgroup holds rows 16w.. of
// c and a in the layout of `multiply`.

template <int FIRST> DEVICE void product(float (&c)[8][4], u32 a, u32 b) {
    if (FIRST)
        asm volatile("{ .reg .b64 a, b; mov.b64 a, {%32, 0x40000040}; mov.b64 b, {%33, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
        "a, b, 0, 1, 1, 0, 0; }"
        : "=f"(c[0][0]), "=f"(c[0][1]), "=f"(c[0][2]), "=f"(c[0][3]),
          "=f"(c[1][0]), "=f"(c[1][1]), "=f"(c[1][2]), "=f"(c[1][3]),
          "=f"(c[2][0]), "=f"(c[2][1]), "=f"(c[2][2]), "=f"(c[2][3]),
          "=f"(c[3][0]), "=f"(c[3][1]), "=f"(c[3][2]), "=f"(c[3][3]),
          "=f"(c[4][0]), "=f"(c[4][1]), "=f"(c[4][2]), "=f"(c[4][3]),
          "=f"(c[5][0]), "=f"(c[5][1]), "=f"(c[5][2]), "=f"(c[5][3]),
          "=f"(c[6][0]), "=f"(c[6][1]), "=f"(c[6][2]), "=f"(c[6][3]),
          "=f"(c[7][0]), "=f"(c[7][1]), "=f"(c[7][2]), "=f"(c[7][3])
        : "r"(a), "r"(b));
    else
        asm volatile("{ .reg .b64 a, b; mov.b64 a, {%32, 0x40000040}; mov.b64 b, {%33, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
        "a, b, 1, 1, 1, 0, 0; }"
        : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]),
          "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
          "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
          "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
          "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]),
          "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
          "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
          "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
        : "r"(a), "r"(b));
}

template <int FIRST> DEVICE void product_columns(float (&c)[8][4], const u32 (&a)[4], u32 b) {
    if (FIRST)
        asm volatile("{ .reg .b64 b; mov.b64 b, {%36, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
        "{%32,%33,%34,%35}, b, 0, 1, 1, 0; }"
        : "=f"(c[0][0]), "=f"(c[0][1]), "=f"(c[0][2]), "=f"(c[0][3]),
          "=f"(c[1][0]), "=f"(c[1][1]), "=f"(c[1][2]), "=f"(c[1][3]),
          "=f"(c[2][0]), "=f"(c[2][1]), "=f"(c[2][2]), "=f"(c[2][3]),
          "=f"(c[3][0]), "=f"(c[3][1]), "=f"(c[3][2]), "=f"(c[3][3]),
          "=f"(c[4][0]), "=f"(c[4][1]), "=f"(c[4][2]), "=f"(c[4][3]),
          "=f"(c[5][0]), "=f"(c[5][1]), "=f"(c[5][2]), "=f"(c[5][3]),
          "=f"(c[6][0]), "=f"(c[6][1]), "=f"(c[6][2]), "=f"(c[6][3]),
          "=f"(c[7][0]), "=f"(c[7][1]), "=f"(c[7][2]), "=f"(c[7][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
    else
        asm volatile("{ .reg .b64 b; mov.b64 b, {%36, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
        "{%32,%33,%34,%35}, b, 1, 1, 1, 0; }"
        : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]),
          "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
          "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
          "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
          "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]),
          "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
          "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
          "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}

DEVICE void product(float (&c)[8][4], const u32 (&a)[4], u32 b) {
    asm volatile("{ .reg .b64 b; mov.b64 b, {%36, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
        "{%32,%33,%34,%35}, b, 1, 1, 1, 1; }"
        : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]),
          "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
          "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
          "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
          "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]),
          "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
          "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
          "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}

template <int FIRST> DEVICE void product(float (&c)[16][4], u32 a, u32 b) {
    if (FIRST)
        asm volatile("{ .reg .b64 a, b; mov.b64 a, {%64, 0x40000040}; mov.b64 b, {%65, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
        "a, b, 0, 1, 1, 0, 0; }"
        : "=f"(c[0][0]), "=f"(c[0][1]), "=f"(c[0][2]), "=f"(c[0][3]),
          "=f"(c[1][0]), "=f"(c[1][1]), "=f"(c[1][2]), "=f"(c[1][3]),
          "=f"(c[2][0]), "=f"(c[2][1]), "=f"(c[2][2]), "=f"(c[2][3]),
          "=f"(c[3][0]), "=f"(c[3][1]), "=f"(c[3][2]), "=f"(c[3][3]),
          "=f"(c[4][0]), "=f"(c[4][1]), "=f"(c[4][2]), "=f"(c[4][3]),
          "=f"(c[5][0]), "=f"(c[5][1]), "=f"(c[5][2]), "=f"(c[5][3]),
          "=f"(c[6][0]), "=f"(c[6][1]), "=f"(c[6][2]), "=f"(c[6][3]),
          "=f"(c[7][0]), "=f"(c[7][1]), "=f"(c[7][2]), "=f"(c[7][3]),
          "=f"(c[8][0]), "=f"(c[8][1]), "=f"(c[8][2]), "=f"(c[8][3]),
          "=f"(c[9][0]), "=f"(c[9][1]), "=f"(c[9][2]), "=f"(c[9][3]),
          "=f"(c[10][0]), "=f"(c[10][1]), "=f"(c[10][2]), "=f"(c[10][3]),
          "=f"(c[11][0]), "=f"(c[11][1]), "=f"(c[11][2]), "=f"(c[11][3]),
          "=f"(c[12][0]), "=f"(c[12][1]), "=f"(c[12][2]), "=f"(c[12][3]),
          "=f"(c[13][0]), "=f"(c[13][1]), "=f"(c[13][2]), "=f"(c[13][3]),
          "=f"(c[14][0]), "=f"(c[14][1]), "=f"(c[14][2]), "=f"(c[14][3]),
          "=f"(c[15][0]), "=f"(c[15][1]), "=f"(c[15][2]), "=f"(c[15][3])
        : "r"(a), "r"(b));
    else
        asm volatile("{ .reg .b64 a, b; mov.b64 a, {%64, 0x40000040}; mov.b64 b, {%65, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
        "a, b, 1, 1, 1, 0, 0; }"
        : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]),
          "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
          "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
          "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
          "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]),
          "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
          "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
          "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]),
          "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]),
          "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]),
          "+f"(c[10][0]), "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]),
          "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3]),
          "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]),
          "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]),
          "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]),
          "+f"(c[15][0]), "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3])
        : "r"(a), "r"(b));
}

template <int FIRST> DEVICE void product_columns(float (&c)[16][4], const u32 (&a)[4], u32 b) {
    if (FIRST)
        asm volatile("{ .reg .b64 b; mov.b64 b, {%68, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
        "{%64,%65,%66,%67}, b, 0, 1, 1, 0; }"
        : "=f"(c[0][0]), "=f"(c[0][1]), "=f"(c[0][2]), "=f"(c[0][3]),
          "=f"(c[1][0]), "=f"(c[1][1]), "=f"(c[1][2]), "=f"(c[1][3]),
          "=f"(c[2][0]), "=f"(c[2][1]), "=f"(c[2][2]), "=f"(c[2][3]),
          "=f"(c[3][0]), "=f"(c[3][1]), "=f"(c[3][2]), "=f"(c[3][3]),
          "=f"(c[4][0]), "=f"(c[4][1]), "=f"(c[4][2]), "=f"(c[4][3]),
          "=f"(c[5][0]), "=f"(c[5][1]), "=f"(c[5][2]), "=f"(c[5][3]),
          "=f"(c[6][0]), "=f"(c[6][1]), "=f"(c[6][2]), "=f"(c[6][3]),
          "=f"(c[7][0]), "=f"(c[7][1]), "=f"(c[7][2]), "=f"(c[7][3]),
          "=f"(c[8][0]), "=f"(c[8][1]), "=f"(c[8][2]), "=f"(c[8][3]),
          "=f"(c[9][0]), "=f"(c[9][1]), "=f"(c[9][2]), "=f"(c[9][3]),
          "=f"(c[10][0]), "=f"(c[10][1]), "=f"(c[10][2]), "=f"(c[10][3]),
          "=f"(c[11][0]), "=f"(c[11][1]), "=f"(c[11][2]), "=f"(c[11][3]),
          "=f"(c[12][0]), "=f"(c[12][1]), "=f"(c[12][2]), "=f"(c[12][3]),
          "=f"(c[13][0]), "=f"(c[13][1]), "=f"(c[13][2]), "=f"(c[13][3]),
          "=f"(c[14][0]), "=f"(c[14][1]), "=f"(c[14][2]), "=f"(c[14][3]),
          "=f"(c[15][0]), "=f"(c[15][1]), "=f"(c[15][2]), "=f"(c[15][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
    else
        asm volatile("{ .reg .b64 b; mov.b64 b, {%68, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
        "{%64,%65,%66,%67}, b, 1, 1, 1, 0; }"
        : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]),
          "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
          "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
          "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
          "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]),
          "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
          "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
          "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]),
          "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]),
          "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]),
          "+f"(c[10][0]), "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]),
          "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3]),
          "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]),
          "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]),
          "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]),
          "+f"(c[15][0]), "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}

DEVICE void product(float (&c)[16][4], const u32 (&a)[4], u32 b) {
    asm volatile("{ .reg .b64 b; mov.b64 b, {%68, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
        "{%64,%65,%66,%67}, b, 1, 1, 1, 1; }"
        : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]),
          "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
          "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
          "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
          "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]),
          "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
          "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
          "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]),
          "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]),
          "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]),
          "+f"(c[10][0]), "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]),
          "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3]),
          "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]),
          "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]),
          "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]),
          "+f"(c[15][0]), "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}

// A warp's 16 rows of a tile as left operands of all steps along the head dimension.
template <int ROWS> DEVICE void load_rows(u32 (&a)[D / 16][4], u32 tile, int row) {
    int lane = threadIdx.x & 31;
    row += lane & 15;
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        load_matrices(a[i], tile + (i / 4) * ROWS * 128 + row * 128 +
                                (((i % 4 * 2 + (lane >> 4)) ^ (row & 7)) << 4));
}

// Starts c = a b' with 64 rows from registers.
template <int RIGHT_ROWS>
DEVICE void multiply_rows(float (&c)[RIGHT_ROWS / 8][4], const u32 (&a)[D / 16][4], u32 right) {
    product_columns<1>(c, a[0], along_columns<RIGHT_ROWS>(right, 0, 0));
#pragma unroll
    for (int i = 1; i < D / 16; i++)
        product_columns<0>(c, a[i], along_columns<RIGHT_ROWS>(right, 0, i));
}

// Starts c = a b' over the head dimension: 64 rows from `row` of one tile, all rows of another.
template <int LEFT_ROWS, int RIGHT_ROWS>
DEVICE void multiply_columns(float (&c)[RIGHT_ROWS / 8][4], u32 left, int row, u32 right) {
    product<1>(c, along_columns<LEFT_ROWS>(left, row, 0), along_columns<RIGHT_ROWS>(right, 0, 0));
#pragma unroll
    for (int i = 1; i < D / 16; i++)
        product<0>(c, along_columns<LEFT_ROWS>(left, row, i), along_columns<RIGHT_ROWS>(right, 0, i));
}
