//! Temper's own pytest runner: syntax, then public tests, then hidden tests.
//!
//! Each layer runs in a fresh sandbox on the task's start plus the submission, with the test files
//! and everything that steers the runner put back (`protected`). Only the tests that the layer lists
//! run, in the order of their files. A small parent process
//! (`python/runner.py`) starts pytest in a child and relays its results; the child
//! (`python/session.py`) imports pytest before the work tree is on the module path. Records are
//! authenticated twice, from the child to the parent and from the parent to Temper, under keys
//! that are taken from disk before any code under test is imported, so nothing that is printed,
//! written to a file, or done after the session's end is a result.
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
    collections::BTreeMap,
    time::{Duration, Instant},
};

use temper_core::{
    Boundary, Bytes, Entry, Failure, TestId, TreePath, Verdict,
    task::{Environment, InjectedFile, TestLists, Verifier},
    tree::Changes,
    verdict::{Layer, LayerName, LayerOutcome, Resolution, Tampering, TestOutcome},
};

use super::{
    GradeRequest, Graded, LogSink, Submission,
    channel::Key,
    final_state::{self, NoState, excerpt, shell_quote},
    protected::{Filtered, Protected},
    random_hex,
    records::{Run, TestReport},
    sandbox_spec, syntax, verifier_failure,
};
use crate::{Command, Execution, ExitStatus};

/// The name that verdicts carry.
pub const NAME: &str = "pytest-layers/2";

const RUNNER: &str = include_str!("python/runner.py");
const SESSION: &str = include_str!("python/session.py");

/// Sets `$python` to the first interpreter on the path.
pub const FIND_PYTHON: &str = "python=$(command -v python || command -v python3) || { echo 'no python on PATH'; exit 127; }\n";

/// The runner reports at most 48 MiB of records and 4 MiB of log, which base64 and framing enlarge.
const OUTPUT_BYTES: u64 = 128 << 20;

/// The runner keeps the time limit itself; the sandbox ends it only if it was stopped from doing so.
const GRACE: Duration = Duration::from_secs(15);

struct Settings<'a> {
    public: &'a TestLists,
    hidden: &'a TestLists,
    test_files: &'a [String],
    arguments: &'a [String],
    timeout: Duration,
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
    for name in [LayerName::Syntax, LayerName::Public, LayerName::Hidden] {
        let started = Instant::now();
        let earlier_holds = matches!(request.submission, Submission::Start)
            || verdict
                .layers
                .iter()
                .all(|layer| matches!(layer.outcome, LayerOutcome::Passed | LayerOutcome::Absent));
        let lists = match name {
            LayerName::Syntax => None,
            LayerName::Public => Some(settings.public),
            LayerName::Hidden => Some(settings.hidden),
        };
        let result = match lists {
            Some(lists) if is_empty(lists) => Ok(layer(name, LayerOutcome::Absent, "no tests")),
            _ if !earlier_holds => Ok(layer(
                name,
                LayerOutcome::NotRun,
                "an earlier layer did not hold",
            )),
            None => syntax::run(request, &state.changes, logs).map_err(LayerEnd::Lost),
            Some(lists) => run_tests(request, settings, &state.changes, name, lists, logs).map(
                |(layer, tampering)| {
                    verdict.tampering.extend(tampering);
                    layer
                },
            ),
        };
        let mut layer = match result {
            Ok(layer) => layer,
            Err(LayerEnd::Invalid(place)) => {
                verdict.resolution = Resolution::InvalidPatch;
                verdict.detail = place;
                collect_lists(settings, &mut verdict);
                return verdict.into();
            }
            Err(LayerEnd::Lost(cause)) => {
                let lost = layer(name, LayerOutcome::Lost, &cause.message);
                failure = Some(cause);
                lost
            }
        };
        layer.wall_seconds = started.elapsed().as_secs_f64();
        if let (Some(lists), true) = (lists, layer.tests.is_empty()) {
            let outcome = match layer.outcome {
                LayerOutcome::Lost => TestOutcome::Lost,
                _ => TestOutcome::NotRun,
            };
            layer.tests = ids(lists).map(|id| (id.clone(), outcome)).collect();
        }
        verdict.layers.push(layer);
    }
    collect_lists(settings, &mut verdict);
    conclude(&mut verdict, failure.is_some());
    Graded { verdict, failure }
}

fn ids(lists: &TestLists) -> impl Iterator<Item = &TestId> {
    lists.fail_to_pass.iter().chain(&lists.pass_to_pass)
}

fn layer(name: LayerName, outcome: LayerOutcome, detail: &str) -> Layer {
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

fn layer_word(name: LayerName) -> &'static str {
    match name {
        LayerName::Syntax => "syntax",
        LayerName::Public => "public",
        LayerName::Hidden => "hidden",
    }
}

enum LayerEnd {
    Lost(Failure),
    Invalid(String),
}

impl From<Failure> for LayerEnd {
    fn from(failure: Failure) -> Self {
        LayerEnd::Lost(failure)
    }
}

/// The names of the canaries, which nobody can guess, and whether each must pass.
struct Canaries(BTreeMap<&'static str, String>);

impl Canaries {
    const ROLES: [(&'static str, bool); 7] = [
        ("passes_first", true),
        ("fails_assert", false),
        ("fails_raise", false),
        ("fails_raises", false),
        ("fails_unittest", false),
        ("fails_last", false),
        ("passes_last", true),
    ];

    fn new() -> Result<Self, Failure> {
        let mut names = BTreeMap::new();
        for (role, _) in Self::ROLES {
            names.insert(role, format!("test_{}", random_hex(6)?));
        }
        names.insert("module", format!("test_{}", random_hex(6)?));
        Ok(Canaries(names))
    }

    /// What a run says about the runner itself. With `complete`, every canary must be there.
    fn tripped(&self, tests: &BTreeMap<String, TestReport>, complete: bool) -> Option<String> {
        for (role, must_pass) in Self::ROLES {
            let suffix = format!("::{}", self.0[role]);
            let found = tests.iter().find(|(id, _)| id.ends_with(&suffix));
            let expected = if must_pass { "pass" } else { "fail" };
            match found.map(|(_, report)| report.outcome()) {
                Some(TestOutcome::Passed) if must_pass => {}
                Some(TestOutcome::Failed) if !must_pass => {}
                None | Some(TestOutcome::Lost) if !complete => {}
                Some(outcome) => {
                    return Some(format!("a test that must {expected} was {outcome:?}"));
                }
                None => return Some(format!("a test that must {expected} was not reported")),
            }
        }
        None
    }
}

fn run_tests(
    request: &GradeRequest<'_>,
    settings: &Settings<'_>,
    changes: &Changes,
    name: LayerName,
    lists: &TestLists,
    logs: &mut LogSink<'_>,
) -> Result<(Layer, Vec<Tampering>), LayerEnd> {
    let word = layer_word(name);
    let task = request.task;
    let mut state = changes.clone();
    if name == LayerName::Hidden {
        add_hidden_files(request, &mut state)?;
    }
    let mut files: Vec<String> = settings.test_files.to_vec();
    for id in ids(lists) {
        let file = id.as_str().split("::").next().unwrap_or_default();
        if !files.iter().any(|known| known == file) {
            files.push(file.to_owned());
        }
    }
    let key = Key::new()?;
    let canaries = Canaries::new()?;
    let mut sandbox = request
        .backend
        .start(&sandbox_spec(request, word))
        .map_err(|error| error.failure())?;
    final_state::set_up(request, sandbox.as_mut())?;
    final_state::lay(sandbox.as_mut(), &task.work_tree, &state).map_err(
        |problem| match problem {
            NoState::Broken(failure) => LayerEnd::Lost(failure),
            NoState::Invalid(place) => LayerEnd::Invalid(place),
            NoState::Empty => LayerEnd::Invalid("the submission changes nothing".into()),
        },
    )?;
    let plan = serde_json::json!({
        "key": key.to_hex(),
        "work_tree": task.work_tree,
        "arguments": settings.arguments,
        "files": files,
        "tests": ids(lists).collect::<Vec<_>>(),
        "canaries": canaries.0,
        "timeout_seconds": settings.timeout.as_secs_f64(),
    });
    let from = format!("/tmp/temper-grade-{}", random_hex(8)?);
    let injected: Vec<_> = [
        ("runner.py", RUNNER.to_owned()),
        ("session.py", SESSION.to_owned()),
        ("plan.json", plan.to_string()),
    ]
    .into_iter()
    .map(|(name, content)| InjectedFile {
        path: format!("{from}/{name}"),
        content: Bytes(content.into_bytes()),
        executable: false,
    })
    .collect();
    sandbox
        .write_files(&injected)
        .map_err(|error| error.failure())?;
    let mut command = Command::bash(
        format!(
            "{FIND_PYTHON}exec \"$python\" -I -S -B {}",
            shell_quote(&format!("{from}/runner.py"))
        ),
        settings.timeout + GRACE,
    );
    command.directory = Some("/".into());
    command.output_bytes = Some(OUTPUT_BYTES);
    let execution = sandbox.exec(&command).map_err(|error| error.failure())?;
    let run = Run::read(&execution.output, &key);
    logs(word, &log_of(&run, &execution));
    Ok(judge(
        request, settings, name, lists, &run, &execution, &canaries,
    )?)
}

/// Lays the hidden versions of the test files over the state.
fn add_hidden_files(request: &GradeRequest<'_>, state: &mut Changes) -> Result<(), Failure> {
    let Some(root) = &request.task.hidden_tests else {
        return Ok(());
    };
    let broken = |message: String| Failure {
        boundary: Boundary::Task,
        class: "HiddenTests".into(),
        message,
        retryable: false,
    };
    let mut pending = vec![(root.clone(), String::new())];
    while let Some((directory, prefix)) = pending.pop() {
        let entries = std::fs::read_dir(&directory)
            .map_err(|error| broken(format!("read {}: {error}", directory.display())))?;
        for entry in entries {
            let entry = entry.map_err(|error| broken(error.to_string()))?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let below = format!("{prefix}{name}");
            let kind = entry
                .file_type()
                .map_err(|error| broken(error.to_string()))?;
            if kind.is_dir() {
                pending.push((entry.path(), format!("{below}/")));
            } else if kind.is_file() {
                let path = TreePath::new(below).map_err(|error| broken(error.to_string()))?;
                let content = final_state::read_entry(root, &path);
                let Some(Entry::File { .. }) = content else {
                    return Err(broken(format!("read hidden test file {path}")));
                };
                state.insert(path, content);
            }
        }
    }
    Ok(())
}

fn log_of(run: &Run, execution: &Execution) -> Vec<u8> {
    match &run.end {
        Some(end) => {
            let mut log = b"(Failing tests in a file below the temporary directory are Temper's \
                canaries: they must fail.)\n"
                .to_vec();
            log.extend_from_slice(&end.log);
            log
        }
        None => execution
            .output
            .split_inclusive(|byte| *byte == b'\n')
            .filter(|line| !line.starts_with(b"temper1 "))
            .flatten()
            .copied()
            .collect(),
    }
}

fn judge(
    request: &GradeRequest<'_>,
    settings: &Settings<'_>,
    name: LayerName,
    lists: &TestLists,
    run: &Run,
    execution: &Execution,
    canaries: &Canaries,
) -> Result<(Layer, Vec<Tampering>), Failure> {
    if !run.ready {
        let log = log_of(run, execution);
        let class = if run.started {
            "PytestMissing"
        } else {
            "RunnerStart"
        };
        return Err(Failure {
            boundary: Boundary::Task,
            class: class.into(),
            message: format!(
                "start pytest in the task's environment: {:?}: {}",
                execution.status,
                excerpt(&log)
            ),
            retryable: false,
        });
    }
    let timed_out = execution.status == ExitStatus::TimedOut
        || run.end.as_ref().is_some_and(|end| end.timed_out);
    let broken = broken_because(run, execution, timed_out, settings.timeout);
    if let (Some(detail), false) = (&broken, request.proven)
        && (timed_out || run.finished == Some(4))
    {
        return Err(verifier_failure(
            if timed_out {
                "VerifierTimeout"
            } else {
                "RunnerUsage"
            },
            format!("{detail}; the task was not proven to run here"),
            false,
        ));
    }
    let mut tampering = Vec::new();
    if let Some((count, first)) = &run.forged {
        tampering.push(Tampering::PlantedResult {
            path: format!("the runner's channel ({count} forged records, first {first:?})"),
        });
    }
    let contradiction = run
        .tests
        .iter()
        .find(|(_, report)| report.contradiction)
        .map(|(id, _)| format!("{id} raised and was reported as passed"));
    let subverted = run
        .subverted
        .as_ref()
        .map(|what| format!("{what} was replaced while tests ran"))
        .or(contradiction)
        .or_else(|| canaries.tripped(&run.tests, broken.is_none()));
    if let Some(detail) = &subverted {
        tampering.push(Tampering::CanaryTripped {
            detail: detail.clone(),
        });
    }
    let tests: BTreeMap<TestId, TestOutcome> = ids(lists)
        .map(|id| (id.clone(), outcome_of(id, run, broken.is_some())))
        .collect();
    let first_bad = tests.iter().find(|(_, outcome)| !passes(**outcome));
    let n_bad = tests.values().filter(|outcome| !passes(**outcome)).count();
    let detail = match (&subverted, &run.forged, broken, first_bad) {
        (Some(detail), ..) => format!("the runner was subverted: {detail}"),
        (None, Some(_), ..) => "results were forged on the runner's channel".to_owned(),
        (None, None, Some(detail), _) => detail,
        (None, None, None, Some((id, outcome))) => {
            format!(
                "{n_bad} of {} tests do not pass, first {id}: {outcome:?}",
                tests.len()
            )
        }
        (None, None, None, None) => {
            let detail = format!("{} tests pass", tests.len());
            return Ok((
                Layer {
                    tests,
                    ..layer(name, LayerOutcome::Passed, &detail)
                },
                tampering,
            ));
        }
    };
    Ok((
        Layer {
            tests,
            ..layer(name, LayerOutcome::Failed, &detail)
        },
        tampering,
    ))
}

/// Why the session did not come to its end in order, or `None` if it did.
fn broken_because(
    run: &Run,
    execution: &Execution,
    timed_out: bool,
    timeout: Duration,
) -> Option<String> {
    let during = run
        .last_started
        .as_ref()
        .map_or("during collection".to_owned(), |id| format!("in {id}"));
    match run.finished {
        Some(0 | 1) => return None,
        Some(2) => return Some(format!("the session was interrupted {during}")),
        Some(3) => return Some("pytest reported an internal error".to_owned()),
        Some(4) => return Some("pytest refused to start on this state".to_owned()),
        Some(code) => return Some(format!("pytest ended with status {code}")),
        None => {}
    }
    Some(if timed_out {
        format!(
            "no result after {} s: the time limit passed {during}",
            timeout.as_secs_f64()
        )
    } else if execution.out_of_memory {
        format!("the memory limit ended the runner {during}")
    } else {
        match &run.end {
            Some(end) if end.code < 0 => {
                format!("signal {} ended the runner {during}", -end.code)
            }
            Some(end) => format!("the runner exited with {} {during}", end.code),
            None => format!(
                "the runner's parent was ended ({:?}) {during}",
                execution.status
            ),
        }
    })
}

fn outcome_of(id: &TestId, run: &Run, broken: bool) -> TestOutcome {
    if let Some(report) = run.tests.get(id.as_str()) {
        return match report.outcome() {
            // It was running when the session broke: whatever broke it happened in this test.
            TestOutcome::Lost if run.last_started.as_deref() == Some(id.as_str()) => {
                TestOutcome::Failed
            }
            outcome => outcome,
        };
    }
    if run.last_started.as_deref() == Some(id.as_str()) {
        return TestOutcome::Failed;
    }
    let in_broken_file = run.collection_errors.iter().any(|error| {
        id.as_str()
            .strip_prefix(error.as_str())
            .is_some_and(|rest| rest.starts_with("::"))
    });
    if in_broken_file {
        TestOutcome::Error
    } else if broken {
        TestOutcome::Lost
    } else {
        TestOutcome::NotSeen
    }
}
