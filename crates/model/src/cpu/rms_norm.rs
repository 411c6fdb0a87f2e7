//! Root-mean-square norm (Zhang and Sennrich, arXiv 1910.07467), alone and fused with the
//! residual sum before it.

use super::{
    Cpu,
    simd::{Arithmetic, dispatched, dot},
    storage::{CpuStorage, Rows, apart, apart_or_same, equal, is_shape, shape},
};
use crate::{
    device::Result,
    tensor::{Tensor, View},
};

impl Cpu {
    pub(super) fn rms_norm_forward(
        &self,
        x: &View<CpuStorage>,
        weight: &Tensor<CpuStorage>,
        epsilon: f32,
        out: &View<CpuStorage>,
    ) -> Result<()> {
        let operation = "rms_norm";
        let (x, out) = (Rows::of(operation, x)?, Rows::of(operation, out)?);
        let weight = norm_weight(operation, weight, x.cols)?;
        is_shape(operation, "output", out, x.rows, x.cols)?;
        apart_or_same(operation, "input and output", out, x)?;
        apart(operation, "weight and output", out, weight)?;
        let in_place = out.same(x);
        self.rows((x.rows, x.cols), |i| {
            // SAFETY: `x` is `out`, which is then read by its one mutable slice, or disjoint from
            // it; each task has its own row.
            unsafe {
                let out = out.row_mut(i);
                if !in_place {
                    out.copy_from_slice(x.row(i));
                }
                normalise(out, weight.row(0), epsilon);
            }
        });
        Ok(())
    }

    pub(super) fn add_rms_norm_forward(
        &self,
        delta: &View<CpuStorage>,
        sum: &View<CpuStorage>,
        weight: &Tensor<CpuStorage>,
        epsilon: f32,
        out: &View<CpuStorage>,
    ) -> Result<()> {
        let operation = "add_rms_norm";
        let delta = Rows::of(operation, delta)?;
        let (sum, out) = (Rows::of(operation, sum)?, Rows::of(operation, out)?);
        let weight = norm_weight(operation, weight, sum.cols)?;
        is_shape(operation, "delta", delta, sum.rows, sum.cols)?;
        is_shape(operation, "output", out, sum.rows, sum.cols)?;
        apart(operation, "delta and sum", sum, delta)?;
        apart(operation, "sum and output", out, sum)?;
        apart_or_same(operation, "delta and output", out, delta)?;
        apart(operation, "weight and output", out, weight)?;
        self.rows((sum.rows, sum.cols), |i| {
            // SAFETY: `sum` is disjoint from all else; `delta` is read before `out`, which may be
            // the same, is written; each task has its own rows.
            unsafe {
                let sum = sum.row_mut(i);
                super::copy::add_scaled_row(delta.row(i), 1.0, sum);
                let out = out.row_mut(i);
                out.copy_from_slice(sum);
                normalise(out, weight.row(0), epsilon);
            }
        });
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn rms_norm_backward_into(
        &self,
        x: &View<CpuStorage>,
        weight: &Tensor<CpuStorage>,
        epsilon: f32,
        d_out: &View<CpuStorage>,
        d_x: &View<CpuStorage>,
        accumulate: bool,
        d_weight: Option<&Tensor<CpuStorage>>,
    ) -> Result<()> {
        let operation = "rms_norm_backward";
        let (x, d_out) = (Rows::of(operation, x)?, Rows::of(operation, d_out)?);
        let d_x = Rows::of(operation, d_x)?;
        let weight = norm_weight(operation, weight, x.cols)?;
        is_shape(operation, "d_out", d_out, x.rows, x.cols)?;
        is_shape(operation, "d_x", d_x, x.rows, x.cols)?;
        apart(operation, "x and d_x", d_x, x)?;
        apart(operation, "weight and d_x", d_x, weight)?;
        if accumulate {
            apart(operation, "d_out and d_x", d_x, d_out)?;
        } else {
            apart_or_same(operation, "d_out and d_x", d_x, d_out)?;
        }
        if let Some(d_weight) = d_weight {
            let d_weight = Rows::<f32>::of_tensor(operation, d_weight)?;
            equal(
                operation,
                "gradients of weights",
                d_weight.cols,
                weight.cols,
            )?;
            for input in [x, d_out, d_x, weight] {
                apart(operation, "d_weight and an operand", d_weight, input)?;
            }
            // SAFETY: disjoint from the operands; one thread writes, in the order of rows.
            unsafe {
                let d_weight = d_weight.row_mut(0);
                for i in 0..x.rows {
                    let (x, d_out) = (x.row(i), d_out.row(i));
                    for (x, d_out) in pairs(x, d_out, weight.cols) {
                        add_weight_gradient(x, d_out, epsilon, d_weight);
                    }
                }
            }
        }
        let in_place = d_x.same(d_out);
        self.rows((x.rows, x.cols), |i| {
            // SAFETY: `d_x` is `d_out`, which is then read by its one mutable slice, or disjoint
            // from all else; each task has its own row.
            unsafe {
                let d_x = d_x.row_mut(i);
                if accumulate {
                    add_input_gradient(x.row(i), weight.row(0), epsilon, d_out.row(i), d_x);
                } else {
                    if !in_place {
                        d_x.copy_from_slice(d_out.row(i));
                    }
                    input_gradient(x.row(i), weight.row(0), epsilon, d_x);
                }
            }
        });
        Ok(())
    }
}

/// The weight, whose length divides the columns.
fn norm_weight(
    operation: &'static str,
    weight: &Tensor<CpuStorage>,
    cols: usize,
) -> Result<Rows<f32>> {
    let weight = Rows::of_tensor(operation, weight)?;
    if weight.cols == 0 || !cols.is_multiple_of(weight.cols) {
        return Err(shape(
            operation,
            format!("{} weights for {cols} columns", weight.cols),
        ));
    }
    Ok(weight)
}

fn pairs<'a>(
    a: &'a [f32],
    b: &'a [f32],
    width: usize,
) -> impl Iterator<Item = (&'a [f32], &'a [f32])> {
    a.chunks_exact(width).zip(b.chunks_exact(width))
}

dispatched! {
    /// Every run of `weight.len()` numbers by the root of its mean square, times the weight.
    fn normalise(x: &mut [f32], weight: &[f32], epsilon: f32) = normalise_body;
}

#[inline(always)]
fn normalise_body<A: Arithmetic>(x: &mut [f32], weight: &[f32], epsilon: f32) {
    for run in x.chunks_exact_mut(weight.len()) {
        let scale = inverse_root::<A>(run, epsilon);
        for (x, w) in run.iter_mut().zip(weight) {
            *x = *x * scale * w;
        }
    }
}

#[inline(always)]
fn inverse_root<A: Arithmetic>(x: &[f32], epsilon: f32) -> f32 {
    1.0 / (dot::<A>(x, x) / x.len() as f32 + epsilon).sqrt()
}

/// With `r = 1 / rms` and `g = d_out * weight`: `d_x = r g - x r^3 mean(g x)`, as a factor of `g`
/// and one of `x`.
#[inline(always)]
fn factors<A: Arithmetic>(x: &[f32], weight: &[f32], epsilon: f32, d_out: &[f32]) -> (f32, f32) {
    let r = inverse_root::<A>(x, epsilon);
    let mut lanes = [0.0f32; 16];
    let whole = x.len() / 16 * 16;
    for start in (0..whole).step_by(16) {
        for i in 0..16 {
            let g = d_out[start + i] * weight[start + i];
            lanes[i] = A::mul_add(g, x[start + i], lanes[i]);
        }
    }
    let mut total = super::simd::sum(lanes);
    for i in whole..x.len() {
        total = A::mul_add(d_out[i] * weight[i], x[i], total);
    }
    (r, -r * r * r * total / x.len() as f32)
}

dispatched! {
    /// `g`, the gradient at the output, becomes that at the input.
    fn input_gradient(x: &[f32], weight: &[f32], epsilon: f32, g: &mut [f32]) = input_gradient_body;
}

#[inline(always)]
fn input_gradient_body<A: Arithmetic>(x: &[f32], weight: &[f32], epsilon: f32, g: &mut [f32]) {
    let width = weight.len();
    for (x, g) in x.chunks_exact(width).zip(g.chunks_exact_mut(width)) {
        let (of_g, of_x) = factors::<A>(x, weight, epsilon, g);
        for ((x, w), g) in x.iter().zip(weight).zip(g) {
            *g = A::mul_add(*x, of_x, *g * w * of_g);
        }
    }
}

dispatched! {
    /// `d_x` grows by the gradient at the input.
    fn add_input_gradient(
        x: &[f32], weight: &[f32], epsilon: f32, d_out: &[f32], d_x: &mut [f32],
    ) = add_input_gradient_body;
}

#[inline(always)]
fn add_input_gradient_body<A: Arithmetic>(
    x: &[f32],
    weight: &[f32],
    epsilon: f32,
    d_out: &[f32],
    d_x: &mut [f32],
) {
    let width = weight.len();
    for ((x, g), d_x) in pairs(x, d_out, width).zip(d_x.chunks_exact_mut(width)) {
        let (of_g, of_x) = factors::<A>(x, weight, epsilon, g);
        for (((x, w), g), d_x) in x.iter().zip(weight).zip(g).zip(d_x) {
            *d_x += A::mul_add(*x, of_x, *g * w * of_g);
        }
    }
}

dispatched! {
    /// `d_weight` grows by `d_out * x / rms(x)`.
    fn add_weight_gradient(
        x: &[f32], d_out: &[f32], epsilon: f32, d_weight: &mut [f32],
    ) = add_weight_gradient_body;
}

#[inline(always)]
fn add_weight_gradient_body<A: Arithmetic>(
    x: &[f32],
    d_out: &[f32],
    epsilon: f32,
    d_weight: &mut [f32],
) {
    let r = inverse_root::<A>(x, epsilon);
    for ((x, g), d) in x.iter().zip(d_out).zip(d_weight) {
        *d = A::mul_add(*x * r, *g, *d);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_gradient, cpu, inner, random, tensor, values};
    use crate::device::Device;

    #[test]
    fn gradients_are_those_of_differences() {
        let cpu = cpu();
        let (x, weight, d_out) = (random(1, 3 * 40), random(2, 20), random(3, 3 * 40));
        let forward = |x: &[f32], weight: &[f32]| {
            let (x, weight) = (tensor(&cpu, x), tensor(&cpu, weight));
            let out = tensor(&cpu, &[0.0; 120]);
            cpu.rms_norm(&x.view(40), &weight, 1e-2, &out.view(40))
                .unwrap();
            inner(&values(&cpu, &out), &d_out)
        };
        let (d_x, d_weight) = (tensor(&cpu, &[1.0; 120]), tensor(&cpu, &[0.0; 20]));
        cpu.rms_norm_backward(
            &tensor(&cpu, &x).view(40),
            &tensor(&cpu, &weight),
            1e-2,
            &tensor(&cpu, &d_out).view(40),
            &d_x.view(40),
            false,
            Some(&d_weight),
        )
        .unwrap();
        check_gradient(&x, &values(&cpu, &d_x), |x| forward(x, &weight));
        check_gradient(&weight, &values(&cpu, &d_weight), |weight| {
            forward(&x, weight)
        });
    }
}
