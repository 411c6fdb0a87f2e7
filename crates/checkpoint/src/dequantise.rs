//! Decoding of every encoding to f32.
//!
//! The block formats are those of GGML, and the order of operations is that of its reference
//! dequantisers, so results are equal bit for bit. A block is a scale (and for some a minimum)
//! with packed codes; the `K` types nest sub-block scales of a few bits under one f16 scale.

#[cfg(test)]
mod tests;

use half::f16;

use crate::tensor::Encoding;

/// Decodes `bytes`, a whole number of blocks, into as many elements as `out` holds.
///
/// # Panics
/// When the lengths do not fit; [`crate::TensorView`] checks them for its callers.
pub fn dequantise(encoding: Encoding, bytes: &[u8], out: &mut [f32]) {
    let n_blocks = out.len() / encoding.block_len();
    assert_eq!(out.len(), n_blocks * encoding.block_len(), "whole blocks");
    assert_eq!(
        bytes.len(),
        n_blocks * encoding.block_bytes(),
        "as many bytes"
    );
    match encoding {
        Encoding::F32 => elements(bytes, out, f32::from_le_bytes),
        Encoding::F16 => elements(bytes, out, |bytes| f16::from_le_bytes(bytes).to_f32()),
        Encoding::Bf16 => elements(bytes, out, |bytes| {
            f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
        }),
        Encoding::Q4_0 => blocks(bytes, out, q4_0),
        Encoding::Q4_1 => blocks(bytes, out, q4_1),
        Encoding::Q5_0 => blocks(bytes, out, q5_0),
        Encoding::Q5_1 => blocks(bytes, out, q5_1),
        Encoding::Q8_0 => blocks(bytes, out, q8_0),
        Encoding::Q2K => blocks(bytes, out, q2_k),
        Encoding::Q3K => blocks(bytes, out, q3_k),
        Encoding::Q4K => blocks(bytes, out, q4_k),
        Encoding::Q5K => blocks(bytes, out, q5_k),
        Encoding::Q6K => blocks(bytes, out, q6_k),
    }
}

fn elements<const SIZE: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn([u8; SIZE]) -> f32) {
    let (chunks, _) = bytes.as_chunks::<SIZE>();
    for (out, chunk) in out.iter_mut().zip(chunks) {
        *out = decode(*chunk);
    }
}

fn blocks<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (outs, _) = out.as_chunks_mut::<LEN>();
    for (block, out) in blocks.iter().zip(outs) {
        decode(block, out);
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Scale, then 16 bytes: low nibbles are the first half of the block, high ones the second.
fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    for (j, byte) in block[2..].iter().enumerate() {
        out[j] = scale * (f32::from(byte & 15) - 8.0);
        out[j + 16] = scale * (f32::from(byte >> 4) - 8.0);
    }
}

/// As `Q4_0`, with a minimum after the scale in place of the offset 8.
fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    for (j, byte) in block[4..].iter().enumerate() {
        out[j] = scale * f32::from(byte & 15) + min;
        out[j + 16] = scale * f32::from(byte >> 4) + min;
    }
}

/// Scale, 32 fifth bits in element order, then nibbles as in `Q4_0`.
fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    for (j, byte) in block[6..].iter().enumerate() {
        let [first, second] = five_bits(*byte, high, j);
        out[j] = scale * (first - 16.0);
        out[j + 16] = scale * (second - 16.0);
    }
}

/// As `Q5_0`, with a minimum after the scale in place of the offset 16.
fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    for (j, byte) in block[8..].iter().enumerate() {
        let [first, second] = five_bits(*byte, high, j);
        out[j] = scale * first + min;
        out[j + 16] = scale * second + min;
    }
}

fn five_bits(byte: u8, high: u32, j: usize) -> [f32; 2] {
    let bit = |at: usize| ((high >> at & 1) << 4) as u8;
    [
        f32::from(byte & 15 | bit(j)),
        f32::from(byte >> 4 | bit(j + 16)),
    ]
}

/// Scale, then 32 signed bytes.
fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    for (out, byte) in out.iter_mut().zip(&block[2..]) {
        *out = scale * f32::from(*byte as i8);
    }
}

/// 16 bytes of 4-bit scale (low) and minimum (high) per 16 elements, 64 bytes of 2-bit codes, the
/// scale of scales, the scale of minima. In each half of 128 elements, byte `j` of 32 holds
/// elements `j`, `j + 32`, `j + 64` and `j + 96`, lowest bits first.
fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scale, min) = (half_at(block, 80), half_at(block, 82));
    for sub in 0..16 {
        let packed = block[sub];
        let scale = scale * f32::from(packed & 15);
        let min = min * f32::from(packed >> 4);
        let codes = two_bit_codes(&block[16..80], sub);
        for (out, code) in out[16 * sub..][..16].iter_mut().zip(codes) {
            *out = scale * f32::from(code) - min;
        }
    }
}

/// 32 bytes of third bits, 64 bytes of 2-bit codes as in `Q2_K`, 12 bytes of sixteen 6-bit scales
/// (offset 32), the scale of scales. A third bit of zero subtracts 4.
fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let scale = half_at(block, 108);
    let scales = &block[96..108];
    for sub in 0..16 {
        let low = scales[sub % 8] >> (4 * (sub / 8)) & 15;
        let high = scales[8 + sub % 4] >> (2 * (sub / 4)) & 3;
        let scale = scale * (f32::from(low | high << 4) - 32.0);
        let codes = two_bit_codes(&block[32..96], sub);
        let masks = &block[16 * (sub % 2)..][..16];
        for ((out, code), mask) in out[16 * sub..][..16].iter_mut().zip(codes).zip(masks) {
            let offset = if mask >> (sub / 2) & 1 == 0 { 4.0 } else { 0.0 };
            *out = scale * (f32::from(code) - offset);
        }
    }
}

/// The codes of the 16 elements from `16 * sub` on.
fn two_bit_codes(codes: &[u8], sub: usize) -> impl Iterator<Item = u8> {
    let shift = 2 * (sub % 8 / 2);
    codes[32 * (sub / 8) + 16 * (sub % 2)..][..16]
        .iter()
        .map(move |byte| byte >> shift & 3)
}

/// Scale of scales, scale of minima, 12 bytes of eight 6-bit scales and minima, 128 bytes of
/// nibbles: of each 32 bytes the low nibbles are 32 elements and the high ones the next 32.
fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    for sub in 0..8 {
        let (sub_scale, sub_min) = scale_and_min(&block[4..16], sub);
        let (scale, min) = (scale * sub_scale, min * sub_min);
        let codes = &block[16 + 32 * (sub / 2)..][..32];
        for (out, byte) in out[32 * sub..][..32].iter_mut().zip(codes) {
            *out = scale * f32::from(byte >> (4 * (sub % 2)) & 15) - min;
        }
    }
}

/// As `Q4_K`, with 32 bytes of fifth bits before the nibbles: bit `s` of byte `j` belongs to
/// element `j` of sub-block `s`.
fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    for sub in 0..8 {
        let (sub_scale, sub_min) = scale_and_min(&block[4..16], sub);
        let (scale, min) = (scale * sub_scale, min * sub_min);
        let codes = &block[48 + 32 * (sub / 2)..][..32];
        let highs = &block[16..48];
        for ((out, byte), high) in out[32 * sub..][..32].iter_mut().zip(codes).zip(highs) {
            let code = byte >> (4 * (sub % 2)) & 15 | (high >> sub & 1) << 4;
            *out = scale * f32::from(code) - min;
        }
    }
}

/// The first four scales and minima are the low six bits of bytes 0 to 7; of the other four, the
/// low four bits are in bytes 8 to 11 and the high two bits atop those of the first.
fn scale_and_min(packed: &[u8], sub: usize) -> (f32, f32) {
    let (scale, min) = if sub < 4 {
        (packed[sub] & 63, packed[sub + 4] & 63)
    } else {
        (
            packed[sub + 4] & 15 | packed[sub - 4] >> 6 << 4,
            packed[sub + 4] >> 4 | packed[sub] >> 6 << 4,
        )
    };
    (f32::from(scale), f32::from(min))
}

/// 128 bytes of low nibbles, 64 bytes of high pairs of bits, 16 signed scales, the scale of
/// scales. In each half of 128 elements, 64 bytes hold low nibbles (first 64 elements) and high
/// ones (next 64), and byte `j` of 32 holds the pairs of elements `j`, `j + 32`, `j + 64`, `j + 96`.
fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let scale = half_at(block, 208);
    for sub in 0..16 {
        let scale = scale * f32::from(block[192 + sub] as i8);
        let half = sub / 8;
        let within = 16 * (sub % 8);
        let low = &block[64 * half + within % 64..][..16];
        let high = &block[128 + 32 * half + within % 32..][..16];
        let low_shift = 4 * (within / 64);
        let high_shift = 2 * (within / 32);
        for ((out, low), high) in out[16 * sub..][..16].iter_mut().zip(low).zip(high) {
            let code = low >> low_shift & 15 | (high >> high_shift & 3) << 4;
            *out = scale * (f32::from(code) - 32.0);
        }
    }
}
