//! What the preference objectives share: a pair's log-probabilities, and one list of objectives.
//!
//! Every objective is the loss of one pair; the mean over the pairs of an accumulation window is
//! the trainer's.

use serde::{Deserialize, Serialize};

use super::{conservative_dpo, dpo, ipo, length_normalised_dpo, robust_dpo, simpo};

/// Log-probabilities of the two replies of a pair: sums over their supervised tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairLogprobs {
    /// Of the chosen reply, by the policy that is trained.
    pub policy_chosen: f64,
    /// Of the rejected reply, by the policy that is trained.
    pub policy_rejected: f64,
    /// Of the chosen reply, by the frozen reference.
    pub reference_chosen: f64,
    /// Of the rejected reply, by the frozen reference.
    pub reference_rejected: f64,
    /// Supervised tokens of the chosen reply; at least 1.
    pub n_chosen: usize,
    /// Supervised tokens of the rejected reply; at least 1.
    pub n_rejected: usize,
}

/// The loss of one pair, what it says of the pair, and its gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairLoss {
    /// The loss.
    pub loss: f64,
    /// Gradient at [`PairLogprobs::policy_chosen`], and so at each of its tokens.
    pub d_chosen: f64,
    /// Gradient at [`PairLogprobs::policy_rejected`].
    pub d_rejected: f64,
    /// The objective's implicit reward of the chosen reply, which its loss compares.
    pub chosen_reward: f64,
    /// The same of the rejected reply.
    pub rejected_reward: f64,
    /// How strongly the pair still pulls, relative to what the objective multiplies it by: for DPO
    /// `sigmoid(-beta h)`, 0.5 at first and near 0 where the pair is satisfied; for IPO the
    /// distance from its target, 1 at first.
    pub gradient_weight: f64,
}

/// The preference objectives and their constants.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum PreferenceObjective {
    /// Direct preference optimisation: [`dpo`].
    Dpo {
        /// Strength of the pull towards the reference.
        beta: f64,
    },
    /// DPO with smoothed labels: [`conservative_dpo`].
    ConservativeDpo {
        /// As for DPO.
        beta: f64,
        /// The share of pairs whose labels are taken to be swapped; above 0, below 0.5.
        label_smoothing: f64,
    },
    /// DPO whose expectation does not change under swapped labels: [`robust_dpo`].
    RobustDpo {
        /// As for DPO.
        beta: f64,
        /// The share of pairs whose labels are swapped; above 0, below 0.5.
        label_smoothing: f64,
    },
    /// Identity preference optimisation: [`ipo`].
    Ipo {
        /// Strength of the pull towards the reference; the target margin is `1 / (2 tau)`.
        tau: f64,
        /// Whether log-ratios are divided by their replies' lengths first.
        averaged: bool,
    },
    /// DPO over log-ratios per token: [`length_normalised_dpo`].
    LengthNormalisedDpo {
        /// As for DPO; about 5 in the source.
        beta: f64,
    },
    /// Reference-free, with a target margin: [`simpo`].
    Simpo {
        /// Multiplies log-probabilities per token.
        beta: f64,
        /// The target margin; 0 or more.
        gamma: f64,
    },
}

/// A constant with which an objective is not what its name says.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("use {objective}: {setting} is {got}, {reason}")]
pub struct ObjectiveError {
    /// The objective.
    pub objective: &'static str,
    /// The constant.
    pub setting: &'static str,
    /// Its value.
    pub got: f64,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl PairLogprobs {
    /// How much more the policy's log-ratio favours the chosen reply than the reference's does:
    /// `h = (pc - rc) - (pr - rr)`.
    pub fn h(&self) -> f64 {
        (self.policy_chosen - self.reference_chosen)
            - (self.policy_rejected - self.reference_rejected)
    }

    /// Whether the policy gives the chosen reply the higher log-probability per token.
    pub fn prefers_chosen(&self) -> bool {
        self.policy_chosen / self.n_chosen as f64 > self.policy_rejected / self.n_rejected as f64
    }
}

impl PreferenceObjective {
    /// Its name in configuration files.
    pub fn name(&self) -> &'static str {
        match self {
            PreferenceObjective::Dpo { .. } => "dpo",
            PreferenceObjective::ConservativeDpo { .. } => "conservative_dpo",
            PreferenceObjective::RobustDpo { .. } => "robust_dpo",
            PreferenceObjective::Ipo { .. } => "ipo",
            PreferenceObjective::LengthNormalisedDpo { .. } => "length_normalised_dpo",
            PreferenceObjective::Simpo { .. } => "simpo",
        }
    }

    /// The loss of one pair.
    pub fn loss(&self, pair: &PairLogprobs) -> PairLoss {
        match *self {
            PreferenceObjective::Dpo { beta } => dpo::loss(pair, beta),
            PreferenceObjective::ConservativeDpo {
                beta,
                label_smoothing,
            } => conservative_dpo::loss(pair, beta, label_smoothing),
            PreferenceObjective::RobustDpo {
                beta,
                label_smoothing,
            } => robust_dpo::loss(pair, beta, label_smoothing),
            PreferenceObjective::Ipo { tau, averaged } => ipo::loss(pair, tau, averaged),
            PreferenceObjective::LengthNormalisedDpo { beta } => {
                length_normalised_dpo::loss(pair, beta)
            }
            PreferenceObjective::Simpo { beta, gamma } => simpo::loss(pair, beta, gamma),
        }
    }

    /// Whether it reads the reference's log-probabilities.
    pub fn needs_reference(&self) -> bool {
        !matches!(self, PreferenceObjective::Simpo { .. })
    }

    /// The loss of any pair while the policy is the reference, where that is known beforehand.
    pub fn first_loss(&self) -> Option<f64> {
        match *self {
            PreferenceObjective::Ipo { tau, .. } => Some((0.5 / tau).powi(2)),
            PreferenceObjective::Simpo { .. } => None,
            _ => Some(std::f64::consts::LN_2),
        }
    }

    /// Checks the constants.
    ///
    /// # Errors
    /// When one is out of its range, or leaves the objective another one of the list.
    pub fn check(&self) -> Result<(), ObjectiveError> {
        let refuse = |setting, got, reason| {
            Err(ObjectiveError {
                objective: self.name(),
                setting,
                got,
                reason,
            })
        };
        let (setting, strength) = match *self {
            PreferenceObjective::Ipo { tau, .. } => ("tau", tau),
            PreferenceObjective::Dpo { beta }
            | PreferenceObjective::ConservativeDpo { beta, .. }
            | PreferenceObjective::RobustDpo { beta, .. }
            | PreferenceObjective::LengthNormalisedDpo { beta }
            | PreferenceObjective::Simpo { beta, .. } => ("beta", beta),
        };
        if !(strength.is_finite() && strength > 0.0) {
            return refuse(setting, strength, "which is not a positive number");
        }
        match *self {
            PreferenceObjective::ConservativeDpo {
                label_smoothing, ..
            }
            | PreferenceObjective::RobustDpo {
                label_smoothing, ..
            } => {
                if label_smoothing == 0.0 {
                    return refuse(
                        "label_smoothing",
                        label_smoothing,
                        "with which it is plain dpo: name that",
                    );
                }
                if !(label_smoothing > 0.0 && label_smoothing < 0.5) {
                    return refuse(
                        "label_smoothing",
                        label_smoothing,
                        "which is not between 0 and 0.5: from there on labels say nothing or the \
                         opposite",
                    );
                }
            }
            PreferenceObjective::Simpo { gamma, .. } if !(gamma.is_finite() && gamma >= 0.0) => {
                return refuse("gamma", gamma, "which is negative or no number");
            }
            _ => {}
        }
        Ok(())
    }
}
