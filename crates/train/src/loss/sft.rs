//! Supervised fine-tuning: the negative log-likelihood of the tokens that the mask selects.
//!
//! The mean is over the supervised tokens of the whole accumulation window on all ranks, counted
//! before the first backward pass. A mean over micro-batches of their means is another number
//! wherever micro-batches differ in their supervised tokens (huggingface/transformers#34191); here
//! it cannot be written, because [`WindowTokens`] is the only denominator there is.

use std::num::NonZeroU64;

/// Supervised tokens of a whole accumulation window, over all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowTokens(NonZeroU64);

/// The loss of some tokens of a window, as their share of the window's mean.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLoss {
    /// The sum over the tokens divided by the window's supervised tokens, nats. The shares of a
    /// window's micro-batches and ranks add up to its loss.
    pub share: f64,
    /// Gradient at each log-probability; zero where the mask is false.
    pub d_logprobs: Vec<f64>,
}

impl WindowTokens {
    /// The sum of the ranks' counts, each of which may be 0; `None` when all are, which trains
    /// nothing and must not be a loss of zero.
    pub fn of_ranks(counts: &[u64]) -> Option<Self> {
        NonZeroU64::new(counts.iter().sum()).map(WindowTokens)
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// `-sum(mask * logprob) / window`: the share of some tokens, `logprobs` and `mask` `[tokens]`.
///
/// # Panics
/// When there are not as many mask entries as log-probabilities.
pub fn loss(logprobs: &[f32], mask: &[bool], window: WindowTokens) -> TokenLoss {
    assert_eq!(logprobs.len(), mask.len(), "a mask entry for every token");
    let one = 1.0 / window.get() as f64;
    let selected = logprobs.iter().zip(mask).filter(|(_, kept)| **kept);
    let sum: f64 = selected.map(|(&logprob, _)| -f64::from(logprob)).sum();
    TokenLoss {
        share: sum / window.get() as f64,
        d_logprobs: mask
            .iter()
            .map(|&kept| if kept { -one } else { 0.0 })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(counts: &[u64]) -> WindowTokens {
        WindowTokens::of_ranks(counts).unwrap()
    }

    fn of(losses: &[f32], window: WindowTokens) -> f64 {
        let logprobs: Vec<f32> = losses.iter().map(|loss| -loss).collect();
        loss(&logprobs, &vec![true; losses.len()], window).share
    }

    #[test]
    fn a_window_has_one_mean_however_it_is_split() {
        // Token losses (2, 1) and six of 3: 21 / 8, where a mean of means is 2.25.
        let counts = window(&[2, 6]);
        let split = of(&[2.0, 1.0], counts) + of(&[3.0; 6], counts);
        assert_eq!(split, 2.625);
        // One token of loss 2 and nine of loss 1: 1.1 for every split, a mean of means is 1.5.
        let losses: Vec<f32> = [vec![2.0], vec![1.0; 9]].concat();
        for cut in 0..=10 {
            let counts = window(&[cut, 10 - cut]);
            let (left, right) = losses.split_at(cut as usize);
            let sum = of(left, counts) + of(right, counts);
            assert!((sum - 1.1).abs() < 1e-12, "cut at {cut}: {sum}");
        }
    }

    #[test]
    fn masked_tokens_enter_neither_side() {
        let counts = window(&[2]);
        let got = loss(&[-1.0, -100.0, -3.0], &[true, false, true], counts);
        assert_eq!(got.share, 2.0);
        assert_eq!(got.d_logprobs, [-0.5, 0.0, -0.5]);
        // Even where what is masked is no number.
        let got = loss(&[-1.0, f32::NAN], &[true, false], window(&[1]));
        assert_eq!(got.share, 1.0);
        assert_eq!(WindowTokens::of_ranks(&[0, 0]), None);
    }
}
