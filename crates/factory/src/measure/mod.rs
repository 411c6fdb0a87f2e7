//! What is learnt once of a repository's tests: which can be trusted, what each executes, and how
//! long it takes.
//!
//! The suite is run in file order, again in file order by another interpreter, backwards, in shuffled
//! orders, and file by file. A test is trusted when it passes in all of them and does nothing that a
//! repeated measurement must not do; the others are excluded, each with its reason. Executed lines
//! come from one further run of each file under Python's own tracing.
//!
//! What this does not find: tests that depend on the day, or that fail less often than the runs
//! here can show. The proof of a task repeats its own tests again.

pub mod coverage;
mod error;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::{Deserialize, Serialize};
use temper_core::{Digest, TestId, TestOutcome};

pub use crate::pool::Block;
use crate::pool::{self, Budgets, Cost, Ended, Flag, Job, Report, Subject, Workshop};
pub use error::MeasureError;

/// How much is run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MeasureOptions {
    /// Decides the shuffled orders.
    pub seed: u64,
    /// Runs of the whole suite in a changed order: the first backwards, which turns round every two
    /// tests of a file, the others shuffled.
    pub n_shuffles: u32,
    /// Runs of the whole suite in file order, after the first.
    pub n_repeats: u32,
    /// A test that takes longer is excluded.
    pub slow_seconds: f64,
    /// Processor seconds of one run of the whole suite.
    pub suite_seconds: f64,
    /// Memory that a run may take beyond the interpreter with its packages.
    pub memory_bytes: u64,
}

impl Default for MeasureOptions {
    fn default() -> Self {
        MeasureOptions {
            seed: 0,
            n_shuffles: 2,
            n_repeats: 1,
            slow_seconds: 2.0,
            suite_seconds: 1800.0,
            memory_bytes: 1 << 30,
        }
    }
}

/// A position in [`Measurement::tests`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TestIndex(pub u32);

/// What is known of a repository's tests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// Trusted tests, in file order.
    pub tests: Vec<MeasuredTest>,
    /// The others, in file order.
    pub excluded: Vec<ExcludedTest>,
    /// Test files, in the order in which they are run.
    pub files: Vec<MeasuredFile>,
    /// Executed code, each entry once.
    pub blocks: Vec<Block>,
    /// Third-party and standard modules that the tests import.
    pub imports: Vec<String>,
}

impl Measurement {
    /// The id of a trusted test.
    pub fn id(&self, test: TestIndex) -> &TestId {
        &self.tests[test.0 as usize].id
    }
}

/// A trusted test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredTest {
    /// Its id.
    pub id: TestId,
    /// Position of its file in [`Measurement::files`].
    pub file: u32,
    /// Shortest wall time of its phases.
    pub seconds: f64,
    /// What it executes, as positions in [`Measurement::blocks`], ascending.
    pub blocks: Vec<u32>,
}

/// A test file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredFile {
    /// Its path below the work tree.
    pub name: String,
    /// Source files of the repository that running it imports.
    pub imports: Vec<String>,
    /// What runs while it is collected, or in fixtures that its tests share.
    pub blocks: Vec<u32>,
    /// Processor seconds of a run of this file without its tests.
    pub collect_seconds: f64,
    /// Why it cannot be collected, if so.
    pub broken: bool,
}

/// A test that is not used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExcludedTest {
    /// Its id.
    pub id: TestId,
    /// Why.
    pub reason: Exclusion,
}

/// Why a test is not used. The first that holds is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Exclusion {
    /// It uses the network, which a sandbox does not have.
    Network,
    /// It writes outside the work tree and the temporary directories.
    WritesOutside,
    /// It changes files of the work tree.
    ChangesWorkTree,
    /// It does not pass on the pristine files.
    NotPassing {
        /// What it does.
        outcome: TestOutcome,
    },
    /// It ends the interpreter, by a fault, by exiting or by its time.
    EndsInterpreter,
    /// It takes too long.
    TooSlow {
        /// Wall time of its phases.
        seconds: f64,
    },
    /// Its id differs between runs, or holds an address in memory.
    UnstableId,
    /// Two runs in the same order gave different outcomes.
    Flaky,
    /// It passes in file order, but not in another order or in a run of its file alone.
    OrderDependent,
    /// It does not come to its end while its lines are traced.
    Untraceable,
}

impl Exclusion {
    /// The reason as it is written.
    pub fn name(&self) -> &'static str {
        match self {
            Exclusion::Network => "network",
            Exclusion::WritesOutside => "writes-outside",
            Exclusion::ChangesWorkTree => "changes-work-tree",
            Exclusion::NotPassing { .. } => "not-passing",
            Exclusion::EndsInterpreter => "ends-interpreter",
            Exclusion::TooSlow { .. } => "too-slow",
            Exclusion::UnstableId => "unstable-id",
            Exclusion::Flaky => "flaky",
            Exclusion::OrderDependent => "order-dependent",
            Exclusion::Untraceable => "untraceable",
        }
    }
}

/// Measures a repository's tests. The outcome depends on the number of workers and on the machine
/// only through times.
pub fn measure(
    subject: &Subject,
    workshop: &Workshop<'_>,
    options: &MeasureOptions,
) -> Result<(Measurement, Cost), MeasureError> {
    let mut cost = Cost::default();
    let whole = |tests| Job {
        budgets: Budgets::Each(10.0 * options.slow_seconds.max(0.1)),
        collect_seconds: options.suite_seconds,
        total_seconds: options.suite_seconds,
        memory_bytes: options.memory_bytes,
        max_breaks: 50,
        ..Job::new(subject.test_files.clone(), tests)
    };
    let first = Job {
        watch: true,
        describe: true,
        ..whole(None)
    };
    let mut run = |imports: &[String], jobs: &[Job], batch| -> Result<Vec<Ended>, MeasureError> {
        let (ended, spent) = pool::run(
            subject,
            workshop,
            imports,
            batch,
            jobs.len(),
            &|number| jobs[number].clone(),
            &|_, ended| ended,
        )?;
        cost.add(spent);
        Ok(ended)
    };
    let first = match run(&[], std::slice::from_ref(&first), 1)?.pop() {
        Some(Ended::Reported(report)) => report,
        Some(Ended::BrokePool(reason)) => {
            return Err(MeasureError::NoRun {
                reason,
                log: String::new(),
            });
        }
        None => {
            return Err(MeasureError::NoRun {
                reason: "nothing ran".into(),
                log: String::new(),
            });
        }
    };
    if first.tests.is_empty() {
        return Err(MeasureError::NoTests {
            n_found: 0,
            n_excluded: 0,
            reasons: BTreeMap::new(),
            n_broken: first.errors.len(),
            log: first.log,
        });
    }

    let mut excluded: BTreeMap<usize, Exclusion> = BTreeMap::new();
    let outcomes = outcomes(&first);
    exclude_at_baseline(&first, &outcomes, &mut excluded);
    let imports = first.modules.clone();
    let candidates: Vec<usize> = (0..first.tests.len())
        .filter(|index| !excluded.contains_key(index))
        .collect();

    // The second interpreter places objects elsewhere, so an address in an id shows.
    let mut jobs: Vec<Job> = (0..options.n_repeats).map(|_| whole(None)).collect();
    for number in 0..options.n_shuffles {
        let order = match number {
            0 => backwards(&first.tests, &candidates),
            _ => shuffled(&first.tests, &candidates, options.seed, number),
        };
        jobs.push(whole(Some(order)));
    }
    let repeated = run(&imports, &jobs, 1)?;

    let mut by_file: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let place: HashMap<&str, usize> = subject
        .test_files
        .iter()
        .enumerate()
        .map(|(number, name)| (name.as_str(), number))
        .collect();
    for index in &candidates {
        match place.get(file_of(&first.tests[*index])) {
            Some(file) => by_file.entry(*file).or_default().push(*index),
            None => {
                excluded.insert(*index, Exclusion::UnstableId);
            }
        }
    }
    let mut jobs = Vec::new();
    for (file, indices) in &by_file {
        let tests: Vec<String> = indices.iter().map(|i| first.tests[*i].clone()).collect();
        let alone = Job {
            files: vec![subject.test_files[*file].clone()],
            ..whole(Some(tests))
        };
        jobs.push(Job {
            trace: true,
            budgets: Budgets::Each(100.0 * options.slow_seconds.max(0.1)),
            total_seconds: 10.0 * options.suite_seconds,
            ..alone.clone()
        });
        jobs.push(alone);
    }
    let batch = jobs
        .len()
        .div_ceil(2 * workshop.n_workers.max(1))
        .clamp(2, 64);
    let alone = run(&imports, &jobs, batch)?;

    let mut seconds: HashMap<&str, f64> = HashMap::new();
    for run in &first.runs {
        seconds.insert(&first.tests[run.index], run.seconds);
    }
    let n_repeats = options.n_repeats as usize;
    for (number, ended) in repeated.iter().enumerate() {
        let reason = if number < n_repeats {
            Exclusion::Flaky
        } else {
            Exclusion::OrderDependent
        };
        compare(
            &first,
            &candidates,
            ended,
            number < n_repeats,
            reason,
            &mut seconds,
            &mut excluded,
        );
    }
    for (ended, indices) in alone.iter().skip(1).step_by(2).zip(by_file.values()) {
        compare(
            &first,
            indices,
            ended,
            false,
            Exclusion::OrderDependent,
            &mut seconds,
            &mut excluded,
        );
    }

    // The shortest of all runs, since a busy machine only ever adds.
    for index in &candidates {
        let shortest = seconds.get(first.tests[*index].as_str()).copied();
        if let Some(seconds) = shortest.filter(|seconds| *seconds > options.slow_seconds) {
            excluded
                .entry(*index)
                .or_insert(Exclusion::TooSlow { seconds });
        }
    }

    let mut blocks = Blocks::default();
    let mut files: Vec<MeasuredFile> = subject
        .test_files
        .iter()
        .map(|name| MeasuredFile {
            name: name.clone(),
            imports: Vec::new(),
            blocks: Vec::new(),
            collect_seconds: 0.0,
            broken: first.errors.iter().any(|error| file_of(error) == name),
        })
        .collect();
    let mut covers: HashMap<usize, Vec<u32>> = HashMap::new();
    for ((traced, plain), (file, indices)) in alone
        .iter()
        .step_by(2)
        .zip(alone.iter().skip(1).step_by(2))
        .zip(&by_file)
    {
        if let Ended::Reported(report) = traced {
            files[*file].imports.clone_from(&report.imports);
            for (test, executed) in &report.covers {
                let executed = executed
                    .iter()
                    .map(|block| blocks.number(&report.blocks[*block]));
                match test.and_then(|test| indices.get(test)) {
                    Some(index) => covers.entry(*index).or_default().extend(executed),
                    None => files[*file].blocks.extend(executed),
                }
            }
        }
        if let Ended::Reported(report) = plain {
            let tests: f64 = report.runs.iter().map(|run| run.seconds).sum();
            files[*file].collect_seconds = (report.cpu_seconds - tests).max(0.0);
        }
        sort(&mut files[*file].blocks);
    }

    let mut tests = Vec::new();
    for (file, indices) in &by_file {
        for index in indices {
            let Some(mut executed) = covers.remove(index) else {
                excluded.entry(*index).or_insert(Exclusion::Untraceable);
                continue;
            };
            if excluded.contains_key(index) {
                continue;
            }
            sort(&mut executed);
            let id = &first.tests[*index];
            tests.push(MeasuredTest {
                id: TestId(id.clone()),
                file: *file as u32,
                seconds: seconds.get(id.as_str()).copied().unwrap_or(0.0),
                blocks: executed,
            });
        }
    }
    let n_broken = files.iter().filter(|file| file.broken).count();
    if tests.is_empty() {
        return Err(MeasureError::NoTests {
            n_found: first.tests.len(),
            n_excluded: excluded.len(),
            reasons: reasons(excluded.values()),
            n_broken,
            log: first.log,
        });
    }
    let measurement = Measurement {
        tests,
        excluded: excluded
            .into_iter()
            .map(|(index, reason)| ExcludedTest {
                id: TestId(first.tests[index].clone()),
                reason,
            })
            .collect(),
        files,
        blocks: blocks.list,
        imports,
    };
    Ok((measurement, cost))
}

/// How many tests were excluded for which reason.
pub fn reasons<'e>(excluded: impl Iterator<Item = &'e Exclusion>) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for reason in excluded {
        *counts.entry(reason.name()).or_default() += 1;
    }
    counts
}

fn sort(numbers: &mut Vec<u32>) {
    numbers.sort_unstable();
    numbers.dedup();
}

/// The file of a test's id.
pub fn file_of(id: &str) -> &str {
    id.split("::").next().unwrap_or(id)
}

fn outcomes(report: &Report) -> HashMap<&str, TestOutcome> {
    report
        .runs
        .iter()
        .map(|run| (report.tests[run.index].as_str(), run.outcome))
        .collect()
}

fn exclude_at_baseline(
    first: &Report,
    outcomes: &HashMap<&str, TestOutcome>,
    excluded: &mut BTreeMap<usize, Exclusion>,
) {
    let flags: BTreeSet<(usize, Flag)> = first.flags.iter().copied().collect();
    let ended: HashSet<usize> = first.broken.iter().filter_map(|(test, _)| *test).collect();
    for (index, id) in first.tests.iter().enumerate() {
        let reason = match outcomes.get(id.as_str()) {
            _ if flags.contains(&(index, Flag::Network)) => Exclusion::Network,
            _ if flags.contains(&(index, Flag::Outside)) => Exclusion::WritesOutside,
            _ if flags.contains(&(index, Flag::Inside)) => Exclusion::ChangesWorkTree,
            _ if ended.contains(&index) => Exclusion::EndsInterpreter,
            None => Exclusion::NotPassing {
                outcome: TestOutcome::NotRun,
            },
            Some(TestOutcome::Passed) if holds_address(id) => Exclusion::UnstableId,
            Some(TestOutcome::Passed) => continue,
            Some(outcome) => Exclusion::NotPassing { outcome: *outcome },
        };
        excluded.insert(index, reason);
    }
}

/// Whether an id holds what `repr` prints of an object without one of its own: `at 0x7f…`.
fn holds_address(id: &str) -> bool {
    id.match_indices("0x").any(|(at, _)| {
        id[at + 2..]
            .bytes()
            .take_while(u8::is_ascii_hexdigit)
            .count()
            >= 8
            && id[..at].ends_with("at ")
    })
}

fn compare<'a>(
    first: &'a Report,
    indices: &[usize],
    ended: &Ended,
    found: bool,
    reason: Exclusion,
    seconds: &mut HashMap<&'a str, f64>,
    excluded: &mut BTreeMap<usize, Exclusion>,
) {
    let seen = match ended {
        Ended::Reported(report) => report
            .runs
            .iter()
            .map(|run| (report.tests[run.index].as_str(), run))
            .collect(),
        Ended::BrokePool(_) => HashMap::new(),
    };
    let known: HashSet<&str> = match ended {
        Ended::Reported(report) => report.tests.iter().map(String::as_str).collect(),
        Ended::BrokePool(_) => HashSet::new(),
    };
    for index in indices {
        let id = first.tests[*index].as_str();
        match seen.get(id) {
            Some(run) if run.outcome == TestOutcome::Passed => {
                let shortest = seconds.entry(id).or_insert(run.seconds);
                *shortest = shortest.min(run.seconds);
            }
            None if found && !known.is_empty() && !known.contains(id) => {
                excluded.entry(*index).or_insert(Exclusion::UnstableId);
            }
            _ => {
                excluded.entry(*index).or_insert(reason.clone());
            }
        }
    }
}

/// The tests in the opposite order. Every pair of one file is turned round, so a test that needs an
/// earlier one of its file always fails here.
fn backwards(tests: &[String], indices: &[usize]) -> Vec<String> {
    indices.iter().rev().map(|i| tests[*i].clone()).collect()
}

/// Files in a shuffled order, and the tests of each in a shuffled order. Tests of one file stay
/// together, since what their fixtures set up is shared. Two tests keep their order whatever other
/// tests there are.
fn shuffled(tests: &[String], indices: &[usize], seed: u64, number: u32) -> Vec<String> {
    let rank = |text: &str| Digest::of(format!("{seed} {number} {text}").as_bytes());
    let mut order: Vec<&String> = indices.iter().map(|i| &tests[*i]).collect();
    order.sort_by_cached_key(|id| (rank(file_of(id)), rank(id)));
    order.into_iter().cloned().collect()
}

#[derive(Default)]
struct Blocks {
    list: Vec<Block>,
    numbers: BTreeMap<Block, u32>,
}

impl Blocks {
    fn number(&mut self, block: &Block) -> u32 {
        if let Some(number) = self.numbers.get(block) {
            return *number;
        }
        let number = self.list.len() as u32;
        self.list.push(block.clone());
        self.numbers.insert(block.clone(), number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_called_as_it_is_written() {
        let reasons = [
            Exclusion::Network,
            Exclusion::WritesOutside,
            Exclusion::ChangesWorkTree,
            Exclusion::NotPassing {
                outcome: TestOutcome::Failed,
            },
            Exclusion::EndsInterpreter,
            Exclusion::TooSlow { seconds: 1.0 },
            Exclusion::UnstableId,
            Exclusion::Flaky,
            Exclusion::OrderDependent,
            Exclusion::Untraceable,
        ];
        for reason in &reasons {
            let written = serde_json::to_value(reason).unwrap();
            assert_eq!(written["kind"], reason.name());
        }
        assert_eq!(super::reasons(reasons.iter()).len(), reasons.len());
    }

    #[test]
    fn an_address_in_an_id_is_seen_and_a_number_is_not() {
        assert!(holds_address(
            "t.py::test[<object object at 0x7f1c2a3b4c50>]"
        ));
        assert!(!holds_address("t.py::test[0x7f]"));
        assert!(!holds_address("t.py::test[0x7f1c2a3b4c50]"));
    }

    #[test]
    fn a_shuffle_keeps_every_test_once_and_files_together() {
        let tests: Vec<String> = (0..40).map(|n| format!("f{}.py::t{n}", n % 4)).collect();
        let indices: Vec<usize> = (0..40).collect();
        let order = shuffled(&tests, &indices, 1, 1);
        assert_eq!(order, shuffled(&tests, &indices, 1, 1));
        assert_ne!(order, shuffled(&tests, &indices, 2, 1));
        assert_ne!(order, shuffled(&tests, &indices, 1, 2));
        let mut sorted = order.clone();
        sorted.sort();
        let mut expected = tests.clone();
        expected.sort();
        assert_eq!(sorted, expected);
        let mut files: Vec<&str> = order.iter().map(|id| file_of(id)).collect();
        files.dedup();
        assert_eq!(files.len(), 4);
    }
}
