//! Products with matrices of weights, and of activations with each other.

use super::{
    Cpu,
    copy::add_scaled_row,
    int8,
    matrix::{CpuMatrix, Part, Weights},
    product::{Right, product, transposed},
    storage::{CpuStorage, Rows, apart, equal, is_shape, shape},
};
use crate::{
    device::Result,
    tensor::{Tensor, View},
};

/// Rows of weights that are dequantised together on the way back.
const GROUP_ROWS: usize = 1024;

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
        let any_packed = |part: &Part| matches!(part.weights, Weights::Packed(_));
        let activations = self
            .activations()
            .filter(|_| w.parts().iter().any(any_packed))
            .map(|mut activations| {
                activations.round(self.pool(), x);
                activations
            });
        for part in w.parts() {
            let out = out.columns(part.start, part.rows);
            let right = match (&part.weights, &activations) {
                (Weights::Packed(packed), Some(activations)) => {
                    // SAFETY: shapes and disjointness are checked above, and the device hands
                    // activations out only where they are supported.
                    unsafe {
                        int8::product(self.pool(), activations, x, packed, out, accumulate);
                    }
                    continue;
                }
                (Weights::Dense(tensor), _) => {
                    Right::Transposed(Rows::of(operation, &tensor.view(part.cols))?)
                }
                (Weights::Packed(packed), None) => Right::Packed(packed),
                _ => Right::Weights(part),
            };
            // SAFETY: shapes and disjointness are checked above.
            unsafe { product(self.pool(), x, right, 1.0, out, accumulate) };
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
        let mut scratch = self.scratch();
        for part in w.parts() {
            if let Weights::Dense(tensor) = &part.weights {
                let weights = Rows::of(operation, &tensor.view(part.cols))?;
                let d_out = d_out.columns(part.start, part.rows);
                // SAFETY: shapes and disjointness are checked above.
                unsafe { product(self.pool(), d_out, Right::Plain(weights), 1.0, d_x, true) };
                continue;
            }
            for start in (0..part.rows).step_by(GROUP_ROWS) {
                let n_rows = GROUP_ROWS.min(part.rows - start);
                if scratch.len() < n_rows * part.cols {
                    scratch.resize(n_rows * part.cols, 0.0);
                }
                let weights = Rows::over(&mut scratch[..n_rows * part.cols], part.cols);
                self.rows((n_rows, part.cols * 2), |i| {
                    // SAFETY: each task has its own row.
                    let out = unsafe { weights.row_mut(i) };
                    part.decode(start + i..start + i + 1, out);
                });
                let d_out = d_out.columns(part.start + start, n_rows);
                // SAFETY: shapes and disjointness are checked above.
                unsafe { product(self.pool(), d_out, Right::Plain(weights), 1.0, d_x, true) };
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
        let mut scratch = self.scratch();
        let left = if a_transposed {
            // SAFETY: nothing writes to the operand now; the scratch is held to the end.
            unsafe { transposed(self.pool(), a, &mut scratch) }
        } else {
            a
        };
        let right = if b_transposed {
            Right::Transposed(b)
        } else {
            Right::Plain(b)
        };
        // SAFETY: shapes and disjointness are checked above.
        unsafe { product(self.pool(), left, right, scale, out, accumulate) };
        Ok(())
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
                    assert_eq!(a, b, "{format:?}");
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
