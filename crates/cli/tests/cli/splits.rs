//! Splits and overlaps through the binary.

use std::{fs, path::Path};

use crate::support::Workspace;

/// Text of a function that depends on `salt` in every line.
fn body(salt: u32) -> Vec<String> {
    (0..8)
        .map(|line| {
            let n = salt * 31 + line;
            format!("    value_{n} = compute_{n}(left_{n}, right_{n})")
        })
        .collect()
}

/// A task of which only what splits read is real.
fn write_task(suite: &Path, id: &str, project: &str, file: &str, code: &[String], split: &str) {
    let task = suite.join("tasks").join(id);
    fs::create_dir_all(&task).unwrap();
    let n = code.len();
    let lines: String = code[1..].iter().map(|line| format!(" {line}\n")).collect();
    fs::write(
        task.join("oracle.patch"),
        format!(
            "diff --git a/{file} b/{file}\n--- a/{file}\n+++ b/{file}\n@@ -1,{n} +1,{n} @@\n-    broken = '{id}'\n+{}\n{lines}",
            code[0]
        ),
    )
    .unwrap();
    fs::write(task.join("start.patch"), "").unwrap();
    fs::write(
        task.join("statement.md"),
        format!("Of the task {id}: the last of many numbers that are given to the function is not counted when they are sorted.\n"),
    )
    .unwrap();
    let sha = "0".repeat(64);
    fs::write(
        task.join("temper-task.toml"),
        format!(
            r#"format = 1
id = "{id}"
split = "{split}"
source_group = "none"
statement = "statement.md"
[origin]
project = "{project}"
bug = "mutation:boundary"
[start]
kind = "source-distribution"
archive = {{ project = "{project}", file_name = "{project}-1.tar.gz", sha256 = "{sha}" }}
patch = "start.patch"
[environment]
kind = "python"
requires_python = ">=3.9"
python_path = ["."]
wheels = []
[verifier]
kind = "pytest"
test_files = ["tests/test_a.py"]
hidden_source = {{ kind = "source-distribution" }}
arguments = []
timeout_seconds = 60
[verifier.public]
fail_to_pass = ["tests/test_a.py::test_a"]
pass_to_pass = []
[verifier.hidden]
fail_to_pass = []
pass_to_pass = []
[oracle]
patch = "oracle.patch"
"#
        )
        .replace(
            &sha,
            &format!(
                "{:064x}",
                project.len() * 1000 + usize::from(project.as_bytes()[0])
            ),
        ),
    )
    .unwrap();
}

/// Thirty tasks in ten files of two projects; the last has the code of the first.
fn suite() -> Workspace {
    let workspace = Workspace::new(0);
    let suite = workspace.path("suite");
    for number in 0..30u32 {
        let project = if number % 2 == 0 { "alpha" } else { "beta" };
        let file = format!("{project}/m{}.py", number % 10);
        let code = body(if number == 29 { 0 } else { number });
        write_task(
            &suite,
            &format!("t{number:02}"),
            project,
            &file,
            &code,
            "unassigned",
        );
    }
    workspace
}

#[test]
fn a_suite_is_divided_proven_extended_and_explained() {
    let workspace = suite();
    let suite = workspace.path("suite");
    let make = [
        "split",
        "make",
        "suite",
        "--patches-only",
        "--format",
        "json",
    ];
    let made = workspace.run(&make).expect(0).json();
    let sizes: Vec<u64> = made["splits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|size| size["n_tasks"].as_u64().unwrap())
        .collect();
    assert_eq!(sizes.iter().sum::<u64>(), 30);
    assert!(sizes.iter().all(|n| *n > 0), "{sizes:?}");
    let first = fs::read(suite.join("split.json")).unwrap();

    // It decides what the other verbs read.
    let listed = workspace
        .run(&[
            "tasks", "list", "--suite", "suite", "--split", "train", "--format", "json",
        ])
        .expect(0)
        .json();
    assert_eq!(listed.as_array().unwrap().len() as u64, sizes[0]);

    let proven = workspace.run(&["split", "verify", "suite"]).expect(0);
    assert!(
        proven
            .stdout
            .contains("30 tasks in 9 source groups: no link between splits"),
        "{}",
        proven.stdout
    );

    let why = workspace
        .run(&["split", "why", "t00", "t29", "--suite", "suite"])
        .expect(0);
    assert!(why.stdout.contains("to t29: same fix ("), "{}", why.stdout);
    let why = workspace
        .run(&[
            "split", "why", "t00", "t02", "--suite", "suite", "--format", "json",
        ])
        .expect(0)
        .json();
    assert_eq!(why["linked"], false);

    // Again: nothing is new, and the bytes are the same.
    let again = workspace
        .run(&["split", "make", "suite", "--format", "json"])
        .expect(0)
        .json();
    assert_eq!(
        (
            again["n_added"].as_u64(),
            fs::read(suite.join("split.json")).unwrap() == first
        ),
        (Some(0), true)
    );
    workspace
        .run(&["split", "make", "suite", "--seed", "3"])
        .expect(2);

    // One new task joins a file, one would join two splits.
    let manifest: serde_json::Value = serde_json::from_slice(&first).unwrap();
    let of = |split: &str| -> u32 {
        let tasks = manifest["tasks"].as_array().unwrap();
        let task = tasks
            .iter()
            .find(|task| task["split"] == split && task["id"] != "t29")
            .unwrap();
        task["id"].as_str().unwrap()[1..].parse().unwrap()
    };
    let (train, test) = (of("train"), of("test"));
    let project = if train.is_multiple_of(2) {
        "alpha"
    } else {
        "beta"
    };
    let file = format!("{project}/m{}.py", train % 10);
    write_task(&suite, "new", project, &file, &body(100), "unassigned");
    write_task(&suite, "bridge", project, &file, &body(test), "unassigned");
    let extended = workspace.run(&["split", "make", "suite"]).expect(7);
    assert!(
        extended.stdout.contains("1 tasks added\n1 tasks refused"),
        "{}",
        extended.stdout
    );
    assert!(
        extended.stdout.contains("  bridge\n    train "),
        "{}",
        extended.stdout
    );
    let now: serde_json::Value =
        serde_json::from_slice(&fs::read(suite.join("split.json")).unwrap()).unwrap();
    for task in manifest["tasks"].as_array().unwrap() {
        assert!(now["tasks"].as_array().unwrap().contains(task));
    }
    let found = workspace.run(&["split", "verify", "suite"]).expect(7);
    assert!(
        found
            .stdout
            .contains("bridge is in the suite but not frozen"),
        "{}",
        found.stdout
    );
    fs::remove_dir_all(suite.join("tasks/bridge")).unwrap();
    workspace.run(&["split", "verify", "suite"]).expect(0);

    // A task that is edited is found, and is no training task any more.
    fs::write(
        suite.join(format!("tasks/t{train:02}/statement.md")),
        "Other words.\n",
    )
    .unwrap();
    let found = workspace
        .run(&["split", "verify", "suite", "--format", "json"])
        .expect(7)
        .json();
    assert_eq!(found["findings"][0]["kind"], "changed");
    let listed = workspace
        .run(&["tasks", "list", "--suite", "suite", "--split", "unassigned"])
        .expect(0);
    assert!(
        listed.stderr.contains("differ from what was frozen"),
        "{}",
        listed.stderr
    );

    // Two splits swapped by hand.
    let text = fs::read_to_string(suite.join("split.json")).unwrap();
    let forged = text.replacen("\"split\":\"train\"", "\"split\":\"test\"", 1);
    fs::write(suite.join("split.json"), forged).unwrap();
    let found = workspace.run(&["split", "verify", "suite"]).expect(7);
    assert!(
        found.stdout.contains("the manifest was edited"),
        "{}",
        found.stdout
    );
    assert!(found.stdout.contains("belong together"), "{}", found.stdout);
}

#[test]
fn wrong_rules_are_usage_errors() {
    let workspace = suite();
    for flags in [
        &["--fractions", "0:0:0"][..],
        &["--hold-out", "alpha"],
        &["--hold-out", "gamma=test"],
        &["--granularity", "line"],
    ] {
        let mut arguments = vec!["split", "make", "suite", "--patches-only"];
        arguments.extend(flags);
        workspace.run(&arguments).expect(2);
    }
    workspace.run(&["split", "verify", "suite"]).expect(3);
    workspace
        .run(&["split", "why", "t00", "t01", "--suite", "suite"])
        .expect(3);
    // Archives that are nowhere cannot be compared, and nothing is frozen without them.
    workspace
        .run(&["split", "make", "suite", "--offline"])
        .expect(4);
    assert!(!workspace.path("suite/split.json").exists());
}

#[test]
fn overlaps_with_references_are_findings() {
    let workspace = suite();
    let reference = workspace.path("reference.jsonl");
    let row = serde_json::json!({
        "instance_id": "other__alpha-3",
        "repo": "other/alpha",
        "code": body(4).join("\n"),
    });
    fs::write(&reference, format!("{row}\n")).unwrap();
    let arguments = [
        "tasks",
        "decontaminate",
        "suite",
        "--against",
        "reference.jsonl",
    ];
    let table = workspace
        .run(&[&arguments[..], &["--excerpts"]].concat())
        .expect(7);
    assert!(
        table.stdout.contains("repository other/alpha (by name)"),
        "{}",
        table.stdout
    );
    assert!(
        table.stdout.contains("value_126 = compute_126"),
        "{}",
        table.stdout
    );
    let report = workspace
        .run(&[&arguments[..], &["--format", "json"]].concat())
        .expect(7)
        .json();
    let matches = report["matches"].as_array().unwrap();
    let near: Vec<&serde_json::Value> = matches
        .iter()
        .filter(|m| m["kind"] == "near-duplicate")
        .collect();
    assert!(
        near.iter()
            .any(|m| m["task"] == "t04" && m["record"] == "other__alpha-3")
    );
    assert!(near.iter().all(|m| m["task"] == "t04"));

    fs::write(&reference, "{\"code\": \"print(1)\"}\n").unwrap();
    let none = workspace.run(&arguments).expect(0);
    assert_eq!(none.stdout, "0 of 30 tasks overlap with 1 references\n");
    workspace
        .run(&["tasks", "decontaminate", "suite"])
        .expect(0);
    workspace
        .run(&["tasks", "decontaminate", "suite", "--known", "nothing"])
        .expect(2);
    fs::write(&reference, "{\"code\": ").unwrap();
    workspace.run(&arguments).expect(3);
}
