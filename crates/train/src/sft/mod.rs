//! Supervised fine-tuning: rows of ids with a loss mask, an adapter or a whole model.

mod self_test;

use serde::{Deserialize, Serialize};
use temper_checkpoint::{Adapter as AdapterFile, Checkpoint};
use temper_core::{Digest, digest::Hasher};
use temper_model::{Device, transformer::PackedBatch};

use crate::{
    config::{SettingError, TrainingConfig},
    events::{Event, UpdateRecord},
    learner::Learner,
    loss::{self, WindowTokens},
    metrics::Metrics,
    passes::passes,
    row::Row,
    run::{Objective, Outcome, Run, RunPlan, TrainError, plan, train},
};

pub use self_test::{SelfTest, Split};

/// Settings of supervised fine-tuning.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SftConfig {
    /// Settings that all objectives share.
    pub training: TrainingConfig,
    /// Whether several rows go through the model at once where they fit. Attention does not cross
    /// from one into another, so losses and gradients are the same.
    pub packing: bool,
    /// Tokens of the largest pass; those of the longest row unless named.
    pub max_tokens_per_pass: Option<usize>,
}

/// Trains on rows.
///
/// The loss of an update is the sum of the negative log-likelihoods of all supervised tokens of
/// its window over their number, the last window of an epoch, which may be short, like any other.
/// The run goes on from the newest whole snapshot in its folder.
///
/// # Errors
/// See [`TrainError`]; settings, data and memory are checked before anything is taken or written.
pub fn train_sft<D: Device>(
    run: &mut Run<'_, D>,
    config: &SftConfig,
    rows: &[Row],
) -> Result<Outcome, TrainError> {
    train(run, &mut Sft { config, rows })
}

/// Plans supervised training and checks it as [`train_sft`] does, without taking anything.
///
/// # Errors
/// See [`TrainError`].
pub fn plan_sft<D: Device>(
    device: &D,
    checkpoint: &Checkpoint,
    adapter: Option<&AdapterFile>,
    config: &SftConfig,
    rows: &[Row],
) -> Result<RunPlan, TrainError> {
    plan(device, checkpoint, adapter, &Sft { config, rows })
}

/// Lets a learner's gradients grow by those of some of a window's batches; returns their share of
/// the window's loss.
///
/// `window` counts the whole window on all ranks, so a rank's batches, or a part of them, give a
/// part of the same gradient.
pub fn accumulate<D: Device>(
    learner: &mut Learner<D>,
    batches: &[PackedBatch],
    window: WindowTokens,
) -> Result<f64, TrainError> {
    let mut share = 0.0;
    for batch in batches {
        let scores = learner.supervised(batch, window)?;
        let mask = vec![true; scores.logprobs.len()];
        share += loss::sft::loss(&scores.logprobs, &mask, window).share;
    }
    Ok(share)
}

struct Sft<'a> {
    config: &'a SftConfig,
    rows: &'a [Row],
}

impl SftConfig {
    /// Tokens of the largest pass over these rows.
    fn max_tokens(&self, rows: &[Row]) -> Result<usize, SettingError> {
        let refuse = |setting: &str, reason: String| Err(SettingError::new(setting, reason));
        let mut lengths: Vec<usize> = rows.iter().map(Row::n_tokens).collect();
        lengths.sort_unstable();
        let longest = lengths.last().copied().unwrap_or(0);
        let max = self.max_tokens_per_pass.unwrap_or(longest);
        if max < longest {
            return refuse(
                "max_tokens_per_pass",
                format!("{max} tokens do not hold the longest row, which has {longest}"),
            );
        }
        if self.packing {
            if self.training.rows_per_update == 1 {
                return refuse(
                    "packing",
                    "an update has one row, so there is nothing to pack".into(),
                );
            }
            let two: usize = lengths.iter().take(2).sum();
            if two > max {
                let reason = format!(
                    "the two shortest rows have {two} tokens and a pass {max}; set \
                     max_tokens_per_pass"
                );
                return refuse("packing", reason);
            }
        } else if max > longest {
            let reason = format!(
                "without packing a pass holds one row, and the longest has {longest} tokens"
            );
            return refuse("max_tokens_per_pass", reason);
        }
        Ok(max)
    }
}

impl<D: Device> Objective<D> for Sft<'_> {
    fn name(&self) -> &'static str {
        "sft"
    }

    fn training(&self) -> &TrainingConfig {
        &self.config.training
    }

    fn config(&self) -> serde_json::Value {
        serde_json::to_value(self.config).expect("plain data serializes to JSON")
    }

    fn decisive(&self) -> serde_json::Value {
        serde_json::json!({
            "training": serde_json::to_value(self.config.training.decisive())
                .expect("plain data serializes to JSON"),
            "packing": self.config.packing,
            "max_tokens_per_pass": self.config.max_tokens_per_pass,
        })
    }

    fn data(&self) -> Digest {
        let mut hasher = Hasher::default();
        for row in self.rows {
            row.hash_into(&mut hasher);
        }
        hasher.finish()
    }

    fn sizes(&self) -> Vec<(usize, usize)> {
        let size = |row: &Row| (row.n_tokens(), row.n_supervised());
        self.rows.iter().map(size).collect()
    }

    fn longest(&self) -> Vec<usize> {
        self.rows.iter().map(Row::n_tokens).collect()
    }

    fn max_tokens(&self) -> Result<usize, SettingError> {
        self.config.max_tokens(self.rows)
    }

    fn prepare(
        &mut self,
        learner: &mut Learner<D>,
        tell: &mut dyn FnMut(Event) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let max_tokens = self.config.max_tokens(self.rows)?;
        let batch = self_test::sample(self.rows, max_tokens);
        let test = self_test::run(learner, &batch, accumulate)?;
        tell(Event::SelfTest(test.clone()))?;
        if !test.is_passed() {
            return Err(TrainError::SelfTest(Box::new(test)));
        }
        Ok(())
    }

    fn accumulate(
        &mut self,
        learner: &mut Learner<D>,
        window: &[usize],
    ) -> Result<(f64, Metrics), TrainError> {
        let rows = || window.iter().map(|&row| &self.rows[row]);
        let count = rows().map(|row| row.n_supervised() as u64).sum();
        let Some(count) = WindowTokens::of_ranks(&[count]) else {
            return Err(TrainError::NoRows);
        };
        let max_tokens = self.config.max_tokens(self.rows)?;
        let batches = passes(rows(), self.config.packing, max_tokens);
        let loss = accumulate(learner, &batches, count)?;
        Ok((loss, Metrics::default()))
    }

    fn diagnose(&mut self, _: &UpdateRecord) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}
