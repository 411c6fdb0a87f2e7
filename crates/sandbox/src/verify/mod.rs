//! What turns a final state into a verdict: one file per verifier, and what they share.
//!
//! Grading never trusts the state it judges. Each run of tests has a fresh sandbox made from the
//! task's start and the submission; test files and whatever steers the test runner are put back
//! first (`protected`), and results come through a channel whose key the code under test is not
//! given (`channel`). What an attacker inside the test process can still do is said in
//! `pytest_runner`.
//!
//! Grading never fails: where the infrastructure breaks, the verdict is [`Resolution::Lost`] and
//! [`Graded::failure`] says which boundary broke.

pub mod channel;
mod final_state;
pub mod harbor;
pub mod log_verifier;
pub mod parsers;
pub mod predictions;
pub mod proof;
mod protected;
pub mod pytest_runner;
mod pytest_session;
mod records;
pub mod resolution;

pub use final_state::{excerpt, read_entry, shell_quote};

use std::time::Instant;

use temper_core::{
    Boundary, Failure, Patch, PreparedTask, Verdict, task::Verifier, tree::Changes,
    verdict::Resolution,
};

use crate::{Backend, Demand, Limits, Network, Root, SandboxSpec, WorkTree};

/// What is to be judged, and where.
pub struct GradeRequest<'a> {
    /// The task, its files ready.
    pub task: &'a PreparedTask,
    /// The final state.
    pub submission: Submission<'a>,
    /// Where the verifier runs.
    pub backend: &'a dyn Backend,
    /// Limits of each of its sandboxes.
    pub limits: Limits,
    /// Protections of each of its sandboxes.
    pub demand: Demand,
    /// A name for people and for finding what was left behind.
    pub label: String,
    /// Whether the verifier is known to finish within its time limit on the task's own start here.
    /// Where it is not, a run that times out says nothing about the submission and is lost.
    pub proven: bool,
}

/// A final state, relative to the task's start.
#[derive(Clone, Copy, Debug)]
pub enum Submission<'a> {
    /// A patch, to be applied with `-p1`.
    Patch(&'a Patch),
    /// What a sandbox's work tree held at the end.
    Changes(&'a Changes),
    /// Nothing: the start itself is judged, to prove a task. Every layer runs, whatever the earlier
    /// ones gave.
    Start,
}

/// A verdict, and why nothing is known where that is so.
#[derive(Clone, Debug, PartialEq)]
pub struct Graded {
    /// The judgement.
    pub verdict: Verdict,
    /// Present exactly when the verdict is [`Resolution::Lost`].
    pub failure: Option<Failure>,
}

/// Receives logs by name: `syntax`, `public` and `hidden` of a layer, `tests` of a run that judges more
/// than one layer or has none.
pub type LogSink<'a> = dyn FnMut(&str, &[u8]) + 'a;

/// Judges a final state by the task's verifier.
pub fn grade(request: &GradeRequest<'_>, logs: &mut LogSink<'_>) -> Graded {
    let started = Instant::now();
    let mut graded = match &request.task.task.verifier {
        Verifier::Pytest { .. } => pytest_runner::grade(request, logs),
        Verifier::Log { .. } => log_verifier::grade(request, logs),
        Verifier::Harbor { .. } => harbor::grade(request, logs),
    };
    graded.verdict.wall_seconds = started.elapsed().as_secs_f64();
    graded
}

impl Graded {
    fn lost(verifier: &str, failure: Failure) -> Self {
        Graded {
            verdict: Verdict::lost(verifier, failure.message.clone()),
            failure: Some(failure),
        }
    }
}

impl From<Verdict> for Graded {
    fn from(verdict: Verdict) -> Self {
        debug_assert_ne!(verdict.resolution, Resolution::Lost);
        Graded {
            verdict,
            failure: None,
        }
    }
}

/// The specification of a fresh sandbox for one layer.
fn sandbox_spec(request: &GradeRequest<'_>, layer: &str) -> SandboxSpec {
    let task = request.task;
    SandboxSpec {
        root: match &task.image {
            Some(image) => Root::Image(image.clone()),
            None => Root::Host,
        },
        work_tree: WorkTree {
            start: task.start_tree.clone(),
            path: task.work_tree.clone(),
        },
        mounts: task
            .mounts
            .iter()
            .map(|mount| crate::Mount {
                source: mount.source.clone(),
                target: mount.target.clone(),
            })
            .collect(),
        files: Vec::new(),
        environment: task.variables.clone(),
        limits: request.limits.clone(),
        network: Network::None,
        demand: request.demand.clone(),
        label: format!("{}-{layer}", request.label),
    }
}

/// A failure at the verifier's own boundary.
fn verifier_failure(class: &str, message: impl Into<String>, retryable: bool) -> Failure {
    Failure {
        boundary: Boundary::Verifier,
        class: class.into(),
        message: message.into(),
        retryable,
    }
}

/// Bytes that nobody can guess, as lower-case hexadecimal digits.
pub fn random_hex(n_bytes: usize) -> Result<String, Failure> {
    use std::{fmt::Write, io::Read};
    let mut bytes = vec![0; n_bytes];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| {
            verifier_failure("Randomness", format!("read /dev/urandom: {error}"), true)
        })?;
    let mut hex = String::with_capacity(2 * n_bytes);
    for byte in bytes {
        write!(hex, "{byte:02x}").expect("writing to a string succeeds");
    }
    Ok(hex)
}
