//! The optimizer.

use temper_model::device::{AdamW, Device, Moments, Result};
use temper_model::tensor::DType;

use crate::lab::{Lab, noise};
use crate::{Bench, case};

pub fn run(bench: &mut Bench) {
    for n in [1, 7, 256, 1000, 4096, 100_003, 1 << 20] {
        case!(bench, format!("sum_squares {n}"), |lab| sum_squares(
            &mut lab, n
        ));
        for eight_bit in [false, true] {
            for copied in [false, true] {
                case!(
                    bench,
                    format!("adamw {n} 8-bit:{eight_bit} copy:{copied}"),
                    |lab| adamw(&mut lab, n, eight_bit, copied)
                );
            }
        }
    }
}

fn sum_squares<D: Device>(lab: &mut Lab<'_, D>, n: usize) -> Result<()> {
    let sum = lab.floats(&[2.5])?;
    lab.device.sum_squares(&lab.floats(&noise(1, n))?, &sum)?;
    lab.keep_tensor("sum", &sum, 1e-5)
}

fn adamw<D: Device>(lab: &mut Lab<'_, D>, n: usize, eight_bit: bool, copied: bool) -> Result<()> {
    let device = lab.device;
    let n_blocks = n.div_ceil(256);
    let moments = if eight_bit {
        Moments::Int8 {
            first: device.zeros(DType::U8, n)?,
            first_max: device.zeros(DType::F32, n_blocks)?,
            second: device.zeros(DType::U8, n)?,
            second_max: device.zeros(DType::F32, n_blocks)?,
        }
    } else {
        Moments::F32 {
            first: device.zeros(DType::F32, n)?,
            second: device.zeros(DType::F32, n)?,
        }
    };
    let start = noise(1, n);
    let master = lab.floats(&start)?;
    let copy = device.zeros(D::ACTIVATION, n)?;
    for update in 1..=5 {
        let gradient = lab.floats(&noise(10 + update, n))?;
        let settings = AdamW {
            learning_rate: 0.01,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.1,
            update,
            gradient_scale: 0.3,
        };
        device.adamw(
            &settings,
            &gradient,
            &master,
            &moments,
            copied.then_some(&copy),
        )?;
    }
    // What changed, since the weights themselves hide errors of the update.
    let changes: Vec<f32> = device
        .download_f32(&master)?
        .iter()
        .zip(&start)
        .map(|(now, then)| now - then)
        .collect();
    // A code at a border may fall to the other side.
    lab.keep_values("change", changes, if eight_bit { 3e-3 } else { 1e-5 });
    if copied {
        lab.keep_tensor("copy", &copy, 3e-3)?;
    }
    Ok(())
}
