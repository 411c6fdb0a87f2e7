//! The paged key-value cache: writing, attending, moving.

use std::ops::Range;

use super::{
    Cpu,
    attention::{Query, Run, TASK_ROWS, Vectors, attend, group_size},
    copy::{indices, numbers},
    storage::{CpuStorage, Rows, apart, equal, is_shape, shape},
};
use crate::{
    device::{Heads, KvPages, PAGE_TOKENS, PagedRows, Result},
    tensor::View,
};

/// One layer's pages, checked.
#[derive(Clone, Copy)]
struct Pages {
    keys: Rows<f32>,
    values: Rows<f32>,
    n_pages: usize,
}

impl Pages {
    /// Pages as rows of [`PAGE_TOKENS`] vectors of one head each.
    fn of(operation: &'static str, pages: &KvPages<CpuStorage>, heads: Heads) -> Result<Self> {
        group_size(operation, heads)?;
        equal(
            operation,
            "elements of values",
            pages.values.len(),
            pages.keys.len(),
        )?;
        let head_elements = PAGE_TOKENS * heads.dim;
        let keys = Rows::of(operation, &pages.keys.view(head_elements))?;
        let values = Rows::of(operation, &pages.values.view(head_elements))?;
        apart(operation, "keys and values", keys, values)?;
        Ok(Pages {
            keys,
            values,
            n_pages: keys.rows / heads.n_kv,
        })
    }
}

/// Rows that follow one another and belong to one sequence, not too many at once.
fn pieces(sequences: &[u32]) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for run in sequences.chunk_by(|a, b| a == b) {
        let end = start + run.len();
        for first in (start..end).step_by(TASK_ROWS) {
            pieces.push(first..(first + TASK_ROWS).min(end));
        }
        start = end;
    }
    pieces
}

impl Cpu {
    pub(super) fn write_kv_rows(
        &self,
        k: &View<CpuStorage>,
        v: &View<CpuStorage>,
        heads: Heads,
        rows: &PagedRows<CpuStorage>,
        pages: &KvPages<CpuStorage>,
    ) -> Result<()> {
        let operation = "write_kv";
        let pages = Pages::of(operation, pages, heads)?;
        let (k, v) = (
            Rows::<f32>::of(operation, k)?,
            Rows::<f32>::of(operation, v)?,
        );
        for (what, matrix) in [("k", k), ("v", v)] {
            is_shape(operation, what, matrix, rows.n_rows, heads.n_kv * heads.dim)?;
            apart(operation, "an input and keys", pages.keys, matrix)?;
            apart(operation, "an input and values", pages.values, matrix)?;
        }
        let slots = indices(
            operation,
            &rows.slot,
            rows.n_rows,
            pages.n_pages * PAGE_TOKENS,
        )?;
        for (i, &slot) in slots.iter().enumerate() {
            let (page, offset) = (slot as usize / PAGE_TOKENS, slot as usize % PAGE_TOKENS);
            for head in 0..heads.n_kv {
                let (from, to) = (head * heads.dim, offset * heads.dim);
                let row = page * heads.n_kv + head;
                // SAFETY: disjoint by the checks above.
                unsafe {
                    pages
                        .keys
                        .columns(to, heads.dim)
                        .row_mut(row)
                        .copy_from_slice(k.columns(from, heads.dim).row(i));
                    pages
                        .values
                        .columns(to, heads.dim)
                        .row_mut(row)
                        .copy_from_slice(v.columns(from, heads.dim).row(i));
                }
            }
        }
        Ok(())
    }

    pub(super) fn paged_attention_rows(
        &self,
        q: &View<CpuStorage>,
        heads: Heads,
        scale: f32,
        rows: &PagedRows<CpuStorage>,
        pages: &KvPages<CpuStorage>,
        out: &View<CpuStorage>,
    ) -> Result<()> {
        let operation = "paged_attention";
        let group = group_size(operation, heads)?;
        let pages = Pages::of(operation, pages, heads)?;
        let (q, out) = (
            Rows::<f32>::of(operation, q)?,
            Rows::<f32>::of(operation, out)?,
        );
        is_shape(operation, "q", q, rows.n_rows, heads.n_query * heads.dim)?;
        is_shape(
            operation,
            "output",
            out,
            rows.n_rows,
            heads.n_query * heads.dim,
        )?;
        for input in [q, pages.keys, pages.values] {
            apart(operation, "an input and output", out, input)?;
        }
        let positions = numbers(operation, &rows.position, rows.n_rows)?;
        let sequences = numbers(operation, &rows.sequence, rows.n_rows)?;
        let tables = numbers(operation, &rows.block_tables, rows.block_tables.len())?;
        let mut lines = Vec::with_capacity(rows.n_rows);
        for (&position, &sequence) in positions.iter().zip(sequences) {
            let n_keys = position as usize + 1;
            let start = sequence as usize * rows.max_pages;
            let line = tables
                .get(start..start + n_keys.div_ceil(PAGE_TOKENS))
                .filter(|line| line.len() <= rows.max_pages)
                .ok_or_else(|| {
                    shape(
                        operation,
                        format!("position {position} of sequence {sequence}"),
                    )
                })?;
            if let Some(page) = line.iter().find(|&&page| page as usize >= pages.n_pages) {
                return Err(shape(
                    operation,
                    format!("page {page} of {}", pages.n_pages),
                ));
            }
            lines.push(line);
        }
        let pieces = pieces(sequences);
        self.pool().run(pieces.len() * heads.n_kv, &|task| {
            let (piece, kv_head) = (pieces[task / heads.n_kv].clone(), task % heads.n_kv);
            // Rows of one sequence have the pages of the furthest among them in common.
            let line = piece
                .clone()
                .map(|i| lines[i])
                .max_by_key(|line| line.len());
            let runs: Vec<Run> = line
                .unwrap_or_default()
                .iter()
                .map(|&page| {
                    let row = page as usize * heads.n_kv + kv_head;
                    let vectors = |pages: Rows<f32>| Vectors {
                        stride: heads.dim,
                        ..Vectors::of(pages, row, 0)
                    };
                    Run {
                        keys: vectors(pages.keys),
                        values: vectors(pages.values),
                        n_keys: PAGE_TOKENS,
                    }
                })
                .collect();
            let mut queries = Vec::with_capacity(group * piece.len());
            for head in kv_head * group..(kv_head + 1) * group {
                for i in piece.clone() {
                    let at = |rows: Rows<f32>| {
                        rows.pointer()
                            .wrapping_add(i * rows.stride + head * heads.dim)
                    };
                    queries.push(Query::new(at(q), at(out), positions[i] as usize + 1));
                }
            }
            // SAFETY: the tables' pages exist and hold the positions, by the checks above, which
            // also keep the output apart; each task has its own rows and heads.
            unsafe { attend(&mut queries, &runs, heads.dim, scale) };
        });
        Ok(())
    }

    pub(super) fn move_pages(
        &self,
        pages: &KvPages<CpuStorage>,
        heads: Heads,
        moves: &[(u32, u32)],
    ) -> Result<()> {
        let operation = "copy_pages";
        let pages = Pages::of(operation, pages, heads)?;
        for &(from, to) in moves {
            let (from, to) = (from as usize, to as usize);
            if from.max(to) >= pages.n_pages {
                return Err(shape(
                    operation,
                    format!("page {} of {}", from.max(to), pages.n_pages),
                ));
            }
            if from == to {
                continue;
            }
            for tensor in [pages.keys, pages.values] {
                for head in 0..heads.n_kv {
                    // SAFETY: two different rows of one tensor.
                    unsafe {
                        tensor
                            .row_mut(to * heads.n_kv + head)
                            .copy_from_slice(tensor.row(from * heads.n_kv + head));
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{cache, cpu, random, segments, tensor, values};
    use crate::device::{Device, Heads, PAGE_TOKENS};

    #[test]
    fn cached_attention_equals_packed_attention_bit_for_bit() {
        let cpu = cpu();
        let heads = Heads {
            n_query: 6,
            n_kv: 2,
            dim: 16,
        };
        let n = 75;
        let q = tensor(&cpu, &random(1, n * 96)).view(96);
        let k = tensor(&cpu, &random(2, n * 32)).view(32);
        let v = tensor(&cpu, &random(3, n * 32)).view(32);
        let (out, lse) = (
            tensor(&cpu, &vec![0.0; n * 96]),
            tensor(&cpu, &vec![0.0; n * 6]),
        );
        cpu.attention(
            &q,
            &k,
            &v,
            heads,
            0.25,
            &segments(&cpu, &[0, 75]),
            &out.view(96),
            &lse,
        )
        .unwrap();
        let expected = values(&cpu, &out);
        for queries in [0..75, 74..75, 30..34, 15..17] {
            let cache = cache(&cpu, heads, (&k, &v), queries.clone());
            let out = tensor(&cpu, &vec![0.0; queries.len() * 96]).view(96);
            let q = q.row_range(queries.clone());
            cpu.paged_attention(&q, heads, 0.25, &cache.rows, &cache.pages, &out)
                .unwrap();
            let expected = &expected[queries.start * 96..queries.end * 96];
            assert_eq!(values(&cpu, out.tensor()), expected, "{queries:?}");
        }
    }

    #[test]
    fn pages_move_whole_and_rows_beyond_them_are_refused() {
        let cpu = cpu();
        let heads = Heads {
            n_query: 2,
            n_kv: 2,
            dim: 4,
        };
        let k = tensor(&cpu, &random(2, 20 * 8)).view(8);
        let v = tensor(&cpu, &random(3, 20 * 8)).view(8);
        let mut cache = cache(&cpu, heads, (&k, &v), 19..20);
        let page = heads.n_kv * PAGE_TOKENS * heads.dim;
        let before = values(&cpu, &cache.pages.keys);
        cpu.copy_pages(&cache.pages, heads, &[(5, 0), (4, 1)])
            .unwrap();
        let after = values(&cpu, &cache.pages.keys);
        assert!(before[5 * page..].iter().any(|&x| x != 0.0));
        assert_eq!(after[..page], before[5 * page..6 * page]);
        assert_eq!(after[page..2 * page], before[4 * page..5 * page]);
        assert!(cpu.copy_pages(&cache.pages, heads, &[(0, 6)]).is_err());

        let q = tensor(&cpu, &random(4, 8)).view(8);
        let out = tensor(&cpu, &[0.0; 8]).view(8);
        let attend = |rows| cpu.paged_attention(&q, heads, 1.0, rows, &cache.pages, &out);
        attend(&cache.rows).unwrap();
        cpu.upload_u32(&[60], &cache.rows.position).unwrap();
        assert!(attend(&cache.rows).is_err());
        cpu.upload_u32(&[19], &cache.rows.position).unwrap();
        cpu.upload_u32(&[2], &cache.rows.sequence).unwrap();
        assert!(attend(&cache.rows).is_err());
        cpu.upload_u32(&[6 * PAGE_TOKENS as u32], &cache.rows.slot)
            .unwrap();
        cache.rows.n_rows = 1;
        let row = |view: &crate::View<_>| view.row_range(0..1);
        assert!(
            cpu.write_kv(&row(&k), &row(&v), heads, &cache.rows, &cache.pages)
                .is_err()
        );
    }
}
