//! Norms, rotary embedding, SwiGLU, the embedding.

use temper_model::device::{Device, Result};
use temper_model::tensor::DType;

use crate::lab::{Lab, noise, numbers};
use crate::{Bench, case};

pub fn run(bench: &mut Bench) {
    for (rows, runs, width, stride) in [
        (1, 1, 5, 5),
        (7, 3, 48, 150),
        (19, 1, 64, 64),
        (33, 9, 64, 960),
        (65, 40, 128, 6144),
        (33, 1, 576, 576),
        (33, 1, 1000, 1008),
        (33, 1, 4096, 4096),
        (9, 1, 4097, 4100),
        (9, 1, 12288, 12296),
        (5, 1, 20480, 20480),
    ] {
        case!(
            bench,
            format!("norm [{rows},{runs}x{width}]/{stride}"),
            |lab| norms(&mut lab, rows, runs, width, stride)
        );
    }
    case!(bench, "norm [2000,8x128]".to_owned(), |lab| norms(
        &mut lab, 2000, 8, 128, 1024
    ));
    for (rows, heads, dim, stride) in [
        (5, 2, 6, 14),
        (33, 9, 64, 960),
        (65, 32, 128, 6144),
        (7, 1, 32, 33),
    ] {
        case!(
            bench,
            format!("rotary [{rows},{heads}x{dim}]/{stride}"),
            |lab| rotary(&mut lab, rows, heads, dim, stride)
        );
    }
    for (rows, cols) in [(1, 1), (3, 7), (33, 1536), (17, 12288)] {
        case!(bench, format!("swiglu [{rows},{cols}]"), |lab| swiglu(
            &mut lab, rows, cols
        ));
    }
    for (rows, vocabulary, cols, ids) in [
        (1, 3, 5, 3),
        (300, 50, 64, 50),
        (1000, 1000, 576, 3),
        (513, 49_152, 576, 49_152),
        (777, 500, 4097, 500),
    ] {
        case!(
            bench,
            format!("embed {rows} of {ids}, [{vocabulary},{cols}]"),
            |lab| embed(&mut lab, rows, vocabulary, cols, ids)
        );
    }
    for (rows, cols, stride) in [(1, 1, 1), (77, 13, 17), (1000, 960, 960), (513, 6144, 6144)] {
        case!(bench, format!("sum_rows [{rows},{cols}]/{stride}"), |lab| {
            sum_rows(&mut lab, rows, cols, stride)
        });
    }
}

fn norms<D: Device>(
    lab: &mut Lab<'_, D>,
    rows: usize,
    runs: usize,
    width: usize,
    stride: usize,
) -> Result<()> {
    let device = lab.device;
    let cols = runs * width;
    let make = |seed| lab.activations(seed, rows, cols, stride);
    let scale: Vec<f32> = noise(9, width).iter().map(|x| 1.0 + 0.125 * x).collect();
    let weight = device.zeros(D::ACTIVATION, width)?;
    device.upload_f32(&scale, &weight)?;
    let (x, out, delta, sum) = (make(1)?, make(2)?, make(3)?, make(4)?);
    device.rms_norm(&x, &weight, 1e-6, &out)?;
    lab.keep("forward", &out, 4e-3)?;
    device.add_rms_norm(&delta, &sum, &weight, 1e-5, &out)?;
    lab.keep("sum", &sum, 4e-3)?;
    lab.keep("norm of sum", &out, 5e-3)?;
    let (d_out, d_x) = (
        lab.activations(5, rows, cols, stride)?,
        lab.activations(6, rows, cols, stride)?,
    );
    let d_weight = lab.floats(&noise(7, width))?;
    device.rms_norm_backward(&x, &weight, 1e-6, &d_out, &d_x, true, Some(&d_weight))?;
    lab.keep("d_x added", &d_x, 4e-3)?;
    lab.keep_tensor("d_weight", &d_weight, 1e-4)?;
    device.rms_norm_backward(&x, &weight, 1e-6, &d_out, &d_out, false, None)?;
    lab.keep("d_x in place", &d_out, 4e-3)?;
    device.rms_norm(&x, &weight, 1e-6, &x)?;
    lab.keep("in place", &x, 4e-3)
}

fn rotary<D: Device>(
    lab: &mut Lab<'_, D>,
    rows: usize,
    heads: usize,
    dim: usize,
    stride: usize,
) -> Result<()> {
    let n_positions = 100;
    let mut table = vec![0.0; n_positions * dim];
    for (i, row) in table.chunks_mut(dim).enumerate() {
        for j in 0..dim / 2 {
            let angle = i as f32 * 10_000f32.powf(-2.0 * j as f32 / dim as f32);
            row[j] = 1.07 * angle.cos();
            row[dim / 2 + j] = 1.07 * angle.sin();
        }
    }
    let table = lab.floats(&table)?;
    let positions = lab.integers(&numbers(3, rows, n_positions as u32))?;
    for (what, inverse) in [("forward", false), ("inverse", true)] {
        let x = lab.activations(1, rows, heads * dim, stride)?;
        lab.device.rotary(&x, dim, &positions, &table, inverse)?;
        lab.keep(what, &x, 4e-3)?;
    }
    Ok(())
}

fn swiglu<D: Device>(lab: &mut Lab<'_, D>, rows: usize, cols: usize) -> Result<()> {
    let device = lab.device;
    let fused = lab.activations(1, rows, 2 * cols, 2 * cols)?;
    let (gate, up) = (fused.columns(0..cols), fused.columns(cols..2 * cols));
    let out = lab.activations(2, rows, cols, cols + 8)?;
    device.swiglu(&gate, &up, &out)?;
    lab.keep("forward", &out, 4e-3)?;
    let d_out = lab.activations(3, rows, cols, cols)?;
    let apart = lab.activations(4, rows, 2 * cols, 2 * cols)?;
    let (d_gate, d_up) = (apart.columns(0..cols), apart.columns(cols..2 * cols));
    device.swiglu_backward(&gate, &up, &d_out, &d_gate, &d_up)?;
    lab.keep("backward", &apart, 4e-3)?;
    device.swiglu_backward(&gate, &up, &d_out, &gate, &up)?;
    lab.keep("backward in place", &fused, 4e-3)
}

fn embed<D: Device>(
    lab: &mut Lab<'_, D>,
    rows: usize,
    vocabulary: usize,
    cols: usize,
    n_ids: u32,
) -> Result<()> {
    let device = lab.device;
    let values = noise(1, vocabulary.min(1000) * cols);
    let values: Vec<f32> = values
        .iter()
        .copied()
        .cycle()
        .take(vocabulary * cols)
        .collect();
    let tensor = device.zeros(D::ACTIVATION, vocabulary * cols)?;
    device.upload_f32(&values, &tensor)?;
    let table = device.matrix_over(&tensor, vocabulary, cols)?;
    let ids = lab.integers(&numbers(2, rows, n_ids))?;
    let out = lab.activations(3, rows, cols, cols + 3)?;
    device.embed(&table, &ids, &out)?;
    lab.keep("forward", &out, 0.0)?;
    let d_table = device.zeros(DType::F32, vocabulary * cols)?.view(cols);
    device.embed_backward(&ids, &out, &d_table)?;
    device.embed_backward(&ids, &out, &d_table)?;
    lab.keep("backward twice", &d_table, 1e-6)
}

fn sum_rows<D: Device>(
    lab: &mut Lab<'_, D>,
    rows: usize,
    cols: usize,
    stride: usize,
) -> Result<()> {
    let x = lab.activations(1, rows, cols, stride)?;
    let sum = lab.floats(&noise(2, cols))?;
    lab.device.sum_rows(&x, &sum)?;
    lab.keep_tensor("sum", &sum, 1e-4)
}
