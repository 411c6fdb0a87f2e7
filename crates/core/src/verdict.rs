//! The judgement of a final state, with its evidence.
//!
//! Outcomes are enums without a numeric default: a test that was lost is not one that failed, and
//! neither is one that never ran.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::TestId;

/// What is known of one test after grading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TestOutcome {
    /// It ran and passed.
    Passed,
    /// It ran and an assertion or an error in it failed.
    Failed,
    /// Set-up, collection or tear-down of the test raised an error.
    Error,
    /// The runner skipped it.
    Skipped,
    /// It failed as its author expects.
    ExpectedFailure,
    /// It passed although its author expects a failure.
    UnexpectedPass,
    /// The runner was not started for it, because an earlier layer failed.
    NotRun,
    /// The runner finished and never mentioned it.
    NotSeen,
    /// The runner was stopped or broke before it could report on it.
    Lost,
}

/// The layers of grading, in order. A later one runs only when the earlier ones hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayerName {
    /// Every changed source file parses.
    Syntax,
    /// The tests the agent could see.
    Public,
    /// The tests the agent could not see.
    Hidden,
}

/// How one layer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayerOutcome {
    /// All of it holds.
    Passed,
    /// Something in it does not hold.
    Failed,
    /// An earlier layer failed, so it was not run.
    NotRun,
    /// The task has no such layer.
    Absent,
    /// The infrastructure broke; nothing is known.
    Lost,
}

/// One layer's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Which layer.
    pub name: LayerName,
    /// How it ended.
    pub outcome: LayerOutcome,
    /// Each test of the task's lists that belongs to this layer.
    #[serde(default)]
    pub tests: BTreeMap<TestId, TestOutcome>,
    /// One line for people: what failed first, or why nothing is known.
    #[serde(default)]
    pub detail: String,
    /// Wall time of the layer.
    #[serde(default)]
    pub wall_seconds: f64,
}

/// The answer to "is the task resolved?".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resolution {
    /// All fail-to-pass and all pass-to-pass tests pass (SWE-bench `RESOLVED_FULL`).
    Resolved,
    /// Some but not all fail-to-pass tests pass, and all pass-to-pass tests pass
    /// (`RESOLVED_PARTIAL`). It counts as unresolved.
    Partial,
    /// Anything less.
    Unresolved,
    /// The trial left no change at all.
    EmptyPatch,
    /// The patch cannot be applied as it stands; where it breaks is in the verdict's detail.
    InvalidPatch,
    /// Nothing can be said, because the infrastructure failed. Never a reward.
    Lost,
}

impl Resolution {
    /// Whether the task counts as solved, or `None` where that is not known.
    pub fn solved(self) -> Option<bool> {
        match self {
            Resolution::Resolved => Some(true),
            Resolution::Lost => None,
            Resolution::Partial
            | Resolution::Unresolved
            | Resolution::EmptyPatch
            | Resolution::InvalidPatch => Some(false),
        }
    }
}

/// Something the final state does to its own judge. Each is reported; grading undoes it first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Tampering {
    /// A test file of the task was changed or removed; the original was put back.
    TestFileChanged {
        /// Path below the work tree.
        path: String,
    },
    /// A file that steers the test runner (`conftest.py`, `pytest.ini`, `sitecustomize.py`, …) was
    /// added or changed; it was left out of grading.
    RunnerFileChanged {
        /// Path below the work tree.
        path: String,
    },
    /// A test that must fail was reported as passed, or one that must pass as failed: the runner
    /// itself was subverted, and its results count for nothing.
    CanaryTripped {
        /// What was seen.
        detail: String,
    },
    /// A result or reward file was there before verification; it was not read.
    PlantedResult {
        /// The file.
        path: String,
    },
}

/// The judgement of one trial's final state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// The answer.
    pub resolution: Resolution,
    /// Results layer by layer; empty for verifiers that have no layers.
    #[serde(default)]
    pub layers: Vec<Layer>,
    /// Fail-to-pass tests and what became of each.
    #[serde(default)]
    pub fail_to_pass: BTreeMap<TestId, TestOutcome>,
    /// Pass-to-pass tests and what became of each.
    #[serde(default)]
    pub pass_to_pass: BTreeMap<TestId, TestOutcome>,
    /// Rewards of a verifier that gives numbers (Harbor); `reward` is the one that counts.
    #[serde(default)]
    pub rewards: BTreeMap<String, f64>,
    /// Attempts to influence the judge.
    #[serde(default)]
    pub tampering: Vec<Tampering>,
    /// Notes on what grading had to do (a missing last newline was added, …).
    #[serde(default)]
    pub notes: Vec<String>,
    /// One line for people.
    #[serde(default)]
    pub detail: String,
    /// Which verifier and which rules judged.
    pub verifier: String,
    /// Wall time of grading.
    #[serde(default)]
    pub wall_seconds: f64,
}

impl Verdict {
    /// A verdict that says only that nothing is known, and why.
    pub fn lost(verifier: impl Into<String>, detail: impl Into<String>) -> Self {
        Verdict {
            detail: detail.into(),
            ..Verdict::bare(Resolution::Lost, verifier)
        }
    }

    /// A verdict with a resolution and nothing else yet.
    pub fn bare(resolution: Resolution, verifier: impl Into<String>) -> Self {
        Verdict {
            resolution,
            layers: Vec::new(),
            fail_to_pass: BTreeMap::new(),
            pass_to_pass: BTreeMap::new(),
            rewards: BTreeMap::new(),
            tampering: Vec::new(),
            notes: Vec::new(),
            detail: String::new(),
            verifier: verifier.into(),
            wall_seconds: 0.0,
        }
    }
}
