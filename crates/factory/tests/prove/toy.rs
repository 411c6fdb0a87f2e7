//! A repository with every kind of test that must be excluded, and candidates of every fate.

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

use temper_core::{Digest, Entry, Patch, Place, TreePath, patch, task::PreparedMount};
use temper_factory::{
    Candidate,
    measure::{MeasureOptions, Measurement, measure},
    pool::{Subject, Workshop},
};
use temper_sandbox::{Limits, namespaces::Namespaces, verify::read_entry};

/// `double` is tested by parameters and in two files, `loop` once, `registry` at import only.
pub const CALC: &str = r#""""A module."""
import os

LIMIT = 10


def double(x):
    """Twice."""
    if x > LIMIT:
        return LIMIT * 2
    return x * 2


def loop(n):
    i = 0
    while i < n:
        i = i + 1
    return i


def unused(x):
    return x + 1


class Box:
    size = 3

    def area(self):
        return self.size * self.size


def build():
    return {"a": 1}


TABLE = build()


def lookup(key):
    return TABLE[key]
"#;

const TEST_CALC: &str = r#"import pytest
from pkg import calc


@pytest.mark.parametrize("x", [0, 3, 40])
def test_double(x):
    assert calc.double(x) == min(x, 10) * 2


class TestBox:
    def test_area(self):
        assert calc.Box().area() == 9

    def test_size(self):
        assert calc.Box.size == 3


def test_loop():
    assert calc.loop(3) == 3


def test_lookup():
    assert calc.lookup("a") == 1
"#;

const TEST_MORE: &str = r#"from pkg.calc import double


def test_twice():
    assert double(2) == 4


def test_limit():
    assert double(11) == 20


def test_type():
    assert isinstance(double(5), int)
"#;

const TEST_BAD: &str = r#"import os
import socket
import time

import pytest

STATE = []


def test_sets():
    STATE.append(1)


def test_needs_state():
    assert STATE


def test_fails():
    assert 1 == 2


@pytest.mark.skip
def test_skipped():
    pass


@pytest.mark.xfail
def test_expected():
    assert 1 == 2


def test_slow():
    time.sleep(0.7)


def test_network():
    with pytest.raises(OSError):
        socket.create_connection(("192.0.2.1", 80), timeout=0.1)


def test_home():
    with open(os.path.expanduser("~/written"), "w") as file:
        file.write("x")


def test_tree():
    with open("data.txt", "a") as file:
        file.write("x")


@pytest.mark.parametrize("value", [object()], ids=repr)
def test_address(value):
    pass


@pytest.mark.parametrize("value", range(8))
def test_flaky(value):
    assert os.urandom(1)[0] < 128


def test_exits():
    os._exit(0)


def test_fault():
    os.kill(os.getpid(), 11)


def test_after(tmp_path, capfd):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError):
        open("/usr/written", "w")
"#;

/// Where the wheels are seen in a sandbox.
const SITE_PACKAGES: &str = "/opt/temper/env/site-packages";

/// The repository in a directory that lives as long as the program.
pub fn subject() -> &'static Subject {
    static SUBJECT: OnceLock<(tempfile::TempDir, Subject)> = OnceLock::new();
    let (_, subject) = SUBJECT.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        for (path, content) in [
            ("pkg/__init__.py", ""),
            ("pkg/calc.py", CALC),
            ("tests/test_calc.py", TEST_CALC),
            ("tests/test_more.py", TEST_MORE),
            ("tests/test_bad.py", TEST_BAD),
            ("tests/test_broken.py", "import nothing_of_this_name\n"),
            ("data.txt", "data"),
        ] {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let variables = [
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("HOME", "/home/agent"),
            ("TMPDIR", "/tmp"),
            ("PYTHONHASHSEED", "0"),
            ("PYTHONDONTWRITEBYTECODE", "1"),
            ("PYTHONPATH", "/testbed:/opt/temper/env/site-packages"),
        ];
        let subject = Subject {
            tree: directory.path().to_owned(),
            mounts: vec![PreparedMount {
                source: site_packages(),
                target: SITE_PACKAGES.into(),
            }],
            variables: variables
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            work_tree: "/testbed".into(),
            test_files: ["bad", "broken", "calc", "more"]
                .map(|name| format!("tests/test_{name}.py"))
                .into(),
            sources: ["pkg/__init__.py", "pkg/calc.py"].map(path).into(),
            arguments: Vec::new(),
        };
        (directory, subject)
    });
    subject
}

/// A path in the repository.
pub fn path(text: &str) -> TreePath {
    TreePath::new(text).unwrap()
}

/// Where the toy's jobs run.
pub fn workshop(n_workers: usize) -> Workshop<'static> {
    static BACKEND: OnceLock<Namespaces> = OnceLock::new();
    Workshop {
        backend: BACKEND.get_or_init(Namespaces::new),
        limits: Limits::default(),
        demand: Default::default(),
        n_workers,
        label: "toy".into(),
    }
}

/// The toy's measurement, made once.
pub fn measurement() -> &'static Measurement {
    static MEASUREMENT: OnceLock<Measurement> = OnceLock::new();
    MEASUREMENT.get_or_init(|| {
        let options = MeasureOptions {
            slow_seconds: 0.5,
            n_shuffles: 3,
            ..MeasureOptions::default()
        };
        measure(subject(), &workshop(2), &options).unwrap().0
    })
}

/// A candidate that replaces a text that occurs once in `pkg/calc.py`.
pub fn candidate(function: Option<&str>, old: &str, new: &str) -> Candidate {
    assert_eq!(CALC.matches(old).count(), 1, "{old}");
    let first = CALC[..CALC.find(old).unwrap()].matches('\n').count() as u32 + 1;
    let file = path("pkg/calc.py");
    let changed = CALC.replace(old, new);
    let patch = patch::diff(
        &mut |path| read_entry(&subject().tree, path),
        &[(file.clone(), Some(Entry::file(changed)))].into(),
    );
    Candidate {
        kind: "toy".into(),
        places: vec![Place {
            file,
            function: function.map(str::to_owned),
            first_line: first,
            last_line: first + old.trim_end().matches('\n').count() as u32,
        }],
        patch,
        note: None,
    }
}

/// A candidate whose patch fits nothing.
pub fn misfit() -> Candidate {
    let good = candidate(Some("double"), "return x * 2", "return x * 3");
    let text = good
        .patch
        .0
        .to_text()
        .replace("-    return x * 2", "-    return y * 2");
    Candidate {
        patch: Patch(text.as_str().into()),
        ..good
    }
}

/// The digest of anything that serializes.
pub fn digest<T: serde::Serialize>(value: &T) -> Digest {
    Digest::of_value(value)
}

/// A directory from which the host's Python can import pytest: the interpreter's own, or one that
/// `pip` fills once below the target directory.
fn site_packages() -> PathBuf {
    let found = std::process::Command::new("python3")
        .args([
            "-c",
            "import pytest, os; print(os.path.dirname(os.path.dirname(pytest.__file__)))",
        ])
        .output()
        .unwrap();
    if found.status.success() {
        return String::from_utf8(found.stdout).unwrap().trim().into();
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pytest-8.4.2");
    if !target.join("pytest").is_dir() {
        let status = std::process::Command::new("python3")
            .args(["-m", "pip", "install", "-q", "--target"])
            .arg(&target)
            .arg("pytest==8.4.2")
            .status()
            .unwrap();
        assert!(status.success(), "install pytest for the tests");
    }
    target
}
