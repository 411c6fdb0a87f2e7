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

#[cfg(test)]
mod tests {
    use super::super::tests::{cpu, numbers, random, tensor, values};
    use crate::device::Device;

    #[test]
    fn rows_are_looked_up_and_gradients_return_to_them() {
        let cpu = cpu();
        let table = random(1, 5 * 8);
        let matrix = cpu.matrix_over(&tensor(&cpu, &table), 5, 8).unwrap();
        let ids = [3, 0, 3, 4];
        let out = tensor(&cpu, &[0.0; 32]);
        cpu.embed(&matrix, &numbers(&cpu, &ids), &out.view(8))
            .unwrap();
        let got = values(&cpu, &out);
        for (i, &id) in ids.iter().enumerate() {
            assert_eq!(got[i * 8..][..8], table[id as usize * 8..][..8]);
        }
        let d_table = tensor(&cpu, &[1.0; 40]);
        cpu.embed_backward(&numbers(&cpu, &ids), &out.view(8), &d_table.view(8))
            .unwrap();
        let d_table = values(&cpu, &d_table);
        for row in 0..5 {
            let named = ids.iter().filter(|&&id| id == row).count() as f32;
            for col in 0..8 {
                let at = row as usize * 8 + col;
                assert_eq!(d_table[at], 1.0 + named * table[at]);
            }
        }
        assert!(
            cpu.embed(&matrix, &numbers(&cpu, &[5]), &out.view(8).row_range(0..1))
                .is_err()
        );
    }
}
