//! Log-probabilities of given tokens, and the gradient at the logits.

use super::{
    Cpu,
    copy::indices,
    simd::{Arithmetic, dispatched, exp, max, sum},
    storage::{CpuStorage, Rows, apart, equal, shape},
};
use crate::{
    device::Result,
    tensor::{Tensor, View},
};

impl Cpu {
    pub(super) fn log_softmax_gather_forward(
        &self,
        logits: &View<CpuStorage>,
        targets: &Tensor<CpuStorage>,
        temperature: f32,
        logprob: &Tensor<CpuStorage>,
        lse: &Tensor<CpuStorage>,
        entropy: Option<&Tensor<CpuStorage>>,
    ) -> Result<()> {
        let operation = "log_softmax_gather";
        let logits = Rows::<f32>::of(operation, logits)?;
        check_temperature(operation, temperature)?;
        let targets = indices(operation, targets, logits.rows, logits.cols)?;
        let logprob = column(operation, logprob, logits)?;
        let lse = column(operation, lse, logits)?;
        apart(operation, "logprob and lse", lse, logprob)?;
        let entropy = entropy
            .map(|entropy| column(operation, entropy, logits))
            .transpose()?;
        for other in [lse, logprob] {
            if let Some(entropy) = entropy {
                apart(operation, "entropy and another output", entropy, other)?;
            }
        }
        self.rows((logits.rows, logits.cols * 4), |i| {
            // SAFETY: the outputs are disjoint; each task has its own element of them.
            unsafe {
                let row = logits.row(i);
                let total = log_sum_exp(row, 1.0 / temperature);
                let z = row[targets[i] as usize] / temperature;
                logprob.row_mut(i)[0] = z - total;
                lse.row_mut(i)[0] = total;
                if let Some(entropy) = entropy {
                    entropy.row_mut(i)[0] = surprise(row, 1.0 / temperature, total);
                }
            }
        });
        Ok(())
    }

    pub(super) fn log_softmax_gather_backward_into(
        &self,
        logits: &View<CpuStorage>,
        targets: &Tensor<CpuStorage>,
        temperature: f32,
        lse: &Tensor<CpuStorage>,
        d_logprob: &Tensor<CpuStorage>,
    ) -> Result<()> {
        let operation = "log_softmax_gather_backward";
        let logits = Rows::<f32>::of(operation, logits)?;
        check_temperature(operation, temperature)?;
        let targets = indices(operation, targets, logits.rows, logits.cols)?;
        let lse = column(operation, lse, logits)?;
        let d_logprob = column(operation, d_logprob, logits)?;
        self.rows((logits.rows, logits.cols * 4), |i| {
            // SAFETY: the logits are disjoint from the rest; each task has its own row.
            unsafe {
                let row = logits.row_mut(i);
                let scale = d_logprob.row(i)[0] / temperature;
                gradient(row, 1.0 / temperature, lse.row(i)[0], scale);
                row[targets[i] as usize] += scale;
            }
        });
        Ok(())
    }
}

fn check_temperature(operation: &'static str, temperature: f32) -> Result<()> {
    if temperature.is_finite() && temperature > 0.0 {
        return Ok(());
    }
    Err(shape(operation, format!("temperature {temperature}")))
}

/// `[n]` as `[n, 1]`, disjoint from the logits.
fn column(
    operation: &'static str,
    tensor: &Tensor<CpuStorage>,
    logits: Rows<f32>,
) -> Result<Rows<f32>> {
    equal(
        operation,
        "elements for the rows",
        tensor.len(),
        logits.rows,
    )?;
    let column = Rows::of(operation, &tensor.view(1))?;
    apart(operation, "logits and a vector", column, logits)?;
    Ok(column)
}

dispatched! {
    /// `log(sum(exp(x * scale)))` for a positive scale.
    pub(super) fn log_sum_exp(x: &[f32], scale: f32) -> f32 = log_sum_exp_body;
}

#[inline(always)]
fn log_sum_exp_body<A: Arithmetic>(x: &[f32], scale: f32) -> f32 {
    let highest = max(x) * scale;
    if !highest.is_finite() {
        // All are minus infinity, or one is not a number that can be weighed.
        return if highest == f32::NEG_INFINITY {
            highest
        } else {
            f32::NAN
        };
    }
    let mut lanes = [0.0f32; 16];
    let chunks = x.chunks_exact(16);
    let mut tail = 0.0;
    for x in chunks.remainder() {
        tail += exp::<A>(A::mul_add(*x, scale, -highest));
    }
    // Lanes are emptied into a double now and then, so that a large vocabulary loses nothing.
    let mut total = f64::from(tail);
    for group in x[..x.len() / 16 * 16].chunks(16 * 64) {
        for chunk in group.chunks_exact(16) {
            for i in 0..16 {
                lanes[i] += exp::<A>(A::mul_add(chunk[i], scale, -highest));
            }
        }
        total += f64::from(sum(lanes));
        lanes = [0.0; 16];
    }
    highest + total.ln() as f32
}

dispatched! {
    /// `-sum(p * ln p)` with `ln p = x * scale - lse`.
    fn surprise(x: &[f32], scale: f32, lse: f32) -> f32 = surprise_body;
}

#[inline(always)]
fn surprise_body<A: Arithmetic>(x: &[f32], scale: f32, lse: f32) -> f32 {
    let mut total = 0.0f64;
    for group in x.chunks(16 * 64) {
        let mut lanes = [0.0f32; 16];
        for chunk in group.chunks(16) {
            for (lane, x) in lanes.iter_mut().zip(chunk) {
                let log_p = A::mul_add(*x, scale, -lse);
                let p = exp::<A>(log_p);
                // A masked token has probability 0 and adds nothing, though 0 times its logarithm
                // would be no number.
                *lane -= if p > 0.0 { p * log_p } else { 0.0 };
            }
        }
        total += f64::from(sum(lanes));
    }
    total as f32
}

dispatched! {
    /// Every logit becomes `-d * exp(x * scale - lse)`.
    fn gradient(x: &mut [f32], scale: f32, lse: f32, d: f32) = gradient_body;
}

#[inline(always)]
fn gradient_body<A: Arithmetic>(x: &mut [f32], scale: f32, lse: f32, d: f32) {
    for x in x {
        *x = -d * exp::<A>(A::mul_add(*x, scale, -lse));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_gradient, cpu, inner, numbers, random, tensor, values};
    use crate::device::Device;

    #[test]
    fn the_gradient_is_that_of_differences() {
        let cpu = cpu();
        let (logits, d) = (random(1, 3 * 37), random(2, 3));
        let targets = numbers(&cpu, &[36, 0, 17]);
        let (logprob, lse) = (tensor(&cpu, &[0.0; 3]), tensor(&cpu, &[0.0; 3]));
        let forward = |logits: &[f32]| {
            cpu.log_softmax_gather(
                &tensor(&cpu, logits).view(37),
                &targets,
                0.5,
                &logprob,
                &lse,
                None,
            )
            .unwrap();
            inner(&values(&cpu, &logprob), &d)
        };
        let d_logits = tensor(&cpu, &logits);
        forward(&logits);
        cpu.log_softmax_gather_backward(&d_logits.view(37), &targets, 0.5, &lse, &tensor(&cpu, &d))
            .unwrap();
        check_gradient(&logits, &values(&cpu, &d_logits), forward);
    }

    #[test]
    fn masked_logits_have_no_probability_and_uniform_ones_full_entropy() {
        let cpu = cpu();
        let mut logits = vec![3.0; 2 * 40];
        logits[1..21].fill(f32::NEG_INFINITY);
        let (logprob, lse) = (tensor(&cpu, &[0.0; 2]), tensor(&cpu, &[0.0; 2]));
        let entropy = tensor(&cpu, &[0.0; 2]);
        cpu.log_softmax_gather(
            &tensor(&cpu, &logits).view(40),
            &numbers(&cpu, &[1, 5]),
            1.0,
            &logprob,
            &lse,
            Some(&entropy),
        )
        .unwrap();
        assert_eq!(values(&cpu, &logprob)[0], f32::NEG_INFINITY);
        for (got, n) in values(&cpu, &entropy).into_iter().zip([20.0f32, 40.0]) {
            assert!((got - n.ln()).abs() < 1e-5, "{got} {n}");
        }
    }
}
