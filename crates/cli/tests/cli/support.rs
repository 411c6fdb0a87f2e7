//! What the tests through the binary share: a small suite that needs neither Python nor network,
//! and ways to run `temper`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// The binary under test.
pub const TEMPER: &str = env!("CARGO_BIN_EXE_temper");

/// A directory with a suite of `n` tasks and a cache, removed at the end.
pub struct Workspace {
    directory: tempfile::TempDir,
}

impl Workspace {
    /// Each task wants its `answer.txt` to say `yes` and its `keep.txt` to stay.
    pub fn new(n_tasks: usize) -> Self {
        let workspace = Workspace {
            directory: tempfile::tempdir().unwrap(),
        };
        let suite = workspace.path("suite");
        fs::create_dir_all(suite.join("tasks")).unwrap();
        fs::write(
            suite.join("suite.toml"),
            "format = 1\nname = \"answers\"\ndescription = \"Tasks for tests.\"\n",
        )
        .unwrap();
        for number in 0..n_tasks {
            write_task(&suite, number);
        }
        workspace
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.directory.path().join(below)
    }

    /// Puts a task into a split.
    pub fn in_split(&self, number: usize, split: &str) {
        let path = self.path(&format!("suite/tasks/answer-{number:03}/temper-task.toml"));
        let text = fs::read_to_string(&path).unwrap();
        let (before, rest) = text.split_once("split = \"").unwrap();
        let (_, after) = rest.split_once('"').unwrap();
        fs::write(&path, format!("{before}split = \"{split}\"{after}")).unwrap();
    }

    /// Writes a scripted model and gives its name on the command line.
    pub fn script(&self, name: &str, replies: &[&str]) -> String {
        let path = self.path(&format!("{name}.json"));
        fs::write(&path, serde_json::to_vec(replies).unwrap()).unwrap();
        format!("scripted:{}", path.display())
    }

    /// As [`Workspace::script`], of calls that cost so many dollars each.
    pub fn priced_script(&self, name: &str, replies: &[&str], cost_per_call: f64) -> String {
        let path = self.path(&format!("{name}.json"));
        let script = serde_json::json!({ "replies": replies, "cost_per_call": cost_per_call });
        fs::write(&path, script.to_string()).unwrap();
        format!("scripted:{}", path.display())
    }

    /// `temper` with an environment of its own.
    pub fn temper(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(TEMPER);
        command
            .args(arguments)
            .current_dir(self.directory.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.path("home"))
            .env("TEMPER_CACHE", self.path("cache"));
        command
    }

    /// Runs `temper` to its end.
    pub fn run(&self, arguments: &[&str]) -> Ran {
        Ran::new(self.temper(arguments).output().unwrap())
    }
}

/// A workspace whose tasks are training tasks.
pub fn training(n_tasks: usize) -> Workspace {
    let workspace = Workspace::new(n_tasks);
    for number in 0..n_tasks {
        workspace.in_split(number, "train");
    }
    workspace
}

/// What a run printed and how it ended.
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn new(output: Output) -> Self {
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Requires an exit code, and shows everything when it is another.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(
            self.code,
            Some(code),
            "stdout:\n{}\nstderr:\n{}",
            self.stdout,
            self.stderr
        );
        self
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap()
    }
}

fn write_task(suite: &Path, number: usize) {
    let task = suite.join(format!("tasks/answer-{number:03}"));
    fs::create_dir_all(task.join("start")).unwrap();
    fs::create_dir_all(task.join("tests")).unwrap();
    fs::write(task.join("start/answer.txt"), "no\n").unwrap();
    fs::write(task.join("start/keep.txt"), "kept\n").unwrap();
    fs::write(task.join("statement.md"), "Make answer.txt say yes.\n").unwrap();
    fs::write(
        task.join("tests/test.sh"),
        "#!/bin/sh\ncd /testbed\nif [ \"$(cat answer.txt)\" = yes ] && [ -f keep.txt ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
    )
    .unwrap();
    fs::write(
        task.join("oracle.patch"),
        "diff --git a/answer.txt b/answer.txt\n--- a/answer.txt\n+++ b/answer.txt\n@@ -1 +1 @@\n-no\n+yes\n",
    )
    .unwrap();
    fs::write(
        task.join("temper-task.toml"),
        format!(
            r#"format = 1
id = "answer-{number:03}"
split = "test"
source_group = "answers/{group}"
statement = "statement.md"
[origin]
project = "answers"
licence = "MIT"
bug = "made-for-tests"
[start]
kind = "directory"
path = "start"
[environment]
kind = "host"
[verifier]
kind = "harbor"
tests = "tests"
timeout_seconds = 60
[oracle]
patch = "oracle.patch"
"#,
            group = number / 2
        ),
    )
    .unwrap();
}

/// A suite of tasks that differ in their words, their files and their groups: two of each split.
pub fn write_suite(workspace: &Workspace) {
    let words = ["alpha", "beta", "gamma", "delta", "omega", "sigma"];
    for (number, word) in words.iter().enumerate() {
        let task = workspace.path(&format!("suite/tasks/answer-{number:03}"));
        fs::write(
            task.join("statement.md"),
            format!("Make answer.txt say yes, {word}.\n"),
        )
        .unwrap();
        fs::write(task.join("start/keep.txt"), format!("{word}\n")).unwrap();
        let path = task.join("temper-task.toml");
        let split = ["train", "dev", "test"][number / 2];
        let text = fs::read_to_string(&path).unwrap();
        let text = text
            .replace("split = \"test\"", &format!("split = \"{split}\""))
            .replace(
                &format!("answers/{}", number / 2),
                &format!("answers/{word}"),
            );
        fs::write(&path, text).unwrap();
    }
}

/// Every file of this name below a directory.
pub fn files_named(name: &str, below: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_named(name, &path));
        } else if path.ends_with(name) {
            found.push(path);
        }
    }
    found
}

/// A reply with one command.
pub fn bash(command: &str) -> String {
    format!("THOUGHT: next.\n\n```bash\n{command}\n```")
}

/// The reply that submits.
pub fn submit() -> String {
    bash("echo MINI_SWE_AGENT_FINAL_OUTPUT && git add -A && git diff --cached")
}
