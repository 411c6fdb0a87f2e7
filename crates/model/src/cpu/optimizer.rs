//! AdamW (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2) with f32 or 8-bit moments, and the
//! norm that gradients are clipped by.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    Cpu,
    eight_bit::{Map, nearest, signed_map, unsigned_map},
    simd::{Arithmetic, dispatched, dot},
    storage::{CpuStorage, Rows, apart, equal},
};
use crate::{
    device::{AdamW, Moments, Result},
    tensor::{DType, Tensor},
};

/// Elements of one task.
const TASK: usize = 1 << 16;
/// Elements whose 8-bit codes share a maximum.
const BLOCK: usize = 256;

/// The factors of one update.
#[derive(Clone, Copy, Debug)]
struct Factors {
    gradient: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    /// What decay leaves of a weight.
    keep: f32,
    /// Learning rate over the first bias correction.
    step: f32,
    /// One over the root of the second bias correction.
    root: f32,
}

impl Factors {
    fn of(settings: &AdamW) -> Self {
        let update = settings.update.max(1) as f64;
        let rate = f64::from(settings.learning_rate);
        let correction = |beta: f32| 1.0 - f64::from(beta).powf(update);
        Factors {
            gradient: settings.gradient_scale,
            beta1: settings.beta1,
            beta2: settings.beta2,
            epsilon: settings.epsilon,
            keep: (1.0 - rate * f64::from(settings.weight_decay)) as f32,
            step: (rate / correction(settings.beta1)) as f32,
            root: (1.0 / correction(settings.beta2).sqrt()) as f32,
        }
    }
}

impl Cpu {
    pub(super) fn add_sum_squares(
        &self,
        x: &Tensor<CpuStorage>,
        sum: &Tensor<CpuStorage>,
    ) -> Result<()> {
        let operation = "sum_squares";
        let x = Rows::<f32>::of_tensor(operation, x)?;
        equal(operation, "sums", sum.len(), 1)?;
        let sum = Rows::<f32>::of_tensor(operation, sum)?;
        apart(operation, "input and output", sum, x)?;
        let n_tasks = x.cols.div_ceil(TASK);
        let parts: Vec<AtomicU64> = (0..n_tasks).map(|_| AtomicU64::new(0)).collect();
        self.pool().run(n_tasks, &|task| {
            let range = task * TASK..((task + 1) * TASK).min(x.cols);
            // SAFETY: nothing writes to `x`.
            let part = squares(unsafe { &x.row(0)[range] });
            parts[task].store(part.to_bits(), Ordering::Relaxed);
        });
        let total: f64 = parts
            .iter()
            .map(|part| f64::from_bits(part.load(Ordering::Relaxed)))
            .sum();
        // SAFETY: disjoint by the check above.
        unsafe { sum.row_mut(0)[0] += total as f32 };
        Ok(())
    }

    pub(super) fn adamw_update(
        &self,
        settings: &AdamW,
        gradient: &Tensor<CpuStorage>,
        master: &Tensor<CpuStorage>,
        moments: &Moments<CpuStorage>,
        copy: Option<&Tensor<CpuStorage>>,
    ) -> Result<()> {
        let operation = "adamw";
        let n = master.len();
        let factors = Factors::of(settings);
        let floats = |what, tensor: &Tensor<CpuStorage>, len| {
            equal(operation, what, tensor.len(), len)?;
            Rows::<f32>::of_tensor(operation, tensor)
        };
        let codes = |what, tensor: &Tensor<CpuStorage>| {
            equal(operation, what, tensor.len(), n)?;
            Rows::<u8>::of_tensor(operation, tensor)
        };
        let gradient = floats("gradients", gradient, n)?;
        let master_tensor = master;
        let master = floats("weights", master, n)?;
        apart(operation, "weights and gradients", master, gradient)?;
        let n_tasks = n.div_ceil(TASK);
        let range = |task: usize| task * TASK..((task + 1) * TASK).min(n);
        match moments {
            Moments::F32 { first, second } => {
                let first = floats("first moments", first, n)?;
                let second = floats("second moments", second, n)?;
                apart(operation, "the moments", first, second)?;
                for moment in [first, second] {
                    apart(operation, "moments and gradients", moment, gradient)?;
                    apart(operation, "moments and weights", moment, master)?;
                }
                self.pool().run(n_tasks, &|task| {
                    let range = range(task);
                    // SAFETY: disjoint by the checks above; each task has its own range.
                    unsafe {
                        let part = |rows: Rows<f32>| rows.columns(range.start, range.len());
                        update(
                            part(gradient).row(0),
                            part(master).row_mut(0),
                            part(first).row_mut(0),
                            part(second).row_mut(0),
                            factors,
                        );
                    }
                });
            }
            Moments::Int8 {
                first,
                first_max,
                second,
                second_max,
            } => {
                let n_blocks = n.div_ceil(BLOCK);
                let (first, second) = (
                    codes("first moments", first)?,
                    codes("second moments", second)?,
                );
                let first_max = floats("first maxima", first_max, n_blocks)?;
                let second_max = floats("second maxima", second_max, n_blocks)?;
                apart(operation, "the moments", first, second)?;
                apart(operation, "the maxima", first_max, second_max)?;
                for floats in [gradient, master] {
                    for maxima in [first_max, second_max] {
                        apart(operation, "maxima and another operand", maxima, floats)?;
                    }
                    for codes in [first, second] {
                        apart(operation, "moments and another operand", codes, floats)?;
                    }
                }
                for maxima in [first_max, second_max] {
                    for codes in [first, second] {
                        apart(operation, "moments and maxima", codes, maxima)?;
                    }
                }
                self.pool().run(n_tasks, &|task| {
                    let task_range = range(task);
                    for start in task_range.clone().step_by(BLOCK) {
                        let len = BLOCK.min(task_range.end - start);
                        let block = start / BLOCK;
                        // SAFETY: disjoint by the checks above; each task has its own blocks.
                        unsafe {
                            update_block(
                                gradient.columns(start, len).row(0),
                                master.columns(start, len).row_mut(0),
                                Codes {
                                    map: signed_map(),
                                    codes: first.columns(start, len).row_mut(0),
                                    max: &mut first_max.columns(block, 1).row_mut(0)[0],
                                },
                                Codes {
                                    map: unsigned_map(),
                                    codes: second.columns(start, len).row_mut(0),
                                    max: &mut second_max.columns(block, 1).row_mut(0)[0],
                                },
                                factors,
                            );
                        }
                    }
                });
            }
        }
        match copy {
            Some(copy) if n > 0 => {
                let same = copy.dtype() == DType::F32
                    && Rows::<f32>::of_tensor(operation, copy)?.same(master);
                if same {
                    return Ok(());
                }
                self.copy_view(&master_tensor.view(n), &copy.view(copy.len().max(1)))
            }
            _ => Ok(()),
        }
    }
}

dispatched! {
    fn squares(x: &[f32]) -> f64 = squares_body;
}

/// Runs of 4,096 in f32, their sums in f64.
#[inline(always)]
fn squares_body<A: Arithmetic>(x: &[f32]) -> f64 {
    x.chunks(4_096)
        .map(|run| f64::from(dot::<A>(run, run)))
        .sum()
}

dispatched! {
    fn update(
        gradient: &[f32], master: &mut [f32], first: &mut [f32], second: &mut [f32],
        factors: Factors,
    ) = update_body;
}

#[inline(always)]
fn update_body<A: Arithmetic>(
    gradient: &[f32],
    master: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    factors: Factors,
) {
    let moments = first.iter_mut().zip(second);
    for ((g, w), (m, v)) in gradient.iter().zip(master).zip(moments) {
        let g = g * factors.gradient;
        *m = A::mul_add(g - *m, 1.0 - factors.beta1, *m);
        *v = A::mul_add(g * g, 1.0 - factors.beta2, *v * factors.beta2);
        let root = A::mul_add(v.sqrt(), factors.root, factors.epsilon);
        *w = *w * factors.keep - factors.step * *m / root;
    }
}

/// One block of 8-bit moments.
struct Codes<'a> {
    map: &'static Map,
    codes: &'a mut [u8],
    max: &'a mut f32,
}

impl Codes<'_> {
    fn decode(&self, out: &mut [f32]) {
        for (code, x) in self.codes.iter().zip(out) {
            *x = self.map[usize::from(*code)] * *self.max;
        }
    }

    fn encode(&mut self, values: &[f32]) {
        *self.max = values.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        let inverse = if *self.max > 0.0 {
            1.0 / *self.max
        } else {
            0.0
        };
        for (code, x) in self.codes.iter_mut().zip(values) {
            *code = nearest(self.map, x * inverse);
        }
    }
}

fn update_block(
    gradient: &[f32],
    master: &mut [f32],
    mut first: Codes<'_>,
    mut second: Codes<'_>,
    factors: Factors,
) {
    let (mut m, mut v) = ([0.0; BLOCK], [0.0; BLOCK]);
    let (m, v) = (&mut m[..gradient.len()], &mut v[..gradient.len()]);
    first.decode(m);
    second.decode(v);
    update(gradient, master, m, v, factors);
    first.encode(m);
    second.encode(v);
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{cpu, random, tensor, values},
        *,
    };
    use crate::device::Device;

    fn settings(update: u64) -> AdamW {
        AdamW {
            learning_rate: 1e-3,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.01,
            update,
            gradient_scale: 1.0,
        }
    }

    #[test]
    fn eight_bit_moments_follow_full_ones() {
        let cpu = cpu();
        let n = 700;
        let start = random(1, n);
        let (exact, rounded) = (tensor(&cpu, &start), tensor(&cpu, &start));
        let zeros = |dtype, n| cpu.zeros(dtype, n).unwrap();
        let full = Moments::F32 {
            first: zeros(DType::F32, n),
            second: zeros(DType::F32, n),
        };
        let small = Moments::Int8 {
            first: zeros(DType::U8, n),
            first_max: zeros(DType::F32, 3),
            second: zeros(DType::U8, n),
            second_max: zeros(DType::F32, 3),
        };
        for update in 1..=20 {
            let gradient = tensor(&cpu, &random(2 + update / 10, n));
            cpu.adamw(&settings(update), &gradient, &exact, &full, None)
                .unwrap();
            cpu.adamw(&settings(update), &gradient, &rounded, &small, None)
                .unwrap();
        }
        let (exact, rounded) = (values(&cpu, &exact), values(&cpu, &rounded));
        let moved: f32 = exact.iter().zip(&start).map(|(a, b)| (a - b).abs()).sum();
        let apart: f32 = exact.iter().zip(&rounded).map(|(a, b)| (a - b).abs()).sum();
        assert!(moved > 0.0 && apart < 0.03 * moved, "{apart} of {moved}");
        assert!(apart > 0.0);
    }

    #[test]
    fn the_norm_adds_up_over_tensors() {
        let cpu = cpu();
        let sum = tensor(&cpu, &[0.5]);
        cpu.sum_squares(&tensor(&cpu, &vec![2.0; 200_000]), &sum)
            .unwrap();
        cpu.sum_squares(&tensor(&cpu, &[3.0]), &sum).unwrap();
        assert_eq!(values(&cpu, &sum), [800_009.5]);
    }

    #[test]
    fn operands_that_overlap_or_do_not_fit_are_refused() {
        let cpu = cpu();
        let x = tensor(&cpu, &[0.0; 8]);
        let moments = |first: &Tensor<CpuStorage>| Moments::F32 {
            first: first.clone(),
            second: tensor(&cpu, &[0.0; 8]),
        };
        let gradient = tensor(&cpu, &[0.0; 8]);
        assert!(
            cpu.adamw(&settings(1), &gradient, &x, &moments(&x), None)
                .is_err()
        );
        assert!(
            cpu.adamw(&settings(1), &gradient, &gradient, &moments(&x), None)
                .is_err()
        );
        let short = tensor(&cpu, &[0.0; 7]);
        assert!(
            cpu.adamw(&settings(1), &short, &gradient, &moments(&x), None)
                .is_err()
        );
    }
}
