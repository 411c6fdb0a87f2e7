//! Attention and its gradients in plain f64 arithmetic.

use half::bf16;
use temper_cuda::cudnn::AttentionShape;

/// What attention and its gradients should be; layouts as on the device, but dense.
pub struct Expected {
    pub out: Vec<f64>,
    pub lse: Vec<f64>,
    pub dq: Vec<f64>,
    pub dk: Vec<f64>,
    pub dv: Vec<f64>,
}

/// The whole of it, for sequences of these lengths one behind the other.
pub fn reference(shape: &AttentionShape, lengths: &[usize], values: &[Vec<f32>; 4]) -> Expected {
    let (heads, groups, dim) = (shape.query_heads, shape.key_value_heads, shape.head_dim);
    let rows: usize = lengths.iter().sum();
    let group = heads / groups;
    let scale = f64::from(shape.softmax_scale);
    let [q, k, v, d_out] = values;
    let row = |x: &[f32], token: usize, n: usize, head: usize| -> Vec<f64> {
        let at = (token * n + head) * dim;
        x[at..at + dim].iter().map(|&x| f64::from(x)).collect()
    };
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(x, y)| x * y).sum() };
    let add = |to: &mut [f64], factor: f64, from: &[f64]| {
        for (x, y) in to.iter_mut().zip(from) {
            *x += factor * y;
        }
    };
    let of_group = |kv_head: usize| {
        let (mut dk, mut dv) = (vec![0.0; rows * dim], vec![0.0; rows * dim]);
        let mut of_heads = Vec::new();
        let keys: Vec<_> = (0..rows).map(|j| row(k, j, groups, kv_head)).collect();
        let vals: Vec<_> = (0..rows).map(|j| row(v, j, groups, kv_head)).collect();
        for head in kv_head * group..(kv_head + 1) * group {
            let (mut out, mut dq) = (vec![0.0; rows * dim], vec![0.0; rows * dim]);
            let mut lse = vec![0.0; rows];
            let mut first = 0;
            for &length in lengths {
                for (i, lse) in lse.iter_mut().enumerate().skip(first).take(length) {
                    let (query, gradient) = (row(q, i, heads, head), row(d_out, i, heads, head));
                    let scores: Vec<f64> =
                        (first..=i).map(|j| scale * dot(&query, &keys[j])).collect();
                    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let sum: f64 = scores.iter().map(|s| (s - most).exp()).sum();
                    let own_lse = most + sum.ln();
                    *lse = own_lse;
                    let own = i * dim..(i + 1) * dim;
                    for (j, score) in (first..=i).zip(&scores) {
                        add(&mut out[own.clone()], (score - own_lse).exp(), &vals[j]);
                    }
                    let centre = dot(&out[own.clone()], &gradient);
                    for (j, score) in (first..=i).zip(&scores) {
                        let weight = (score - own_lse).exp();
                        let d_score = scale * weight * (dot(&gradient, &vals[j]) - centre);
                        add(&mut dv[j * dim..(j + 1) * dim], weight, &gradient);
                        add(&mut dk[j * dim..(j + 1) * dim], d_score, &query);
                        add(&mut dq[own.clone()], d_score, &keys[j]);
                    }
                }
                first += length;
            }
            of_heads.push((out, lse, dq));
        }
        (dk, dv, of_heads)
    };
    let of_groups: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..groups)
            .map(|kv_head| scope.spawn(move || of_group(kv_head)))
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });

    let mut expected = Expected {
        out: vec![0.0; rows * heads * dim],
        lse: Vec::new(),
        dq: vec![0.0; rows * heads * dim],
        dk: vec![0.0; rows * groups * dim],
        dv: vec![0.0; rows * groups * dim],
    };
    let lay = |to: &mut [f64], n: usize, head: usize, from: &[f64]| {
        for (token, values) in from.chunks_exact(dim).enumerate() {
            let at = (token * n + head) * dim;
            to[at..at + dim].copy_from_slice(values);
        }
    };
    for (kv_head, (dk, dv, of_heads)) in of_groups.iter().enumerate() {
        lay(&mut expected.dk, groups, kv_head, dk);
        lay(&mut expected.dv, groups, kv_head, dv);
        for (i, (out, lse, dq)) in of_heads.iter().enumerate() {
            lay(&mut expected.out, heads, kv_head * group + i, out);
            lay(&mut expected.dq, heads, kv_head * group + i, dq);
            expected.lse.extend(lse);
        }
    }
    expected
}

/// What the device gave for one sequence: bf16 `[tokens, heads, dim]`, and f32
/// `[query_heads, tokens]` for the log-sum-exps.
pub struct Given<'a> {
    pub out: &'a [u16],
    pub lse: &'a [f32],
    pub dq: &'a [u16],
    pub dk: &'a [u16],
    pub dv: &'a [u16],
}

/// Relative errors in the 2-norm of out, lse, dq, dk and dv over some tokens of a sequence too
/// long to be computed whole. The gradients of keys and values, sums over all later tokens, take
/// those tokens' out and lse as given.
pub fn spot_errors(
    shape: &AttentionShape,
    [q, k, v, d_out]: &[Vec<f32>; 4],
    given: &Given<'_>,
    tokens: &[usize],
) -> [f64; 5] {
    let (heads, groups, dim) = (shape.query_heads, shape.key_value_heads, shape.head_dim);
    let group = heads / groups;
    let scale = f64::from(shape.softmax_scale);
    let span = |token: usize, n: usize, head: usize| {
        let at = (token * n + head) * dim;
        at..at + dim
    };
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter()
            .zip(b)
            .map(|(&x, &y)| f64::from(x) * f64::from(y))
            .sum()
    };
    let add = |to: &mut [f64], factor: f64, from: &[f32]| {
        for (x, &y) in to.iter_mut().zip(from) {
            *x += factor * f64::from(y);
        }
    };
    let mut sums = [(0.0, 0.0); 5];
    let mut compare = |which: usize, found: f64, expected: f64| {
        let (square, norm) = &mut sums[which];
        *square += (found - expected) * (found - expected);
        *norm += expected * expected;
    };
    let bits = |x: u16| bf16::from_bits(x).to_f64();
    for &token in tokens {
        for group_index in [0, groups - 1] {
            let head = group_index * group + group / 2;
            let query = &q[span(token, heads, head)];
            let gradient = &d_out[span(token, heads, head)];
            let scores: Vec<f64> = (0..=token)
                .map(|j| scale * dot(query, &k[span(j, groups, group_index)]))
                .collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let lse = most + scores.iter().map(|s| (s - most).exp()).sum::<f64>().ln();
            let (mut out, mut dq) = (vec![0.0; dim], vec![0.0; dim]);
            for (j, score) in scores.iter().enumerate() {
                add(
                    &mut out,
                    (score - lse).exp(),
                    &v[span(j, groups, group_index)],
                );
            }
            let centre: f64 = out
                .iter()
                .zip(gradient)
                .map(|(x, &y)| x * f64::from(y))
                .sum();
            for (j, score) in scores.iter().enumerate() {
                let d_weight = dot(gradient, &v[span(j, groups, group_index)]);
                let d_score = scale * (score - lse).exp() * (d_weight - centre);
                add(&mut dq, d_score, &k[span(j, groups, group_index)]);
            }
            compare(1, f64::from(given.lse[head * shape.tokens + token]), lse);
            for (i, at) in span(token, heads, head).enumerate() {
                compare(0, bits(given.out[at]), out[i]);
                compare(2, bits(given.dq[at]), dq[i]);
            }

            let key = &k[span(token, groups, group_index)];
            let value = &v[span(token, groups, group_index)];
            let (mut dk, mut dv) = (vec![0.0; dim], vec![0.0; dim]);
            for head in group_index * group..(group_index + 1) * group {
                for i in token..shape.tokens {
                    let at = span(i, heads, head);
                    let (query, gradient) = (&q[at.clone()], &d_out[at.clone()]);
                    let centre: f64 = gradient
                        .iter()
                        .zip(&given.out[at])
                        .map(|(&x, &y)| f64::from(x) * bits(y))
                        .sum();
                    let lse = f64::from(given.lse[head * shape.tokens + i]);
                    let weight = (scale * dot(query, key) - lse).exp();
                    add(&mut dv, weight, gradient);
                    add(
                        &mut dk,
                        scale * weight * (dot(gradient, value) - centre),
                        query,
                    );
                }
            }
            for (i, at) in span(token, groups, group_index).enumerate() {
                compare(3, bits(given.dk[at]), dk[i]);
                compare(4, bits(given.dv[at]), dv[i]);
            }
        }
    }
    sums.map(|(square, norm)| (square / norm).sqrt())
}
