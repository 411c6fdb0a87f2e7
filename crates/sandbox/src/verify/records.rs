//! The authenticated records of a pytest run, as `python/runner.py` writes them.
//!
//! What makes a line a record is said in `channel`.

use std::collections::BTreeMap;

use serde::Deserialize;
use temper_core::{Bytes, verdict::TestOutcome};

use super::channel::{self, Key, Line};

/// What a run reported.
#[derive(Debug, Default)]
pub struct Run {
    /// The trusted parent started.
    pub started: bool,
    /// The child imported pytest, before any code under test.
    pub ready: bool,
    /// The first source that does not parse, by its number, and why.
    pub syntax: Option<(usize, String)>,
    /// Files that were given to pytest.
    pub files: Vec<String>,
    /// Results by test.
    pub tests: BTreeMap<String, TestReport>,
    /// Files or classes that could not be collected.
    pub collection_errors: Vec<String>,
    /// The test that was announced last.
    pub last_started: Option<String>,
    /// Where a second layer began, if it did.
    pub second_layer: Option<SecondLayer>,
    /// The session's own exit status, when it came to its end.
    pub finished: Option<i32>,
    /// Parts of the runner that were replaced while it ran.
    pub subverted: Option<String>,
    /// Records that were forged: how many, and how the first one starts.
    pub forged: Option<(u64, String)>,
    /// How the child ended.
    pub end: Option<End>,
}

/// How the child of the trusted parent ended.
#[derive(Debug, Deserialize)]
pub struct End {
    /// Whether the parent ended it because the time was up.
    pub timed_out: bool,
    /// Its exit code, negative for a signal.
    pub code: i32,
    /// What it printed, the middle left out when there was much.
    pub log: Bytes,
}

/// The place in a session where its first layer was over.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct SecondLayer {
    /// Whether the second layer's tests are left out, because the first does not hold.
    pub stopped: bool,
    /// Wall seconds since the session started.
    #[serde(rename = "at")]
    pub after_seconds: f64,
}

/// What became of one test, phase by phase.
#[derive(Clone, Debug, Default)]
pub struct TestReport {
    outcomes: Vec<TestOutcome>,
    passed_call: bool,
    torn_down: bool,
    /// A phase raised and was reported as passed.
    pub contradiction: bool,
}

impl TestReport {
    /// The test's outcome: the worst of its phases. A test that was never torn down was cut off.
    pub fn outcome(&self) -> TestOutcome {
        let worst = self
            .outcomes
            .iter()
            .copied()
            .max_by_key(|outcome| match outcome {
                TestOutcome::Error => 5,
                TestOutcome::Failed => 4,
                TestOutcome::UnexpectedPass => 3,
                TestOutcome::Skipped => 2,
                TestOutcome::ExpectedFailure => 1,
                _ => 0,
            });
        match worst {
            Some(outcome) if self.torn_down => outcome,
            None if self.torn_down && self.passed_call => TestOutcome::Passed,
            Some(outcome @ (TestOutcome::Error | TestOutcome::Failed)) => outcome,
            _ => TestOutcome::Lost,
        }
    }

    fn add(&mut self, when: &str, outcome: &str, xfail: bool, raised: bool) {
        self.contradiction |= raised && outcome == "passed";
        let bad = match (outcome, when, xfail) {
            ("passed", "call", true) => Some(TestOutcome::UnexpectedPass),
            ("passed", ..) => None,
            ("skipped", _, true) => Some(TestOutcome::ExpectedFailure),
            ("skipped", _, false) => Some(TestOutcome::Skipped),
            (_, "call", _) => Some(TestOutcome::Failed),
            _ => Some(TestOutcome::Error),
        };
        self.passed_call |= when == "call" && bad.is_none();
        self.torn_down |= when == "teardown";
        self.outcomes.extend(bad);
    }
}

#[derive(Deserialize)]
#[serde(tag = "t", rename_all = "kebab-case")]
enum Record {
    Hello {},
    Syntax {
        i: usize,
        problem: String,
    },
    Ready {
        files: Vec<String>,
    },
    Collected {},
    CollectError {
        id: String,
    },
    Start {
        id: String,
    },
    Report {
        id: String,
        when: String,
        outcome: String,
        xfail: bool,
        raised: bool,
    },
    Layer(SecondLayer),
    Subverted {
        what: String,
    },
    Finish {
        exit: i32,
    },
    Forged {
        count: u64,
        first: String,
    },
    End(End),
}

impl Run {
    /// Reads the runner's output.
    pub fn read(output: &[u8], key: &Key) -> Self {
        let mut run = Run::default();
        for line in channel::read(output, key) {
            match line {
                Line::Record(record) => run.take(record),
                Line::Forged(rest) => {
                    let first = String::from_utf8_lossy(&rest[..rest.len().min(200)]).into_owned();
                    run.forged.get_or_insert((0, first)).0 += 1;
                }
            }
        }
        run
    }

    fn take(&mut self, record: Record) {
        match record {
            Record::Hello {} => self.started = true,
            Record::Syntax { i, problem } => self.syntax = Some((i, problem)),
            Record::Ready { files } => {
                self.ready = true;
                self.files = files;
            }
            Record::Collected {} => {}
            Record::CollectError { id } => self.collection_errors.push(id),
            Record::Start { id } => self.last_started = Some(id),
            Record::Report {
                id,
                when,
                outcome,
                xfail,
                raised,
            } => self
                .tests
                .entry(id)
                .or_default()
                .add(&when, &outcome, xfail, raised),
            Record::Layer(layer) => {
                self.second_layer.get_or_insert(layer);
            }
            Record::Subverted { what } => self.subverted = Some(what),
            Record::Finish { exit } => self.finished = Some(exit),
            Record::Forged { count, first } => {
                self.forged.get_or_insert((0, first)).0 += count;
            }
            Record::End(end) => self.end = Some(end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::channel::tests::{key, line},
        *,
    };

    #[test]
    fn a_record_counts_once_in_its_place_and_under_its_key() {
        let key = key(7);
        let hello = line(&key, r#"{"t":"hello","python":"3.11.7","n":0}"#);
        let finish = line(&key, r#"{"t":"finish","exit":1,"n":1}"#);
        let run = Run::read(format!("{hello}noise\n{finish}").as_bytes(), &key);
        assert!(run.started && run.finished == Some(1) && run.forged.is_none());

        let replayed = Run::read(format!("{hello}{hello}{finish}").as_bytes(), &key);
        assert_eq!(replayed.forged.unwrap().0, 1);
        let other = Run::read(hello.as_bytes(), &super::super::channel::tests::key(8));
        assert!(!other.started && other.forged.is_some());
    }

    #[test]
    fn the_worst_phase_decides_and_a_test_cut_off_is_lost() {
        let outcome = |phases: &[(&str, &str, bool)]| {
            let mut report = TestReport::default();
            for (when, outcome, xfail) in phases {
                report.add(when, outcome, *xfail, *outcome != "passed");
            }
            report.outcome()
        };
        let (setup, teardown) = (("setup", "passed", false), ("teardown", "passed", false));
        let check = |call, expected| assert_eq!(outcome(&[setup, call, teardown]), expected);
        check(("call", "passed", false), TestOutcome::Passed);
        check(("call", "failed", false), TestOutcome::Failed);
        check(("call", "skipped", false), TestOutcome::Skipped);
        check(("call", "skipped", true), TestOutcome::ExpectedFailure);
        check(("call", "passed", true), TestOutcome::UnexpectedPass);
        assert_eq!(
            outcome(&[("setup", "failed", false), teardown]),
            TestOutcome::Error
        );
        assert_eq!(
            outcome(&[
                setup,
                ("call", "passed", false),
                ("teardown", "failed", false)
            ]),
            TestOutcome::Error
        );
        assert_eq!(
            outcome(&[setup, ("call", "passed", false)]),
            TestOutcome::Lost
        );
        assert_eq!(outcome(&[setup, teardown]), TestOutcome::Lost);
        assert_eq!(outcome(&[setup]), TestOutcome::Lost);
    }
}
