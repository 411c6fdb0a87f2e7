//! Transfers, copies, gathers, scatters, sums, recorded work.

use temper_model::device::{Device, Result};
use temper_model::tensor::DType;

use crate::lab::{Lab, noise, numbers};
use crate::{Bench, case};

const SHAPES: [(usize, usize, usize, usize); 5] = [
    (1, 1, 1, 0),
    (3, 5, 7, 0),
    (17, 64, 72, 8),
    (33, 127, 130, 3),
    (64, 4096, 4096, 0),
];

pub fn run(bench: &mut Bench) {
    for (rows, cols, stride, offset) in SHAPES {
        for (from, to) in [(false, false), (false, true), (true, false), (true, true)] {
            let name = format!("[{rows},{cols}]/{stride}+{offset} f32:{from}->{to}");
            case!(bench, name, |lab| pairs(
                &mut lab,
                (rows, cols, stride, offset),
                from,
                to
            ));
        }
    }
    case!(bench, "bytes".to_owned(), |lab| bytes(&mut lab));
    case!(bench, "17 MiB".to_owned(), |lab| large(&mut lab));
    case!(bench, "recorded".to_owned(), |lab| recorded(&mut lab));
}

fn dtype<D: Device>(f32: bool) -> DType {
    if f32 { DType::F32 } else { D::ACTIVATION }
}

fn pairs<D: Device>(
    lab: &mut Lab<'_, D>,
    (rows, cols, stride, offset): (usize, usize, usize, usize),
    from_f32: bool,
    to_f32: bool,
) -> Result<()> {
    let device = lab.device;
    let values = noise(1, rows * cols);
    let shape = (rows, cols);
    let from = lab.matrix_of(&values, shape, stride, offset, dtype::<D>(from_f32))?;
    let make = |seed| {
        lab.matrix_of(
            &noise(seed, rows * cols),
            shape,
            stride,
            offset,
            dtype::<D>(to_f32),
        )
    };
    let to = [make(2)?, make(3)?, make(4)?, make(5)?];
    device.copy(&from, &to[0])?;
    device.add_scaled(&from, 0.75, &to[1])?;
    let picks = numbers(6, rows, rows as u32);
    device.gather_rows(&from, &lab.integers(&picks)?, &to[2])?;
    // A permutation: rows in reverse.
    let reverse: Vec<u32> = (0..rows as u32).rev().collect();
    device.scatter_add_rows(&from, &lab.integers(&reverse)?, &to[3])?;
    lab.keep("copy", &to[0], 0.0)?;
    lab.keep("add_scaled", &to[1], 3e-3)?;
    lab.keep("gather_rows", &to[2], 0.0)?;
    lab.keep("scatter_add_rows", &to[3], 3e-3)
}

fn bytes<D: Device>(lab: &mut Lab<'_, D>) -> Result<()> {
    let tensor = lab.device.zeros(DType::U8, 1001)?;
    lab.keep_tensor("zeros", &tensor, 0.0)?;
    let bytes: Vec<u8> = (0..1001).map(|i| (i * 7 % 251) as u8).collect();
    lab.device.upload_bytes(&bytes, &tensor)?;
    lab.keep_tensor("bytes", &tensor, 0.0)?;
    lab.device.fill_zero(&tensor.slice(10..20))?;
    lab.keep_tensor("fill_zero", &tensor, 0.0)
}

/// More than all staging segments hold.
fn large<D: Device>(lab: &mut Lab<'_, D>) -> Result<()> {
    let values = numbers(3, 17 << 18, u32::MAX >> 8);
    let tensor = lab.integers(&values)?;
    for i in 0..200u32 {
        lab.device
            .upload_u32(&[i], &tensor.slice(i as usize..i as usize + 1))?;
    }
    lab.keep_tensor("upload", &tensor, 0.0)
}

fn recorded<D: Device>(lab: &mut Lab<'_, D>) -> Result<()> {
    let device = lab.device;
    let x = lab.dense(1, 33, 96, D::ACTIVATION)?;
    let w = device.matrix_over(lab.dense(2, 64, 96, D::ACTIVATION)?.tensor(), 64, 96)?;
    let out = lab.dense(3, 33, 64, DType::F32)?;
    let squares = lab.floats(&[0.0])?;
    for turn in 0..5 {
        device.upload_f32(&noise(10 + turn, 33 * 96), x.tensor())?;
        device.replay(42, &mut || {
            device.linear(&x, &w, None, &out, true)?;
            device.sum_squares(out.tensor(), &squares)
        })?;
    }
    lab.keep("sum of products", &out, 1e-4)?;
    lab.keep_tensor("sum of squares", &squares, 1e-4)
}
