//! The settings that all training loops share, and what makes them wrong.
//!
//! Every setting is read by something. One that cannot change anything under the others is an
//! error with its reason, so that nobody believes in an effect that is not there.

use serde::{Deserialize, Serialize};
use temper_model::{DType, transformer::Keep};

use crate::{
    method::Method,
    optimizer::{MomentKind, OptimizerConfig},
    order::DataOrder,
    schedule::{Decay, Schedule},
};

/// Settings of a training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainingConfig {
    /// What is trained.
    pub method: Method,
    /// Times that every row, or pair, is seen.
    pub epochs: u64,
    /// Updates after which training ends before the epochs do.
    pub max_updates: Option<u64>,
    /// Rows, or pairs, of one update: the accumulation window, over all ranks.
    pub rows_per_update: usize,
    /// In which order they come.
    pub order: DataOrder,
    /// What the order and a fresh adapter are drawn from.
    pub seed: u64,
    /// How weights change.
    pub optimizer: OptimizerSettings,
    /// Which activations are kept for the backward pass.
    pub activations: Activations,
    /// The type of activations, to be sure of it; what the device has unless named.
    pub precision: Option<Precision>,
    /// When snapshots are written.
    pub snapshots: SnapshotSettings,
}

/// Settings of AdamW and its learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerSettings {
    /// Learning rate at its peak.
    pub learning_rate: f32,
    /// Updates over which it rises.
    pub warmup_updates: u64,
    /// How it falls until the last update.
    pub decay: DecayKind,
    /// The share of the peak that it falls to.
    pub floor: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Weight decay of matrices, multiplied by the learning rate; norms and biases have none.
    pub weight_decay: f32,
    /// The norm to which larger gradients are scaled down; none clips nothing.
    pub max_gradient_norm: Option<f32>,
    /// How moments are held.
    pub moments: MomentKind,
}

/// How the learning rate falls after its rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecayKind {
    /// It does not.
    #[default]
    Constant,
    /// On a straight line.
    Linear,
    /// On half a cosine wave.
    Cosine,
}

/// Which activations are kept; what is not is computed again, with the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Activations {
    /// All of them.
    #[default]
    KeepAll,
    /// Those of one layer at a time.
    Recompute,
    /// Those of this many layers.
    KeepLayers {
        /// Layers that keep theirs.
        layers: usize,
    },
    /// Those of as many layers as fit when everything takes this much memory.
    Within {
        /// Mebibytes for weights, gradients, optimizer states and the pass together.
        mebibytes: usize,
    },
}

/// The type of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32-bit floating point: processors.
    F32,
    /// bfloat16 with f32 sums, masters and moments: GPUs.
    Bf16,
}

/// When snapshots are written. One is always written after the last update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SnapshotSettings {
    /// After every epoch.
    pub every_epoch: bool,
    /// After every so many updates.
    pub every_updates: Option<u64>,
}

/// A setting that is wrong, or has no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use the setting {setting}: {reason}")]
pub struct SettingError {
    /// Its path in the configuration.
    pub setting: String,
    /// What is wrong.
    pub reason: String,
}

impl SettingError {
    pub(crate) fn new(setting: &str, reason: impl Into<String>) -> Self {
        SettingError {
            setting: setting.to_owned(),
            reason: reason.into(),
        }
    }
}

impl Default for TrainingConfig {
    fn default() -> Self {
        TrainingConfig {
            method: Method::default(),
            epochs: 1,
            max_updates: None,
            rows_per_update: 16,
            order: DataOrder::Shuffled,
            seed: 0,
            optimizer: OptimizerSettings::default(),
            activations: Activations::default(),
            precision: None,
            snapshots: SnapshotSettings::default(),
        }
    }
}

impl Default for OptimizerSettings {
    fn default() -> Self {
        let defaults = OptimizerConfig::default();
        OptimizerSettings {
            learning_rate: defaults.learning_rate,
            warmup_updates: 0,
            decay: DecayKind::Constant,
            floor: 0.0,
            beta1: defaults.beta1,
            beta2: defaults.beta2,
            epsilon: defaults.epsilon,
            weight_decay: defaults.weight_decay,
            max_gradient_norm: defaults.max_gradient_norm,
            moments: defaults.moments,
        }
    }
}

impl Default for SnapshotSettings {
    fn default() -> Self {
        SnapshotSettings {
            every_epoch: true,
            every_updates: None,
        }
    }
}

impl OptimizerSettings {
    /// The optimizer of a run of so many updates.
    pub fn resolve(&self, total_updates: u64) -> OptimizerConfig {
        let floor = self.floor;
        OptimizerConfig {
            learning_rate: self.learning_rate,
            schedule: Schedule {
                warmup_updates: self.warmup_updates,
                decay: match self.decay {
                    DecayKind::Constant => Decay::Constant,
                    DecayKind::Linear => Decay::Linear {
                        total_updates,
                        floor,
                    },
                    DecayKind::Cosine => Decay::Cosine {
                        total_updates,
                        floor,
                    },
                },
            },
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon: self.epsilon,
            weight_decay: self.weight_decay,
            max_gradient_norm: self.max_gradient_norm,
            moments: self.moments,
        }
    }

    fn check(&self, total_updates: u64) -> Result<(), SettingError> {
        let refuse = |setting: &str, reason: String| {
            Err(SettingError::new(&format!("optimizer.{setting}"), reason))
        };
        let rate = self.learning_rate;
        if !(rate.is_finite() && rate > 0.0) {
            return refuse("learning_rate", format!("{rate} is not a positive number"));
        }
        for (setting, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return refuse(setting, format!("{beta} is not from 0 to below 1"));
            }
        }
        if !(self.epsilon.is_finite() && self.epsilon > 0.0) {
            return refuse("epsilon", format!("{} is not positive", self.epsilon));
        }
        if !(self.weight_decay.is_finite() && self.weight_decay >= 0.0) {
            let decay = self.weight_decay;
            return refuse("weight_decay", format!("{decay} is negative or no number"));
        }
        if let Some(norm) = self.max_gradient_norm
            && !(norm.is_finite() && norm > 0.0)
        {
            return refuse("max_gradient_norm", format!("{norm} is not positive"));
        }
        if !(0.0..=1.0).contains(&self.floor) {
            return refuse("floor", format!("{} is not from 0 to 1", self.floor));
        }
        if self.decay == DecayKind::Constant && self.floor != 0.0 {
            let reason = "a constant learning rate does not fall, so it has no floor";
            return refuse("floor", reason.into());
        }
        if self.decay != DecayKind::Constant && self.floor == 1.0 {
            let reason = "a floor at the peak makes the rate constant: set decay to constant";
            return refuse("floor", reason.into());
        }
        if self.warmup_updates >= total_updates {
            return refuse(
                "warmup_updates",
                format!(
                    "the rate would rise over {} of {total_updates} updates and never reach its peak",
                    self.warmup_updates
                ),
            );
        }
        if self.decay != DecayKind::Constant && total_updates == self.warmup_updates + 1 {
            return refuse(
                "decay",
                format!(
                    "after a rise of {} there is one update of {total_updates} left, which is at the peak",
                    self.warmup_updates
                ),
            );
        }
        Ok(())
    }
}

impl TrainingConfig {
    /// Updates of a run over so many rows or pairs.
    pub fn total_updates(&self, n_rows: usize) -> u64 {
        let per_epoch = n_rows.div_ceil(self.rows_per_update.max(1)) as u64;
        let all = self.epochs.saturating_mul(per_epoch);
        self.max_updates.map_or(all, |max| max.min(all))
    }

    /// Checks every setting against the others, the number of rows, the model's layers and the
    /// device.
    ///
    /// # Errors
    /// The first setting that is wrong or without effect.
    pub fn check(
        &self,
        n_rows: usize,
        n_layers: usize,
        activation: DType,
    ) -> Result<(), SettingError> {
        let refuse = |setting: &str, reason: String| Err(SettingError::new(setting, reason));
        if self.epochs == 0 {
            return refuse("epochs", "nothing would be trained".into());
        }
        if self.rows_per_update == 0 {
            return refuse("rows_per_update", "an update needs a row".into());
        }
        if self.rows_per_update > n_rows {
            return refuse(
                "rows_per_update",
                format!(
                    "{} are asked for and there are {n_rows}; every update would be smaller than \
                     this says",
                    self.rows_per_update
                ),
            );
        }
        let of_epochs = self.epochs * n_rows.div_ceil(self.rows_per_update) as u64;
        match self.max_updates {
            Some(0) => return refuse("max_updates", "nothing would be trained".into()),
            Some(max) if max >= of_epochs => {
                let reason = format!("{} epochs end after {of_epochs} updates", self.epochs);
                return refuse("max_updates", reason);
            }
            _ => {}
        }
        let total = self.total_updates(n_rows);
        match self.order {
            DataOrder::Bucketed { windows: 0 | 1 } => {
                let reason = "sorting within single windows leaves each window its rows; 2 or more \
                              have an effect";
                return refuse("order.windows", reason.into());
            }
            DataOrder::Bucketed { .. } if of_epochs == self.epochs => {
                let reason = format!("all {n_rows} rows are one window");
                return refuse("order", reason);
            }
            _ => {}
        }
        self.optimizer.check(total)?;
        self.method
            .adapter()
            .map_err(|(setting, reason)| SettingError::new(setting, reason))?;
        match self.activations {
            Activations::KeepLayers { layers } if layers + 1 >= n_layers => {
                let reason = format!("of {n_layers} layers all but the last are all: set keep_all");
                return refuse("activations.layers", reason);
            }
            Activations::KeepLayers { layers: 0 } => {
                return refuse("activations.layers", "none is kept: set recompute".into());
            }
            Activations::Recompute if n_layers == 1 => {
                let reason = "the only layer's activations are still there: set keep_all";
                return refuse("activations", reason.into());
            }
            _ => {}
        }
        let has = match activation {
            DType::F32 => Precision::F32,
            _ => Precision::Bf16,
        };
        if let Some(wanted) = self.precision
            && wanted != has
        {
            let reason = format!("{wanted:?} is asked for, and this device computes in {has:?}");
            return refuse("precision", reason);
        }
        if let Some(every) = self.snapshots.every_updates {
            if every == 0 {
                return refuse("snapshots.every_updates", "it is 0".into());
            }
            if every >= total {
                let reason = format!(
                    "there are {total} updates, and a snapshot is written after the last anyway"
                );
                return refuse("snapshots.every_updates", reason);
            }
        }
        Ok(())
    }

    /// What of the settings changes results: all but when snapshots are written and which
    /// activations are kept.
    pub(crate) fn decisive(&self) -> TrainingConfig {
        TrainingConfig {
            activations: Activations::default(),
            precision: None,
            snapshots: SnapshotSettings::default(),
            ..self.clone()
        }
    }
}

impl Activations {
    /// The plan's word for it.
    pub(crate) fn keep(self) -> Keep {
        match self {
            Activations::KeepAll => Keep::All,
            Activations::Recompute => Keep::Layers(0),
            Activations::KeepLayers { layers } => Keep::Layers(layers),
            Activations::Within { mebibytes } => Keep::Within(mebibytes << 20),
        }
    }
}
