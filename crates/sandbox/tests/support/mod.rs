//! A backend for tests that need real processes but no protection: commands run on this machine,
//! in a temporary directory that is the work tree, with paths as they are.

use std::{
    collections::BTreeMap,
    io::Read,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use temper_core::{
    Digest, Entry, PreparedTask, SourceGroup, Split, Task, TaskId, TreePath,
    task::{
        Environment, HiddenSource, InjectedFile, Origin, Start, TaskFormat, TestLists, Verifier,
    },
    tree::Changes,
};
use temper_sandbox::{
    Backend, Command, Demand, Execution, ExitStatus, Protections, Sandbox, SandboxError,
    SandboxSpec, Shell, Usage, backend::Omitted,
};

/// Runs commands as processes of the test. `work_tree` is made anew for each sandbox.
pub struct Local;

impl Backend for Local {
    fn name(&self) -> &str {
        "local"
    }

    fn protections(&self) -> Result<Protections, SandboxError> {
        Ok(Protections::new())
    }

    fn start(&self, spec: &SandboxSpec) -> Result<Box<dyn Sandbox>, SandboxError> {
        let work_tree = PathBuf::from(&spec.work_tree.path);
        assert!(work_tree.starts_with(std::env::temp_dir()));
        let _ = std::fs::remove_dir_all(&work_tree);
        std::fs::create_dir_all(&work_tree).unwrap();
        if let Some(start) = &spec.work_tree.start {
            copy(start, &work_tree);
        }
        let mut sandbox = LocalSandbox {
            spec: spec.clone(),
            work_tree,
            groups: Vec::new(),
        };
        sandbox.write_files(&spec.files)?;
        Ok(Box::new(sandbox))
    }
}

struct LocalSandbox {
    spec: SandboxSpec,
    work_tree: PathBuf,
    groups: Vec<i32>,
}

impl Drop for LocalSandbox {
    fn drop(&mut self) {
        for group in &self.groups {
            let group = nix::unistd::Pid::from_raw(*group);
            let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        }
        let _ = std::fs::remove_dir_all(&self.work_tree);
    }
}

fn copy(from: &Path, to: &Path) {
    let status = std::process::Command::new("cp")
        .arg("-a")
        .arg(from.join("."))
        .arg(to)
        .status()
        .unwrap();
    assert!(status.success());
}

impl Sandbox for LocalSandbox {
    fn exec(&mut self, command: &Command) -> Result<Execution, SandboxError> {
        let started = Instant::now();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut process = std::process::Command::new(match command.shell {
            Shell::Sh => "/bin/sh",
            Shell::Bash | Shell::BashLogin => "bash",
        });
        process
            .arg("-c")
            .arg(&command.text)
            .current_dir(
                command
                    .directory
                    .as_deref()
                    .map_or(self.work_tree.as_path(), Path::new),
            )
            .env_clear()
            .envs(&self.spec.environment)
            .envs(&command.environment)
            .stdin(Stdio::null())
            .stdout(writer.try_clone().unwrap())
            .stderr(writer)
            .process_group(0);
        let mut child = process.spawn().unwrap();
        drop(process);
        self.groups.push(child.id() as i32);
        let limit = command
            .output_bytes
            .unwrap_or(self.spec.limits.output_bytes) as usize;
        let collector = std::thread::spawn(move || {
            let mut output = Vec::new();
            let mut dropped = 0;
            let mut buffer = vec![0; 1 << 16];
            while let Ok(n) = reader.read(&mut buffer) {
                if n == 0 {
                    break;
                }
                let room = limit.saturating_sub(output.len()).min(n);
                output.extend_from_slice(&buffer[..room]);
                dropped += (n - room) as u64;
            }
            (output, dropped)
        });
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break match status.code() {
                    Some(code) => ExitStatus::Exited(code),
                    None => ExitStatus::Signaled(status.signal().unwrap_or(0)),
                };
            }
            if started.elapsed() > command.timeout {
                break ExitStatus::TimedOut;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let group = nix::unistd::Pid::from_raw(child.id() as i32);
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        let _ = child.wait();
        let (output, dropped) = collector.join().unwrap();
        Ok(Execution {
            status,
            omitted: (dropped > 0).then_some(Omitted {
                at: output.len(),
                bytes: dropped,
            }),
            output,
            out_of_memory: false,
            wall: started.elapsed(),
        })
    }

    fn write_files(&mut self, files: &[InjectedFile]) -> Result<(), SandboxError> {
        for file in files {
            let path = Path::new(&file.path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, &file.content.0).unwrap();
        }
        Ok(())
    }

    fn read_file(&mut self, path: &str, max_bytes: u64) -> Result<Option<Vec<u8>>, SandboxError> {
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_file() => {
                assert!(metadata.len() <= max_bytes);
                Ok(Some(std::fs::read(path).unwrap()))
            }
            _ => Ok(None),
        }
    }

    fn changes(&mut self) -> Result<Changes, SandboxError> {
        Err(SandboxError::Unsupported {
            backend: "local".into(),
            reason: "it does not compare trees".into(),
        })
    }

    fn stop(self: Box<Self>) -> Result<Usage, SandboxError> {
        Ok(Usage::default())
    }
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
        let work_tree = fixture.task.work_tree.clone();
        fixture.task.variables.insert(
            "PYTHONPATH".into(),
            format!("{}:{work_tree}", site_packages().display()),
        );
        fixture
    }

    /// A task with a start tree and any verifier.
    pub fn new(start: Files<'_>, verifier: Verifier) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("start");
        std::fs::create_dir(&root).unwrap();
        write(&root, start);
        let work_tree = directory.path().join("work").display().to_string();
        let home = directory.path().join("home");
        std::fs::create_dir(&home).unwrap();
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
        };
        let variables = BTreeMap::from([
            ("PATH".into(), std::env::var("PATH").unwrap()),
            ("HOME".into(), home.display().to_string()),
        ]);
        Fixture {
            task: PreparedTask {
                task,
                start_tree: Some(root),
                hidden_tests: None,
                mounts: Vec::new(),
                variables,
                image: None,
                work_tree,
                setup: Vec::new(),
                environment_digest: Digest::of(b""),
            },
            directory,
        }
    }

    /// A request to grade `submission` with the local backend.
    pub fn request<'a>(
        &'a self,
        submission: temper_sandbox::verify::Submission<'a>,
    ) -> temper_sandbox::verify::GradeRequest<'a> {
        temper_sandbox::verify::GradeRequest {
            task: &self.task,
            submission,
            backend: &Local,
            limits: Default::default(),
            demand: Demand(Default::default()),
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
