//! Round trips: native -> format -> native and format -> native -> format, of our own suite, of
//! records in the shapes in which sets are published, and of hostile ones.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};
use temper_core::{
    Bytes, Patch,
    task::{Oracle, TaskFormat, Verifier},
};

use super::*;

fn starter() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../suites/starter")
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn native_tasks() -> Vec<Task> {
    let mut tasks = crate::load(&starter(), None).unwrap().tasks;
    assert!(tasks.len() > 50);
    // What the starter's tasks do not have.
    tasks[0]
        .metadata
        .insert("repo".into(), json!({"nested": [null, 1.5]}));
    tasks[0]
        .metadata
        .insert("problem_statement".into(), "not this one".into());
    tasks[1].construction = Some(temper_core::Construction {
        kind: "func_pm_op_change".into(),
        seed: u64::MAX,
        places: Vec::new(),
        hidden_rule: "rule/1".into(),
        statement: "template".into(),
        audit: None,
    });
    tasks[2].origin = temper_core::task::Origin {
        project: "two words/\u{e9}".into(),
        ..Default::default()
    };
    tasks
}

/// Tasks as they are after import: read from a native suite.
fn imported(path: &Path) -> Vec<Task> {
    let folder = tempfile::tempdir().unwrap();
    let suite = folder.path().join("suite");
    crate::import(path, &suite, None).unwrap();
    crate::load(&suite, None).unwrap().tasks
}

fn by_id(tasks: Vec<Task>) -> BTreeMap<String, Task> {
    tasks
        .into_iter()
        .map(|task| (task.id.to_string(), task))
        .collect()
}

#[test]
fn native_tasks_come_back_from_rows() {
    let tasks = native_tasks();
    let folder = tempfile::tempdir().unwrap();
    for to in [ExportFormat::SweSmith, ExportFormat::SweBench] {
        for extension in ["jsonl", "parquet"] {
            let path = folder.path().join(format!("{to:?}.{extension}"));
            let exported = export(&tasks, to, &path, &ExportOptions::default()).unwrap();
            assert_eq!(exported.n_tasks, tasks.len());
            assert_eq!(exported.notes.len(), 2, "{:?}", exported.notes);
            assert!(exported.notes[0].contains("temper"));
            let read = crate::load(&path, None).unwrap();
            assert_eq!(read.warnings, [""; 0]);
            let back = by_id(imported(&path));
            for task in &tasks {
                assert_eq!(&back[task.id.as_str()], task);
                assert_eq!(back[task.id.as_str()].digest(), task.digest());
            }
            // Once more, from what was read: the same file.
            let again = folder.path().join(format!("{to:?}-again.{extension}"));
            export(&read.tasks, to, &again, &ExportOptions::default()).unwrap();
            assert_eq!(fs::read(&again).unwrap(), fs::read(&path).unwrap());
        }
    }
}

fn lines(path: &Path) -> Vec<Map<String, Value>> {
    fs::read_to_string(path)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_smith_row_introduces_the_bug_and_a_bench_row_takes_it_out() {
    let tasks = native_tasks();
    let folder = tempfile::tempdir().unwrap();
    let smith = folder.path().join("smith.jsonl");
    let bench = folder.path().join("bench.jsonl");
    export(
        &tasks,
        ExportFormat::SweSmith,
        &smith,
        &ExportOptions::default(),
    )
    .unwrap();
    export(
        &tasks,
        ExportFormat::SweBench,
        &bench,
        &ExportOptions::default(),
    )
    .unwrap();
    let (smith, bench) = (lines(&smith), lines(&bench));
    for ((task, smith), bench) in tasks.iter().zip(&smith).zip(&bench) {
        let Some(Oracle::Patch { patch: fix }) = &task.oracle else {
            panic!("{}", task.id);
        };
        assert_eq!(bench["patch"].as_str().unwrap().as_bytes(), &*fix.0);
        let bug = Patch(Bytes::from(smith["patch"].as_str().unwrap()));
        assert_eq!(
            temper_core::patch::paths(&bug).unwrap().len(),
            temper_core::patch::paths(fix).unwrap().len()
        );
        let id = smith["instance_id"].as_str().unwrap();
        assert!(crate::swesmith::is_own_id(id), "{id}");
        let all = carried::all_tests(&task.verifier).unwrap();
        assert_eq!(smith["FAIL_TO_PASS"], json!(all.fail_to_pass));
        assert_eq!(
            serde_json::from_str::<Value>(bench["FAIL_TO_PASS"].as_str().unwrap()).unwrap(),
            json!(all.fail_to_pass)
        );
        // The hidden tests come back by the test patch, and nothing else does.
        let Verifier::Pytest {
            test_files, hidden, ..
        } = &task.verifier
        else {
            panic!("{}", task.id);
        };
        let test_patch = Patch(Bytes::from(bench["test_patch"].as_str().unwrap()));
        if !hidden.fail_to_pass.is_empty() {
            assert!(!test_patch.is_empty(), "{}", task.id);
        }
        if !test_patch.is_empty() {
            for path in temper_core::patch::paths(&test_patch).unwrap() {
                assert!(test_files.contains(&path.to_string()), "{path}");
            }
        }
    }
}

/// Rows as others write them, odd ones included.
fn odd_rows() -> (Vec<Value>, Vec<Value>) {
    let patch = "diff --git a/f.py b/f.py\n--- a/f.py\n+++ b/f.py\n@@ -1 +1 @@\n-a\n+b\n";
    let smith = |id: &str, more: Value| {
        let mut row = json!({
            "instance_id": id, "repo": "swesmith/pallets__jinja.ada0a9a6", "patch": patch,
            "FAIL_TO_PASS": ["tests/test_a.py::test_a"], "PASS_TO_PASS": [],
            "image_name": "x/y", "problem_statement": "It fails."
        });
        row.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        row
    };
    let bench = |id: &str, more: Value| {
        let mut row = json!({
            "repo": "pallets/flask", "instance_id": id, "base_commit": "abc", "patch": patch,
            "test_patch": patch, "problem_statement": "It fails.", "hints_text": "", "created_at": "2020",
            "version": "1.0", "FAIL_TO_PASS": "[\"tests/test_a.py::test_a\", \"b\"]", "PASS_TO_PASS": "[]",
            "environment_setup_commit": "def"
        });
        row.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        row
    };
    (
        vec![
            smith("pallets__jinja.ada0a9a6.func_pm_x__1", json!({})),
            smith(
                "pallets__jinja.ada0a9a6.func_pm_x__2",
                json!({"problem_statement": null, "own": {"a": [1]}}),
            ),
            smith(
                "pallets__jinja.ada0a9a6.func_pm_x__3",
                json!({"FAIL_TO_PASS": "[\"tests/test_a.py::t\"]", "nothing": null}),
            ),
            smith(
                "pallets__jinja.ada0a9a6.pr_3",
                json!({"image_name": "odd", "temper_record": 3}),
            ),
        ],
        vec![
            bench("pallets__flask-1", json!({})),
            bench(
                "pallets__flask-2",
                json!({"FAIL_TO_PASS": ["tests/test_a.py::test_a"], "difficulty": "15 min", "score": 0.5}),
            ),
            bench(
                "pallets__flask-3",
                json!({"FAIL_TO_PASS": "[\"a\",\"é\"]", "docker_image": "i", "image_name": null}),
            ),
            bench(
                "pallets__flask-4",
                json!({"log_parser": "pytest", "test_cmd": "pytest -x", "version": null, "patch": ""}),
            ),
            bench(
                "pallets__flask-5",
                json!({"repo": "o/unknown", "log_parser": "pytest-v2", "test_patch": null}),
            ),
        ],
    )
}

#[test]
fn rows_come_back_from_native_suites_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let (smith, bench) = odd_rows();
    for (to, rows, name) in [
        (ExportFormat::SweSmith, smith, "smith"),
        (ExportFormat::SweBench, bench, "bench"),
    ] {
        let source = folder.path().join(format!("{name}.jsonl"));
        let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
        fs::write(&source, text).unwrap();
        // A native suite leaves out what has no statement; that row is kept as it was read.
        let mut stored = by_id(imported(&source));
        let tasks: Vec<Task> = crate::load(&source, None)
            .unwrap()
            .tasks
            .into_iter()
            .map(|task| stored.remove(task.id.as_str()).unwrap_or(task))
            .collect();
        assert!(stored.is_empty());
        let n_native = tasks
            .iter()
            .filter(|task| task.format == TaskFormat::Native);
        assert!(n_native.count() >= rows.len() - 1);
        for extension in ["jsonl", "parquet"] {
            let path = folder.path().join(format!("{name}-out.{extension}"));
            let exported = export(&tasks, to, &path, &ExportOptions::default()).unwrap();
            // Nothing needs to be carried: the rows say it all.
            assert_eq!(exported.notes, [""; 0]);
            let fields = crate::records::read(&path, "instance_id").unwrap();
            for (record, row) in fields.iter().zip(&rows) {
                assert_eq!(&Value::Object(record.fields().clone()), row);
            }
            assert_eq!(fields.len(), rows.len());
        }
    }
}

#[test]
fn published_shapes_come_back() {
    let folder = tempfile::tempdir().unwrap();
    for (name, to) in [
        ("swesmith/instances.jsonl", ExportFormat::SweSmith),
        ("swesmith/instances.parquet", ExportFormat::SweSmith),
        ("swebench/instances.jsonl", ExportFormat::SweBench),
        ("swebench/instances.parquet", ExportFormat::SweBench),
    ] {
        let source = fixture(name);
        if !source.exists() {
            panic!("no fixture {name}");
        }
        let loaded = crate::load(&source, None).unwrap();
        let path = folder.path().join(name.replace('/', "-"));
        export(&loaded.tasks, to, &path, &ExportOptions::default()).unwrap();
        let written = crate::records::read(&path, "instance_id").unwrap();
        let original: BTreeMap<String, Map<String, Value>> =
            crate::records::read(&source, "instance_id")
                .unwrap()
                .iter()
                .map(|record| {
                    (
                        record.fields()["instance_id"].to_string(),
                        record.fields().clone(),
                    )
                })
                .collect();
        for record in &written {
            assert_eq!(
                record.fields(),
                &original[&record.fields()["instance_id"].to_string()]
            );
        }
        assert_eq!(written.len(), loaded.tasks.len());
    }
}

#[test]
fn settings_that_rows_cannot_say_are_carried() {
    let folder = tempfile::tempdir().unwrap();
    let (smith, _) = odd_rows();
    let source = folder.path().join("smith.jsonl");
    fs::write(&source, smith[0].to_string()).unwrap();
    let mut tasks = imported(&source);
    tasks[0].split = temper_core::Split::Train;
    tasks[0].source_group = temper_core::SourceGroup::new("own/group").unwrap();
    for to in [ExportFormat::SweSmith, ExportFormat::SweBench] {
        let path = folder.path().join(format!("{to:?}.jsonl"));
        export(&tasks, to, &path, &ExportOptions::default()).unwrap();
        for (back, task) in imported(&path).iter().zip(&tasks) {
            assert_eq!(back.metadata, task.metadata);
            assert_eq!(back, task);
        }
    }
}

#[test]
fn another_program_s_changes_count() {
    let tasks = native_tasks();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    export(
        &tasks[..1],
        ExportFormat::SweSmith,
        &path,
        &ExportOptions::default(),
    )
    .unwrap();
    let row = lines(&path).remove(0);
    let read = |change: &dyn Fn(&mut Map<String, Value>)| {
        let mut row = row.clone();
        change(&mut row);
        let path = folder.path().join("changed.jsonl");
        fs::write(&path, Value::Object(row.clone()).to_string()).unwrap();
        let loaded = crate::load(&path, None).unwrap();
        let out = folder.path().join("out.jsonl");
        let _ = fs::remove_file(&out);
        export(
            &loaded.tasks,
            ExportFormat::SweSmith,
            &out,
            &ExportOptions::default(),
        )
        .unwrap();
        (loaded, row, lines(&out).remove(0))
    };
    // A statement may be written anew, and a new field stays.
    let (loaded, row_in, row_out) = read(&|row| {
        row.insert("problem_statement".into(), "Other words.".into());
        row.insert("rating".into(), json!({"by": ["me"]}));
    });
    assert_eq!(loaded.warnings, [""; 0]);
    assert_eq!(loaded.tasks[0].statement, "Other words.");
    assert_eq!(loaded.tasks[0].verifier, tasks[0].verifier);
    assert_eq!(row_in, row_out);
    // Another patch is another bug.
    for (field, value) in [
        ("patch", json!("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n")),
        ("FAIL_TO_PASS", json!(["t.py::a"])),
        ("temper", json!("{\"format\": 7}")),
        ("temper", json!("not JSON")),
        ("temper", json!([1])),
    ] {
        let (loaded, ..) = read(&|row| {
            row.insert(field.into(), value.clone());
        });
        assert_eq!(loaded.warnings.len(), 1, "{field} {value}");
        assert!(
            loaded.warnings[0].contains("temper is not used"),
            "{:?}",
            loaded.warnings
        );
        assert!(matches!(loaded.tasks[0].verifier, Verifier::Log { .. }));
        assert!(!loaded.tasks[0].metadata.contains_key("temper"));
    }
}

#[test]
fn a_row_may_not_name_places_on_this_machine() {
    let tasks = native_tasks();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    export(
        &tasks[..1],
        ExportFormat::SweSmith,
        &path,
        &ExportOptions::default(),
    )
    .unwrap();
    let row = lines(&path).remove(0);
    for (part, value) in [
        (
            "start",
            json!({"kind": "directory", "path": "/etc", "digest": "0".repeat(64)}),
        ),
        (
            "start",
            json!({"kind": "git-commit", "repository": "/root", "commit": "0".repeat(40)}),
        ),
        (
            "start",
            json!({"kind": "git-commit", "repository": "https://x", "commit": "HEAD"}),
        ),
        (
            "environment",
            json!({"kind": "dockerfile", "context": "/etc", "work_tree": null}),
        ),
        (
            "oracle",
            json!({"kind": "script", "directory": "/etc", "environment": {}}),
        ),
        (
            "verifier",
            json!({"kind": "harbor", "tests": "/etc", "environment": {}, "timeout_seconds": 1}),
        ),
    ] {
        let mut row = row.clone();
        let mut carried: Value = serde_json::from_str(row["temper"].as_str().unwrap()).unwrap();
        carried["task"][part] = value;
        row.insert("temper".into(), carried.to_string().into());
        fs::write(&path, Value::Object(row).to_string()).unwrap();
        let loaded = crate::load(&path, None).unwrap();
        assert_eq!(loaded.warnings.len(), 1, "{part}");
        assert!(matches!(loaded.tasks[0].verifier, Verifier::Log { .. }));
    }
}

#[test]
fn what_a_format_cannot_express_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut tasks = native_tasks();
    let path = folder.path().join("rows.jsonl");
    tasks[0].oracle = None;
    let error = export(
        &tasks,
        ExportFormat::SweSmith,
        &path,
        &ExportOptions::default(),
    )
    .unwrap_err();
    assert!(error.to_string().contains("no known fix"), "{error}");
    assert!(error.to_string().contains(tasks[0].id.as_str()), "{error}");
    assert!(!path.exists());
    // A SWE-bench row may do without.
    export(
        &tasks[..1],
        ExportFormat::SweBench,
        &path,
        &ExportOptions::default(),
    )
    .unwrap();
    assert_eq!(imported(&path), tasks[..1]);
    let error = export(
        &tasks,
        ExportFormat::SweBench,
        &path,
        &ExportOptions::default(),
    )
    .unwrap_err();
    assert!(error.to_string().contains("there already"), "{error}");
    let odd = folder.path().join("rows.csv");
    let error = export(
        &tasks,
        ExportFormat::SweBench,
        &odd,
        &ExportOptions::default(),
    )
    .unwrap_err();
    assert!(error.to_string().contains(".parquet"), "{error}");
    let twice = [tasks[1].clone(), tasks[1].clone()];
    let error = export(
        &twice,
        ExportFormat::SweBench,
        &folder.path().join("twice.jsonl"),
        &ExportOptions::default(),
    )
    .unwrap_err();
    assert!(error.to_string().contains("also that of"), "{error}");
}

/// A task with a source distribution of its own, which no index has.
struct Packed {
    folder: tempfile::TempDir,
    task: Task,
}

const FIXED: &str =
    "def pairs(xs):\r\n    return [(xs[i], xs[i + 1]) for i in range(len(xs) - 1)]\r\n";
const BUGGY: &str = "def pairs(xs):\r\n    return [(xs[i], xs[i + 1]) for i in range(len(xs))]\r\n";
const ALL_TESTS: &str = "from pkg import pairs\n\ndef test_none():\n    assert pairs([]) == []\n\ndef test_two():\n    assert pairs([1, 2]) == [(1, 2)]\n\ndef test_three():\n    assert pairs([1, 2, 3]) == [(1, 2), (2, 3)]\n";
const PUBLIC_TESTS: &str = "from pkg import pairs\n\ndef test_none():\n    assert pairs([]) == []\n\ndef test_two():\n    assert pairs([1, 2]) == [(1, 2)]\n";

impl Packed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let archives = folder.path().join("archives");
        fs::create_dir(&archives).unwrap();
        let file = fs::File::create(archives.join("pkg-1.0.tar.gz")).unwrap();
        let mut tar = tar::Builder::new(flate2::write::GzEncoder::new(file, Default::default()));
        for (name, content) in [
            ("pkg-1.0/pkg.py", FIXED),
            ("pkg-1.0/tests/test_pkg.py", ALL_TESTS),
            ("pkg-1.0/conftest.py", "collect_ignore = []\n"),
            ("pkg-1.0/.gitattributes", "* text=auto eol=lf\n"),
        ] {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            tar.append_data(&mut header, name, content.as_bytes())
                .unwrap();
        }
        tar.into_inner().unwrap().finish().unwrap();
        let bytes = fs::read(archives.join("pkg-1.0.tar.gz")).unwrap();
        let path = |name: &str| -> temper_core::TreePath { name.parse().unwrap() };
        let file = |text: &str| temper_core::Entry::file(text);
        let diff = |from: &[(&str, &str)], to: &[(&str, &str)]| {
            let before: temper_core::Tree = from
                .iter()
                .map(|(name, text)| (path(name), file(text)))
                .collect();
            let changes = to
                .iter()
                .map(|(name, text)| (path(name), Some(file(text))))
                .collect();
            temper_core::patch::diff(&mut |path| before.get(path).cloned(), &changes)
        };
        let mut task = native_tasks().remove(3);
        task.id = temper_core::TaskId::new("pkg.func_pm_x/1").unwrap();
        task.start = temper_core::task::Start::SourceDistribution {
            archive: temper_core::task::Archive {
                project: "pkg".into(),
                file_name: "pkg-1.0.tar.gz".into(),
                sha256: temper_core::Digest::of(&bytes),
            },
            patch: diff(
                &[("pkg.py", FIXED), ("tests/test_pkg.py", ALL_TESTS)],
                &[("pkg.py", BUGGY), ("tests/test_pkg.py", PUBLIC_TESTS)],
            ),
        };
        task.oracle = Some(Oracle::Patch {
            patch: diff(&[("pkg.py", BUGGY)], &[("pkg.py", FIXED)]),
        });
        let ids = |names: &[&str]| {
            names
                .iter()
                .map(|name| format!("tests/test_pkg.py::{name}").as_str().into())
                .collect()
        };
        let Verifier::Pytest {
            public,
            hidden,
            test_files,
            ..
        } = &mut task.verifier
        else {
            panic!()
        };
        public.fail_to_pass = ids(&["test_two"]);
        public.pass_to_pass = ids(&["test_none"]);
        hidden.fail_to_pass = ids(&["test_three"]);
        hidden.pass_to_pass = Vec::new();
        *test_files = vec!["tests/test_pkg.py".into()];
        Packed { folder, task }
    }

    fn export(&self, task: &Task) -> Result<PathBuf, LoadError> {
        let path = self.folder.path().join("harbor");
        let _ = fs::remove_dir_all(&path);
        let archives = self.folder.path().join("archives");
        let options = ExportOptions {
            archives: Some(&archives),
            ..ExportOptions::default()
        };
        export(
            std::slice::from_ref(task),
            ExportFormat::Harbor,
            &path,
            &options,
        )?;
        let mut items: Vec<_> = fs::read_dir(&path)
            .unwrap()
            .map(|item| item.unwrap().path())
            .collect();
        assert_eq!(items.len(), 1);
        Ok(items.remove(0))
    }
}

fn run(program: &str, arguments: &[&str], directory: &Path) {
    let output = std::process::Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .env("HOME", "/nonexistent")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_harbor_directory_builds_the_start_and_mends_it() {
    let packed = Packed::new();
    let directory = packed.export(&packed.task).unwrap();
    // What the image's build runs, and what the oracle agent runs.
    let target = packed.folder.path().join("testbed");
    let build = directory.join("environment/build.py");
    run(
        "python3",
        &[build.to_str().unwrap(), target.to_str().unwrap()],
        packed.folder.path(),
    );
    assert_eq!(fs::read_to_string(target.join("pkg.py")).unwrap(), BUGGY);
    assert_eq!(
        fs::read_to_string(target.join("tests/test_pkg.py")).unwrap(),
        PUBLIC_TESTS
    );
    let solve = fs::read_to_string(directory.join("solution/solve.sh")).unwrap();
    let here = solve
        .replace("/testbed", target.to_str().unwrap())
        .replace("/solution", directory.join("solution").to_str().unwrap());
    run("bash", &["-c", &here], packed.folder.path());
    assert_eq!(fs::read_to_string(target.join("pkg.py")).unwrap(), FIXED);
    // Nothing of the fix or the hidden tests is in what the last stage copies.
    let dockerfile = fs::read_to_string(directory.join("environment/Dockerfile")).unwrap();
    let last = dockerfile.rsplit("FROM ").next().unwrap();
    for line in last.lines().filter(|line| line.starts_with("COPY ")) {
        assert!(
            line.starts_with("COPY --from=start ") || line.starts_with("COPY requirements.txt "),
            "{line}"
        );
    }
    let wheel = "pytest==8.4.2 --hash=sha256:872f880de3fc3a5bdc88a11b39c9710c3497a547cfa9320bc3c5e62fbf272e79";
    let requirements = fs::read_to_string(directory.join("environment/requirements.txt")).unwrap();
    assert!(requirements.contains(wheel), "{requirements}");
    assert_eq!(
        fs::read_to_string(directory.join("tests/hidden/tests/test_pkg.py")).unwrap(),
        ALL_TESTS
    );
    assert_eq!(
        fs::read_to_string(directory.join("tests/public/tests/test_pkg.py")).unwrap(),
        PUBLIC_TESTS
    );
    assert_eq!(
        fs::read_to_string(directory.join("tests/steering/conftest.py")).unwrap(),
        "collect_ignore = []\n"
    );
}

#[test]
fn native_tasks_come_back_from_harbor_directories() {
    let packed = Packed::new();
    let mut tasks = vec![packed.task.clone()];
    let start = packed.folder.path().join("start");
    let hidden = packed.folder.path().join("hidden");
    for (directory, name, text) in [
        (&start, "pkg.py", BUGGY),
        (&start, "tests/test_pkg.py", PUBLIC_TESTS),
        (&hidden, "tests/test_pkg.py", ALL_TESTS),
        (&hidden, "tests/data.txt", "more"),
    ] {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let mut with_directories = packed.task.clone();
    let tree = crate::tree_io::read_tree(&start, &Default::default()).unwrap();
    with_directories.start = temper_core::task::Start::Directory {
        path: start,
        digest: temper_core::tree::digest(&tree),
    };
    if let Verifier::Pytest { hidden_source, .. } = &mut with_directories.verifier {
        *hidden_source = temper_core::task::HiddenSource::Directory { path: hidden };
    }
    tasks.push(with_directories);
    for task in &tasks {
        let directory = packed.export(task).unwrap();
        let root = directory.parent().unwrap();
        let read = crate::load(root, None).unwrap();
        assert_eq!(read.warnings, [""; 0]);
        let without_places = |mut task: Task| {
            for (_, path) in carried::directories(&mut task) {
                path.clear();
            }
            task
        };
        let back = imported(root).remove(0);
        assert_eq!(without_places(back), without_places(task.clone()));
        // From what was read, the same bytes again.
        let tree = |path: &Path| crate::tree_io::read_tree(path, &Default::default()).unwrap();
        let first = tree(root);
        let again = packed.folder.path().join("again");
        let archives = packed.folder.path().join("archives");
        let options = ExportOptions {
            archives: Some(&archives),
            ..Default::default()
        };
        export(&read.tasks, ExportFormat::Harbor, &again, &options).unwrap();
        assert_eq!(tree(&again), first);
        fs::remove_dir_all(&again).unwrap();
        // A statement may be edited; changed files are another task, as Harbor sees it.
        fs::write(directory.join("instruction.md"), "Other words.\n").unwrap();
        let read = crate::load(root, None).unwrap();
        assert_eq!(read.tasks[0].statement, "Other words.\n");
        assert_eq!(read.tasks[0].verifier.clone(), {
            let mut task = task.clone();
            for (name, path) in carried::directories(&mut task) {
                *path = directory.canonicalize().unwrap().join(name);
            }
            task.verifier
        });
        fs::write(directory.join("tests/plan.json"), "{}").unwrap();
        let read = crate::load(root, None).unwrap();
        assert!(
            read.warnings[0].contains("temper is not used"),
            "{:?}",
            read.warnings
        );
        assert!(matches!(read.tasks[0].verifier, Verifier::Harbor { .. }));
    }
}

#[test]
fn harbor_directories_come_back_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    let put = |name: &str, text: &str| {
        let path = source.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    for (name, toml) in [
        (
            "one",
            "# a comment\nschema_version = \"1.3\"\n\n[task]\nname = \"org/one\"\n\n[metadata]\nown = { deep = [1, 2.5, \"x\"] }\n\n[verifier]\ntimeout_sec = 10.5\n",
        ),
        (
            "two",
            "version = \"1.0\"\n[environment]\ndocker_image = \"org/image:1\"\nmemory = \"2G\"\n",
        ),
    ] {
        put(&format!("{name}/task.toml"), toml);
        put(
            &format!("{name}/instruction.md"),
            "<!-- canary GUID 1 -->\n\n# Do it\n\ntext\n",
        );
        put(
            &format!("{name}/environment/Dockerfile"),
            "FROM scratch\nWORKDIR /app\n",
        );
        put(
            &format!("{name}/tests/test.sh"),
            "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n",
        );
        put(&format!("{name}/solution/solve.sh"), "true\n");
        put(&format!("{name}/README.md"), "read me\n");
        put(&format!("{name}/extra/notes.txt"), "bytes\n");
    }
    fs::write(source.join("two/extra/raw.bin"), [0x80, 0xff]).unwrap();
    std::os::unix::fs::symlink("notes.txt", source.join("two/extra/link")).unwrap();
    let tree = |path: &Path| crate::tree_io::read_tree(path, &Default::default()).unwrap();
    // Native tasks refer to files of their suite.
    let suite = folder.path().join("suite");
    crate::import(&source, &suite, None).unwrap();
    let stored = || crate::load(&suite, None).unwrap().tasks;
    for tasks in [crate::load(&source, None).unwrap().tasks, stored()] {
        let out = folder.path().join("out");
        let exported = export(
            &tasks,
            ExportFormat::Harbor,
            &out,
            &ExportOptions::default(),
        )
        .unwrap();
        assert_eq!(exported.notes, [""; 0]);
        assert_eq!(tree(&out), tree(&source));
        fs::remove_dir_all(&out).unwrap();
    }
    // What was changed since is written, and the rest is carried.
    let mut tasks = stored();
    tasks[0].statement = "Other words.\n".into();
    tasks[0].split = temper_core::Split::Train;
    let out = folder.path().join("out");
    let exported = export(
        &tasks,
        ExportFormat::Harbor,
        &out,
        &ExportOptions::default(),
    )
    .unwrap();
    assert_eq!(exported.notes.len(), 1);
    let back = crate::load(&out, None).unwrap();
    assert_eq!(back.tasks[0].statement, "Other words.\n");
    assert_eq!(back.tasks[0].split, temper_core::Split::Train);
    let error = export(
        &tasks,
        ExportFormat::SweBench,
        &folder.path().join("x.jsonl"),
        &ExportOptions::default(),
    )
    .unwrap_err();
    assert!(error.to_string().contains("no test lists"), "{error}");
}
