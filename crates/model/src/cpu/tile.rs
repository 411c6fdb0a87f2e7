//! The inner kernel of every f32 product: a few rows times a panel of columns.
//!
//! An element of a product is one chain of multiply-adds over `k` in rising order, whatever the
//! size of the product and of the tiles it is cut into. So a row's result does not depend on the
//! rows that are computed with it, and cutting `k` (the chain stops and goes on) changes nothing.

use super::simd::{Arithmetic, LANES};

/// Rows of a tile.
pub(super) const TILE_ROWS: usize = 8;
/// Vectors of 16 columns that are computed at a time.
const TILE_VECTORS: usize = 4;

/// What a tile multiplies: `out[i][..n_cols] = rows[i] . panel`, for as many rows as there are.
///
/// The panel is `[k, n_vectors * 16]`, each row starting `panel_stride` elements after the last.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    /// Where each row's `k` elements start.
    pub rows: &'a [*const f32],
    pub k: usize,
    pub panel: *const f32,
    pub panel_stride: usize,
    /// Where each row of the output starts.
    pub out: &'a [*mut f32],
    /// Columns of the output. The panel has as many, rounded up to whole vectors.
    pub n_cols: usize,
    /// Whether the chain goes on from what the output holds.
    pub accumulate: bool,
}

/// Multiplies.
///
/// # Safety
/// There are at most [`TILE_ROWS`] rows, as many outputs, and all elements named lie in memory;
/// outputs overlap nothing else.
pub(super) unsafe fn multiply(tile: &Tile<'_>) {
    debug_assert!(tile.rows.len() == tile.out.len() && tile.rows.len() <= TILE_ROWS);
    if tile.n_cols > TILE_VECTORS * LANES {
        for start in (0..tile.n_cols).step_by(TILE_VECTORS * LANES) {
            let mut out = [std::ptr::null_mut::<f32>(); TILE_ROWS];
            for (to, from) in out.iter_mut().zip(tile.out) {
                *to = from.wrapping_add(start);
            }
            let part = Tile {
                panel: tile.panel.wrapping_add(start),
                out: &out[..tile.out.len()],
                n_cols: (tile.n_cols - start).min(TILE_VECTORS * LANES),
                ..*tile
            };
            // SAFETY: a part of the tile.
            unsafe { multiply(&part) };
        }
        return;
    }
    #[cfg(target_arch = "x86_64")]
    {
        use super::simd::{InstructionSet, instruction_set};
        if instruction_set() == InstructionSet::Avx512 {
            // SAFETY: the features were found; the rest is the caller's promise.
            unsafe { avx512::multiply(tile) };
            return;
        }
    }
    for start in (0..tile.n_cols).step_by(LANES) {
        let n_cols = (tile.n_cols - start).min(LANES);
        for first in (0..tile.rows.len()).step_by(4) {
            let n_rows = (tile.rows.len() - first).min(4);
            // SAFETY: a part of the tile.
            unsafe { narrow(tile, first, n_rows, start, n_cols) };
        }
    }
}

super::simd::dispatched! {
    /// Up to four rows times one vector of columns; by the caller's promise on the whole tile.
    fn narrow_dispatched(
        tile: &Tile<'_>, first: usize, n_rows: usize, start: usize, n_cols: usize,
    ) = narrow_body;
}

/// # Safety
/// As for [`multiply`]; the part lies within the tile.
unsafe fn narrow(tile: &Tile<'_>, first: usize, n_rows: usize, start: usize, n_cols: usize) {
    narrow_dispatched(tile, first, n_rows, start, n_cols);
}

#[inline(always)]
fn narrow_body<A: Arithmetic>(
    tile: &Tile<'_>,
    first: usize,
    n_rows: usize,
    start: usize,
    n_cols: usize,
) {
    match n_rows {
        1 => narrow_rows::<A, 1>(tile, first, start, n_cols),
        2 => narrow_rows::<A, 2>(tile, first, start, n_cols),
        3 => narrow_rows::<A, 3>(tile, first, start, n_cols),
        _ => narrow_rows::<A, 4>(tile, first, start, n_cols),
    }
}

#[inline(always)]
fn narrow_rows<A: Arithmetic, const R: usize>(
    tile: &Tile<'_>,
    first: usize,
    start: usize,
    n_cols: usize,
) {
    let mut sums = [[0.0f32; LANES]; R];
    for (r, sums) in sums.iter_mut().enumerate() {
        if tile.accumulate {
            for (c, sum) in sums.iter_mut().enumerate().take(n_cols) {
                // SAFETY: within the output, by the promise made to `multiply`.
                *sum = unsafe { *tile.out[first + r].add(start + c) };
            }
        }
    }
    for k in 0..tile.k {
        // SAFETY: within the panel, whose rows are whole vectors.
        let panel = unsafe {
            *tile
                .panel
                .add(k * tile.panel_stride + start)
                .cast::<[f32; LANES]>()
        };
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: within the row.
            let x = unsafe { *tile.rows[first + r].add(k) };
            for c in 0..LANES {
                sums[c] = A::mul_add(x, panel[c], sums[c]);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        for (c, sum) in sums.iter().enumerate().take(n_cols) {
            // SAFETY: within the output.
            unsafe { *tile.out[first + r].add(start + c) = *sum };
        }
    }
}

/// Writes rows of `k` elements as a panel: `panel[k * panel_stride + i] = rows[i][k] * scale`, for
/// 16 columns of which those beyond the rows are zero.
///
/// # Safety
/// There are at most 16 rows of `k` elements, `stride` apart, and room for the panel.
pub(super) unsafe fn transpose(
    rows: *const f32,
    n_rows: usize,
    stride: usize,
    k: usize,
    scale: f32,
    panel: *mut f32,
    panel_stride: usize,
) {
    #[allow(unused_mut)]
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    {
        use super::simd::{InstructionSet, instruction_set};
        if n_rows == LANES && instruction_set() == InstructionSet::Avx512 {
            done = k / LANES * LANES;
            for start in (0..done).step_by(LANES) {
                // SAFETY: the features were found; whole squares within the rows.
                unsafe {
                    avx512::transpose_square(
                        rows.add(start),
                        stride,
                        scale,
                        panel.add(start * panel_stride),
                        panel_stride,
                    );
                }
            }
        }
    }
    for at in done..k {
        for i in 0..LANES {
            // SAFETY: within the rows and the panel.
            unsafe {
                *panel.add(at * panel_stride + i) = if i < n_rows {
                    *rows.add(i * stride + at) * scale
                } else {
                    0.0
                };
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    // Indices name registers here.
    #![allow(clippy::needless_range_loop)]

    use std::arch::x86_64::*;

    use super::{LANES, TILE_ROWS, Tile};

    /// # Safety
    /// AVX-512F is there; else as for [`super::multiply`].
    #[target_feature(enable = "avx512f")]
    pub unsafe fn multiply(tile: &Tile<'_>) {
        // SAFETY: by this function's own contract.
        unsafe {
            match tile.n_cols.div_ceil(LANES) {
                0 => {}
                1 => by_rows::<1>(tile),
                2 => by_rows::<2>(tile),
                3 => by_rows::<3>(tile),
                _ => {
                    // Eight rows of four vectors are more than there are registers.
                    if tile.rows.len() > 6 {
                        let (first, second) = tile.rows.split_at(4);
                        let (first_out, second_out) = tile.out.split_at(4);
                        by_rows::<4>(&Tile {
                            rows: first,
                            out: first_out,
                            ..*tile
                        });
                        by_rows::<4>(&Tile {
                            rows: second,
                            out: second_out,
                            ..*tile
                        });
                    } else {
                        by_rows::<4>(tile);
                    }
                }
            }
        }
    }

    /// # Safety
    /// As for [`multiply`].
    #[target_feature(enable = "avx512f")]
    unsafe fn by_rows<const C: usize>(tile: &Tile<'_>) {
        // SAFETY: by this function's own contract.
        unsafe {
            match tile.rows.len() {
                0 => {}
                1 => rows::<1, C>(tile),
                2 => rows::<2, C>(tile),
                3 => rows::<3, C>(tile),
                4 => rows::<4, C>(tile),
                5 => rows::<5, C>(tile),
                6 => rows::<6, C>(tile),
                7 => rows::<7, C>(tile),
                _ => rows::<TILE_ROWS, C>(tile),
            }
        }
    }

    /// # Safety
    /// As for [`multiply`]; the tile has `R` rows and `C` vectors.
    #[target_feature(enable = "avx512f")]
    unsafe fn rows<const R: usize, const C: usize>(tile: &Tile<'_>) {
        let mut sums = [[_mm512_setzero_ps(); C]; R];
        let mut rows = [std::ptr::null::<f32>(); R];
        rows.copy_from_slice(&tile.rows[..R]);
        let whole = C - 1;
        let last = ((1u32 << (tile.n_cols - whole * LANES)) - 1) as __mmask16;
        if tile.accumulate {
            for r in 0..R {
                for c in 0..C {
                    let mask = if c == whole { last } else { !0 };
                    // SAFETY: within the output where the mask is set.
                    sums[r][c] = unsafe { _mm512_maskz_loadu_ps(mask, tile.out[r].add(c * LANES)) };
                }
            }
        }
        let mut panel = tile.panel;
        for k in 0..tile.k {
            let mut weights = [_mm512_setzero_ps(); C];
            for c in 0..C {
                // SAFETY: within the panel, whose rows are whole vectors.
                weights[c] = unsafe { _mm512_loadu_ps(panel.add(c * LANES)) };
            }
            for r in 0..R {
                // SAFETY: within the row.
                let x = _mm512_set1_ps(unsafe { *rows[r].add(k) });
                for c in 0..C {
                    sums[r][c] = _mm512_fmadd_ps(x, weights[c], sums[r][c]);
                }
            }
            panel = panel.wrapping_add(tile.panel_stride);
        }
        for r in 0..R {
            for c in 0..C {
                let mask = if c == whole { last } else { !0 };
                // SAFETY: within the output where the mask is set.
                unsafe { _mm512_mask_storeu_ps(tile.out[r].add(c * LANES), mask, sums[r][c]) };
            }
        }
    }

    /// Transposes 16 rows of 16.
    ///
    /// # Safety
    /// AVX-512F is there, and the squares lie in memory.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn transpose_square(
        rows: *const f32,
        stride: usize,
        scale: f32,
        panel: *mut f32,
        panel_stride: usize,
    ) {
        let scale = _mm512_set1_ps(scale);
        let mut a = [_mm512_setzero_ps(); 16];
        for i in 0..16 {
            // SAFETY: within the square.
            a[i] = _mm512_mul_ps(unsafe { _mm512_loadu_ps(rows.add(i * stride)) }, scale);
        }
        // Within lanes of four: pairs of rows, then pairs of pairs.
        let mut b = [_mm512_setzero_ps(); 16];
        for i in 0..8 {
            b[2 * i] = _mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]);
            b[2 * i + 1] = _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]);
        }
        for i in 0..4 {
            let [p, q, r, s] = [b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3]];
            a[4 * i] = _mm512_shuffle_ps::<0b01_00_01_00>(p, r);
            a[4 * i + 1] = _mm512_shuffle_ps::<0b11_10_11_10>(p, r);
            a[4 * i + 2] = _mm512_shuffle_ps::<0b01_00_01_00>(q, s);
            a[4 * i + 3] = _mm512_shuffle_ps::<0b11_10_11_10>(q, s);
        }
        // `a[4 * i + j]` holds columns j, j + 4, j + 8, j + 12 of rows 4 i to 4 i + 3.
        for j in 0..4 {
            let [p, q, r, s] = [a[j], a[4 + j], a[8 + j], a[12 + j]];
            let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(p, q);
            let high = _mm512_shuffle_f32x4::<0b11_10_11_10>(p, q);
            let low_second = _mm512_shuffle_f32x4::<0b01_00_01_00>(r, s);
            let high_second = _mm512_shuffle_f32x4::<0b11_10_11_10>(r, s);
            let columns = [
                _mm512_shuffle_f32x4::<0b10_00_10_00>(low, low_second),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(low, low_second),
                _mm512_shuffle_f32x4::<0b10_00_10_00>(high, high_second),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(high, high_second),
            ];
            for (i, column) in columns.into_iter().enumerate() {
                // SAFETY: within the square of the panel.
                unsafe { _mm512_storeu_ps(panel.add((4 * i + j) * panel_stride), column) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::random, *};

    #[test]
    fn tiles_of_every_size_are_chains_in_order() {
        let k = 37;
        let x = random(1, TILE_ROWS * k);
        let panel = random(2, k * 80);
        for n_rows in 1..=TILE_ROWS {
            for n_cols in [1usize, 16, 17, 32, 47, 48, 49, 64, 80] {
                let width = n_cols.div_ceil(16) * 16;
                let mut out = vec![2.0f32; n_rows * 80];
                let rows: Vec<*const f32> = (0..n_rows).map(|r| x[r * k..].as_ptr()).collect();
                let outs: Vec<*mut f32> = (0..n_rows).map(|r| out[r * 80..].as_mut_ptr()).collect();
                let piece = |from: usize, to: usize, accumulate| {
                    let rows: Vec<*const f32> =
                        rows.iter().map(|row| row.wrapping_add(from)).collect();
                    let tile = Tile {
                        rows: &rows,
                        k: to - from,
                        panel: panel[from * width..].as_ptr(),
                        panel_stride: width,
                        out: &outs,
                        n_cols,
                        accumulate,
                    };
                    // SAFETY: rows, panel and outputs are as long as the tile says.
                    unsafe { multiply(&tile) };
                };
                piece(0, 20, false);
                piece(20, k, true);
                for r in 0..n_rows {
                    for c in 0..n_cols {
                        let chain = |fused: bool| {
                            (0..k).fold(0.0f32, |sum, at| {
                                let (x, w) = (x[r * k + at], panel[at * width + c]);
                                if fused {
                                    x.mul_add(w, sum)
                                } else {
                                    x * w + sum
                                }
                            })
                        };
                        let got = out[r * 80 + c];
                        assert!(
                            got == chain(true) || got == chain(false),
                            "{n_rows} {n_cols}"
                        );
                    }
                    assert!(out[r * 80 + n_cols..(r + 1) * 80].iter().all(|&x| x == 2.0));
                }
            }
        }
    }

    #[test]
    fn rows_become_columns() {
        let x = random(3, 16 * 50);
        for (n_rows, k) in [(16, 50), (16, 16), (7, 33), (16, 3)] {
            let mut panel = vec![9.0f32; k * 20];
            // SAFETY: as many rows and elements as there are.
            unsafe { transpose(x.as_ptr(), n_rows, 50, k, 2.0, panel.as_mut_ptr(), 20) };
            for at in 0..k {
                for i in 0..16 {
                    let expected = if i < n_rows {
                        2.0 * x[i * 50 + at]
                    } else {
                        0.0
                    };
                    assert_eq!(panel[at * 20 + i], expected, "{n_rows} {k}");
                }
            }
        }
    }
}
