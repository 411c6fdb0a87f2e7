//! The gated activation of the feed-forward block: `silu(gate) * up` (Shazeer, arXiv 2002.05202).

use super::{
    Cpu,
    simd::{Arithmetic, dispatched, sigmoid},
    storage::{CpuStorage, Rows, apart, apart_or_same, is_shape},
};
use crate::{device::Result, tensor::View};

impl Cpu {
    pub(super) fn swiglu_forward(
        &self,
        gate: &View<CpuStorage>,
        up: &View<CpuStorage>,
        out: &View<CpuStorage>,
    ) -> Result<()> {
        let operation = "swiglu";
        let (gate, up) = (Rows::of(operation, gate)?, Rows::of(operation, up)?);
        let out = Rows::<f32>::of(operation, out)?;
        is_shape(operation, "up", up, gate.rows, gate.cols)?;
        is_shape(operation, "output", out, gate.rows, gate.cols)?;
        apart(operation, "gate and output", out, gate)?;
        apart(operation, "up and output", out, up)?;
        self.rows((gate.rows, gate.cols * 4), |i| {
            // SAFETY: disjoint by the checks above; each task has its own row.
            unsafe { forward(gate.row(i), up.row(i), out.row_mut(i)) };
        });
        Ok(())
    }

    pub(super) fn swiglu_backward_into(
        &self,
        gate: &View<CpuStorage>,
        up: &View<CpuStorage>,
        d_out: &View<CpuStorage>,
        d_gate: &View<CpuStorage>,
        d_up: &View<CpuStorage>,
    ) -> Result<()> {
        let operation = "swiglu_backward";
        let (gate, up) = (Rows::of(operation, gate)?, Rows::of(operation, up)?);
        let d_out = Rows::<f32>::of(operation, d_out)?;
        let (d_gate, d_up) = (Rows::of(operation, d_gate)?, Rows::of(operation, d_up)?);
        for (what, matrix) in [
            ("up", up),
            ("d_out", d_out),
            ("d_gate", d_gate),
            ("d_up", d_up),
        ] {
            is_shape(operation, what, matrix, gate.rows, gate.cols)?;
        }
        apart_or_same(operation, "gate and d_gate", d_gate, gate)?;
        apart_or_same(operation, "up and d_up", d_up, up)?;
        apart(operation, "up and d_gate", d_gate, up)?;
        apart(operation, "gate and d_up", d_up, gate)?;
        apart(operation, "d_gate and d_up", d_gate, d_up)?;
        apart(operation, "d_out and d_gate", d_gate, d_out)?;
        apart(operation, "d_out and d_up", d_up, d_out)?;
        let (gate_in_place, up_in_place) = (d_gate.same(gate), d_up.same(up));
        self.rows((gate.rows, gate.cols * 4), |i| {
            // SAFETY: what is written is disjoint from all else, or the input itself, which is
            // then read by its one mutable slice; each task has its own rows.
            unsafe {
                let (d_gate, d_up) = (d_gate.row_mut(i), d_up.row_mut(i));
                if !gate_in_place {
                    d_gate.copy_from_slice(gate.row(i));
                }
                if !up_in_place {
                    d_up.copy_from_slice(up.row(i));
                }
                backward(d_out.row(i), d_gate, d_up);
            }
        });
        Ok(())
    }
}

dispatched! {
    fn forward(gate: &[f32], up: &[f32], out: &mut [f32]) = forward_body;
}

#[inline(always)]
fn forward_body<A: Arithmetic>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((gate, up), out) in gate.iter().zip(up).zip(out) {
        *out = gate * sigmoid::<A>(*gate) * up;
    }
}

dispatched! {
    /// Gate and up become their gradients.
    fn backward(d_out: &[f32], gate: &mut [f32], up: &mut [f32]) = backward_body;
}

#[inline(always)]
fn backward_body<A: Arithmetic>(d_out: &[f32], gate: &mut [f32], up: &mut [f32]) {
    for ((d, gate), up) in d_out.iter().zip(gate).zip(up) {
        let s = sigmoid::<A>(*gate);
        let silu = *gate * s;
        let d_silu = A::mul_add(silu, 1.0 - s, s);
        *gate = d * *up * d_silu;
        *up = d * silu;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_gradient, cpu, inner, random, tensor, values};
    use crate::device::Device;

    #[test]
    fn gradients_are_those_of_differences() {
        let cpu = cpu();
        let (gate, up, d_out) = (random(1, 60), random(2, 60), random(3, 60));
        let forward = |gate: &[f32], up: &[f32]| {
            let out = tensor(&cpu, &[0.0; 60]);
            cpu.swiglu(
                &tensor(&cpu, gate).view(20),
                &tensor(&cpu, up).view(20),
                &out.view(20),
            )
            .unwrap();
            inner(&values(&cpu, &out), &d_out)
        };
        let (d_gate, d_up) = (tensor(&cpu, &gate), tensor(&cpu, &[0.0; 60]));
        cpu.swiglu_backward(
            &d_gate.view(20),
            &tensor(&cpu, &up).view(20),
            &tensor(&cpu, &d_out).view(20),
            &d_gate.view(20),
            &d_up.view(20),
        )
        .unwrap();
        check_gradient(&gate, &values(&cpu, &d_gate), |gate| forward(gate, &up));
        check_gradient(&up, &values(&cpu, &d_up), |up| forward(&gate, up));
    }

    #[test]
    fn large_gates_do_not_overflow() {
        let cpu = cpu();
        let (gate, up) = (tensor(&cpu, &[-500.0, 500.0]), tensor(&cpu, &[1.0; 2]));
        let out = tensor(&cpu, &[0.0; 2]);
        cpu.swiglu(&gate.view(2), &up.view(2), &out.view(2))
            .unwrap();
        assert_eq!(values(&cpu, &out), [0.0, 500.0]);
    }
}
