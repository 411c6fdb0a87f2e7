//! What is measured at every update, each metric with one name, unit and denominator.

pub mod crc32c;
pub mod jsonl;
pub mod tensorboard;

use serde::{Serialize, Serializer, ser::SerializeMap};
use temper_core::metric::MetricValue;

/// Declares the metrics in one list.
macro_rules! metrics {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $unit:literal, $denominator:literal, $meaning:literal;)*) => {
        /// A number that an update may have.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Metric {
            $(#[doc = $meaning] $variant,)*
        }

        impl Metric {
            /// All, in the order in which they are shown.
            pub const ALL: &[Metric] = &[$(Metric::$variant),*];

            /// Its name in files.
            pub fn name(self) -> &'static str {
                match self { $(Metric::$variant => $name,)* }
            }

            /// Its unit.
            pub fn unit(self) -> &'static str {
                match self { $(Metric::$variant => $unit,)* }
            }

            /// What it is divided by or averaged over.
            pub fn denominator(self) -> &'static str {
                match self { $(Metric::$variant => $denominator,)* }
            }

            /// What it says.
            pub fn meaning(self) -> &'static str {
                match self { $(Metric::$variant => $meaning,)* }
            }
        }
    };
}

metrics! {
    Loss, "loss", "nats", "supervised tokens of the window (sft) or pairs of the window (preference)",
        "The objective before the update.";
    GradientNorm, "gradient_norm", "nats per unit of weight", "none",
        "Euclidean norm of all gradients before clipping.";
    LearningRate, "learning_rate", "none", "none",
        "Learning rate of the update.";
    Rows, "rows", "rows", "none",
        "Rows, or pairs, of the window.";
    Tokens, "tokens", "tokens", "none",
        "Tokens that went through the model, those of prompts included.";
    SupervisedTokens, "supervised_tokens", "tokens", "none",
        "Tokens that carry gradient.";
    Seconds, "seconds", "seconds", "none",
        "Wall time of the update.";
    TokensPerSecond, "tokens_per_second", "tokens per second", "wall time of the update",
        "Tokens that went through the model, over the update's time.";
    MemoryPeak, "memory_peak_bytes", "bytes", "none",
        "The most that tensors on the device have held since the start.";
    RewardMargin, "reward_margin", "units of reward", "pairs of the window",
        "Implicit reward of the chosen reply less that of the rejected one.";
    RewardChosen, "reward_chosen", "units of reward", "pairs of the window",
        "Implicit reward of the chosen reply.";
    RewardRejected, "reward_rejected", "units of reward", "pairs of the window",
        "Implicit reward of the rejected reply.";
    SatisfiedShare, "satisfied_share", "share", "pairs of the window",
        "Pairs whose chosen reply has the greater implicit reward; ties count as not.";
    PreferredShare, "preferred_share", "share", "pairs of the window",
        "Pairs whose chosen reply has the greater log-probability per token.";
    GradientWeight, "gradient_weight", "none", "pairs of the window",
        "How strongly pairs still pull: for DPO 0.5 at first, near 0 where they are satisfied.";
    ChosenLogprobChange, "chosen_logprob_change", "nats per reply", "pairs of the window",
        "Log-probability of the chosen reply less the reference's.";
    RejectedLogprobChange, "rejected_logprob_change", "nats per reply", "pairs of the window",
        "Log-probability of the rejected reply less the reference's.";
    ChosenLogprob, "chosen_logprob", "nats per token", "supervised tokens of each reply, then pairs",
        "Log-probability of the chosen reply.";
    RejectedLogprob, "rejected_logprob", "nats per token", "supervised tokens of each reply, then pairs",
        "Log-probability of the rejected reply.";
}

/// The metrics of an update, in the order they were set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics(Vec<(Metric, MetricValue)>);

impl Metrics {
    /// Sets a metric. A number that is not finite stays what it is; `None` is "not recorded".
    pub fn set(&mut self, metric: Metric, value: impl Into<MetricValue>) {
        let value = value.into();
        match self.0.iter_mut().find(|(known, _)| *known == metric) {
            Some((_, old)) => *old = value,
            None => self.0.push((metric, value)),
        }
    }

    /// A metric, "not recorded" where it was not set.
    pub fn get(&self, metric: Metric) -> MetricValue {
        self.iter()
            .find(|(known, _)| *known == metric)
            .map_or(MetricValue::NotRecorded, |(_, value)| value)
    }

    /// All that were set.
    pub fn iter(&self) -> impl Iterator<Item = (Metric, MetricValue)> + '_ {
        self.0.iter().copied()
    }
}

/// As a JSON object of names and values.
impl Serialize for Metrics {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (metric, value) in self.iter() {
            map.serialize_entry(metric.name(), &value)?;
        }
        map.end()
    }
}
