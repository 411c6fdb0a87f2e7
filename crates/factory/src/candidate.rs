//! Candidate bugs: changes of a repository that nobody has proven yet.

use serde::{Deserialize, Serialize};
use temper_core::{Digest, Patch, Place};

/// A bug that may become a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// How it was made: the name of an operator (`func_pm_op_change`, `boundary`), or
    /// `combine_file`, `combine_module`, `pr_mirror`, `lm_rewrite`, `lm_modify`.
    pub kind: String,
    /// What it changes, in the order of the patch.
    pub places: Vec<Place>,
    /// From the repository's own state to the state with the bug; applied with `-p1`, byte-exact,
    /// and in reverse the known fix.
    pub patch: Patch,
    /// What the maker knows of the bug, for statements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<Note>,
}

impl Candidate {
    /// Names the candidate by what it does, so that the same repository and seed give the same
    /// tasks.
    pub fn digest(&self) -> Digest {
        Digest::of_value(&(&self.kind, &self.patch))
    }
}

/// What the maker of a bug knows of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Note {
    /// The message of the commit that the candidate undoes.
    Commit {
        /// The commit.
        commit: String,
        /// Its whole message.
        message: String,
    },
    /// A model's own words about the bug it wrote.
    Model {
        /// The words.
        text: String,
    },
}
