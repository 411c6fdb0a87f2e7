//! The gradient of packed attention, from the log-sum-exps that the forward pass kept
//! (Dao et al., arXiv 2205.14135, section 3.1): with `p = exp(scale * q.k - lse)` and
//! `delta = d_out . out`, `d_score = p * (d_out . v - delta)`.
//!
//! Queries gather their own gradient, and keys and values gather theirs in a second pass that
//! computes the probabilities again: so no two tasks write to one place, and the order of every
//! sum is fixed.

use std::cell::RefCell;

use super::{
    Cpu,
    attention::{KEYS, Vectors, check_segments, group_size, log_sum_exps, pieces, whole_vectors},
    simd::{Arithmetic, LANES, dispatched, dot, exp},
    storage::{CpuStorage, Rows, apart, is_shape},
    tile::{TILE_ROWS, Tile, multiply, transpose},
};
use crate::{
    device::{Heads, Result, Segments},
    tensor::{Tensor, View},
};

/// Queries that are taken together against a block of keys.
const QUERIES: usize = 64;

impl Cpu {
    #[allow(clippy::too_many_arguments)]
    pub(super) fn attention_backward_into(
        &self,
        q: &View<CpuStorage>,
        k: &View<CpuStorage>,
        v: &View<CpuStorage>,
        out: &View<CpuStorage>,
        lse: &Tensor<CpuStorage>,
        d_out: &View<CpuStorage>,
        heads: Heads,
        scale: f32,
        segments: &Segments<CpuStorage>,
        d_q: &View<CpuStorage>,
        d_k: &View<CpuStorage>,
        d_v: &View<CpuStorage>,
    ) -> Result<()> {
        let operation = "attention_backward";
        let group = group_size(operation, heads)?;
        let n = q.rows();
        check_segments(operation, segments, n)?;
        let (q_cols, kv_cols) = (heads.n_query * heads.dim, heads.n_kv * heads.dim);
        let rows = |what, view: &View<CpuStorage>, cols| -> Result<Rows<f32>> {
            let rows = Rows::<f32>::of(operation, view)?;
            is_shape(operation, what, rows, n, cols)?;
            Ok(rows)
        };
        let (q, k, v) = (
            rows("q", q, q_cols)?,
            rows("k", k, kv_cols)?,
            rows("v", v, kv_cols)?,
        );
        let (out, d_out) = (rows("out", out, q_cols)?, rows("d_out", d_out, q_cols)?);
        let d_q = rows("d_q", d_q, q_cols)?;
        let (d_k, d_v) = (rows("d_k", d_k, kv_cols)?, rows("d_v", d_v, kv_cols)?);
        let lse = log_sum_exps(operation, lse, heads, n)?;
        for output in [d_q, d_k, d_v] {
            for input in [q, k, v, out, d_out, lse] {
                apart(operation, "an input and an output", output, input)?;
            }
        }
        apart(operation, "d_q and d_k", d_q, d_k)?;
        apart(operation, "d_q and d_v", d_q, d_v)?;
        apart(operation, "d_k and d_v", d_k, d_v)?;

        let mut deltas = vec![0.0; heads.n_query * n];
        let deltas = Rows::over(&mut deltas, n);
        let work = Work {
            q,
            k,
            v,
            d_out,
            lse,
            deltas,
            d_q,
            d_k,
            d_v,
            dim: heads.dim,
            scale,
        };
        self.rows((n, 2 * q_cols), |i| {
            for head in 0..heads.n_query {
                let column = head * heads.dim;
                // SAFETY: each task has its own columns of `deltas`; the rest is only read.
                unsafe {
                    let d_out = d_out.columns(column, heads.dim).row(i);
                    let out = out.columns(column, heads.dim).row(i);
                    deltas.row_mut_range(head, i..i + 1)[0] = dot_product(d_out, out);
                }
            }
        });
        let pieces = pieces(segments);
        self.pool().run(pieces.len() * heads.n_query, &|task| {
            let (piece, head) = (&pieces[task / heads.n_query], task % heads.n_query);
            for first in (piece.segment..piece.rows.end).step_by(KEYS) {
                let block = Block {
                    keys: first..(first + KEYS).min(piece.rows.end),
                    queries: piece.rows.clone(),
                    head,
                    kv_head: head / group,
                };
                // SAFETY: shapes and disjointness are checked above; each task has its own rows
                // and heads of `d_q`.
                ROOM.with_borrow_mut(|room| unsafe {
                    work.pack_keys(&block, room);
                    work.probabilities(&block, room);
                    work.add_to_queries(&block, room, first > piece.segment);
                });
            }
        });
        self.pool().run(pieces.len() * heads.n_kv, &|task| {
            let (piece, kv_head) = (&pieces[task / heads.n_kv], task % heads.n_kv);
            for first in piece.rows.clone().step_by(KEYS) {
                let keys = first..(first + KEYS).min(piece.rows.end);
                let mut is_first = true;
                for head in kv_head * group..(kv_head + 1) * group {
                    for query in (first..piece.end).step_by(QUERIES) {
                        let block = Block {
                            keys: keys.clone(),
                            queries: query..(query + QUERIES).min(piece.end),
                            head,
                            kv_head,
                        };
                        // SAFETY: as above, for `d_k` and `d_v`.
                        ROOM.with_borrow_mut(|room| unsafe {
                            if is_first {
                                work.pack_keys(&block, room);
                            }
                            work.probabilities(&block, room);
                            work.add_to_keys(&block, room, !is_first);
                        });
                        is_first = false;
                    }
                }
            }
        });
        Ok(())
    }
}

/// Everything that blocks read and write.
#[derive(Clone, Copy)]
struct Work {
    q: Rows<f32>,
    k: Rows<f32>,
    v: Rows<f32>,
    d_out: Rows<f32>,
    lse: Rows<f32>,
    /// `[n_query, n]`
    deltas: Rows<f32>,
    d_q: Rows<f32>,
    d_k: Rows<f32>,
    d_v: Rows<f32>,
    dim: usize,
    scale: f32,
}

/// At most 64 keys against at most 64 queries of one head.
struct Block {
    keys: std::ops::Range<usize>,
    queries: std::ops::Range<usize>,
    head: usize,
    kv_head: usize,
}

/// Room for one block.
#[derive(Default)]
struct Room {
    /// Keys times the scale, and values, `[dim, KEYS]`.
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Probabilities and gradients of unscaled scores, `[QUERIES, KEYS]`.
    p: Vec<f32>,
    d_scores: Vec<f32>,
    /// The same with queries side by side, `[KEYS, QUERIES]`.
    p_turned: Vec<f32>,
    d_scores_turned: Vec<f32>,
    /// Vectors of a length that is no multiple of 16.
    vectors: Vec<f32>,
}

thread_local! {
    static ROOM: RefCell<Room> = RefCell::default();
}

impl Work {
    /// # Safety
    /// The block lies within the operands, and nothing writes to them now.
    unsafe fn pack_keys(&self, block: &Block, room: &mut Room) {
        let width = self.dim.next_multiple_of(LANES);
        for panel in [&mut room.keys, &mut room.values] {
            panel.resize(self.dim * KEYS, 0.0);
        }
        for turned in [
            &mut room.p,
            &mut room.d_scores,
            &mut room.p_turned,
            &mut room.d_scores_turned,
        ] {
            turned.resize(QUERIES * KEYS, 0.0);
        }
        room.vectors.resize(QUERIES.max(KEYS) * width, 0.0);
        for at in (0..block.keys.len()).step_by(LANES) {
            let n = LANES.min(block.keys.len() - at);
            for (matrix, factor, panel) in [
                (self.k, self.scale, &mut room.keys),
                (self.v, 1.0, &mut room.values),
            ] {
                let from = self.vectors(matrix, block.keys.start + at, block.kv_head);
                let to = panel[at..].as_mut_ptr();
                // SAFETY: the block's vectors lie in memory, and the panel has room.
                unsafe { transpose(from.first, n, from.stride, self.dim, factor, to, KEYS) };
            }
        }
    }

    fn vectors(&self, matrix: Rows<f32>, row: usize, head: usize) -> Vectors {
        Vectors::of(matrix, row, head * self.dim)
    }

    /// The block's probabilities, and the gradients of its scores times the scale.
    ///
    /// # Safety
    /// As for [`Work::pack_keys`], which has been called for the block's keys.
    unsafe fn probabilities(&self, block: &Block, room: &mut Room) {
        let n_keys = block.keys.len();
        for first in block.queries.clone().step_by(TILE_ROWS) {
            let n_rows = TILE_ROWS.min(block.queries.end - first);
            let at = (first - block.queries.start) * KEYS;
            for (matrix, panel, to) in [
                (self.q, &room.keys, &mut room.p),
                (self.d_out, &room.values, &mut room.d_scores),
            ] {
                let from = self.vectors(matrix, first, block.head);
                let mut rows = [std::ptr::null::<f32>(); TILE_ROWS];
                let mut outs = [std::ptr::null_mut::<f32>(); TILE_ROWS];
                for i in 0..n_rows {
                    rows[i] = from.from(i).first;
                    outs[i] = to[at + i * KEYS..].as_mut_ptr();
                }
                // SAFETY: by this function's own contract.
                unsafe {
                    multiply(&Tile {
                        rows: &rows[..n_rows],
                        k: self.dim,
                        panel: panel.as_ptr(),
                        panel_stride: KEYS,
                        out: &outs[..n_rows],
                        n_cols: n_keys,
                        accumulate: false,
                    });
                }
            }
            for i in first..first + n_rows {
                let at = (i - block.queries.start) * KEYS;
                // A query does not see keys after itself.
                let n_seen = n_keys.min((i + 1).saturating_sub(block.keys.start));
                // SAFETY: nothing writes to these now.
                let (lse, delta) =
                    unsafe { (self.lse.row(block.head)[i], self.deltas.row(block.head)[i]) };
                let p = &mut room.p[at..at + KEYS];
                let d_scores = &mut room.d_scores[at..at + KEYS];
                p[n_seen..].fill(0.0);
                d_scores[n_seen..].fill(0.0);
                differentiate(
                    &mut p[..n_seen],
                    &mut d_scores[..n_seen],
                    lse,
                    delta,
                    self.scale,
                );
            }
        }
    }

    /// `d_q` becomes, or grows by, what the block's keys send.
    ///
    /// # Safety
    /// As for [`Work::probabilities`], which has been called; nobody else has these rows of `d_q`.
    unsafe fn add_to_queries(&self, block: &Block, room: &mut Room, accumulate: bool) {
        let keys = self.vectors(self.k, block.keys.start, block.kv_head);
        // SAFETY: by this function's own contract.
        unsafe {
            let keys = whole_vectors(keys, block.keys.len(), self.dim, &mut room.vectors);
            let to = self.vectors(self.d_q, block.queries.start, block.head);
            let weights = (&room.d_scores[..], block.keys.len());
            self.gather(weights, block.queries.len(), keys, to, accumulate);
        }
    }

    /// `d_k` and `d_v` become, or grow by, what the block's queries send.
    ///
    /// # Safety
    /// As for [`Work::probabilities`], which has been called; nobody else has these rows of `d_k`
    /// and `d_v`.
    unsafe fn add_to_keys(&self, block: &Block, room: &mut Room, accumulate: bool) {
        let (n_queries, n_keys) = (block.queries.len(), block.keys.len());
        for (from, to) in [
            (&room.p, &mut room.p_turned),
            (&room.d_scores, &mut room.d_scores_turned),
        ] {
            for at in (0..n_queries).step_by(LANES) {
                let n = LANES.min(n_queries - at);
                // SAFETY: both have room for the whole block.
                unsafe {
                    let (from, to) = (from[at * KEYS..].as_ptr(), to[at..].as_mut_ptr());
                    transpose(from, n, KEYS, n_keys, 1.0, to, QUERIES);
                }
            }
        }
        for (matrix, weights, out) in [
            (self.d_out, &room.p_turned, self.d_v),
            (self.q, &room.d_scores_turned, self.d_k),
        ] {
            let vectors = self.vectors(matrix, block.queries.start, block.head);
            // SAFETY: by this function's own contract.
            unsafe {
                let vectors = whole_vectors(vectors, n_queries, self.dim, &mut room.vectors);
                let to = self.vectors(out, block.keys.start, block.kv_head);
                self.gather((weights, n_queries), n_keys, vectors, to, accumulate);
            }
        }
    }

    /// `to[i]` becomes, or grows by, the sum of the first vectors, weighted by row `i` of 64
    /// weights, of which as many count as are given.
    ///
    /// # Safety
    /// There are as many vectors, and `n_rows` outputs of `dim` elements that overlap nothing.
    unsafe fn gather(
        &self,
        (weights, n_weights): (&[f32], usize),
        n_rows: usize,
        vectors: Vectors,
        to: Vectors,
        accumulate: bool,
    ) {
        for first in (0..n_rows).step_by(TILE_ROWS) {
            let n = TILE_ROWS.min(n_rows - first);
            let mut rows = [std::ptr::null::<f32>(); TILE_ROWS];
            let mut outs = [std::ptr::null_mut::<f32>(); TILE_ROWS];
            for i in 0..n {
                rows[i] = weights[(first + i) * KEYS..].as_ptr();
                outs[i] = to.from(first + i).first.cast_mut();
            }
            // SAFETY: by this function's own contract.
            unsafe {
                multiply(&Tile {
                    rows: &rows[..n],
                    k: n_weights,
                    panel: vectors.first,
                    panel_stride: vectors.stride,
                    out: &outs[..n],
                    n_cols: self.dim,
                    accumulate,
                });
            }
        }
    }
}

dispatched! {
    fn dot_product(a: &[f32], b: &[f32]) -> f32 = dot;
}

dispatched! {
    /// Scores become probabilities; gradients at the probabilities become those at the dot
    /// products.
    fn differentiate(p: &mut [f32], d: &mut [f32], lse: f32, delta: f32, scale: f32) = differentiate_body;
}

#[inline(always)]
fn differentiate_body<A: Arithmetic>(
    p: &mut [f32],
    d: &mut [f32],
    lse: f32,
    delta: f32,
    scale: f32,
) {
    for (p, d) in p.iter_mut().zip(d) {
        *p = exp::<A>(*p - lse);
        *d = *p * (*d - delta) * scale;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_gradient, cpu, inner, random, segments, tensor, values};
    use crate::device::{Device, Heads};

    #[test]
    fn gradients_are_those_of_differences() {
        let cpu = cpu();
        let heads = Heads {
            n_query: 4,
            n_kv: 2,
            dim: 6,
        };
        let n = 23;
        let segments = segments(&cpu, &[0, 2, 2, 23]);
        let (q, k, v) = (random(1, n * 24), random(2, n * 12), random(3, n * 12));
        let d_out = random(4, n * 24);
        let (out, lse) = (
            tensor(&cpu, &vec![0.0; n * 24]),
            tensor(&cpu, &vec![0.0; n * 4]),
        );
        let forward = |q: &[f32], k: &[f32], v: &[f32]| {
            let (q, k, v) = (tensor(&cpu, q), tensor(&cpu, k), tensor(&cpu, v));
            cpu.attention(
                &q.view(24),
                &k.view(12),
                &v.view(12),
                heads,
                0.7,
                &segments,
                &out.view(24),
                &lse,
            )
            .unwrap();
            inner(&values(&cpu, &out), &d_out)
        };
        forward(&q, &k, &v);
        let [d_q, d_k, d_v] = [24, 12, 12].map(|cols| tensor(&cpu, &vec![9.0; n * cols]));
        cpu.attention_backward(
            &tensor(&cpu, &q).view(24),
            &tensor(&cpu, &k).view(12),
            &tensor(&cpu, &v).view(12),
            &out.view(24),
            &lse,
            &tensor(&cpu, &d_out).view(24),
            heads,
            0.7,
            &segments,
            &d_q.view(24),
            &d_k.view(12),
            &d_v.view(12),
        )
        .unwrap();
        check_gradient(&q, &values(&cpu, &d_q), |q| forward(q, &k, &v));
        check_gradient(&k, &values(&cpu, &d_k), |k| forward(&q, k, &v));
        check_gradient(&v, &values(&cpu, &d_v), |v| forward(&q, &k, v));
    }
}
