//! One run of pytest: a fresh sandbox, the submission's files parsed, one layer's tests or both's.

use std::{collections::BTreeMap, time::Duration};

use temper_core::{
    Boundary, Bytes, Entry, Failure, TestId, TreePath,
    task::{InjectedFile, TestLists},
    tree::Changes,
    verdict::{Layer, LayerName, LayerOutcome, Tampering, TestOutcome},
};

use super::{
    GradeRequest, LogSink, Submission,
    channel::Key,
    final_state::{self, NoState, excerpt, shell_quote},
    pytest_runner::{FIND_PYTHON, ids, layer, layer_word, passes},
    random_hex,
    records::{Run, TestReport},
    sandbox_spec, verifier_failure,
};
use crate::{Command, Execution, ExitStatus};

const RUNNER: &str = include_str!("python/runner.py");
const SESSION: &str = include_str!("python/session.py");

/// The runner reports at most 48 MiB of records and 4 MiB of log, which base64 and framing enlarge.
const OUTPUT_BYTES: u64 = 128 << 20;

/// The runner keeps the time limits itself; the sandbox ends it only if it was stopped from doing
/// so. Two minutes are for parsing.
const GRACE: Duration = Duration::from_secs(135);

/// What one run of pytest is to judge.
pub(super) struct Session<'a> {
    pub(super) request: &'a GradeRequest<'a>,
    /// The submission's files, filtered.
    pub(super) changes: &'a Changes,
    /// Whether the changed Python files are to be parsed first.
    pub(super) parse: bool,
    /// The layers in order, with their tests: one or two.
    pub(super) layers: &'a [(LayerName, &'a TestLists)],
    pub(super) test_files: &'a [String],
    pub(super) arguments: &'a [String],
    /// Of each layer.
    pub(super) timeout: Duration,
}

/// What it found.
pub(super) struct Found {
    /// The syntax layer and those that were asked for, in order.
    pub(super) layers: Vec<Layer>,
    pub(super) tampering: Vec<Tampering>,
}

/// Why a session gave no layers.
pub(super) enum SessionEnd {
    /// The infrastructure broke.
    Lost(Failure),
    /// The submission cannot be laid out, with the place.
    Invalid(String),
}

impl From<Failure> for SessionEnd {
    fn from(failure: Failure) -> Self {
        SessionEnd::Lost(failure)
    }
}

impl Session<'_> {
    /// Runs it.
    pub(super) fn run(&self, logs: &mut LogSink<'_>) -> Result<Found, SessionEnd> {
        let request = self.request;
        let task = request.task;
        let word = match self.layers {
            [(name, _)] => layer_word(*name),
            _ => "tests",
        };
        let mut state = self.changes.clone();
        if self
            .layers
            .iter()
            .any(|(name, _)| *name == LayerName::Hidden)
        {
            add_hidden_files(request, &mut state)?;
        }
        let sources = if self.parse {
            sources(self.changes)
        } else {
            Vec::new()
        };
        let key = Key::new()?;
        let canaries = Canaries::new()?;
        let mut sandbox = request
            .backend
            .start(&sandbox_spec(request, word))
            .map_err(|error| error.failure())?;
        final_state::set_up(request, sandbox.as_mut())?;
        final_state::lay(sandbox.as_mut(), &task.work_tree, &state).map_err(
            |problem| match problem {
                NoState::Broken(failure) => SessionEnd::Lost(failure),
                NoState::Invalid(place) => SessionEnd::Invalid(place),
                NoState::Empty => SessionEnd::Invalid("the submission changes nothing".into()),
            },
        )?;
        let from = format!("/tmp/temper-grade-{}", random_hex(8)?);
        let file = |name: String, content: Vec<u8>| InjectedFile {
            path: format!("{from}/{name}"),
            content: Bytes(content),
            executable: false,
        };
        let mut injected = vec![
            file("runner.py".into(), RUNNER.into()),
            file("session.py".into(), SESSION.into()),
            file("plan.json".into(), self.plan(&key, &canaries).into_bytes()),
        ];
        for (number, (_, content)) in sources.iter().enumerate() {
            injected.push(file(format!("source-{number}"), content.to_vec()));
        }
        sandbox
            .write_files(&injected)
            .map_err(|error| error.failure())?;
        let mut command = Command::bash(
            format!(
                "{FIND_PYTHON}exec \"$python\" -I -S -B {}",
                shell_quote(&format!("{from}/runner.py"))
            ),
            self.timeout * self.layers.len() as u32 + GRACE,
        );
        command.directory = Some("/".into());
        command.output_bytes = Some(OUTPUT_BYTES);
        let execution = sandbox.exec(&command).map_err(|error| error.failure())?;
        let run = Run::read(&execution.output, &key);
        let syntax = run.syntax.as_ref().map(|(number, problem)| {
            let name = sources.get(*number).map_or("?", |(name, _)| name);
            format!("{name}: {problem}")
        });
        if let Some(problem) = syntax {
            logs("syntax", problem.as_bytes());
            let mut layers = vec![layer(LayerName::Syntax, LayerOutcome::Failed, &problem)];
            layers.extend(self.layers.iter().map(|(name, _)| not_run(*name)));
            return Ok(Found {
                layers,
                tampering: Vec::new(),
            });
        }
        logs(word, &log_of(&run, &execution));
        let mut found = self.judge(&run, &execution, &canaries)?;
        if self.parse {
            let detail = match sources.len() {
                0 => "no Python file changed".to_owned(),
                n => format!("{n} changed Python files parse"),
            };
            found
                .layers
                .insert(0, layer(LayerName::Syntax, LayerOutcome::Passed, &detail));
        }
        Ok(found)
    }

    fn plan(&self, key: &Key, canaries: &Canaries) -> String {
        let mut files: Vec<&str> = self.test_files.iter().map(String::as_str).collect();
        let tests = self.layers.iter().flat_map(|(_, lists)| ids(lists));
        for id in tests {
            let file = id.as_str().split("::").next().unwrap_or_default();
            if !files.contains(&file) {
                files.push(file);
            }
        }
        let layers: Vec<Vec<&TestId>> = self
            .layers
            .iter()
            .map(|(_, lists)| ids(lists).collect())
            .collect();
        serde_json::json!({
            "key": key.to_hex(),
            "work_tree": self.request.task.work_tree,
            "arguments": self.arguments,
            "files": files,
            "layers": layers,
            "stop_early": !matches!(self.request.submission, Submission::Start),
            "canaries": canaries.0,
            "timeout_seconds": self.timeout.as_secs_f64(),
        })
        .to_string()
    }

    fn judge(
        &self,
        run: &Run,
        execution: &Execution,
        canaries: &Canaries,
    ) -> Result<Found, Failure> {
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
        let broken = broken_because(run, execution, timed_out, self.timeout);
        if let (Some(detail), false) = (&broken, self.request.proven)
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
            .or_else(|| canaries.tripped(&run.tests, self.layers.len(), broken.is_none()));
        if let Some(detail) = &subverted {
            tampering.push(Tampering::CanaryTripped {
                detail: detail.clone(),
            });
        }
        let attack = match (subverted, &run.forged) {
            (Some(detail), _) => Some(format!("the runner was subverted: {detail}")),
            (None, Some(_)) => Some("results were forged on the runner's channel".to_owned()),
            (None, None) => None,
        };
        let last = usize::from(run.second_layer.is_some());
        let mut layers: Vec<Layer> = Vec::new();
        for (number, (name, lists)) in self.layers.iter().enumerate() {
            // The session is not believed when it leaves tests out after a layer that holds: they
            // were not seen, so their layer fails.
            let left_out = run.second_layer.is_some_and(|second| second.stopped)
                && layers
                    .iter()
                    .any(|first| first.outcome != LayerOutcome::Passed);
            if number > last || number == 1 && left_out {
                layers.push(not_run(*name));
                continue;
            }
            let broken = broken.as_ref().filter(|_| number == last);
            let mut judged = judge_layer(*name, lists, run, attack.as_ref(), broken);
            if let (0, Some(second)) = (number, run.second_layer) {
                judged.wall_seconds = second.after_seconds;
            }
            layers.push(judged);
        }
        Ok(Found { layers, tampering })
    }
}

/// One layer of a session. `attack` is what was done to the runner, `broken` why this layer did not
/// come to its end.
fn judge_layer(
    name: LayerName,
    lists: &TestLists,
    run: &Run,
    attack: Option<&String>,
    broken: Option<&String>,
) -> Layer {
    let tests: BTreeMap<TestId, TestOutcome> = ids(lists)
        .map(|id| (id.clone(), outcome_of(id, run, broken.is_some())))
        .collect();
    let n_bad = tests.values().filter(|outcome| !passes(**outcome)).count();
    let first_bad = tests.iter().find(|(_, outcome)| !passes(**outcome));
    let (outcome, detail) = match (attack.or(broken), first_bad) {
        (Some(detail), _) => (LayerOutcome::Failed, detail.clone()),
        (None, Some((id, outcome))) => (
            LayerOutcome::Failed,
            format!(
                "{n_bad} of {} tests do not pass, first {id}: {outcome:?}",
                tests.len()
            ),
        ),
        (None, None) => (LayerOutcome::Passed, format!("{} tests pass", tests.len())),
    };
    Layer {
        tests,
        ..layer(name, outcome, &detail)
    }
}

pub(super) fn not_run(name: LayerName) -> Layer {
    layer(name, LayerOutcome::NotRun, "an earlier layer did not hold")
}

/// The Python files that the submission writes, with the names by which people know them.
fn sources(changes: &Changes) -> Vec<(String, &[u8])> {
    changes
        .iter()
        .filter_map(|(path, entry)| match entry {
            Some(Entry::File { content, .. }) if path.as_bytes().ends_with(b".py") => {
                Some((path.to_text().into_owned(), content.as_slice()))
            }
            _ => None,
        })
        .collect()
}

/// The names of the canaries, which nobody can guess, and whether each must pass.
struct Canaries(BTreeMap<&'static str, String>);

impl Canaries {
    /// The one between two layers.
    const BETWEEN: &'static str = "passes_between";
    const ROLES: [(&'static str, bool); 8] = [
        ("passes_first", true),
        (Self::BETWEEN, true),
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
    fn tripped(
        &self,
        tests: &BTreeMap<String, TestReport>,
        n_layers: usize,
        complete: bool,
    ) -> Option<String> {
        for (role, must_pass) in Self::ROLES {
            if role == Self::BETWEEN && n_layers == 1 {
                continue;
            }
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
