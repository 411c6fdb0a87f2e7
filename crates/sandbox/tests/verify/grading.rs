//! Resolution rules, log reading, Harbor's protocol and predictions, against the real grading code
//! (`fixtures/grading/make.py`) and in real sandboxes.

use std::collections::BTreeMap;

use serde::Deserialize;
use temper_core::{
    Patch, TestId,
    task::{HiddenSource, ResolutionRules, Start, TaskFormat, TestLists, Verifier},
    verdict::{Resolution, Tampering, TestOutcome},
};
use temper_sandbox::verify::{
    Graded, Submission, grade,
    harbor::{RewardError, read_rewards},
    log_verifier::{LogReading, grade_log, read_log},
    parsers::{self, StatusMap},
    resolution::{Judging, resolve},
};

use crate::fixture::{Files, Fixture, changes};

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
    logs: Vec<Log>,
}

#[derive(Deserialize)]
struct Case {
    map: StatusMap,
    lists: Lists,
    fail_only: bool,
    #[serde(flatten)]
    reports: BTreeMap<String, Expected>,
}

#[derive(Deserialize)]
struct Lists {
    #[serde(rename = "FAIL_TO_PASS")]
    fail_to_pass: Vec<TestId>,
    #[serde(rename = "PASS_TO_PASS")]
    pass_to_pass: Vec<TestId>,
}

#[derive(Deserialize)]
struct Expected {
    resolution: String,
    #[serde(rename = "FAIL_TO_PASS")]
    fail_to_pass: ExpectedList,
    #[serde(rename = "PASS_TO_PASS")]
    pass_to_pass: ExpectedList,
}

#[derive(Deserialize, PartialEq, Debug)]
struct ExpectedList {
    success: Vec<TestId>,
    failure: Vec<TestId>,
}

#[derive(Deserialize)]
struct Log {
    log: String,
    #[serde(rename = "swe-bench4")]
    four: Option<StatusMap>,
    #[serde(rename = "swe-bench5")]
    five: Option<StatusMap>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../fixtures/grading/golden.json")).unwrap()
}

#[test]
fn the_rules_equal_the_real_grading_code() {
    let golden = golden();
    assert_eq!(golden.cases.len(), 300);
    let mut n_compared = 0;
    for case in &golden.cases {
        let lists = TestLists {
            fail_to_pass: case.lists.fail_to_pass.clone(),
            pass_to_pass: case.lists.pass_to_pass.clone(),
        };
        for (name, expected) in &case.reports {
            let rules = match name.as_str() {
                "swe-bench4" => ResolutionRules::SweBench4,
                "swe-bench5" => ResolutionRules::SweBench5,
                "swe-smith009" => ResolutionRules::SweSmith009,
                other => panic!("{other}"),
            };
            let judging = Judging {
                rules,
                fail_only: case.fail_only,
                match_truncated: false,
            };
            let report = resolve(&case.map, &lists, judging);
            let word = match report.resolution {
                Resolution::Resolved => "RESOLVED_FULL",
                Resolution::Partial => "RESOLVED_PARTIAL",
                _ => "RESOLVED_NO",
            };
            let context = format!("{name}: {:?} {lists:?}", case.map);
            assert_eq!(word, expected.resolution, "{context}");
            for (list, expected) in [
                (report.fail_to_pass, &expected.fail_to_pass),
                (report.pass_to_pass, &expected.pass_to_pass),
            ] {
                assert_eq!(list.success, expected.success, "{context}");
                assert_eq!(list.failure, expected.failure, "{context}");
            }
            n_compared += 1;
        }
    }
    assert!(n_compared > 800);
}

#[test]
fn an_absent_test_passed_in_one_version_of_swe_smith() {
    let lists = TestLists {
        fail_to_pass: vec!["a".into()],
        pass_to_pass: vec!["b".into()],
    };
    let map: StatusMap = [("a".to_owned(), parsers::Status::Passed)].into();
    let judge = |rules| {
        let judging = Judging {
            rules,
            fail_only: false,
            match_truncated: true,
        };
        resolve(&map, &lists, judging).resolution
    };
    assert_eq!(judge(ResolutionRules::SweSmith009), Resolution::Unresolved);
    assert_eq!(
        judge(ResolutionRules::SweSmithCf2e649d),
        Resolution::Resolved
    );
}

#[test]
fn logs_are_read_as_the_real_grading_code_reads_them() {
    for log in golden().logs {
        for (rules, parser, expected) in [
            (ResolutionRules::SweBench4, "swebench4:pytest", &log.four),
            (ResolutionRules::SweBench5, "swebench5:pytest", &log.five),
        ] {
            let parser = parsers::by_name(parser).unwrap();
            let found = match read_log(log.log.as_bytes(), parser, rules) {
                LogReading::Statuses(map) => Some(map),
                LogReading::Nothing(why) => {
                    assert!(!why.is_empty());
                    None
                }
            };
            assert_eq!(&found, expected, "{rules:?} on {:?}", log.log);
        }
    }
}

fn log_verifier(command: &str, test_patch: &str, tests: TestLists) -> Verifier {
    Verifier::Log {
        parser: "pytest".into(),
        test_command: Some(command.into()),
        test_patch: Patch(test_patch.into()),
        tests,
        rules: ResolutionRules::SweBench4,
        timeout_seconds: 20,
    }
}

fn lists(fail_to_pass: &[&str], pass_to_pass: &[&str]) -> TestLists {
    let ids = |ids: &[&str]| ids.iter().map(|id| TestId::from(*id)).collect();
    TestLists {
        fail_to_pass: ids(fail_to_pass),
        pass_to_pass: ids(pass_to_pass),
    }
}

#[test]
fn cut_ids_of_a_published_list_find_their_tests() {
    let fixture = Fixture::new(
        &[],
        log_verifier("x", "", lists(&["t.py::test_a[deg"], &["t.py::test_b"])),
    );
    let log = |status: &str| {
        format!(
            "+ : '>>>>> Start Test Output'\n===== short test summary info =====\n\
             PASSED t.py::test_a[deg 'x' y]\n{status} t.py::test_a[deg 'x' z]\n\
             PASSED t.py::test_b\n+ : '>>>>> End Test Output'\n"
        )
    };
    let graded = grade_log(log("PASSED").as_bytes(), &fixture.task.task);
    assert_eq!(graded.verdict.resolution, Resolution::Resolved);
    let graded = grade_log(log("FAILED").as_bytes(), &fixture.task.task);
    assert_eq!(graded.verdict.resolution, Resolution::Unresolved);
    let graded = grade_log(b"no markers", &fixture.task.task);
    assert_eq!(graded.verdict.resolution, Resolution::Lost);
    assert_eq!(graded.failure.unwrap().class, "NoResult");
}

/// Makes the start a repository with two commits of the given files, and a branch `task`.
fn make_repository(fixture: &Fixture, second: Files<'_>) {
    let root = fixture.task.start_tree.clone().unwrap();
    let git = |arguments: &[&str]| {
        let status = std::process::Command::new("git")
            .args(["-c", "user.name=a", "-c", "user.email=a@b", "-C"])
            .arg(&root)
            .args(arguments)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .status()
            .unwrap();
        assert!(status.success());
    };
    git(&["init", "-q", "-b", "main"]);
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "bug"]);
    git(&["checkout", "-q", "-b", "task"]);
    for (path, content) in second {
        let path = root.join(path);
        if content.is_empty() {
            std::fs::remove_file(path).unwrap();
        } else {
            std::fs::write(path, content).unwrap();
        }
    }
    git(&["add", "-A"]);
    git(&["commit", "-q", "--allow-empty", "-m", "second"]);
    git(&["checkout", "-q", "main"]);
}

/// A runner in shell that prints pytest's summary.
const RUN: &str = "echo '===== short test summary info ====='\n\
    grep -q fixed code.txt && echo 'PASSED t.py::a' || echo 'FAILED t.py::a - not fixed'\n\
    grep -q new t.py && echo 'PASSED t.py::b' || echo 'FAILED t.py::b - old tests'";

const TEST_PATCH: &str = "--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-old\n+new\n";

fn log_fixture() -> Fixture {
    let mut fixture = Fixture::new(
        &[("code.txt", "broken\n"), ("t.py", "old\n")],
        log_verifier(RUN, TEST_PATCH, lists(&["t.py::a"], &["t.py::b"])),
    );
    make_repository(&fixture, &[]);
    fixture.task.task.format = TaskFormat::SweBench;
    fixture
}

fn judge(fixture: &Fixture, submission: Submission<'_>) -> (Graded, BTreeMap<String, String>) {
    let mut logs = BTreeMap::new();
    let graded = grade(&fixture.request(submission), &mut |name, log| {
        logs.insert(name.to_owned(), String::from_utf8_lossy(log).into_owned());
    });
    println!("{graded:#?}\n{logs:#?}");
    (graded, logs)
}

fn patch(text: &str) -> Patch {
    Patch(text.into())
}

const FIX: &str = "--- a/code.txt\n+++ b/code.txt\n@@ -1 +1 @@\n-broken\n+fixed\n";

#[test]
fn a_log_task_is_graded_in_a_sandbox() {
    let fixture = log_fixture();
    let (graded, logs) = judge(&fixture, Submission::Patch(&patch(FIX)));
    assert_eq!(graded.verdict.resolution, Resolution::Resolved);
    assert!(logs["tests"].contains(">>>>> Start Test Output"));

    let (graded, _) = judge(
        &fixture,
        Submission::Patch(&patch(&FIX.replace("+fixed", "+wrong"))),
    );
    assert_eq!(graded.verdict.resolution, Resolution::Unresolved);

    // A missing line feed is mended and noted.
    let (graded, _) = judge(&fixture, Submission::Patch(&patch(FIX.trim_end())));
    assert_eq!(graded.verdict.resolution, Resolution::Resolved);
    assert_eq!(graded.verdict.notes.len(), 1);

    let (graded, _) = judge(
        &fixture,
        Submission::Patch(&patch(&FIX.replace("broken", "absent"))),
    );
    assert_eq!(graded.verdict.resolution, Resolution::InvalidPatch);
    assert!(
        graded.verdict.detail.contains("patch"),
        "{}",
        graded.verdict.detail
    );

    let (graded, _) = judge(&fixture, Submission::Patch(&patch("\n")));
    assert_eq!(graded.verdict.resolution, Resolution::EmptyPatch);
}

#[test]
fn changed_test_files_are_put_back_and_reported() {
    let fixture = log_fixture();
    let changes = changes(&[("code.txt", "fixed\n"), ("t.py", "garbage\n")]);
    let (graded, _) = judge(&fixture, Submission::Changes(&changes));
    assert_eq!(graded.verdict.resolution, Resolution::Resolved);
    assert_eq!(
        graded.verdict.tampering,
        [Tampering::TestFileChanged {
            path: "t.py".into()
        }]
    );
}

#[test]
fn nothing_that_tests_print_makes_a_run_of_ours_lost() {
    for (end, detail) in [
        ("exit 0", "ended the script"),
        ("echo '>>>>> Tests Timed Out'", "printed the harness's mark"),
        ("kill -9 $$", "ended the script"),
    ] {
        let mut fixture = log_fixture();
        let Verifier::Log { test_command, .. } = &mut fixture.task.task.verifier else {
            unreachable!()
        };
        *test_command = Some(format!("{RUN}\n{end}"));
        let (graded, _) = judge(&fixture, Submission::Patch(&patch(FIX)));
        assert_eq!(graded.verdict.resolution, Resolution::Unresolved);
        assert!(
            graded.verdict.detail.contains(detail),
            "{}",
            graded.verdict.detail
        );
    }
}

#[test]
fn a_swe_smith_task_is_graded_on_the_commit_before_the_tests_were_removed() {
    let mut fixture = Fixture::new(
        &[("code.txt", "broken\n"), ("t.py", "new\n")],
        log_verifier(RUN, "", lists(&["t.py::a"], &["t.py::b"])),
    );
    make_repository(&fixture, &[("t.py", "")]);
    fixture.task.task.format = TaskFormat::SweSmith;
    fixture.task.task.start = Start::Image {
        base_commit: None,
        checkout: Some("task".into()),
    };
    let (graded, _) = judge(&fixture, Submission::Patch(&patch(FIX)));
    assert_eq!(graded.verdict.resolution, Resolution::Resolved);
}

fn reward(json: Option<&str>, text: Option<&str>) -> Result<BTreeMap<String, f64>, RewardError> {
    read_rewards(json.map(str::as_bytes), text.map(str::as_bytes)).map(|rewards| rewards.values)
}

#[test]
fn reward_files_are_read_by_the_protocol() {
    let one = |value: f64| Ok(BTreeMap::from([("reward".to_owned(), value)]));
    assert_eq!(reward(None, Some("1\n")), one(1.0));
    assert_eq!(
        reward(Some(r#"{"reward": 0.5, "n_tests": 12}"#), None),
        Ok(BTreeMap::from([
            ("reward".to_owned(), 0.5),
            ("n_tests".to_owned(), 12.0)
        ]))
    );
    assert_eq!(reward(Some(r#"{"reward": true}"#), None), one(1.0));
    let both = read_rewards(Some(br#"{"reward": 0.5}"#), Some(b"1")).unwrap();
    assert_eq!(both.values["reward"], 0.5);
    assert!(both.warning.unwrap().contains("reward.txt disagrees"));
    let agree = read_rewards(Some(br#"{"reward": 1}"#), Some(b"1.0")).unwrap();
    assert_eq!(agree.warning, None);

    assert_eq!(reward(None, None), Err(RewardError::Missing));
    assert_eq!(
        reward(None, Some(" \n")),
        Err(RewardError::Empty("reward.txt"))
    );
    assert_eq!(
        reward(Some(""), Some("1")),
        Err(RewardError::Empty("reward.json"))
    );
    for text in ["error: no\n0.5", "nan", "inf", "1 2", "0x1"] {
        assert!(
            matches!(reward(None, Some(text)), Err(RewardError::Malformed { .. })),
            "{text}"
        );
    }
    for json in [
        "1",
        "[1]",
        r#"{"reward": "1"}"#,
        r#"{"reward": {"a": 1}}"#,
        r#"{"reward": NaN}"#,
        r#"{"reward": 1e999}"#,
        r#"{"reward": null}"#,
        r#"{"reward": 1"#,
    ] {
        assert!(
            matches!(reward(Some(json), None), Err(RewardError::Malformed { .. })),
            "{json}"
        );
    }
}

fn harbor(script: &str, timeout_seconds: u64) -> (Fixture, tempfile::TempDir) {
    let tests = tempfile::tempdir().unwrap();
    std::fs::write(
        tests.path().join("test.sh"),
        format!("#!/bin/bash\n{script}\n"),
    )
    .unwrap();
    std::fs::write(tests.path().join("data.txt"), "7\n").unwrap();
    let verifier = Verifier::Harbor {
        tests: tests.path().to_owned(),
        environment: [("BONUS".to_owned(), "0.25".to_owned())].into(),
        timeout_seconds,
    };
    (Fixture::new(&[("code.txt", "broken\n")], verifier), tests)
}

#[test]
fn a_harbor_task_is_judged_by_its_reward_file_alone() {
    let script = "grep -q 7 /tests/data.txt && grep -q fixed code.txt && r=1 || r=0\n\
        echo \"{\\\"reward\\\": $r, \\\"bonus\\\": $BONUS}\" > /logs/verifier/reward.json\nexit 3";
    let (fixture, _tests) = harbor(script, 20);
    let (graded, _) = judge(
        &fixture,
        Submission::Changes(&changes(&[("code.txt", "fixed\n")])),
    );
    assert_eq!(graded.verdict.resolution, Resolution::Resolved);
    assert_eq!(graded.verdict.rewards["bonus"], 0.25);
    let (graded, _) = judge(&fixture, Submission::Changes(&Default::default()));
    assert_eq!(graded.verdict.resolution, Resolution::Unresolved);
    assert_eq!(graded.verdict.rewards["reward"], 0.0);
}

#[test]
fn a_planted_reward_is_deleted_unread_and_reported() {
    let (mut fixture, _tests) = harbor("true", 20);
    fixture.task.setup = vec![
        "mkdir -p /logs/verifier && echo 1 > /logs/verifier/reward.txt && \
         echo '{\"reward\": 1}' > /logs/verifier/reward.json"
            .into(),
    ];
    let (graded, _) = judge(&fixture, Submission::Start);
    assert_eq!(graded.verdict.resolution, Resolution::Lost);
    assert_eq!(graded.failure.unwrap().class, "RewardFileMissing");
    assert_eq!(graded.verdict.tampering.len(), 2);
    assert!(graded.verdict.rewards.is_empty());
}

#[test]
fn a_harbor_verifier_that_does_not_end_is_lost() {
    let (fixture, _tests) = harbor("while :; do :; done", 2);
    let (graded, _) = judge(&fixture, Submission::Start);
    assert_eq!(graded.verdict.resolution, Resolution::Lost);
    assert_eq!(graded.failure.unwrap().class, "VerifierTimeout");
}

/// A four-line file that ends in a blank line, as a task whose one test wants `b = 2`.
fn four_lines(content: &str) -> Fixture {
    let test = "import four\n\n\ndef test_b():\n    assert four.b == 2\n";
    let fixture = Fixture::pytest(
        &[("four.py", content), ("tests/test_public.py", test)],
        &[],
        lists(&["tests/test_public.py::test_b"], &[]),
        TestLists::default(),
    );
    assert!(matches!(
        fixture.task.task.verifier,
        Verifier::Pytest {
            hidden_source: HiddenSource::SourceDistribution,
            ..
        }
    ));
    fixture
}

#[test]
fn a_damaged_patch_is_told_from_a_wrong_one() {
    let content = "a = 1\nb = 1\nc = 3\n\n";
    let right =
        "--- a/four.py\n+++ b/four.py\n@@ -1,4 +1,4 @@\n a = 1\n-b = 1\n+b = 2\n c = 3\n \n";
    let fixture = four_lines(content);
    let check =
        |fixture: &Fixture, text: &str| judge(fixture, Submission::Patch(&patch(text))).0.verdict;

    let verdict = check(&fixture, right);
    assert_eq!(verdict.resolution, Resolution::Resolved);
    assert!(verdict.notes.is_empty());
    let wrong = check(&fixture, &right.replace("+b = 2", "+b = 3"));
    assert_eq!(wrong.resolution, Resolution::Unresolved);

    // (a) The last line feed is gone.
    let mended = check(&fixture, right.strip_suffix('\n').unwrap());
    assert_eq!(mended.resolution, Resolution::Resolved);
    assert_eq!(mended.notes.len(), 1, "{:?}", mended.notes);
    // (b) The blank context line is gone.
    let trimmed = check(&fixture, right.trim_end());
    assert_eq!(trimmed.resolution, Resolution::InvalidPatch);
    assert!(trimmed.detail.contains("four.py"), "{}", trimmed.detail);
    // (c) The file has CR LF, the patch has lost the CR.
    let crlf = four_lines(&content.replace('\n', "\r\n"));
    let verdict = check(&crlf, right);
    assert_eq!(verdict.resolution, Resolution::InvalidPatch);
    assert!(verdict.detail.contains("four.py"), "{}", verdict.detail);
    let outcome = &verdict.fail_to_pass[&TestId::from("tests/test_public.py::test_b")];
    assert_eq!(*outcome, TestOutcome::NotRun);
}
