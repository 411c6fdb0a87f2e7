//! Checks the attention kernels on the card at hand against plain f64 arithmetic, then times them.
//!
//! `attention_own [warp | warpgroup] [check | quick] [paged] [time] [long] [./CACHE]`: without words,
//! everything. Inputs are bf16 and
//! random, outputs are poisoned with NaN, and queries, keys and values are slices of one buffer.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUdeviceptr, CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode,
};
use cudarc::driver::{CudaContext, CudaGraph, CudaSlice, CudaStream, DevicePtr};
use half::bf16;
use temper_cuda::attention::{
    AttentionKernels, AttentionShape, BackwardRows, Instructions, PagedShape, Rows,
};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let all = !words
        .iter()
        .any(|w| matches!(w.as_str(), "check" | "quick" | "time" | "paged" | "long"));
    let wants = |word: &str| all || words.iter().any(|w| w == word);
    let cache = words.iter().find(|w| w.contains('/')).map(PathBuf::from);
    let cx = CudaContext::new(0).unwrap();
    // SAFETY: one stream is used throughout.
    unsafe { cx.disable_event_tracking() };
    let stream = cx.new_stream().unwrap();
    println!(
        "{} {:?}",
        cx.name().unwrap(),
        cx.compute_capability().unwrap()
    );
    let mut failures = 0;
    let mut gradients_of_first: Vec<Vec<bf16>> = Vec::new();
    let one = words
        .iter()
        .find(|w| matches!(w.as_str(), "warp" | "warpgroup"));
    for (name, instructions) in [
        ("warp", Instructions::Warp),
        ("warpgroup", Instructions::Warpgroup),
    ] {
        if one.is_some_and(|one| one != name) {
            continue;
        }
        let kernels = |head_dim| {
            let start = std::time::Instant::now();
            let kernels =
                AttentionKernels::compile_for(&cx, head_dim, instructions, cache.as_deref());
            println!(
                "{instructions:?} {head_dim}: compiled in {:.2?}",
                start.elapsed()
            );
            kernels
        };
        let (narrow, wide) = match (kernels(64), kernels(128)) {
            (Ok(narrow), Ok(wide)) => (narrow, wide),
            (narrow, wide) => {
                println!("{:?} {:?}", narrow.err(), wide.err());
                continue;
            }
        };
        if wants("check") || wants("quick") {
            for (q_heads, kv_heads, kernels, head_dim) in [
                (9, 3, &narrow, 64),
                (32, 8, &wide, 128),
                (14, 2, &narrow, 64),
                (4, 4, &wide, 128),
            ] {
                for lengths in [
                    &[1][..],
                    &[77],
                    &[5, 200, 307],
                    &[300],
                    &[0, 64, 1, 129, 128],
                ] {
                    let heads = (q_heads, kv_heads, head_dim);
                    failures += check(&stream, kernels, heads, lengths);
                }
            }
        }
        if wants("paged") && instructions == Instructions::Warp {
            for (q_heads, kv_heads, kernels, head_dim) in [
                (9, 3, &narrow, 64),
                (32, 8, &wide, 128),
                (14, 2, &narrow, 64),
                (32, 2, &wide, 128),
                (40, 2, &narrow, 64),
            ] {
                for max_pages in [49, 600] {
                    failures +=
                        check_paged(&stream, kernels, (q_heads, kv_heads, head_dim), max_pages);
                }
            }
            for (n_rows, context, q_heads, kv_heads, kernels, head_dim) in [
                (64, 1536, 32, 8, &wide, 128),
                (64, 2048, 32, 8, &wide, 128),
                (64, 1024, 32, 8, &wide, 128),
                (8, 1536, 32, 8, &wide, 128),
                (1, 8192, 32, 8, &wide, 128),
                (64, 1536, 9, 3, &narrow, 64),
            ] {
                time_paged(
                    &stream,
                    kernels,
                    (q_heads, kv_heads, head_dim),
                    n_rows,
                    context,
                );
            }
        }
        let mut measured = Vec::new();
        if wants("time") {
            for (kernels, heads) in [
                (&wide, (32, 8, 128)),
                (&narrow, (14, 2, 64)),
                (&narrow, (9, 3, 64)),
            ] {
                measured.push(time(&stream, kernels, heads, &[8_192], 20));
            }
            measured.push(time(&stream, &wide, (32, 8, 128), &[1_024; 8], 20));
        }
        if wants("long") {
            measured.push(time(&stream, &wide, (32, 8, 128), &[32_768], 3));
        }
        // At full length the two sets of kernels judge each other.
        for (i, gradients) in measured.iter().enumerate() {
            if let Some(other) = gradients_of_first.get(i) {
                let other: Vec<f64> = other.iter().map(|x: &bf16| x.to_f64()).collect();
                let (norm, largest) = errors(gradients.iter().map(|x| x.to_f64()), &other);
                println!("gradients of the two sets, size {i}: {norm:.1e} {largest:.1e}");
                failures += usize::from(norm.is_nan() || norm > 1e-2);
            }
        }
        gradients_of_first = measured;
    }
    println!("{failures} failures");
    std::process::exit(i32::from(failures > 0));
}

type Heads = (usize, usize, usize);

/// Reproducible noise, nearly normal with variance 1.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn fill(&mut self, n: usize) -> Vec<bf16> {
        let block: Vec<bf16> = (0..n.min(1 << 22))
            .map(|_| {
                let bits = self.next();
                let sum: i64 = (0..4).map(|i| (bits >> (16 * i) & 0xffff) as i64).sum();
                bf16::from_f32((sum - 131_070) as f32 / 37_837.0)
            })
            .collect();
        (0..n).map(|i| block[i % block.len()]).collect()
    }
}

fn at<T>(slice: &CudaSlice<T>, stream: &Arc<CudaStream>) -> CUdeviceptr {
    slice.device_ptr(stream).0
}

fn poisoned(stream: &Arc<CudaStream>, n: usize) -> CudaSlice<bf16> {
    stream.clone_htod(&vec![bf16::NAN; n.max(8)]).unwrap()
}

/// The relative error in norm and the largest error over the largest reference value.
fn errors(got: impl Iterator<Item = f64>, reference: &[f64]) -> (f64, f64) {
    let (mut difference, mut norm, mut largest, mut scale, mut n) = (0.0, 0.0, 0.0, 1e-30, 0);
    for (x, &y) in got.zip(reference) {
        difference += (x - y) * (x - y);
        norm += y * y;
        largest = f64::max(
            largest,
            if x.is_nan() {
                f64::INFINITY
            } else {
                (x - y).abs()
            },
        );
        scale = f64::max(scale, y.abs());
        n += 1;
    }
    assert_eq!(n, reference.len());
    (
        (difference / f64::max(norm, 1e-300)).sqrt(),
        largest / scale,
    )
}

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

fn check(
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

fn captured(stream: &Arc<CudaStream>, run: impl FnOnce()) -> CudaGraph {
    stream
        .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)
        .unwrap();
    run();
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    stream.end_capture(flags).unwrap().unwrap()
}

fn median_ms(stream: &Arc<CudaStream>, repeats: usize, mut run: impl FnMut()) -> f32 {
    let cx = stream.context();
    let flags = Some(CUevent_flags::CU_EVENT_DEFAULT);
    for _ in 0..2 {
        run();
    }
    let mut times: Vec<f32> = (0..repeats)
        .map(|_| {
            let (start, end) = (cx.new_event(flags).unwrap(), cx.new_event(flags).unwrap());
            start.record(stream).unwrap();
            run();
            end.record(stream).unwrap();
            start.elapsed_ms(&end).unwrap()
        })
        .collect();
    times.sort_by(f32::total_cmp);
    times[times.len() / 2]
}

/// Times both passes and returns the gradients of the fused buffer.
fn time(
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

struct Paged {
    shape: PagedShape,
    lines: Vec<i32>,
    positions: Vec<i32>,
    tables: Vec<i32>,
    q: Vec<bf16>,
    pages: [Vec<bf16>; 2],
    out: CudaSlice<bf16>,
    scratch: CudaSlice<f32>,
    device_pages: [CudaSlice<bf16>; 2],
    device_q: CudaSlice<bf16>,
    device_tables: [CudaSlice<i32>; 3],
}

impl Paged {
    /// Rows as (line, position). Slots of pages that no position reaches hold NaN when `holes`.
    fn new(
        stream: &Arc<CudaStream>,
        kernels: &AttentionKernels,
        (q_heads, kv_heads, head_dim): Heads,
        rows: &[(i32, i32)],
        max_pages: usize,
        holes: bool,
    ) -> Self {
        let n_lines = rows.iter().map(|row| row.0).max().unwrap() as usize + 1;
        let mut noise = Noise(77 + rows.len() as u64);
        let mut reach = vec![-1_i32; n_lines];
        for &(line, position) in rows {
            reach[line as usize] = reach[line as usize].max(position);
        }
        let n_pages: usize = reach.iter().map(|&p| (p / 16 + 1) as usize).sum::<usize>() + 1;
        // Page 0 belongs to nobody; the others are dealt out in a scrambled order.
        let mut order: Vec<i32> = (1..n_pages as i32).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, noise.next() as usize % (i + 1));
        }
        let mut tables = vec![0; n_lines * max_pages];
        let mut taken = 0;
        let page_size = kv_heads * 16 * head_dim;
        let mut pages = [
            noise.fill(n_pages * page_size),
            noise.fill(n_pages * page_size),
        ];
        for (line, &last) in reach.iter().enumerate() {
            for page in 0..=last / 16 {
                let number = order[taken];
                taken += 1;
                tables[line * max_pages + page as usize] = number;
                for slot in 0..16 {
                    if holes && page * 16 + slot > last {
                        for head in 0..kv_heads {
                            let from = ((number as usize * kv_heads + head) * 16 + slot as usize)
                                * head_dim;
                            for pages in &mut pages {
                                pages[from..from + head_dim].fill(bf16::NAN);
                            }
                        }
                    }
                }
            }
        }
        let q = noise.fill(rows.len() * q_heads * head_dim);
        let shape = PagedShape {
            n_rows: rows.len(),
            q_heads,
            kv_heads,
            head_dim,
            max_pages,
            scale: 1.0 / (head_dim as f32).sqrt(),
        };
        let lines: Vec<i32> = rows.iter().map(|row| row.0).collect();
        let positions: Vec<i32> = rows.iter().map(|row| row.1).collect();
        let scratch = kernels.paged_scratch_bytes(&shape) / 4;
        Self {
            out: poisoned(stream, q.len()),
            scratch: stream.clone_htod(&vec![f32::NAN; scratch.max(1)]).unwrap(),
            device_pages: [0, 1].map(|i| stream.clone_htod(&pages[i]).unwrap()),
            device_q: stream.clone_htod(&q).unwrap(),
            device_tables: [&lines, &positions, &tables].map(|x| stream.clone_htod(x).unwrap()),
            shape,
            lines,
            positions,
            tables,
            q,
            pages,
        }
    }

    fn run(&self, stream: &Arc<CudaStream>, kernels: &AttentionKernels, chunks: Option<&[i32]>) {
        let stride = self.shape.q_heads * self.shape.head_dim;
        let [k, v] = [0, 1].map(|i| at(&self.device_pages[i], stream));
        let [line, position, table] = [0, 1, 2].map(|i| at(&self.device_tables[i], stream));
        let q = Rows {
            at: at(&self.device_q, stream),
            stride,
        };
        let out = Rows {
            at: at(&self.out, stream),
            stride,
        };
        match chunks {
            None => {
                let scratch = at(&self.scratch, stream);
                // SAFETY: buffers of these sizes live in `self`.
                unsafe {
                    kernels.paged(
                        stream,
                        &self.shape,
                        q,
                        k,
                        v,
                        out,
                        line,
                        position,
                        table,
                        scratch,
                    )
                }
                .unwrap();
            }
            Some(offsets) => {
                let device = stream.clone_htod(offsets).unwrap();
                let offsets_at = at(&device, stream);
                let n = offsets.len() - 1;
                // SAFETY: as above; `device` lives until the stream is synchronised.
                unsafe {
                    kernels.paged_chunks(
                        stream,
                        &self.shape,
                        q,
                        k,
                        v,
                        out,
                        line,
                        position,
                        table,
                        offsets_at,
                        n,
                    )
                }
                .unwrap();
                stream.synchronize().unwrap();
            }
        }
    }

    fn reference(&self) -> Vec<f64> {
        let PagedShape {
            q_heads,
            kv_heads,
            head_dim: d,
            max_pages,
            ..
        } = self.shape;
        let mut out = Vec::new();
        for (row, (&line, &position)) in self.lines.iter().zip(&self.positions).enumerate() {
            for head in 0..q_heads {
                let q = &self.q[(row * q_heads + head) * d..][..d];
                let slot = |pages: usize, i: i32| {
                    let page = self.tables[line as usize * max_pages + i as usize / 16] as usize;
                    let head = head / (q_heads / kv_heads);
                    &self.pages[pages][((page * kv_heads + head) * 16 + i as usize % 16) * d..][..d]
                };
                let s: Vec<f64> = (0..=position)
                    .map(|i| {
                        let dot: f64 = q
                            .iter()
                            .zip(slot(0, i))
                            .map(|(x, y)| x.to_f64() * y.to_f64())
                            .sum();
                        dot * f64::from(self.shape.scale)
                    })
                    .collect();
                let top = s.iter().copied().fold(f64::MIN, f64::max);
                let sum: f64 = s.iter().map(|x| (x - top).exp()).sum();
                let mut values = vec![0.0; d];
                for (i, x) in s.iter().enumerate() {
                    for (o, v) in values.iter_mut().zip(slot(1, i as i32)) {
                        *o += (x - top).exp() / sum * v.to_f64();
                    }
                }
                out.extend(values);
            }
        }
        out
    }

    fn judge(&self, stream: &Arc<CudaStream>, what: &str) -> usize {
        let reference = self.reference();
        let out = stream.clone_dtoh(&self.out).unwrap();
        let (norm, largest) = errors(
            out.iter().take(reference.len()).map(|x| x.to_f64()),
            &reference,
        );
        let ok = norm <= 1e-2 && largest <= 2e-2;
        let PagedShape {
            q_heads,
            kv_heads,
            head_dim,
            max_pages,
            ..
        } = self.shape;
        println!(
            "{} {what} ({q_heads}, {kv_heads}, {head_dim}) of {max_pages} pages  {norm:.1e} {largest:.1e}",
            if ok { "ok  " } else { "FAIL" }
        );
        usize::from(!ok)
    }
}

fn check_paged(
    stream: &Arc<CudaStream>,
    kernels: &AttentionKernels,
    heads: Heads,
    max_pages: usize,
) -> usize {
    let rows = [
        (0, 0),
        (1, 15),
        (2, 16),
        (3, 100),
        (2, 7),
        (4, -1),
        (5, 777),
        (6, 255),
    ];
    let case = Paged::new(stream, kernels, heads, &rows, max_pages, true);
    let splits = kernels.paged_splits(&case.shape);
    // Through a captured graph, as decoding runs it.
    captured(stream, || case.run(stream, kernels, None))
        .launch()
        .unwrap();
    let mut failures = case.judge(stream, &format!("paged rows, {splits} splits,"));
    let mut rows = Vec::new();
    let mut offsets = vec![0];
    for (line, past, length) in [(1, 0, 77), (0, 100, 200), (3, 33, 1), (2, 17, 128)] {
        rows.extend((past..past + length).map(|position| (line, position)));
        offsets.push(rows.len() as i32);
    }
    let case = Paged::new(stream, kernels, heads, &rows, max_pages, true);
    case.run(stream, kernels, Some(&offsets));
    failures += case.judge(stream, "paged chunks");
    failures
}

fn time_paged(
    stream: &Arc<CudaStream>,
    kernels: &AttentionKernels,
    heads: Heads,
    n_rows: usize,
    context: i32,
) {
    let rows: Vec<(i32, i32)> = (0..n_rows as i32).map(|line| (line, context - 1)).collect();
    let case = Paged::new(
        stream,
        kernels,
        heads,
        &rows,
        (context as usize).div_ceil(16),
        false,
    );
    let graph = captured(stream, || {
        (0..10).for_each(|_| case.run(stream, kernels, None))
    });
    let ms = median_ms(stream, 20, || graph.launch().unwrap()) / 10.0;
    let bytes = 4.0 * (n_rows * context as usize * heads.1 * heads.2) as f32;
    println!(
        "paged {heads:?} {n_rows} rows x {context}: {ms:.4} ms, {:.2} TB/s, {} splits",
        bytes / ms / 1e9,
        kernels.paged_splits(&case.shape)
    );
    if n_rows == 64 && heads.2 == 128 && context == 1536 {
        // Eight prompts, each with its last 512 tokens as one chunk.
        let mut rows = Vec::new();
        let mut offsets = vec![0];
        for line in 0..8 {
            rows.extend((1024..1536).map(|position| (line, position)));
            offsets.push(rows.len() as i32);
        }
        let case = Paged::new(stream, kernels, heads, &rows, 96, false);
        let ms = median_ms(stream, 10, || case.run(stream, kernels, Some(&offsets)));
        let flop = 4.0 * 8.0 * (512.0 * 1280.5) * (heads.0 * heads.2) as f32;
        println!(
            "paged chunks {heads:?} 8 x 512 after 1024: {ms:.3} ms, {:.0} TFLOP/s (with a copy and a wait)",
            flop / ms / 1e9
        );
    }
}
