//! Products: dense, with bias and residual, transposed, of mixed types, low-rank, quantised.

use std::borrow::Cow;

use temper_checkpoint::tensor::{Encoding, TensorView};
use temper_model::device::{Device, Lora, Result, WeightFormat};
use temper_model::tensor::DType;

use crate::lab::{Lab, noise, numbers};
use crate::{Bench, case};

/// Rows, inputs, outputs.
const SHAPES: [(usize, usize, usize); 7] = [
    (1, 576, 960),
    (3, 7, 5),
    (33, 96, 64),
    (64, 4096, 6144),
    (200, 576, 1536),
    (129, 1001, 77),
    (512, 4096, 4096),
];

pub fn run(bench: &mut Bench) {
    for (n, n_in, n_out) in SHAPES {
        case!(bench, format!("[{n},{n_in}]x[{n_out},{n_in}]"), |lab| {
            linear(&mut lab, n, n_in, n_out)
        });
        case!(bench, format!("lora [{n},{n_in}]->{n_out}"), |lab| lora(
            &mut lab, n, n_in, n_out
        ));
    }
    for (m, k, n) in [
        (1, 1, 1),
        (33, 40, 17),
        (128, 576, 64),
        (32, 1000, 4096),
        (64, 8, 640),
    ] {
        for transposed in [(false, false), (true, false), (false, true), (true, true)] {
            for types in [(false, false), (true, true), (true, false), (false, true)] {
                case!(
                    bench,
                    format!("[{m},{k}]x[{k},{n}] t{transposed:?} f32{types:?}"),
                    |lab| matmul(&mut lab, (m, k, n), transposed, types)
                );
            }
        }
    }
}

fn linear<D: Device>(lab: &mut Lab<'_, D>, n: usize, n_in: usize, n_out: usize) -> Result<()> {
    let device = lab.device;
    let x = lab.activations(1, n, n_in, n_in + 8)?;
    let tensor = lab.dense(2, n_out, n_in, D::ACTIVATION)?;
    let w = device.matrix_over(tensor.tensor(), n_out, n_in)?;
    let bias = lab.dense(3, 1, n_out, D::ACTIVATION)?;
    let out = lab.activations(4, n, n_out, n_out + 16)?;
    device.linear(&x, &w, None, &out, false)?;
    lab.keep("plain", &out, 4e-3)?;
    device.linear(&x, &w, Some(bias.tensor()), &out, false)?;
    lab.keep("bias", &out, 4e-3)?;
    device.linear(&x, &w, Some(bias.tensor()), &out, true)?;
    lab.keep("bias added", &out, 5e-3)?;
    let wide = lab.dense(5, n, n_out, DType::F32)?;
    device.linear(&x, &w, Some(bias.tensor()), &wide, true)?;
    lab.keep("f32", &wide, 1e-4)?;
    let residual = lab.activations(6, n, n_out, n_out)?;
    device.linear_residual(&x, &w, &residual, &out)?;
    lab.keep("residual", &out, 4e-3)?;
    device.linear_residual(&x, &w, &residual, &residual)?;
    lab.keep("residual in place", &residual, 4e-3)?;
    let d_out = lab.activations(7, n, n_out, n_out)?;
    let d_x = lab.activations(8, n, n_in, n_in + 8)?;
    device.linear_backward_input(&d_out, &w, &d_x, false)?;
    lab.keep("backward", &d_x, 4e-3)?;
    device.linear_backward_input(&d_out, &w, &d_x, true)?;
    lab.keep("backward added", &d_x, 5e-3)
}

fn lora<D: Device>(lab: &mut Lab<'_, D>, n: usize, n_in: usize, n_out: usize) -> Result<()> {
    let rank = 32;
    let x = lab.activations(1, n, n_in, n_in)?;
    let a = lab.dense(2, rank, n_in, D::ACTIVATION)?;
    let b = lab.dense(3, n_out, rank, D::ACTIVATION)?;
    let x_a = lab.activations(4, n, rank, rank)?;
    let out = lab.activations(5, n, n_out, n_out)?;
    let pair = Lora {
        a: a.tensor(),
        b: b.tensor(),
        scale: 0.5,
        rank,
    };
    lab.device.lora(&x, &pair, &x_a, &out)?;
    lab.keep("x a", &x_a, 4e-3)?;
    lab.keep("out", &out, 6e-3)
}

fn matmul<D: Device>(
    lab: &mut Lab<'_, D>,
    (m, k, n): (usize, usize, usize),
    transposed: (bool, bool),
    types: (bool, bool),
) -> Result<()> {
    let dtype = |f32| if f32 { DType::F32 } else { D::ACTIVATION };
    let sized = |rows, cols, transposed| {
        if transposed {
            (cols, rows)
        } else {
            (rows, cols)
        }
    };
    let (a_rows, a_cols) = sized(m, k, transposed.0);
    let (b_rows, b_cols) = sized(k, n, transposed.1);
    let a = lab.matrix_of(
        &noise(1, m * k),
        (a_rows, a_cols),
        a_cols + 8,
        0,
        dtype(types.0),
    )?;
    let b = lab.matrix_of(
        &noise(2, k * n),
        (b_rows, b_cols),
        b_cols,
        0,
        dtype(types.1),
    )?;
    for (what, f32, accumulate) in [
        ("new", false, false),
        ("added", false, true),
        ("f32", true, false),
        ("f32 added", true, true),
    ] {
        let out = lab.matrix_of(&noise(3, m * n), (m, n), n + 8, 0, dtype(f32))?;
        lab.device.matmul(
            (&a, transposed.0),
            (&b, transposed.1),
            0.5,
            &out,
            accumulate,
        )?;
        lab.keep(what, &out, if f32 { 1e-4 } else { 4e-3 })?;
    }
    Ok(())
}

pub fn run_quantised(bench: &mut Bench) {
    let formats = [
        WeightFormat::Dense,
        WeightFormat::Nf4 {
            double_quantised: false,
        },
        WeightFormat::Nf4 {
            double_quantised: true,
        },
        WeightFormat::Int8,
    ];
    for (n, n_in, n_out) in [
        (5, 64, 40),
        (33, 96, 72),
        (64, 576, 960),
        (130, 4096, 1030),
        (3, 8, 9),
    ] {
        for format in formats {
            // Blocks of 8-bit codes cross narrow rows on one device and not on the other.
            if format == WeightFormat::Int8 && n_in < 32 {
                continue;
            }
            case!(bench, format!("{format:?} [{n},{n_in}]->{n_out}"), |lab| {
                quantised(&mut lab, n, n_in, n_out, format)
            });
        }
    }
}

fn quantised<D: Device>(
    lab: &mut Lab<'_, D>,
    n: usize,
    n_in: usize,
    n_out: usize,
    format: WeightFormat,
) -> Result<()> {
    let device = lab.device;
    let first_rows = n_out / 3;
    let views = [
        (1, first_rows, Encoding::F32),
        (2, n_out - first_rows, Encoding::Bf16),
    ]
    .map(|(seed, rows, encoding)| {
        let values = noise(seed, rows * n_in);
        let bytes: Vec<u8> = match encoding {
            Encoding::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            _ => values
                .iter()
                .flat_map(|x| half::bf16::from_f32(*x).to_le_bytes())
                .collect(),
        };
        TensorView {
            name: "w".into(),
            shape: vec![rows, n_in],
            encoding,
            bytes: Cow::Owned(bytes),
        }
    });
    let w = device.matrix(&views, format)?;
    lab.keep_values(
        "shape",
        vec![
            device.matrix_shape(&w).0 as f32,
            device.matrix_shape(&w).1 as f32,
        ],
        0.0,
    );
    // The processor keeps dequantised numbers in f32, the GPU rounds them to bf16.
    lab.keep_values("rows", device.matrix_rows(&w, 0..n_out)?, 3e-3);
    lab.keep_values("some rows", device.matrix_rows(&w, n_out / 2..n_out)?, 3e-3);
    let x = lab.activations(3, n, n_in, n_in)?;
    let out = lab.activations(4, n, n_out, n_out)?;
    device.linear(&x, &w, None, &out, false)?;
    lab.keep("product", &out, 5e-3)?;
    device.linear(&x, &w, None, &out, true)?;
    lab.keep("added", &out, 6e-3)?;
    let d_out = lab.activations(5, n, n_out, n_out)?;
    let d_x = lab.activations(6, n, n_in, n_in)?;
    device.linear_backward_input(&d_out, &w, &d_x, false)?;
    lab.keep("backward", &d_x, 5e-3)?;
    let table = device.matrix(&views[..1], format)?;
    let ids = lab.integers(&numbers(7, n, first_rows.max(1) as u32))?;
    device.embed(&table, &ids, &d_x)?;
    lab.keep("embedding", &d_x, 4e-3)
}
