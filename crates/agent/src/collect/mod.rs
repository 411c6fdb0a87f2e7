//! Candidates from teachers: many trials of training tasks, kept by content, replayed and judged.
//!
//! A teacher samples `k` candidates per task. Each is kept raw as soon as it is sampled, then
//! replayed and judged in fresh sandboxes, and its judgement is kept apart. What is already there
//! is taken, whatever the task is called today: a candidate belongs to the content of its task
//! ([`fingerprint`]) and to how it was asked for, the request. Only training tasks can be given.
//!
//! With [`Branches`], candidates that were judged and failed are taken up again from the state
//! before they ended: `k` continuations of one prefix, which form pairs and groups.

mod as_trial;
mod branches;
mod fingerprint;
mod replay;
mod run;
mod store;

use serde::{Deserialize, Serialize};
use temper_core::{
    AgentName, Digest, Failure, PreparedTask, Verdict,
    task::{HeldOut, TrainingTask},
    trajectory::{Branch, Exit},
    trial::Timing,
    usage::{MicroDollars, Usage},
};

pub use temper_core::trial::TeacherKind;

pub use as_trial::{CandidateTrial, as_trial};
pub use branches::{Branches, attempt as attempt_number};
pub use fingerprint::{content_id, fingerprint};
pub use replay::{Replay, replayed_patch};
pub use run::{CollectError, Collection, Cost, Progress, Run, RunTask, Taken, collect, request};
pub use store::{CandidateKey, Store, StoreError};

use crate::{baselines::demonstrator::GaveUp, budget::Spent};

/// Who teaches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Teacher {
    /// What it is.
    pub kind: TeacherKind,
    /// Its name in files and tables.
    pub name: AgentName,
    /// Everything that can change its answers.
    pub description: serde_json::Value,
}

/// A training task with its files ready. There is no other way to give a task to a teacher.
#[derive(Clone, Debug)]
pub struct CollectTask {
    task: TrainingTask,
    prepared: PreparedTask,
}

impl TryFrom<PreparedTask> for CollectTask {
    type Error = HeldOut;
    fn try_from(prepared: PreparedTask) -> Result<Self, HeldOut> {
        Ok(CollectTask {
            task: prepared.task.clone().try_into()?,
            prepared,
        })
    }
}

impl CollectTask {
    /// The task.
    pub fn task(&self) -> &TrainingTask {
        &self.task
    }

    /// Its files.
    pub fn prepared(&self) -> &PreparedTask {
        &self.prepared
    }
}

/// One candidate as it was sampled. Its trajectory and its patch lie beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// Version of this format.
    pub format: u32,
    /// Its name.
    pub key: CandidateKey,
    /// Whose it is.
    pub teacher: Teacher,
    /// The seed it was sampled with.
    pub seed: u64,
    /// How its loop ended.
    pub exit: Exit,
    /// Digest of its patch, if it left one.
    pub patch: Option<Digest>,
    /// Digest of its trajectory's file, if there is one.
    pub trajectory: Option<Digest>,
    /// Why it is no candidate, when starting over would not help.
    pub failure: Option<Failure>,
    /// Why a demonstration ended without the fix.
    pub gave_up: Option<GaveUp>,
    /// Model calls, those of a shared prefix left out.
    pub n_model_calls: u32,
    /// Agent turns, those of a shared prefix included.
    pub n_steps: u32,
    /// Tokens, those of a shared prefix left out.
    pub usage: Usage,
    /// Price, where known, that of a shared prefix left out.
    pub cost: Option<MicroDollars>,
    /// Where the time went.
    pub timing: Timing,
    /// What it shares with another candidate.
    pub branch: Option<Branch>,
}

impl Candidate {
    /// The format that this code writes.
    pub const FORMAT: u32 = 1;

    /// Books what it used.
    fn add_to(&self, spent: &mut Spent) {
        spent.n_calls = spent.n_calls.saturating_add(self.n_model_calls.into());
        let known = self.usage.prompt_tokens.zip(self.usage.completion_tokens);
        match known {
            Some((prompt, completion)) => {
                let tokens = prompt.saturating_add(completion);
                spent.tokens = spent.tokens.saturating_add(tokens);
            }
            None => spent.n_unknown_usage += u64::from(self.n_model_calls),
        }
        match self.cost {
            Some(cost) => spent.money.0 = spent.money.0.saturating_add(cost.0),
            None => spent.n_unknown_price += u64::from(self.n_model_calls),
        }
    }
}

/// What was found out about a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Graded {
    /// Version of this format.
    pub format: u32,
    /// The candidate.
    pub key: CandidateKey,
    /// Digest of the patch that was judged.
    pub patch: Digest,
    /// Digest of the trajectory that was replayed.
    pub trajectory: Digest,
    /// The judgement by executed tests.
    pub verdict: Verdict,
    /// What running it again gave.
    pub replay: Replay,
    /// Wall time of replay and judgement.
    pub seconds: f64,
}

impl Graded {
    /// The format that this code writes.
    pub const FORMAT: u32 = 1;

    /// Whether it may teach: its tests passed, and its commands give its patch again.
    pub fn verified(&self) -> bool {
        self.verdict.resolution.solved() == Some(true) && self.replay.same_patch != Some(false)
    }
}
