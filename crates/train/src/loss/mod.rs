//! Objectives: pure functions of log-probabilities, each in a file of its own.
//!
//! A function gives the value and the gradient at every log-probability, in f64, natural
//! logarithms, to be minimised. Nothing divides silently: a denominator is an argument, and for
//! supervised training it is a type that only a whole accumulation window makes.

pub mod conservative_dpo;
pub mod dpo;
pub mod ipo;
pub mod length_normalised_dpo;
pub mod pair;
pub mod robust_dpo;
pub mod sft;
pub mod simpo;
#[cfg(test)]
mod tests;

pub use pair::{ObjectiveError, PairLogprobs, PairLoss, PreferenceObjective};
pub use sft::WindowTokens;

/// `ln(1 + exp(x))`, which is `-ln sigmoid(-x)`, without overflow.
pub(crate) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// `1 / (1 + exp(-x))`, without overflow.
pub(crate) fn sigmoid(x: f64) -> f64 {
    let small = (-x.abs()).exp();
    if x >= 0.0 {
        1.0 / (1.0 + small)
    } else {
        small / (1.0 + small)
    }
}
