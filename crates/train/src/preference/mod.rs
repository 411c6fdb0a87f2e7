//! Preference training: pairs of replies, one better, and a frozen reference.
//!
//! The reference is the policy as training starts from it. Its log-probabilities are computed
//! once, before the first update, by the very passes that training uses, one pair a pass: so while
//! nothing is trained the two are equal bit for bit, and the first loss of DPO is ln 2 and not
//! nearly so.

mod health;
mod reference;

use serde::{Deserialize, Serialize};
use temper_checkpoint::{Adapter as AdapterFile, Checkpoint};
use temper_core::{Digest, digest::Hasher};
use temper_model::{Device, transformer::PackedBatch};

use crate::{
    config::{SettingError, TrainingConfig},
    events::{Event, UpdateRecord},
    learner::Learner,
    loss::{PairLogprobs, PairLoss, PreferenceObjective},
    metrics::{Metric, Metrics},
    row::{Pair, Row},
    run::{Objective, Outcome, Run, RunPlan, TrainError, plan, train},
};

use self::{
    health::Health,
    reference::{Cache, PairReference},
};

/// Settings of preference training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreferenceConfig {
    /// Settings that all objectives share; rows are pairs here.
    #[serde(default)]
    pub training: TrainingConfig,
    /// What is minimised.
    pub objective: PreferenceObjective,
}

/// Trains on pairs.
///
/// The loss of an update is the mean over the pairs of its window, the last one of an epoch, which
/// may be short, like any other. Log-probabilities are sums over supervised tokens.
///
/// # Errors
/// See [`TrainError`]; settings, data and memory are checked before anything is taken or written.
pub fn train_preference<D: Device>(
    run: &mut Run<'_, D>,
    config: &PreferenceConfig,
    pairs: &[Pair],
) -> Result<Outcome, TrainError> {
    config
        .objective
        .check()
        .map_err(|error| SettingError::new("objective", error.to_string()))?;
    let cache = Cache::of_run(run, config, pairs);
    train(
        run,
        &mut Preference {
            config,
            pairs,
            cache,
            reference: Vec::new(),
            health: Health::new(config.objective),
        },
    )
}

/// Plans preference training and checks it as [`train_preference`] does, without taking anything.
///
/// # Errors
/// See [`TrainError`].
pub fn plan_preference<D: Device>(
    device: &D,
    checkpoint: &Checkpoint,
    adapter: Option<&AdapterFile>,
    config: &PreferenceConfig,
    pairs: &[Pair],
) -> Result<RunPlan, TrainError> {
    let objective = Preference {
        config,
        pairs,
        cache: Cache::nowhere(),
        reference: Vec::new(),
        health: Health::new(config.objective),
    };
    plan(device, checkpoint, adapter, &objective)
}

struct Preference<'a> {
    config: &'a PreferenceConfig,
    pairs: &'a [Pair],
    cache: Cache,
    /// Of each pair; empty where the objective has none.
    reference: Vec<PairReference>,
    health: Health,
}

/// Both replies of a pair as one batch, and how many of its supervised rows are the chosen one's.
fn batch_of(pair: &Pair) -> (PackedBatch, usize) {
    let mut batch = PackedBatch::new();
    for row in [pair.chosen(), pair.rejected()] {
        batch.push(row.ids(), &row.weights());
    }
    (batch, pair.chosen().n_supervised())
}

/// The sum in f64, in the order of the tokens.
fn sum(logprobs: &[f32]) -> f64 {
    logprobs.iter().map(|&it| f64::from(it)).sum()
}

impl<D: Device> Objective<D> for Preference<'_> {
    fn name(&self) -> &'static str {
        self.config.objective.name()
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
            "objective": self.config.objective,
        })
    }

    fn data(&self) -> Digest {
        let mut hasher = Hasher::default();
        for pair in self.pairs {
            pair.chosen().hash_into(&mut hasher);
            pair.rejected().hash_into(&mut hasher);
        }
        hasher.finish()
    }

    fn sizes(&self) -> Vec<(usize, usize)> {
        let supervised =
            |pair: &Pair| pair.chosen().n_supervised() + pair.rejected().n_supervised();
        self.pairs
            .iter()
            .map(|pair| (pair.n_tokens(), supervised(pair)))
            .collect()
    }

    fn longest(&self) -> Vec<usize> {
        let longest = |pair: &Pair| pair.chosen().n_tokens().max(pair.rejected().n_tokens());
        self.pairs.iter().map(longest).collect()
    }

    fn max_tokens(&self) -> Result<usize, SettingError> {
        Ok(self.pairs.iter().map(Pair::n_tokens).max().unwrap_or(0))
    }

    fn prepare(
        &mut self,
        learner: &mut Learner<D>,
        tell: &mut dyn FnMut(Event) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        if !self.config.objective.needs_reference() {
            return Ok(());
        }
        let (mut n_scored, mut n_cached) = (0, 0);
        for pair in self.pairs {
            let known = match self.cache.get(pair) {
                Some(known) => {
                    n_cached += 1;
                    known
                }
                None => {
                    n_scored += 1;
                    let (batch, n_chosen) = batch_of(pair);
                    let scored = learner.score(&batch)?;
                    let (chosen, rejected) = scored.scores.logprobs.split_at(n_chosen);
                    let known = PairReference {
                        chosen: sum(chosen),
                        rejected: sum(rejected),
                    };
                    self.cache.keep(pair, known)?;
                    known
                }
            };
            self.reference.push(known);
        }
        self.cache.flush()?;
        tell(Event::Reference { n_scored, n_cached })
    }

    fn accumulate(
        &mut self,
        learner: &mut Learner<D>,
        window: &[usize],
    ) -> Result<(f64, Metrics), TrainError> {
        let n_pairs = window.len() as f64;
        let mut means = Means::default();
        for &at in window {
            let pair = &self.pairs[at];
            let (batch, n_chosen) = batch_of(pair);
            let scored = learner.score(&batch)?;
            let (chosen, rejected) = scored.scores.logprobs.split_at(n_chosen);
            let reference = self.reference.get(at).copied();
            let logprobs = PairLogprobs {
                policy_chosen: sum(chosen),
                policy_rejected: sum(rejected),
                reference_chosen: reference.map_or(0.0, |it| it.chosen),
                reference_rejected: reference.map_or(0.0, |it| it.rejected),
                n_chosen,
                n_rejected: rejected.len(),
            };
            let loss = self.config.objective.loss(&logprobs);
            means.add(&logprobs, &loss);
            if !loss.loss.is_finite() {
                continue;
            }
            // A sum has the same gradient at each of its terms.
            let mut gradients = vec![(loss.d_chosen / n_pairs) as f32; n_chosen];
            gradients.resize(
                n_chosen + logprobs.n_rejected,
                (loss.d_rejected / n_pairs) as f32,
            );
            scored.backward(&gradients, None)?;
        }
        Ok(means.finish(n_pairs, self.config.objective.needs_reference()))
    }

    fn diagnose(&mut self, update: &UpdateRecord) -> Vec<(&'static str, String)> {
        self.health.look(update)
    }
}

/// Sums over the pairs of a window.
#[derive(Default)]
struct Means {
    loss: f64,
    sums: Vec<(Metric, f64)>,
}

impl Means {
    fn add(&mut self, pair: &PairLogprobs, loss: &PairLoss) {
        self.loss += loss.loss;
        let share = |is: bool| f64::from(u8::from(is));
        let values = [
            (
                Metric::RewardMargin,
                loss.chosen_reward - loss.rejected_reward,
            ),
            (Metric::RewardChosen, loss.chosen_reward),
            (Metric::RewardRejected, loss.rejected_reward),
            (
                Metric::SatisfiedShare,
                share(loss.chosen_reward > loss.rejected_reward),
            ),
            (Metric::PreferredShare, share(pair.prefers_chosen())),
            (Metric::GradientWeight, loss.gradient_weight),
            (
                Metric::ChosenLogprobChange,
                pair.policy_chosen - pair.reference_chosen,
            ),
            (
                Metric::RejectedLogprobChange,
                pair.policy_rejected - pair.reference_rejected,
            ),
            (
                Metric::ChosenLogprob,
                pair.policy_chosen / pair.n_chosen as f64,
            ),
            (
                Metric::RejectedLogprob,
                pair.policy_rejected / pair.n_rejected as f64,
            ),
        ];
        if self.sums.is_empty() {
            self.sums = values.map(|(metric, _)| (metric, 0.0)).to_vec();
        }
        for ((_, sum), (_, value)) in self.sums.iter_mut().zip(values) {
            *sum += value;
        }
    }

    fn finish(self, n_pairs: f64, has_reference: bool) -> (f64, Metrics) {
        let mut metrics = Metrics::default();
        for (metric, sum) in self.sums {
            let compares = matches!(
                metric,
                Metric::ChosenLogprobChange | Metric::RejectedLogprobChange
            );
            // Without a reference there is no change from it, which is not a change of zero.
            let value = (has_reference || !compares).then(|| sum / n_pairs);
            metrics.set(metric, value);
        }
        (self.loss / n_pairs, metrics)
    }
}

/// The digest of a pair's rows.
fn digest_of(pair: &Pair) -> Digest {
    let mut hasher = Hasher::default();
    let rows: [&Row; 2] = [pair.chosen(), pair.rejected()];
    for row in rows {
        row.hash_into(&mut hasher);
    }
    hasher.finish()
}
