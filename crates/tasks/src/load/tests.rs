//! Importing archives, good and hostile. The members' rules have their own tests in `archive`;
//! here it is about what an import leaves behind.

use std::{fs, io::Write};

use ::tar::EntryType;

use super::*;

const TASK: &str = r#"
format = 1
id = "example"
split = "dev"
source_group = "example"
statement = "statement.md"
[origin]
project = "example"
[start]
kind = "directory"
path = "start"
[environment]
kind = "host"
[verifier]
kind = "pytest"
test_files = ["t.py"]
hidden_source = { kind = "directory", path = "hidden" }
timeout_seconds = 5
public = { fail_to_pass = [], pass_to_pass = [] }
hidden = { fail_to_pass = ["t.py::a"], pass_to_pass = [] }
"#;

/// A member: name, kind, link target, content.
type Member<'a> = (&'a str, EntryType, &'a str, &'a str);

fn tar_gz(extra: &[Member<'_>]) -> Vec<u8> {
    let good: [Member<'_>; 4] = [
        ("example/temper-task.toml", EntryType::Regular, "", TASK),
        ("example/statement.md", EntryType::Regular, "", "Do it.\n"),
        ("example/start/a.py", EntryType::Regular, "", "a = 1\n"),
        (
            "example/hidden/t.py",
            EntryType::Regular,
            "",
            "def a(): pass\n",
        ),
    ];
    let mut builder = ::tar::Builder::new(Vec::new());
    for (name, kind, link, content) in good.iter().chain(extra) {
        let mut header = ::tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_entry_type(*kind);
        let gnu = header.as_gnu_mut().unwrap();
        gnu.name[..name.len()].copy_from_slice(name.as_bytes());
        gnu.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&builder.into_inner().unwrap()).unwrap();
    encoder.finish().unwrap()
}

/// Imports into an empty folder with a marker beside it; returns the result and what the folder
/// then holds.
fn import_archive(bytes: &[u8]) -> (Result<Imported, LoadError>, Vec<Task>) {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("tasks.tar.gz");
    fs::write(&archive, bytes).unwrap();
    let area = folder.path().join("area");
    fs::create_dir(&area).unwrap();
    let marker = area.join("marker");
    fs::write(&marker, "untouched").unwrap();
    let into = area.join("suite");
    let result = import(&archive, &into, None);
    assert_eq!(fs::read_to_string(&marker).unwrap(), "untouched");
    let mut names: Vec<_> = fs::read_dir(&area)
        .unwrap()
        .map(|item| item.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    if result.is_err() {
        assert_eq!(names, ["marker"], "nothing half-done remains");
        return (result, Vec::new());
    }
    assert_eq!(names, ["marker", "suite"]);
    let tasks = load(&into, None).unwrap().tasks;
    for task in &tasks {
        native::write_task(task, &folder.path().join(task.id.directory_name())).unwrap();
    }
    (result, tasks)
}

#[test]
fn hostile_archives_are_refused_by_member_and_leave_nothing() {
    let cases: [(&[Member<'_>], &str); 5] = [
        (&[("../marker", EntryType::Regular, "", "x")], "../marker"),
        (&[("/tmp/x", EntryType::Regular, "", "x")], "/tmp/x"),
        (
            &[
                ("example/up", EntryType::Symlink, "..", ""),
                ("example/up/marker", EntryType::Regular, "", "x"),
            ],
            "example/up/marker",
        ),
        (
            &[("example/hard", EntryType::Link, "../marker", "")],
            "example/hard",
        ),
        (&[("example/null", EntryType::Char, "", "")], "example/null"),
    ];
    for (members, name) in cases {
        let (result, _) = import_archive(&tar_gz(members));
        let error = result.unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn an_archive_with_a_link_inside_its_tree_is_imported() {
    let (result, tasks) = import_archive(&tar_gz(&[(
        "example/start/link.py",
        EntryType::Symlink,
        "a.py",
        "",
    )]));
    assert_eq!(result.unwrap().n_tasks, 1);
    assert_eq!(tasks[0].id.as_str(), "example");
    let (result, _) = import_archive(b"no archive");
    assert!(matches!(result.unwrap_err().cause, Cause::Unrecognized));
}

#[test]
fn an_existing_destination_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("tasks.tar.gz");
    fs::write(&archive, tar_gz(&[])).unwrap();
    let into = folder.path().join("suite");
    std::os::unix::fs::symlink("nowhere", &into).unwrap();
    let error = import(&archive, &into, None).unwrap_err();
    assert_eq!(error.operation, crate::Operation::Write);
    assert!(fs::read_link(&into).is_ok());
}
