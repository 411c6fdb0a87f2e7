//! What each candidate does to the tests that it can affect.
//!
//! Every affected test runs, not only up to the first failure, because the list of failing tests
//! becomes a task's fail-to-pass list and the list over all candidates says which mutants of a fix
//! its tests notice. A screen's word is no proof: see [`super::proof`].

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use temper_core::{Digest, TestOutcome, TreePath, patch, tree::Changes};
use temper_sandbox::verify::read_entry;

use crate::{
    Candidate,
    measure::{TestIndex, coverage::Index},
    pool::{self, Break, Budgets, Cost, Ended, Flag, Job, PoolError, Report, Subject, Workshop},
};

/// How candidates are run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScreenOptions {
    /// Affected tests that are run, the nearest first: as many as a task's lists hold by default, and a
    /// few more for the audit.
    pub max_tests: usize,
    /// A test may take this many times what it took when it was measured.
    pub timeout_factor: f64,
    /// And at least this many processor seconds.
    pub timeout_seconds: f64,
    /// Memory that a run may take beyond the interpreter with its packages.
    pub memory_bytes: u64,
    /// Candidates that one sandbox takes, at most.
    pub batch: usize,
}

impl Default for ScreenOptions {
    fn default() -> Self {
        ScreenOptions {
            max_tests: 150,
            timeout_factor: 10.0,
            timeout_seconds: 1.0,
            memory_bytes: 1 << 30,
            batch: 100,
        }
    }
}

/// What became of a candidate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Screened {
    /// Which candidate.
    pub candidate: Digest,
    /// What it does.
    pub status: Status,
    /// Affected tests that fail, ascending.
    pub failing: Vec<TestIndex>,
    /// Affected tests that pass, the nearest first.
    pub passing: Vec<TestIndex>,
}

/// What a candidate does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Status {
    /// Some affected tests fail, in an orderly way: the makings of a task.
    Killed,
    /// All affected tests pass.
    Survived,
    /// No trusted test executes what it changes.
    Uncovered,
    /// No affected test can be collected any more: the module does not import.
    BreaksImport,
    /// A test came to no end.
    TimedOut,
    /// A test ended the interpreter.
    Crashed,
    /// A test ran out of memory.
    OutOfMemory,
    /// Two runs gave different results.
    Unstable,
    /// The patch does not fit the repository.
    DoesNotApply {
        /// Why.
        reason: String,
    },
}

impl Status {
    /// Whether the tests noticed the change.
    pub fn is_noticed(&self) -> bool {
        matches!(
            self,
            Status::Killed
                | Status::BreaksImport
                | Status::TimedOut
                | Status::Crashed
                | Status::OutOfMemory
        )
    }
}

/// The changes of a candidate, relative to the pristine files.
pub fn changes_of(subject: &Subject, candidate: &Candidate) -> Result<Changes, String> {
    let mut read = |path: &TreePath| read_entry(&subject.tree, path);
    patch::apply(&candidate.patch, &mut read)
        .map(|applied| applied.changes)
        .map_err(|error| error.to_string())
}

/// Runs the affected tests on every candidate. Results are in the order of the candidates and do
/// not depend on the number of workers.
pub fn screen(
    subject: &Subject,
    workshop: &Workshop<'_>,
    index: &Index<'_>,
    candidates: &[Candidate],
    options: &ScreenOptions,
) -> Result<(Vec<Screened>, Cost), PoolError> {
    let mut screened: Vec<Screened> = Vec::with_capacity(candidates.len());
    let mut pending = Vec::new();
    for (number, candidate) in candidates.iter().enumerate() {
        let affected = affected(index, candidate, options);
        let status = match changes_of(subject, candidate) {
            Err(reason) => Status::DoesNotApply { reason },
            Ok(_) if affected.is_empty() => Status::Uncovered,
            Ok(_) => {
                pending.push(number);
                Status::Survived
            }
        };
        screened.push(Screened {
            candidate: candidate.digest(),
            status,
            failing: Vec::new(),
            passing: Vec::new(),
        });
    }
    let mut cost = Cost::default();
    let mut run = |numbers: &[usize]| -> Result<Vec<Found>, PoolError> {
        let (found, spent) = pool::run(
            subject,
            workshop,
            &index.measurement().imports,
            // Every worker gets several batches, so that all end at about the same time.
            options
                .batch
                .min(numbers.len().div_ceil(3 * workshop.n_workers.max(1))),
            numbers.len(),
            &|turn| {
                let candidate = &candidates[numbers[turn]];
                let tests = affected(index, candidate, options);
                let changes = changes_of(subject, candidate).unwrap_or_default();
                job(index, changes, &in_order(&tests), options)
            },
            &|turn, ended| {
                let tests = affected(index, &candidates[numbers[turn]], options);
                judge(&tests, &in_order(&tests), ended)
            },
        )?;
        cost.add(spent);
        Ok(found)
    };
    let found = run(&pending)?;
    let doubtful: Vec<usize> = pending
        .iter()
        .zip(&found)
        .filter(|(_, found)| {
            matches!(
                found.status,
                Status::TimedOut | Status::Crashed | Status::OutOfMemory
            )
        })
        .map(|(number, _)| *number)
        .collect();
    for (number, found) in pending.iter().zip(found) {
        found.store(&mut screened[*number]);
    }
    let again = run(&doubtful)?;
    for (number, found) in doubtful.iter().zip(again) {
        let screened = &mut screened[*number];
        if screened.status != found.status || screened.failing != found.failing {
            screened.status = Status::Unstable;
            screened.failing.clear();
            screened.passing.clear();
        }
    }
    Ok((screened, cost))
}

/// The affected tests, the nearest first.
fn affected(index: &Index<'_>, candidate: &Candidate, options: &ScreenOptions) -> Vec<TestIndex> {
    let affected = index.affected(&candidate.places);
    affected
        .into_iter()
        .take(options.max_tests)
        .map(|affected| affected.test)
        .collect()
}

fn in_order(tests: &[TestIndex]) -> Vec<TestIndex> {
    let mut tests = tests.to_vec();
    tests.sort();
    tests
}

/// The job that runs `tests`, which are in file order.
pub(super) fn job(
    index: &Index<'_>,
    changes: Changes,
    tests: &[TestIndex],
    options: &ScreenOptions,
) -> Job {
    let measurement = index.measurement();
    let tests: Vec<_> = tests
        .iter()
        .map(|test| &measurement.tests[test.0 as usize])
        .collect();
    let mut files: Vec<u32> = tests.iter().map(|test| test.file).collect();
    files.dedup();
    let collect: f64 = files
        .iter()
        .map(|file| measurement.files[*file as usize].collect_seconds)
        .sum();
    let budget = |seconds: f64| (options.timeout_factor * seconds).max(options.timeout_seconds);
    let collect_seconds = budget(collect).max(2.0 * options.timeout_seconds);
    let seconds: f64 = tests.iter().map(|test| test.seconds).sum();
    Job {
        changes,
        budgets: Budgets::By(tests.iter().map(|test| budget(test.seconds)).collect()),
        collect_seconds,
        // All tests together must not become much slower either.
        total_seconds: collect_seconds + budget(seconds).max(4.0 * options.timeout_seconds),
        memory_bytes: options.memory_bytes,
        max_breaks: 1,
        ..Job::new(
            files
                .iter()
                .map(|file| measurement.files[*file as usize].name.clone())
                .collect(),
            Some(tests.iter().map(|test| test.id.0.clone()).collect()),
        )
    }
}

struct Found {
    status: Status,
    failing: Vec<TestIndex>,
    passing: Vec<TestIndex>,
}

impl Found {
    fn store(self, screened: &mut Screened) {
        screened.status = self.status;
        screened.failing = self.failing;
        screened.passing = self.passing;
    }
}

/// Reads a job's end. `nearest` are its tests by nearness, `tests` in the order in which they ran.
fn judge(nearest: &[TestIndex], tests: &[TestIndex], ended: Ended) -> Found {
    let report = match ended {
        Ended::Reported(report) => report,
        Ended::BrokePool(_) => {
            return Found {
                status: Status::Crashed,
                failing: Vec::new(),
                passing: Vec::new(),
            };
        }
    };
    let mut failing = BTreeSet::new();
    let mut passing = BTreeSet::new();
    for run in &report.runs {
        let holds = matches!(
            run.outcome,
            TestOutcome::Passed | TestOutcome::ExpectedFailure
        );
        let list = if holds { &mut passing } else { &mut failing };
        list.insert(tests[run.index]);
    }
    for index in report
        .missing
        .iter()
        .chain(report.broken.iter().filter_map(|(t, _)| t.as_ref()))
    {
        failing.insert(tests[*index]);
    }
    let status = status(&report, passing.is_empty(), failing.is_empty());
    if status == Status::BreaksImport {
        failing.extend(tests);
    }
    Found {
        status,
        failing: failing.into_iter().collect(),
        passing: nearest
            .iter()
            .copied()
            .filter(|test| passing.contains(test))
            .collect(),
    }
}

fn status(report: &Report, none_passes: bool, none_fails: bool) -> Status {
    let broken = |how| report.broken.iter().any(|(_, broken)| *broken == how);
    // pytest refuses to start when the tests' `conftest.py` does not import.
    let refused = report.exit == Some(4) && report.runs.is_empty();
    // Where a package cannot be imported, tests of modules that can be are errors as well.
    let all_errors = report
        .runs
        .iter()
        .all(|run| run.outcome == TestOutcome::Error);
    let not_imported = none_passes && all_errors && !report.errors.is_empty();
    if broken(Break::Time) {
        Status::TimedOut
    } else if !report.broken.is_empty() || matches!(report.exit, Some(2 | 3)) {
        Status::Crashed
    } else if report.flags.iter().any(|(_, flag)| *flag == Flag::Memory) {
        Status::OutOfMemory
    } else if refused || not_imported {
        Status::BreaksImport
    } else if none_fails {
        Status::Survived
    } else {
        Status::Killed
    }
}
