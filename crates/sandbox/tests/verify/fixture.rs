//! Tasks for the verifier tests, graded in the embedded sandbox.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use temper_core::{
    Digest, Entry, PreparedTask, SourceGroup, Split, Task, TaskId, TreePath,
    task::{
        Environment, HiddenSource, Origin, PreparedMount, Start, TaskFormat, TestLists, Verifier,
    },
    tree::Changes,
};
use temper_sandbox::{
    Limits,
    namespaces::Namespaces,
    verify::{GradeRequest, Submission},
};

/// Where the wheels are seen in a sandbox.
const SITE_PACKAGES: &str = "/opt/temper/env/site-packages";

/// The backend, launched through this crate's own launcher.
pub fn backend() -> &'static Namespaces {
    static BACKEND: std::sync::OnceLock<Namespaces> = std::sync::OnceLock::new();
    BACKEND.get_or_init(|| Namespaces::with_launcher(env!("CARGO_BIN_EXE_temper-sandbox-init")))
}

/// A task in a temporary directory: `start/`, `hidden/` and the place of the work tree.
pub struct Fixture {
    pub directory: tempfile::TempDir,
    pub task: PreparedTask,
}

/// Files by path, with their content.
pub type Files<'a> = &'a [(&'a str, &'a str)];

impl Fixture {
    /// A pytest task with one public and one hidden test file (`tests/test_public.py`,
    /// `tests/test_hidden.py`).
    pub fn pytest(
        start: Files<'_>,
        hidden: Files<'_>,
        public: TestLists,
        secret: TestLists,
    ) -> Self {
        let test_files = vec!["tests/test_public.py".into(), "tests/test_hidden.py".into()];
        let verifier = Verifier::Pytest {
            public,
            hidden: secret,
            test_files,
            hidden_source: HiddenSource::SourceDistribution,
            arguments: Vec::new(),
            timeout_seconds: 20,
        };
        let mut fixture = Fixture::new(start, verifier);
        let root = fixture.directory.path().join("hidden");
        write(&root, hidden);
        fixture.task.hidden_tests = Some(root);
        fixture.task.task.environment = Environment::Python {
            requires_python: ">=3.9".into(),
            wheels: Vec::new(),
            python_path: vec![".".into()],
        };
        fixture.task.mounts.push(PreparedMount {
            source: site_packages(),
            target: SITE_PACKAGES.into(),
        });
        fixture
            .task
            .variables
            .insert("PYTHONPATH".into(), format!("/testbed:{SITE_PACKAGES}"));
        fixture
    }

    /// A task with a start tree and any verifier.
    pub fn new(start: Files<'_>, verifier: Verifier) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("start");
        std::fs::create_dir(&root).unwrap();
        write(&root, start);
        let task = Task {
            id: TaskId::new("toy").unwrap(),
            format: TaskFormat::Native,
            statement: "Fix it.".into(),
            start: Start::Directory {
                path: root.clone(),
                digest: Digest::of(b""),
            },
            environment: Environment::Host,
            verifier,
            oracle: None,
            origin: Origin::default(),
            source_group: SourceGroup::new("toy").unwrap(),
            split: Split::Test,
            metadata: Default::default(),
            construction: None,
        };
        let variables: BTreeMap<String, String> = [
            ("PATH", "/usr/bin:/bin"),
            ("HOME", "/home/agent"),
            ("TMPDIR", "/tmp"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        Fixture {
            task: PreparedTask {
                task,
                start_tree: Some(root),
                hidden_tests: None,
                mounts: Vec::new(),
                variables,
                image: None,
                work_tree: "/testbed".into(),
                setup: Vec::new(),
                environment_digest: Digest::of(b""),
            },
            directory,
        }
    }

    /// A request to grade `submission` in the embedded sandbox.
    pub fn request<'a>(&'a self, submission: Submission<'a>) -> GradeRequest<'a> {
        GradeRequest {
            task: &self.task,
            submission,
            backend: backend(),
            limits: Limits::default(),
            demand: Default::default(),
            label: "toy".into(),
            proven: true,
        }
    }
}

fn write(root: &Path, files: Files<'_>) {
    for (path, content) in files {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}

/// Changes that write files.
pub fn changes(files: Files<'_>) -> Changes {
    files
        .iter()
        .map(|(path, content)| (TreePath::new(*path).unwrap(), Some(Entry::file(*content))))
        .collect()
}

/// A directory from which the host's Python can import pytest: the interpreter's own, or one that
/// `pip` fills once below the target directory.
pub fn site_packages() -> PathBuf {
    static ONCE: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    ONCE.get_or_init(|| {
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
    })
    .clone()
}
