//! The pytest runner against right, wrong, empty, broken and attacking submissions.

use temper_core::{
    Construction, Entry, TestId, TreePath,
    construction::FUNCTION_HALVES,
    task::{TestLists, Verifier},
    verdict::{LayerName, LayerOutcome, Resolution, Tampering, TestOutcome, Verdict},
};
use temper_sandbox::verify::{Graded, Submission, grade};

use crate::fixture::{Files, Fixture, changes};

const BUGGY: &str = "def double(x):\n    return x + 1\n\n\ndef keep(x):\n    return x\n";
const FIXED: &str = "def double(x):\n    return x * 2\n\n\ndef keep(x):\n    return x\n";
const PUBLIC: &str = "import calc\n\n\ndef test_double():\n    assert calc.double(3) == 6\n\n\ndef test_keep():\n    assert calc.keep(3) == 3\n";
const HIDDEN: &str = "import calc\nimport pytest\n\n\n@pytest.mark.parametrize('x', [2, 5])\ndef test_more(x):\n    assert calc.double(x) == 2 * x\n\n\ndef test_kept():\n    assert calc.keep('a') == 'a'\n";

fn lists(fail_to_pass: &[&str], pass_to_pass: &[&str]) -> TestLists {
    let ids = |ids: &[&str]| ids.iter().map(|id| TestId::from(*id)).collect();
    TestLists {
        fail_to_pass: ids(fail_to_pass),
        pass_to_pass: ids(pass_to_pass),
    }
}

fn fixture() -> Fixture {
    Fixture::pytest(
        &[
            ("calc.py", BUGGY),
            ("tests/test_public.py", PUBLIC),
            ("tests/test_hidden.py", "def test_stub():\n    pass\n"),
            (
                "pyproject.toml",
                "[tool.pytest.ini_options]\naddopts = '-x'\n",
            ),
        ],
        &[("tests/test_hidden.py", HIDDEN)],
        lists(
            &["tests/test_public.py::test_double"],
            &["tests/test_public.py::test_keep"],
        ),
        lists(
            &["tests/test_hidden.py::test_more[5]"],
            &["tests/test_hidden.py::test_kept"],
        ),
    )
}

/// The same tests as `fixture`, so that one run judges both layers: the hidden version of the one
/// test file holds the public tests unchanged, and the task says so.
fn in_one_run() -> Fixture {
    let whole = format!("{PUBLIC}\n\n{}", HIDDEN.replace("import calc\n", ""));
    in_one_run_with(&[], PUBLIC, &whole)
}

fn in_one_run_with(start: Files<'_>, public: &str, whole: &str) -> Fixture {
    let mut files = vec![("calc.py", BUGGY), ("tests/test_public.py", public)];
    files.extend(start);
    let mut fixture = Fixture::pytest(
        &files,
        &[("tests/test_public.py", whole)],
        lists(
            &["tests/test_public.py::test_double"],
            &["tests/test_public.py::test_keep"],
        ),
        lists(
            &["tests/test_public.py::test_more[5]"],
            &["tests/test_public.py::test_kept"],
        ),
    );
    let Verifier::Pytest { test_files, .. } = &mut fixture.task.task.verifier else {
        unreachable!()
    };
    *test_files = vec!["tests/test_public.py".into()];
    fixture.task.task.construction = Some(Construction {
        kind: "arithmetic".into(),
        seed: 0,
        places: Vec::new(),
        hidden_rule: FUNCTION_HALVES.into(),
        statement: "template".into(),
        audit: None,
    });
    fixture
}

fn judge(fixture: &Fixture, files: Files<'_>) -> Graded {
    let changes = changes(files);
    let mut logs = Vec::new();
    let graded = grade(
        &fixture.request(Submission::Changes(&changes)),
        &mut |name, log| logs.push((name.to_owned(), String::from_utf8_lossy(log).into_owned())),
    );
    for (name, log) in logs {
        println!("--- {name}\n{log}");
    }
    println!("{graded:#?}");
    graded
}

fn check(files: Files<'_>) -> Verdict {
    let graded = judge(&fixture(), files);
    assert_eq!(graded.failure, None);
    graded.verdict
}

fn outcomes(verdict: &Verdict) -> Vec<LayerOutcome> {
    verdict.layers.iter().map(|layer| layer.outcome).collect()
}

#[test]
fn the_fix_resolves_the_task() {
    let verdict = check(&[("calc.py", FIXED)]);
    assert_eq!(verdict.resolution, Resolution::Resolved);
    assert_eq!(outcomes(&verdict), [LayerOutcome::Passed; 3]);
    assert!(verdict.tampering.is_empty());
    assert!(
        verdict
            .fail_to_pass
            .values()
            .all(|o| *o == TestOutcome::Passed)
    );
    assert_eq!(verdict.fail_to_pass.len() + verdict.pass_to_pass.len(), 4);
}

#[test]
fn a_wrong_fix_fails_and_later_layers_are_not_run() {
    let verdict = check(&[(
        "calc.py",
        "def double(x):\n    return 0\n\ndef keep(x):\n    return x\n",
    )]);
    assert_eq!(verdict.resolution, Resolution::Unresolved);
    assert_eq!(
        outcomes(&verdict),
        [
            LayerOutcome::Passed,
            LayerOutcome::Failed,
            LayerOutcome::NotRun
        ]
    );
    let hidden = TestId::from("tests/test_hidden.py::test_more[5]");
    assert_eq!(verdict.fail_to_pass[&hidden], TestOutcome::NotRun);
}

#[test]
fn a_fix_of_the_visible_case_alone_fails_the_hidden_layer() {
    let verdict = check(&[(
        "calc.py",
        "def double(x):\n    return 6\n\ndef keep(x):\n    return x\n",
    )]);
    assert_eq!(verdict.resolution, Resolution::Partial);
    assert_eq!(
        outcomes(&verdict),
        [
            LayerOutcome::Passed,
            LayerOutcome::Passed,
            LayerOutcome::Failed
        ]
    );
}

#[test]
fn a_file_that_does_not_parse_stops_at_the_syntax_layer() {
    let verdict = check(&[("calc.py", "def double(x:\n    return x\n")]);
    assert_eq!(verdict.resolution, Resolution::Unresolved);
    assert_eq!(
        outcomes(&verdict),
        [
            LayerOutcome::Failed,
            LayerOutcome::NotRun,
            LayerOutcome::NotRun
        ]
    );
    assert!(
        verdict.detail.contains("calc.py: line 1"),
        "{}",
        verdict.detail
    );
}

#[test]
fn the_graded_state_is_the_start_with_what_was_submitted() {
    let public = "import os, stat\n\n\ndef kind(path):\n    mode = os.lstat(path).st_mode\n    return stat.S_IFMT(mode), stat.S_IMODE(mode)\n\n\ndef test_double():\n    assert kind('run.sh') == (stat.S_IFREG, 0o755)\n    assert kind('was_run.sh') == (stat.S_IFREG, 0o644)\n    assert kind('was_link') == (stat.S_IFREG, 0o644)\n    assert open('target').read() == 'kept'\n    assert os.readlink('link') == 'target' and os.readlink('was_file') == 'target'\n    assert open('was_dir').read() == 'file' and open('was_also_file/below').read() == 'dir'\n    assert not os.path.lexists('gone') and not os.path.lexists('empty')\n    assert os.listdir('half') == ['stays']\n\n\ndef test_keep():\n    pass\n";
    let fixture = in_one_run_with(
        &[
            ("run.sh", "1"),
            ("was_run.sh", "1"),
            ("target", "kept"),
            ("was_file", "1"),
            ("was_dir/below", "1"),
            ("was_also_file", "1"),
            ("gone", "1"),
            ("empty/below", "1"),
            ("half/stays", "1"),
            ("half/goes", "1"),
        ],
        public,
        &format!("{public}\n\n{HIDDEN}"),
    );
    let start = fixture.directory.path().join("start");
    std::os::unix::fs::symlink("target", start.join("was_link")).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(start.join("was_run.sh"), executable).unwrap();
    let mut submitted = changes(&[
        ("calc.py", FIXED),
        ("was_run.sh", "2"),
        ("was_link", "no longer"),
        ("was_dir", "file"),
        ("was_also_file/below", "dir"),
    ]);
    let mut set = |path: &str, entry| submitted.insert(TreePath::new(path).unwrap(), entry);
    set(
        "run.sh",
        Some(Entry::File {
            content: b"2".to_vec(),
            executable: true,
        }),
    );
    for path in ["link", "was_file"] {
        let target = b"target".to_vec();
        set(path, Some(Entry::Symlink { target }));
    }
    for path in [
        "was_dir/below",
        "was_also_file",
        "gone",
        "empty/below",
        "half/goes",
    ] {
        set(path, None);
    }
    let (graded, _) = logs_of(&fixture, Submission::Changes(&submitted));
    assert_eq!(graded.verdict.resolution, Resolution::Resolved);
}

#[test]
fn a_module_that_cannot_be_imported_fails_its_tests_with_an_error() {
    let verdict = check(&[("calc.py", "raise RuntimeError('no')\n")]);
    assert_eq!(verdict.resolution, Resolution::Unresolved);
    let id = TestId::from("tests/test_public.py::test_double");
    assert_eq!(verdict.fail_to_pass[&id], TestOutcome::Error);
}

#[test]
fn no_change_is_an_empty_patch_and_changed_tests_alone_are_wrong() {
    assert_eq!(check(&[]).resolution, Resolution::EmptyPatch);
    let verdict = check(&[("tests/test_public.py", "def test_double():\n    pass\n")]);
    assert_eq!(verdict.resolution, Resolution::Unresolved);
    assert_eq!(
        verdict.tampering,
        [Tampering::TestFileChanged {
            path: "tests/test_public.py".into()
        }]
    );
}

#[test]
fn files_that_steer_the_runner_change_nothing() {
    let conftest = "import pytest\n\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n    outcome = yield\n    outcome.get_result().outcome = 'passed'\n";
    let verdict = check(&[
        ("conftest.py", conftest),
        ("tests/conftest.py", conftest),
        ("pytest.ini", "[pytest]\naddopts = --collect-only\n"),
        ("sitecustomize.py", "import os; os._exit(0)\n"),
        ("pytest.py", "import os; os._exit(0)\n"),
        ("json.py", "import os; os._exit(0)\n"),
        (
            "calc.py",
            "def double(x):\n    return 0\n\ndef keep(x):\n    return x\n",
        ),
    ]);
    assert_eq!(verdict.resolution, Resolution::Unresolved);
    assert_eq!(verdict.tampering.len(), 5);
    let id = TestId::from("tests/test_public.py::test_double");
    assert_eq!(verdict.fail_to_pass[&id], TestOutcome::Failed);
    // The same files beside a right fix do not spoil it.
    let verdict = check(&[("conftest.py", conftest), ("calc.py", FIXED)]);
    assert_eq!(verdict.resolution, Resolution::Resolved);
    assert_eq!(verdict.tampering.len(), 1);
}

/// Code that attacks the runner from the module under test, which is otherwise the buggy one: what
/// it gets where each layer has its run, and where both have one.
fn attack(code: &str) -> [Verdict; 2] {
    [fixture(), in_one_run()].map(|fixture| {
        let graded = judge(&fixture, &[("calc.py", &format!("{code}\n\n{BUGGY}"))]);
        assert_eq!(graded.failure, None);
        assert_ne!(graded.verdict.resolution, Resolution::Resolved);
        assert_ne!(graded.verdict.resolution, Resolution::Lost);
        graded.verdict
    })
}

fn canary_tripped(verdict: &Verdict) -> bool {
    verdict
        .tampering
        .iter()
        .any(|tampering| matches!(tampering, Tampering::CanaryTripped { .. }))
}

#[test]
fn leaving_early_is_a_failure() {
    for code in [
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "import pytest; pytest.exit('done', 0)",
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.kill(os.getppid(), 9)",
        "import os; os.killpg(0, 15)",
        "import os; os.closerange(0, 64)",
        "import os, threading; threading.Timer(0, lambda: os._exit(0)).start()",
        "import atexit, os; atexit.register(lambda: os._exit(0))",
        "raise KeyboardInterrupt",
        "import builtins; builtins.isinstance = lambda *a: True",
    ] {
        for verdict in attack(code) {
            println!("{code}: {}", verdict.detail);
            let public = &verdict.layers[1];
            assert_eq!(public.name, LayerName::Public);
            assert_eq!(public.outcome, LayerOutcome::Failed, "{code}");
            assert!(!public.detail.is_empty());
        }
    }
}

#[test]
fn leaving_from_inside_a_test_is_that_tests_failure() {
    let code = "def double(x):\n    import os\n    os._exit(0)\n\ndef keep(x):\n    return x\n";
    let verdict = check(&[("calc.py", code)]);
    let id = TestId::from("tests/test_public.py::test_double");
    assert_eq!(verdict.fail_to_pass[&id], TestOutcome::Failed);
    assert!(
        verdict
            .detail
            .contains("exited with 0 in tests/test_public.py::test_double"),
        "{}",
        verdict.detail
    );
    let verdict = check(&[(
        "calc.py",
        &code.replace("os._exit(0)", "raise SystemExit(0)"),
    )]);
    assert_eq!(verdict.fail_to_pass[&id], TestOutcome::Failed);
    assert_eq!(
        verdict.layers[1].tests[&TestId::from("tests/test_public.py::test_keep")],
        TestOutcome::Passed
    );
}

#[test]
fn printed_results_are_not_results() {
    let verdicts = attack(
        "import os, sys, json\n\
         for fd in (1, 2):\n    os.write(fd, b'tests/test_public.py::test_double PASSED\\ntemper1 00 {\"t\":\"finish\",\"exit\":1,\"n\":2}\\n')\n\
         for fd in range(3, 40):\n    try:\n        os.write(fd, b'0 ' + json.dumps({'t': 'report', 'id': 'tests/test_public.py::test_double', 'when': 'call', 'outcome': 'passed', 'xfail': False, 'raised': False}).encode() + b'\\n')\n    except OSError:\n        pass\n",
    );
    for verdict in verdicts {
        assert!(
            verdict
                .tampering
                .iter()
                .any(|t| matches!(t, Tampering::PlantedResult { .. }))
        );
    }
}

#[test]
fn a_runner_that_is_subverted_is_caught() {
    for code in [
        // Every report becomes a pass.
        "import _pytest.reports as r\n_old = r.TestReport.__init__\ndef _new(self, *a, **k):\n    _old(self, *a, **k)\n    self.outcome = 'passed'\nr.TestReport.__init__ = _new",
        // Tests are not called.
        "import _pytest.python as p\np.Function.runtest = lambda self: None",
        "import _pytest.python as p\np.Function.runtest.__code__ = (lambda self: None).__code__",
        "import unittest\nunittest.TestCase.assertEqual = lambda *a, **k: None",
        // A hook that turns failures round, registered from the code under test.
        "import gc, pytest\nclass P:\n    @pytest.hookimpl(hookwrapper=True)\n    def pytest_runtest_makereport(self, item, call):\n        o = yield\n        o.get_result().outcome = 'passed'\nfor x in gc.get_objects():\n    if type(x).__name__ == 'PytestPluginManager':\n        x.register(P())",
        "import gc, pytest\nclass P:\n    @pytest.hookimpl(tryfirst=True)\n    def pytest_pyfunc_call(self, pyfuncitem):\n        return True\nfor x in gc.get_objects():\n    if type(x).__name__ == 'PytestPluginManager':\n        x.register(P())",
        // All tests but the wanted ones are dropped.
        "import gc, pytest\nclass P:\n    @pytest.hookimpl(tryfirst=True)\n    def pytest_runtestloop(self, session):\n        session.items[:] = []\nfor x in gc.get_objects():\n    if type(x).__name__ == 'PytestPluginManager':\n        x.register(P())",
        "import builtins\nbuiltins.all = lambda *a: True",
    ] {
        for verdict in attack(code) {
            println!("{code}: {:?}", verdict.tampering);
            assert!(canary_tripped(&verdict), "{code}");
        }
    }
}

#[test]
fn one_run_judges_both_layers_as_two_do() {
    let outcomes_of = |files: Files<'_>| {
        let verdicts = [fixture(), in_one_run()].map(|fixture| judge(&fixture, files).verdict);
        let seen = verdicts.each_ref().map(|verdict| {
            let tests: Vec<Vec<TestOutcome>> = verdict
                .layers
                .iter()
                .map(|layer| layer.tests.values().copied().collect())
                .collect();
            (verdict.resolution, outcomes(verdict), tests)
        });
        assert_eq!(seen[0], seen[1]);
        seen[0].0
    };
    let keep = "def keep(x):\n    return x\n";
    for (double, resolution) in [
        ("return x * 2", Resolution::Resolved),
        ("return x + x", Resolution::Resolved),
        ("return 0", Resolution::Unresolved),
        ("return 6", Resolution::Partial),
        ("return 6 if x == 3 else exit(0)", Resolution::Partial),
        ("return (x", Resolution::Unresolved),
    ] {
        let code = format!("def double(x):\n    {double}\n\n{keep}");
        assert_eq!(outcomes_of(&[("calc.py", &code)]), resolution, "{double}");
    }
    let leaves = "import os\ndef double(x):\n    return 6 if x == 3 else os._exit(0)\n";
    outcomes_of(&[("calc.py", &format!("{leaves}\n{keep}"))]);
    assert_eq!(outcomes_of(&[]), Resolution::EmptyPatch);
}

/// The logs of a run by name.
fn logs_of(fixture: &Fixture, submission: Submission<'_>) -> (Graded, Vec<(String, String)>) {
    let mut logs = Vec::new();
    let graded = grade(&fixture.request(submission), &mut |name, log| {
        logs.push((name.to_owned(), String::from_utf8_lossy(log).into_owned()));
    });
    println!("{logs:#?}\n{graded:#?}");
    (graded, logs)
}

#[test]
fn hidden_tests_of_one_run_are_left_out_when_public_ones_fail_but_for_a_proof() {
    let fixture = in_one_run();
    let wrong = changes(&[(
        "calc.py",
        "def double(x):\n    return 0\n\ndef keep(x):\n    return x\n",
    )]);
    let (graded, logs) = logs_of(&fixture, Submission::Changes(&wrong));
    assert_eq!(graded.verdict.layers[2].outcome, LayerOutcome::NotRun);
    assert_eq!(logs.len(), 1);
    assert!(logs[0].1.contains("test_double") && !logs[0].1.contains("test_more"));
    let (graded, logs) = logs_of(&fixture, Submission::Start);
    assert_eq!(graded.verdict.layers[1].outcome, LayerOutcome::Failed);
    assert_eq!(graded.verdict.layers[2].outcome, LayerOutcome::Failed);
    let kept = TestId::from("tests/test_public.py::test_kept");
    assert_eq!(graded.verdict.pass_to_pass[&kept], TestOutcome::Passed);
    assert!(logs[0].1.contains("test_more"));
}

#[test]
fn layers_of_one_run_share_no_fixture() {
    let conftest = "import pytest\n\nused = []\n\n\n@pytest.fixture(scope='session')\ndef fresh():\n    value = []\n    yield value\n    used.append(len(value))\n";
    let public = "import calc\n\n\ndef test_double(fresh):\n    fresh.append(1)\n    assert calc.double(3) == 6\n\n\ndef test_keep(fresh):\n    assert fresh == [1]\n";
    let hidden = "\n\nimport pytest\nfrom conftest import used\n\n\n@pytest.mark.parametrize('x', [2, 5])\ndef test_more(x, fresh):\n    assert fresh == [] and used == [1]\n    assert calc.double(x) == 2 * x\n\n\ndef test_kept(fresh):\n    assert fresh == []\n";
    let fixture = in_one_run_with(
        &[("tests/conftest.py", conftest)],
        public,
        &format!("{public}{hidden}"),
    );
    let graded = judge(&fixture, &[("calc.py", FIXED)]);
    assert_eq!(graded.verdict.resolution, Resolution::Resolved);
}

#[test]
fn each_layer_of_one_run_has_the_whole_time_limit() {
    let public = "import time\nimport calc\n\n\ndef test_double():\n    time.sleep(6)\n    assert calc.double(3) == 6\n\n\ndef test_keep():\n    pass\n";
    let hidden = "\n\nimport pytest\n\n\n@pytest.mark.parametrize('x', [2, 5])\ndef test_more(x):\n    time.sleep(6)\n    assert calc.double(x) == 2 * x\n\n\ndef test_kept():\n    pass\n";
    let mut fixture = in_one_run_with(&[], public, &format!("{public}{hidden}"));
    let Verifier::Pytest {
        timeout_seconds, ..
    } = &mut fixture.task.task.verifier
    else {
        unreachable!()
    };
    *timeout_seconds = 11;
    let graded = judge(&fixture, &[("calc.py", FIXED)]);
    assert_eq!(graded.verdict.resolution, Resolution::Resolved);
    let layers = &graded.verdict.layers;
    assert!(layers[1].wall_seconds >= 6.0 && layers[2].wall_seconds >= 6.0);
}

#[test]
fn a_file_that_breaks_the_parser_fails_the_syntax_layer() {
    let bomb = format!("x = {}1\n", "-".repeat(3_000_000));
    let verdict = check(&[("bomb.py", &bomb), ("calc.py", FIXED)]);
    assert_eq!(verdict.resolution, Resolution::Unresolved);
    assert_eq!(verdict.layers[0].outcome, LayerOutcome::Failed);
    assert!(verdict.detail.contains("bomb.py"), "{}", verdict.detail);
}

#[test]
fn an_endless_loop_ends_at_the_limit() {
    let mut fixture = fixture();
    let Verifier::Pytest {
        timeout_seconds, ..
    } = &mut fixture.task.task.verifier
    else {
        unreachable!()
    };
    *timeout_seconds = 3;
    let files: Files<'_> = &[("calc.py", "while True:\n    pass\n")];
    let graded = judge(&fixture, files);
    assert_eq!(graded.failure, None);
    assert_eq!(graded.verdict.resolution, Resolution::Unresolved);
    assert!(
        graded.verdict.detail.contains("time limit"),
        "{}",
        graded.verdict.detail
    );
    let changes = changes(files);
    let request = temper_sandbox::verify::GradeRequest {
        proven: false,
        ..fixture.request(Submission::Changes(&changes))
    };
    let graded = grade(&request, &mut |_, _| {});
    assert_eq!(graded.verdict.resolution, Resolution::Lost);
    assert_eq!(graded.failure.unwrap().class, "VerifierTimeout");
}

#[test]
fn a_flood_of_output_is_drained_and_cut() {
    // Past pytest's capture, 1 GiB straight into the runner's pipe.
    let flood = "import os, gc\nfor x in gc.get_objects():\n    if type(x).__name__ == 'FDCapture' and x.targetfd == 1:\n        for _ in range(1024):\n            os.write(x.targetfd_save, b'x' * (1 << 20))\n";
    let verdict = check(&[("calc.py", &format!("{flood}\n{FIXED}"))]);
    assert_eq!(verdict.resolution, Resolution::Resolved);
}

#[test]
fn filling_memory_or_the_process_table_is_a_failure() {
    let mut fixture = fixture();
    let Verifier::Pytest {
        timeout_seconds, ..
    } = &mut fixture.task.task.verifier
    else {
        unreachable!()
    };
    *timeout_seconds = 10;
    for code in [
        "x = [bytearray(1 << 26) for _ in range(1000)]",
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    ] {
        let changes = changes(&[("calc.py", &format!("{code}\n\n{FIXED}"))]);
        let mut request = fixture.request(Submission::Changes(&changes));
        request.limits.memory_bytes = 512 << 20;
        request.limits.max_processes = 64;
        let graded = grade(&request, &mut |_, _| {});
        assert_eq!(graded.failure, None, "{code}");
        assert_eq!(graded.verdict.resolution, Resolution::Unresolved, "{code}");
        assert_eq!(graded.verdict.layers[1].outcome, LayerOutcome::Failed);
    }
}
