//! Root-mean-square norms and sums over rows.

use temper_model::device::Result;
use temper_model::tensor::DType;

use super::{
    T, V, check_activations, check_floats, check_same, check_tensor, letter, shape, vector_width,
};
use crate::cuda::Cuda;
use crate::launch::{Family, words};
use crate::memory::Purpose;

/// Runs of columns that are normed each for itself, and who works on them.
struct Groups {
    runs: usize,
    width: usize,
    n_groups: usize,
    /// The kernel's name after that of the operation.
    suffix: &'static str,
    grid: u32,
    block: (u32, u32, u32),
}

impl Groups {
    /// `persistent`, the number of multiprocessors, asks for a grid that runs at once.
    fn new(
        operation: &'static str,
        views: &[&V],
        weight: &T,
        persistent: Option<u32>,
    ) -> Result<Self> {
        check_activations(operation, views)?;
        check_same(operation, views)?;
        check_floats(operation, &[&weight.view(weight.len())])?;
        let (rows, cols) = (views[0].rows(), views[0].cols());
        let width = weight.len();
        if width == 0 || !cols.is_multiple_of(width) {
            return Err(shape(
                operation,
                format!("{cols} columns in runs of {width}"),
            ));
        }
        let aligned = (weight.storage().pointer() as usize + weight.byte_offset())
            .is_multiple_of(16)
            && width.is_multiple_of(8);
        let vector = if aligned { vector_width(views) } else { 1 };
        let units = width.div_ceil(vector);
        let n_groups = rows * (cols / width);
        // A team within a warp, with a chunk or four a thread; a whole block; or two passes.
        let (suffix, team) = match (vector, units) {
            (8, 1..=32) => ("8_1", units.next_power_of_two()),
            (8, 33..=2048) => ("8_4", units.div_ceil(4).next_power_of_two().max(32)),
            (1, 1..=512) => ("1_1", units.next_power_of_two()),
            _ => ("wide", 1024),
        };
        let teams = if team <= 32 { 256 / team } else { 1 };
        let most = persistent.map_or(i32::MAX as usize, |n_multiprocessors| {
            n_multiprocessors as usize * (512 / (team * teams)).max(1)
        });
        let grid = n_groups.div_ceil(teams).clamp(1, most) as u32;
        Ok(Groups {
            runs: cols / width,
            width,
            n_groups,
            suffix,
            grid,
            block: (team as u32, teams as u32, 1),
        })
    }
}

impl Cuda {
    pub(crate) fn op_rms_norm(&self, x: &V, weight: &T, epsilon: f32, out: &V) -> Result<()> {
        const OPERATION: &str = "rms_norm";
        let groups = Groups::new(OPERATION, &[x, out], weight, None)?;
        if groups.n_groups == 0 {
            return Ok(());
        }
        // SAFETY: views lie within their tensors; the shapes are equal; a thread reads its
        // elements before it writes them, so `out` may be `x`.
        unsafe {
            self.launch(
                OPERATION,
                Family::Norm,
                &format!("rms_norm_{}", groups.suffix),
                (groups.grid, 1, 1),
                groups.block,
                words![
                    self.at(x),
                    x.stride(),
                    self.pointer(weight),
                    weight.dtype() == DType::F32,
                    epsilon,
                    self.at(out),
                    out.stride(),
                    groups.runs,
                    groups.width,
                    groups.n_groups
                ],
            )
        }
    }

    pub(crate) fn op_add_rms_norm(
        &self,
        delta: &V,
        sum: &V,
        weight: &T,
        epsilon: f32,
        out: &V,
    ) -> Result<()> {
        const OPERATION: &str = "add_rms_norm";
        let groups = Groups::new(OPERATION, &[delta, sum, out], weight, None)?;
        if groups.n_groups == 0 {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe {
            self.launch(
                OPERATION,
                Family::Norm,
                &format!("add_rms_norm_{}", groups.suffix),
                (groups.grid, 1, 1),
                groups.block,
                words![
                    self.at(delta),
                    delta.stride(),
                    self.at(sum),
                    sum.stride(),
                    self.pointer(weight),
                    weight.dtype() == DType::F32,
                    epsilon,
                    self.at(out),
                    out.stride(),
                    groups.runs,
                    groups.width,
                    groups.n_groups
                ],
            )
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn op_rms_norm_backward(
        &self,
        x: &V,
        weight: &T,
        epsilon: f32,
        d_out: &V,
        d_x: &V,
        accumulate: bool,
        d_weight: Option<&T>,
    ) -> Result<()> {
        const OPERATION: &str = "rms_norm_backward";
        let persistent = d_weight.map(|_| self.n_multiprocessors());
        let groups = Groups::new(OPERATION, &[x, d_out, d_x], weight, persistent)?;
        if groups.n_groups == 0 {
            return Ok(());
        }
        let partial = match d_weight {
            None => 0,
            Some(d_weight) => {
                check_tensor(OPERATION, "d_weight", d_weight, DType::F32, groups.width)?;
                self.scratch(Purpose::Partial, groups.grid as usize * groups.width * 4)?
            }
        };
        let kernel = match (groups.suffix, d_weight) {
            ("wide", _) | (_, None) => format!("rms_norm_backward_{}", groups.suffix),
            (suffix, Some(_)) => format!("rms_norm_backward_partial_{suffix}"),
        };
        // SAFETY: views lie within their tensors; the shapes are equal; a thread reads its
        // elements before it writes them; `partial` has a row for each block.
        unsafe {
            self.launch(
                OPERATION,
                Family::Norm,
                &kernel,
                (groups.grid, 1, 1),
                groups.block,
                words![
                    self.at(x),
                    x.stride(),
                    self.pointer(weight),
                    weight.dtype() == DType::F32,
                    epsilon,
                    self.at(d_out),
                    d_out.stride(),
                    self.at(d_x),
                    d_x.stride(),
                    accumulate,
                    partial,
                    groups.runs,
                    groups.width,
                    groups.n_groups
                ],
            )
        }?;
        match d_weight {
            None => Ok(()),
            Some(d_weight) => self.sum_partials(
                OPERATION,
                partial,
                groups.grid as usize,
                d_weight,
                groups.width,
            ),
        }
    }

    pub(crate) fn op_sum_rows(&self, d_out: &V, d_bias: &T) -> Result<()> {
        const OPERATION: &str = "sum_rows";
        check_floats(OPERATION, &[d_out])?;
        check_same(OPERATION, &[d_out])?;
        check_tensor(OPERATION, "d_bias", d_bias, DType::F32, d_out.cols())?;
        let (rows, cols) = (d_out.rows(), d_out.cols());
        if rows == 0 || cols == 0 {
            return Ok(());
        }
        let width = vector_width(&[d_out]);
        let x = cols.div_ceil(32 * width);
        // Enough blocks to fill the GPU, each with some rows to add.
        let y = (self.n_multiprocessors() as usize * 8)
            .div_ceil(x)
            .clamp(1, rows.div_ceil(8).min(65_535));
        let partial = self.scratch(Purpose::Partial, y * cols * 4)?;
        // SAFETY: the view lies within its tensor; `partial` has a row for each block of y.
        unsafe {
            self.launch(
                OPERATION,
                Family::Norm,
                &format!("sum_rows_{}_{width}", letter(d_out.dtype())),
                (x as u32, y as u32, 1),
                (32, 8, 1),
                words![self.at(d_out), d_out.stride(), partial, rows, cols],
            )
        }?;
        self.sum_partials(OPERATION, partial, y, d_bias, cols)
    }

    /// `out[..cols] += ` the sum of `rows` rows of f32 at `partial`, in order.
    pub(crate) fn sum_partials(
        &self,
        operation: &'static str,
        partial: u64,
        rows: usize,
        out: &T,
        cols: usize,
    ) -> Result<()> {
        // SAFETY: `partial` holds the rows, `out` has the columns, as the callers checked.
        unsafe {
            self.launch(
                operation,
                Family::Norm,
                "sum_partials",
                (cols.div_ceil(32) as u32, 1, 1),
                (32, 32, 1),
                words![partial, self.pointer(out), rows, cols],
            )
        }
    }
}
