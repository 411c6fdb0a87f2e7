//! Tasks: an instruction, a starting repository state, an environment, a verifier.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Bytes, Construction, Digest, Patch, SourceGroup, TaskId, TestId};

/// One task in its working form, whatever format it was read from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Unique within its suite.
    pub id: TaskId,
    /// The format it was read from.
    pub format: TaskFormat,
    /// What the agent is asked to do.
    pub statement: String,
    /// The repository state the agent starts from.
    pub start: Start,
    /// What commands run in.
    pub environment: Environment,
    /// How the final state is judged.
    pub verifier: Verifier,
    /// A known fix, where the source gives one. Never shown to an agent under evaluation.
    pub oracle: Option<Oracle>,
    /// Where the code comes from and under which licence.
    pub origin: Origin,
    /// Tasks that share code or lineage.
    pub source_group: SourceGroup,
    /// Which part of the suite it belongs to.
    pub split: Split,
    /// Fields of the source format that Temper does not interpret, kept for export.
    #[serde(default)]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// How it was made, for a task that Temper made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub construction: Option<Construction>,
}

impl Task {
    /// The digest of everything that defines the task.
    pub fn digest(&self) -> Digest {
        Digest::of_value(self)
    }
}

/// A source format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskFormat {
    /// Temper's own task directory.
    Native,
    /// A SWE-bench instance.
    SweBench,
    /// A SWE-smith instance, whose patch introduces the bug.
    SweSmith,
    /// A Harbor task directory.
    Harbor,
}

/// Which part of a suite a task belongs to. It is decided by source group before anything is
/// sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// May be trained on.
    Train,
    /// Chooses between snapshots; never trained on.
    Dev,
    /// Measured once per frozen candidate; never trained on, never selected on.
    Test,
    /// The source does not say. Treated as held out.
    Unassigned,
}

/// A task that may be trained on. Training code takes this type, so a held-out task cannot reach
/// it.
///
/// ```compile_fail,E0308
/// use temper_core::{Task, task::TrainingTask};
/// fn update_weights(_: &[TrainingTask]) {}
/// fn train(tasks: Vec<Task>) {
///     update_weights(&tasks); // A task of any split is no training task.
/// }
/// ```
///
/// ```compile_fail,E0423
/// use temper_core::{Task, task::TrainingTask};
/// fn disguise(task: Task) -> TrainingTask {
///     TrainingTask(task) // Only the checked conversion makes one.
/// }
/// ```
#[derive(Clone, Debug)]
pub struct TrainingTask(Task);

/// A task of the dev split: it chooses between snapshots, hyperparameters and stopping points, any
/// number of times. Numbers on it are not reported as results.
///
/// ```compile_fail,E0308
/// use temper_core::task::{SelectionTask, TrainingTask};
/// fn update_weights(_: &[TrainingTask]) {}
/// fn train(tasks: Vec<SelectionTask>) {
///     update_weights(&tasks);
/// }
/// ```
#[derive(Clone, Debug)]
pub struct SelectionTask(Task);

/// A task of the test split: measured for a candidate that is frozen. Nothing is trained, chosen or
/// stopped by it.
///
/// ```compile_fail,E0308
/// use temper_core::task::{FinalTestTask, SelectionTask};
/// fn best_snapshot(_: &[SelectionTask]) {}
/// fn choose(tasks: Vec<FinalTestTask>) {
///     best_snapshot(&tasks);
/// }
/// ```
#[derive(Clone, Debug)]
pub struct FinalTestTask(Task);

/// The task is in another split than its use asks for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use task {id} for {purpose}: its split is {split:?}")]
pub struct HeldOut {
    /// The task.
    pub id: TaskId,
    /// Its split.
    pub split: Split,
    /// What it was wanted for: `training`, `selection`, `the final test`.
    pub purpose: &'static str,
}

/// Some tasks are in other splits than their use asks for. None is used: a smaller set would be
/// another experiment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use {n_tasks} tasks for {purpose}: {} of them are not in the split for it: {}", .offenders.len(), names(.offenders))]
pub struct HeldOutTasks {
    /// What they were wanted for.
    pub purpose: &'static str,
    /// How many were given.
    pub n_tasks: usize,
    /// Every task in another split, in the order given.
    pub offenders: Vec<HeldOut>,
}

impl HeldOutTasks {
    /// What the user can do.
    pub fn hint(&self) -> &'static str {
        "choose tasks of one split; what is in no split counts as held out, and `temper split make` makes splits"
    }
}

fn names(offenders: &[HeldOut]) -> String {
    let names = offenders
        .iter()
        .map(|offender| format!("{} ({:?})", offender.id, offender.split));
    names.collect::<Vec<_>>().join(", ")
}

/// Makes a type that only tasks of one split have.
macro_rules! split_type {
    ($type:ident, $split:ident, $purpose:literal) => {
        impl $type {
            /// Takes all tasks or none: every task of another split is named.
            pub fn all(tasks: Vec<Task>) -> Result<Vec<Self>, HeldOutTasks> {
                let n_tasks = tasks.len();
                let mut taken = Vec::with_capacity(n_tasks);
                let mut offenders = Vec::new();
                for task in tasks {
                    match $type::try_from(task) {
                        Ok(task) => taken.push(task),
                        Err(offender) => offenders.push(offender),
                    }
                }
                if offenders.is_empty() {
                    return Ok(taken);
                }
                Err(HeldOutTasks {
                    purpose: $purpose,
                    n_tasks,
                    offenders,
                })
            }
        }

        impl TryFrom<Task> for $type {
            type Error = HeldOut;
            fn try_from(task: Task) -> Result<Self, HeldOut> {
                match task.split {
                    Split::$split => Ok($type(task)),
                    split => Err(HeldOut {
                        id: task.id,
                        split,
                        purpose: $purpose,
                    }),
                }
            }
        }

        impl std::ops::Deref for $type {
            type Target = Task;
            fn deref(&self) -> &Task {
                &self.0
            }
        }
    };
}

split_type!(TrainingTask, Train, "training");
split_type!(SelectionTask, Dev, "selection");
split_type!(FinalTestTask, Test, "the final test");

/// The repository state an agent starts from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Start {
    /// A published source distribution with a patch on top.
    SourceDistribution {
        /// The archive.
        archive: Archive,
        /// Introduces the bug and takes the hidden tests out; applied with `-p1`.
        patch: Patch,
    },
    /// A directory of the task.
    Directory {
        /// Absolute path, resolved when the task was read.
        path: PathBuf,
        /// The digest of the tree in it.
        digest: Digest,
    },
    /// One commit of a git repository, of which only that commit's files are shown.
    GitCommit {
        /// A path on this machine or a URL.
        repository: String,
        /// The full commit id.
        commit: String,
    },
    /// The work tree inside a container image.
    Image {
        /// The commit the work tree is at, where the source says so.
        base_commit: Option<String>,
        /// A branch to check out first (SWE-smith: the instance id).
        checkout: Option<String>,
    },
}

/// A file of a package index, named and hashed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Archive {
    /// The project's name in the index.
    pub project: String,
    /// The file name (`toolz-1.0.0.tar.gz`, `pytest-9.0.1-py3-none-any.whl`).
    pub file_name: String,
    /// SHA-256 of the file.
    pub sha256: Digest,
}

/// What commands run in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Environment {
    /// The host's Python with pinned pure-Python wheels, mounted read-only.
    Python {
        /// A version requirement such as `>=3.9`.
        requires_python: String,
        /// The wheels on the path, in order.
        wheels: Vec<Archive>,
        /// Directories of the work tree that are put on `PYTHONPATH`, in order; `.` is its root.
        python_path: Vec<String>,
    },
    /// A container image that holds everything.
    Image {
        /// Its name.
        image: String,
        /// The work tree inside it.
        work_tree: String,
    },
    /// An image built from a directory with a Dockerfile.
    Dockerfile {
        /// Absolute path of the build context.
        context: PathBuf,
        /// The work tree inside it, where the source says so.
        work_tree: Option<String>,
    },
    /// Nothing but the host's own programs.
    Host,
}

/// Two test lists, in the words of SWE-bench.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestLists {
    /// They fail before the fix and pass after it.
    #[serde(default)]
    pub fail_to_pass: Vec<TestId>,
    /// They pass before and after.
    #[serde(default)]
    pub pass_to_pass: Vec<TestId>,
}

/// How a final state is judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Verifier {
    /// Temper's own runner: syntax, then public tests, then hidden tests, with structured results.
    Pytest {
        /// Tests the agent can see.
        public: TestLists,
        /// Tests it cannot.
        hidden: TestLists,
        /// The test files, restored before grading: below the work tree.
        test_files: Vec<String>,
        /// Where the hidden versions of `test_files` come from.
        hidden_source: HiddenSource,
        /// Extra arguments of the runner.
        #[serde(default)]
        arguments: Vec<String>,
        /// Wall-clock limit of one layer.
        timeout_seconds: u64,
    },
    /// A test command whose log is parsed (SWE-bench, SWE-smith).
    Log {
        /// Name of the log parser.
        parser: String,
        /// The test command, where the record gives one.
        test_command: Option<String>,
        /// Applied before the tests run.
        test_patch: Patch,
        /// The lists.
        tests: TestLists,
        /// How the log decides.
        rules: ResolutionRules,
        /// Wall-clock limit.
        timeout_seconds: u64,
    },
    /// Harbor's protocol: a script writes a reward file.
    Harbor {
        /// Absolute path of the `tests` directory.
        tests: PathBuf,
        /// Variables of the script.
        environment: BTreeMap<String, String>,
        /// Wall-clock limit.
        timeout_seconds: u64,
    },
}

/// Where hidden test files come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum HiddenSource {
    /// The start's source distribution, unpatched.
    SourceDistribution,
    /// A directory of the task; absolute.
    Directory {
        /// The directory.
        path: PathBuf,
    },
}

/// Which reading of a log decides, since versions of the harness differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResolutionRules {
    /// SWE-bench 4.1: an absent test failed; skipped is in neither list.
    SweBench4,
    /// SWE-bench 5.0: skipped fails fail-to-pass and holds pass-to-pass; truncated ids match by
    /// prefix.
    SweBench5,
    /// SWE-smith 0.0.9: an absent test failed.
    SweSmith009,
    /// SWE-smith cf2e649d: an absent test passed.
    SweSmithCf2e649d,
}

/// A known fix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Oracle {
    /// A patch against the start.
    Patch {
        /// The patch.
        patch: Patch,
    },
    /// A patch against the start, to be applied in reverse (SWE-smith).
    ReversePatch {
        /// The patch that introduced the bug.
        patch: Patch,
    },
    /// A script (Harbor `solution/solve.sh`).
    Script {
        /// Absolute path of the `solution` directory.
        directory: PathBuf,
        /// Variables of the script.
        environment: BTreeMap<String, String>,
    },
}

/// Where code comes from and what may be done with it. Unknown stays unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Project or repository.
    pub project: String,
    /// Released version or commit.
    #[serde(default)]
    pub version: Option<String>,
    /// SPDX expression.
    #[serde(default)]
    pub licence: Option<String>,
    /// The project's home.
    #[serde(default)]
    pub url: Option<String>,
    /// How the bug came to be: `release-history`, `mutation:KIND`, `upstream-fix`, …
    #[serde(default)]
    pub bug: Option<String>,
}

/// A task whose files lie ready on this machine: nothing needs to be fetched or built for a trial.
#[derive(Clone, Debug)]
pub struct PreparedTask {
    /// The task.
    pub task: Task,
    /// The starting work tree, read-only, with a single-commit `.git` where git was available.
    /// `None` when the work tree is inside an image.
    pub start_tree: Option<PathBuf>,
    /// Hidden versions of the test files, laid out as in the work tree. Never visible in a trial.
    pub hidden_tests: Option<PathBuf>,
    /// Read-only directories of the environment: where they lie and where they are seen.
    pub mounts: Vec<PreparedMount>,
    /// Variables of every command.
    pub variables: BTreeMap<String, String>,
    /// The image, for tasks that need one.
    pub image: Option<String>,
    /// Where the work tree is seen by commands.
    pub work_tree: String,
    /// Commands that run in a fresh sandbox before the agent: a checkout, taking later history out.
    pub setup: Vec<String>,
    /// The digest of everything above that can change a result.
    pub environment_digest: Digest,
}

/// A read-only directory of a prepared environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreparedMount {
    /// On this machine.
    pub source: PathBuf,
    /// In the sandbox.
    pub target: String,
}

/// A file that is laid into a sandbox outside the work tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InjectedFile {
    /// Absolute path in the sandbox.
    pub path: String,
    /// Content.
    pub content: Bytes,
    /// Whether it may be executed.
    pub executable: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(id: &str, split: Split) -> Task {
        Task {
            id: TaskId::new(id).unwrap(),
            format: TaskFormat::Native,
            statement: "mend it".into(),
            start: Start::Image {
                base_commit: None,
                checkout: None,
            },
            environment: Environment::Host,
            verifier: Verifier::Harbor {
                tests: PathBuf::new(),
                environment: BTreeMap::new(),
                timeout_seconds: 1,
            },
            oracle: None,
            origin: Origin::default(),
            source_group: SourceGroup::new("g").unwrap(),
            split,
            metadata: serde_json::Map::new(),
            construction: None,
        }
    }

    #[test]
    fn every_split_goes_to_its_use_and_to_no_other() {
        for split in [Split::Train, Split::Dev, Split::Test, Split::Unassigned] {
            let one = || vec![task("a", split)];
            assert_eq!(TrainingTask::all(one()).is_ok(), split == Split::Train);
            assert_eq!(SelectionTask::all(one()).is_ok(), split == Split::Dev);
            assert_eq!(FinalTestTask::all(one()).is_ok(), split == Split::Test);
        }
    }

    #[test]
    fn all_offenders_are_named() {
        let tasks = vec![
            task("a", Split::Train),
            task("b", Split::Test),
            task("c", Split::Train),
            task("d", Split::Unassigned),
        ];
        let error = TrainingTask::all(tasks).unwrap_err();
        assert_eq!(
            error.to_string(),
            "use 4 tasks for training: 2 of them are not in the split for it: b (Test), d (Unassigned)"
        );
    }
}
