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

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use temper_checkpoint::tensor::{Encoding, TensorView};

    use super::super::tests::{check_gradient, cpu, inner, random, tensor, values};
    use crate::device::{Device, WeightFormat};

    fn view(name: &str, values: &[f32], cols: usize) -> TensorView<'static> {
        TensorView {
            name: name.into(),
            shape: vec![values.len() / cols, cols],
            encoding: Encoding::F32,
            bytes: Cow::Owned(values.iter().flat_map(|x| x.to_le_bytes()).collect()),
        }
    }

    const FORMATS: [WeightFormat; 5] = [
        WeightFormat::Dense,
        WeightFormat::AsStored,
        WeightFormat::Int8,
        WeightFormat::Nf4 {
            double_quantised: false,
        },
        WeightFormat::Nf4 {
            double_quantised: true,
        },
    ];

    /// `a[m, k]` times `b[n, k]` transposed, in f64.
    fn reference(a: &[f32], b: &[f32], k: usize) -> Vec<f64> {
        a.chunks(k)
            .flat_map(|a| b.chunks(k).map(|b| inner(a, b)).collect::<Vec<_>>())
            .collect()
    }

    fn assert_close(got: &[f32], expected: &[f64]) {
        assert_eq!(got.len(), expected.len());
        for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
            let error = (f64::from(*got) - expected).abs();
            assert!(error < 1e-4, "[{i}]: {got}, not {expected}");
        }
    }

    #[test]
    fn products_match_the_dequantised_weights_in_every_format() {
        let cpu = cpu();
        for (n, cols, rows) in [(1, 96, [70, 1]), (5, 64, [130, 33]), (40, 160, [16, 200])] {
            let x = random(1, n * cols);
            let [first, second] = rows.map(|rows| random(rows as u64, rows * cols));
            let n_out = rows[0] + rows[1];
            let bias = random(9, n_out);
            let parts = [view("first", &first, cols), view("second", &second, cols)];
            for format in FORMATS {
                let matrix = cpu.matrix(&parts, format).unwrap();
                assert_eq!(cpu.matrix_shape(&matrix), (n_out, cols));
                let decoded = cpu.matrix_rows(&matrix, 0..n_out).unwrap();
                let original: Vec<f32> = [&first[..], &second].concat();
                let apart = decoded
                    .iter()
                    .zip(&original)
                    .fold(0.0f32, |max, (a, b)| max.max((a - b).abs()));
                let bound = match format {
                    WeightFormat::Dense | WeightFormat::AsStored => 0.0,
                    WeightFormat::Int8 => 0.005,
                    WeightFormat::Nf4 { .. } => 0.17,
                };
                assert!(apart <= bound, "{format:?}: {apart}");

                let mut expected = reference(&x, &decoded, cols);
                let out = tensor(&cpu, &vec![1.0; n * n_out]).view(n_out);
                let x_view = tensor(&cpu, &x).view(cols);
                cpu.linear(&x_view, &matrix, None, &out, false).unwrap();
                assert_close(&values(&cpu, out.tensor()), &expected);
                cpu.linear(&x_view, &matrix, Some(&tensor(&cpu, &bias)), &out, true)
                    .unwrap();
                for (i, expected) in expected.iter_mut().enumerate() {
                    *expected = 2.0 * *expected + f64::from(bias[i % n_out]);
                }
                assert_close(&values(&cpu, out.tensor()), &expected);
            }
        }
    }

    #[test]
    fn the_input_gradient_is_that_of_differences() {
        let cpu = cpu();
        let (x, d_out) = (random(1, 3 * 64), random(2, 3 * 50));
        let parts = [view("w", &random(3, 50 * 64), 64)];
        for format in FORMATS {
            let matrix = cpu.matrix(&parts, format).unwrap();
            let d_x = tensor(&cpu, &vec![0.5; 3 * 64]).view(64);
            let d_out_view = tensor(&cpu, &d_out).view(50);
            cpu.linear_backward_input(&d_out_view, &matrix, &d_x, false)
                .unwrap();
            let gradient = values(&cpu, d_x.tensor());
            check_gradient(&x, &gradient, |x| {
                let out = tensor(&cpu, &[0.0; 150]).view(50);
                cpu.linear(&tensor(&cpu, x).view(64), &matrix, None, &out, false)
                    .unwrap();
                inner(&values(&cpu, out.tensor()), &d_out)
            });
            cpu.linear_backward_input(&d_out_view, &matrix, &d_x, true)
                .unwrap();
            for (twice, once) in values(&cpu, d_x.tensor()).into_iter().zip(gradient) {
                assert!((twice - 2.0 * once).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_neighbours() {
        let cpu = cpu();
        let (n, cols, n_out) = (37, 320, 200);
        let x = tensor(&cpu, &random(1, n * cols)).view(cols);
        let parts = [view("w", &random(2, n_out * cols), cols)];
        for format in FORMATS {
            let matrix = cpu.matrix(&parts, format).unwrap();
            let together = tensor(&cpu, &vec![0.0; n * n_out]).view(n_out);
            cpu.linear(&x, &matrix, None, &together, false).unwrap();
            let together = values(&cpu, together.tensor());
            for i in [0, 17, 36] {
                let alone = tensor(&cpu, &vec![0.0; n_out]).view(n_out);
                cpu.linear(&x.row_range(i..i + 1), &matrix, None, &alone, false)
                    .unwrap();
                let alone = values(&cpu, alone.tensor());
                for (a, b) in alone.iter().zip(&together[i * n_out..]) {
                    assert!(
                        (a - b).abs() <= 1e-5 * a.abs().max(1.0),
                        "{format:?}: {a} {b}"
                    );
                }
            }
        }
    }

    #[test]
    fn products_of_activations_transpose_scale_and_add() {
        let cpu = cpu();
        for (m, n, k) in [
            (3, 5, 7),
            (1, 80, 64),
            (90, 2, 33),
            (130, 70, 20),
            (4, 4, 0),
        ] {
            let (a, b) = (random(1, m * k), random(2, n * k));
            let turn = |x: &[f32], rows: usize, cols: usize| -> Vec<f32> {
                (0..cols)
                    .flat_map(|c| (0..rows).map(move |r| (r, c)))
                    .map(|(r, c)| x[r * cols + c])
                    .collect()
            };
            let product = reference_or_zeros(&a, &b, (m, n, k));
            for (a_turned, b_turned) in [(false, false), (false, true), (true, false), (true, true)]
            {
                let a = if a_turned {
                    tensor(&cpu, &turn(&a, m, k))
                } else {
                    tensor(&cpu, &a)
                };
                let a = if a_turned {
                    a.view(m)
                } else {
                    crate::View::new(a, m, k, k)
                };
                let b = if b_turned {
                    tensor(&cpu, &b)
                } else {
                    tensor(&cpu, &turn(&b, n, k))
                };
                let b = if b_turned {
                    crate::View::new(b, n, k, k)
                } else {
                    b.view(n)
                };
                let out = tensor(&cpu, &vec![1.0; m * n]).view(n);
                cpu.matmul((&a, a_turned), (&b, b_turned), 2.0, &out, true)
                    .unwrap();
                let expected: Vec<f64> = product.iter().map(|x| 1.0 + 2.0 * x).collect();
                assert_close(&values(&cpu, out.tensor()), &expected);
                cpu.matmul((&a, a_turned), (&b, b_turned), 1.0, &out, false)
                    .unwrap();
                assert_close(&values(&cpu, out.tensor()), &product);
            }
        }
    }

    fn reference_or_zeros(a: &[f32], b: &[f32], (m, n, k): (usize, usize, usize)) -> Vec<f64> {
        if k == 0 {
            return vec![0.0; m * n];
        }
        reference(a, b, k)
    }

    #[test]
    fn shapes_that_do_not_fit_are_errors() {
        let cpu = cpu();
        let x = tensor(&cpu, &[0.0; 128]);
        let matrix = cpu
            .matrix(&[view("w", &[0.0; 640], 64)], WeightFormat::Dense)
            .unwrap();
        let out = tensor(&cpu, &[0.0; 20]).view(10);
        let linear =
            |x: &crate::View<_>, out: &crate::View<_>| cpu.linear(x, &matrix, None, out, false);
        linear(&x.view(64), &out).unwrap();
        assert!(linear(&x.view(32), &out).is_err());
        assert!(linear(&x.view(64).row_range(0..1), &out).is_err());
        assert!(linear(&x.view(64), &x.slice(0..20).view(10)).is_err());
        let bias = tensor(&cpu, &[0.0; 11]);
        assert!(
            cpu.linear(&x.view(64), &matrix, Some(&bias), &out, false)
                .is_err()
        );
        let parts = [view("a", &[0.0; 64], 64), view("b", &[0.0; 64], 32)];
        assert!(cpu.matrix(&parts, WeightFormat::Dense).is_err());
        let mut short = view("c", &[0.0; 64], 64);
        short.bytes.to_mut().pop();
        for format in FORMATS {
            assert!(cpu.matrix(std::slice::from_ref(&short), format).is_err());
        }
    }
}
