//! What a result may be called: a ledger of what was published, held against what a job did.
//!
//! Everything here is a pure function of a ledger, the facts of jobs, and how complete they are.
//! There is no argument for the wording: [`decide`] gives the strongest one that holds, and
//! whoever shows it shows that.

mod decide;
mod facts;
mod ledger;

use serde::{Deserialize, Serialize};
use temper_core::{
    Digest,
    evidence::{Alignment, Provenance},
};

pub use decide::decide;
pub use facts::{Fact, Facts, JobFacts, Strength, of_job, of_model, of_profile, of_settings};
pub use ledger::{Checked, Entry, Kind, Ledger, LedgerError, Published, Stage};

/// What a result may be called, from weakest to strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wording {
    /// An experiment of one's own.
    ProjectExperiment,
    /// The published scaffold, checkpoint and settings as far as they are public; the rest is
    /// one's own choice.
    ApproximatePublicReproduction,
    /// Everything that can influence the result was published and is the same.
    PaperReproduction,
}

impl Wording {
    /// The name of the class.
    pub fn words(self) -> &'static str {
        match self {
            Wording::ProjectExperiment => "project experiment",
            Wording::ApproximatePublicReproduction => "approximate public reproduction",
            Wording::PaperReproduction => "paper reproduction",
        }
    }

    /// What may be said, as a sentence.
    pub fn sentence(self) -> &'static str {
        match self {
            Wording::ProjectExperiment => {
                "This is a project experiment. Its numbers do not reproduce, confirm or contradict \
                 the published ones."
            }
            Wording::ApproximatePublicReproduction => {
                "This is an approximate public reproduction: what the authors published is kept, \
                 and what they did not publish is our own choice."
            }
            Wording::PaperReproduction => {
                "This reproduces the published evaluation: every value that can influence it was \
                 published and is the same."
            }
        }
    }
}

/// What a set of jobs may be called, with the reasons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// Version of this format.
    pub format: u32,
    /// The ledger that was used.
    pub ledger: LedgerName,
    /// Job by job.
    pub jobs: Vec<JobClaims>,
    /// What all of them together may be called: the weakest of the jobs' wordings.
    pub wording: Wording,
    /// What the authors report. A result of ours stands beside it as far as the wording goes.
    pub published: Vec<Published>,
}

impl Claims {
    /// The format that this code writes.
    pub const FORMAT: u32 = 1;
}

/// A ledger by name and content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LedgerName {
    /// Its name.
    pub name: String,
    /// What it is about.
    pub subject: String,
    /// Digest of its text.
    pub digest: Digest,
    /// Whether it ships with Temper. A ledger of one's own may say anything of what was published.
    pub ships: bool,
}

/// What one job may be called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobClaims {
    /// The job.
    pub job: String,
    /// The strongest wording that holds.
    pub wording: Wording,
    /// The alignment matrix, in the ledger's order.
    pub rows: Vec<Row>,
    /// Why no stronger wording holds.
    pub reasons: Vec<Reason>,
    /// Values that nobody published and this job chose: variables of the experiment.
    pub variables: Vec<String>,
}

/// One line of the matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The entry's key.
    pub key: String,
    /// When it acts.
    pub stage: Stage,
    /// What it is.
    pub what: String,
    /// How the published value is known.
    pub provenance: Provenance,
    /// The published value; absent where there is none.
    pub published: Option<serde_json::Value>,
    /// The job's value; absent where it is not known.
    pub ours: Option<serde_json::Value>,
    /// How the two stand.
    pub alignment: Alignment,
    /// Whether no reproduction can be claimed without it.
    pub essential: bool,
    /// Where the published value can be read.
    pub source: String,
    /// What a reader should know.
    pub note: Option<String>,
}

/// Why a wording does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// The wording that it rules out, and every stronger one.
    pub rules_out: Wording,
    /// Why, in words.
    pub why: String,
}

#[cfg(test)]
mod tests;
