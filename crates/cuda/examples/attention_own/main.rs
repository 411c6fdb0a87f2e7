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
use temper_cuda::attention::{AttentionKernels, Instructions};

mod packed;
mod paged;

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
                    failures += packed::check(&stream, kernels, heads, lengths);
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
                        paged::check(&stream, kernels, (q_heads, kv_heads, head_dim), max_pages);
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
                paged::time(
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
                measured.push(packed::time(&stream, kernels, heads, &[8_192], 20));
            }
            measured.push(packed::time(&stream, &wide, (32, 8, 128), &[1_024; 8], 20));
        }
        if wants("long") {
            measured.push(packed::time(&stream, &wide, (32, 8, 128), &[32_768], 3));
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
