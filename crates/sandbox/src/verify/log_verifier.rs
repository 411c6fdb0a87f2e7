//! SWE-bench and SWE-smith: a test command runs in the task's image, and its log decides.
//!
//! What a test prints is part of that log, so a hostile submission can forge results: this is the
//! protocol's own limit. The structured parsers, the markers' places and the exit status narrow
//! it; a task that must not be cheated uses the pytest runner.
//!
//! A log without a result (a missing marker, one of upstream's error marks) is lost when only the
//! log is known ([`grade_log`]). When the run itself was ours it is read closer: a patch that does
//! not apply is an invalid patch, a test command that ends the script is a failed test, a time
//! limit is a failure on a task that is proven to finish, and the rest is lost.

use std::time::Duration;

use temper_core::{
    Boundary, Bytes, Failure, Patch, PreparedTask, TreePath, Verdict, patch,
    task::{InjectedFile, ResolutionRules, Start, TaskFormat, TestLists, Verifier},
    verdict::{Resolution, Tampering},
};

use super::{
    GradeRequest, Graded, LogSink, Submission,
    final_state::{self, NoState, excerpt, shell_quote},
    parsers::{self, Parser, Status, StatusMap, strip_controls},
    random_hex,
    resolution::{self, Judging},
    sandbox_spec, verifier_failure,
};
use crate::{Command, Execution, ExitStatus, Sandbox};

const START: &[u8] = b">>>>> Start Test Output";
const END: &[u8] = b">>>>> End Test Output";
const EXIT_CODE: &[u8] = b">>>>> Test Exit Code:";
const APPLY_FAILED: &[u8] = b">>>>> Patch Apply Failed";
const ERROR_MARKS: [&[u8]; 4] = [
    APPLY_FAILED,
    b">>>>> Reset Failed",
    b">>>>> Tests Errored",
    b">>>>> Tests Timed Out",
];

/// Output kept of the script. Statuses stand at the end of a log, and the last half is kept.
const OUTPUT_BYTES: u64 = 128 << 20;

/// What a log holds.
#[derive(Clone, Debug, PartialEq)]
pub enum LogReading {
    /// A status map.
    Statuses(StatusMap),
    /// No result, and why.
    Nothing(String),
}

/// Reads a log by the rules of a harness version: error marks, the part between the markers, the
/// whole log where that part holds nothing, and for SWE-bench 5.0 the exit status.
pub fn read_log(log: &[u8], parser: Parser, rules: ResolutionRules) -> LogReading {
    let smith = matches!(
        rules,
        ResolutionRules::SweSmith009 | ResolutionRules::SweSmithCf2e649d
    );
    for mark in ERROR_MARKS {
        let concerns = !smith || mark == APPLY_FAILED || mark.ends_with(b"Timed Out");
        if concerns && find(log, mark).is_some() {
            return LogReading::Nothing(format!("the log says {:?}", text(mark)));
        }
    }
    let Some(region) = region(log) else {
        return LogReading::Nothing("the log lacks a marker of its test output".to_owned());
    };
    let mut statuses = parser.parse(region);
    if statuses.is_empty() && !smith {
        statuses = parser.parse(log);
    }
    if rules == ResolutionRules::SweBench5 {
        if statuses.is_empty() && !shows_a_run(log) {
            return LogReading::Nothing("no test result and no sign of a run".to_owned());
        }
        let failed = |status| matches!(status, Status::Failed | Status::Error);
        if let Some(code) = exit_code(log)
            && code != 0
            && !statuses.is_empty()
            && !statuses.values().any(|status| failed(*status))
        {
            return LogReading::Nothing(format!(
                "the tests exited with {code} and the log shows no failure"
            ));
        }
    }
    LogReading::Statuses(statuses)
}

/// What lies between the first start marker and the next marker of either kind.
fn region(log: &[u8]) -> Option<&[u8]> {
    let after = &log[find(log, START)? + START.len()..];
    find(log, END)?;
    let end = [find(after, END), find(after, START)]
        .into_iter()
        .flatten()
        .min();
    Some(&after[..end.unwrap_or(after.len())])
}

fn exit_code(log: &[u8]) -> Option<i64> {
    let mut rest = log;
    while let Some(at) = find(rest, EXIT_CODE) {
        rest = &rest[at + EXIT_CODE.len()..];
        let number = rest.trim_ascii_start();
        let n_sign = usize::from(number.first() == Some(&b'-'));
        let n_digits = number[n_sign..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        if n_digits > 0 {
            return text(&number[..n_sign + n_digits]).parse().ok();
        }
    }
    None
}

/// Whether a log that names no test still shows that a suite ran (runners that print failures
/// only).
fn shows_a_run(log: &[u8]) -> bool {
    log.split(|byte| *byte == b'\n').any(|line| {
        let line = strip_controls(line);
        let line = line.trim_ascii();
        let positive_after = |word: &[u8]| {
            find(line, word).is_some_and(|at| {
                let rest = line[at + word.len()..].trim_ascii_start();
                rest.first()
                    .is_some_and(|byte| (b'1'..=b'9').contains(byte))
            })
        };
        let positive_before = |word: &[u8]| {
            find(line, word).is_some_and(|at| {
                line[..at]
                    .iter()
                    .rev()
                    .take_while(|byte| byte.is_ascii_digit())
                    .any(|byte| *byte != b'0')
            })
        };
        (positive_after(b"Executed ") && find(line, b" of ").is_some())
            || (positive_after(b"TOTAL: ")
                && (find(line, b" SUCCESS").is_some() || find(line, b" FAILED").is_some()))
            || positive_before(b" passing")
            || positive_after(b"Tests:")
            || (line.starts_with(b"Test Suites:") && positive_before(b" total"))
            || (line.starts_with(b"# tests") && positive_after(b"# tests"))
            || ((positive_before(b" specs, ") || positive_before(b" spec, "))
                && find(line, b" failure").is_some())
            || line.ends_with(b"': ok")
    })
}

/// Judges a log that somebody else's run left, by the task's lists, parser and rules.
pub fn grade_log(log: &[u8], task: &temper_core::Task) -> Graded {
    match Settings::of(task) {
        Err(failure) => Graded::lost("log", failure),
        Ok(settings) => match read_log(log, settings.parser, settings.judging.rules) {
            LogReading::Statuses(statuses) => settings.judge(&statuses).into(),
            LogReading::Nothing(why) => {
                Graded::lost(&settings.name, verifier_failure("NoResult", why, false))
            }
        },
    }
}

struct Settings<'a> {
    name: String,
    parser: Parser,
    judging: Judging,
    tests: &'a TestLists,
    test_command: Option<&'a str>,
    test_patch: &'a Patch,
    timeout: Duration,
}

impl<'a> Settings<'a> {
    fn of(task: &'a temper_core::Task) -> Result<Self, Failure> {
        let Verifier::Log {
            parser,
            test_command,
            test_patch,
            tests,
            rules,
            timeout_seconds,
        } = &task.verifier
        else {
            return Err(task_failure(
                "UnsupportedVerifier",
                "the task's verifier reads no log",
            ));
        };
        let found = parsers::by_name(parser)
            .ok_or_else(|| task_failure("UnknownParser", format!("no log parser {parser:?}")))?;
        let word = match rules {
            ResolutionRules::SweBench4 => "swe-bench-4.1",
            ResolutionRules::SweBench5 => "swe-bench-5.0",
            ResolutionRules::SweSmith009 => "swe-smith-0.0.9",
            ResolutionRules::SweSmithCf2e649d => "swe-smith-cf2e649d",
        };
        Ok(Settings {
            name: format!("log/{word}/{parser}"),
            parser: found,
            judging: Judging {
                rules: *rules,
                fail_only: resolution::is_fail_only(&task.origin.project, *rules),
                match_truncated: !parser.contains(':'),
            },
            tests,
            test_command: test_command.as_deref(),
            test_patch,
            timeout: Duration::from_secs((*timeout_seconds).max(1)),
        })
    }

    fn judge(&self, statuses: &StatusMap) -> Verdict {
        let report = resolution::resolve(statuses, self.tests, self.judging);
        let n_of = |list: &resolution::ListReport, ids: &[_]| {
            format!("{} of {}", list.success.len(), ids.len())
        };
        Verdict {
            detail: format!(
                "{} fail-to-pass and {} pass-to-pass tests pass",
                n_of(&report.fail_to_pass, &self.tests.fail_to_pass),
                n_of(&report.pass_to_pass, &self.tests.pass_to_pass),
            ),
            fail_to_pass: report.fail_to_pass.outcomes,
            pass_to_pass: report.pass_to_pass.outcomes,
            ..Verdict::bare(report.resolution, &self.name)
        }
    }

    /// A verdict without test results.
    fn verdict(&self, resolution: Resolution, detail: impl Into<String>) -> Graded {
        Verdict {
            detail: detail.into(),
            ..Verdict::bare(resolution, &self.name)
        }
        .into()
    }
}

fn task_failure(class: &str, message: impl Into<String>) -> Failure {
    Failure {
        boundary: Boundary::Task,
        class: class.into(),
        message: message.into(),
        retryable: false,
    }
}

/// Judges a submission to a task whose verifier is [`Verifier::Log`]: one fresh sandbox, in which
/// the submission is applied, the tests are laid in and run.
pub fn grade(request: &GradeRequest<'_>, logs: &mut LogSink<'_>) -> Graded {
    let settings = match Settings::of(&request.task.task) {
        Ok(settings) => settings,
        Err(failure) => return Graded::lost("log", failure),
    };
    let is_empty = match request.submission {
        Submission::Patch(patch) => patch.is_empty(),
        Submission::Changes(changes) => changes.is_empty(),
        // Grading the start proves a task, so the tests are run.
        Submission::Start => false,
    };
    if is_empty {
        return settings.verdict(Resolution::EmptyPatch, "the submission changes nothing");
    }
    match run(request, &settings, logs) {
        Ok(graded) => graded,
        Err(failure) => Graded::lost(&settings.name, failure),
    }
}

fn run(
    request: &GradeRequest<'_>,
    settings: &Settings<'_>,
    logs: &mut LogSink<'_>,
) -> Result<Graded, Failure> {
    let task = request.task;
    let Some(test_command) = settings.test_command else {
        return Err(task_failure(
            "NoTestCommand",
            "the record gives no test command; grade its log instead",
        ));
    };
    let mut sandbox = request
        .backend
        .start(&sandbox_spec(request, "tests"))
        .map_err(|error| error.failure())?;
    let sandbox = sandbox.as_mut();
    let directory = format!("/tmp/temper-log-{}", random_hex(8)?);
    if let Start::Image {
        checkout: Some(branch),
        ..
    } = &task.task.start
    {
        // SWE-smith's branch has two commits: the bug, then the removal of the tests. The state
        // before the second one has the tests.
        let command = format!(
            "git checkout -q {} && git checkout -q HEAD~1",
            shell_quote(branch)
        );
        ours(sandbox, &command, "check out the task's branch")?;
    }
    let mut notes = Vec::new();
    let mut touched: Vec<TreePath> = Vec::new();
    match request.submission {
        Submission::Start => {}
        Submission::Changes(changes) => {
            touched.extend(changes.keys().cloned());
            match final_state::lay(sandbox, &task.work_tree, changes) {
                Ok(()) => {}
                Err(NoState::Broken(failure)) => return Err(failure),
                Err(NoState::Invalid(place)) => {
                    return Ok(settings.verdict(Resolution::InvalidPatch, place));
                }
                Err(NoState::Empty) => {
                    return Ok(settings.verdict(Resolution::EmptyPatch, "no change"));
                }
            }
        }
        Submission::Patch(patch) => {
            touched.extend(patch::paths(patch).unwrap_or_default());
            let (text, mended) = mended(patch);
            notes.extend(mended);
            if let Err(place) = apply(sandbox, &directory, text, logs)? {
                return Ok(settings.verdict(Resolution::InvalidPatch, place));
            }
        }
    }
    for path in &touched {
        let name = path.to_text();
        if [
            "conftest.py",
            "pytest.ini",
            "setup.cfg",
            "tox.ini",
            "sitecustomize.py",
        ]
        .iter()
        .any(|steering| name.rsplit('/').next() == Some(steering))
        {
            notes.push(format!(
                "the submission changes {name}, which can steer the tests; these rules keep it"
            ));
        }
    }
    let tests = TestFiles::of(task, settings);
    let script = script(task, settings, &tests, test_command, &directory);
    write(sandbox, &directory, "eval.sh", script.as_bytes())?;
    write(sandbox, &directory, "test.patch", &settings.test_patch.0)?;
    let mut command = Command::bash(
        format!("exec bash {}", shell_quote(&format!("{directory}/eval.sh"))),
        settings.timeout,
    );
    command.output_bytes = Some(OUTPUT_BYTES);
    let execution = sandbox.exec(&command).map_err(|error| error.failure())?;
    logs("tests", &execution.output);
    let mut graded = conclude(request, settings, &execution)?;
    if let Some(omitted) = &execution.omitted {
        notes.push(format!("{} bytes of output were left out", omitted.bytes));
    }
    graded.verdict.notes.splice(0..0, notes);
    graded.verdict.tampering.extend(
        touched
            .iter()
            .filter(|path| tests.all().any(|test| test.as_str() == path.to_text()))
            .map(|path| Tampering::TestFileChanged {
                path: path.to_text().into_owned(),
            }),
    );
    Ok(graded)
}

/// Judges a run of ours. Nothing that the tests printed can make it lost.
fn conclude(
    request: &GradeRequest<'_>,
    settings: &Settings<'_>,
    execution: &Execution,
) -> Result<Graded, Failure> {
    let log = &execution.output;
    if execution.status == ExitStatus::TimedOut {
        let detail = format!(
            "the tests did not finish in {} s",
            settings.timeout.as_secs()
        );
        return if request.proven {
            Ok(settings.verdict(Resolution::Unresolved, detail))
        } else {
            Err(verifier_failure("VerifierTimeout", detail, false))
        };
    }
    let Some(start) = find(log, START) else {
        return Err(task_failure(
            "TestSetup",
            format!(
                "prepare the tests: {:?}: {}",
                execution.status,
                excerpt(log)
            ),
        ));
    };
    if rfind(log, END).is_none_or(|end| end < start) {
        return Ok(settings.verdict(
            Resolution::Unresolved,
            format!("the tests ended the script: {:?}", execution.status),
        ));
    }
    if let Some(mark) = ERROR_MARKS.iter().find(|mark| find(log, mark).is_some()) {
        let mut graded = settings.verdict(
            Resolution::Unresolved,
            format!("the tests printed the harness's mark {:?}", text(mark)),
        );
        graded.verdict.tampering.push(Tampering::PlantedResult {
            path: "the test output".into(),
        });
        return Ok(graded);
    }
    Ok(
        match read_log(log, settings.parser, settings.judging.rules) {
            LogReading::Statuses(statuses) => settings.judge(&statuses).into(),
            LogReading::Nothing(why) => settings.verdict(Resolution::Unresolved, why),
        },
    )
}

/// The files that a test patch changes and the ones that it adds.
#[derive(Default)]
struct TestFiles {
    changed: Vec<String>,
    added: Vec<String>,
}

impl TestFiles {
    fn of(task: &PreparedTask, settings: &Settings<'_>) -> Self {
        let mut files = TestFiles::default();
        if task.task.format == TaskFormat::SweSmith {
            let ids = settings.tests.fail_to_pass.iter();
            for id in ids.chain(&settings.tests.pass_to_pass) {
                let file = id.as_str().split("::").next().unwrap_or_default();
                if TreePath::new(file).is_ok() && !files.changed.iter().any(|f| f == file) {
                    files.changed.push(file.to_owned());
                }
            }
            return files;
        }
        let mut old = None;
        for line in settings.test_patch.0.split(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if let Some(path) = line.strip_prefix(b"--- ") {
                old = Some(path);
            } else if let (Some(old), Some(new)) = (old.take(), line.strip_prefix(b"+++ ")) {
                match (old.strip_prefix(b"a/"), new.strip_prefix(b"b/")) {
                    (Some(old), _) => files.changed.push(text(old)),
                    (None, Some(new)) => files.added.push(text(new)),
                    (None, None) => {}
                }
            }
        }
        files
    }

    fn all(&self) -> impl Iterator<Item = &String> {
        self.changed.iter().chain(&self.added)
    }
}

/// The evaluation script: test files back to their start, the test patch, the tests between the
/// markers, test files back again.
fn script(
    task: &PreparedTask,
    settings: &Settings<'_>,
    tests: &TestFiles,
    test_command: &str,
    directory: &str,
) -> String {
    let quoted = |files: &[String]| {
        let words: Vec<_> = files.iter().map(|file| shell_quote(file)).collect();
        words.join(" ")
    };
    let base = match &task.task.start {
        Start::Image {
            base_commit: Some(commit),
            checkout: None,
        } => commit.as_str(),
        _ => "HEAD",
    };
    let restore = if tests.changed.is_empty() {
        String::new()
    } else if task.task.format == TaskFormat::SweSmith {
        // An id need not name a file of the repository.
        let each: Vec<_> = tests
            .changed
            .iter()
            .map(|file| format!("git checkout -q -- {} 2>/dev/null\n", shell_quote(file)))
            .collect();
        each.concat()
    } else {
        format!(
            "git checkout {} -- {} || exit 3\n",
            shell_quote(base),
            quoted(&tests.changed)
        )
    };
    let work_tree = shell_quote(&task.work_tree);
    let mut script = format!(
        "#!/bin/bash\n\
         if [ -f /opt/miniconda3/bin/activate ]; then\n\
         source /opt/miniconda3/bin/activate\n\
         if conda activate testbed; then :; fi\n\
         fi\n\
         set -uxo pipefail\n\
         cd {work_tree} || exit 3\n\
         git config --global --add safe.directory {work_tree}\n\
         {restore}"
    );
    if !tests.added.is_empty() {
        script.push_str(&format!("rm -rf -- {}\n", quoted(&tests.added)));
    }
    if !settings.test_patch.is_empty() {
        let patch = shell_quote(&format!("{directory}/test.patch"));
        script.push_str(&format!("git apply -v {patch} || exit 3\n"));
    }
    script.push_str(": '>>>>> Start Test Output'\n");
    script.push_str(test_command.trim_end());
    script.push_str("\ntemper_exit_code=$?\n: '>>>>> End Test Output'\n");
    script.push_str("echo \">>>>> Test Exit Code: $temper_exit_code\"\n");
    script.push_str(&restore);
    script
}

/// The patch with a line feed at its end, which mail and copying lose.
fn mended(patch: &Patch) -> (Vec<u8>, Option<String>) {
    let mut bytes = patch.0.0.clone();
    if bytes.last() == Some(&b'\n') {
        (bytes, None)
    } else {
        bytes.push(b'\n');
        (
            bytes,
            Some("added the missing line feed at the end of the patch".to_owned()),
        )
    }
}

/// Tries upstream's three ways to apply a patch. The inner error is where the last one broke.
fn apply(
    sandbox: &mut dyn Sandbox,
    directory: &str,
    patch: Vec<u8>,
    logs: &mut LogSink<'_>,
) -> Result<Result<(), String>, Failure> {
    write(sandbox, directory, "patch.diff", &patch)?;
    let file = shell_quote(&format!("{directory}/patch.diff"));
    let mut log = Vec::new();
    let mut last = String::new();
    for tool in [
        "git apply --verbose",
        "git apply --verbose --reject",
        "patch --batch --fuzz=5 -p1 -i",
    ] {
        let execution = sandbox
            .exec(&Command::bash(
                format!("{tool} {file}"),
                Duration::from_secs(120),
            ))
            .map_err(|error| error.failure())?;
        log.extend_from_slice(format!("$ {tool}\n").as_bytes());
        log.extend_from_slice(&execution.output);
        if execution.status == ExitStatus::Exited(0) {
            logs("apply", &log);
            return Ok(Ok(()));
        }
        last = format!("{tool}: {}", excerpt(&execution.output));
    }
    logs("apply", &log);
    Ok(Err(last))
}

fn write(
    sandbox: &mut dyn Sandbox,
    directory: &str,
    name: &str,
    content: &[u8],
) -> Result<(), Failure> {
    sandbox
        .write_files(&[InjectedFile {
            path: format!("{directory}/{name}"),
            content: Bytes(content.to_vec()),
            executable: false,
        }])
        .map_err(|error| error.failure())
}

fn ours(sandbox: &mut dyn Sandbox, command: &str, purpose: &str) -> Result<(), Failure> {
    let execution = sandbox
        .exec(&Command::bash(command, Duration::from_secs(120)))
        .map_err(|error| error.failure())?;
    match execution.status {
        ExitStatus::Exited(0) => Ok(()),
        status => Err(task_failure(
            "TestSetup",
            format!("{purpose}: {status:?}: {}", excerpt(&execution.output)),
        )),
    }
}

fn find(log: &[u8], needle: &[u8]) -> Option<usize> {
    memchr::memmem::find(log, needle)
}

fn rfind(log: &[u8], needle: &[u8]) -> Option<usize> {
    memchr::memmem::rfind(log, needle)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
