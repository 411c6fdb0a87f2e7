//! Robust DPO: an unbiased estimate of the DPO loss under labels that are swapped with a known
//! probability (Chowdhury et al., arXiv 2403.00409, equation 12).

use super::{
    dpo,
    pair::{PairLogprobs, PairLoss},
    sigmoid, softplus,
};

/// `(-(1 - e) ln sigmoid(beta h) + e ln sigmoid(-beta h)) / (1 - 2 e)`.
pub fn loss(pair: &PairLogprobs, beta: f64, label_smoothing: f64) -> PairLoss {
    let logit = beta * pair.h();
    let e = label_smoothing;
    let scale = 1.0 / (1.0 - 2.0 * e);
    let pull = scale * ((1.0 - e) * sigmoid(-logit) + e * sigmoid(logit));
    PairLoss {
        loss: scale * ((1.0 - e) * softplus(-logit) - e * softplus(logit)),
        d_chosen: -beta * pull,
        d_rejected: beta * pull,
        gradient_weight: pull,
        ..dpo::loss(pair, beta)
    }
}
