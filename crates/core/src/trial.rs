//! One agent's attempt at one task, with its seed and outcome.

use serde::{Deserialize, Serialize};

use crate::{
    AgentName, Digest, Patch, SourceGroup, TaskId, Verdict,
    trajectory::Exit,
    usage::{MicroDollars, Usage},
};

/// The record of a finished trial, as it lies in the job directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// Version of this format.
    pub format: u32,
    /// The task.
    pub task_id: TaskId,
    /// Digest of the task.
    pub task_digest: Digest,
    /// The task's source group.
    pub source_group: SourceGroup,
    /// The arm.
    pub agent: AgentName,
    /// Counted from 0.
    pub attempt: u32,
    /// The trial's seed.
    pub seed: u64,
    /// How the loop ended. A failure in it is data about the trial, not a crash.
    pub exit: Exit,
    /// The patch that was graded. Absent when there was no state to take one from.
    pub patch: Option<Patch>,
    /// Where the patch came from.
    pub patch_source: PatchSource,
    /// The judgement.
    pub verdict: Verdict,
    /// Why nothing is known, when the infrastructure failed.
    pub failure: Option<Failure>,
    /// Model calls that returned a reply.
    pub n_model_calls: u32,
    /// Agent turns.
    pub n_steps: u32,
    /// Tokens.
    pub usage: Usage,
    /// Price, where known.
    pub cost: Option<MicroDollars>,
    /// Where the time went.
    pub timing: Timing,
    /// How often the trial was started over after an infrastructure failure.
    pub n_retries: u32,
    /// RFC 3339.
    pub started_at: String,
    /// RFC 3339.
    pub finished_at: String,
}

impl Trial {
    /// The format that this code writes.
    pub const FORMAT: u32 = 1;

    /// Whether the task was solved, or `None` where the infrastructure lost the answer.
    pub fn solved(&self) -> Option<bool> {
        if self.failure.is_some() {
            None
        } else {
            self.verdict.resolution.solved()
        }
    }
}

/// Whose candidates they are. Data keeps this: what is learned from each is another experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TeacherKind {
    /// Another model.
    Model,
    /// The search-based repair agent.
    Search,
    /// Renders the known fix.
    Demonstrator,
    /// The policy that is to be trained: rejection sampling.
    Policy,
}

/// Where a graded patch came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PatchSource {
    /// The difference between the final work tree and the start, byte for byte.
    WorkTree,
    /// The text the agent submitted, as upstream does it.
    Submission,
    /// A predictions file.
    Predictions,
}

/// Wall time by phase, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// Starting the sandbox.
    pub setup_seconds: f64,
    /// Waiting for the model.
    pub model_seconds: f64,
    /// Running actions.
    pub action_seconds: f64,
    /// Grading.
    pub grading_seconds: f64,
    /// From first to last.
    pub total_seconds: f64,
}

/// A failure of the infrastructure, named once, at the boundary where it happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// Which part broke.
    pub boundary: Boundary,
    /// A stable name of the kind of failure (`Authentication`, `SandboxStart`, …).
    pub class: String,
    /// The cause, in words, without secrets.
    pub message: String,
    /// Whether starting over can help.
    pub retryable: bool,
}

/// The part of a trial that broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Boundary {
    /// The model or its server.
    Model,
    /// The sandbox.
    Sandbox,
    /// Temper's own loop (a template that names an unknown variable, an empty trajectory).
    Agent,
    /// The task's files or environment.
    Task,
    /// The verifier.
    Verifier,
}
