use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use temper_core::{
    SourceGroup, Split, TaskId,
    task::{Archive, Origin, TaskFormat, TestLists},
};

use super::*;
use crate::{fetch::FetchOptions, prepare::PrepareError};

/// Everything a task needs, in one directory: a source distribution and a wheel.
struct Fixture {
    folder: tempfile::TempDir,
    sdist: Archive,
    wheel: Archive,
}

fn gzip_tar(members: &[(&str, &str)]) -> Vec<u8> {
    let encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut builder = ::tar::Builder::new(encoder);
    for (name, content) in members {
        let mut header = ::tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder
            .append_data(&mut header, name, content.as_bytes())
            .unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

fn wheel_bytes(files: &[(&str, &str)]) -> Vec<u8> {
    let mut record = String::new();
    for (name, content) in files {
        let hash = base64_of_sha256(content.as_bytes());
        record.push_str(&format!("{name},sha256={hash},{}\n", content.len()));
    }
    record.push_str("helper-1.0.dist-info/RECORD,,\n");
    let mut writer = ::zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = ::zip::write::SimpleFileOptions::default();
    for (name, content) in files
        .iter()
        .copied()
        .chain([("helper-1.0.dist-info/RECORD", record.as_str())])
    {
        writer.start_file(name, options).unwrap();
        writer.write_all(content.as_bytes()).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn base64_of_sha256(content: &[u8]) -> String {
    // By way of Python, so that the wheel's record does not come from the code that checks it.
    let mut child = Command::new("python3")
        .args([
            "-c",
            "import sys,hashlib,base64;print(base64.urlsafe_b64encode(hashlib.sha256(sys.stdin.buffer.read()).digest()).rstrip(b'=').decode())",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(content).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn put(folder: &Path, file_name: &str, bytes: &[u8]) -> Archive {
    fs::write(folder.join("files").join(file_name), bytes).unwrap();
    Archive {
        project: file_name.split('-').next().unwrap().into(),
        file_name: file_name.into(),
        sha256: Digest::of(bytes),
    }
}

fn fixture() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("files")).unwrap();
    let sdist = put(
        folder.path(),
        "demo-1.0.tar.gz",
        &gzip_tar(&[
            ("demo-1.0/demo.py", "def f():\n    return 1\n"),
            (
                "demo-1.0/tests/test_demo.py",
                "def test_a(): pass\ndef test_hidden(): pass\n",
            ),
            (
                "demo-1.0/.git/config",
                "[core]\n\tfsmonitor = touch /tmp/x\n",
            ),
        ]),
    );
    let wheel = put(
        folder.path(),
        "helper-1.0-py3-none-any.whl",
        &wheel_bytes(&[
            ("helper/__init__.py", "def main():\n    print('helped')\n"),
            ("helper/template.py", "def (:\n"),
            (
                "helper-1.0.dist-info/METADATA",
                "Name: helper\nVersion: 1.0\n",
            ),
            (
                "helper-1.0.dist-info/entry_points.txt",
                "[console_scripts]\nhelp-me = helper:main\npython = helper:main\n../x = helper:main\n",
            ),
            ("helper-1.0.data/scripts/other", "#!/bin/sh\n"),
        ]),
    );
    Fixture {
        folder,
        sdist,
        wheel,
    }
}

const PATCH: &str = "\
diff --git a/demo.py b/demo.py
--- a/demo.py
+++ b/demo.py
@@ -1,2 +1,2 @@
 def f():
-    return 1
+    return 2
diff --git a/tests/test_demo.py b/tests/test_demo.py
--- a/tests/test_demo.py
+++ b/tests/test_demo.py
@@ -1,2 +1 @@
 def test_a(): pass
-def test_hidden(): pass
";

impl Fixture {
    fn cache(&self) -> Cache {
        Cache::open(self.folder.path().join("cache")).unwrap()
    }

    fn tools(&self) -> Tools {
        let options = FetchOptions {
            directories: vec![self.folder.path().join("files")],
            ..FetchOptions::default()
        };
        let fetcher = Fetcher::new(self.cache(), options).unwrap();
        Tools::new(fetcher, None, std::env::var_os("PATH").unwrap())
    }

    fn task(&self) -> Task {
        Task {
            id: TaskId::new("demo-1").unwrap(),
            format: TaskFormat::Native,
            statement: "Mend it.".into(),
            start: Start::SourceDistribution {
                archive: self.sdist.clone(),
                patch: temper_core::Patch(PATCH.into()),
            },
            environment: Environment::Python {
                requires_python: ">=3.9".into(),
                wheels: vec![self.wheel.clone()],
                python_path: vec![".".into(), "src".into()],
            },
            verifier: Verifier::Pytest {
                public: TestLists::default(),
                hidden: TestLists::default(),
                test_files: vec!["tests/test_demo.py".into()],
                hidden_source: HiddenSource::SourceDistribution,
                arguments: vec![],
                timeout_seconds: 60,
            },
            oracle: None,
            origin: Origin::default(),
            source_group: SourceGroup::new("demo").unwrap(),
            split: Split::Test,
            metadata: serde_json::Map::new(),
            construction: None,
        }
    }
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn a_source_distribution_becomes_a_start_hidden_tests_and_an_environment() {
    let fixture = fixture();
    let prepared = prepare(&fixture.task(), &fixture.cache(), &fixture.tools()).unwrap();
    let task = prepared.task;
    let start = task.start_tree.unwrap();
    assert_eq!(read(start.join("demo.py")), "def f():\n    return 2\n");
    assert_eq!(
        read(start.join("tests/test_demo.py")),
        "def test_a(): pass\n"
    );
    // The archive's own `.git` is not the one that lies there.
    assert!(!read(start.join(".git/config")).contains("fsmonitor"));
    let hidden = task.hidden_tests.unwrap();
    assert!(read(hidden.join("tests/test_demo.py")).contains("test_hidden"));
    assert!(
        !hidden.join("demo.py").exists(),
        "the fix is not among the tests"
    );

    assert_eq!(task.work_tree, "/testbed");
    assert_eq!(
        task.variables["PYTHONPATH"],
        "/testbed:/testbed/src:/opt/temper/env/site-packages"
    );
    assert!(task.variables["PATH"].starts_with("/opt/temper/bin:/opt/temper/env/bin:"));
    assert!(task.setup.is_empty());
    assert_eq!(task.mounts[0].target, "/opt/temper/env");
    let environment = task.mounts[0].source.clone();
    assert!(
        environment
            .join("site-packages/helper/__init__.py")
            .is_file()
    );
    assert!(!environment.join("site-packages/helper-1.0.data").exists());
    assert_eq!(
        fs::read_dir(environment.join("site-packages/helper/__pycache__"))
            .unwrap()
            .count(),
        1
    );
    let mut programs: Vec<_> = fs::read_dir(environment.join("bin"))
        .unwrap()
        .map(|item| item.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with("python3."))
        .collect();
    programs.sort();
    assert_eq!(programs, ["help-me", "python", "python3"]);
    for mount in &task.mounts[1..] {
        assert_eq!(mount.source.to_str(), Some(mount.target.as_str()));
    }
}

#[test]
fn the_environment_sees_its_wheels_and_nothing_that_the_host_has_installed() {
    let fixture = fixture();
    let prepared = prepare(&fixture.task(), &fixture.cache(), &fixture.tools()).unwrap();
    let environment = prepared.task.mounts[0].source.clone();
    let output = Command::new(environment.join("bin/python3"))
        .args([
            "-I",
            "-c",
            "import sys, json, helper, ssl, sqlite3; print(json.dumps([sys.prefix, sys.executable, helper.__cached__, sys.path]))",
        ])
        .env_clear()
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let (prefix, executable, cached, path): (String, String, String, Vec<String>) =
        serde_json::from_slice(&output.stdout).unwrap();
    let environment = environment.to_str().unwrap();
    assert_eq!(prefix, environment);
    assert_eq!(executable, format!("{environment}/bin/python3"));
    assert!(Path::new(&cached).is_file());
    let foreign: Vec<_> = path
        .iter()
        .filter(|entry| {
            (entry.contains("site-packages") || entry.contains("dist-packages"))
                && !entry.starts_with(environment)
        })
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}

#[test]
fn a_second_preparation_is_the_same_and_needs_no_files() {
    let fixture = fixture();
    let first = prepare(&fixture.task(), &fixture.cache(), &fixture.tools()).unwrap();
    fs::remove_dir_all(fixture.folder.path().join("files")).unwrap();
    let second = prepare(&fixture.task(), &fixture.cache(), &fixture.tools()).unwrap();
    assert_eq!(
        first.task.environment_digest,
        second.task.environment_digest
    );
    assert_eq!(first.task.start_tree, second.task.start_tree);
    assert_eq!(first.task.mounts, second.task.mounts);
    assert_eq!(first.notes, second.notes);
}

#[test]
fn concurrent_preparers_agree() {
    let fixture = fixture();
    let (cache, tools, task) = (fixture.cache(), fixture.tools(), fixture.task());
    let digests: Vec<_> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    prepare(&task, &cache, &tools)
                        .unwrap()
                        .task
                        .environment_digest
                })
            })
            .collect();
        handles.into_iter().map(|h| h.join().unwrap()).collect()
    });
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn what_can_change_a_result_changes_the_digest() {
    let fixture = fixture();
    let digest = |task: &Task| {
        prepare(task, &fixture.cache(), &fixture.tools())
            .unwrap()
            .task
            .environment_digest
    };
    let base = fixture.task();
    let mut unpatched = base.clone();
    unpatched.start = Start::SourceDistribution {
        archive: fixture.sdist.clone(),
        patch: temper_core::Patch::default(),
    };
    let mut bare = base.clone();
    bare.environment = Environment::Python {
        requires_python: ">=3".into(),
        wheels: vec![],
        python_path: vec![".".into(), "src".into()],
    };
    let mut host = base.clone();
    host.environment = Environment::Host;
    let digests: std::collections::BTreeSet<_> =
        [&base, &unpatched, &bare, &host].map(digest).into();
    assert_eq!(digests.len(), 4);
    // The statement and the split do not.
    let mut renamed = base.clone();
    renamed.statement = "Other words.".into();
    assert_eq!(digest(&renamed), digest(&base));
}

#[test]
fn without_git_there_is_a_start_and_a_note() {
    let fixture = fixture();
    let tools = fixture.tools().without_git();
    let prepared = prepare(&fixture.task(), &fixture.cache(), &tools).unwrap();
    assert!(!prepared.task.start_tree.unwrap().join(".git").exists());
    assert!(prepared.notes.iter().any(|note| note.contains("no git")));
    let mut task = fixture.task();
    task.start = Start::GitCommit {
        repository: "/nowhere".into(),
        commit: "0".repeat(40),
    };
    task.verifier = harbor(fixture.folder.path());
    let error = prepare(&task, &fixture.cache(), &tools).unwrap_err();
    assert!(matches!(error, PrepareError::GitMissing { .. }), "{error}");
}

fn harbor(folder: &Path) -> Verifier {
    let tests = folder.join("verifier-tests");
    fs::create_dir_all(&tests).unwrap();
    fs::write(tests.join("test.sh"), "#!/bin/sh\n").unwrap();
    Verifier::Harbor {
        tests,
        environment: BTreeMap::new(),
        timeout_seconds: 60,
    }
}

#[test]
fn failures_say_what_and_what_to_do() {
    let fixture = fixture();
    let attempt = |change: &dyn Fn(&mut Task)| {
        let mut task = fixture.task();
        change(&mut task);
        prepare(&task, &fixture.cache(), &fixture.tools()).unwrap_err()
    };
    let error = attempt(&|task| {
        if let Start::SourceDistribution { patch, .. } = &mut task.start {
            *patch = temper_core::Patch(PATCH.replace("return 1", "return 9").as_str().into());
        }
    });
    assert!(matches!(error, PrepareError::Patch(_)), "{error}");
    let error = attempt(&|task| {
        if let Verifier::Pytest { test_files, .. } = &mut task.verifier {
            test_files.push("tests/absent.py".into());
        }
    });
    assert!(
        matches!(error, PrepareError::NoHiddenFile { .. }),
        "{error}"
    );
    let error = attempt(&|task| {
        if let Environment::Python { wheels, .. } = &mut task.environment {
            wheels[0].sha256 = Digest::of(b"other");
        }
    });
    assert!(
        matches!(error, PrepareError::Fetch(FetchError::Offline { .. })),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("helper-1.0"), "{error}");
    let error = attempt(&|task| {
        if let Environment::Python {
            requires_python, ..
        } = &mut task.environment
        {
            *requires_python = ">=4".into();
        }
    });
    assert!(
        error.hint().unwrap().contains("dnf install python3"),
        "{error}"
    );
    let error = attempt(&|task| {
        if let Environment::Python { python_path, .. } = &mut task.environment {
            python_path.push("../outside".into());
        }
    });
    assert!(matches!(error, PrepareError::Invalid(_)), "{error}");
    // A failed preparation leaves nothing in the cache that a later one would believe.
    prepare(&fixture.task(), &fixture.cache(), &fixture.tools()).unwrap();
}

#[test]
fn a_directory_is_used_only_as_it_was_read() {
    let fixture = fixture();
    let path = fixture.folder.path().join("start");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("a"), "1").unwrap();
    let mut task = fixture.task();
    task.environment = Environment::Host;
    task.verifier = harbor(fixture.folder.path());
    task.start = Start::Directory {
        digest: tree_digest(&path).unwrap(),
        path: path.clone(),
    };
    let prepared = prepare(&task, &fixture.cache(), &fixture.tools()).unwrap();
    assert_eq!(read(prepared.task.start_tree.unwrap().join("a")), "1");
    fs::write(path.join("a"), "2").unwrap();
    let error = prepare(&task, &fixture.cache(), &fixture.tools()).unwrap_err();
    assert!(matches!(error, PrepareError::Changed { .. }), "{error}");
}

#[test]
fn an_image_is_brought_to_its_start_and_stripped_of_history() {
    let fixture = fixture();
    let mut task = fixture.task();
    task.start = Start::Image {
        base_commit: None,
        checkout: Some("a'b".into()),
    };
    task.environment = Environment::Image {
        image: "org/x:latest".into(),
        work_tree: "/testbed".into(),
    };
    task.verifier = harbor(fixture.folder.path());
    let prepared = prepare(&task, &fixture.cache(), &fixture.tools())
        .unwrap()
        .task;
    assert_eq!(prepared.image.as_deref(), Some("org/x:latest"));
    assert_eq!(prepared.start_tree, None);
    assert_eq!(
        prepared.setup[0],
        r"git -C '/testbed' checkout --quiet 'a'\''b' --"
    );
    assert!(prepared.setup[1].contains("temper-history"));
    assert_eq!(prepared.setup.len(), 2);
}

#[test]
fn a_commit_is_prepared_without_the_commits_after_it() {
    let fixture = fixture();
    let repository = fixture.folder.path().join("repository");
    fs::create_dir(&repository).unwrap();
    let git = |arguments: &[&str]| {
        let tools = fixture.tools();
        let output = tools
            .git()
            .unwrap()
            .command(&repository)
            .args(["-c", "user.name=u", "-c", "user.email=u@x"])
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    git(&["init", "-q", "-b", "main"]);
    let mut commits = Vec::new();
    for content in ["one", "two", "the fix"] {
        fs::write(repository.join("a"), content).unwrap();
        git(&["add", "."]);
        git(&["commit", "-qm", content]);
        commits.push(git(&["rev-parse", "HEAD"]));
    }
    git(&["tag", "v3"]);
    let mut task = fixture.task();
    task.environment = Environment::Host;
    task.verifier = harbor(fixture.folder.path());
    task.start = Start::GitCommit {
        repository: repository.display().to_string(),
        commit: commits[1].clone(),
    };
    let prepared = prepare(&task, &fixture.cache(), &fixture.tools()).unwrap();
    let start = prepared.task.start_tree.unwrap();
    assert_eq!(read(start.join("a")), "two");
    let tools = fixture.tools();
    let run = |arguments: &[&str]| {
        let mut command = tools.git().unwrap().command(&start);
        command.args(arguments).output().unwrap()
    };
    assert!(!run(&["cat-file", "-e", &commits[2]]).status.success());
    let log = run(&["log", "--all", "--reflog", "--format=%s"]).stdout;
    assert_eq!(String::from_utf8(log).unwrap(), "start\n");
    // The audit is kept with the tree, and what it says is said again from the cache.
    let again = prepare(&task, &fixture.cache(), &fixture.tools()).unwrap();
    for notes in [&prepared.notes, &again.notes] {
        assert!(
            notes.iter().any(|note| note.contains("1 tags")),
            "{notes:?}"
        );
    }
    let audit: crate::history::Audit =
        serde_json::from_str(&read(start.parent().unwrap().join("audit.json"))).unwrap();
    assert!(
        audit
            .removed
            .iter()
            .any(|removed| removed.name == "refs/tags/v3")
    );
}
