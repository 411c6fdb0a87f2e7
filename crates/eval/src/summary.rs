//! One arm alone: what became of its trials and what they took.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use temper_core::{
    AgentName, Boundary, TaskId, Trial,
    trajectory::{Exit, Limit},
    trial::PatchSource,
    usage::MicroDollars,
    verdict::{Resolution, Tampering},
};

use crate::{
    arm::{Gathered, TaskTally, TrialKey},
    bootstrap,
    compare::Options,
    pass_at_k,
    rate::{Bounds, Interval, IntervalMethod, Rate},
};

/// Everything that is said of one arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArmSummary {
    /// The arm's label.
    pub name: AgentName,
    /// The agent that its trials name; absent without trials.
    pub agent: Option<AgentName>,
    /// Tasks solved. With several attempts the majority decides ([`TaskTally`]).
    pub tasks_solved: Rate,
    /// Trials solved.
    pub trials_solved: Rate,
    /// Trials by resolution. A trial with an infrastructure failure is under `lost`.
    pub resolutions: BTreeMap<Resolution, u64>,
    /// Trials by how their loop ended.
    pub exits: BTreeMap<String, u64>,
    /// Infrastructure failures by boundary and class.
    pub failures: Vec<FailureCount>,
    /// Every lost trial, with the cause.
    pub lost: Vec<LostTrial>,
    /// pass@k and all-k-pass, for every k that each task has attempts for.
    pub attempts_solved: Vec<AtK>,
    /// Tasks with fewer attempts than the arm's most, which is what limits k.
    pub fewer_attempts: Vec<FewerAttempts>,
    /// Agent turns per trial.
    pub steps: Distribution,
    /// Answered model calls per trial.
    pub model_calls: Distribution,
    /// Tokens of all trials.
    pub tokens: Tokens,
    /// Money of all trials.
    pub cost: Cost,
    /// Wall time by phase.
    pub seconds: Phases,
    /// Trials whose final state tried to influence its judge.
    pub tampering: TamperingCount,
    /// Final patches.
    pub patches: PatchCount,
    /// Times that trials were started over after an infrastructure failure.
    pub n_retries: u64,
}

/// How often one kind of failure occurred.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailureCount {
    /// Where.
    pub boundary: Boundary,
    /// What.
    pub class: String,
    /// Trials.
    pub n: u64,
}

/// A trial without a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LostTrial {
    /// Which trial.
    pub trial: TrialKey,
    /// Where it broke; absent if the verdict alone says that it is lost.
    pub boundary: Option<Boundary>,
    /// The kind of failure.
    pub class: Option<String>,
    /// The cause in words.
    pub message: String,
}

/// The chance that any, and that all, of k attempts solve a task, averaged over tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AtK {
    /// Attempts drawn without replacement.
    pub k: u64,
    /// Tasks averaged over.
    pub n_tasks: u64,
    /// Tasks with at least one lost attempt.
    pub n_tasks_with_lost: u64,
    /// pass@k with lost attempts unsolved, and solved.
    pub any: Bounds,
    /// A 95% interval around both.
    pub any_interval: Interval,
    /// All-k-pass with lost attempts unsolved, and solved.
    pub all: Bounds,
    /// A 95% interval around both.
    pub all_interval: Interval,
}

/// A task with fewer attempts than others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FewerAttempts {
    /// The task.
    pub task: TaskId,
    /// Its attempts.
    pub n_attempts: u64,
}

/// A quantity over trials.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distribution {
    /// Trials.
    pub n: u64,
    /// Sum.
    pub total: f64,
    /// Absent without trials, as all below.
    pub mean: Option<f64>,
    /// The middle value, or the mean of the two middle ones.
    pub median: Option<f64>,
    /// Least.
    pub minimum: Option<f64>,
    /// Greatest.
    pub maximum: Option<f64>,
}

/// Tokens, with how many trials reported them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tokens {
    /// Of the prompts, cached ones included.
    pub prompt: TokenCount,
    /// Of the prompts, taken from the server's cache.
    pub cached: TokenCount,
    /// Produced by the model.
    pub completion: TokenCount,
}

/// A sum of tokens over the trials that reported any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenCount {
    /// Trials that reported it.
    pub n_reported: u64,
    /// Trials that did not.
    pub n_not_reported: u64,
    /// Sum over the former; absent if none did.
    pub total: Option<u64>,
}

/// Money, with how many trials have a price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Trials with a known price.
    pub n_known: u64,
    /// Trials without one.
    pub n_unknown: u64,
    /// Sum over the former; absent if there are none.
    pub total_micro_dollars: Option<MicroDollars>,
}

/// Wall time by phase, per trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phases {
    /// Starting the sandbox.
    pub setup: Distribution,
    /// Waiting for the model.
    pub model: Distribution,
    /// Running actions.
    pub action: Distribution,
    /// Grading.
    pub grading: Distribution,
    /// From first to last.
    pub total: Distribution,
}

/// Attempts to influence the judge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TamperingCount {
    /// The trials.
    pub trials: Vec<TrialKey>,
    /// Findings by kind; a trial can have several.
    pub by_kind: BTreeMap<String, u64>,
}

/// What the final patches are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatchCount {
    /// Patches with content.
    pub n_with_content: u64,
    /// Patches that change nothing.
    pub n_empty: u64,
    /// Trials without a state to take one from.
    pub n_absent: u64,
    /// Trials by where the patch comes from.
    pub by_source: BTreeMap<String, u64>,
}

pub(crate) fn summarize(arm: &Gathered<'_>, options: &Options) -> ArmSummary {
    let tallies: Vec<(&TaskId, TaskTally)> = arm
        .tasks
        .keys()
        .map(|&task| (task, arm.tally(task)))
        .collect();
    let most = tallies
        .iter()
        .map(|(_, tally)| tally.n_attempts)
        .max()
        .unwrap_or(0);
    let lost: Vec<&Trial> = arm
        .trials()
        .filter(|trial| trial.solved().is_none())
        .collect();
    let n_solved = tallies
        .iter()
        .filter(|(_, t)| t.solved() == Some(true))
        .count();
    let n_open = tallies.iter().filter(|(_, t)| t.solved().is_none()).count();
    let clusters: Vec<_> = tallies
        .iter()
        .map(|(_, t)| (t.n_attempts, t.n_solved, t.n_lost))
        .collect();
    let tasks_solved = Rate::of_units(tallies.len() as u64, n_solved as u64, n_open as u64);
    ArmSummary {
        name: arm.name.clone(),
        agent: arm.agent.cloned(),
        trials_solved: if most <= 1 {
            tasks_solved.clone()
        } else {
            Rate::of_clusters(&clusters, options.n_resamples, options.seed)
        },
        tasks_solved,
        resolutions: tally_by(arm, |trial| match trial.solved() {
            None => Resolution::Lost,
            Some(_) => trial.verdict.resolution,
        }),
        exits: tally_by(arm, |trial| exit_label(&trial.exit)),
        failures: failures(arm),
        lost: lost.into_iter().map(lost_trial).collect(),
        attempts_solved: at_every_k(&clusters, options),
        fewer_attempts: tallies
            .iter()
            .filter(|(_, tally)| tally.n_attempts < most)
            .map(|&(task, tally)| FewerAttempts {
                task: task.clone(),
                n_attempts: tally.n_attempts,
            })
            .collect(),
        steps: distribution(arm, |trial| f64::from(trial.n_steps)),
        model_calls: distribution(arm, |trial| f64::from(trial.n_model_calls)),
        tokens: Tokens {
            prompt: tokens(arm, |trial| trial.usage.prompt_tokens),
            cached: tokens(arm, |trial| trial.usage.cached_tokens),
            completion: tokens(arm, |trial| trial.usage.completion_tokens),
        },
        cost: cost(arm),
        seconds: Phases {
            setup: distribution(arm, |trial| trial.timing.setup_seconds),
            model: distribution(arm, |trial| trial.timing.model_seconds),
            action: distribution(arm, |trial| trial.timing.action_seconds),
            grading: distribution(arm, |trial| trial.timing.grading_seconds),
            total: distribution(arm, |trial| trial.timing.total_seconds),
        },
        tampering: tampering(arm),
        patches: patches(arm),
        n_retries: arm.trials().map(|trial| u64::from(trial.n_retries)).sum(),
    }
}

/// How a loop ended, as one word or two: `submitted`, `limit-reached: steps`, `failed`.
pub fn exit_label(exit: &Exit) -> String {
    match exit {
        Exit::Submitted => "submitted".into(),
        Exit::LimitReached { limit } => format!("limit-reached: {}", limit_label(*limit)),
        Exit::ContextExceeded => "context-exceeded".into(),
        Exit::RepeatedFormatErrors => "repeated-format-errors".into(),
        Exit::Truncated => "truncated".into(),
        Exit::Failed { .. } => "failed".into(),
    }
}

/// A limit in the words of its JSON form.
fn limit_label(limit: Limit) -> String {
    match serde_json::to_value(limit) {
        Ok(serde_json::Value::String(name)) => name,
        other => unreachable!("a limit serializes as its name, not as {other:?}"),
    }
}

/// The kind of a tampering finding, in the words of its JSON form.
pub fn tampering_label(tampering: &Tampering) -> &'static str {
    match tampering {
        Tampering::TestFileChanged { .. } => "test-file-changed",
        Tampering::RunnerFileChanged { .. } => "runner-file-changed",
        Tampering::CanaryTripped { .. } => "canary-tripped",
        Tampering::PlantedResult { .. } => "planted-result",
    }
}

fn tally_by<K: Ord>(arm: &Gathered<'_>, key: impl Fn(&Trial) -> K) -> BTreeMap<K, u64> {
    let mut counts = BTreeMap::new();
    for trial in arm.trials() {
        *counts.entry(key(trial)).or_insert(0) += 1;
    }
    counts
}

fn failures(arm: &Gathered<'_>) -> Vec<FailureCount> {
    let mut counts: BTreeMap<(Boundary, &str), u64> = BTreeMap::new();
    for trial in arm.trials() {
        if let Some(failure) = &trial.failure {
            *counts
                .entry((failure.boundary, &failure.class))
                .or_insert(0) += 1;
        }
    }
    counts
        .into_iter()
        .map(|((boundary, class), n)| FailureCount {
            boundary,
            class: class.to_owned(),
            n,
        })
        .collect()
}

fn lost_trial(trial: &Trial) -> LostTrial {
    let failure = trial.failure.as_ref();
    LostTrial {
        trial: TrialKey::of(trial),
        boundary: failure.map(|failure| failure.boundary),
        class: failure.map(|failure| failure.class.clone()),
        message: match failure {
            Some(failure) => failure.message.clone(),
            None => trial.verdict.detail.clone(),
        },
    }
}

fn at_every_k(clusters: &[(u64, u64, u64)], options: &Options) -> Vec<AtK> {
    let fewest = clusters.iter().map(|c| c.0).min().unwrap_or(0);
    (1..=fewest)
        .filter_map(|k| {
            let over_tasks = |estimate: fn(u64, u64, u64) -> Option<f64>| {
                let values = |lost_is_solved: bool| -> Option<Vec<f64>> {
                    clusters
                        .iter()
                        .map(|&(n, c, lost)| {
                            estimate(n, c + if lost_is_solved { lost } else { 0 }, k)
                        })
                        .collect()
                };
                bounded_mean(&values(false)?, &values(true)?, options)
            };
            let (any, any_interval) = over_tasks(pass_at_k::any)?;
            let (all, all_interval) = over_tasks(pass_at_k::all)?;
            Some(AtK {
                k,
                n_tasks: clusters.len() as u64,
                n_tasks_with_lost: clusters.iter().filter(|c| c.2 > 0).count() as u64,
                any,
                any_interval,
                all,
                all_interval,
            })
        })
        .collect()
}

fn bounded_mean(worst: &[f64], best: &[f64], options: &Options) -> Option<(Bounds, Interval)> {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let resample = |values: &[f64]| {
        bootstrap::interval(
            &bootstrap::singletons(values),
            options.n_resamples,
            options.seed,
        )
    };
    let first = resample(worst)?;
    let (lower, upper) = if worst == best {
        first
    } else {
        (first.0, resample(best)?.1)
    };
    let bounds = Bounds {
        lower: mean(worst),
        upper: mean(best),
    };
    Some((
        bounds,
        // Rounding must not leave an estimate outside its own interval.
        Interval {
            lower: lower.min(bounds.lower),
            upper: upper.max(bounds.upper),
            method: IntervalMethod::TaskBootstrap,
        },
    ))
}

fn distribution(arm: &Gathered<'_>, value: impl Fn(&Trial) -> f64) -> Distribution {
    let mut values: Vec<f64> = arm.trials().map(value).collect();
    values.sort_by(f64::total_cmp);
    let n = values.len();
    // A sum of finite numbers from a file can still overflow, and infinity is not JSON.
    let total = values.iter().sum::<f64>().clamp(f64::MIN, f64::MAX);
    Distribution {
        n: n as u64,
        total,
        mean: (n > 0).then(|| total / n as f64),
        median: (n > 0).then(|| values[(n - 1) / 2] / 2.0 + values[n / 2] / 2.0),
        minimum: values.first().copied(),
        maximum: values.last().copied(),
    }
}

fn tokens(arm: &Gathered<'_>, value: impl Fn(&Trial) -> Option<u64>) -> TokenCount {
    let mut count = TokenCount {
        n_reported: 0,
        n_not_reported: 0,
        total: None,
    };
    for trial in arm.trials() {
        match value(trial) {
            Some(tokens) => {
                count.n_reported += 1;
                count.total = Some(count.total.unwrap_or(0).saturating_add(tokens));
            }
            None => count.n_not_reported += 1,
        }
    }
    count
}

fn cost(arm: &Gathered<'_>) -> Cost {
    let known = tokens(arm, |trial| trial.cost.map(|cost| cost.0));
    Cost {
        n_known: known.n_reported,
        n_unknown: known.n_not_reported,
        total_micro_dollars: known.total.map(MicroDollars),
    }
}

fn tampering(arm: &Gathered<'_>) -> TamperingCount {
    let mut count = TamperingCount::default();
    for trial in arm.trials() {
        if !trial.verdict.tampering.is_empty() {
            count.trials.push(TrialKey::of(trial));
        }
        for finding in &trial.verdict.tampering {
            *count
                .by_kind
                .entry(tampering_label(finding).into())
                .or_insert(0) += 1;
        }
    }
    count
}

fn patches(arm: &Gathered<'_>) -> PatchCount {
    let mut count = PatchCount::default();
    for trial in arm.trials() {
        match &trial.patch {
            None => count.n_absent += 1,
            Some(patch) if patch.is_empty() => count.n_empty += 1,
            Some(_) => count.n_with_content += 1,
        }
        let source = match trial.patch_source {
            PatchSource::WorkTree => "work-tree",
            PatchSource::Submission => "submission",
            PatchSource::Predictions => "predictions",
        };
        *count.by_source.entry(source.into()).or_insert(0) += 1;
    }
    count
}
