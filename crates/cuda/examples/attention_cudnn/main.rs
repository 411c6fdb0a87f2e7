//! Checks cuDNN's fused attention against plain f64 arithmetic, then times it.
//!
//!     attention_cudnn run FOLDER...          on a machine with a GPU
//!     attention_cudnn plans DESCRIPTION FOLDER...   without one: what plans need
//!
//! FOLDERs are where `libcudnn.so.9` and `libnvrtc-builtins.so.*` lie, where the system's search
//! path does not lead to them; DESCRIPTION is a file with a device's JSON, as `run` prints it.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

mod buffers;
mod reference;

use std::error::Error;
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaStream};
use half::bf16;
use temper_cuda::cudnn::{AttentionPlan, AttentionShape, Cudnn, Packing, RowStrides};

use buffers::{Buffers, CANARY, inputs};
use reference::{Given, reference, spot_errors};

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
        (single(1, 8, 2, 128), vec![1]),
        (single(2, 8, 2, 128), vec![2]),
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
            "65536 x 32/8 x 128",
            AttentionShape::single(65536, 32, 8, 128),
            vec![65536],
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
        if let Err(error) = time(&cudnn, &stream, name, &shape, &lengths) {
            println!("{name}: FAILED to {error}");
        }
    }
    println!("\nreplayed from a CUDA graph");
    for deterministic in [false, true] {
        let shape = AttentionShape {
            deterministic,
            ..AttentionShape::single(8192, 32, 8, 128)
        };
        if let Err(error) = replay(&cudnn, &stream, &shape) {
            println!("{}: FAILED to {error}", short(&shape, &[8192]));
        }
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
    // A single token's dq and dk are zero, so a relative error would say nothing.
    ((square / norm.max(1.0)).sqrt(), largest)
}

fn time(
    cudnn: &Cudnn,
    stream: &Arc<CudaStream>,
    name: &str,
    shape: &AttentionShape,
    lengths: &[usize],
) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let plan = cudnn.attention_plan(shape)?;
    let described = describe(&plan, started);
    let rows = lengths.iter().sum();
    let values = inputs(shape, rows);
    let buffers = Buffers::new(stream, shape, &plan, lengths, &values)?;
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
    if shape.packing != Packing::Single {
        return Ok(());
    }
    let (out, lse) = (
        stream.clone_dtoh(&buffers.out)?,
        stream.clone_dtoh(&buffers.lse)?,
    );
    let gradients = buffers.gradients(stream, shape, 0..rows)?;
    let given = Given {
        out: &out,
        lse: &lse,
        dq: &gradients[0],
        dk: &gradients[1],
        dv: &gradients[2],
    };
    let tokens = [0, rows / 3, rows - 1];
    let [out, lse, dq, dk, dv] = spot_errors(shape, &values, &given, &tokens);
    let mut repeats = true;
    for _ in 0..3 {
        // SAFETY: as above.
        unsafe { plan.backward(&buffers.backward)? };
        repeats &= buffers.gradients(stream, shape, 0..rows)? == gradients;
    }
    println!(
        "    tokens {tokens:?}: out {out:.1e}, lse {lse:.1e}, dq {dq:.1e}, dk {dk:.1e}, \
         dv {dv:.1e}; {}",
        if repeats {
            "repeats bit for bit"
        } else {
            "does not repeat"
        }
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
        "{}: forward and backward {:.3} ({:.3}); {}",
        short(shape, &[shape.tokens]),
        both.0,
        both.1,
        if same { "same bits" } else { "other bits" },
    );
    Ok(())
}
