//! The paged cache of keys and values.

use temper_model::device::{Heads, KvPages, PAGE_TOKENS, PagedRows, Result};
use temper_model::tensor::DType;

use super::{V, check_activations, check_tensor, shape, vector_width, walk};
use crate::cuda::Cuda;
use crate::launch::{Family, words};
use crate::memory::Storage;

impl Cuda {
    pub(crate) fn op_write_kv(
        &self,
        k: &V,
        v: &V,
        heads: Heads,
        rows: &PagedRows<Storage>,
        pages: &KvPages<Storage>,
    ) -> Result<()> {
        const OPERATION: &str = "write_kv";
        check_activations(OPERATION, &[k, v])?;
        let n = rows.n_rows;
        let cols = heads.n_kv * heads.dim;
        if k.rows() < n || v.rows() < n || k.cols() != cols || v.cols() != cols {
            return Err(shape(
                OPERATION,
                format!(
                    "[{}, {}] and [{}, {}] for {n} rows of {cols}",
                    k.rows(),
                    k.cols(),
                    v.rows(),
                    v.cols()
                ),
            ));
        }
        check_tensor(OPERATION, "slots", &rows.slot, DType::U32, n)?;
        check_tensor(OPERATION, "keys", &pages.keys, DType::Bf16, 0)?;
        check_tensor(
            OPERATION,
            "values",
            &pages.values,
            DType::Bf16,
            pages.keys.len(),
        )?;
        if n == 0 || cols == 0 {
            return Ok(());
        }
        let n_pages = pages.keys.len() / (cols * PAGE_TOKENS);
        let cached = [&pages.keys, &pages.values].map(|tensor| tensor.view(heads.dim));
        let by_head = heads.dim.is_multiple_of(8);
        let width = if by_head {
            vector_width(&[k, v, &cached[0], &cached[1]])
        } else {
            1
        };
        let (grid, block) = walk(n, cols.div_ceil(width));
        // SAFETY: views lie within their tensors; the kernel checks slots against the cache.
        unsafe {
            self.launch(
                OPERATION,
                Family::Elementwise,
                &format!("write_kv_{width}"),
                grid,
                block,
                words![
                    self.at(k),
                    k.stride(),
                    self.at(v),
                    v.stride(),
                    self.pointer(&rows.slot),
                    self.pointer(&pages.keys),
                    self.pointer(&pages.values),
                    heads.n_kv,
                    heads.dim,
                    PAGE_TOKENS,
                    n_pages * PAGE_TOKENS,
                    n
                ],
            )
        }
    }

    pub(crate) fn op_copy_pages(
        &self,
        pages: &KvPages<Storage>,
        heads: Heads,
        moves: &[(u32, u32)],
    ) -> Result<()> {
        const OPERATION: &str = "copy_pages";
        let elements = heads.n_kv * PAGE_TOKENS * heads.dim;
        let n_pages = pages.keys.len().min(pages.values.len()) / elements.max(1);
        for &(from, to) in moves {
            let (from, to) = (from as usize, to as usize);
            if from >= n_pages || to >= n_pages {
                return Err(shape(
                    OPERATION,
                    format!("page {from} to {to} of {n_pages}"),
                ));
            }
            for tensor in [&pages.keys, &pages.values] {
                let page = |i: usize| tensor.slice(i * elements..(i + 1) * elements);
                let (from, to) = (page(from), page(to));
                self.copy_memory(self.pointer(&from), self.pointer(&to), from.n_bytes())?;
            }
        }
        Ok(())
    }
}
