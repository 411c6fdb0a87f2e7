use std::{collections::BTreeMap, fs};

use temper_core::{
    Construction, Digest, Place, SourceGroup, Split, TaskId,
    construction::{MutationAudit, Survivor},
    task::{Archive, Origin, ResolutionRules},
};

use super::*;

const MANIFEST: &str = r#"
format = 1
id = "toolz-1.0.0-partition-all"
split = "test"
source_group = "toolz/itertoolz"
statement = "statement.md"

[origin]
project = "toolz"
version = "1.0.0"
licence = "BSD-3-Clause"
url = "https://github.com/pytoolz/toolz"
bug = "release-history"

[start]
kind = "source-distribution"
archive = { project = "toolz", file_name = "toolz-1.0.0.tar.gz", sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" }
patch = "start.patch"

[environment]
kind = "python"
requires_python = ">=3.9"
python_path = ["."]
wheels = [
    { project = "pytest", file_name = "pytest-9.0.1-py3-none-any.whl", sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
]

[verifier]
kind = "pytest"
test_files = ["toolz/tests/test_itertoolz.py"]
hidden_source = { kind = "source-distribution" }
arguments = []
timeout_seconds = 60

[verifier.public]
fail_to_pass = ["toolz/tests/test_itertoolz.py::test_partition_all"]
pass_to_pass = []

[verifier.hidden]
fail_to_pass = ["toolz/tests/test_itertoolz.py::test_partition_all[1 - 2]"]
pass_to_pass = []

[oracle]
patch = "oracle.patch"
"#;

const PATCH: &str = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n";

fn write_example(directory: &Path, manifest: &str) {
    fs::create_dir_all(directory).unwrap();
    fs::write(directory.join(TASK_FILE), manifest).unwrap();
    fs::write(directory.join("statement.md"), "Mend it.\n").unwrap();
    fs::write(directory.join("start.patch"), PATCH).unwrap();
    fs::write(directory.join("oracle.patch"), PATCH).unwrap();
}

fn example(manifest: &str) -> Result<Task, LoadError> {
    let folder = tempfile::tempdir().unwrap();
    write_example(folder.path(), manifest);
    read_task(folder.path())
}

#[test]
fn the_documented_example_is_read() {
    let task = example(MANIFEST).unwrap();
    assert_eq!(task.id.as_str(), "toolz-1.0.0-partition-all");
    assert_eq!(task.format, TaskFormat::Native);
    assert_eq!(task.split, Split::Test);
    assert_eq!(task.statement, "Mend it.\n");
    assert_eq!(task.origin.licence.as_deref(), Some("BSD-3-Clause"));
    assert_eq!(
        task.oracle,
        Some(Oracle::Patch {
            patch: Patch(PATCH.into())
        })
    );
    let Verifier::Pytest { hidden, .. } = &task.verifier else {
        panic!("{:?}", task.verifier);
    };
    assert_eq!(
        hidden.fail_to_pass[0].as_str(),
        "toolz/tests/test_itertoolz.py::test_partition_all[1 - 2]"
    );
}

/// Changes one line of the example and expects an error that names the field.
#[track_caller]
fn wrong(from: &str, to: &str, field: Option<&str>, words: &str) {
    assert!(MANIFEST.contains(from), "{from}");
    let error = example(&MANIFEST.replacen(from, to, 1)).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.field.as_deref(), field, "{text}");
    assert!(text.contains(words), "{text}");
}

#[test]
fn mistakes_are_named() {
    wrong("format = 1", "", Some("format"), "missing");
    wrong(
        "format = 1",
        "format = 2\nnew = 1",
        Some("format"),
        "reads format 1",
    );
    wrong("format = 1", "format = 1\ntypo = 1", None, "typo");
    wrong("[oracle]", "[oracle]\nhint = 1", None, "hint");
    wrong("split = \"test\"", "split = \"exam\"", None, "exam");
    wrong(
        "\"toolz-1.0.0-partition-all\"",
        "\"a\\nb\"",
        None,
        "control character",
    );
    wrong("\"statement.md\"", "\"../x\"", Some("statement"), "climbs");
    wrong(
        "\"statement.md\"",
        "\"/etc/passwd\"",
        Some("statement"),
        "absolute",
    );
    wrong("\"start.patch\"", "\"absent.patch\"", None, "absent.patch");
    wrong("ba78", "zz78", None, "64 hexadecimal digits");
    wrong(
        "\">=3.9\"",
        "\"3\"",
        Some("environment.requires_python"),
        "clauses",
    );
    wrong(
        "[\".\"]",
        "[\"../..\"]",
        Some("environment.python_path"),
        "climbs",
    );
    wrong("= 60", "= 0", Some("verifier.timeout_seconds"), "got 0");
    wrong("= 60", "= -1", None, "`-1`");
    wrong(
        "test_partition_all[1 - 2]",
        "test_partition_all",
        Some("verifier.hidden.fail_to_pass"),
        "also that of verifier.public.fail_to_pass",
    );
    wrong(
        "pass_to_pass = []",
        "pass_to_pass = [\"other.py::t\"]",
        Some("verifier.public.pass_to_pass"),
        "none of the test files",
    );
    wrong(
        "patch = \"oracle.patch\"",
        "",
        Some("oracle"),
        "exactly one",
    );
    wrong("kind = \"pytest\"", "kind = \"jest\"", None, "jest");
}

#[test]
fn a_task_that_nothing_could_solve_is_refused() {
    let manifest = MANIFEST
        .replace(
            "[\"toolz/tests/test_itertoolz.py::test_partition_all\"]",
            "[]",
        )
        .replace(
            "[\"toolz/tests/test_itertoolz.py::test_partition_all[1 - 2]\"]",
            "[]",
        );
    let error = example(&manifest).unwrap_err();
    assert!(error.to_string().contains("no test is listed"), "{error}");
}

#[test]
fn files_outside_the_task_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let directory = folder.path().join("task");
    write_example(&directory, MANIFEST);
    fs::remove_file(directory.join("statement.md")).unwrap();
    std::os::unix::fs::symlink("../secret", directory.join("statement.md")).unwrap();
    let error = read_task(&directory).unwrap_err();
    assert_eq!(error.field.as_deref(), Some("statement"));
    assert!(
        error.to_string().contains("out of the task's directory"),
        "{error}"
    );
}

#[test]
fn damaged_patches_and_empty_statements_are_found_when_reading() {
    let folder = tempfile::tempdir().unwrap();
    write_example(folder.path(), MANIFEST);
    fs::write(folder.path().join("oracle.patch"), "@@ -1 +1 @@\n-a\n+b\n").unwrap();
    let error = read_task(folder.path()).unwrap_err();
    assert!(error.file.ends_with("oracle.patch"), "{error}");
    write_example(folder.path(), MANIFEST);
    fs::write(folder.path().join("statement.md"), " \n").unwrap();
    assert!(
        read_task(folder.path())
            .unwrap_err()
            .file
            .ends_with("statement.md")
    );
    fs::write(folder.path().join("statement.md"), [0xff]).unwrap();
    assert!(read_task(folder.path()).is_err());
    fs::write(folder.path().join("statement.md"), vec![b'x'; 2 << 20]).unwrap();
    let error = read_task(folder.path()).unwrap_err();
    assert!(matches!(error.cause, Cause::TooLarge { .. }), "{error}");
}

fn archive(name: &str) -> Archive {
    Archive {
        project: "p".into(),
        file_name: name.into(),
        sha256: Digest::of(name.as_bytes()),
    }
}

fn lists_of(fail: &str, pass: &str) -> TestLists {
    TestLists {
        fail_to_pass: vec![fail.into()],
        pass_to_pass: vec![pass.into()],
    }
}

/// One task for each variant of each part.
fn variants(folder: &Path) -> Vec<Task> {
    let directory = |name: &str| {
        let path = folder.join(name);
        fs::create_dir_all(path.join("sub")).unwrap();
        fs::write(path.join("sub/test.sh"), "#!/bin/sh\n").unwrap();
        crate::cache::set_mode(&path.join("sub/test.sh"), 0o755).unwrap();
        path
    };
    let start = directory("s");
    let digest = temper_core::tree::digest(&read_tree(&start, &TreeLimits::default()).unwrap());
    let patch = || Patch(PATCH.into());
    let log = Verifier::Log {
        parser: "pytest-v2".into(),
        test_command: Some("pytest -rA 'x'".into()),
        test_patch: patch(),
        tests: lists_of("a::b[\"quoted\"\n]", "c"),
        rules: ResolutionRules::SweSmithCf2e649d,
        timeout_seconds: 1800,
    };
    let base = Task {
        id: TaskId::new("org/name").unwrap(),
        format: TaskFormat::Native,
        statement: "Do\r\n\"\"\"it\"\"\" \u{2603}".into(),
        start: Start::Image {
            base_commit: None,
            checkout: Some("b".into()),
        },
        environment: Environment::Image {
            image: "org/x:latest".into(),
            work_tree: "/testbed".into(),
        },
        verifier: log,
        oracle: None,
        origin: Origin::default(),
        source_group: SourceGroup::new("g").unwrap(),
        split: Split::Unassigned,
        metadata: serde_json::Map::new(),
        construction: None,
    };
    let metadata =
        serde_json::json!({"a": null, "b": [1.5, {"c": 18446744073709551615u64}], "z": "\u{0}"});
    vec![
        base.clone(),
        Task {
            start: Start::SourceDistribution {
                archive: archive("a.tar.gz"),
                patch: Patch::default(),
            },
            environment: Environment::Python {
                requires_python: ">=3.9".into(),
                wheels: vec![
                    archive("a-1-py3-none-any.whl"),
                    archive("b-1-py3-none-any.whl"),
                ],
                python_path: vec![".".into(), "src".into()],
            },
            verifier: Verifier::Pytest {
                public: lists_of("t.py::a", "t.py::b"),
                hidden: lists_of("t.py::c", "t.py::d"),
                test_files: vec!["t.py".into()],
                hidden_source: HiddenSource::SourceDistribution,
                arguments: vec!["-p".into(), "no:x".into()],
                timeout_seconds: 5,
            },
            oracle: Some(Oracle::Patch { patch: patch() }),
            metadata: metadata.as_object().unwrap().clone(),
            construction: Some(Construction {
                kind: "boundary".into(),
                seed: u64::MAX,
                places: vec![Place {
                    file: "a.py".parse().unwrap(),
                    function: None,
                    first_line: 1,
                    last_line: 2,
                }],
                hidden_rule: "rule/1".into(),
                statement: "template".into(),
                audit: Some(MutationAudit {
                    n_mutants: 3,
                    n_killed_public: 1,
                    n_killed_hidden: 1,
                    survivors: vec![Survivor {
                        kind: "constant".into(),
                        digest: Digest::of(b"s"),
                        patch: patch(),
                    }],
                    n_survivors: 1,
                    n_equivalent: 0,
                    n_uncovered: 1,
                    n_added_tests: 0,
                }),
            }),
            ..base.clone()
        },
        Task {
            start: Start::Directory {
                path: start,
                digest,
            },
            environment: Environment::Host,
            verifier: Verifier::Pytest {
                public: TestLists::default(),
                hidden: lists_of("t.py::c", "t.py::d"),
                test_files: vec!["t.py".into()],
                hidden_source: HiddenSource::Directory {
                    path: directory("h"),
                },
                arguments: vec![],
                timeout_seconds: 5,
            },
            oracle: Some(Oracle::ReversePatch { patch: patch() }),
            ..base.clone()
        },
        Task {
            start: Start::GitCommit {
                repository: "https://example.org/x.git".into(),
                commit: "0".repeat(40),
            },
            environment: Environment::Dockerfile {
                context: directory("c"),
                work_tree: Some("/app".into()),
            },
            verifier: Verifier::Harbor {
                tests: directory("t"),
                environment: [("A".to_owned(), "${B:-c}".to_owned())].into(),
                timeout_seconds: 5,
            },
            oracle: Some(Oracle::Script {
                directory: directory("o"),
                environment: BTreeMap::new(),
            }),
            split: Split::Train,
            ..base
        },
    ]
}

/// Replaces each directory by the digest of its content, since a copy lies elsewhere.
fn without_paths(task: &Task) -> serde_json::Value {
    fn replace(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::String(text)
                if text.starts_with('/') && Path::new(text).is_dir() =>
            {
                let tree = read_tree(Path::new(text), &TreeLimits::default()).unwrap();
                *text = temper_core::tree::digest(&tree).to_string();
            }
            serde_json::Value::Array(items) => items.iter_mut().for_each(replace),
            serde_json::Value::Object(map) => map.values_mut().for_each(replace),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(task).unwrap();
    replace(&mut value);
    value
}

#[test]
fn every_variant_survives_writing_and_reading() {
    let folder = tempfile::tempdir().unwrap();
    for (index, task) in variants(folder.path()).iter().enumerate() {
        let directory = folder.path().join(format!("task-{index}"));
        write_task(task, &directory).unwrap();
        let read = read_task(&directory).unwrap();
        assert_eq!(without_paths(&read), without_paths(task));
        let error = write_task(task, &directory).unwrap_err();
        assert_eq!(error.operation, crate::Operation::Write);
    }
}

#[test]
fn a_suite_lists_its_tasks_and_finds_duplicates() {
    let folder = tempfile::tempdir().unwrap();
    let suite = folder.path();
    fs::write(
        suite.join(SUITE_FILE),
        "format = 1\nname = \"s\"\ndescription = \"d\"\n",
    )
    .unwrap();
    write_example(
        &suite.join("tasks/b"),
        &MANIFEST.replace("partition-all\"", "b\""),
    );
    write_example(
        &suite.join("tasks/a"),
        &MANIFEST.replace("partition-all\"", "a\""),
    );
    fs::write(suite.join("tasks/README.md"), "").unwrap();
    let tasks = crate::load(suite, None).unwrap().tasks;
    let ids: Vec<_> = tasks.iter().map(|task| task.id.as_str()).collect();
    assert_eq!(ids, ["toolz-1.0.0-a", "toolz-1.0.0-b"]);
    assert_eq!(
        crate::load(&suite.join("tasks/a"), None)
            .unwrap()
            .tasks
            .len(),
        1
    );

    write_example(
        &suite.join("tasks/c"),
        &MANIFEST.replace("partition-all\"", "a\""),
    );
    let error = crate::load(suite, None).unwrap_err();
    assert!(matches!(error.cause, Cause::Duplicate { .. }), "{error}");
    fs::remove_file(suite.join("tasks/c").join(TASK_FILE)).unwrap();
    let error = crate::load(suite, None).unwrap_err();
    assert!(matches!(error.cause, Cause::Missing), "{error}");
    fs::write(suite.join(SUITE_FILE), "format = 1\nname = \"s\"\n").unwrap();
    let error = crate::load(suite, None).unwrap_err();
    assert!(error.to_string().contains("description"), "{error}");
    let error = crate::load(&suite.join("tasks"), None).unwrap_err();
    assert!(error.hint().unwrap().contains("suite.toml"), "{error}");
}

#[test]
fn arbitrary_bytes_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    write_example(folder.path(), MANIFEST);
    let mut state = 7u64;
    for _ in 0..500 {
        let mut bytes = MANIFEST.as_bytes().to_vec();
        for _ in 0..3 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] = (state >> 20) as u8;
        }
        fs::write(folder.path().join(TASK_FILE), bytes).unwrap();
        let _ = read_task(folder.path());
    }
    let deep = format!("format = 1\nx = {}", "[".repeat(100_000));
    fs::write(folder.path().join(TASK_FILE), deep).unwrap();
    assert!(read_task(folder.path()).is_err());
}
