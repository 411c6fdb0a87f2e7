//! The record of a result: everything that a number rests on, in one file that can be checked
//! against the job's files later.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use temper_core::{
    Digest, Trial,
    manifest::{Manifest, Producer},
    run_profile::{Difference, Known, RunIdentity, RunOperation, differences},
};

use crate::{
    Rate,
    claims::{JobClaims, LedgerName},
    summary::{ArmSummary, FailureCount},
};

/// How `pass_rate` is to be read.
pub const PASS_RATE: &str = "tasks solved, of all tasks that have a trial. A task is solved when \
    more than half of its attempts are judged resolved by executed tests; with one attempt that is \
    the attempt. Trials lost to the infrastructure stay in the denominator and widen the bounds; \
    they are never counted as reward 0";

/// The record of one job's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResultRecord {
    /// Version of this format.
    pub format: u32,
    /// `result-record`.
    pub kind: String,
    /// What wrote it.
    pub producer: Producer,
    /// When, RFC 3339.
    pub made_at: String,
    /// Where the job lay.
    pub job: String,
    /// The job's manifest, whole: resolved configuration, inputs by digest, seed.
    pub manifest: Manifest,
    /// Who answered, what was asked, and every setting with where it came from.
    pub identity: Known<Box<RunIdentity>>,
    /// One clean run, or what else.
    pub continuity: Continuity,
    /// The processes that worked on the job: concurrency, retries, machine.
    pub sessions: Vec<RunOperation>,
    /// Trials by what came of them.
    pub trials: Counts,
    /// Trials by how their loop ended.
    pub exits: BTreeMap<String, u64>,
    /// Failures of the infrastructure by boundary and class.
    pub exceptions: Vec<FailureCount>,
    /// Tasks solved.
    pub pass_rate: Rate,
    /// [`PASS_RATE`].
    pub pass_rate_definition: String,
    /// The ledger that the wording rests on.
    pub ledger: LedgerName,
    /// What the result may be called, and why no more.
    pub claims: JobClaims,
    /// SHA-256 of every file that the result rests on, by its path below the job.
    pub files: BTreeMap<String, Digest>,
}

/// Whether one process made the job from beginning to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Continuity {
    /// One process, from the first trial to the last.
    CleanRun,
    /// Several processes, one after the other or side by side.
    Composite {
        /// How many.
        n_sessions: u64,
    },
    /// Nothing was written of it.
    NotRecorded,
}

impl Continuity {
    /// Of a job with this many recorded sessions, of which the first found trials on disk or not.
    pub fn of(sessions: &[RunOperation]) -> Self {
        match sessions {
            [] => Continuity::NotRecorded,
            [only] if only.n_finished_before == 0 && only.shard.is_none() => Continuity::CleanRun,
            several => Continuity::Composite {
                // Trials that were there before the first record come from a run without one.
                n_sessions: several.len() as u64 + u64::from(several[0].n_finished_before > 0),
            },
        }
    }

    /// The number of runs, where it is known.
    pub fn n_sessions(&self) -> Option<u64> {
        match self {
            Continuity::CleanRun => Some(1),
            Continuity::Composite { n_sessions } => Some(*n_sessions),
            Continuity::NotRecorded => None,
        }
    }

    /// In words.
    pub fn words(&self) -> String {
        match self {
            Continuity::CleanRun => "one clean run".into(),
            Continuity::Composite { n_sessions: 1 } => {
                "a part of a run: one process, which was given a shard".into()
            }
            Continuity::Composite { n_sessions } => {
                format!("a composite of {n_sessions} runs of the command, not one clean run")
            }
            Continuity::NotRecorded => "not recorded: how many runs made it is unknown".into(),
        }
    }
}

/// Trials by what came of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// That the job is to have.
    pub n_planned: u64,
    /// That are there.
    pub n_there: u64,
    /// Of these with a known outcome.
    pub n_valid: u64,
    /// Of these solved.
    pub n_solved: u64,
    /// Lost to the infrastructure.
    pub n_lost: u64,
}

impl Counts {
    /// Counts trials.
    pub fn of(n_planned: u64, trials: &[Trial]) -> Self {
        let n = |wanted: Option<bool>| {
            trials
                .iter()
                .filter(|trial| trial.solved() == wanted)
                .count() as u64
        };
        Counts {
            n_planned,
            n_there: trials.len() as u64,
            n_valid: n(Some(true)) + n(Some(false)),
            n_solved: n(Some(true)),
            n_lost: n(None),
        }
    }
}

/// What a record is made from.
#[derive(Clone, Debug)]
pub struct RecordInput<'a> {
    /// What writes it.
    pub producer: Producer,
    /// When, RFC 3339.
    pub made_at: String,
    /// Where the job lies.
    pub job: String,
    /// Its manifest.
    pub manifest: Manifest,
    /// What a run of it is.
    pub identity: Option<RunIdentity>,
    /// The processes that worked on it.
    pub sessions: Vec<RunOperation>,
    /// Trials that it is to have.
    pub n_planned: u64,
    /// Its trials.
    pub trials: &'a [Trial],
    /// Its summary.
    pub summary: &'a ArmSummary,
    /// The ledger.
    pub ledger: LedgerName,
    /// What it may be called.
    pub claims: JobClaims,
    /// Its files.
    pub files: BTreeMap<String, Digest>,
}

impl ResultRecord {
    /// The format that this code writes.
    pub const FORMAT: u32 = 1;

    /// Makes the record.
    pub fn make(input: RecordInput<'_>) -> Self {
        ResultRecord {
            format: ResultRecord::FORMAT,
            kind: "result-record".into(),
            producer: input.producer,
            made_at: input.made_at,
            job: input.job,
            manifest: input.manifest,
            identity: input.identity.map(Box::new).into(),
            continuity: Continuity::of(&input.sessions),
            sessions: input.sessions,
            trials: Counts::of(input.n_planned, input.trials),
            exits: input.summary.exits.clone(),
            exceptions: input.summary.failures.clone(),
            pass_rate: input.summary.tasks_solved.clone(),
            pass_rate_definition: PASS_RATE.into(),
            ledger: input.ledger,
            claims: input.claims,
            files: input.files,
        }
    }

    /// Every field in which this record differs from one made now from the files. Who wrote it,
    /// when, and where the job lay are no part of that.
    pub fn differences(&self, made_now: &ResultRecord) -> Vec<Difference> {
        let value = |record: &ResultRecord| {
            let mut value = serde_json::to_value(record).expect("a record is plain data");
            for key in ["producer", "made_at", "job"] {
                value[key] = serde_json::Value::Null;
            }
            value["claims"]["job"] = serde_json::Value::Null;
            value
        };
        differences(&value(self), &value(made_now))
    }
}
