//! The gradient of packed attention, from the log-sum-exps that the forward pass kept
//! (Dao et al., arXiv 2205.14135, section 3.1): with `p = exp(scale * q.k - lse)` and
//! `delta = d_out . out`, `d_score = p * (d_out . v - delta)`.
//!
//! Rows of queries gather their own gradient, and keys and values gather theirs in a second pass
//! that computes the probabilities again: so no two tasks write to one place, and the order of
//! every sum is fixed.

use super::{
    Cpu,
    attention::{Strided, check_segments, group_size, log_sum_exps, pieces, strided},
    simd::{Arithmetic, add_scaled, dispatched, dot, exp},
    storage::{CpuStorage, Rows, apart, is_shape},
};
use crate::{
    device::{Heads, Result, Segments},
    tensor::{Tensor, View},
};

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
        let pieces = pieces(segments);
        self.pool().run(pieces.len() * heads.n_query, &|task| {
            let (piece, head) = (&pieces[task / heads.n_query], task % heads.n_query);
            for i in piece.rows.clone() {
                let column = head * heads.dim;
                // SAFETY: disjoint by the checks above; each task has its own rows and heads of
                // the outputs.
                unsafe {
                    let query = Query {
                        q: q.columns(column, heads.dim).row(i),
                        d_out: d_out.columns(column, heads.dim).row(i),
                        lse: lse.row(head)[i],
                        scale,
                    };
                    let delta = deltas.columns(i, 1).row_mut(head);
                    delta[0] = query_gradient(
                        &query,
                        out.columns(column, heads.dim).row(i),
                        strided(k, piece.segment..i + 1, head / group, heads.dim),
                        strided(v, piece.segment..i + 1, head / group, heads.dim),
                        i + 1 - piece.segment,
                        d_q.columns(column, heads.dim).row_mut(i),
                    );
                }
            }
        });
        self.pool().run(pieces.len() * heads.n_kv, &|task| {
            let (piece, kv_head) = (&pieces[task / heads.n_kv], task % heads.n_kv);
            for j in piece.rows.clone() {
                let column = kv_head * heads.dim;
                // SAFETY: disjoint by the checks above; each task has its own rows and heads of
                // the outputs; `deltas` is only read now.
                unsafe {
                    let key = k.columns(column, heads.dim).row(j);
                    let value = v.columns(column, heads.dim).row(j);
                    let d_key = d_k.columns(column, heads.dim).row_mut(j);
                    let d_value = d_v.columns(column, heads.dim).row_mut(j);
                    d_key.fill(0.0);
                    d_value.fill(0.0);
                    for head in kv_head * group..(kv_head + 1) * group {
                        let queries = Queries {
                            q: strided(q, j..piece.end, head, heads.dim),
                            d_out: strided(d_out, j..piece.end, head, heads.dim),
                            lse: &lse.row(head)[j..piece.end],
                            deltas: &deltas.row(head)[j..piece.end],
                            scale,
                        };
                        key_gradient(&queries, key, value, d_key, d_value);
                    }
                }
            }
        });
        Ok(())
    }
}

/// One row of one head.
struct Query<'a> {
    q: &'a [f32],
    d_out: &'a [f32],
    lse: f32,
    scale: f32,
}

/// The rows of one head from some key's own on.
struct Queries<'a> {
    q: Strided<'a>,
    d_out: Strided<'a>,
    lse: &'a [f32],
    deltas: &'a [f32],
    scale: f32,
}

dispatched! {
    /// The gradient of one query; returns its `delta`.
    fn query_gradient(
        query: &Query<'_>, out: &[f32], keys: Strided<'_>, values: Strided<'_>, n_keys: usize,
        d_q: &mut [f32],
    ) -> f32 = query_gradient_body;
}

#[inline(always)]
fn query_gradient_body<A: Arithmetic>(
    query: &Query<'_>,
    out: &[f32],
    keys: Strided<'_>,
    values: Strided<'_>,
    n_keys: usize,
    d_q: &mut [f32],
) -> f32 {
    let delta = dot::<A>(query.d_out, out);
    let dim = query.q.len();
    d_q.fill(0.0);
    for j in 0..n_keys {
        let key = keys.at(j, dim);
        let p = exp::<A>(dot::<A>(query.q, key) * query.scale - query.lse);
        let d_score = p * (dot::<A>(query.d_out, values.at(j, dim)) - delta);
        add_scaled::<A>(key, d_score * query.scale, d_q);
    }
    delta
}

dispatched! {
    /// The gradients of one key and value grow by what the queries of one head send.
    fn key_gradient(
        queries: &Queries<'_>, key: &[f32], value: &[f32], d_key: &mut [f32], d_value: &mut [f32],
    ) = key_gradient_body;
}

#[inline(always)]
fn key_gradient_body<A: Arithmetic>(
    queries: &Queries<'_>,
    key: &[f32],
    value: &[f32],
    d_key: &mut [f32],
    d_value: &mut [f32],
) {
    let dim = key.len();
    for (i, (lse, delta)) in queries.lse.iter().zip(queries.deltas).enumerate() {
        let (q, d_out) = (queries.q.at(i, dim), queries.d_out.at(i, dim));
        let p = exp::<A>(dot::<A>(q, key) * queries.scale - lse);
        let d_score = p * (dot::<A>(d_out, value) - delta);
        add_scaled::<A>(d_out, p, d_value);
        add_scaled::<A>(q, d_score * queries.scale, d_key);
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
