//! How a task that Temper made came to be, and how well its tests guard it.

use serde::{Deserialize, Serialize};

use crate::{Digest, Patch, TreePath};

/// The rule by which Temper's own tasks have their tests divided: whole test functions are cut out of
/// the public versions of the test files, and all else stays byte for byte.
pub const FUNCTION_HALVES: &str = "function-halves/1";

/// The making of one task. It holds nothing that differs between two runs with the same seed: no
/// time, no place on a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Construction {
    /// How the bug was made: the name of an operator (`func_pm_op_change`, `boundary`),
    /// `combine_file`, `combine_module`, `pr_mirror`, `lm_rewrite`, `lm_modify`.
    pub kind: String,
    /// The seed of the run that made it.
    pub seed: u64,
    /// What the bug changes.
    pub places: Vec<Place>,
    /// The rule that divided the tests into public and hidden ones, with its version.
    pub hidden_rule: String,
    /// Where the statement's words come from: `template`, `test-output`, `commit-message`, `model`.
    pub statement: String,
    /// What mutants of the known fix say of the tests; `None` when no mutant was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<MutationAudit>,
}

impl Construction {
    /// Whether the rule of division makes sure that the hidden versions of the test files hold every
    /// public test unchanged, so that its result is the same in them.
    pub fn hidden_files_hold_public_tests(&self) -> bool {
        self.hidden_rule == FUNCTION_HALVES
    }
}

/// One stretch of code that a bug changes, in the state without the bug.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The file.
    pub file: TreePath,
    /// Dotted name of the innermost function around it (`Class.method`, `outer.inner`); `None` at
    /// the level of the module or a class.
    pub function: Option<String>,
    /// First line that the bug changes or removes, counted from 1. A pure insertion names the line
    /// it follows.
    pub first_line: u32,
    /// Last such line.
    pub last_line: u32,
}

/// How many wrong versions of the fixed code the task's own tests notice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MutationAudit {
    /// Mutants of the fixed code that were run.
    pub n_mutants: u32,
    /// Noticed by the public tests.
    pub n_killed_public: u32,
    /// Noticed by the hidden tests and not by the public ones.
    pub n_killed_hidden: u32,
    /// Noticed by neither although they are not known to be equivalent: the first
    /// [`MAX_SURVIVORS`] of them.
    pub survivors: Vec<Survivor>,
    /// How many there are of them.
    #[serde(default)]
    pub n_survivors: u32,
    /// Left out because they compile to the same code or were found equivalent.
    pub n_equivalent: u32,
    /// Left out because no test of the repository executes the lines that they change.
    #[serde(default)]
    pub n_uncovered: u32,
    /// Hidden tests that were added because they alone notice some of these versions.
    #[serde(default)]
    pub n_added_tests: u32,
}

impl MutationAudit {
    /// How many wrong versions the tests accept. Tasks that were written before the number was kept
    /// list them all.
    pub fn n_survivors(&self) -> u32 {
        self.n_survivors.max(self.survivors.len() as u32)
    }
}

/// Survivors that a task keeps with their patches: enough to look at, and their patches are many
/// bytes.
pub const MAX_SURVIVORS: usize = 3;

/// A wrong version of the fixed code that the task's tests accept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Survivor {
    /// The operator.
    pub kind: String,
    /// The digest of its patch against the fixed state.
    pub digest: Digest,
    /// The patch.
    pub patch: Patch,
}
