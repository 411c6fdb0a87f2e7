//! Identity preference optimisation (Azar et al., arXiv 2310.12036, equation 17).
//!
//! The paper sums log-probabilities. TRL divides each reply's log-ratio by its length first; that
//! is `averaged` here, and the two are different objectives with different useful `tau`.

use super::pair::{PairLogprobs, PairLoss};

/// `(h - 1 / (2 tau))^2`.
pub fn loss(pair: &PairLogprobs, tau: f64, averaged: bool) -> PairLoss {
    let (n_chosen, n_rejected) = match averaged {
        true => (pair.n_chosen as f64, pair.n_rejected as f64),
        false => (1.0, 1.0),
    };
    let chosen = (pair.policy_chosen - pair.reference_chosen) / n_chosen;
    let rejected = (pair.policy_rejected - pair.reference_rejected) / n_rejected;
    let target = 0.5 / tau;
    let distance = chosen - rejected - target;
    PairLoss {
        loss: distance * distance,
        d_chosen: 2.0 * distance / n_chosen,
        d_rejected: -2.0 * distance / n_rejected,
        chosen_reward: tau * chosen,
        rejected_reward: tau * rejected,
        gradient_weight: (distance / target).abs(),
    }
}
