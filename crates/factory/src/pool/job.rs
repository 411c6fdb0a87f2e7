//! What is asked of a pool.

use serde::Serialize;
use temper_core::{Bytes, Entry, tree::Changes};

/// One run of tests on a changed work tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// What differs from the pristine files.
    pub changes: Changes,
    /// Files that are given to pytest.
    pub files: Vec<String>,
    /// The tests to run, in this order; `None` runs all that are found.
    pub tests: Option<Vec<String>>,
    /// Processor seconds of each test: one for all, or one for each of `tests`.
    pub budgets: Budgets,
    /// Processor seconds until the first test, and after the last.
    pub collect_seconds: f64,
    /// Processor seconds of the whole job.
    pub total_seconds: f64,
    /// Memory beyond what the worker has at its start.
    pub memory_bytes: u64,
    /// How many tests may end the interpreter before the rest is given up.
    pub max_breaks: u32,
    /// Whether executed lines are reported.
    pub trace: bool,
    /// Whether network and writes to files are reported.
    pub watch: bool,
    /// Whether imported third-party modules and the end of the log are reported.
    pub describe: bool,
    /// Whether what pytest says of each failing test is reported.
    pub explain: bool,
}

/// Processor seconds of tests.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Budgets {
    /// The same for each.
    Each(f64),
    /// By position in the job's tests.
    By(Vec<f64>),
}

/// Wall time that a test may take beyond its processor time, because it sleeps or the machine is
/// busy.
const WALL_FACTOR: f64 = 4.0;
const WALL_EXTRA_SECONDS: f64 = 5.0;

impl Job {
    /// A run of whole files, or of chosen tests of them, on the pristine state.
    pub fn new(files: Vec<String>, tests: Option<Vec<String>>) -> Self {
        Job {
            changes: Changes::new(),
            files,
            tests,
            budgets: Budgets::Each(20.0),
            collect_seconds: 60.0,
            total_seconds: 600.0,
            memory_bytes: 1 << 30,
            max_breaks: 1,
            trace: false,
            watch: false,
            describe: false,
            explain: false,
        }
    }

    fn largest_budget(&self) -> f64 {
        match &self.budgets {
            Budgets::Each(seconds) => *seconds,
            Budgets::By(all) => all.iter().copied().fold(0.0, f64::max),
        }
    }

    /// No job lasts longer.
    pub(super) fn wall_limit(&self) -> f64 {
        f64::from(self.max_breaks.max(1))
            * ((self.total_seconds + self.collect_seconds) * WALL_FACTOR + WALL_EXTRA_SECONDS)
    }

    pub(super) fn to_json(&self) -> String {
        let changes: Vec<_> = self
            .changes
            .iter()
            .filter_map(|(path, entry)| {
                let (content, executable) = match entry {
                    None => (None, false),
                    Some(Entry::File {
                        content,
                        executable,
                    }) => (Some(Bytes(content.clone())), *executable),
                    Some(Entry::Symlink { .. }) => return None,
                };
                Some((path.to_text().into_owned(), content, executable))
            })
            .collect();
        serde_json::json!({
            "changes": changes,
            "files": self.files,
            "ids": self.tests,
            "budgets": self.budgets,
            "collect_seconds": self.collect_seconds,
            "total_seconds": self.total_seconds,
            "wall_seconds": self.largest_budget() * WALL_FACTOR + WALL_EXTRA_SECONDS,
            "collect_wall_seconds": self.collect_seconds * WALL_FACTOR,
            "memory_bytes": self.memory_bytes,
            "max_breaks": self.max_breaks,
            "trace": self.trace,
            "watch": self.watch,
            "modules": self.describe,
            "log": self.describe,
            "explain": self.explain,
        })
        .to_string()
    }
}
