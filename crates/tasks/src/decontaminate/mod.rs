//! Whether tasks overlap with texts that others measure with: the same repository, the same commit,
//! shared n-grams of words, shared n-grams of code, near-duplicate code.
//!
//! The suite is small and held in memory; references are streamed past it, so their size does not
//! matter. Similarity is computed on the sets themselves and is no estimate.
//!
//! Thresholds: 13 words in a row are an overlap of prose (Brown et al. 2020, *Language Models are
//! Few-Shot Learners*, appendix C). For code 13 tokens in a row are common, so that half of them
//! must be shared; code is a near-duplicate from a Jaccard similarity of 0.7 of 5-grams, as for
//! source groups.
//!
//! Not found: rewritten or translated code and prose, and what a reference file does not hold (a
//! repository is compared by its name only, unless a directory of its files is given).

mod index;
mod reference;
mod repositories;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;
use temper_core::TaskId;

pub use index::Suite;
pub use reference::check;
pub use repositories::{KNOWN_SETS, KnownSet};

/// How much is an overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Thresholds {
    /// Words of an n-gram of prose.
    pub words: usize,
    /// Shared n-grams of words from which prose overlaps.
    pub min_word_ngrams: usize,
    /// Tokens of an n-gram of code.
    pub tokens: usize,
    /// Share of a task's n-grams of code that the reference has, in thousandths.
    pub containment_permille: u32,
    /// Code with fewer n-grams is not compared.
    pub min_code_ngrams: usize,
    /// Jaccard similarity of 5-grams of tokens, in thousandths.
    pub jaccard_permille: u32,
}

impl Default for Thresholds {
    fn default() -> Self {
        Thresholds {
            words: 13,
            min_word_ngrams: 1,
            tokens: 13,
            containment_permille: 500,
            min_code_ngrams: 10,
            jaccard_permille: 700,
        }
    }
}

/// What overlaps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Overlap {
    /// The task's project is the reference's repository.
    Repository {
        /// As the reference names it.
        repository: String,
        /// Whether owner and name are the same, or only the name or one in the list of renames.
        exact: bool,
    },
    /// The task starts at, or was made from, the reference's commit.
    Commit {
        /// The commit.
        commit: String,
    },
    /// Words in a row.
    Words {
        /// Shared n-grams.
        n_shared: usize,
        /// Their share of the task's, in thousandths.
        permille: u32,
    },
    /// Tokens of code in a row.
    Code {
        /// Shared n-grams.
        n_shared: usize,
        /// Their share of the task's, in thousandths.
        permille: u32,
    },
    /// Code that is nearly the same as a whole.
    NearDuplicate {
        /// Jaccard similarity in thousandths.
        permille: u32,
    },
}

impl Overlap {
    /// The kind as the machine format writes it.
    pub fn kind(&self) -> &'static str {
        match self {
            Overlap::Repository { .. } => "repository",
            Overlap::Commit { .. } => "commit",
            Overlap::Words { .. } => "words",
            Overlap::Code { .. } => "code",
            Overlap::NearDuplicate { .. } => "near-duplicate",
        }
    }

    /// Larger is worse, among those of one kind.
    fn strength(&self) -> u32 {
        match self {
            Overlap::Repository { exact, .. } => u32::from(*exact),
            Overlap::Commit { .. } => 1,
            Overlap::Words { permille, .. }
            | Overlap::Code { permille, .. }
            | Overlap::NearDuplicate { permille } => *permille,
        }
    }
}

impl std::fmt::Display for Overlap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = |permille: &u32| format!("{}.{} %", permille / 10, permille % 10);
        match self {
            Overlap::Repository { repository, exact } => {
                write!(
                    f,
                    "repository {repository}{}",
                    if *exact { "" } else { " (by name)" }
                )
            }
            Overlap::Commit { commit } => write!(f, "commit {commit}"),
            Overlap::Words { n_shared, permille } => {
                write!(
                    f,
                    "{n_shared} word n-grams, {} of the task's",
                    percent(permille)
                )
            }
            Overlap::Code { n_shared, permille } => {
                write!(
                    f,
                    "{n_shared} code n-grams, {} of the task's",
                    percent(permille)
                )
            }
            Overlap::NearDuplicate { permille } => {
                write!(f, "code {} alike", percent(permille))
            }
        }
    }
}

/// One overlap of one task with one record or file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Match {
    /// The task.
    pub task: TaskId,
    /// What overlaps.
    #[serde(flatten)]
    pub overlap: Overlap,
    /// Which part of the task: `statement`, `fix FILE`, `code before FILE`, `origin`.
    pub part: String,
    /// The reference file, or the name of a set that is known here.
    pub file: String,
    /// The record in it, by its id or its number.
    pub record: Option<String>,
    /// The field of the record.
    pub field: Option<String>,
    /// The task's text around the first shared n-gram.
    pub task_excerpt: Option<String>,
    /// The reference's text around it.
    pub reference_excerpt: Option<String>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The thresholds in force.
    pub thresholds: Thresholds,
    /// How many tasks were compared.
    pub n_tasks: usize,
    /// How many of them overlap with something.
    pub n_tasks_overlapping: usize,
    /// How many records and files they were compared with.
    pub n_references: u64,
    /// Bytes of text in these.
    pub n_bytes: u64,
    /// By task, kind and place; the strongest for each task, kind and file when there are many.
    pub matches: Vec<Match>,
    /// How many weaker ones are not listed.
    pub n_not_listed: u64,
}

/// Matches of one task, kind and file that are listed.
const MAX_LISTED: usize = 5;

/// Gathers matches in bounded memory.
#[derive(Debug, Default)]
pub(crate) struct Matches {
    kept: BTreeMap<(TaskId, &'static str, String), Vec<Match>>,
    n_not_listed: u64,
}

impl Matches {
    pub(crate) fn add(&mut self, found: Match) {
        let key = (found.task.clone(), found.overlap.kind(), found.file.clone());
        let kept = self.kept.entry(key).or_default();
        // Every record of a repository says the same.
        if matches!(
            found.overlap,
            Overlap::Repository { .. } | Overlap::Commit { .. }
        ) && kept.iter().any(|known| known.overlap == found.overlap)
        {
            self.n_not_listed += 1;
            return;
        }
        // Equal ones stay in the order of the reference.
        let at = kept.partition_point(|known| known.overlap.strength() >= found.overlap.strength());
        kept.insert(at, found);
        if kept.len() > MAX_LISTED {
            kept.pop();
            self.n_not_listed += 1;
        }
    }
}
