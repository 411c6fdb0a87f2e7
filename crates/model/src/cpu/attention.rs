//! Causal grouped-query attention over packed segments, and over the paged cache.
//!
//! Both come down to [`attend`], which sees the keys of one query as runs in memory and takes them
//! in the order of positions, so that a token's result is the same whichever way it is computed.

use super::{
    Cpu,
    simd::{Arithmetic, add_scaled, dispatched, dot, exp, max},
    storage::{CpuStorage, Rows, apart, equal, is_shape, shape},
};
use crate::{
    device::{Heads, Result, Segments},
    tensor::{Tensor, View},
};

/// Query rows of one task.
const TASK_ROWS: usize = 16;

/// Keys and values of consecutive positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run<'a> {
    pub keys: Strided<'a>,
    pub values: Strided<'a>,
    pub n_keys: usize,
}

/// Vectors at equal distances.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strided<'a> {
    /// From the first element of the first vector to the last of the last.
    pub elements: &'a [f32],
    pub stride: usize,
}

impl<'a> Strided<'a> {
    #[inline(always)]
    pub fn at(self, i: usize, len: usize) -> &'a [f32] {
        &self.elements[i * self.stride..i * self.stride + len]
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
            let mut scores = vec![0.0; piece.rows.end - piece.segment];
            for i in piece.rows.clone() {
                // SAFETY: nothing writes to keys and values now.
                let run = unsafe {
                    Run {
                        keys: strided(k, piece.segment..i + 1, kv_head, heads.dim),
                        values: strided(v, piece.segment..i + 1, kv_head, heads.dim),
                        n_keys: i + 1 - piece.segment,
                    }
                };
                for head in kv_head * group..(kv_head + 1) * group {
                    let start = head * heads.dim;
                    // SAFETY: disjoint by the checks above; each task has its own rows and heads
                    // of the outputs.
                    unsafe {
                        let q = q.columns(start, heads.dim).row(i);
                        let out = out.columns(start, heads.dim).row_mut(i);
                        let total = attend(q, &[run], scale, &mut scores, out);
                        lse.columns(i, 1).row_mut(head)[0] = total;
                    }
                }
            }
        });
        Ok(())
    }
}

/// The vectors of one head in some rows, of which there is at least one.
///
/// # Safety
/// As for [`Rows::row`].
pub(super) unsafe fn strided<'a>(
    matrix: Rows<f32>,
    rows: std::ops::Range<usize>,
    head: usize,
    dim: usize,
) -> Strided<'a> {
    let part = matrix
        .columns(head * dim, dim)
        .row_range(rows.start, rows.len());
    Strided {
        // SAFETY: the elements between the first row's start and the last row's end lie in the
        // same allocation; nothing writes to them, by this function's own contract.
        elements: unsafe { part.span() },
        stride: part.stride,
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

dispatched! {
    /// Attention of one query to the keys of `runs`; returns the log-sum-exp of the scaled scores.
    /// `scores` has room for as many numbers as there are keys.
    pub(super) fn attend(
        q: &[f32], runs: &[Run<'_>], scale: f32, scores: &mut [f32], out: &mut [f32],
    ) -> f32 = attend_body;
}

#[inline(always)]
fn attend_body<A: Arithmetic>(
    q: &[f32],
    runs: &[Run<'_>],
    scale: f32,
    scores: &mut [f32],
    out: &mut [f32],
) -> f32 {
    let mut n_keys = 0;
    for run in runs {
        for j in 0..run.n_keys {
            scores[n_keys + j] = dot::<A>(q, run.keys.at(j, q.len())) * scale;
        }
        n_keys += run.n_keys;
    }
    let scores = &mut scores[..n_keys];
    let highest = max(scores);
    for score in &mut *scores {
        *score = exp::<A>(*score - highest);
    }
    let mut total = 0.0;
    out.fill(0.0);
    let mut weights = scores.iter();
    for run in runs {
        for (j, weight) in weights.by_ref().take(run.n_keys).enumerate() {
            total += weight;
            add_scaled::<A>(run.values.at(j, out.len()), *weight, out);
        }
    }
    let inverse = 1.0 / total;
    for x in out {
        *x *= inverse;
    }
    highest + total.ln()
}
