//! Log-probabilities, their gradient, drawing tokens.

use temper_model::device::{Device, Draws, Result};
use temper_model::tensor::DType;

use crate::lab::{Lab, noise, numbers};
use crate::{Bench, case};

pub fn run(bench: &mut Bench) {
    for (rows, cols, stride) in [
        (1, 1, 1),
        (5, 7, 9),
        (33, 1000, 1000),
        (3, 49_152, 49_152),
        (4, 151_936, 151_936),
    ] {
        for f32 in [false, true] {
            for temperature in [1.0, 0.7] {
                let name = format!("[{rows},{cols}]/{stride} f32:{f32} t{temperature}");
                case!(bench, name, |lab| scores(
                    &mut lab,
                    (rows, cols, stride),
                    f32,
                    temperature
                ));
            }
        }
    }
}

fn scores<D: Device>(
    lab: &mut Lab<'_, D>,
    (rows, cols, stride): (usize, usize, usize),
    f32: bool,
    temperature: f32,
) -> Result<()> {
    let device = lab.device;
    let dtype = if f32 { DType::F32 } else { D::ACTIVATION };
    let values: Vec<f32> = noise(1, rows * cols).iter().map(|x| 4.0 * x).collect();
    let logits = lab.matrix_of(&values, (rows, cols), stride, 0, dtype)?;
    let targets = lab.integers(&numbers(2, rows, cols as u32))?;
    let [logprob, lse, entropy] = [3, 4, 5].map(|seed| lab.floats(&noise(seed, rows)));
    let (logprob, lse, entropy) = (logprob?, lse?, entropy?);
    device.log_softmax_gather(
        &logits,
        &targets,
        temperature,
        &logprob,
        &lse,
        Some(&entropy),
    )?;
    lab.keep_tensor("logprob", &logprob, 1e-5)?;
    lab.keep_tensor("lse", &lse, 1e-5)?;
    lab.keep_tensor("entropy", &entropy, 1e-4)?;
    device.log_softmax_gather(&logits, &targets, temperature, &logprob, &lse, None)?;
    lab.keep_tensor("logprob alone", &logprob, 1e-5)?;
    let mut d = noise(6, rows);
    if rows > 2 {
        d[1] = 0.0;
    }
    let d = lab.floats(&d)?;
    let d_logits = lab.matrix_of(&values, (rows, cols), stride, 0, D::ACTIVATION)?;
    device.log_softmax_gather_backward_into(&logits, &targets, temperature, &lse, &d, &d_logits)?;
    lab.keep("gradient", &d_logits, 4e-3)?;
    let logits = lab.matrix_of(&values, (rows, cols), stride, 0, dtype)?;
    device.log_softmax_gather_backward(&logits, &targets, temperature, &lse, &d)?;
    lab.keep("gradient in place", &logits, if f32 { 1e-4 } else { 4e-3 })
}

pub fn run_sample(bench: &mut Bench) {
    for (cols, spread) in [(2, 1.0), (100, 2.0), (5_000, 2.0), (151_936, 3.0)] {
        for f32 in [false, true] {
            let mut drawn = [Vec::new(), Vec::new()];
            case!(bench, format!("{cols} f32:{f32}"), |lab| {
                draw(&mut lab, cols, spread, f32).map(|tokens| {
                    let device = usize::from(drawn[0].is_empty());
                    drawn[1 - device] = tokens;
                })
            });
            // Sums in another order move the borders between tokens a little.
            let n = drawn[0].len().max(1);
            let differing = drawn[0]
                .iter()
                .zip(&drawn[1])
                .filter(|(a, b)| a != b)
                .count();
            let length = if drawn[0].len() == drawn[1].len() {
                0.0
            } else {
                1.0
            };
            bench.verdict(
                &format!("{cols} f32:{f32}"),
                "tokens that differ",
                differing as f64 / n as f64 + length,
                0.02,
            );
        }
    }
}

/// Rows of every kind of setting; the tokens drawn.
fn draw<D: Device>(lab: &mut Lab<'_, D>, cols: usize, spread: f32, f32: bool) -> Result<Vec<u32>> {
    let device = lab.device;
    let settings: Vec<(f32, u32, f32, f32)> = [
        (0.0, 0, 1.0, 0.0),
        (1.0, 0, 1.0, 0.0),
        (0.6, 0, 1.0, 0.0),
        (1.5, 0, 1.0, 0.0),
        (1.0, 1, 1.0, 0.0),
        (1.0, 20, 1.0, 0.0),
        (0.8, 1_000_000, 1.0, 0.0),
        (1.0, 0, 0.9, 0.0),
        (1.0, 0, 0.5, 0.0),
        (1.0, 0, 0.01, 0.0),
        (1.0, 0, 1.0, 0.1),
        (0.7, 0, 1.0, 0.3),
        (0.7, 20, 0.8, 0.05),
    ]
    .into_iter()
    .flat_map(|setting| vec![setting; 4])
    .collect();
    let n = settings.len();
    let block = noise(1, (n * cols).min(1 << 20));
    let values: Vec<f32> = (0..n * cols)
        .map(|i| half::bf16::from_f32(spread * block[(i * 7 + i / 1000) % block.len()]).to_f32())
        .collect();
    let dtype = if f32 { DType::F32 } else { D::ACTIVATION };
    let logits = lab.matrix_of(&values, (n, cols), cols, 0, dtype)?;
    let column =
        |pick: fn(&(f32, u32, f32, f32)) -> f32| settings.iter().map(pick).collect::<Vec<_>>();
    let top_k: Vec<u32> = settings.iter().map(|s| s.1).collect();
    let draws = Draws {
        temperature: lab.floats(&column(|s| s.0))?,
        top_k: lab.integers(&top_k)?,
        top_p: lab.floats(&column(|s| s.2))?,
        min_p: lab.floats(&column(|s| s.3))?,
        seed: lab.integers(&numbers(5, 2 * n, u32::MAX))?,
        draw: lab.integers(&(0..n as u32).collect::<Vec<_>>())?,
        token: lab.integers(&vec![0; n])?,
        logprob: lab.floats(&vec![0.0; n])?,
        raw_logprob: lab.floats(&vec![0.0; n])?,
    };
    device.sample(&logits, &draws)?;
    let tokens = device.download_u32(&draws.token)?;
    // What a drawn token's log-probability should be, from the logits.
    let mut faults = 0.0;
    let (got, raw) = (
        device.download_f32(&draws.logprob)?,
        device.download_f32(&draws.raw_logprob)?,
    );
    for (row, &token) in tokens.iter().enumerate() {
        let row_logits = &values[row * cols..(row + 1) * cols];
        for (temperature, got) in [(settings[row].0, got[row]), (0.0, raw[row])] {
            let scale = if temperature > 0.0 {
                1.0 / f64::from(temperature)
            } else {
                1.0
            };
            let max = row_logits
                .iter()
                .fold(f64::MIN, |max, &x| max.max(f64::from(x) * scale));
            let sum: f64 = row_logits
                .iter()
                .map(|&x| (f64::from(x) * scale - max).exp())
                .sum();
            let want = row_logits
                .get(token as usize)
                .map_or(f64::NAN, |&x| f64::from(x) * scale - max - sum.ln());
            if (f64::from(got) - want).abs() > 2e-4 || want.is_nan() {
                faults += 1.0;
            }
        }
    }
    lab.keep_values("wrong log-probabilities", vec![faults], 0.0);
    Ok(tokens)
}
