//! The frequencies of the rotary position embedding.
//!
//! Position `p` turns pair `j` of a head, that is elements `j` and `j + head_dim / 2`, by the angle
//! `p * inv_freq[j]`. The roundings to f32 are those of transformers (exponent, power, reciprocal,
//! scaling), because an error of one unit in the last place of a frequency is a visible angle at
//! long positions; the power itself is rounded correctly here.

#[cfg(test)]
mod tests;

use std::f64::consts::TAU;

use crate::config::{RopeConfig, RopeScaling};

/// The Llama 3 settings that published checkpoints use; only `factor` differs between them.
const LLAMA3: (f64, f64, usize) = (1.0, 4.0, 8192);

/// What a [`RopeConfig`] means for heads of one width.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians per position of each pair, `[head_dim / 2]`.
    pub inv_freq: Vec<f32>,
    /// What both cosine and sine are multiplied by; attention logits scale by its square.
    pub attention_factor: f32,
}

/// Computes the frequencies of a checked configuration for heads of `head_dim` elements.
///
/// YaRN as in arXiv:2309.00071, sections 3.2 to 3.4, with the ramp ends rounded outwards as its
/// reference implementation does; `attention_factor` is `0.1 ln factor + 1` unless it is given or
/// `mscale` and `mscale_all_dim` both are, whose ratio of such terms counts then.
pub fn inverse_frequencies(rope: &RopeConfig, head_dim: usize) -> Rope {
    let powers = powers(rope.theta, head_dim);
    let plain = || powers.iter().map(|power| 1.0 / power);
    let (inv_freq, attention_factor): (Vec<f32>, f64) = match &rope.scaling {
        RopeScaling::None => (plain().collect(), 1.0),
        RopeScaling::Linear { factor } => {
            let factor = *factor as f32;
            (plain().map(|freq| freq / factor).collect(), 1.0)
        }
        RopeScaling::PerFrequency { factors } => (
            plain()
                .zip(factors)
                .map(|(freq, factor)| freq / factor)
                .collect(),
            1.0,
        ),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } => {
            let length = *original_max_position_embeddings as f64;
            let (low, high) = (*low_freq_factor, *high_freq_factor);
            let scaled = plain().map(|freq| {
                let wavelength = TAU as f32 / freq;
                if f64::from(wavelength) > length / low {
                    freq / *factor as f32
                } else if f64::from(wavelength) < length / high {
                    freq
                } else {
                    let smooth = (length as f32 / wavelength - low as f32) / (high - low) as f32;
                    (1.0 - smooth) * freq / *factor as f32 + smooth * freq
                }
            });
            (scaled.collect(), 1.0)
        }
        RopeScaling::Yarn {
            factor,
            attention_factor,
            mscale,
            mscale_all_dim,
            ..
        } => {
            // The ramp ends are there for YaRN.
            let (low, high) = yarn_ramp(rope, head_dim).unwrap_or((0.0, 0.0));
            // Equal ends would divide by zero; the reference widens them by this much.
            let high = if low == high { high + 0.001 } else { high };
            let scaled = powers.iter().enumerate().map(|(j, power)| {
                let ramp = ((j as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
                let kept = 1.0 - ramp;
                1.0 / (*factor as f32 * power) * (1.0 - kept) + 1.0 / power * kept
            });
            let term = |scale: f64| {
                if *factor <= 1.0 {
                    1.0
                } else {
                    0.1 * scale * factor.ln() + 1.0
                }
            };
            let attention_factor = match (attention_factor, mscale, mscale_all_dim) {
                (Some(given), _, _) => *given,
                (None, Some(numerator), Some(denominator)) => term(*numerator) / term(*denominator),
                _ => term(1.0),
            };
            (scaled.collect(), attention_factor)
        }
    };
    Rope {
        inv_freq,
        attention_factor: attention_factor as f32,
    }
}

/// The pairs between which YaRN passes from kept (`low` and below) to divided frequencies (`high`
/// and above); `None` for other scalings. Trainer and server must agree on them.
pub fn yarn_ramp(rope: &RopeConfig, head_dim: usize) -> Option<(f64, f64)> {
    let RopeScaling::Yarn {
        original_max_position_embeddings,
        beta_fast,
        beta_slow,
        truncate,
        ..
    } = rope.scaling
    else {
        return None;
    };
    let dim = |rotations: f64| {
        head_dim as f64 * (original_max_position_embeddings as f64 / (rotations * TAU)).ln()
            / (2.0 * rope.theta.ln())
    };
    let (mut low, mut high) = (dim(beta_fast), dim(beta_slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    Some((low.max(0.0), high.min(head_dim as f64 - 1.0)))
}

/// Factors of each frequency, written as the Llama 3.1 scaling they come from; `None` when they
/// come from none of the published ones.
pub(crate) fn as_llama3(rope: &RopeConfig, head_dim: usize) -> Option<RopeConfig> {
    let RopeScaling::PerFrequency { factors } = &rope.scaling else {
        return None;
    };
    let factor = f64::from(factors.iter().copied().fold(1.0, f32::max));
    let (low_freq_factor, high_freq_factor, original_max_position_embeddings) = LLAMA3;
    let candidate = RopeConfig {
        theta: rope.theta,
        scaling: RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        },
    };
    let ours = inverse_frequencies(rope, head_dim).inv_freq;
    let theirs = inverse_frequencies(&candidate, head_dim).inv_freq;
    ours.iter()
        .zip(&theirs)
        .all(|(a, b)| (a - b).abs() <= 1e-5 * b)
        .then_some(candidate)
}

/// `theta^(2j / head_dim)`, `[head_dim / 2]`.
fn powers(theta: f64, head_dim: usize) -> Vec<f32> {
    (0..head_dim / 2)
        .map(|j| {
            let exponent = (2 * j) as f32 / head_dim as f32;
            theta.powf(f64::from(exponent)) as f32
        })
        .collect()
}
