//! SimPO: rewards are log-probabilities per token, without a reference, and the chosen reply must
//! win by a margin (Meng et al., arXiv 2405.14734, equation 6).

use super::{
    pair::{PairLogprobs, PairLoss},
    sigmoid, softplus,
};

/// `-ln sigmoid(beta (pc / |c| - pr / |r|) - gamma)`. The reference is not read.
pub fn loss(pair: &PairLogprobs, beta: f64, gamma: f64) -> PairLoss {
    let (n_chosen, n_rejected) = (pair.n_chosen as f64, pair.n_rejected as f64);
    let chosen = beta * pair.policy_chosen / n_chosen;
    let rejected = beta * pair.policy_rejected / n_rejected;
    let logit = chosen - rejected - gamma;
    let weight = sigmoid(-logit);
    PairLoss {
        loss: softplus(-logit),
        d_chosen: -beta * weight / n_chosen,
        d_rejected: beta * weight / n_rejected,
        chosen_reward: chosen,
        rejected_reward: rejected,
        gradient_weight: weight,
    }
}
