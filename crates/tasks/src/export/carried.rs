//! The field `temper` of a row, and the table of that name in Harbor's `[metadata]`: the task as
//! Temper knows it, without what the format itself says.
//!
//! It is JSON text, since loaders that infer one type per column break on objects that differ from
//! row to row. It names the digest of what it must agree with (patches and test lists, or the files
//! of a directory): where those were changed by another program, the record is read as if the field
//! were not there, and a warning says so. The statement is not part of the digest and may be edited.
//!
//! A record comes from anywhere, so a carried task is checked as a native one is, and may not name
//! a place on this machine.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use temper_core::{
    Digest, Task, TestId,
    task::{Environment, HiddenSource, Oracle, Start, TaskFormat, TestLists, Verifier},
};

use super::record;

/// The field's name.
pub(crate) const FIELD: &str = "temper";
const FORMAT: u32 = 1;

/// What is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Carried {
    format: u32,
    /// Of what it must agree with.
    agrees_with: Digest,
    /// How many tests of each list are public; they stand in front. None for a verifier with one
    /// pair of lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    n_public: Option<(usize, usize)>,
    /// The task without its statement, its lists where the format has them, and its known fix where
    /// the format's patch gives it.
    task: Map<String, Value>,
}

/// The lists of a verifier as a format with one pair has them: public tests first.
pub(crate) fn all_tests(verifier: &Verifier) -> Option<TestLists> {
    match verifier {
        Verifier::Pytest { public, hidden, .. } => {
            let both = |public: &[TestId], hidden: &[TestId]| [public, hidden].concat();
            Some(TestLists {
                fail_to_pass: both(&public.fail_to_pass, &hidden.fail_to_pass),
                pass_to_pass: both(&public.pass_to_pass, &hidden.pass_to_pass),
            })
        }
        Verifier::Log { tests, .. } => Some(tests.clone()),
        Verifier::Harbor { .. } => None,
    }
}

/// The directories that a task refers to, by the names under which an export keeps them.
pub(crate) fn directories(task: &mut Task) -> Vec<(&'static str, &mut PathBuf)> {
    let mut found = Vec::new();
    if let Start::Directory { path, .. } = &mut task.start {
        found.push(("environment/start", path));
    }
    if let Environment::Dockerfile { context, .. } = &mut task.environment {
        found.push(("environment", context));
    }
    match &mut task.verifier {
        Verifier::Pytest {
            hidden_source: HiddenSource::Directory { path },
            ..
        } => found.push(("tests/files", path)),
        Verifier::Harbor { tests, .. } => found.push(("tests", tests)),
        _ => {}
    }
    if let Some(Oracle::Script { directory, .. }) = &mut task.oracle {
        found.push(("solution", directory));
    }
    found
}

impl Carried {
    /// What is carried of `task` beside a format that has its statement. `has_lists` and
    /// `has_oracle` say what else the format has.
    pub(crate) fn of(
        task: &Task,
        agrees_with: Digest,
        has_lists: bool,
        has_oracle: bool,
    ) -> Carried {
        let mut task = task.clone();
        task.statement.clear();
        // It depends on how the task was read and not on the task.
        task.format = TaskFormat::Native;
        task.metadata.shift_remove(record::KEY);
        let mut n_public = None;
        if has_lists {
            match &mut task.verifier {
                Verifier::Pytest { public, hidden, .. } => {
                    n_public = Some((public.fail_to_pass.len(), public.pass_to_pass.len()));
                    *public = TestLists::default();
                    *hidden = TestLists::default();
                }
                Verifier::Log { tests, .. } => *tests = TestLists::default(),
                Verifier::Harbor { .. } => {}
            }
        }
        if has_oracle {
            task.oracle = None;
        }
        let value = serde_json::to_value(&task).expect("a task is plain data");
        let Value::Object(task) = value else {
            unreachable!("a task is an object");
        };
        Carried {
            format: FORMAT,
            agrees_with,
            n_public,
            task,
        }
    }

    /// As it stands in the field.
    pub(crate) fn to_text(&self) -> String {
        serde_json::to_string(self).expect("it is plain data")
    }

    /// Reads the field. It may also be an object, as some writers make of JSON text.
    pub(crate) fn read(field: &Value) -> Result<Carried, String> {
        let read = match field {
            Value::String(text) => serde_json::from_str(text),
            other => serde_json::from_value(other.clone()),
        };
        let carried: Carried = read.map_err(|error| error.to_string())?;
        if carried.format != FORMAT {
            return Err(format!(
                "its format is {}, and this version reads format {FORMAT}",
                carried.format
            ));
        }
        Ok(carried)
    }

    /// Whether it belongs to what has this digest.
    pub(crate) fn agrees(&self, with: &Digest) -> bool {
        self.agrees_with == *with
    }

    /// The task: what is carried, with what the format says put in. `lists` and `oracle` are what
    /// the format has of them. `below` is the directory in which the task's files lie; without one
    /// the task may name none.
    pub(crate) fn into_task(
        self,
        statement: String,
        lists: Option<TestLists>,
        oracle: Option<Oracle>,
        below: Option<&Path>,
    ) -> Result<Task, String> {
        let mut task: Task =
            serde_json::from_value(Value::Object(self.task)).map_err(|error| error.to_string())?;
        task.statement = statement;
        if task.oracle.is_none() {
            task.oracle = oracle;
        }
        if let Some(lists) = lists {
            match (&mut task.verifier, self.n_public) {
                (Verifier::Pytest { public, hidden, .. }, Some((n_fail, n_pass))) => {
                    let divide = |mut tests: Vec<TestId>, n: usize| {
                        (n <= tests.len())
                            .then(|| {
                                let hidden = tests.split_off(n);
                                (tests, hidden)
                            })
                            .ok_or("it counts more public tests than there are")
                    };
                    (public.fail_to_pass, hidden.fail_to_pass) =
                        divide(lists.fail_to_pass, n_fail)?;
                    (public.pass_to_pass, hidden.pass_to_pass) =
                        divide(lists.pass_to_pass, n_pass)?;
                }
                (Verifier::Log { tests, .. }, None) => *tests = lists,
                _ => return Err("its verifier has no such test lists".to_owned()),
            }
        }
        if let Start::GitCommit { repository, .. } = &task.start
            && !repository.contains("://")
        {
            return Err("its start is a repository on the machine that wrote it".to_owned());
        }
        for (name, path) in directories(&mut task) {
            let Some(below) = below else {
                return Err(format!(
                    "it names a directory ({name}) that a row cannot hold"
                ));
            };
            if path.as_os_str() != name {
                return Err(format!("its directory {} is not {name}", path.display()));
            }
            let real = std::fs::canonicalize(below.join(name))
                .map_err(|error| format!("{name}: {error}"))?;
            if !real.starts_with(below) || !real.is_dir() {
                return Err(format!("{name} is not a directory of the task"));
            }
            *path = real;
        }
        crate::native::check(&task).map_err(|(field, problem)| format!("{field}: {problem}"))?;
        Ok(task)
    }
}
