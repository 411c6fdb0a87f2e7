//! The pytest runner against right, wrong, empty, broken and attacking submissions.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use support::{Files, Fixture, changes};
use temper_core::{
    TestId,
    task::{TestLists, Verifier},
    verdict::{LayerName, LayerOutcome, Resolution, Tampering, TestOutcome, Verdict},
};
use temper_sandbox::verify::{Graded, Submission, grade};

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

/// Code that attacks the runner from the module under test, which is otherwise the buggy one.
fn attack(code: &str) -> Verdict {
    let verdict = check(&[("calc.py", &format!("{code}\n\n{BUGGY}"))]);
    assert_ne!(verdict.resolution, Resolution::Resolved);
    assert_ne!(verdict.resolution, Resolution::Lost);
    verdict
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
        let verdict = attack(code);
        println!("{code}: {}", verdict.detail);
        let public = &verdict.layers[1];
        assert_eq!(public.name, LayerName::Public);
        assert_eq!(public.outcome, LayerOutcome::Failed, "{code}");
        assert!(!public.detail.is_empty());
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
    let verdict = attack(
        "import os, sys, json\n\
         for fd in (1, 2):\n    os.write(fd, b'tests/test_public.py::test_double PASSED\\ntemper1 00 {\"t\":\"finish\",\"exit\":1,\"n\":2}\\n')\n\
         for fd in range(3, 40):\n    try:\n        os.write(fd, b'0 ' + json.dumps({'t': 'report', 'id': 'tests/test_public.py::test_double', 'when': 'call', 'outcome': 'passed', 'xfail': False, 'raised': False}).encode() + b'\\n')\n    except OSError:\n        pass\n",
    );
    assert!(
        verdict
            .tampering
            .iter()
            .any(|t| matches!(t, Tampering::PlantedResult { .. }))
    );
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
        let verdict = attack(code);
        println!("{code}: {:?}", verdict.tampering);
        assert!(canary_tripped(&verdict), "{code}");
    }
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
