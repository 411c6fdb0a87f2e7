//! Attention over packed sequences, both passes.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use half::bf16;
use temper_cuda::attention::{AttentionKernels, AttentionShape, BackwardRows, Rows};

use super::{Heads, Noise, at, errors, median_ms, poisoned};

struct Case {
    shape: AttentionShape,
    offsets: Vec<i32>,
    qkv: Vec<bf16>,
    d_out: Vec<bf16>,
    d_qkv: CudaSlice<bf16>,
    out: CudaSlice<bf16>,
    lse: CudaSlice<f32>,
    scratch: CudaSlice<f32>,
    device: (CudaSlice<bf16>, CudaSlice<bf16>, CudaSlice<i32>),
}

impl Case {
    fn new(
        stream: &Arc<CudaStream>,
        kernels: &AttentionKernels,
        (q_heads, kv_heads, head_dim): Heads,
        lengths: &[usize],
    ) -> Self {
        let tokens: usize = lengths.iter().sum();
        let mut offsets = vec![0];
        for &length in lengths {
            offsets.push(offsets[offsets.len() - 1] + length as i32);
        }
        let mut noise = Noise(0x9e37_79b9_7f4a_7c15 ^ (tokens * q_heads) as u64);
        let width = (q_heads + 2 * kv_heads) * head_dim;
        let qkv = noise.fill(tokens * width);
        let d_out = noise.fill(tokens * q_heads * head_dim);
        let device = (
            stream.clone_htod(&qkv).unwrap(),
            stream.clone_htod(&d_out).unwrap(),
            stream.clone_htod(&offsets).unwrap(),
        );
        let shape = AttentionShape {
            tokens,
            n_sequences: lengths.len(),
            q_heads,
            kv_heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
        };
        let scratch = vec![f32::NAN; kernels.scratch_bytes(&shape) / 4];
        Self {
            shape,
            offsets,
            d_qkv: poisoned(stream, tokens * width),
            out: poisoned(stream, d_out.len()),
            lse: stream
                .clone_htod(&vec![f32::NAN; tokens * q_heads])
                .unwrap(),
            scratch: stream.clone_htod(&scratch).unwrap(),
            qkv,
            d_out,
            device,
        }
    }

    /// The three slices of a fused buffer.
    fn slices(&self, buffer: &CudaSlice<bf16>, stream: &Arc<CudaStream>) -> [Rows; 3] {
        let AttentionShape {
            q_heads,
            kv_heads,
            head_dim,
            ..
        } = self.shape;
        let stride = (q_heads + 2 * kv_heads) * head_dim;
        [0, q_heads, q_heads + kv_heads].map(|head| Rows {
            at: at(buffer, stream) + (head * head_dim * 2) as u64,
            stride,
        })
    }

    fn forward(&self, stream: &Arc<CudaStream>, kernels: &AttentionKernels) {
        let [q, k, v] = self.slices(&self.device.0, stream);
        let out = Rows {
            at: at(&self.out, stream),
            stride: self.shape.q_heads * self.shape.head_dim,
        };
        let (lse, offsets) = (at(&self.lse, stream), at(&self.device.2, stream));
        // SAFETY: buffers of these sizes live in `self`.
        unsafe { kernels.forward(stream, &self.shape, q, k, v, out, lse, offsets) }.unwrap();
    }

    fn backward(&self, stream: &Arc<CudaStream>, kernels: &AttentionKernels) {
        let [q, k, v] = self.slices(&self.device.0, stream);
        let [d_q, d_k, d_v] = self.slices(&self.d_qkv, stream);
        let stride = self.shape.q_heads * self.shape.head_dim;
        let out = Rows {
            at: at(&self.out, stream),
            stride,
        };
        let d_out = Rows {
            at: at(&self.device.1, stream),
            stride,
        };
        let rows = BackwardRows {
            q,
            k,
            v,
            out,
            d_out,
            d_q,
            d_k,
            d_v,
        };
        let (lse, scratch) = (at(&self.lse, stream), at(&self.scratch, stream));
        let offsets = at(&self.device.2, stream);
        // SAFETY: buffers of these sizes live in `self`.
        unsafe { kernels.backward(stream, &self.shape, &rows, lse, scratch, offsets) }.unwrap();
    }

    fn head(&self, part: usize, head: usize, token: usize) -> Vec<f64> {
        let AttentionShape {
            q_heads,
            kv_heads,
            head_dim,
            ..
        } = self.shape;
        let column = ([0, q_heads, q_heads + kv_heads][part] + head) * head_dim;
        let start = token * (q_heads + 2 * kv_heads) * head_dim + column;
        self.qkv[start..start + head_dim]
            .iter()
            .map(|x| x.to_f64())
            .collect()
    }

    /// Plain attention and its gradients in f64: out, lse, and d_qkv as one fused buffer.
    fn reference(&self) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let AttentionShape {
            tokens,
            q_heads,
            kv_heads,
            head_dim: d,
            scale,
            ..
        } = self.shape;
        let (scale, group, width) = (
            f64::from(scale),
            q_heads / kv_heads,
            (q_heads + 2 * kv_heads) * d,
        );
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
        let parts: Vec<_> = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..kv_heads)
                .map(|kv_head| {
                    scope.spawn(move || {
                        let k: Vec<_> = (0..tokens).map(|t| self.head(1, kv_head, t)).collect();
                        let v: Vec<_> = (0..tokens).map(|t| self.head(2, kv_head, t)).collect();
                        let mut d_k = vec![vec![0.0; d]; tokens];
                        let mut d_v = vec![vec![0.0; d]; tokens];
                        let mut rows = Vec::new();
                        for head in kv_head * group..(kv_head + 1) * group {
                            for pair in self.offsets.windows(2) {
                                let (start, end) = (pair[0] as usize, pair[1] as usize);
                                for i in start..end {
                                    let q = self.head(0, head, i);
                                    let at = (i * q_heads + head) * d;
                                    let d_out: Vec<f64> =
                                        self.d_out[at..at + d].iter().map(|x| x.to_f64()).collect();
                                    let s: Vec<f64> =
                                        (start..=i).map(|j| scale * dot(&q, &k[j])).collect();
                                    let top = s.iter().copied().fold(f64::MIN, f64::max);
                                    let sum: f64 = s.iter().map(|x| (x - top).exp()).sum();
                                    let mut out = vec![0.0; d];
                                    for (x, j) in s.iter().zip(start..) {
                                        let p = (x - top).exp() / sum;
                                        for c in 0..d {
                                            out[c] += p * v[j][c];
                                            d_v[j][c] += p * d_out[c];
                                        }
                                    }
                                    let delta = dot(&out, &d_out);
                                    let mut d_q = vec![0.0; d];
                                    for (x, j) in s.iter().zip(start..) {
                                        let p = (x - top).exp() / sum;
                                        let d_s = scale * p * (dot(&d_out, &v[j]) - delta);
                                        for c in 0..d {
                                            d_q[c] += d_s * k[j][c];
                                            d_k[j][c] += d_s * q[c];
                                        }
                                    }
                                    rows.push((i, head, out, top + sum.ln(), d_q));
                                }
                            }
                        }
                        (kv_head, rows, d_k, d_v)
                    })
                })
                .collect();
            handles
                .into_iter()
                .map(|handle| handle.join().unwrap())
                .collect()
        });
        let mut out = vec![0.0; tokens * q_heads * d];
        let mut lse = vec![0.0; tokens * q_heads];
        let mut d_qkv = vec![0.0; tokens * width];
        for (kv_head, rows, d_k, d_v) in parts {
            for (i, head, o, l, d_q) in rows {
                out[(i * q_heads + head) * d..][..d].copy_from_slice(&o);
                lse[head * tokens + i] = l;
                d_qkv[i * width + head * d..][..d].copy_from_slice(&d_q);
            }
            for i in 0..tokens {
                d_qkv[i * width + (q_heads + kv_head) * d..][..d].copy_from_slice(&d_k[i]);
                d_qkv[i * width + (q_heads + kv_heads + kv_head) * d..][..d]
                    .copy_from_slice(&d_v[i]);
            }
        }
        (out, lse, d_qkv)
    }
}

/// Checks one size; 1 if it fails.
pub fn check(
    stream: &Arc<CudaStream>,
    kernels: &AttentionKernels,
    heads: Heads,
    lengths: &[usize],
) -> usize {
    let case = Case::new(stream, kernels, heads, lengths);
    case.forward(stream, kernels);
    case.backward(stream, kernels);
    let out = stream.clone_dtoh(&case.out).unwrap();
    let lse = stream.clone_dtoh(&case.lse).unwrap();
    let d_qkv = stream.clone_dtoh(&case.d_qkv).unwrap();
    case.backward(stream, kernels);
    let again = stream.clone_dtoh(&case.d_qkv).unwrap();
    let same = d_qkv
        .iter()
        .zip(&again)
        .all(|(x, y)| x.to_bits() == y.to_bits());
    let (o, l, d) = case.reference();
    let (q_heads, kv_heads, head_dim) = heads;
    let width = (q_heads + 2 * kv_heads) * head_dim;
    let part = |from: usize, to: usize| {
        let inside = move |i: &usize| (from * head_dim..to * head_dim).contains(&(i % width));
        let reference: Vec<f64> = (0..d.len()).filter(inside).map(|i| d[i]).collect();
        errors(
            (0..d.len()).filter(inside).map(|i| d_qkv[i].to_f64()),
            &reference,
        )
    };
    let found = [
        (
            "out",
            errors(out.iter().take(o.len()).map(|x| x.to_f64()), &o),
        ),
        ("lse", errors(lse.iter().map(|&x| f64::from(x)), &l)),
        ("dq", part(0, q_heads)),
        ("dk", part(q_heads, q_heads + kv_heads)),
        ("dv", part(q_heads + kv_heads, q_heads + 2 * kv_heads)),
    ];
    // A lone token's softmax is constant, so its dq and dk are zero but for rounding.
    let lone = lengths.iter().all(|&length| length <= 1);
    let good = |name: &str, (norm, largest): (f64, f64)| match lone && matches!(name, "dq" | "dk") {
        true => largest.is_finite() || norm.is_finite(),
        false => norm <= 1e-2 && largest <= 2e-2,
    };
    let ok = same && found.iter().all(|&(name, e)| good(name, e));
    print!("{} {heads:?} {lengths:?}", if ok { "ok  " } else { "FAIL" });
    for (name, (norm, largest)) in found {
        print!("  {name} {norm:.1e} {largest:.1e}");
    }
    println!(
        "{}",
        if same {
            ""
        } else {
            "  backward differs from run to run"
        }
    );
    usize::from(!ok)
}

/// Times both passes and returns the gradients of the fused buffer.
pub fn time(
    stream: &Arc<CudaStream>,
    kernels: &AttentionKernels,
    heads: Heads,
    lengths: &[usize],
    repeats: usize,
) -> Vec<bf16> {
    let case = Case::new(stream, kernels, heads, lengths);
    let forward = median_ms(stream, repeats, || case.forward(stream, kernels));
    let backward = median_ms(stream, repeats, || case.backward(stream, kernels));
    let tokens = lengths[0];
    let (q_heads, _, head_dim) = heads;
    let flop = 2.0 * (lengths.len() * (q_heads * head_dim)) as f32 * (tokens as f32).powi(2);
    println!(
        "{:?} {heads:?} {} x {tokens} tokens: forward {forward:.3} ms {:.0} TFLOP/s, backward \
         {backward:.3} ms {:.0} TFLOP/s (as five products), together {:.3} ms",
        kernels.instructions(),
        lengths.len(),
        flop / forward / 1e9,
        2.5 * flop / backward / 1e9,
        forward + backward,
    );
    // A few rows of the forward pass at full length, against f64.
    let out = stream.clone_dtoh(&case.out).unwrap();
    let group = heads.0 / heads.1;
    let mut reference = Vec::new();
    let mut got = Vec::new();
    for (head, i) in [
        (0, tokens - 1),
        (q_heads - 1, tokens / 2 + 3),
        (q_heads / 2, 130),
    ] {
        let q = case.head(0, head, i);
        let s: Vec<f64> = (0..=i)
            .map(|j| {
                let k = case.head(1, head / group, j);
                q.iter().zip(&k).map(|(x, y)| x * y).sum::<f64>() * f64::from(case.shape.scale)
            })
            .collect();
        let top = s.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = s.iter().map(|x| (x - top).exp()).sum();
        let mut row = vec![0.0; head_dim];
        for (j, x) in s.iter().enumerate() {
            let v = case.head(2, head / group, j);
            row.iter_mut()
                .zip(&v)
                .for_each(|(r, v)| *r += (x - top).exp() / sum * v);
        }
        reference.extend(row);
        got.extend(
            out[(i * q_heads + head) * head_dim..][..head_dim]
                .iter()
                .map(|x| x.to_f64()),
        );
    }
    let (norm, largest) = errors(got.into_iter(), &reference);
    println!("  sampled rows: {norm:.1e} {largest:.1e}");
    stream.clone_dtoh(&case.d_qkv).unwrap()
}
