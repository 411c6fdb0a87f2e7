//! The embedding and its gradient.

use temper_model::device::Result;
use temper_model::tensor::DType;

use super::{T, V, check_activations, check_size, check_tensor, shape, vector_width};
use crate::cuda::Cuda;
use crate::launch::{Family, words};
use crate::matrix::{Matrix, Weights};

impl Cuda {
    pub(crate) fn op_embed(&self, table: &Matrix, ids: &T, out: &V) -> Result<()> {
        const OPERATION: &str = "embed";
        match &table.weights {
            Weights::Dense(tensor) => self.op_gather_rows(&tensor.view(table.cols), ids, out),
            Weights::Quantised(_) => Err(self.unsupported(
                OPERATION,
                "the table of an embedding is kept dense".to_owned(),
            )),
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
