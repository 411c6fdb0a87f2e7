//! Products of matrices in f32, cut into tasks and tiles.
//!
//! Columns of the output are computed 48 at a time: their weights are packed into a panel that
//! stays in the second-level cache, and all rows pass by it.

use std::cell::RefCell;

use super::{
    matrix::{PackedWeights, Part},
    packed::{BLOCK, decode_blocks},
    pool::Pool,
    simd::{Arithmetic, LANES, dispatched},
    storage::Rows,
    tile::{TILE_ROWS, Tile, multiply, transpose},
};

/// Columns of one panel: three vectors, which leave the registers room for eight rows.
const PANEL_COLS: usize = 48;
/// Length of the chains between two visits of the output at most. Panels of the first-level cache
/// would be shorter, but visits cost more than reading the panel from the second level.
const PANEL_K: usize = 768;
/// Tasks that keep any usual number of threads busy. Not a function of their number: results must
/// not depend on it.
const MANY_TASKS: usize = 24;
/// Rows of one task at least.
const TASK_ROWS: usize = 64;

/// The right operand of a product, `[k, n]`.
#[derive(Clone, Copy)]
pub(super) enum Right<'a> {
    /// Rows are `k`: element `(k, n)` lies at `rows.row(k)[n]`.
    Plain(Rows<f32>),
    /// Rows are `n`: element `(k, n)` lies at `rows.row(n)[k]`.
    Transposed(Rows<f32>),
    /// Weights `[n, k]` in panels.
    Packed(&'a PackedWeights),
    /// Weights `[n, k]` in some other encoding.
    Weights(&'a Part),
}

/// `out[m, n] = scale * left[m, k] right[k, n]`, plus what it held where `accumulate`.
///
/// # Safety
/// The operands have these shapes, and the output overlaps neither.
pub(super) unsafe fn product(
    pool: &Pool,
    left: Rows<f32>,
    right: Right<'_>,
    scale: f32,
    out: Rows<f32>,
    accumulate: bool,
) {
    let n_groups = out.cols.div_ceil(PANEL_COLS);
    // Every chunk of rows packs the panel again, so there are as few as keep threads busy.
    let rows_per_task = out
        .rows
        .div_ceil(MANY_TASKS.div_ceil(n_groups.max(1)))
        .max(TASK_ROWS)
        .next_multiple_of(TILE_ROWS);
    let n_chunks = out.rows.div_ceil(rows_per_task);
    pool.run(n_groups * n_chunks, &|task| {
        let (group, chunk) = (task / n_chunks, task % n_chunks);
        let (col, row) = (group * PANEL_COLS, chunk * rows_per_task);
        let n_cols = PANEL_COLS.min(out.cols - col);
        let n_rows = rows_per_task.min(out.rows - row);
        let left = left.row_range(row, n_rows);
        let out = out.row_range(row, n_rows).columns(col, n_cols);
        // SAFETY: by this function's own contract; tasks have their own parts of the output.
        unsafe { columns(left, right, col, scale, out, accumulate) };
    });
}

thread_local! {
    static PANEL: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    static DECODED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Up to 48 columns of the output, from column `col` of the right operand on.
///
/// # Safety
/// As for [`product`].
unsafe fn columns(
    left: Rows<f32>,
    right: Right<'_>,
    col: usize,
    scale: f32,
    out: Rows<f32>,
    accumulate: bool,
) {
    match right {
        Right::Weights(part) => DECODED.with_borrow_mut(|decoded| {
            let n_elements = out.cols * part.cols;
            if decoded.len() < n_elements {
                decoded.resize(n_elements, 0.0);
            }
            part.decode(col..col + out.cols, &mut decoded[..n_elements]);
            let rows = Rows::over(&mut decoded[..n_elements], part.cols);
            // SAFETY: the decoded rows are the right operand's columns.
            unsafe { columns(left, Right::Transposed(rows), 0, scale, out, accumulate) };
        }),
        Right::Plain(_) | Right::Transposed(_) | Right::Packed(_) => {
            PANEL.with_borrow_mut(|panel| {
                let width = out.cols.next_multiple_of(LANES);
                panel.resize(PANEL_K * PANEL_COLS, 0.0);
                let panel = panel.as_mut_ptr();
                if left.cols == 0 && !accumulate {
                    for i in 0..out.rows {
                        // SAFETY: the task's own part of the output.
                        unsafe { out.row_mut(i) }.fill(0.0);
                    }
                }
                for start in (0..left.cols).step_by(PANEL_K) {
                    let k = PANEL_K.min(left.cols - start);
                    // SAFETY: shapes are the caller's promise, and the panel has room.
                    unsafe {
                        pack(right, col, out.cols, start, k, scale, panel, width);
                        rows_of_tiles(
                            left.columns(start, k),
                            panel,
                            width,
                            out,
                            accumulate || start > 0,
                        );
                    }
                }
            })
        }
    }
}

/// # Safety
/// As for [`product`]; the panel is `[left.cols, width]`.
unsafe fn rows_of_tiles(
    left: Rows<f32>,
    panel: *const f32,
    width: usize,
    out: Rows<f32>,
    accumulate: bool,
) {
    for first in (0..out.rows).step_by(TILE_ROWS) {
        let n_rows = TILE_ROWS.min(out.rows - first);
        let mut rows = [std::ptr::null::<f32>(); TILE_ROWS];
        let mut outs = [std::ptr::null_mut::<f32>(); TILE_ROWS];
        for i in 0..n_rows {
            rows[i] = left.pointer().wrapping_add((first + i) * left.stride);
            outs[i] = out.pointer().wrapping_add((first + i) * out.stride);
        }
        let tile = Tile {
            rows: &rows[..n_rows],
            k: left.cols,
            panel,
            panel_stride: width,
            out: &outs[..n_rows],
            n_cols: out.cols,
            accumulate,
        };
        // SAFETY: by this function's own contract.
        unsafe { multiply(&tile) };
    }
}

dispatched! {
    /// Rows times the scale, one after another, with zeros up to `width`; for [`pack`] only, which
    /// promises that nothing writes to the rows.
    fn copy_rows(rows: Rows<f32>, scale: f32, panel: &mut [f32], width: usize) = copy_rows_body;
}

#[inline(always)]
fn copy_rows_body<A: Arithmetic>(rows: Rows<f32>, scale: f32, panel: &mut [f32], width: usize) {
    for (i, to) in panel.chunks_exact_mut(width).enumerate() {
        // SAFETY: by the promise of the only caller.
        let from = unsafe { rows.row(i) };
        let (to, rest) = to.split_at_mut(from.len());
        for (to, from) in to.iter_mut().zip(from) {
            *to = from * scale;
        }
        rest.fill(0.0);
    }
}

/// Packs columns `col..col + n_cols` of rows `start..start + k`.
///
/// # Safety
/// They exist, and the panel has room for `k` rows of `width`.
#[allow(clippy::too_many_arguments)]
unsafe fn pack(
    right: Right<'_>,
    col: usize,
    n_cols: usize,
    start: usize,
    k: usize,
    scale: f32,
    panel: *mut f32,
    width: usize,
) {
    match right {
        Right::Plain(rows) => {
            let rows = rows.row_range(start, k).columns(col, n_cols);
            // SAFETY: the panel has room.
            let panel = unsafe { std::slice::from_raw_parts_mut(panel, k * width) };
            copy_rows(rows, scale, panel, width);
        }
        Right::Transposed(rows) => {
            for vector in (0..width).step_by(LANES) {
                let n_rows = LANES.min(n_cols - vector);
                let from = rows
                    .pointer()
                    .wrapping_add((col + vector) * rows.stride + start);
                // SAFETY: within the operand and the panel.
                unsafe {
                    transpose(
                        from,
                        n_rows,
                        rows.stride,
                        k,
                        scale,
                        panel.add(vector),
                        width,
                    );
                }
            }
        }
        Right::Packed(weights) => {
            let blocks = start / BLOCK..(start + k) / BLOCK;
            for vector in (0..width).step_by(LANES) {
                // SAFETY: the panel has room.
                let to = unsafe {
                    std::slice::from_raw_parts_mut(panel.add(vector), k * width - vector)
                };
                let from = weights.panel((col + vector) / LANES);
                decode_blocks(&from, blocks.clone(), scale, to, width);
            }
        }
        Right::Weights(_) => {}
    }
}

/// The transposed matrix in `scratch`, `[cols, rows]`.
///
/// # Safety
/// Nothing writes to the matrix now, and the scratch outlives the result.
pub(super) unsafe fn transposed(
    pool: &Pool,
    matrix: Rows<f32>,
    scratch: &mut Vec<f32>,
) -> Rows<f32> {
    let stride = matrix.rows.max(1).next_multiple_of(LANES);
    if scratch.len() < matrix.cols * stride {
        scratch.resize(matrix.cols * stride, 0.0);
    }
    let whole = Rows::over(&mut scratch[..matrix.cols * stride], stride);
    pool.run(matrix.rows.div_ceil(LANES), &|task| {
        let first = task * LANES;
        let n_rows = LANES.min(matrix.rows - first);
        let from = matrix.pointer().wrapping_add(first * matrix.stride);
        let to = whole.pointer().wrapping_add(first);
        // SAFETY: within both matrices; tasks have their own columns of the result.
        unsafe { transpose(from, n_rows, matrix.stride, matrix.cols, 1.0, to, stride) };
    });
    whole.columns(0, matrix.rows)
}
