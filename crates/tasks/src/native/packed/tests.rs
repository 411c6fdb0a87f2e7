use temper_core::{
    Bytes, Construction, Patch, Place, SourceGroup, Split, TaskId, TestId,
    task::{Origin, TestLists},
};

use super::*;

const PATCH: &str = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n";

/// Written by the first version of the format. It must be read for as long as format 1 is.
const OLD_SUITE: &str = include_str!("old_suite.toml");
const OLD_TASKS: &str = include_str!("old_tasks.jsonl");

fn example(id: &str) -> Task {
    let archive = |project: &str, file_name: &str| Archive {
        project: project.into(),
        file_name: file_name.into(),
        sha256: Digest::of(file_name.as_bytes()),
    };
    let lists = |test: &str| TestLists {
        fail_to_pass: vec![TestId::from(test)],
        pass_to_pass: vec![],
    };
    Task {
        id: TaskId::new(id).unwrap(),
        format: TaskFormat::Native,
        statement: "`x` is wrong.\n".into(),
        start: Start::SourceDistribution {
            archive: archive("thing", "thing-1.0.tar.gz"),
            patch: Patch(PATCH.into()),
        },
        environment: Environment::Python {
            requires_python: ">=3.9".into(),
            wheels: vec![archive("pytest", "pytest-9.0.1-py3-none-any.whl")],
            python_path: vec![".".into(), "src".into()],
        },
        verifier: Verifier::Pytest {
            public: lists("tests/test_x.py::test_a"),
            hidden: lists("tests/test_x.py::test_b[é-1]"),
            test_files: vec!["tests/test_x.py".into()],
            hidden_source: HiddenSource::SourceDistribution,
            arguments: vec!["-p".into(), "no:x".into()],
            timeout_seconds: 60,
        },
        oracle: Some(Oracle::Patch {
            patch: Patch(Bytes(
                b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-b\n+a\xff\n".to_vec(),
            )),
        }),
        origin: Origin {
            project: "thing".into(),
            version: Some("1.0".into()),
            licence: Some("MIT".into()),
            url: None,
            bug: Some("mutation:boundary".into()),
        },
        source_group: SourceGroup::new("thing/x").unwrap(),
        split: Split::Unassigned,
        metadata: serde_json::Map::new(),
        construction: Some(Construction {
            kind: "boundary".into(),
            seed: 7,
            places: vec![Place {
                file: "x".parse().unwrap(),
                function: None,
                first_line: 1,
                last_line: 1,
            }],
            hidden_rule: "half/1".into(),
            statement: "template".into(),
            audit: None,
        }),
    }
}

fn suite() -> Suite {
    Suite {
        name: "packed".into(),
        description: "Two tasks.".into(),
        licences: None,
    }
}

/// A packed suite whose only line is changed by `change`, with a manifest that fits it.
fn changed(change: impl Fn(&str) -> String) -> Result<(Suite, Vec<Task>), LoadError> {
    let folder = tempfile::tempdir().unwrap();
    write(&suite(), &[example("a")], folder.path()).unwrap();
    let file = folder.path().join(TASKS_FILE);
    let text = fs::read_to_string(&file).unwrap();
    let other = change(&text);
    assert_ne!(text, other, "the change must find what it replaces");
    fs::write(&file, &other).unwrap();
    let manifest = folder.path().join(SUITE_FILE);
    let old = fs::read_to_string(&manifest).unwrap();
    let digest = |text: &str| Digest::of(text.as_bytes()).as_str().to_owned();
    fs::write(&manifest, old.replace(&digest(&text), &digest(&other))).unwrap();
    read(folder.path())
}

#[test]
fn tasks_come_back_and_equal_suites_are_equal_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    let (a, b) = (example("a"), example("b"));
    write(&suite(), &[b.clone(), a.clone()], &one).unwrap();
    write(&suite(), &[a.clone(), b.clone()], &two).unwrap();
    for name in [SUITE_FILE, TASKS_FILE] {
        assert_eq!(
            fs::read(one.join(name)).unwrap(),
            fs::read(two.join(name)).unwrap()
        );
    }
    let (read_suite, tasks) = read(&one).unwrap();
    assert_eq!(read_suite, suite());
    assert_eq!(tasks, [a.clone(), b]);
    assert_eq!(crate::load(&one, None).unwrap().tasks, tasks);
    // Written again, it holds what it is given and nothing else.
    write(&suite(), &[a], &one).unwrap();
    assert_eq!(read(&one).unwrap().1.len(), 1);
}

#[test]
fn a_packed_task_and_its_directory_are_the_same_task() {
    let folder = tempfile::tempdir().unwrap();
    let task = example("a");
    write(&suite(), std::slice::from_ref(&task), folder.path()).unwrap();
    let directory = folder.path().join("unpacked");
    crate::native::write_task(&task, &directory).unwrap();
    let unpacked = crate::native::read_task(&directory).unwrap();
    assert_eq!(
        read(folder.path()).unwrap().1[0].digest(),
        unpacked.digest()
    );
}

#[test]
fn the_first_version_of_the_format_is_still_read() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(SUITE_FILE), OLD_SUITE).unwrap();
    fs::write(folder.path().join(TASKS_FILE), OLD_TASKS).unwrap();
    let (read_suite, tasks) = read(folder.path()).unwrap();
    assert_eq!(read_suite, suite());
    assert_eq!(tasks, [example("a"), example("b")]);
}

#[test]
fn a_damaged_or_foreign_file_is_refused_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write(&suite(), &[example("a"), example("b")], path).unwrap();
    let text = fs::read_to_string(path.join(TASKS_FILE)).unwrap();
    let first_line = &text[..=text.find('\n').unwrap()];
    for damaged in [
        first_line,
        &text[..text.len() - 9],
        "",
        &format!("{text}{text}"),
    ] {
        fs::write(path.join(TASKS_FILE), damaged).unwrap();
        assert!(read(path).is_err());
    }
    fs::write(path.join(TASKS_FILE), &text).unwrap();
    assert!(read(path).is_ok());
    fs::create_dir(path.join("tasks")).unwrap();
    assert!(read(path).unwrap_err().to_string().contains("not both"));
    fs::remove_dir(path.join("tasks")).unwrap();
    native_manifest(path);
    assert!(read(path).unwrap_err().to_string().contains("packed"));
}

fn native_manifest(path: &Path) {
    fs::remove_file(path.join(SUITE_FILE)).unwrap();
    crate::native::write_suite(&suite(), None, path).unwrap();
}

#[test]
fn nothing_in_a_line_names_a_place_on_this_machine() {
    let start = r#""start":{"kind":"source-distribution""#;
    let cases: [(&str, &str, &str); 11] = [
        (
            r#""python_path":[".","src"]"#,
            r#""python_path":["../../etc"]"#,
            "climbs",
        ),
        (
            r#""python_path":[".","src"]"#,
            r#""python_path":["/etc"]"#,
            "absolute",
        ),
        (
            r#""test_files":["tests/test_x.py"]"#,
            r#""test_files":["/tests/test_x.py"]"#,
            "absolute",
        ),
        ("thing-1.0.tar.gz", "../thing-1.0.tar.gz", "plain file name"),
        (
            "pytest-9.0.1-py3-none-any.whl",
            "/etc/passwd",
            "plain file name",
        ),
        (
            r#""hidden_source":{"kind":"source-distribution"}"#,
            r#""hidden_source":{"kind":"directory","path":"/etc"}"#,
            "cannot be part",
        ),
        (
            r#""format":"native""#,
            r#""format":"harbor""#,
            "cannot be part",
        ),
        (
            r#""timeout_seconds":60"#,
            r#""timeout_seconds":0"#,
            "seconds",
        ),
        (
            r#""timeout_seconds":60"#,
            r#""timeout_seconds":999999999"#,
            "seconds",
        ),
        (r#""id":"a""#, r#""id":"a","more":1"#, "unknown field"),
        ("+++ b/x", "+++ b/../x", "climbs"),
    ];
    for (from, to, expected) in cases {
        let error = changed(|text| text.replace(from, to))
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{to}: {error}");
    }
    let directory = changed(|text| {
        let from = text.find(start).unwrap();
        let to = from + text[from..].find("\"environment\"").unwrap();
        let digest = Digest::of(b"").as_str().to_owned();
        format!(
            r#"{}"start":{{"kind":"directory","path":"/etc","digest":"{digest}"}},{}"#,
            &text[..from],
            &text[to..]
        )
    });
    assert!(
        directory
            .unwrap_err()
            .to_string()
            .contains("cannot be part")
    );
    assert!(changed(|_| "{\n".to_owned()).is_err());
    assert!(changed(|_| "\u{0}".to_owned()).is_err());
}

#[test]
fn what_could_not_be_read_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut task = example("a");
    task.start = Start::Directory {
        path: "/etc".into(),
        digest: Digest::of(b""),
    };
    let error = write(&suite(), &[task], folder.path()).unwrap_err();
    assert!(error.to_string().contains("cannot be part"), "{error}");
    let error = write(&suite(), &[example("a"), example("a")], folder.path()).unwrap_err();
    assert!(matches!(error.cause, Cause::Duplicate { .. }));
    assert!(!folder.path().join(SUITE_FILE).exists());
}

#[test]
fn a_line_without_end_is_refused_before_it_fills_memory() {
    let folder = tempfile::tempdir().unwrap();
    write(&suite(), &[example("a")], folder.path()).unwrap();
    let file = fs::File::create(folder.path().join(TASKS_FILE)).unwrap();
    // Sparse, so that it costs no disk.
    file.set_len(MAX_FILE_BYTES).unwrap();
    let error = read(folder.path()).unwrap_err();
    assert!(matches!(error.cause, Cause::TooLarge { .. }), "{error}");
    file.set_len(MAX_FILE_BYTES + 1).unwrap();
    assert!(matches!(
        read(folder.path()).unwrap_err().cause,
        Cause::TooLarge { .. }
    ));
}
