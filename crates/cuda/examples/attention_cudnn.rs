//! Checks cuDNN's fused attention against plain f64 arithmetic, then times it.
//!
//!     attention_cudnn run FOLDER...          on a machine with a GPU
//!     attention_cudnn plans DESCRIPTION FOLDER...   without one: what plans need
//!
//! FOLDERs are where `libcudnn.so.9` and `libnvrtc-builtins.so.*` lie, where the system's search
//! path does not lead to them; DESCRIPTION is a file with a device's JSON, as `run` prints it.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::error::Error;
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, result};
use half::bf16;
use temper_cuda::cudnn::{
    AttentionPlan, AttentionShape, BackwardPointers, Cudnn, ForwardPointers, Packing, RowStrides,
};

/// A bf16 that is not a number: what rows that a run must not touch are filled with.
const CANARY: u16 = 0x7fc1;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("run") => run(&arguments.map(PathBuf::from).collect::<Vec<_>>()),
        Some("plans") => {
            let description = std::fs::read_to_string(arguments.next().ok_or("no description")?)?;
            plans(
                &description,
                &arguments.map(PathBuf::from).collect::<Vec<_>>(),
            )
        }
        _ => Err("expected `run FOLDER...` or `plans DESCRIPTION FOLDER...`".into()),
    }
}

/// Shapes whose values are checked, with the lengths of their sequences.
fn checked_shapes() -> Vec<(AttentionShape, Vec<usize>)> {
    let single = AttentionShape::single;
    let fused = |shape: AttentionShape| AttentionShape {
        strides: RowStrides::fused(shape.query_heads, shape.key_value_heads, shape.head_dim),
        ..shape
    };
    let packed = |shape: AttentionShape| AttentionShape {
        packing: Packing::Packed {
            sequences: 6,
            longest: 256,
        },
        ..shape
    };
    let deterministic = |shape: AttentionShape| AttentionShape {
        deterministic: true,
        softmax_scale: 0.2,
        ..shape
    };
    let (wide, narrow) = (single(512, 8, 2, 128), single(512, 9, 3, 64));
    let lengths = || vec![100, 1, 7, 200, 184];
    vec![
        (wide, vec![512]),
        (fused(wide), vec![512]),
        (deterministic(wide), vec![512]),
        (packed(wide), lengths()),
        (packed(wide), vec![128, 64]),
        (packed(fused(wide)), lengths()),
        (packed(fused(wide)), vec![256, 3]),
        (packed(fused(deterministic(wide))), lengths()),
        (narrow, vec![512]),
        (packed(fused(narrow)), lengths()),
        (packed(fused(narrow)), vec![130]),
        (single(384, 4, 4, 64), vec![384]),
        (packed(single(384, 4, 4, 64)), vec![65, 63, 200]),
        (single(500, 8, 2, 128), vec![500]),
        (fused(single(77, 14, 2, 64)), vec![77]),
    ]
}

/// Shapes that are timed, with a name and the lengths of their sequences.
fn timed_shapes() -> Vec<(&'static str, AttentionShape, Vec<usize>)> {
    let target = AttentionShape::single(8192, 32, 8, 128);
    let fused = RowStrides::fused(32, 8, 128);
    let packed = |sequences, longest| AttentionShape {
        packing: Packing::Packed { sequences, longest },
        ..target
    };
    vec![
        ("8192 x 32/8 x 128", target, vec![8192]),
        (
            "8192, fused rows",
            AttentionShape {
                strides: fused,
                ..target
            },
            vec![8192],
        ),
        (
            "8192, deterministic",
            AttentionShape {
                deterministic: true,
                ..target
            },
            vec![8192],
        ),
        ("8192, packed, 1 of 1", packed(1, 8192), vec![8192]),
        ("8192, packed, 1 of 16", packed(16, 8192), vec![8192]),
        (
            "8192, packed, 8 x 1024 of 8",
            packed(8, 1024),
            vec![1024; 8],
        ),
        (
            "8192, packed, 8 x 1024 of 16 up to 8192",
            packed(16, 8192),
            vec![1024; 8],
        ),
        ("8192, packed, 16 uneven", packed(16, 4096), uneven()),
        (
            "32768 x 32/8 x 128",
            AttentionShape::single(32768, 32, 8, 128),
            vec![32768],
        ),
        (
            "2048 x 9/3 x 64",
            AttentionShape::single(2048, 9, 3, 64),
            vec![2048],
        ),
        (
            "8192 x 14/2 x 64",
            AttentionShape::single(8192, 14, 2, 64),
            vec![8192],
        ),
        (
            "8192 x 9/3 x 64",
            AttentionShape::single(8192, 9, 3, 64),
            vec![8192],
        ),
        (
            "8192 x 16/8 x 128",
            AttentionShape::single(8192, 16, 8, 128),
            vec![8192],
        ),
    ]
}

fn uneven() -> Vec<usize> {
    let mut lengths = vec![
        3000, 1500, 1, 700, 650, 600, 500, 400, 300, 200, 100, 90, 80, 40, 20,
    ];
    lengths.push(8192 - lengths.iter().sum::<usize>());
    lengths
}

fn plans(description: &str, folders: &[PathBuf]) -> Result<(), Box<dyn Error>> {
    let cudnn = Cudnn::for_described_device(description, folders)?;
    println!("cuDNN {}", cudnn.version());
    for (name, shape, _) in timed_shapes() {
        let started = Instant::now();
        match cudnn.attention_plan(&shape) {
            Ok(plan) => println!("{name}: {}", describe(&plan, started)),
            Err(error) => println!("{name}: failed to {error}"),
        }
    }
    Ok(())
}

fn describe(plan: &AttentionPlan, started: Instant) -> String {
    format!(
        "planned in {:.2} s; engines {}; workspace {:.1} / {:.1} MB; index {} bytes",
        started.elapsed().as_secs_f64(),
        plan.engines(),
        plan.forward_workspace_bytes() as f64 / 1e6,
        plan.backward_workspace_bytes() as f64 / 1e6,
        plan.index_bytes(),
    )
}

fn run(folders: &[PathBuf]) -> Result<(), Box<dyn Error>> {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    // SAFETY: the context is current on this thread, and outlives everything made here.
    let cudnn = unsafe { Cudnn::load(stream.cu_stream().cast::<c_void>(), folders)? };
    println!("{}; cuDNN {}", context.name()?, cudnn.version());
    println!("device: {}", cudnn.device_description()?);

    println!("\nvalues against f64: relative error in the 2-norm (largest absolute error)");
    let mut failed = 0;
    for (shape, lengths) in checked_shapes() {
        match check(&cudnn, &stream, &shape, &lengths) {
            Ok(true) => {}
            Ok(false) => failed += 1,
            Err(error) => {
                failed += 1;
                println!("{}: FAILED to {error}", short(&shape, &lengths));
            }
        }
    }
    println!("{failed} cases failed");

    println!("\nmilliseconds, median of 30 runs by device events after 5 (least)");
    for (name, shape, lengths) in timed_shapes() {
        if let Err(error) = time(&cudnn, &stream, name, &shape, &lengths, (0, 0)) {
            println!("{name}: FAILED to {error}");
        }
    }
    let target = AttentionShape::single(8192, 32, 8, 128);
    for candidate in 1..4 {
        let name = format!("8192 x 32/8 x 128, engine choice {candidate}");
        if let Err(error) = time(
            &cudnn,
            &stream,
            &name,
            &target,
            &[8192],
            (candidate, candidate),
        ) {
            println!("{name}: FAILED to {error}");
        }
    }
    if let Err(error) = replay(&cudnn, &stream, &target) {
        println!("graph capture: FAILED to {error}");
    }
    Ok(())
}

fn short(shape: &AttentionShape, lengths: &[usize]) -> String {
    let fused = shape.strides.q != shape.query_heads * shape.head_dim;
    format!(
        "{} x {}/{} x {}{}{}{}",
        shape.tokens,
        shape.query_heads,
        shape.key_value_heads,
        shape.head_dim,
        if fused { ", fused" } else { "" },
        if shape.deterministic {
            ", deterministic"
        } else {
            ""
        },
        match shape.packing {
            Packing::Single => String::new(),
            Packing::Packed { .. } => format!(", packed {lengths:?}"),
        }
    )
}

/// An operand inside a buffer: where its first element lies, its row stride, its heads.
#[derive(Clone, Copy)]
struct Place {
    start: usize,
    stride: usize,
    heads: usize,
}

/// Inputs and outputs of one shape: queries, keys and values share a buffer if rows are fused.
struct Buffers {
    inputs: [CudaSlice<u16>; 3],
    gradients: [CudaSlice<u16>; 3],
    out: CudaSlice<u16>,
    d_out: CudaSlice<u16>,
    lse: CudaSlice<f32>,
    workspace: CudaSlice<u8>,
    index: CudaSlice<u8>,
    forward: ForwardPointers,
    backward: BackwardPointers,
}

fn places(shape: &AttentionShape) -> [Place; 3] {
    let (query, key_value) = (shape.query_heads, shape.key_value_heads);
    let fused = shape.strides.q != query * shape.head_dim;
    let at = |heads_before: usize| {
        if fused {
            heads_before * shape.head_dim
        } else {
            0
        }
    };
    [
        Place {
            start: 0,
            stride: shape.strides.q,
            heads: query,
        },
        Place {
            start: at(query),
            stride: shape.strides.k,
            heads: key_value,
        },
        Place {
            start: at(query + key_value),
            stride: shape.strides.v,
            heads: key_value,
        },
    ]
}

/// Lays `[tokens, heads, dim]` values into a buffer of `size`, canaries elsewhere.
fn lay(values: &[f32], place: Place, dim: usize, buffer: &mut [u16]) {
    for (token, row) in values.chunks_exact(place.heads * dim).enumerate() {
        let at = place.start + token * place.stride;
        for (cell, &value) in buffer[at..].iter_mut().zip(row) {
            *cell = bf16::from_f32(value).to_bits();
        }
    }
}

fn take(buffer: &[u16], place: Place, dim: usize, tokens: std::ops::Range<usize>) -> Vec<u16> {
    tokens
        .flat_map(|token| {
            let at = place.start + token * place.stride;
            buffer[at..at + place.heads * dim].iter().copied()
        })
        .collect()
}

impl Buffers {
    fn new(
        stream: &Arc<CudaStream>,
        shape: &AttentionShape,
        plan: &AttentionPlan,
        lengths: &[usize],
        values: &[Vec<f32>; 4],
    ) -> Result<Self, Box<dyn Error>> {
        let places = places(shape);
        let fused = places[1].start > 0;
        let dim = shape.head_dim;
        let mut hosts = places.map(|place| vec![CANARY; shape.tokens * place.stride]);
        for (i, &place) in places.iter().enumerate() {
            lay(
                &values[i],
                place,
                dim,
                &mut hosts[if fused { 0 } else { i }],
            );
        }
        let row = shape.query_heads * dim;
        let dense = Place {
            start: 0,
            stride: row,
            heads: shape.query_heads,
        };
        let mut d_out = vec![CANARY; shape.tokens * row];
        lay(&values[3], dense, dim, &mut d_out);
        let inputs = [
            stream.clone_htod(&hosts[0])?,
            stream.clone_htod(&hosts[1])?,
            stream.clone_htod(&hosts[2])?,
        ];
        for host in &mut hosts {
            host.fill(CANARY);
        }
        let gradients = [
            stream.clone_htod(&hosts[0])?,
            stream.clone_htod(&hosts[1])?,
            stream.clone_htod(&hosts[2])?,
        ];
        let out = stream.clone_htod(&vec![CANARY; shape.tokens * row])?;
        let d_out = stream.clone_htod(&d_out)?;
        let lse = stream.clone_htod(&vec![f32::NAN; shape.lse_elements()])?;
        // Not zeros, so that a kernel that counts on zeros shows.
        let bytes = plan.workspace_bytes().max(256);
        // SAFETY: the memory is written before it is read.
        let workspace = unsafe {
            let workspace = stream.alloc::<u8>(bytes)?;
            let address = workspace.device_ptr(stream).0;
            result::memset_d8_async(address, 0xff, bytes, stream.cu_stream())?;
            workspace
        };
        let index = match shape.packing {
            Packing::Single => stream.clone_htod(&[0_u8; 16])?,
            Packing::Packed { .. } => stream.clone_htod(&plan.index(lengths)?)?,
        };
        let address = |slices: &[CudaSlice<u16>; 3], i: usize| {
            let base = slices[if fused { 0 } else { i }].device_ptr(stream).0;
            base + 2 * places[i].start as u64
        };
        let index_address = match shape.packing {
            Packing::Single => 0,
            Packing::Packed { .. } => index.device_ptr(stream).0,
        };
        let forward = ForwardPointers {
            q: address(&inputs, 0),
            k: address(&inputs, 1),
            v: address(&inputs, 2),
            out: out.device_ptr(stream).0,
            lse: lse.device_ptr(stream).0,
            workspace: workspace.device_ptr(stream).0,
            index: index_address,
        };
        let backward = BackwardPointers {
            q: forward.q,
            k: forward.k,
            v: forward.v,
            out: forward.out,
            lse: forward.lse,
            d_out: d_out.device_ptr(stream).0,
            dq: address(&gradients, 0),
            dk: address(&gradients, 1),
            dv: address(&gradients, 2),
            workspace: forward.workspace,
            index: index_address,
        };
        stream.synchronize()?;
        Ok(Self {
            inputs,
            gradients,
            out,
            d_out,
            lse,
            workspace,
            index,
            forward,
            backward,
        })
    }

    /// The gradients on the host, one dense `[tokens, heads, dim]` per operand.
    fn gradients(
        &self,
        stream: &Arc<CudaStream>,
        shape: &AttentionShape,
        tokens: std::ops::Range<usize>,
    ) -> Result<Vec<Vec<u16>>, Box<dyn Error>> {
        let places = places(shape);
        let fused = places[1].start > 0;
        let mut taken = Vec::new();
        for (i, &place) in places.iter().enumerate() {
            let host = stream.clone_dtoh(&self.gradients[if fused { 0 } else { i }])?;
            taken.push(take(&host, place, shape.head_dim, tokens.clone()));
        }
        Ok(taken)
    }
}

/// Reproducible values that bf16 holds exactly, roughly normal with unit variance.
fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1_u32 << 24) as f32 - 0.5
    };
    let period = count.min(1 << 20);
    let first: Vec<f32> = (0..period)
        .map(|_| bf16::from_f32((next() + next() + next() + next()) * 1.732).to_f32())
        .collect();
    first.iter().copied().cycle().take(count).collect()
}

fn inputs(shape: &AttentionShape, rows: usize) -> [Vec<f32>; 4] {
    let (query, key_value) = (
        shape.query_heads * shape.head_dim,
        shape.key_value_heads * shape.head_dim,
    );
    [
        random(1, rows * query),
        random(2, rows * key_value),
        random(3, rows * key_value),
        random(4, rows * query),
    ]
}

fn check(
    cudnn: &Cudnn,
    stream: &Arc<CudaStream>,
    shape: &AttentionShape,
    lengths: &[usize],
) -> Result<bool, Box<dyn Error>> {
    let plan = cudnn.attention_plan(shape)?;
    let rows: usize = lengths.iter().sum();
    let values = inputs(shape, rows);
    let buffers = Buffers::new(stream, shape, &plan, lengths, &values)?;
    // SAFETY: the buffers are as large as the shape asks for and outlive the synchronisation.
    unsafe {
        plan.forward(&buffers.forward)?;
        plan.backward(&buffers.backward)?;
    }
    stream.synchronize()?;
    let out = stream.clone_dtoh(&buffers.out)?;
    let lse = stream.clone_dtoh(&buffers.lse)?;
    let gradients = buffers.gradients(stream, shape, 0..rows)?;

    let mut beyond = out[rows * shape.query_heads * shape.head_dim..].to_vec();
    for gradient in buffers.gradients(stream, shape, rows..shape.tokens)? {
        beyond.extend(gradient);
    }
    let untouched = beyond.iter().all(|&cell| cell == CANARY);
    let mut same_bits = true;
    for _ in 0..3 {
        // SAFETY: as above.
        unsafe { plan.backward(&buffers.backward)? };
        stream.synchronize()?;
        same_bits &= buffers.gradients(stream, shape, 0..rows)? == gradients;
    }

    let expected = reference(shape, lengths, &values);
    let as_f64 = |cells: &[u16]| -> Vec<f64> {
        cells
            .iter()
            .map(|&cell| bf16::from_bits(cell).to_f64())
            .collect()
    };
    let lse: Vec<f64> = (0..shape.query_heads)
        .flat_map(|head| {
            lse[head * shape.tokens..head * shape.tokens + rows]
                .iter()
                .map(|&x| f64::from(x))
        })
        .collect();
    let out = as_f64(&out[..rows * shape.query_heads * shape.head_dim]);
    let gradients: Vec<Vec<f64>> = gradients.iter().map(|gradient| as_f64(gradient)).collect();
    let errors = [
        ("out", error(&out, &expected.out), 5e-3),
        ("lse", error(&lse, &expected.lse), 1e-5),
        ("dq", error(&gradients[0], &expected.dq), 1e-2),
        ("dk", error(&gradients[1], &expected.dk), 1e-2),
        ("dv", error(&gradients[2], &expected.dv), 1e-2),
    ];
    let good = untouched
        && errors
            .iter()
            .all(|&(_, (relative, _), limit)| relative < limit);
    let listed: Vec<String> = errors
        .iter()
        .map(|(name, (relative, largest), _)| format!("{name} {relative:.1e} ({largest:.1e})"))
        .collect();
    println!(
        "{}{}: {}{}{}; engines {}",
        if good { "" } else { "WRONG " },
        short(shape, lengths),
        listed.join(", "),
        if untouched {
            ""
        } else {
            "; ROWS BEYOND TOUCHED"
        },
        if same_bits {
            "; repeats bit for bit"
        } else {
            "; does not repeat"
        },
        plan.engines(),
    );
    Ok(good)
}

fn error(found: &[f64], expected: &[f64]) -> (f64, f64) {
    let (mut square, mut norm, mut largest) = (0.0, 0.0, 0.0_f64);
    for (&x, &y) in found.iter().zip(expected) {
        if x.is_nan() {
            return (f64::INFINITY, f64::INFINITY);
        }
        square += (x - y) * (x - y);
        norm += y * y;
        largest = largest.max((x - y).abs());
    }
    ((square / norm).sqrt(), largest)
}

/// What attention and its gradients should be; layouts as on the device, but dense.
struct Expected {
    out: Vec<f64>,
    lse: Vec<f64>,
    dq: Vec<f64>,
    dk: Vec<f64>,
    dv: Vec<f64>,
}

fn reference(shape: &AttentionShape, lengths: &[usize], values: &[Vec<f32>; 4]) -> Expected {
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
                for i in first..first + length {
                    let (query, gradient) = (row(q, i, heads, head), row(d_out, i, heads, head));
                    let scores: Vec<f64> =
                        (first..=i).map(|j| scale * dot(&query, &keys[j])).collect();
                    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let sum: f64 = scores.iter().map(|s| (s - most).exp()).sum();
                    lse[i] = most + sum.ln();
                    let own = i * dim..(i + 1) * dim;
                    for (j, score) in (first..=i).zip(&scores) {
                        add(&mut out[own.clone()], (score - lse[i]).exp(), &vals[j]);
                    }
                    let centre = dot(&out[own.clone()], &gradient);
                    for (j, score) in (first..=i).zip(&scores) {
                        let weight = (score - lse[i]).exp();
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

fn time(
    cudnn: &Cudnn,
    stream: &Arc<CudaStream>,
    name: &str,
    shape: &AttentionShape,
    lengths: &[usize],
    skip: (usize, usize),
) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let plan = cudnn.attention_plan_skipping(shape, skip.0, skip.1)?;
    let described = describe(&plan, started);
    let rows = lengths.iter().sum();
    let buffers = Buffers::new(stream, shape, &plan, lengths, &inputs(shape, rows))?;
    // SAFETY: the buffers are as large as the shape asks for and outlive the synchronisations.
    let forward = median_ms(stream, || unsafe { Ok(plan.forward(&buffers.forward)?) })?;
    let both = median_ms(stream, || unsafe {
        plan.forward(&buffers.forward)?;
        Ok(plan.backward(&buffers.backward)?)
    })?;
    let pairs: f64 = lengths
        .iter()
        .map(|&n| n as f64 * (n + 1) as f64 / 2.0)
        .sum();
    let product = 2.0 * pairs * (shape.head_dim * shape.query_heads) as f64;
    println!(
        "{name}: forward {:.3} ({:.3}), {:.0} TFLOP/s; forward and backward {:.3} ({:.3}), \
         {:.0} TFLOP/s; {described}",
        forward.0,
        forward.1,
        2.0 * product / forward.0 / 1e9,
        both.0,
        both.1,
        7.0 * product / both.0 / 1e9,
    );
    Ok(())
}

fn median_ms(
    stream: &Arc<CudaStream>,
    mut queue: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<(f64, f64), Box<dyn Error>> {
    for _ in 0..5 {
        queue()?;
    }
    stream.synchronize()?;
    let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
    let mut marks = Vec::new();
    for _ in 0..30 {
        let start = stream.record_event(timed)?;
        queue()?;
        marks.push((start, stream.record_event(timed)?));
    }
    stream.synchronize()?;
    let mut times = Vec::new();
    for (start, end) in &marks {
        times.push(f64::from(start.elapsed_ms(end)?));
    }
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2], times[0]))
}

/// Records both directions in a CUDA graph, replays it and compares the bits and the time.
fn replay(
    cudnn: &Cudnn,
    stream: &Arc<CudaStream>,
    shape: &AttentionShape,
) -> Result<(), Box<dyn Error>> {
    let plan = cudnn.attention_plan(shape)?;
    let values = inputs(shape, shape.tokens);
    let buffers = Buffers::new(stream, shape, &plan, &[shape.tokens], &values)?;
    // SAFETY: the buffers outlive the graph.
    unsafe {
        plan.forward(&buffers.forward)?;
        plan.backward(&buffers.backward)?;
    }
    let direct = buffers.gradients(stream, shape, 0..shape.tokens)?;
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    // SAFETY: as above.
    let queued = unsafe {
        plan.forward(&buffers.forward)
            .and_then(|()| plan.backward(&buffers.backward))
    };
    let graph = stream
        .end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)?;
    queued?;
    let graph = graph.ok_or("capture nothing")?;
    let both = median_ms(stream, || Ok(graph.launch()?))?;
    let same = buffers.gradients(stream, shape, 0..shape.tokens)? == direct;
    println!(
        "8192 x 32/8 x 128, replayed from a CUDA graph: forward and backward {:.3} ({:.3}); {}",
        both.0,
        both.1,
        if same { "same bits" } else { "other bits" },
    );
    drop((
        buffers.inputs,
        buffers.d_out,
        buffers.index,
        buffers.workspace,
    ));
    Ok(())
}
