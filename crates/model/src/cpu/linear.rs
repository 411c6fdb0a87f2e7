//! Products with matrices of weights, and of activations with each other.

use gemm::{Parallelism, gemm};

use super::{
    Cpu,
    copy::add_scaled_row,
    matrix::{CpuMatrix, Weights, dense},
    storage::{CpuStorage, Rows, apart, equal, is_shape, shape},
};
use crate::{
    device::Result,
    tensor::{Tensor, View},
};

/// Rows of weights that one task multiplies with.
const TASK_ROWS: usize = 64;
/// Columns of an output that one task computes.
const TASK_COLS: usize = 64;

/// A matrix with both strides, for the product.
#[derive(Clone, Copy)]
struct Operand {
    pointer: *const f32,
    row_stride: isize,
    col_stride: isize,
}

impl Operand {
    fn of(rows: Rows<f32>, transposed: bool) -> Self {
        let stride = rows.stride as isize;
        Operand {
            pointer: rows.pointer(),
            row_stride: if transposed { 1 } else { stride },
            col_stride: if transposed { stride } else { 1 },
        }
    }

    fn rows_at(self, row: usize) -> Self {
        Operand {
            pointer: self.pointer.wrapping_offset(row as isize * self.row_stride),
            ..self
        }
    }

    fn cols_at(self, col: usize) -> Self {
        Operand {
            pointer: self.pointer.wrapping_offset(col as isize * self.col_stride),
            ..self
        }
    }
}

// SAFETY: a checked range that nobody writes to while a product runs.
unsafe impl Send for Operand {}
// SAFETY: as above.
unsafe impl Sync for Operand {}

/// `out[m, n] = scale * a[m, k] b[k, n]`, plus what it held where `accumulate`.
///
/// # Safety
/// The operands and the output lie in memory, and the output overlaps neither.
unsafe fn product(
    (m, n, k): (usize, usize, usize),
    a: Operand,
    b: Operand,
    scale: f32,
    out: Rows<f32>,
    accumulate: bool,
) {
    // SAFETY: by this function's own contract.
    unsafe {
        gemm(
            m,
            n,
            k,
            out.pointer(),
            1,
            out.stride as isize,
            accumulate,
            a.pointer,
            a.col_stride,
            a.row_stride,
            b.pointer,
            b.col_stride,
            b.row_stride,
            1.0,
            scale,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

impl Cpu {
    pub(super) fn linear_forward(
        &self,
        x: &View<CpuStorage>,
        w: &CpuMatrix,
        bias: Option<&Tensor<CpuStorage>>,
        out: &View<CpuStorage>,
        accumulate: bool,
    ) -> Result<()> {
        let operation = "linear";
        let (x, out) = (Rows::<f32>::of(operation, x)?, Rows::of(operation, out)?);
        is_shape(operation, "x", x, x.rows, w.cols())?;
        is_shape(operation, "output", out, x.rows, w.rows())?;
        apart(operation, "input and output", out, x)?;
        w.apart(operation, out)?;
        let bias = bias
            .map(|bias| -> Result<Rows<f32>> {
                equal(operation, "biases", bias.len(), w.rows())?;
                let bias = Rows::<f32>::of_tensor(operation, bias)?;
                apart(operation, "bias and output", out, bias)?;
                Ok(bias)
            })
            .transpose()?;
        if x.rows == 0 {
            return Ok(());
        }
        for part in w.parts() {
            let n_tasks = part.rows.div_ceil(TASK_ROWS);
            self.pool().run(n_tasks, &|task| {
                let rows = task * TASK_ROWS..((task + 1) * TASK_ROWS).min(part.rows);
                let mut scratch = Vec::new();
                let weights = match &part.weights {
                    Weights::Dense(tensor) => {
                        &dense(tensor)[rows.start * part.cols..rows.end * part.cols]
                    }
                    _ => {
                        scratch.resize(rows.len() * part.cols, 0.0);
                        part.decode(rows.clone(), &mut scratch);
                        &scratch[..]
                    }
                };
                let b = Operand {
                    pointer: weights.as_ptr(),
                    row_stride: 1,
                    col_stride: part.cols as isize,
                };
                let out = out.columns(part.start + rows.start, rows.len());
                // SAFETY: shapes and disjointness are checked above; each task has its own
                // columns of the output.
                unsafe {
                    product(
                        (x.rows, rows.len(), x.cols),
                        Operand::of(x, false),
                        b,
                        1.0,
                        out,
                        accumulate,
                    );
                }
            });
        }
        if let Some(bias) = bias {
            self.rows((out.rows, out.cols), |i| {
                // SAFETY: disjoint by the check above; each task has its own row.
                unsafe { add_scaled_row(bias.row(0), 1.0, out.row_mut(i)) };
            });
        }
        Ok(())
    }

    pub(super) fn linear_input_gradient(
        &self,
        d_out: &View<CpuStorage>,
        w: &CpuMatrix,
        d_x: &View<CpuStorage>,
        accumulate: bool,
    ) -> Result<()> {
        let operation = "linear_backward_input";
        let d_out = Rows::<f32>::of(operation, d_out)?;
        let d_x = Rows::<f32>::of(operation, d_x)?;
        is_shape(operation, "d_out", d_out, d_out.rows, w.rows())?;
        is_shape(operation, "d_x", d_x, d_out.rows, w.cols())?;
        apart(operation, "d_out and d_x", d_x, d_out)?;
        w.apart(operation, d_x)?;
        if !accumulate {
            self.rows((d_x.rows, d_x.cols), |i| {
                // SAFETY: each task has its own row.
                unsafe { d_x.row_mut(i) }.fill(0.0);
            });
        }
        if d_out.rows == 0 {
            return Ok(());
        }
        let mut scratch = Vec::new();
        for part in w.parts() {
            let group = match &part.weights {
                Weights::Dense(_) => part.rows.max(1),
                _ => 4 * TASK_ROWS,
            };
            for start in (0..part.rows).step_by(group) {
                let rows = start..(start + group).min(part.rows);
                let weights = match &part.weights {
                    Weights::Dense(tensor) => dense(tensor),
                    _ => {
                        scratch.resize(rows.len() * part.cols, 0.0);
                        let decoded = Rows::over(&mut scratch, part.cols);
                        self.pool().run(rows.len(), &|i| {
                            // SAFETY: each task has its own row.
                            let out = unsafe { decoded.row_mut(i) };
                            part.decode(start + i..start + i + 1, out);
                        });
                        &scratch[..]
                    }
                };
                let b = Operand {
                    pointer: weights.as_ptr(),
                    row_stride: part.cols as isize,
                    col_stride: 1,
                };
                let a = Operand::of(d_out, false).cols_at(part.start + start);
                self.product_in_tasks((d_x.rows, d_x.cols, rows.len()), a, b, 1.0, d_x, true);
            }
        }
        Ok(())
    }

    pub(super) fn matmul_of_views(
        &self,
        (a, a_transposed): (&View<CpuStorage>, bool),
        (b, b_transposed): (&View<CpuStorage>, bool),
        scale: f32,
        out: &View<CpuStorage>,
        accumulate: bool,
    ) -> Result<()> {
        let operation = "matmul";
        let (a, b) = (
            Rows::<f32>::of(operation, a)?,
            Rows::<f32>::of(operation, b)?,
        );
        let out = Rows::<f32>::of(operation, out)?;
        let turned = |rows: Rows<f32>, transposed| {
            if transposed {
                (rows.cols, rows.rows)
            } else {
                (rows.rows, rows.cols)
            }
        };
        let ((m, k), (k_of_b, n)) = (turned(a, a_transposed), turned(b, b_transposed));
        if k != k_of_b {
            return Err(shape(
                operation,
                format!("[{m}, {k}] times [{k_of_b}, {n}]"),
            ));
        }
        is_shape(operation, "output", out, m, n)?;
        apart(operation, "an operand and output", out, a)?;
        apart(operation, "an operand and output", out, b)?;
        let (a, b) = (Operand::of(a, a_transposed), Operand::of(b, b_transposed));
        self.product_in_tasks((m, n, k), a, b, scale, out, accumulate);
        Ok(())
    }

    /// The product by columns of the output, whose widths do not depend on the number of threads.
    fn product_in_tasks(
        &self,
        (m, n, k): (usize, usize, usize),
        a: Operand,
        b: Operand,
        scale: f32,
        out: Rows<f32>,
        accumulate: bool,
    ) {
        if m == 0 || n == 0 {
            return;
        }
        let by_rows = m > n;
        let width = if by_rows { m } else { n };
        let n_tasks = width.div_ceil(TASK_COLS);
        self.pool().run(n_tasks, &|task| {
            let range = task * TASK_COLS..((task + 1) * TASK_COLS).min(width);
            // SAFETY: shapes and disjointness are the callers' checks; each task has its own part
            // of the output.
            unsafe {
                if by_rows {
                    let out = out.row_range(range.start, range.len());
                    let a = a.rows_at(range.start);
                    product((range.len(), n, k), a, b, scale, out, accumulate);
                } else {
                    let out = out.columns(range.start, range.len());
                    let b = b.cols_at(range.start);
                    product((m, range.len(), k), a, b, scale, out, accumulate);
                }
            }
        });
    }
}
