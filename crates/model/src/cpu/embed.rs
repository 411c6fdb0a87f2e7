//! Token embeddings: rows of a table, and the gradient that returns to them.

use super::{
    Cpu,
    copy::{add_scaled_row, indices},
    matrix::CpuMatrix,
    storage::{CpuStorage, Rows, apart, equal},
};
use crate::{
    device::Result,
    tensor::{Tensor, View},
};

impl Cpu {
    pub(super) fn embed_forward(
        &self,
        table: &CpuMatrix,
        ids: &Tensor<CpuStorage>,
        out: &View<CpuStorage>,
    ) -> Result<()> {
        let operation = "embed";
        let out = Rows::<f32>::of(operation, out)?;
        equal(operation, "columns", out.cols, table.cols())?;
        let ids = indices(operation, ids, out.rows, table.rows())?;
        table.apart(operation, out)?;
        self.rows((out.rows, out.cols * 4), |i| {
            // SAFETY: disjoint by the check above; each task has its own row.
            table.decode_row(ids[i] as usize, unsafe { out.row_mut(i) });
        });
        Ok(())
    }

    pub(super) fn embed_backward_into(
        &self,
        ids: &Tensor<CpuStorage>,
        d_out: &View<CpuStorage>,
        d_table: &View<CpuStorage>,
    ) -> Result<()> {
        let operation = "embed_backward";
        let d_out = Rows::<f32>::of(operation, d_out)?;
        let d_table = Rows::<f32>::of(operation, d_table)?;
        equal(operation, "columns", d_out.cols, d_table.cols)?;
        let ids = indices(operation, ids, d_out.rows, d_table.rows)?;
        apart(operation, "d_out and d_table", d_table, d_out)?;
        for (i, &id) in ids.iter().enumerate() {
            // SAFETY: disjoint by the check above, and ids are rows of the table.
            unsafe { add_scaled_row(d_out.row(i), 1.0, d_table.row_mut(id as usize)) };
        }
        Ok(())
    }
}
