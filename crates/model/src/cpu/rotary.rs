//! Rotary position embedding (Su et al., arXiv 2104.09864), pairs half a head apart.

use super::{
    Cpu,
    copy::indices,
    simd::{Arithmetic, dispatched},
    storage::{CpuStorage, Rows, apart, shape},
};
use crate::{
    device::Result,
    tensor::{Tensor, View},
};

impl Cpu {
    pub(super) fn rotate(
        &self,
        x: &View<CpuStorage>,
        head_dim: usize,
        positions: &Tensor<CpuStorage>,
        table: &Tensor<CpuStorage>,
        inverse: bool,
    ) -> Result<()> {
        let operation = "rotary";
        let x = Rows::<f32>::of(operation, x)?;
        if head_dim == 0 || !head_dim.is_multiple_of(2) || !x.cols.is_multiple_of(head_dim) {
            return Err(shape(
                operation,
                format!("heads of {head_dim} in {} columns", x.cols),
            ));
        }
        let table = Rows::<f32>::of_tensor(operation, table)?;
        let positions = indices(operation, positions, x.rows, table.cols / head_dim)?;
        apart(operation, "input and table", x, table)?;
        // SAFETY: nothing writes to the table.
        let table = unsafe { table.row(0) };
        self.rows((x.rows, x.cols), |i| {
            let position = positions[i] as usize;
            let angles = &table[position * head_dim..(position + 1) * head_dim];
            // SAFETY: each task has its own row.
            rotate_row(unsafe { x.row_mut(i) }, angles, inverse);
        });
        Ok(())
    }
}

dispatched! {
    fn rotate_row(x: &mut [f32], angles: &[f32], inverse: bool) = rotate_row_body;
}

#[inline(always)]
fn rotate_row_body<A: Arithmetic>(x: &mut [f32], angles: &[f32], inverse: bool) {
    let (cosines, sines) = angles.split_at(angles.len() / 2);
    let sign = if inverse { -1.0 } else { 1.0 };
    for head in x.chunks_exact_mut(angles.len()) {
        let (first, second) = head.split_at_mut(cosines.len());
        for (((a, b), c), s) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
            let s = s * sign;
            (*a, *b) = (A::mul_add(-*b, s, *a * c), A::mul_add(*a, s, *b * c));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_gradient, cpu, inner, numbers, random, tensor, values};
    use crate::device::Device;

    #[test]
    fn the_inverse_is_the_gradient() {
        let cpu = cpu();
        let (x, d_out, table) = (random(1, 3 * 16), random(2, 3 * 16), random(3, 4 * 8));
        let (positions, table) = (numbers(&cpu, &[3, 0, 2]), tensor(&cpu, &table));
        let rotate = |x: &[f32], inverse| {
            let x = tensor(&cpu, x);
            cpu.rotary(&x.view(16), 8, &positions, &table, inverse)
                .unwrap();
            values(&cpu, &x)
        };
        check_gradient(&x, &rotate(&d_out, true), |x| {
            inner(&rotate(x, false), &d_out)
        });
        let beyond = numbers(&cpu, &[3, 4, 2]);
        assert!(
            cpu.rotary(&tensor(&cpu, &x).view(16), 8, &beyond, &table, false)
                .is_err()
        );
    }
}
