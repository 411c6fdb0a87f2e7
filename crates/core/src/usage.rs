//! What a trial consumed.

use serde::{Deserialize, Serialize};

/// Tokens as the server reported them. What it did not report stays `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    /// Tokens of the prompt, cached ones included.
    pub prompt_tokens: Option<u64>,
    /// Prompt tokens that the server took from its cache.
    pub cached_tokens: Option<u64>,
    /// Tokens the model produced.
    pub completion_tokens: Option<u64>,
}

impl Usage {
    /// Adds another call's usage. A count is unknown only while no call has reported it.
    pub fn add(&mut self, other: Usage) {
        fn sum(a: &mut Option<u64>, b: Option<u64>) {
            if let Some(b) = b {
                *a = Some(a.unwrap_or(0).saturating_add(b));
            }
        }
        sum(&mut self.prompt_tokens, other.prompt_tokens);
        sum(&mut self.cached_tokens, other.cached_tokens);
        sum(&mut self.completion_tokens, other.completion_tokens);
    }
}

/// Money in millionths of a US dollar, so that sums are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MicroDollars(pub u64);

impl MicroDollars {
    /// From dollars; a negative or non-finite amount is not an amount.
    pub fn from_dollars(dollars: f64) -> Option<Self> {
        (dollars.is_finite() && dollars >= 0.0)
            .then(|| MicroDollars((dollars * 1e6).round() as u64))
    }

    /// In dollars.
    pub fn dollars(self) -> f64 {
        self.0 as f64 / 1e6
    }
}
