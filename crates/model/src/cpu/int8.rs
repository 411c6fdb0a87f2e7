//! Products of 8-bit activations with packed weights.
//!
//! Activations are rounded to 255 steps in blocks of 32 with an f32 scale, products of a block are
//! summed as integers, and blocks are added in order in f32: so a row's result does not depend on
//! the rows that are computed with it. It needs the AVX-512 instructions for it (VNNI); elsewhere
//! the exact product is used.

use super::{
    matrix::PackedWeights,
    packed::BLOCK,
    pool::Pool,
    simd::{Arithmetic, LANES, dispatched},
    storage::Rows,
};

/// Bytes of weights that one task multiplies with many rows: they stay in the first-level cache.
const TASK_BYTES: usize = 24 << 10;
/// The same for few rows, where a task is to be worth its start.
const FEW_ROWS_TASK_BYTES: usize = 64 << 10;
/// Rows of a tile.
const TILE_ROWS: usize = 8;

/// Whether this processor has the instructions.
pub(super) fn is_supported() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use super::simd::{InstructionSet, instruction_set};
        instruction_set() == InstructionSet::Avx512 && is_x86_feature_detected!("avx512vnni")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Rounded activations; room that is used again.
#[derive(Debug, Default)]
pub(super) struct Activations {
    /// `[rows, cols]`.
    codes: Vec<i8>,
    /// `[rows, blocks]`.
    blocks: Vec<BlockScale>,
}

/// What a block's codes are multiplied by.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct BlockScale {
    scale: f32,
    /// The sum of the codes.
    sum: i32,
}

impl Activations {
    /// Rounds rows whose columns are whole blocks.
    pub(super) fn round(&mut self, pool: &Pool, x: Rows<f32>) {
        let n_blocks = x.cols / BLOCK;
        if self.codes.len() < x.rows * x.cols {
            self.codes.resize(x.rows * x.cols, 0);
            self.blocks.resize(x.rows * n_blocks, BlockScale::default());
        }
        if self.blocks.len() < x.rows * n_blocks {
            self.blocks.resize(x.rows * n_blocks, BlockScale::default());
        }
        let codes = SharedRows(self.codes.as_mut_ptr());
        let blocks = SharedRows(self.blocks.as_mut_ptr());
        const ROWS: usize = 16;
        pool.run(x.rows.div_ceil(ROWS), &|task| {
            for i in task * ROWS..((task + 1) * ROWS).min(x.rows) {
                // SAFETY: within the room made above; each task has its own rows; nothing writes
                // to `x` now.
                unsafe {
                    round_row(
                        x.row(i),
                        std::slice::from_raw_parts_mut(codes.get().add(i * x.cols), x.cols),
                        std::slice::from_raw_parts_mut(blocks.get().add(i * n_blocks), n_blocks),
                    );
                }
            }
        });
    }
}

/// A pointer that tasks share and write apart through.
#[derive(Clone, Copy)]
struct SharedRows<T>(*mut T);

// SAFETY: tasks write to disjoint rows.
unsafe impl<T: Send> Send for SharedRows<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedRows<T> {}

impl<T> SharedRows<T> {
    fn get(self) -> *mut T {
        self.0
    }
}

dispatched! {
    fn round_row(x: &[f32], codes: &mut [i8], blocks: &mut [BlockScale]) = round_row_body;
}

#[inline(always)]
fn round_row_body<A: Arithmetic>(x: &[f32], codes: &mut [i8], blocks: &mut [BlockScale]) {
    let (x, _) = x.as_chunks::<BLOCK>();
    let (codes, _) = codes.as_chunks_mut::<BLOCK>();
    for ((x, codes), block) in x.iter().zip(codes).zip(blocks) {
        let mut lanes = [0.0f32; LANES];
        for i in 0..BLOCK {
            let magnitude = x[i].abs();
            let lane = &mut lanes[i % LANES];
            *lane = if magnitude > *lane { magnitude } else { *lane };
        }
        let max = lanes.iter().fold(0.0f32, |max, lane| max.max(*lane));
        let inverse = if max > 0.0 { 127.0 / max } else { 0.0 };
        let mut sum = 0i32;
        for i in 0..BLOCK {
            // Adding 1.5 * 2^23 rounds to the nearest integer, ties to even.
            let rounded = (x[i] * inverse + 12_582_912.0).to_bits() as i32 - 0x4b40_0000;
            sum += rounded;
            codes[i] = rounded as i8;
        }
        *block = BlockScale {
            scale: max / 127.0,
            sum,
        };
    }
}

/// `out[m, n] = x[m, k] w[n, k]^T`, plus what it held where `accumulate`; `activations` are those
/// of `x`, rounded.
///
/// # Safety
/// [`is_supported`]; the operands have these shapes, and the output overlaps neither.
pub(super) unsafe fn product(
    pool: &Pool,
    activations: &Activations,
    x: Rows<f32>,
    weights: &PackedWeights,
    out: Rows<f32>,
    accumulate: bool,
) {
    let n_blocks = x.cols / BLOCK;
    let n_panels = out.cols.div_ceil(LANES);
    let task_bytes = if x.rows > 4 {
        TASK_BYTES
    } else {
        FEW_ROWS_TASK_BYTES
    };
    let panels_per_task = (task_bytes / weights.layout.panel_bytes(n_blocks)).max(1);
    pool.run(n_panels.div_ceil(panels_per_task), &|task| {
        let first_panel = task * panels_per_task;
        let last_panel = (first_panel + panels_per_task).min(n_panels);
        for first in (0..x.rows).step_by(TILE_ROWS) {
            let n_rows = TILE_ROWS.min(x.rows - first);
            for p in first_panel..last_panel {
                let tile = Tile {
                    panel: weights.panel(p),
                    codes: &activations.codes[first * x.cols..(first + n_rows) * x.cols],
                    blocks: &activations.blocks[first * n_blocks..(first + n_rows) * n_blocks],
                    out: out
                        .row_range(first, n_rows)
                        .columns(p * LANES, LANES.min(out.cols - p * LANES)),
                    accumulate,
                };
                // SAFETY: by this function's own contract; tasks have their own columns.
                unsafe { multiply(&tile) };
            }
        }
    });
}

/// Some rows times sixteen columns.
struct Tile<'a> {
    panel: super::packed::Panel<'a>,
    /// `[rows, n_blocks * 32]`.
    codes: &'a [i8],
    /// `[rows, n_blocks]`.
    blocks: &'a [BlockScale],
    out: Rows<f32>,
    accumulate: bool,
}

/// # Safety
/// As for [`product`].
unsafe fn multiply(tile: &Tile<'_>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by this function's own contract.
    unsafe {
        vnni::multiply(tile);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = tile;
}

#[cfg(target_arch = "x86_64")]
mod vnni {
    // Indices name registers here.
    #![allow(clippy::needless_range_loop)]

    use std::arch::x86_64::*;

    use super::{BLOCK, LANES, TILE_ROWS, Tile};

    /// Bytes from the codes in use to those that are fetched.
    const PREFETCH: usize = 2048;

    /// # Safety
    /// The instructions are there; else as for [`super::multiply`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    pub unsafe fn multiply(tile: &Tile<'_>) {
        let layout = tile.panel.layout;
        // SAFETY: by this function's own contract.
        unsafe {
            match (layout.nibbles, layout.has_min) {
                (true, true) => by_rows::<true, true>(tile),
                (true, false) => by_rows::<true, false>(tile),
                (false, true) => by_rows::<false, true>(tile),
                (false, false) => by_rows::<false, false>(tile),
            }
        }
    }

    /// # Safety
    /// As for [`multiply`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    unsafe fn by_rows<const NIBBLES: bool, const MIN: bool>(tile: &Tile<'_>) {
        // SAFETY: by this function's own contract.
        unsafe {
            match tile.out.rows {
                0 => {}
                1 => rows::<1, NIBBLES, MIN>(tile),
                2 => rows::<2, NIBBLES, MIN>(tile),
                3 => rows::<3, NIBBLES, MIN>(tile),
                4 => rows::<4, NIBBLES, MIN>(tile),
                5 => rows::<5, NIBBLES, MIN>(tile),
                6 => rows::<6, NIBBLES, MIN>(tile),
                7 => rows::<7, NIBBLES, MIN>(tile),
                _ => rows::<TILE_ROWS, NIBBLES, MIN>(tile),
            }
        }
    }

    /// # Safety
    /// As for [`multiply`]; the tile has `R` rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    unsafe fn rows<const R: usize, const NIBBLES: bool, const MIN: bool>(tile: &Tile<'_>) {
        let n_blocks = tile.panel.n_blocks;
        let n_cols = n_blocks * BLOCK;
        assert!(tile.codes.len() >= R * n_cols && tile.blocks.len() >= R * n_blocks);
        let mask = ((1u32 << tile.out.cols) - 1) as __mmask16;
        let mut sums = [_mm512_setzero_ps(); R];
        let mut outs = [std::ptr::null_mut::<f32>(); R];
        for r in 0..R {
            outs[r] = tile.out.pointer().wrapping_add(r * tile.out.stride);
            if tile.accumulate {
                // SAFETY: within the output where the mask is set.
                sums[r] = unsafe { _mm512_maskz_loadu_ps(mask, outs[r]) };
            }
        }
        let offset = i32::from(tile.panel.layout.offset);
        let low = _mm512_set1_epi8(15);
        for block in 0..n_blocks {
            let scales = halves(tile.panel.scales(block));
            let codes = tile.panel.codes(block).as_ptr();
            let mut weights = [_mm512_setzero_si512(); 8];
            // Far rows come from memory, which answers late; a prefetch may name any address.
            for line in 0..if NIBBLES { 4 } else { 8 } {
                _mm_prefetch::<_MM_HINT_T0>(codes.wrapping_add(PREFETCH + 64 * line).cast());
            }
            // SAFETY: a block has 4 lines of nibbles or 8 of bytes.
            unsafe {
                if NIBBLES {
                    for c in 0..4 {
                        let both = _mm512_loadu_si512(codes.add(64 * c).cast());
                        weights[2 * c] = _mm512_and_si512(both, low);
                        weights[2 * c + 1] = _mm512_and_si512(_mm512_srli_epi16::<4>(both), low);
                    }
                } else {
                    for c in 0..8 {
                        weights[c] = _mm512_loadu_si512(codes.add(64 * c).cast());
                    }
                }
            }
            for r in 0..R {
                // SAFETY: within the lengths asserted above.
                let (x, block_scale) = unsafe {
                    (
                        tile.codes
                            .as_ptr()
                            .add(r * n_cols + block * BLOCK)
                            .cast::<i32>(),
                        *tile.blocks.get_unchecked(r * n_blocks + block),
                    )
                };
                let mut products = if MIN {
                    _mm512_setzero_si512()
                } else {
                    _mm512_set1_epi32(-offset * block_scale.sum)
                };
                for c in 0..8 {
                    // SAFETY: a block's codes are eight words.
                    let x = _mm512_set1_epi32(unsafe { x.add(c).read_unaligned() });
                    products = _mm512_dpbusd_epi32(products, weights[c], x);
                }
                let scale = _mm512_set1_ps(block_scale.scale);
                sums[r] = _mm512_fmadd_ps(
                    _mm512_cvtepi32_ps(products),
                    _mm512_mul_ps(scales, scale),
                    sums[r],
                );
                if MIN {
                    let sum = _mm512_set1_ps(block_scale.scale * block_scale.sum as f32);
                    sums[r] = _mm512_fmadd_ps(halves(tile.panel.mins(block)), sum, sums[r]);
                }
            }
        }
        for r in 0..R {
            // SAFETY: within the output where the mask is set.
            unsafe { _mm512_mask_storeu_ps(outs[r], mask, sums[r]) };
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn halves(bytes: &[u8; 2 * LANES]) -> __m512 {
        // SAFETY: the array has 32 bytes.
        _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) })
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use half::f16;
    use temper_checkpoint::tensor::{Encoding, TensorView};

    use super::super::{
        Cpu, CpuMath,
        tests::{inner, random, tensor, values},
    };
    use crate::{
        device::{Device, WeightFormat},
        random::mix,
    };

    fn view(encoding: Encoding, rows: usize, cols: usize) -> TensorView<'static> {
        let n_bytes = encoding.row_bytes(cols).unwrap() * rows;
        let mut bytes: Vec<u8> = (0..n_bytes as u64).map(|i| mix(i) as u8).collect();
        for (i, block) in bytes.chunks_exact_mut(encoding.block_bytes()).enumerate() {
            let scale = f16::from_f32(0.002 * (i % 5) as f32 - 0.003);
            block[..2].copy_from_slice(&scale.to_le_bytes());
            if matches!(encoding, Encoding::Q4_1 | Encoding::Q5_1) {
                block[2..4].copy_from_slice(&f16::from_f32(-0.03).to_le_bytes());
            }
        }
        TensorView {
            name: "w".into(),
            shape: vec![rows, cols],
            encoding,
            bytes: Cow::Owned(bytes),
        }
    }

    #[test]
    fn rounded_products_are_near_the_exact_ones_and_rows_are_apart() {
        let cpu = Cpu::new(2, CpuMath::Int8Activations).unwrap();
        let (n, cols, n_out) = (19, 160, 83);
        let x = random(1, n * cols);
        let x_view = tensor(&cpu, &x).view(cols);
        for encoding in [
            Encoding::Q4_0,
            Encoding::Q4_1,
            Encoding::Q5_0,
            Encoding::Q5_1,
            Encoding::Q8_0,
        ] {
            let parts = [view(encoding, 50, cols), view(encoding, 33, cols)];
            let matrix = cpu.matrix(&parts, WeightFormat::AsStored).unwrap();
            let weights = cpu.matrix_rows(&matrix, 0..n_out).unwrap();
            let out = tensor(&cpu, &vec![1.0; n * n_out]).view(n_out);
            cpu.linear(&x_view, &matrix, None, &out, true).unwrap();
            let together = values(&cpu, out.tensor());
            for i in 0..n {
                let row = &x[i * cols..][..cols];
                let norm = inner(row, row).sqrt();
                for j in 0..n_out {
                    let weight = &weights[j * cols..][..cols];
                    // Each activation is off by at most half a step of 1/127, at random.
                    let bound = 4.0 * norm.max(1.0) * inner(weight, weight).sqrt() / 254.0 / 3.0;
                    let expected = 1.0 + inner(row, weight);
                    let error = (f64::from(together[i * n_out + j]) - expected).abs();
                    assert!(error < bound, "{encoding:?} [{i}, {j}]: {error} > {bound}");
                }
            }
            for i in [0, 7, 18] {
                let alone = tensor(&cpu, &vec![1.0; n_out]).view(n_out);
                let row = x_view.row_range(i..i + 1);
                cpu.linear(&row, &matrix, None, &alone, true).unwrap();
                assert_eq!(values(&cpu, alone.tensor()), together[i * n_out..][..n_out]);
            }
        }
    }
}
