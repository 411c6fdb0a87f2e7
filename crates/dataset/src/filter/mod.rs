//! Which verified trials become training data, and why the others do not.
//!
//! Every trial that is left out has one [`DropReason`]; nothing is skipped in silence. A verdict
//! counts only if tests were executed for it: a submission, or a test that the agent wrote itself,
//! is no label.

pub mod contamination;
pub mod patch;

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use temper_core::{
    Digest, Patch, Split, TaskId, TestOutcome, Verdict,
    digest::Hasher,
    task::TrainingTask,
    trajectory::{Exit, FinishReason},
    verdict::{LayerOutcome, Tampering},
};

use crate::{
    episode::{Episode, is_faulty},
    row::RowOrigin,
    sampled::{FailedCommands, FaultyReplies},
};
use contamination::{Contamination, HeldOut};

/// Does a trial's actions again from a clean state. The caller has the sandbox.
pub trait Replay {
    /// The patch that the recorded actions leave.
    ///
    /// # Errors
    /// Why they could not be done again, in words.
    fn replay(&mut self, task: &TrainingTask, episode: &Episode) -> Result<Patch, String>;
}

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FilterConfig {
    /// Trials of one task that are kept; absent keeps all.
    pub max_per_task: Option<usize>,
    /// Trials of one task that leave the same patch and are kept; 1 if absent. Several ways to one
    /// patch are worth more than one where the ways differ, as those of demonstrations do.
    pub max_same_patch: Option<usize>,
    /// What becomes of replies without a usable action.
    pub faulty_replies: FaultyReplies,
    /// What becomes of replies whose command failed.
    pub failed_commands: FailedCommands,
    /// Decides which of several trials with one patch, and which beyond the cap, are left out.
    pub seed: u64,
}

/// Why a trial is left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum DropReason {
    /// Its task is no training task.
    HeldOutTask {
        /// The task's split.
        split: Split,
    },
    /// Its task is not there as it was in the trial.
    OtherTask {
        /// What differs.
        detail: String,
    },
    /// What was said and done in it is not there, or not whole.
    NoTrajectory {
        /// What is missing.
        detail: String,
    },
    /// The infrastructure lost the verdict, or no test was executed for it.
    NotExecuted {
        /// What is missing.
        detail: String,
    },
    /// Tests were executed and the task is not solved.
    NotSolved,
    /// The final state interfered with its judge.
    Tampered {
        /// How.
        detail: String,
    },
    /// It ended otherwise than by submitting.
    NotSubmitted,
    /// A reply has no usable action.
    FaultyReply {
        /// Of which step.
        step: u32,
    },
    /// The actions leave another patch when they are done again.
    PatchNotReproduced {
        /// What came of it.
        detail: String,
    },
    /// Its task or patch is too like a held-out task.
    Contaminated {
        /// What they share.
        with: Contamination,
    },
    /// Another trial of the task has the same patch.
    DuplicatePatch {
        /// The one that is kept.
        kept: RowOrigin,
    },
    /// The task has as many as are kept.
    OverCap {
        /// How many that is.
        max_per_task: usize,
    },
    /// No rows could be made of it.
    NoRows {
        /// Why.
        detail: String,
    },
    /// A row is longer than the limit. Rows are never cut.
    TooLong {
        /// Its tokens.
        n_tokens: usize,
        /// The limit.
        limit: usize,
    },
    /// With it the data set would hold more than its budget.
    OverBudget,
}

impl DropReason {
    /// The name of its kind, as it is written in files.
    pub fn kind(&self) -> &'static str {
        match self {
            DropReason::HeldOutTask { .. } => "held-out-task",
            DropReason::OtherTask { .. } => "other-task",
            DropReason::NoTrajectory { .. } => "no-trajectory",
            DropReason::NotExecuted { .. } => "not-executed",
            DropReason::NotSolved => "not-solved",
            DropReason::Tampered { .. } => "tampered",
            DropReason::NotSubmitted => "not-submitted",
            DropReason::FaultyReply { .. } => "faulty-reply",
            DropReason::PatchNotReproduced { .. } => "patch-not-reproduced",
            DropReason::Contaminated { .. } => "contaminated",
            DropReason::DuplicatePatch { .. } => "duplicate-patch",
            DropReason::OverCap { .. } => "over-cap",
            DropReason::NoRows { .. } => "no-rows",
            DropReason::TooLong { .. } => "too-long",
            DropReason::OverBudget => "over-budget",
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DropReason::HeldOutTask { split } => {
                write!(f, "its task is no training task: its split is {split:?}")
            }
            DropReason::OtherTask { detail } | DropReason::NoTrajectory { detail } => {
                f.write_str(detail)
            }
            DropReason::OverBudget => f.write_str("the data set has as much as is wanted"),
            DropReason::NotExecuted { detail } => write!(f, "no executed verdict: {detail}"),
            DropReason::NotSolved => f.write_str("not solved"),
            DropReason::Tampered { detail } => write!(f, "interfered with its judge: {detail}"),
            DropReason::NotSubmitted => f.write_str("ended without submitting"),
            DropReason::FaultyReply { step } => {
                write!(f, "the reply of step {step} has no usable action")
            }
            DropReason::PatchNotReproduced { detail } => {
                write!(f, "replay gives another patch: {detail}")
            }
            DropReason::Contaminated { with } => write!(f, "like a held-out task: {with}"),
            DropReason::DuplicatePatch { kept } => {
                write!(
                    f,
                    "the same patch as attempt {} of {}",
                    kept.attempt, kept.agent
                )
            }
            DropReason::OverCap { max_per_task } => {
                write!(f, "the task has {max_per_task} already")
            }
            DropReason::NoRows { detail } => f.write_str(detail),
            DropReason::TooLong { n_tokens, limit } => {
                write!(f, "{n_tokens} tokens, more than {limit}")
            }
        }
    }
}

/// A trial that was left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dropped {
    /// The trial.
    pub origin: RowOrigin,
    /// Why.
    pub reason: DropReason,
}

/// How a trial was judged by executed tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label {
    /// All tests that must pass were executed and pass.
    Solved,
    /// Tests were executed, and it is not solved.
    Failed,
}

/// The label of a trial, or why it has none.
pub fn label(episode: &Episode) -> Result<Label, DropReason> {
    let trial = episode.trial();
    let not_executed = |detail: &str| {
        Err(DropReason::NotExecuted {
            detail: detail.to_owned(),
        })
    };
    let Some(solved) = trial.solved() else {
        return not_executed("the infrastructure lost it");
    };
    for tampering in &trial.verdict.tampering {
        let detail = match tampering {
            Tampering::CanaryTripped { detail } => detail.clone(),
            Tampering::PlantedResult { path } => format!("it planted the result {path}"),
            Tampering::RunnerFileChanged { path } => format!("it changed {path}"),
            // The original was put back, and the verdict is that of the original.
            Tampering::TestFileChanged { .. } => continue,
        };
        return Err(DropReason::Tampered { detail });
    }
    match (solved, was_executed(&trial.verdict)) {
        (true, false) => not_executed("no test was run for its verdict"),
        (true, true) => Ok(Label::Solved),
        // A patch that is empty or cannot be applied fails without a test.
        (false, _) => Ok(Label::Failed),
    }
}

fn was_executed(verdict: &Verdict) -> bool {
    let ran = |outcome: &TestOutcome| {
        !matches!(
            outcome,
            TestOutcome::NotRun | TestOutcome::NotSeen | TestOutcome::Lost | TestOutcome::Skipped
        )
    };
    let tests = verdict.fail_to_pass.values();
    let layers = verdict.layers.iter();
    tests.chain(verdict.pass_to_pass.values()).any(ran)
        || layers
            .filter(|layer| layer.outcome == LayerOutcome::Passed)
            .any(|layer| layer.tests.values().any(ran))
        || !verdict.rewards.is_empty()
}

/// Trials that passed, in the order of their origins, and those that did not.
pub struct Filtered<'a> {
    /// Solved trials that are kept.
    pub kept: Vec<&'a Episode>,
    /// The others.
    pub dropped: Vec<Dropped>,
}

/// Keeps the solved trials that one can learn from. `fits` says why a trial gives no row: it is asked
/// before trials are compared, so that one without a row takes no other's place.
pub fn filter<'a>(
    episodes: &'a [Episode],
    config: &FilterConfig,
    held_out: &HeldOut,
    fits: &mut dyn FnMut(&Episode) -> Result<(), DropReason>,
    mut replay: Option<&mut dyn Replay>,
) -> Filtered<'a> {
    let mut dropped = Vec::new();
    let mut by_task: BTreeMap<&TaskId, Vec<&Episode>> = BTreeMap::new();
    for episode in episodes {
        match check(episode, config, held_out).and_then(|()| fits(episode)) {
            Ok(()) => by_task.entry(&episode.task().id).or_default().push(episode),
            Err(reason) => dropped.push(drop_of(episode, reason)),
        }
    }
    let mut kept = Vec::new();
    for (_, mut candidates) in by_task {
        candidates.sort_by_cached_key(|episode| rank(episode, config.seed));
        let mut of_task: Vec<(Digest, &Episode)> = Vec::new();
        for episode in candidates {
            match admit(episode, &of_task, config, replay.as_deref_mut()) {
                Ok(digest) => of_task.push((digest, episode)),
                Err(reason) => dropped.push(drop_of(episode, reason)),
            }
        }
        kept.extend(of_task.into_iter().map(|(_, episode)| episode));
    }
    kept.sort_by_cached_key(|episode| episode.origin());
    dropped.sort_by(|a, b| a.origin.cmp(&b.origin));
    Filtered { kept, dropped }
}

fn drop_of(episode: &Episode, reason: DropReason) -> Dropped {
    Dropped {
        origin: episode.origin(),
        reason,
    }
}

/// Which of several trials comes first: by chance, so that no kind of trial is preferred.
fn rank(episode: &Episode, seed: u64) -> Digest {
    let mut hasher = Hasher::default();
    hasher.field(&seed.to_le_bytes());
    let trial = episode.trial();
    hasher.field(trial.task_id.as_str().as_bytes());
    hasher.field(trial.agent.as_str().as_bytes());
    hasher.field(&trial.attempt.to_le_bytes());
    hasher.finish()
}

fn check(episode: &Episode, config: &FilterConfig, held_out: &HeldOut) -> Result<(), DropReason> {
    if label(episode)? == Label::Failed {
        return Err(DropReason::NotSolved);
    }
    if episode.trial().exit != Exit::Submitted {
        return Err(DropReason::NotSubmitted);
    }
    if config.faulty_replies == FaultyReplies::Refuse {
        let faulty = episode
            .steps()
            .iter()
            .skip(episode.n_shared())
            .find(|step| is_faulty(step) || step.finish == FinishReason::Length);
        if let Some(step) = faulty {
            return Err(DropReason::FaultyReply { step: step.number });
        }
    }
    match held_out.check(episode) {
        Some(with) => Err(DropReason::Contaminated { with }),
        None => Ok(()),
    }
}

/// The normalised patch's digest of a trial that is kept beside those of its task.
fn admit(
    episode: &Episode,
    kept: &[(Digest, &Episode)],
    config: &FilterConfig,
    replay: Option<&mut (dyn Replay + '_)>,
) -> Result<Digest, DropReason> {
    let empty = Patch::default();
    let trial_patch = episode.trial().patch.as_ref().unwrap_or(&empty);
    let digest = patch::normalised_digest(trial_patch);
    let mut same = kept.iter().filter(|(other, _)| *other == digest);
    // The last place that there is decides; 1 is the first.
    if let Some((_, other)) = same.nth(config.max_same_patch.unwrap_or(1) - 1) {
        return Err(DropReason::DuplicatePatch {
            kept: other.origin(),
        });
    }
    if let Some(max_per_task) = config.max_per_task.filter(|max| kept.len() >= *max) {
        return Err(DropReason::OverCap { max_per_task });
    }
    // Last, since it costs most.
    if let Some(replay) = replay {
        let not_reproduced = |detail: String| DropReason::PatchNotReproduced { detail };
        let again = replay
            .replay(episode.task(), episode)
            .map_err(not_reproduced)?;
        if again.0 != trial_patch.0 {
            return Err(not_reproduced(format!(
                "{} bytes with digest {} in place of {} with {}",
                again.0.len(),
                again.digest().short(),
                trial_patch.0.len(),
                trial_patch.digest().short()
            )));
        }
    }
    Ok(digest)
}
