//! Conservative DPO: labels are taken to be swapped with a small probability (E. Mitchell, "A note
//! on DPO with noisy preferences", 2023, equation 3).

use super::{
    dpo,
    pair::{PairLogprobs, PairLoss},
    sigmoid, softplus,
};

/// `-(1 - e) ln sigmoid(beta h) - e ln sigmoid(-beta h)`, least where `sigmoid(beta h) = 1 - e`.
pub fn loss(pair: &PairLogprobs, beta: f64, label_smoothing: f64) -> PairLoss {
    let logit = beta * pair.h();
    let e = label_smoothing;
    // Of the derivative at the logit, -(1 - e) sigmoid(-logit) + e sigmoid(logit).
    let pull = sigmoid(-logit) - e;
    PairLoss {
        loss: (1.0 - e) * softplus(-logit) + e * softplus(logit),
        d_chosen: -beta * pull,
        d_rejected: beta * pull,
        gradient_weight: pull.abs(),
        ..dpo::loss(pair, beta)
    }
}
