//! Direct preference optimisation (Rafailov et al., arXiv 2305.18290, equation 7).

use super::{
    pair::{PairLogprobs, PairLoss},
    sigmoid, softplus,
};

/// `-ln sigmoid(beta h)`, with [`h`](PairLogprobs::h) over sums of log-probabilities.
pub fn loss(pair: &PairLogprobs, beta: f64) -> PairLoss {
    let logit = beta * pair.h();
    let weight = sigmoid(-logit);
    PairLoss {
        loss: softplus(-logit),
        d_chosen: -beta * weight,
        d_rejected: beta * weight,
        chosen_reward: beta * (pair.policy_chosen - pair.reference_chosen),
        rejected_reward: beta * (pair.policy_rejected - pair.reference_rejected),
        gradient_weight: weight,
    }
}
