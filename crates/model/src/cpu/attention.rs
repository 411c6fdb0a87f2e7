//! Causal grouped-query attention over packed segments, and over the paged cache.
//!
//! Both come down to [`attend`]: some queries against keys in blocks of 64 positions, with the
//! running softmax of Milakov and Gimelshein (arXiv 1805.02867) as in flash attention
//! (arXiv 2205.14135). Blocks start at the sequence's start, and a query's arithmetic does not
//! depend on the queries beside it: so a token's result is the same bits whichever way it is
//! computed.

use std::cell::RefCell;

use super::{
    Cpu,
    simd::{Arithmetic, LANES, Lanes, dispatched, exp, max, sum},
    storage::{CpuStorage, Rows, apart, equal, is_shape, shape},
    tile::{TILE_ROWS, Tile, multiply, transpose},
};
use crate::{
    device::{Heads, Result, Segments},
    tensor::{Tensor, View},
};

/// Positions whose keys are taken together.
pub(super) const KEYS: usize = 64;
/// Query positions of one task.
pub(super) const TASK_ROWS: usize = 64;

/// Keys and values of consecutive positions; runs but the last have a multiple of 16.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub keys: Vectors,
    pub values: Vectors,
    pub n_keys: usize,
}

/// Vectors at equal distances in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vectors {
    pub first: *const f32,
    pub stride: usize,
}

impl Vectors {
    /// The vectors of one head from some row on.
    pub fn of(matrix: Rows<f32>, row: usize, column: usize) -> Self {
        Vectors {
            first: matrix.pointer().wrapping_add(row * matrix.stride + column),
            stride: matrix.stride,
        }
    }

    /// The vectors from the `i`-th on.
    pub fn from(self, i: usize) -> Self {
        Vectors {
            first: self.first.wrapping_add(i * self.stride),
            ..self
        }
    }
}

/// One query of one head, and what becomes of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query {
    pub q: *const f32,
    pub out: *mut f32,
    /// Keys that it attends to, from the first on; at least one.
    pub n_keys: usize,
    /// The largest score so far.
    highest: f32,
    /// The sum of weights so far.
    total: f32,
}

impl Query {
    pub fn new(q: *const f32, out: *mut f32, n_keys: usize) -> Self {
        Query {
            q,
            out,
            n_keys,
            highest: f32::NEG_INFINITY,
            total: 0.0,
        }
    }

    /// The log-sum-exp of the scores.
    pub fn log_sum_exp(&self) -> f32 {
        self.highest + self.total.ln()
    }
}

impl Cpu {
    #[allow(clippy::too_many_arguments)]
    pub(super) fn attention_forward(
        &self,
        q: &View<CpuStorage>,
        k: &View<CpuStorage>,
        v: &View<CpuStorage>,
        heads: Heads,
        scale: f32,
        segments: &Segments<CpuStorage>,
        out: &View<CpuStorage>,
        lse: &Tensor<CpuStorage>,
    ) -> Result<()> {
        let operation = "attention";
        let group = group_size(operation, heads)?;
        let [q, k, v, out] = [q, k, v, out].map(|view| Rows::<f32>::of(operation, view));
        let (q, k, v, out) = (q?, k?, v?, out?);
        let n = q.rows;
        check_segments(operation, segments, n)?;
        is_shape(operation, "q", q, n, heads.n_query * heads.dim)?;
        is_shape(operation, "k", k, n, heads.n_kv * heads.dim)?;
        is_shape(operation, "v", v, n, heads.n_kv * heads.dim)?;
        is_shape(operation, "output", out, n, heads.n_query * heads.dim)?;
        let lse = log_sum_exps(operation, lse, heads, n)?;
        for input in [q, k, v, lse] {
            apart(operation, "an input and output", out, input)?;
        }
        for input in [q, k, v] {
            apart(operation, "an input and lse", lse, input)?;
        }
        let pieces = pieces(segments);
        self.pool().run(pieces.len() * heads.n_kv, &|task| {
            let (piece, kv_head) = (&pieces[task / heads.n_kv], task % heads.n_kv);
            let run = Run {
                keys: Vectors::of(k, piece.segment, kv_head * heads.dim),
                values: Vectors::of(v, piece.segment, kv_head * heads.dim),
                n_keys: piece.rows.end - piece.segment,
            };
            let group_heads = kv_head * group..(kv_head + 1) * group;
            let mut queries = Vec::with_capacity(group * piece.rows.len());
            for head in group_heads.clone() {
                for i in piece.rows.clone() {
                    let at = |rows: Rows<f32>| {
                        rows.pointer()
                            .wrapping_add(i * rows.stride + head * heads.dim)
                    };
                    queries.push(Query::new(at(q), at(out), i + 1 - piece.segment));
                }
            }
            // SAFETY: shapes and disjointness are checked above; each task has its own rows and
            // heads of the outputs.
            unsafe {
                attend(&mut queries, &[run], heads.dim, scale);
                for (head, queries) in group_heads.zip(queries.chunks(piece.rows.len())) {
                    let lse = &mut lse.row_mut_range(head, piece.rows.clone());
                    for (lse, query) in lse.iter_mut().zip(queries) {
                        *lse = query.log_sum_exp();
                    }
                }
            }
        });
        Ok(())
    }
}

/// Query heads of one key head.
pub(super) fn group_size(operation: &'static str, heads: Heads) -> Result<usize> {
    if heads.dim == 0 || heads.n_kv == 0 || !heads.n_query.is_multiple_of(heads.n_kv) {
        return Err(shape(operation, format!("{heads:?}")));
    }
    Ok(heads.n_query / heads.n_kv)
}

/// The log-sum-exps as `[n_query, n]`.
pub(super) fn log_sum_exps(
    operation: &'static str,
    lse: &Tensor<CpuStorage>,
    heads: Heads,
    n: usize,
) -> Result<Rows<f32>> {
    equal(operation, "log-sum-exps", lse.len(), heads.n_query * n)?;
    Rows::of(operation, &lse.view(n))
}

/// Checks that the segments cover `n` rows in order.
pub(super) fn check_segments(
    operation: &'static str,
    segments: &Segments<CpuStorage>,
    n: usize,
) -> Result<()> {
    let starts = &segments.starts;
    let in_order = starts.windows(2).all(|pair| pair[0] <= pair[1]);
    if !in_order || starts.first().is_some_and(|&first| first != 0) {
        return Err(shape(operation, format!("segments {starts:?}")));
    }
    equal(operation, "tokens in segments", segments.n_tokens(), n)
}

/// Some rows of a segment.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// Where the segment starts.
    pub segment: usize,
    /// Where it ends.
    pub end: usize,
    pub rows: std::ops::Range<usize>,
}

/// The segments in pieces of [`TASK_ROWS`], those of long contexts first.
pub(super) fn pieces(segments: &Segments<CpuStorage>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for pair in segments.starts.windows(2) {
        let (start, end) = (pair[0] as usize, pair[1] as usize);
        for first in (start..end).step_by(TASK_ROWS) {
            pieces.push(Piece {
                segment: start,
                end,
                rows: first..(first + TASK_ROWS).min(end),
            });
        }
    }
    pieces.sort_by_key(|piece| std::cmp::Reverse(piece.rows.end - piece.segment));
    pieces
}

/// Room for one block of keys.
#[derive(Default)]
pub(super) struct Room {
    pub keys: Vec<f32>,
    pub values: Vec<f32>,
    pub scores: Vec<f32>,
}

thread_local! {
    static ROOM: RefCell<Room> = RefCell::default();
}

/// Attention of some queries to the keys of `runs`, one head each.
///
/// # Safety
/// The runs hold as many keys as any query attends to, all vectors have `dim` elements in memory,
/// and outputs overlap nothing else.
pub(super) unsafe fn attend(queries: &mut [Query], runs: &[Run], dim: usize, scale: f32) {
    ROOM.with_borrow_mut(|room| {
        let width = dim.next_multiple_of(LANES);
        room.keys.resize(dim * KEYS, 0.0);
        room.values.resize(KEYS * width, 0.0);
        room.scores.resize(TILE_ROWS * KEYS, 0.0);
        let n_keys = queries.iter().map(|query| query.n_keys).max().unwrap_or(0);
        for first in (0..n_keys).step_by(KEYS) {
            // SAFETY: by this function's own contract.
            unsafe {
                attend_to_block(
                    queries,
                    runs,
                    first,
                    KEYS.min(n_keys - first),
                    dim,
                    scale,
                    room,
                )
            };
        }
        for query in queries {
            // SAFETY: as above.
            let out = unsafe { std::slice::from_raw_parts_mut(query.out, dim) };
            multiply_by(out, 1.0 / query.total);
        }
    });
}

/// # Safety
/// As for [`attend`].
unsafe fn attend_to_block(
    queries: &mut [Query],
    runs: &[Run],
    first: usize,
    n_keys: usize,
    dim: usize,
    scale: f32,
    room: &mut Room,
) {
    let spans = spans(runs, first, n_keys);
    for span in &spans {
        for at in (0..span.n_keys).step_by(LANES) {
            let n = LANES.min(span.n_keys - at);
            let to = room.keys[span.at + at..].as_mut_ptr();
            // SAFETY: the span's keys lie in memory, and the panel is `[dim, KEYS]`.
            unsafe {
                let keys = span.keys.from(at);
                transpose(keys.first, n, keys.stride, dim, scale, to, KEYS);
            }
        }
    }
    // Queries of one head lie in the order of positions, so those that still have keys do, too.
    for tile in queries.chunk_by_mut(|a, b| (a.n_keys > first) == (b.n_keys > first)) {
        if tile[0].n_keys > first {
            for tile in tile.chunks_mut(TILE_ROWS) {
                // SAFETY: by this function's own contract.
                unsafe { attend_tile(tile, &spans, first, n_keys, dim, room) };
            }
        }
    }
}

/// # Safety
/// As for [`attend`]; all of the up to [`TILE_ROWS`] queries have keys in the block.
unsafe fn attend_tile(
    tile: &mut [Query],
    spans: &[Span],
    first: usize,
    n_keys: usize,
    dim: usize,
    room: &mut Room,
) {
    let mut rows = [std::ptr::null::<f32>(); TILE_ROWS];
    let mut outs = [std::ptr::null_mut::<f32>(); TILE_ROWS];
    for (i, query) in tile.iter().enumerate() {
        rows[i] = query.q;
        outs[i] = room.scores[i * KEYS..].as_mut_ptr();
    }
    let n_rows = tile.len();
    // SAFETY: queries have `dim` elements, and the panels' rows are whole vectors.
    unsafe {
        multiply(&Tile {
            rows: &rows[..n_rows],
            k: dim,
            panel: room.keys.as_ptr(),
            panel_stride: KEYS,
            out: &outs[..n_rows],
            n_cols: n_keys,
            accumulate: false,
        });
    }
    for (i, query) in tile.iter_mut().enumerate() {
        let scores = &mut room.scores[i * KEYS..][..n_keys];
        let (scores, beyond) = scores.split_at_mut(n_keys.min(query.n_keys - first));
        beyond.fill(0.0);
        let (highest, total) = weigh(scores, query.highest);
        let correction = (query.highest - highest).exp();
        if first > 0 && correction != 1.0 {
            // SAFETY: the output has `dim` elements.
            let out = unsafe { std::slice::from_raw_parts_mut(query.out, dim) };
            multiply_by(out, correction);
        }
        query.total = query.total * correction + total;
        query.highest = highest;
        rows[i] = outs[i].cast_const();
        outs[i] = query.out;
    }
    for span in spans {
        let mut weights = rows;
        for row in &mut weights {
            *row = row.wrapping_add(span.at);
        }
        // SAFETY: the span's values lie in memory.
        let panel = unsafe { whole_vectors(span.values, span.n_keys, dim, &mut room.values) };
        // SAFETY: as above.
        unsafe {
            multiply(&Tile {
                rows: &weights[..n_rows],
                k: span.n_keys,
                panel: panel.first,
                panel_stride: panel.stride,
                out: &outs[..n_rows],
                n_cols: dim,
                accumulate: first > 0 || span.at > 0,
            });
        }
    }
}

/// A part of a run that lies in one block.
struct Span {
    /// The first key's place in the block.
    at: usize,
    keys: Vectors,
    values: Vectors,
    n_keys: usize,
}

/// The keys from `first` on in the order of positions.
fn spans(runs: &[Run], first: usize, n_keys: usize) -> Vec<Span> {
    let mut spans = Vec::with_capacity(KEYS / LANES);
    let mut start = 0;
    for run in runs {
        let from = first.max(start);
        let to = (first + n_keys).min(start + run.n_keys);
        if from < to {
            spans.push(Span {
                at: from - first,
                keys: run.keys.from(from - start),
                values: run.values.from(from - start),
                n_keys: to - from,
            });
        }
        start += run.n_keys;
    }
    spans
}

/// Vectors whose elements can be read as whole registers: as they are, or copied into `room` with
/// zeros between.
///
/// # Safety
/// There are `n` vectors of `dim` elements in memory.
pub(super) unsafe fn whole_vectors(
    vectors: Vectors,
    n: usize,
    dim: usize,
    room: &mut [f32],
) -> Vectors {
    if dim.is_multiple_of(LANES) {
        return vectors;
    }
    let width = dim.next_multiple_of(LANES);
    for (i, to) in room.chunks_exact_mut(width).enumerate().take(n) {
        // SAFETY: by this function's own contract.
        let from = unsafe { std::slice::from_raw_parts(vectors.from(i).first, dim) };
        to[..dim].copy_from_slice(from);
        to[dim..].fill(0.0);
    }
    Vectors {
        first: room.as_ptr(),
        stride: width,
    }
}

dispatched! {
    /// Scores become weights, relative to the largest score of these and before; returns it and
    /// the sum of the weights.
    fn weigh(scores: &mut [f32], before: f32) -> (f32, f32) = weigh_body;
}

#[inline(always)]
fn weigh_body<A: Arithmetic>(scores: &mut [f32], before: f32) -> (f32, f32) {
    let highest = max(scores).max(before);
    let mut lanes: Lanes = [0.0; LANES];
    let (whole, rest) = scores.as_chunks_mut::<LANES>();
    for chunk in whole {
        for i in 0..LANES {
            chunk[i] = exp::<A>(chunk[i] - highest);
            lanes[i] += chunk[i];
        }
    }
    for (i, score) in rest.iter_mut().enumerate() {
        *score = exp::<A>(*score - highest);
        lanes[i] += *score;
    }
    (highest, sum(lanes))
}

dispatched! {
    fn multiply_by(x: &mut [f32], factor: f32) = multiply_by_body;
}

#[inline(always)]
fn multiply_by_body<A: Arithmetic>(x: &mut [f32], factor: f32) {
    for x in x {
        *x *= factor;
    }
}
