//! The embedding and its gradient.

use temper_model::device::Result;
use temper_model::tensor::DType;

use super::{T, V, check_activations, check_size, check_tensor, shape, vector_width, walk};
use crate::cuda::Cuda;
use crate::launch::{Family, words};
use crate::matrix::{Matrix, Weights};

impl Cuda {
    pub(crate) fn op_embed(&self, table: &Matrix, ids: &T, out: &V) -> Result<()> {
        const OPERATION: &str = "embed";
        match &table.weights {
            Weights::Dense(tensor) => self.op_gather_rows(&tensor.view(table.cols), ids, out),
            Weights::Quantised(parts) => {
                check_activations(OPERATION, &[out])?;
                check_size(OPERATION, out.rows(), out.cols())?;
                check_tensor(OPERATION, "ids", ids, DType::U32, out.rows())?;
                if out.rows() == 0 {
                    return Ok(());
                }
                let [part] = parts.as_slice() else {
                    return Err(self.unsupported(OPERATION, "a table of several parts".into()));
                };
                if out.cols() != table.cols || vector_width(&[out]) != 8 {
                    return Err(shape(
                        OPERATION,
                        format!("rows of {} to rows of {}", table.cols, out.cols()),
                    ));
                }
                let (kernel, mut arguments) = self.quantised_arguments(part);
                arguments.extend_from_slice(words![
                    self.pointer(ids),
                    table.rows,
                    self.at(out),
                    out.stride(),
                    out.rows(),
                    out.cols()
                ]);
                let (grid, block) = walk(out.rows(), out.cols() / 8);
                // SAFETY: the view lies within its tensor; the kernel checks the ids.
                unsafe {
                    self.launch(
                        OPERATION,
                        Family::Quantised,
                        &format!("embed_{kernel}"),
                        grid,
                        block,
                        &arguments,
                    )
                }
            }
        }
    }

    pub(crate) fn op_embed_backward(&self, ids: &T, d_out: &V, d_table: &V) -> Result<()> {
        const OPERATION: &str = "embed_backward";
        check_activations(OPERATION, &[d_out])?;
        check_size(OPERATION, d_table.rows(), d_table.cols())?;
        check_tensor(OPERATION, "ids", ids, DType::U32, d_out.rows())?;
        check_tensor(OPERATION, "d_table", d_table.tensor(), DType::F32, 0)?;
        if d_out.cols() != d_table.cols() {
            return Err(shape(
                OPERATION,
                format!("rows of {} to rows of {}", d_out.cols(), d_table.cols()),
            ));
        }
        if d_out.rows() == 0 || d_out.cols() == 0 {
            return Ok(());
        }
        let width = vector_width(&[d_out, d_table]);
        // SAFETY: views lie within their tensors; the kernel checks the ids.
        unsafe {
            self.launch(
                OPERATION,
                Family::Embed,
                &format!("embed_backward_{width}"),
                (
                    d_out.rows() as u32,
                    d_out.cols().div_ceil(256 * width) as u32,
                    1,
                ),
                (256, 1, 1),
                words![
                    self.pointer(ids),
                    self.at(d_out),
                    d_out.stride(),
                    self.at(d_table),
                    d_table.stride(),
                    d_table.rows(),
                    d_out.rows(),
                    d_out.cols()
                ],
            )
        }
    }
}
