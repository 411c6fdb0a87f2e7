//! Copies, conversions, gathers and plain sums of matrices.

use half::bf16;

use super::{
    Cpu,
    simd::{Arithmetic, dispatched},
    storage::{CpuStorage, Element, Rows, apart, equal, shape},
};
use crate::{
    device::Result,
    tensor::{DType, Tensor, View},
};

/// Rows of a matrix of either floating-point type.
#[derive(Clone, Copy)]
enum Floats {
    F32(Rows<f32>),
    Bf16(Rows<bf16>),
}

impl Floats {
    fn of(operation: &'static str, view: &View<CpuStorage>) -> Result<Self> {
        match view.dtype() {
            DType::Bf16 => Ok(Floats::Bf16(Rows::of(operation, view)?)),
            _ => Ok(Floats::F32(Rows::of(operation, view)?)),
        }
    }

    fn shape(self) -> (usize, usize) {
        match self {
            Floats::F32(rows) => (rows.rows, rows.cols),
            Floats::Bf16(rows) => (rows.rows, rows.cols),
        }
    }

    fn apart(self, operation: &'static str, other: Floats) -> Result<()> {
        let what = "input and output";
        match (self, other) {
            (Floats::F32(a), Floats::F32(b)) => apart(operation, what, a, b),
            (Floats::F32(a), Floats::Bf16(b)) => apart(operation, what, a, b),
            (Floats::Bf16(a), Floats::F32(b)) => apart(operation, what, a, b),
            (Floats::Bf16(a), Floats::Bf16(b)) => apart(operation, what, a, b),
        }
    }
}

impl Cpu {
    pub(super) fn copy_view(&self, from: &View<CpuStorage>, to: &View<CpuStorage>) -> Result<()> {
        let operation = "copy";
        let (from, to) = (Floats::of(operation, from)?, Floats::of(operation, to)?);
        same_shape(operation, from.shape(), to.shape())?;
        to.apart(operation, from)?;
        self.rows(to.shape(), |i| {
            // SAFETY: disjoint by the check above; each task has its own row of `to`.
            unsafe {
                match (from, to) {
                    (Floats::F32(from), Floats::F32(to)) => {
                        to.row_mut(i).copy_from_slice(from.row(i));
                    }
                    (Floats::Bf16(from), Floats::Bf16(to)) => {
                        to.row_mut(i).copy_from_slice(from.row(i));
                    }
                    (Floats::F32(from), Floats::Bf16(to)) => {
                        convert(from.row(i), to.row_mut(i), bf16::from_f32);
                    }
                    (Floats::Bf16(from), Floats::F32(to)) => {
                        convert(from.row(i), to.row_mut(i), bf16::to_f32);
                    }
                }
            }
        });
        Ok(())
    }

    pub(super) fn add_scaled_view(
        &self,
        from: &View<CpuStorage>,
        scale: f32,
        to: &View<CpuStorage>,
    ) -> Result<()> {
        let operation = "add_scaled";
        let (from, to) = (Floats::of(operation, from)?, Floats::of(operation, to)?);
        same_shape(operation, from.shape(), to.shape())?;
        to.apart(operation, from)?;
        self.rows(to.shape(), |i| {
            // SAFETY: disjoint by the check above; each task has its own row of `to`.
            unsafe {
                match (from, to) {
                    (Floats::F32(from), Floats::F32(to)) => {
                        add_scaled_row(from.row(i), scale, to.row_mut(i));
                    }
                    (Floats::Bf16(from), Floats::F32(to)) => {
                        combine(from.row(i), to.row_mut(i), |a, b| b + scale * a.to_f32());
                    }
                    (Floats::F32(from), Floats::Bf16(to)) => {
                        combine(from.row(i), to.row_mut(i), |a, b| {
                            bf16::from_f32(b.to_f32() + scale * a)
                        });
                    }
                    (Floats::Bf16(from), Floats::Bf16(to)) => {
                        combine(from.row(i), to.row_mut(i), |a, b| {
                            bf16::from_f32(b.to_f32() + scale * a.to_f32())
                        });
                    }
                }
            }
        });
        Ok(())
    }

    pub(super) fn gather(
        &self,
        from: &View<CpuStorage>,
        rows: &Tensor<CpuStorage>,
        to: &View<CpuStorage>,
    ) -> Result<()> {
        let operation = "gather_rows";
        if from.dtype() == DType::Bf16 {
            return self.gather_of::<bf16>(operation, from, rows, to);
        }
        self.gather_of::<f32>(operation, from, rows, to)
    }

    fn gather_of<T: Element>(
        &self,
        operation: &'static str,
        from: &View<CpuStorage>,
        rows: &Tensor<CpuStorage>,
        to: &View<CpuStorage>,
    ) -> Result<()> {
        let (from, to) = (
            Rows::<T>::of(operation, from)?,
            Rows::<T>::of(operation, to)?,
        );
        let rows = indices(operation, rows, to.rows, from.rows)?;
        equal(operation, "columns", to.cols, from.cols)?;
        apart(operation, "input and output", to, from)?;
        self.rows((to.rows, to.cols), |i| {
            // SAFETY: disjoint by the check above; the indices are within `from`.
            unsafe {
                to.row_mut(i).copy_from_slice(from.row(rows[i] as usize));
            }
        });
        Ok(())
    }

    pub(super) fn scatter_add(
        &self,
        from: &View<CpuStorage>,
        rows: &Tensor<CpuStorage>,
        to: &View<CpuStorage>,
    ) -> Result<()> {
        let operation = "scatter_add_rows";
        let (from, to) = (
            Rows::<f32>::of(operation, from)?,
            Rows::<f32>::of(operation, to)?,
        );
        let rows = indices(operation, rows, from.rows, to.rows)?;
        equal(operation, "columns", to.cols, from.cols)?;
        apart(operation, "input and output", to, from)?;
        for (i, &row) in rows.iter().enumerate() {
            // SAFETY: disjoint by the check above; the indices are within `to`.
            unsafe {
                add_scaled_row(from.row(i), 1.0, to.row_mut(row as usize));
            }
        }
        Ok(())
    }

    pub(super) fn sum_rows_into(
        &self,
        d_out: &View<CpuStorage>,
        d_bias: &Tensor<CpuStorage>,
    ) -> Result<()> {
        let operation = "sum_rows";
        let d_out = Rows::<f32>::of(operation, d_out)?;
        let d_bias = Rows::<f32>::of_tensor(operation, d_bias)?;
        equal(operation, "columns", d_bias.cols, d_out.cols)?;
        apart(operation, "input and output", d_bias, d_out)?;
        // SAFETY: disjoint by the check above.
        let sums = unsafe { d_bias.row_mut(0) };
        for i in 0..d_out.rows {
            // SAFETY: nothing writes to `d_out` now.
            add_scaled_row(unsafe { d_out.row(i) }, 1.0, sums);
        }
        Ok(())
    }
}

fn same_shape(operation: &'static str, a: (usize, usize), b: (usize, usize)) -> Result<()> {
    if a == b {
        return Ok(());
    }
    Err(shape(
        operation,
        format!("[{}, {}] and [{}, {}]", a.0, a.1, b.0, b.1),
    ))
}

/// `n` row numbers below `bound`.
///
/// The slice must not outlive the operation.
pub(super) fn indices<'a>(
    operation: &'static str,
    tensor: &'a Tensor<CpuStorage>,
    n: usize,
    bound: usize,
) -> Result<&'a [u32]> {
    let indices = numbers(operation, tensor, n)?;
    match indices.iter().find(|&&i| i as usize >= bound) {
        None => Ok(indices),
        Some(i) => Err(shape(operation, format!("row {i} of {bound}"))),
    }
}

/// The first `n` numbers of a U32 tensor.
///
/// The slice must not outlive the operation.
pub(super) fn numbers<'a>(
    operation: &'static str,
    tensor: &'a Tensor<CpuStorage>,
    n: usize,
) -> Result<&'a [u32]> {
    let row = Rows::<u32>::of_tensor(operation, tensor)?;
    // SAFETY: operations write no U32 tensor that they read.
    let numbers = unsafe { row.row(0) };
    numbers
        .get(..n)
        .ok_or_else(|| shape(operation, format!("{} numbers for {n} rows", numbers.len())))
}

#[inline(always)]
fn convert<T: Copy, U>(from: &[T], to: &mut [U], f: impl Fn(T) -> U) {
    for (a, b) in from.iter().zip(to) {
        *b = f(*a);
    }
}

#[inline(always)]
fn combine<T: Copy, U: Copy>(from: &[T], to: &mut [U], f: impl Fn(T, U) -> U) {
    for (a, b) in from.iter().zip(to) {
        *b = f(*a, *b);
    }
}

dispatched! {
    /// `to += scale * from`.
    pub(super) fn add_scaled_row(from: &[f32], scale: f32, to: &mut [f32]) = add_scaled_body;
}

#[inline(always)]
fn add_scaled_body<A: Arithmetic>(from: &[f32], scale: f32, to: &mut [f32]) {
    super::simd::add_scaled::<A>(from, scale, to);
}

#[cfg(test)]
mod tests {
    use super::super::tests::{cpu, numbers, random, tensor, values};
    use crate::{device::Device, tensor::DType};

    #[test]
    fn copies_convert_to_the_nearest_and_back() {
        let cpu = cpu();
        let x = [1.0, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -3.0e38, 0.1];
        let half = cpu.zeros(DType::Bf16, 5).unwrap();
        cpu.copy(&tensor(&cpu, &x).view(5), &half.view(5)).unwrap();
        // Halfway between 1 and 1.0078125 goes to the even one, and so does halfway above it.
        let expected = [1.0, 1.0, 1.015625, -3.0040553e38, 0.100_097_656];
        assert_eq!(values(&cpu, &half), expected);
        let sum = tensor(&cpu, &[1.0; 5]);
        cpu.add_scaled(&half.view(5), 2.0, &sum.view(5)).unwrap();
        assert_eq!(values(&cpu, &sum)[..3], [3.0, 3.0, 3.03125]);
        cpu.add_scaled(&sum.view(5), -1.0, &half.view(5)).unwrap();
        assert_eq!(values(&cpu, &half)[..2], [-2.0, -2.0]);
        assert!(cpu.copy(&sum.view(5), &sum.view(5)).is_err());
    }

    #[test]
    fn rows_are_gathered_and_added_back() {
        let cpu = cpu();
        let from = random(1, 6 * 10);
        let whole = tensor(&cpu, &from).view(10);
        let rows = numbers(&cpu, &[4, 1, 5]);
        let some = tensor(&cpu, &[0.0; 3 * 4]).view(4);
        cpu.gather_rows(&whole.columns(2..6), &rows, &some).unwrap();
        let got = values(&cpu, some.tensor());
        assert_eq!(got[0..4], from[42..46]);
        assert_eq!(got[4..8], from[12..16]);
        cpu.scatter_add_rows(&some, &rows, &whole.columns(6..10))
            .unwrap();
        let sum = values(&cpu, whole.tensor());
        assert_eq!(sum[46], from[46] + from[42]);
        assert_eq!(sum[36..40], from[36..40]);
        let total = tensor(&cpu, &[1.0; 4]);
        cpu.sum_rows(&some, &total).unwrap();
        assert_eq!(values(&cpu, &total)[1], 1.0 + got[1] + got[5] + got[9]);
        let beyond = numbers(&cpu, &[4, 1, 6]);
        assert!(
            cpu.gather_rows(&whole.columns(2..6), &beyond, &some)
                .is_err()
        );
        assert!(
            cpu.scatter_add_rows(&some, &beyond, &whole.columns(2..6))
                .is_err()
        );
    }
}
