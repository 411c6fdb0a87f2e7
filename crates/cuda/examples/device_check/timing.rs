//! How fast: operations bound by memory at the sizes of an 8B model, and products.
#![allow(clippy::print_stdout)]

use cudarc::driver::sys::CUevent_flags;
use temper_cuda::Cuda;
use temper_model::device::{AdamW, Device, Draws, Moments, Result, WeightFormat};
use temper_model::tensor::{DType, Tensor, View};

use crate::lab::{noise, numbers};

type T = Tensor<temper_cuda::Storage>;
type V = View<temper_cuda::Storage>;

const ROWS: usize = 8192;
const HIDDEN: usize = 4096;
const WIDE: usize = 12_288;
const VOCABULARY: usize = 151_936;

pub fn run(device: &Cuda) {
    if let Err(error) = memory_bound(device)
        .and_then(|()| products(device))
        .and_then(|()| quantised(device))
        .and_then(|()| drawing(device))
    {
        println!("FAIL time: {error}");
    }
}

/// Seconds of one call: the median of some, each timed by events.
pub fn seconds(device: &Cuda, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    for _ in 0..3 {
        call()?;
    }
    let event = || {
        device
            .stream()
            .record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))
            .map_err(|error| temper_model::DeviceError::Failed {
                operation: "time",
                device: device.name(),
                reason: error.to_string(),
            })
    };
    let mut marks = vec![event()?];
    for _ in 0..12 {
        call()?;
        marks.push(event()?);
    }
    device.synchronize()?;
    let mut times: Vec<f64> = marks
        .windows(2)
        .map(|pair| f64::from(pair[0].elapsed_ms(&pair[1]).unwrap_or(f32::NAN)) / 1e3)
        .collect();
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn bandwidth(
    device: &Cuda,
    what: &str,
    n_bytes: usize,
    call: impl FnMut() -> Result<()>,
) -> Result<()> {
    let time = seconds(device, call)?;
    println!(
        "TIME {what}: {:.1} us, {:.0} GB/s",
        time * 1e6,
        n_bytes as f64 / time / 1e9
    );
    Ok(())
}

fn filled(device: &Cuda, seed: u64, dtype: DType, len: usize) -> Result<T> {
    let tensor = device.zeros(dtype, len)?;
    let block = noise(seed, 1 << 20);
    let mut done = block.len().min(len);
    device.upload_f32(&block[..done], &tensor)?;
    while done < len {
        let n = done.min(len - done);
        let part = |range: std::ops::Range<usize>| tensor.slice(range).view(n);
        device.copy(&part(0..n), &part(done..done + n))?;
        done += n;
    }
    Ok(tensor)
}

fn memory_bound(device: &Cuda) -> Result<()> {
    let act = |seed, cols| -> Result<V> {
        Ok(filled(device, seed, DType::Bf16, ROWS * cols)?.view(cols))
    };
    let small = ROWS * HIDDEN * 2;
    let large = ROWS * WIDE * 2;
    let (x, y, z) = (act(1, HIDDEN)?, act(2, HIDDEN)?, act(3, HIDDEN)?);
    let weight = filled(device, 4, DType::Bf16, HIDDEN)?;
    let fused = act(5, 2 * WIDE)?;
    let (gate, up) = (fused.columns(0..WIDE), fused.columns(WIDE..2 * WIDE));
    let (d_fused, d_out) = (act(6, 2 * WIDE)?, act(7, WIDE)?);
    let (d_gate, d_up) = (d_fused.columns(0..WIDE), d_fused.columns(WIDE..2 * WIDE));
    bandwidth(device, "copy, contiguous 201 MB", 2 * large, || {
        device.copy(&d_out, &fused.tensor().slice(0..ROWS * WIDE).view(WIDE))
    })?;
    bandwidth(device, "copy, strided", 2 * large, || {
        device.copy(&gate, &d_gate)
    })?;
    bandwidth(device, "rms_norm", 2 * small, || {
        device.rms_norm(&x, &weight, 1e-6, &y)
    })?;
    bandwidth(device, "add_rms_norm", 4 * small, || {
        device.add_rms_norm(&y, &x, &weight, 1e-6, &z)
    })?;
    bandwidth(device, "rms_norm_backward", 3 * small, || {
        device.rms_norm_backward(&x, &weight, 1e-6, &y, &z, false, None)
    })?;
    bandwidth(device, "rms_norm_backward, added", 4 * small, || {
        device.rms_norm_backward(&x, &weight, 1e-6, &y, &z, true, None)
    })?;
    let d_weight = device.zeros(DType::F32, HIDDEN)?;
    bandwidth(
        device,
        "rms_norm_backward, with the weight's",
        3 * small,
        || device.rms_norm_backward(&x, &weight, 1e-6, &y, &z, false, Some(&d_weight)),
    )?;
    let head_weight = filled(device, 8, DType::Bf16, 128)?;
    bandwidth(device, "rms_norm of 32 heads, strided", 2 * small, || {
        let q = d_fused.columns(0..HIDDEN);
        device.rms_norm(&q, &head_weight, 1e-6, &q)
    })?;
    let positions = device.zeros(DType::U32, ROWS)?;
    device.upload_u32(&(0..ROWS as u32).collect::<Vec<_>>(), &positions)?;
    let table = filled(device, 9, DType::F32, ROWS * 128)?;
    bandwidth(device, "rotary of 32 heads", 2 * small, || {
        device.rotary(&x, 128, &positions, &table, false)
    })?;
    bandwidth(device, "swiglu", 3 * large, || {
        device.swiglu(&gate, &up, &d_out)
    })?;
    bandwidth(device, "swiglu_backward", 5 * large, || {
        device.swiglu_backward(&gate, &up, &d_out, &d_gate, &d_up)
    })?;
    bandwidth(device, "add_scaled", 3 * small, || {
        device.add_scaled(&x, 0.001, &y)
    })?;
    let wide = filled(device, 10, DType::F32, ROWS * HIDDEN)?.view(HIDDEN);
    bandwidth(device, "f32 to bf16", 3 * small, || device.copy(&wide, &x))?;
    let bias = device.zeros(DType::F32, 6144)?;
    bandwidth(device, "sum_rows of 6144", ROWS * 6144 * 2, || {
        device.sum_rows(&fused.columns(0..6144), &bias)
    })?;
    let ids = device.zeros(DType::U32, ROWS)?;
    device.upload_u32(&numbers(3, ROWS, VOCABULARY as u32), &ids)?;
    let table = filled(device, 11, DType::Bf16, VOCABULARY * HIDDEN)?;
    let table = device.matrix_over(&table, VOCABULARY, HIDDEN)?;
    bandwidth(device, "embed", 2 * small, || {
        device.embed(&table, &ids, &x)
    })?;
    let d_table = device.zeros(DType::F32, VOCABULARY * HIDDEN)?.view(HIDDEN);
    bandwidth(device, "embed_backward", 5 * small, || {
        device.embed_backward(&ids, &x, &d_table)
    })?;
    let chunk = 1024;
    let logits = filled(device, 12, DType::Bf16, chunk * VOCABULARY)?.view(VOCABULARY);
    let [a, b, c] = [(); 3].map(|()| device.zeros(DType::F32, chunk));
    let (a, b, c) = (a?, b?, c?);
    let bytes = chunk * VOCABULARY * 2;
    bandwidth(device, "log_softmax_gather of 1024", bytes, || {
        device.log_softmax_gather(&logits, &ids, 1.0, &a, &b, None)
    })?;
    bandwidth(device, "log_softmax_gather with entropy", bytes, || {
        device.log_softmax_gather(&logits, &ids, 1.0, &a, &b, Some(&c))
    })?;
    bandwidth(device, "log_softmax_gather_backward", 2 * bytes, || {
        device.log_softmax_gather_backward(&logits, &ids, 1.0, &b, &a)
    })?;
    let n = 64 << 20;
    let [gradient, master, first, second] =
        [1, 2, 3, 4].map(|seed| filled(device, seed, DType::F32, n));
    let (gradient, master) = (gradient?, master?);
    let squares = device.zeros(DType::F32, 1)?;
    bandwidth(device, "sum_squares", 4 * n, || {
        device.sum_squares(&gradient, &squares)
    })?;
    let settings = AdamW {
        learning_rate: 1e-5,
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.0,
        update: 3,
        gradient_scale: 1.0,
    };
    let copy = device.zeros(DType::Bf16, n)?;
    let moments = Moments::F32 {
        first: first?,
        second: second?,
    };
    bandwidth(device, "adamw", 30 * n, || {
        device.adamw(&settings, &gradient, &master, &moments, Some(&copy))
    })?;
    let moments = Moments::Int8 {
        first: device.zeros(DType::U8, n)?,
        first_max: device.zeros(DType::F32, n / 256)?,
        second: device.zeros(DType::U8, n)?,
        second_max: device.zeros(DType::F32, n / 256)?,
    };
    bandwidth(device, "adamw, 8-bit", 18 * n, || {
        device.adamw(&settings, &gradient, &master, &moments, Some(&copy))
    })
}

fn products(device: &Cuda) -> Result<()> {
    for (n, n_in, n_out, what) in [
        (ROWS, HIDDEN, 6144, "qkv"),
        (ROWS, HIDDEN, HIDDEN, "o"),
        (ROWS, HIDDEN, 2 * WIDE, "gate and up"),
        (ROWS, WIDE, HIDDEN, "down"),
        (1024, HIDDEN, VOCABULARY, "head of 1024 rows"),
        (64, HIDDEN, 6144, "qkv of 64 rows"),
        (64, HIDDEN, 2 * WIDE, "gate and up of 64 rows"),
        (64, WIDE, HIDDEN, "down of 64 rows"),
        (1, HIDDEN, 2 * WIDE, "gate and up of 1 row"),
        (64, HIDDEN, VOCABULARY, "head of 64 rows"),
    ] {
        let x = filled(device, 1, DType::Bf16, n * n_in)?.view(n_in);
        let tensor = filled(device, 2, DType::Bf16, n_out * n_in)?;
        let w = device.matrix_over(&tensor, n_out, n_in)?;
        let out = filled(device, 3, DType::Bf16, n * n_out)?.view(n_out);
        let report = |what: &str, time: f64| {
            println!(
                "TIME {what}: {:.1} us, {:.0} TFLOP/s, weights at {:.0} GB/s",
                time * 1e6,
                2.0 * (n * n_in * n_out) as f64 / time / 1e12,
                (n_in * n_out * 2) as f64 / time / 1e9
            );
        };
        report(
            what,
            seconds(device, || device.linear(&x, &w, None, &out, false))?,
        );
        if n < ROWS {
            continue;
        }
        report(
            &format!("{what}, residual"),
            seconds(device, || device.linear_residual(&x, &w, &out, &out))?,
        );
        report(
            &format!("{what}, backward"),
            seconds(device, || device.linear_backward_input(&out, &w, &x, false))?,
        );
        let d_w = device.zeros(DType::F32, n_out * n_in)?.view(n_in);
        report(
            &format!("{what}, weight gradient"),
            seconds(device, || {
                device.matmul((&out, true), (&x, false), 1.0, &d_w, true)
            })?,
        );
        let rank = 32;
        let a = filled(device, 4, DType::Bf16, rank * n_in)?.view(n_in);
        let b = filled(device, 5, DType::Bf16, n_out * rank)?.view(rank);
        let x_a = filled(device, 6, DType::Bf16, n * rank)?.view(rank);
        let d_b = device.zeros(DType::F32, n_out * rank)?.view(rank);
        let us = |time: f64| time * 1e6;
        println!(
            "TIME lora of {what}: x a {:.1} us, out written {:.1} us, added {:.1} us, d_b {:.1} us",
            us(seconds(device, || device.matmul(
                (&x, false),
                (&a, true),
                1.0,
                &x_a,
                false
            ))?),
            us(seconds(device, || device.matmul(
                (&x_a, false),
                (&b, true),
                2.0,
                &out,
                false
            ))?),
            us(seconds(device, || device.matmul(
                (&x_a, false),
                (&b, true),
                2.0,
                &out,
                true
            ))?),
            us(seconds(device, || device.matmul(
                (&out, true),
                (&x_a, false),
                2.0,
                &d_b,
                true
            ))?),
        );
    }
    Ok(())
}

fn quantised(device: &Cuda) -> Result<()> {
    use std::borrow::Cow;
    use temper_checkpoint::tensor::{Encoding, TensorView};
    let (n_in, n_out) = (HIDDEN, 2 * WIDE);
    let block: Vec<u8> = noise(1, 1 << 20)
        .iter()
        .flat_map(|x| half::bf16::from_f32(*x).to_le_bytes())
        .collect();
    let bytes: Vec<u8> = block
        .iter()
        .copied()
        .cycle()
        .take(n_in * n_out * 2)
        .collect();
    let view = TensorView {
        name: "w".into(),
        shape: vec![n_out, n_in],
        encoding: Encoding::Bf16,
        bytes: Cow::Owned(bytes),
    };
    let x = filled(device, 1, DType::Bf16, ROWS * n_in)?.view(n_in);
    let out = device.zeros(DType::Bf16, ROWS * n_out)?.view(n_out);
    for format in [
        WeightFormat::Dense,
        WeightFormat::Nf4 {
            double_quantised: false,
        },
        WeightFormat::Nf4 {
            double_quantised: true,
        },
        WeightFormat::Int8,
    ] {
        let start = std::time::Instant::now();
        let w = device.matrix(std::slice::from_ref(&view), format)?;
        device.synchronize()?;
        let loaded = start.elapsed().as_secs_f64();
        let forward = seconds(device, || device.linear(&x, &w, None, &out, false))?;
        let backward = seconds(device, || device.linear_backward_input(&out, &w, &x, false))?;
        let few = x.row_range(0..8);
        let decode = seconds(device, || {
            device.linear(&few, &w, None, &out.row_range(0..8), false)
        })?;
        println!(
            "TIME {format:?} gate and up: {:.1} us, backward {:.1} us, 8 rows {:.1} us, {} bytes, \
             loaded in {loaded:.2} s",
            forward * 1e6,
            backward * 1e6,
            decode * 1e6,
            device.matrix_bytes(&w)
        );
    }
    Ok(())
}

fn drawing(device: &Cuda) -> Result<()> {
    let n = 64;
    let integers = |values: &[u32]| -> Result<T> {
        let tensor = device.zeros(DType::U32, values.len())?;
        device.upload_u32(values, &tensor)?;
        Ok(tensor)
    };
    let floats = |value: f32| -> Result<T> {
        let tensor = device.zeros(DType::F32, n)?;
        device.upload_f32(&vec![value; n], &tensor)?;
        Ok(tensor)
    };
    for dtype in [DType::Bf16, DType::F32] {
        let logits = filled(device, 1, dtype, n * VOCABULARY)?.view(VOCABULARY);
        for (what, temperature, top_k, top_p) in [
            ("greedy", 0.0, 0, 1.0),
            ("plain", 1.0, 0, 1.0),
            ("top-k", 1.0, 20, 1.0),
            ("top-p", 1.0, 0, 0.9),
            ("both", 0.6, 20, 0.95),
        ] {
            let draws = Draws {
                temperature: floats(temperature)?,
                top_k: integers(&vec![top_k; n])?,
                top_p: floats(top_p)?,
                min_p: floats(0.0)?,
                seed: integers(&numbers(1, 2 * n, 1 << 30))?,
                draw: integers(&vec![5; n])?,
                token: integers(&vec![0; n])?,
                logprob: floats(0.0)?,
                raw_logprob: floats(0.0)?,
            };
            let time = seconds(device, || device.sample(&logits, &draws))?;
            println!("TIME sample 64 of {dtype:?} {what}: {:.1} us", time * 1e6);
        }
    }
    // A step's small uploads.
    let targets: Vec<T> = (0..10).map(|_| integers(&[0; 64])).collect::<Result<_>>()?;
    let start = std::time::Instant::now();
    for _ in 0..100 {
        for target in &targets {
            device.upload_u32(&[7; 64], target)?;
        }
    }
    device.synchronize()?;
    println!(
        "TIME upload of 64 numbers: {:.2} us",
        start.elapsed().as_secs_f64() * 1e3
    );
    Ok(())
}
