//! Temper's own pytest runner: syntax, then public tests, then hidden tests.
//!
//! A run of pytest (`pytest_session`) has a fresh sandbox on the task's start plus the submission,
//! with the test files and everything that steers the runner put back (`protected`). The public
//! tests have a run and the hidden ones another, each with its own versions of the test files. Where
//! the hidden versions are known to hold the public tests unchanged
//! ([`Construction::hidden_files_hold_public_tests`]), one run on the hidden versions judges both
//! layers, one after the other, with every fixture torn down between them: most of a run is the start
//! of pytest. Only listed tests run, in the order of their files. A small parent process
//! (`python/runner.py`) has the changed files parsed, starts pytest in a child and relays its
//! results; the child (`python/session.py`) imports pytest before the work tree is on the module
//! path. Records are authenticated twice, from the child to the parent and from the parent to
//! Temper, under keys that are taken from disk before any code under test is imported, so nothing
//! that is printed, written to a file, or done after the session's end is a result.
//!
//! [`Construction::hidden_files_hold_public_tests`]:
//!     temper_core::construction::Construction::hidden_files_hold_public_tests
//!
//! # How a layer that did not end well is read
//!
//! | what happened | layer | tests without a result |
//! | --- | --- | --- |
//! | the sandbox broke, or Python or pytest did not start | lost | lost |
//! | the code under test ended the runner, or filled the memory limit | failed | lost |
//! | the time limit passed, on a task proven to finish ([`GradeRequest::proven`]) | failed | lost |
//! | the time limit passed, otherwise | lost | lost |
//! | the session ended in order | passed or failed | not seen; error where collection failed |
//! | a canary, a check of the runner or the channel shows an attack | failed | as reported |
//!
//! # What an attacker can still do
//!
//! The code under test shares a process with pytest. It can find pytest's objects, the recorder
//! and the canaries through the interpreter, and forge results for the tests it wants while
//! leaving the canaries alone and restoring what it replaced. It can recognise that it is tested
//! and compute expected values, or return objects that compare equal to everything. The canaries
//! and the comparison of pytest's own functions with their state at the start catch attacks on the
//! runner as a whole; the rest needs a reader of the patch.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use temper_core::{
    Boundary, Construction, Failure, TestId, Verdict,
    task::{Environment, TestLists, Verifier},
    verdict::{Layer, LayerName, LayerOutcome, Resolution, Tampering, TestOutcome},
};

use super::{
    GradeRequest, Graded, LogSink, Submission,
    final_state::{self, NoState},
    protected::{Filtered, Protected},
    pytest_session::{Session, SessionEnd, not_run},
};

/// The name that verdicts carry.
pub const NAME: &str = "pytest-layers/3";

/// Sets `$python` to the first interpreter on the path.
pub const FIND_PYTHON: &str = "python=$(command -v python || command -v python3) || { echo 'no python on PATH'; exit 127; }\n";

struct Settings<'a> {
    public: &'a TestLists,
    hidden: &'a TestLists,
    test_files: &'a [String],
    arguments: &'a [String],
    timeout: Duration,
}

impl Settings<'_> {
    /// Whether one run of pytest can judge both layers.
    fn one_run(&self, request: &GradeRequest<'_>) -> bool {
        let held = request
            .task
            .task
            .construction
            .as_ref()
            .is_some_and(Construction::hidden_files_hold_public_tests);
        // A test of both lists has to pass twice.
        let hidden: BTreeSet<&TestId> = ids(self.hidden).collect();
        held && ids(self.public).all(|id| !hidden.contains(id))
    }
}

/// Judges a submission to a task whose verifier is [`Verifier::Pytest`].
pub fn grade(request: &GradeRequest<'_>, logs: &mut LogSink<'_>) -> Graded {
    let Verifier::Pytest {
        public,
        hidden,
        test_files,
        arguments,
        timeout_seconds,
        hidden_source: _,
    } = &request.task.task.verifier
    else {
        return Graded::lost(NAME, task_failure("the task's verifier is not pytest"));
    };
    let settings = Settings {
        public,
        hidden,
        test_files,
        arguments,
        timeout: Duration::from_secs((*timeout_seconds).max(1)),
    };
    if is_empty(public) && is_empty(hidden) {
        return Graded::lost(NAME, task_failure("the task lists no test"));
    }
    let python_path: &[String] = match &request.task.task.environment {
        Environment::Python { python_path, .. } => python_path,
        _ => &[],
    };
    let protected = Protected {
        test_files,
        python_path,
    };
    match final_state::resolve(request, &protected) {
        Ok(state) => grade_state(request, &settings, state, logs),
        Err(problem) => without_state(&settings, problem),
    }
}

fn task_failure(message: &str) -> Failure {
    Failure {
        boundary: Boundary::Task,
        class: "InvalidTask".into(),
        message: message.into(),
        retryable: false,
    }
}

fn is_empty(lists: &TestLists) -> bool {
    lists.fail_to_pass.is_empty() && lists.pass_to_pass.is_empty()
}

fn without_state(settings: &Settings<'_>, problem: NoState) -> Graded {
    let mut verdict = match problem {
        NoState::Broken(failure) => return Graded::lost(NAME, failure),
        NoState::Empty => Verdict {
            detail: "the submission changes nothing".into(),
            ..Verdict::bare(Resolution::EmptyPatch, NAME)
        },
        NoState::Invalid(place) => Verdict {
            detail: place,
            ..Verdict::bare(Resolution::InvalidPatch, NAME)
        },
    };
    collect_lists(settings, &mut verdict);
    verdict.into()
}

fn grade_state(
    request: &GradeRequest<'_>,
    settings: &Settings<'_>,
    state: Filtered,
    logs: &mut LogSink<'_>,
) -> Graded {
    let mut verdict = Verdict {
        tampering: state.tampering,
        notes: state.notes,
        ..Verdict::bare(Resolution::Unresolved, NAME)
    };
    let mut failure = None;
    let all = [
        (LayerName::Public, settings.public),
        (LayerName::Hidden, settings.hidden),
    ];
    let (absent, listed): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, l)| is_empty(l));
    let together = listed.len() == 2 && settings.one_run(request);
    let n_each = if together { 2 } else { 1 };
    for (number, layers) in listed.chunks(n_each).enumerate() {
        let earlier_holds = matches!(request.submission, Submission::Start)
            || verdict
                .layers
                .iter()
                .all(|layer| layer.outcome == LayerOutcome::Passed);
        let parse = number == 0;
        let started = Instant::now();
        let mut found = if earlier_holds {
            let session = Session {
                request,
                changes: &state.changes,
                parse,
                layers,
                test_files: settings.test_files,
                arguments: settings.arguments,
                timeout: settings.timeout,
            };
            match session.run(logs) {
                Ok(found) => {
                    verdict.tampering.extend(found.tampering);
                    found.layers
                }
                Err(SessionEnd::Invalid(place)) => {
                    verdict.resolution = Resolution::InvalidPatch;
                    verdict.detail = place;
                    collect_lists(settings, &mut verdict);
                    return verdict.into();
                }
                Err(SessionEnd::Lost(cause)) => {
                    let names = parse.then_some(LayerName::Syntax).into_iter();
                    let names = names.chain(layers.iter().map(|(name, _)| *name));
                    let lost = names
                        .map(|name| layer(name, LayerOutcome::Lost, &cause.message))
                        .collect();
                    failure = Some(cause);
                    lost
                }
            }
        } else {
            layers.iter().map(|(name, _)| not_run(*name)).collect()
        };
        share_time(&mut found, started.elapsed().as_secs_f64());
        verdict.layers.append(&mut found);
    }
    for (name, _) in absent {
        verdict
            .layers
            .push(layer(name, LayerOutcome::Absent, "no tests"));
    }
    verdict.layers.sort_by_key(|layer| layer.name);
    for layer in &mut verdict.layers {
        let Some((_, lists)) = all.iter().find(|(name, _)| *name == layer.name) else {
            continue;
        };
        if layer.tests.is_empty() {
            let outcome = match layer.outcome {
                LayerOutcome::Lost => TestOutcome::Lost,
                _ => TestOutcome::NotRun,
            };
            layer.tests = ids(lists).map(|id| (id.clone(), outcome)).collect();
        }
    }
    collect_lists(settings, &mut verdict);
    conclude(&mut verdict, failure.is_some());
    Graded { verdict, failure }
}

/// Gives the last layer of a run what the earlier ones did not take of its wall time.
fn share_time(layers: &mut [Layer], seconds: f64) {
    let earlier: f64 = layers.iter().map(|layer| layer.wall_seconds).sum();
    if let Some(last) = layers
        .iter_mut()
        .rev()
        .find(|layer| layer.outcome != LayerOutcome::NotRun)
    {
        last.wall_seconds += (seconds - earlier).max(0.0);
    }
}

pub(super) fn ids(lists: &TestLists) -> impl Iterator<Item = &TestId> {
    lists.fail_to_pass.iter().chain(&lists.pass_to_pass)
}

pub(super) fn layer(name: LayerName, outcome: LayerOutcome, detail: &str) -> Layer {
    Layer {
        name,
        outcome,
        tests: BTreeMap::new(),
        detail: detail.to_owned(),
        wall_seconds: 0.0,
    }
}

/// Whether an outcome counts as passed (an expected failure does, as in SWE-bench).
pub(super) fn passes(outcome: TestOutcome) -> bool {
    matches!(outcome, TestOutcome::Passed | TestOutcome::ExpectedFailure)
}

/// Fills the verdict's two lists from its layers. A test that is in both the public and the hidden
/// list must pass in both.
fn collect_lists(settings: &Settings<'_>, verdict: &mut Verdict) {
    for (name, lists) in [
        (LayerName::Public, settings.public),
        (LayerName::Hidden, settings.hidden),
    ] {
        let tests = verdict
            .layers
            .iter()
            .find(|layer| layer.name == name)
            .map(|layer| layer.tests.clone())
            .unwrap_or_default();
        for (ids, outcomes) in [
            (&lists.fail_to_pass, &mut verdict.fail_to_pass),
            (&lists.pass_to_pass, &mut verdict.pass_to_pass),
        ] {
            for id in ids {
                let outcome = tests.get(id).copied().unwrap_or(TestOutcome::NotRun);
                let known = outcomes.entry(id.clone()).or_insert(outcome);
                if passes(*known) {
                    *known = outcome;
                }
            }
        }
    }
}

fn conclude(verdict: &mut Verdict, lost: bool) {
    let all_hold = verdict
        .layers
        .iter()
        .all(|layer| matches!(layer.outcome, LayerOutcome::Passed | LayerOutcome::Absent));
    let subverted = verdict.tampering.iter().any(|tampering| {
        matches!(
            tampering,
            Tampering::CanaryTripped { .. } | Tampering::PlantedResult { .. }
        )
    });
    let some_fixed = verdict.fail_to_pass.values().any(|o| passes(*o));
    let none_broken = verdict.pass_to_pass.values().all(|o| passes(*o));
    verdict.resolution = if lost {
        Resolution::Lost
    } else if all_hold {
        Resolution::Resolved
    } else if some_fixed && none_broken && !subverted {
        Resolution::Partial
    } else {
        Resolution::Unresolved
    };
    verdict.detail = verdict
        .layers
        .iter()
        .find(|layer| matches!(layer.outcome, LayerOutcome::Failed | LayerOutcome::Lost))
        .map_or_else(
            || "all listed tests pass".to_owned(),
            |layer| format!("{}: {}", layer_word(layer.name), layer.detail),
        );
}

pub(super) fn layer_word(name: LayerName) -> &'static str {
    match name {
        LayerName::Syntax => "syntax",
        LayerName::Public => "public",
        LayerName::Hidden => "hidden",
    }
}
