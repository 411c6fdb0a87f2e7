//! Jobs: a directory of trials, one agent on many tasks.
//!
//! A trial is written beside the job's finished ones and moved into place by one rename, so a job
//! that is killed at any moment holds whole trials only, and running it again does exactly the
//! missing ones. What a job is, is said by its manifest; running it again with anything different
//! that could change a result is refused by name.

mod directory;
pub mod outputs;
mod run_profile;
mod schedule;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use temper_core::{
    Digest, SourceGroup, Split, Task, TaskId, digest::Hasher, manifest::Manifest,
    run_profile::Difference, task::Origin,
};

pub use directory::{JobDirectory, write_atomically};
pub use run_profile::{Session, prepare};
pub use schedule::{Cancelled, Event, Options, Shard, Summary, TrialRunner, run};

/// A task as a job knows it: enough to pair, to report and to recognise it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskEntry {
    /// The task.
    pub id: TaskId,
    /// Digest of the task.
    pub digest: Digest,
    /// Digest of its prepared environment; absent when it could not be prepared.
    pub environment_digest: Option<Digest>,
    /// Its source group.
    pub source_group: SourceGroup,
    /// Its split.
    pub split: Split,
    /// Its statement.
    pub statement: String,
    /// Where its code comes from.
    pub origin: Origin,
}

impl TaskEntry {
    /// The entry of `task`.
    pub fn new(task: &Task, environment_digest: Option<Digest>) -> Self {
        TaskEntry {
            id: task.id.clone(),
            digest: task.digest(),
            environment_digest,
            source_group: task.source_group.clone(),
            split: task.split,
            statement: task.statement.clone(),
            origin: task.origin.clone(),
        }
    }
}

/// What a job is to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the job lies.
    pub directory: PathBuf,
    /// What the job is. Everything in it can change results; nothing else can.
    pub manifest: Manifest,
    /// The tasks, in the order they are run.
    pub tasks: Vec<TaskEntry>,
    /// Trials per task.
    pub attempts: u32,
}

/// Names one trial of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrialKey {
    /// The task.
    pub task_id: TaskId,
    /// Counted from 0.
    pub attempt: u32,
}

impl TrialKey {
    /// The trial's seed: it depends on the job's seed, the task and the attempt alone, so that
    /// neither order nor sharding changes it. It stays below 2^31, which every server accepts.
    pub fn seed(&self, job_seed: u64) -> u64 {
        let mut hasher = Hasher::default();
        hasher.field(&job_seed.to_le_bytes());
        hasher.field(self.task_id.as_str().as_bytes());
        hasher.field(&self.attempt.to_le_bytes());
        let digest = hasher.finish();
        u64::from_str_radix(&digest.as_str()[..8], 16).expect("eight hexadecimal digits")
            & 0x7fff_ffff
    }
}

/// Why a job cannot go on. Failed trials are not among these; they are data.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The directory holds a job that is not this one.
    #[error("resume the job in {directory}: {}", each(differences))]
    Differs {
        /// The job's directory.
        directory: PathBuf,
        /// Every field that differs: first its value in the job, then in this run.
        differences: Vec<Difference>,
    },
    /// The directory is in use for something else.
    #[error("use {directory} for a job: {reason}")]
    NotAJob {
        /// The directory.
        directory: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file cannot be read or written.
    #[error("{operation} {path}: {source}")]
    File {
        /// `read`, `write`, …
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file of the job does not hold what it should.
    #[error("read {path}: {reason}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The same task twice.
    #[error("plan the job: task {0} appears twice")]
    DuplicateTask(TaskId),
}

fn each(differences: &[Difference]) -> String {
    let each = differences.iter().map(|difference| {
        format!(
            "{} differs: it has {}, this run has {}",
            difference.field, difference.first, difference.second
        )
    });
    each.collect::<Vec<_>>().join("; ")
}

impl JobError {
    /// What the user can do.
    pub fn hint(&self) -> Option<String> {
        match self {
            JobError::Differs { .. } => Some(
                "choose another job directory, or repeat the run exactly as it was started".into(),
            ),
            JobError::NotAJob { .. } => Some("choose an empty or new directory".into()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
