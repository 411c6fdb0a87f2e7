//! Block-quantised weights laid out for vectors: 16 rows side by side.
//!
//! A panel holds 16 rows. First come the scales of its blocks, f16 `[block, row]`, then the minima
//! where the encoding has them, then the codes: of each block of 32 columns, groups of four
//! columns as `[group, row, column]` bytes, or for 4-bit codes pairs of groups in the halves of
//! one byte. A weight is `scale * (code - offset) + min`, which gives the bits that plain
//! dequantisation gives.

use half::f16;
use temper_checkpoint::tensor::Encoding;

use super::simd::{Arithmetic, LANES, dispatched};

/// Columns of one block.
pub(super) const BLOCK: usize = 32;
/// Bytes to which the parts of a panel are aligned.
const LINE: usize = 64;

/// How the codes of an encoding are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Whether a code has 4 bits; else it has 8.
    pub nibbles: bool,
    /// Whether blocks have a minimum.
    pub has_min: bool,
    /// What is subtracted from each code.
    pub offset: u8,
}

impl Layout {
    /// The layout of an encoding in blocks of 32.
    pub fn of(encoding: Encoding) -> Option<Self> {
        let (nibbles, has_min, offset) = match encoding {
            Encoding::Q4_0 => (true, false, 8),
            Encoding::Q4_1 => (true, true, 0),
            Encoding::Q5_0 => (false, false, 16),
            Encoding::Q5_1 => (false, true, 0),
            Encoding::Q8_0 => (false, false, 128),
            _ => return None,
        };
        Some(Layout {
            nibbles,
            has_min,
            offset,
        })
    }

    /// Bytes of one block's codes for 16 rows.
    pub const fn code_bytes(self) -> usize {
        if self.nibbles {
            BLOCK * LANES / 2
        } else {
            BLOCK * LANES
        }
    }

    /// Bytes of the scales, or of the minima, of a panel.
    pub const fn scale_bytes(n_blocks: usize) -> usize {
        (n_blocks * LANES * 2).next_multiple_of(LINE)
    }

    /// Where the codes of a panel start.
    pub const fn codes_at(self, n_blocks: usize) -> usize {
        Self::scale_bytes(n_blocks) * if self.has_min { 2 } else { 1 }
    }

    /// Bytes of a panel.
    pub const fn panel_bytes(self, n_blocks: usize) -> usize {
        self.codes_at(n_blocks) + n_blocks * self.code_bytes()
    }
}

/// Sixteen rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Panel<'a> {
    pub layout: Layout,
    pub n_blocks: usize,
    pub bytes: &'a [u8],
}

impl<'a> Panel<'a> {
    /// Panel `i` of weights with `n_blocks` blocks in a row.
    pub fn of(layout: Layout, n_blocks: usize, bytes: &'a [u8], i: usize) -> Self {
        let n_bytes = layout.panel_bytes(n_blocks);
        Panel {
            layout,
            n_blocks,
            bytes: &bytes[i * n_bytes..(i + 1) * n_bytes],
        }
    }

    /// The scales of a block.
    #[inline(always)]
    pub fn scales(&self, block: usize) -> &'a [u8; 2 * LANES] {
        half_lanes(self.bytes, block * 2 * LANES)
    }

    /// The minima of a block, where the layout has them.
    #[inline(always)]
    pub fn mins(&self, block: usize) -> &'a [u8; 2 * LANES] {
        half_lanes(
            self.bytes,
            Layout::scale_bytes(self.n_blocks) + block * 2 * LANES,
        )
    }

    /// The codes of a block.
    #[inline(always)]
    pub fn codes(&self, block: usize) -> &'a [u8] {
        let n_bytes = self.layout.code_bytes();
        let start = self.layout.codes_at(self.n_blocks) + block * n_bytes;
        &self.bytes[start..start + n_bytes]
    }

    /// One weight.
    fn weight(&self, row: usize, col: usize) -> f32 {
        let (block, within) = (col / BLOCK, col % BLOCK);
        let codes = self.codes(block);
        let code = if self.layout.nibbles {
            let byte = codes[within / 8 * LINE + row * 4 + within % 4];
            if within % 8 < 4 { byte & 15 } else { byte >> 4 }
        } else {
            codes[within / 4 * LINE + row * 4 + within % 4]
        };
        let half_at =
            |lanes: &[u8; 2 * LANES]| f16::from_le_bytes([lanes[2 * row], lanes[2 * row + 1]]);
        let scale = half_at(self.scales(block)).to_f32();
        let value = scale * (f32::from(code) - f32::from(self.layout.offset));
        if self.layout.has_min {
            value + half_at(self.mins(block)).to_f32()
        } else {
            value
        }
    }

    /// A row, decoded.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        for (col, out) in out.iter_mut().enumerate() {
            *out = self.weight(row, col);
        }
    }
}

#[inline(always)]
fn half_lanes(bytes: &[u8], at: usize) -> &[u8; 2 * LANES] {
    match bytes[at..].first_chunk() {
        Some(lanes) => lanes,
        None => &[0; 2 * LANES],
    }
}

/// Lays out rows of encoded blocks: `rows` is `[n_rows, n_blocks]` blocks of the encoding, whose
/// layout this is; `out` is as many zeroed panels as the rows fill.
pub(super) fn pack(
    encoding: Encoding,
    layout: Layout,
    n_blocks: usize,
    rows: &[u8],
    out: &mut [u8],
) {
    let row_bytes = n_blocks * encoding.block_bytes();
    let panel_bytes = layout.panel_bytes(n_blocks);
    if row_bytes == 0 {
        return;
    }
    for (i, row) in rows.chunks_exact(row_bytes).enumerate() {
        let panel = &mut out[i / LANES * panel_bytes..][..panel_bytes];
        let lane = i % LANES;
        for (b, block) in row.chunks_exact(encoding.block_bytes()).enumerate() {
            let at = (b * LANES + lane) * 2;
            panel[at..at + 2].copy_from_slice(&block[..2]);
            let mut rest = &block[2..];
            if layout.has_min {
                let at = at + Layout::scale_bytes(n_blocks);
                panel[at..at + 2].copy_from_slice(&rest[..2]);
                rest = &rest[2..];
            }
            let codes = block_codes(encoding, rest);
            let start = layout.codes_at(n_blocks) + b * layout.code_bytes();
            let to = &mut panel[start..start + layout.code_bytes()];
            for (k, code) in codes.into_iter().enumerate() {
                if layout.nibbles {
                    let shift = if k % 8 < 4 { 0 } else { 4 };
                    to[k / 8 * LINE + lane * 4 + k % 4] |= code << shift;
                } else {
                    to[k / 4 * LINE + lane * 4 + k % 4] = code;
                }
            }
        }
    }
}

/// The codes of a block in the order of columns, from what follows its scale and minimum.
fn block_codes(encoding: Encoding, bytes: &[u8]) -> [u8; BLOCK] {
    let mut codes = [0; BLOCK];
    if encoding == Encoding::Q8_0 {
        for (code, byte) in codes.iter_mut().zip(bytes) {
            // Signed to unsigned with the offset 128.
            *code = byte ^ 0x80;
        }
        return codes;
    }
    let (high, low) = match encoding {
        Encoding::Q5_0 | Encoding::Q5_1 => (
            u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            &bytes[4..],
        ),
        _ => (0, bytes),
    };
    for (j, byte) in low.iter().enumerate().take(BLOCK / 2) {
        let fifth = |at: usize| ((high >> at & 1) << 4) as u8;
        codes[j] = byte & 15 | fifth(j);
        codes[j + BLOCK / 2] = byte >> 4 | fifth(j + BLOCK / 2);
    }
    codes
}

dispatched! {
    /// Weights of some blocks as a panel of f32: `out[k * stride + row]`.
    pub(super) fn decode_blocks(
        panel: &Panel<'_>, blocks: std::ops::Range<usize>, scale: f32, out: &mut [f32],
        stride: usize,
    ) = decode_blocks_body;
}

#[inline(always)]
fn decode_blocks_body<A: Arithmetic>(
    panel: &Panel<'_>,
    blocks: std::ops::Range<usize>,
    scale: f32,
    out: &mut [f32],
    stride: usize,
) {
    if panel.layout.nibbles {
        decode_groups::<true>(panel, blocks, scale, out, stride);
    } else {
        decode_groups::<false>(panel, blocks, scale, out, stride);
    }
}

#[inline(always)]
fn decode_groups<const NIBBLES: bool>(
    panel: &Panel<'_>,
    blocks: std::ops::Range<usize>,
    factor: f32,
    out: &mut [f32],
    stride: usize,
) {
    let offset = i32::from(panel.layout.offset);
    let mut at = 0;
    for block in blocks {
        let scales = lanes_of_half(panel.scales(block));
        let mins = if panel.layout.has_min {
            lanes_of_half(panel.mins(block))
        } else {
            [0.0; LANES]
        };
        for chunk in panel.codes(block).chunks_exact(LINE) {
            let mut words = [0u32; LANES];
            for (word, bytes) in words.iter_mut().zip(chunk.as_chunks::<4>().0) {
                *word = u32::from_le_bytes(*bytes);
            }
            for half in 0..if NIBBLES { 2 } else { 1 } {
                for j in 0..4 {
                    let to = &mut out[at * stride..at * stride + LANES];
                    for lane in 0..LANES {
                        let code = if NIBBLES {
                            words[lane] >> (8 * j + 4 * half) & 15
                        } else {
                            words[lane] >> (8 * j) & 255
                        };
                        let code = (code as i32 - offset) as f32;
                        to[lane] = (scales[lane] * code + mins[lane]) * factor;
                    }
                    at += 1;
                }
            }
        }
    }
}

#[inline(always)]
fn lanes_of_half(bytes: &[u8; 2 * LANES]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    for (lane, bytes) in lanes.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *lane = f32_of_half(u16::from_le_bytes(*bytes));
    }
    lanes
}

/// f16 to f32 without a branch, so that it vectorises: the bits of a normal number shifted into
/// place are 2^-112 of its value; infinities and NaN need the exponent filled.
#[inline(always)]
fn f32_of_half(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7fff) << 13;
    let value = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    let special = f32::from_bits(magnitude | 0x7f80_0000);
    let value = if half & 0x7c00 == 0x7c00 {
        special
    } else {
        value
    };
    f32::from_bits(value.to_bits() | u32::from(half & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use temper_checkpoint::dequantise::dequantise;

    use super::*;
    use crate::random::mix;

    #[test]
    fn halves_of_all_bits_convert() {
        for bits in 0..=u16::MAX {
            let (got, expected) = (f32_of_half(bits), f16::from_bits(bits).to_f32());
            assert!(
                got == expected || (got.is_nan() && expected.is_nan()),
                "{bits:#x}"
            );
            assert_eq!(got.is_sign_negative(), expected.is_sign_negative());
        }
    }

    #[test]
    fn packed_weights_decode_to_the_same_bits() {
        let (n_rows, n_blocks) = (37, 5);
        for encoding in [
            Encoding::Q4_0,
            Encoding::Q4_1,
            Encoding::Q5_0,
            Encoding::Q5_1,
            Encoding::Q8_0,
        ] {
            let layout = Layout::of(encoding).unwrap();
            let mut bytes = vec![0u8; n_rows * n_blocks * encoding.block_bytes()];
            for (i, byte) in bytes.iter_mut().enumerate() {
                *byte = mix(i as u64) as u8;
            }
            for (i, block) in bytes.chunks_exact_mut(encoding.block_bytes()).enumerate() {
                let scale = f16::from_f32(0.01 * (i % 7) as f32 - 0.02);
                block[..2].copy_from_slice(&scale.to_le_bytes());
                if layout.has_min {
                    block[2..4].copy_from_slice(&f16::from_f32(-0.3).to_le_bytes());
                }
            }
            let cols = n_blocks * BLOCK;
            let mut expected = vec![0.0; n_rows * cols];
            dequantise(encoding, &bytes, &mut expected);

            let n_panels = n_rows.div_ceil(LANES);
            let mut packed = vec![0; n_panels * layout.panel_bytes(n_blocks)];
            pack(encoding, layout, n_blocks, &bytes, &mut packed);
            let mut row = vec![0.0; cols];
            for i in 0..n_rows {
                let panel = Panel::of(layout, n_blocks, &packed, i / LANES);
                panel.decode_row(i % LANES, &mut row);
                assert_eq!(row, expected[i * cols..][..cols], "{encoding:?}");
                let mut columns = vec![0.0; 3 * BLOCK * 20];
                decode_blocks(&panel, 1..4, 2.0, &mut columns, 20);
                for k in 0..3 * BLOCK {
                    let value = expected[i * cols + BLOCK + k];
                    assert_eq!(columns[k * 20 + i % LANES], 2.0 * value, "{encoding:?}");
                }
            }
        }
    }
}
