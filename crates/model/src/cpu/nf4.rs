//! 4-bit NormalFloat weights (Dettmers et al., arXiv 2305.14314): a fixed book of 16 numbers,
//! blocks of 64 with their maximum, the maxima optionally quantised to 8 bits in turn.
//!
//! Blocks run over the elements of the whole matrix, row after row. Two codes make a byte, the
//! first in the high half.

use super::eight_bit::{nearest, signed_map};

/// Elements of one block.
pub(super) const BLOCK: usize = 64;
/// Block maxima that are quantised together.
const MAXIMA_BLOCK: usize = 256;

/// The book.
pub(super) const CODES: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The maxima of the blocks, as they are kept.
#[derive(Debug)]
pub(super) enum Maxima {
    /// As they are.
    Plain(Vec<f32>),
    /// 8-bit codes.
    Quantised {
        /// A code for each block.
        codes: Vec<u8>,
        /// The largest difference from the mean of each 256 blocks.
        scales: Vec<f32>,
        /// The mean of all maxima, subtracted before quantising.
        mean: f32,
    },
}

/// Quantised elements.
#[derive(Debug)]
pub(super) struct Nf4 {
    /// Two codes a byte.
    pub codes: Vec<u8>,
    pub maxima: Maxima,
}

impl Nf4 {
    /// Quantises blocks that `fill` yields: `fill(start, out)` writes the elements from `start`
    /// on, a block at most.
    pub fn quantise(
        n_elements: usize,
        double: bool,
        mut fill: impl FnMut(usize, &mut [f32]),
    ) -> Self {
        let n_blocks = n_elements.div_ceil(BLOCK);
        let mut codes = vec![0u8; n_elements.div_ceil(2)];
        let mut maxima = Vec::with_capacity(n_blocks);
        for (block, bytes) in codes.chunks_mut(BLOCK / 2).enumerate() {
            let mut values = [0.0f32; BLOCK];
            let start = block * BLOCK;
            let len = BLOCK.min(n_elements - start);
            fill(start, &mut values[..len]);
            let max = values.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            let inverse = if max > 0.0 { 1.0 / max } else { 0.0 };
            for (byte, pair) in bytes.iter_mut().zip(values.chunks_exact(2)) {
                *byte = code(pair[0] * inverse) << 4 | code(pair[1] * inverse);
            }
            maxima.push(max);
        }
        let maxima = if double {
            quantise_maxima(&maxima)
        } else {
            Maxima::Plain(maxima)
        };
        Nf4 { codes, maxima }
    }

    /// The maximum of a block.
    pub fn max(&self, block: usize) -> f32 {
        match &self.maxima {
            Maxima::Plain(maxima) => maxima[block],
            Maxima::Quantised {
                codes,
                scales,
                mean,
            } => signed_map()[usize::from(codes[block])] * scales[block / MAXIMA_BLOCK] + mean,
        }
    }

    /// Elements from `start` on.
    pub fn decode(&self, start: usize, out: &mut [f32]) {
        let mut at = start;
        let mut rest = out;
        while !rest.is_empty() {
            let block = at / BLOCK;
            let len = (BLOCK - at % BLOCK).min(rest.len());
            let (piece, tail) = rest.split_at_mut(len);
            let max = self.max(block);
            let (head, pairs) = piece.split_at_mut((at % 2).min(len));
            if let [x] = head {
                *x = CODES[usize::from(self.codes[at / 2] & 15)] * max;
            }
            let bytes = &self.codes[at.div_ceil(2)..];
            for (pair, byte) in pairs.chunks_mut(2).zip(bytes) {
                pair[0] = CODES[usize::from(byte >> 4)] * max;
                if let Some(second) = pair.get_mut(1) {
                    *second = CODES[usize::from(byte & 15)] * max;
                }
            }
            at += len;
            rest = tail;
        }
    }

    /// Bytes held.
    pub fn n_bytes(&self) -> usize {
        let maxima = match &self.maxima {
            Maxima::Plain(maxima) => maxima.len() * 4,
            Maxima::Quantised { codes, scales, .. } => codes.len() + scales.len() * 4 + 4,
        };
        self.codes.len() + maxima
    }
}

/// The nearest code of a number in `[-1, 1]`; the lower one halfway.
fn code(x: f32) -> u8 {
    CODES
        .windows(2)
        .filter(|pair| x > (pair[0] + pair[1]) / 2.0)
        .count() as u8
}

fn quantise_maxima(maxima: &[f32]) -> Maxima {
    let total: f64 = maxima.iter().map(|&max| f64::from(max)).sum();
    let mean = (total / maxima.len().max(1) as f64) as f32;
    let map = signed_map();
    let (mut codes, mut scales) = (Vec::with_capacity(maxima.len()), Vec::new());
    for block in maxima.chunks(MAXIMA_BLOCK) {
        let scale = block
            .iter()
            .fold(0.0f32, |scale, max| scale.max((max - mean).abs()));
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        codes.extend(block.iter().map(|max| nearest(map, (max - mean) * inverse)));
        scales.push(scale);
    }
    Maxima::Quantised {
        codes,
        scales,
        mean,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHTS: [f32; 16] = [
        0.12, -0.40, 0.03, 0.80, -0.75, 0.22, -0.05, 0.0, 0.51, -0.18, 0.33, -0.62, 0.07, -0.29,
        0.66, -0.80,
    ];

    fn quantise(values: &[f32], double: bool) -> Nf4 {
        Nf4::quantise(values.len(), double, |start, out| {
            out.copy_from_slice(&values[start..start + out.len()]);
        })
    }

    #[test]
    fn a_block_matches_the_reference() {
        let mut values = [0.0; 64];
        values[..16].copy_from_slice(&WEIGHTS);
        let nf4 = quantise(&values, false);
        assert_eq!(
            nf4.codes[..8],
            [0x92, 0x7f, 0x0a, 0x67, 0xd5, 0xc1, 0x83, 0xe0]
        );
        let mut decoded = [0.0; 64];
        nf4.decode(0, &mut decoded);
        let expected = [
            0.128_744_17,
            -0.420_058_46,
            0.0,
            0.8,
            -0.8,
            0.196_889_85,
            -0.072_840_03,
            0.0,
            0.450_093_6,
            -0.147_818_74,
            0.352_567_88,
            -0.556_954_27,
            0.063_664_24,
            -0.315_934,
            0.578_365_5,
            -0.8,
        ];
        for (got, expected) in decoded.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-7, "{got} {expected}");
        }
        assert!(decoded[16..].iter().all(|&x| x == 0.0));
        for (from, to) in [(3, 8), (2, 7), (5, 6), (6, 7), (63, 64)] {
            let mut part = vec![0.0; to - from];
            nf4.decode(from, &mut part);
            assert_eq!(part, decoded[from..to]);
        }
    }

    #[test]
    fn block_maxima_match_the_reference() {
        let mut values = [0.0; 256];
        for (block, max) in [0.8, 0.5, 1.2, 0.95].into_iter().enumerate() {
            values[block * 64] = max;
        }
        let nf4 = quantise(&values, true);
        let Maxima::Quantised {
            codes,
            scales,
            mean,
        } = &nf4.maxima
        else {
            panic!("quantised")
        };
        assert_eq!(codes[..], [58, 0, 250, 201]);
        assert!((scales[0] - 0.3625).abs() < 1e-6 && (mean - 0.8625).abs() < 1e-6);
        for (block, expected) in [0.798_212_9, 0.502_548_8, 1.202_060_6, 0.952_275_4]
            .into_iter()
            .enumerate()
        {
            assert!((nf4.max(block) - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn sizes_are_those_of_the_paper() {
        let values = vec![0.5; 64 * 256 * 4];
        let bits = |double| quantise(&values, double).n_bytes() as f64 * 8.0 / values.len() as f64;
        assert_eq!(bits(false), 4.5);
        assert!((bits(true) - 4.126_953).abs() < 1e-3);
    }

    #[test]
    fn zeros_and_odd_lengths_survive() {
        for n in [1, 63, 65, 130] {
            for double in [false, true] {
                let nf4 = quantise(&vec![0.0; n], double);
                let mut decoded = vec![1.0; n];
                nf4.decode(0, &mut decoded);
                assert!(decoded.iter().all(|&x| x == 0.0), "{n} {double}");
            }
        }
    }
}
