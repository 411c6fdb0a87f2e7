//! Linear maps and products.
//!
//! A quantised matrix is dequantised into scratch, whole or in parts, and multiplied as bf16: at
//! thousands of rows this costs a few percent of the product.

use std::ops::Range;

use temper_model::device::Result;
use temper_model::tensor::{DType, View};

use super::{T, V, check_activations, check_floats, check_same, letter, shape, vector_width, walk};
use crate::cuda::Cuda;
use crate::gemm::{Operand, Product};
use crate::launch::{Family, words};
use crate::matrix::{Matrix, Weights};
use crate::memory::Purpose;

impl Cuda {
    pub(crate) fn op_linear(
        &self,
        x: &V,
        w: &Matrix,
        bias: Option<&T>,
        out: &V,
        addend: Option<&V>,
    ) -> Result<()> {
        const OPERATION: &str = "linear";
        check_activations(OPERATION, &[x])?;
        check_floats(OPERATION, &[out])?;
        if let Some(addend) = addend {
            check_same(OPERATION, &[addend, out])?;
            if addend.dtype() != out.dtype() {
                return Err(shape(OPERATION, "a residual of another type".to_owned()));
            }
        }
        check_product(
            OPERATION,
            (x.rows(), x.cols()),
            (w.cols, w.rows),
            (out.rows(), out.cols()),
        )?;
        if let Some(bias) = bias
            && bias.len() < w.rows
        {
            return Err(shape(
                OPERATION,
                format!("a bias of {} for {} columns", bias.len(), w.rows),
            ));
        }
        if out.rows() == 0 || out.cols() == 0 {
            return Ok(());
        }
        // The library adds a bias of the output's type that is well aligned.
        let added_there = bias
            .filter(|bias| bias.dtype() == out.dtype() && self.pointer(bias).is_multiple_of(16));
        for rows in chunks(w) {
            let weights = self.dense_rows(w, rows.clone())?;
            let part = |view: &V| self.at(&view.columns(rows.clone()));
            let product = Product {
                m: x.rows(),
                n: rows.len(),
                k: x.cols(),
                a: self.operand(x, false),
                b: Operand {
                    pointer: weights,
                    stride: w.cols,
                    transposed: true,
                },
                input: DType::Bf16,
                out: part(out),
                out_stride: out.stride(),
                output: out.dtype(),
                scale: 1.0,
                addend: addend.map(|addend| (part(addend), addend.stride())),
                bias: added_there
                    .map(|bias| self.pointer(bias) + (rows.start * bias.dtype().size()) as u64),
            };
            // SAFETY: the views lie within their tensors, the shapes fit as checked.
            unsafe { self.multiply(OPERATION, &product) }?;
        }
        match bias {
            Some(bias) if added_there.is_none() => self.add_bias(bias, out),
            _ => Ok(()),
        }
    }

    fn add_bias(&self, bias: &T, out: &V) -> Result<()> {
        const OPERATION: &str = "add a bias";
        let bias = bias.slice(0..out.cols()).view(out.cols());
        check_floats(OPERATION, &[&bias])?;
        let width = vector_width(&[&bias, out]);
        let (grid, block) = walk(out.rows(), out.cols().div_ceil(width));
        let kernel = format!(
            "add_bias_{}{}_{width}",
            letter(bias.dtype()),
            letter(out.dtype())
        );
        // SAFETY: the bias has a number for each column.
        unsafe {
            self.launch(
                OPERATION,
                Family::Elementwise,
                &kernel,
                grid,
                block,
                words![
                    self.at(&bias),
                    self.at(out),
                    out.stride(),
                    out.rows(),
                    out.cols()
                ],
            )
        }
    }

    pub(crate) fn op_linear_backward_input(
        &self,
        d_out: &V,
        w: &Matrix,
        d_x: &V,
        accumulate: bool,
    ) -> Result<()> {
        const OPERATION: &str = "linear_backward_input";
        check_activations(OPERATION, &[d_out])?;
        check_floats(OPERATION, &[d_x])?;
        check_product(
            OPERATION,
            (d_out.rows(), d_out.cols()),
            (w.rows, w.cols),
            (d_x.rows(), d_x.cols()),
        )?;
        if d_x.rows() == 0 || d_x.cols() == 0 {
            return Ok(());
        }
        for rows in chunks(w) {
            let weights = self.dense_rows(w, rows.clone())?;
            let adds = accumulate || rows.start > 0;
            let product = Product {
                m: d_out.rows(),
                n: w.cols,
                k: rows.len(),
                a: self.operand(&d_out.columns(rows.clone()), false),
                b: Operand {
                    pointer: weights,
                    stride: w.cols,
                    transposed: false,
                },
                input: DType::Bf16,
                out: self.at(d_x),
                out_stride: d_x.stride(),
                output: d_x.dtype(),
                scale: 1.0,
                addend: adds.then(|| (self.at(d_x), d_x.stride())),
                bias: None,
            };
            // SAFETY: the views lie within their tensors, the shapes fit as checked.
            unsafe { self.multiply(OPERATION, &product) }?;
        }
        Ok(())
    }

    pub(crate) fn op_matmul(
        &self,
        (a, a_transposed): (&V, bool),
        (b, b_transposed): (&V, bool),
        scale: f32,
        out: &V,
        accumulate: bool,
    ) -> Result<()> {
        const OPERATION: &str = "matmul";
        check_floats(OPERATION, &[a, b, out])?;
        let shape_of = |view: &V, transposed| {
            if transposed {
                (view.cols(), view.rows())
            } else {
                (view.rows(), view.cols())
            }
        };
        let (a_shape, b_shape) = (shape_of(a, a_transposed), shape_of(b, b_transposed));
        check_product(OPERATION, a_shape, b_shape, (out.rows(), out.cols()))?;
        if out.rows() == 0 || out.cols() == 0 {
            return Ok(());
        }
        if a_shape.1 == 0 {
            return if accumulate {
                Ok(())
            } else {
                self.op_add_scaled(out, -1.0, out)
            };
        }
        // Operands of one type: of a mixed pair the f32 one is rounded.
        let (a, b) = match (a.dtype(), b.dtype()) {
            (DType::F32, DType::Bf16) => (&self.rounded(a)?, b),
            (DType::Bf16, DType::F32) => (a, &self.rounded(b)?),
            _ => (a, b),
        };
        let mut product = Product {
            m: a_shape.0,
            n: b_shape.1,
            k: a_shape.1,
            a: self.operand(a, a_transposed),
            b: self.operand(b, b_transposed),
            input: a.dtype(),
            out: self.at(out),
            out_stride: out.stride(),
            output: out.dtype(),
            scale,
            addend: accumulate.then(|| (self.at(out), out.stride())),
            bias: None,
        };
        if a.dtype() == DType::Bf16 || out.dtype() == DType::F32 {
            // SAFETY: the views lie within their tensors, the shapes fit as checked.
            return unsafe { self.multiply(OPERATION, &product) };
        }
        // Products of f32 come out as f32.
        let wide = self.converted(DType::F32, out.rows(), out.cols())?;
        product.out = self.at(&wide);
        product.out_stride = wide.stride();
        product.output = DType::F32;
        product.addend = None;
        // SAFETY: as above.
        unsafe { self.multiply(OPERATION, &product) }?;
        if accumulate {
            self.op_add_scaled(&wide, 1.0, out)
        } else {
            self.op_copy(&wide, out)
        }
    }

    fn operand(&self, view: &V, transposed: bool) -> Operand {
        Operand {
            pointer: self.at(view),
            stride: view.stride(),
            transposed,
        }
    }

    /// A copy in scratch, rounded to bf16.
    fn rounded(&self, view: &V) -> Result<V> {
        let rounded = self.converted(DType::Bf16, view.rows(), view.cols())?;
        self.op_copy(view, &rounded)?;
        Ok(rounded)
    }

    fn converted(&self, dtype: DType, rows: usize, cols: usize) -> Result<V> {
        let tensor = self.scratch_tensor(Purpose::Converted, dtype, rows * cols)?;
        Ok(View::new(tensor, rows, cols, cols))
    }
}

/// The rows of a matrix that are multiplied at once.
fn chunks(w: &Matrix) -> impl Iterator<Item = Range<usize>> + use<> {
    let (rows, at_once) = match w.weights {
        Weights::Dense(_) => (w.rows, w.rows),
        Weights::Quantised(_) => (w.rows, w.rows_at_once()),
    };
    (0..rows)
        .step_by(at_once.max(1))
        .map(move |first| first..rows.min(first + at_once))
}

fn check_product(
    operation: &'static str,
    a: (usize, usize),
    b: (usize, usize),
    out: (usize, usize),
) -> Result<()> {
    if a.1 == b.0 && (a.0, b.1) == out {
        return Ok(());
    }
    Err(shape(operation, format!("{a:?} times {b:?} into {out:?}")))
}
