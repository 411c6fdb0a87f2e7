//! DPO over log-ratios per token (Tülu 3, Lambert et al., arXiv 2411.15124, equation 6).

use super::{
    pair::{PairLogprobs, PairLoss},
    sigmoid, softplus,
};

/// `-ln sigmoid(beta ((pc - rc) / |c| - (pr - rr) / |r|))`.
pub fn loss(pair: &PairLogprobs, beta: f64) -> PairLoss {
    let (n_chosen, n_rejected) = (pair.n_chosen as f64, pair.n_rejected as f64);
    let chosen = beta * (pair.policy_chosen - pair.reference_chosen) / n_chosen;
    let rejected = beta * (pair.policy_rejected - pair.reference_rejected) / n_rejected;
    let weight = sigmoid(rejected - chosen);
    PairLoss {
        loss: softplus(rejected - chosen),
        d_chosen: -beta * weight / n_chosen,
        d_rejected: beta * weight / n_rejected,
        chosen_reward: chosen,
        rejected_reward: rejected,
        gradient_weight: weight,
    }
}
