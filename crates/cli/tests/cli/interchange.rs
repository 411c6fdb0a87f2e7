//! Tasks in the formats of others and back, and what a solver may be shown, through the binary.

use std::{collections::BTreeMap, fs};

use crate::support::Workspace;

const STARTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../suites/starter");

/// Digest by id, of every task in a suite.
fn digests(workspace: &Workspace, suite: &str) -> BTreeMap<String, String> {
    let list = workspace
        .run(&["tasks", "list", "--suite", suite, "--format", "json"])
        .expect(0)
        .json();
    let text = |row: &serde_json::Value, field: &str| row[field].as_str().unwrap().to_owned();
    let rows = list.as_array().unwrap().iter();
    rows.map(|row| (text(row, "id"), text(row, "digest")))
        .collect()
}

#[test]
fn rows_bring_back_the_tasks_that_they_were_made_from() {
    let workspace = Workspace::new(0);
    let tasks = digests(&workspace, STARTER);
    for (to, name) in [("swe-smith", "rows.jsonl"), ("swe-bench", "rows.parquet")] {
        let export = [
            "tasks", "export", "--suite", STARTER, "--to", to, "--output", name,
        ];
        let ran = workspace.run(&export).expect(0);
        assert_eq!(ran.stdout, format!("{name}\n"));
        assert!(
            ran.stderr
                .contains(&format!("exported {} tasks", tasks.len())),
            "{}",
            ran.stderr
        );
        workspace
            .run(&["tasks", "import", name, "--output", to])
            .expect(0);
        assert_eq!(digests(&workspace, to), tasks);
        // Nothing is written over.
        let again = workspace.run(&export).expect(3);
        assert!(again.stderr.contains("there already"), "{}", again.stderr);
    }
}

#[test]
fn a_harbor_directory_and_a_context_of_a_real_task() {
    let workspace = Workspace::new(0);
    let id = "inflection-0.5.1-*";
    let one = ["--suite", STARTER, "--task", id, "--limit", "1"];
    let mut export = vec!["tasks", "export", "--to", "harbor", "--output", "harbor"];
    export.extend(one);
    workspace.run(&export).expect(0);
    let directories: Vec<_> = fs::read_dir(workspace.path("harbor"))
        .unwrap()
        .map(|item| item.unwrap().path())
        .collect();
    assert_eq!(directories.len(), 1);
    for file in [
        "task.toml",
        "instruction.md",
        "environment/Dockerfile",
        "tests/test.sh",
        "solution/solve.sh",
    ] {
        assert!(directories[0].join(file).is_file(), "{file}");
    }
    workspace
        .run(&["tasks", "import", "harbor", "--output", "back"])
        .expect(0);
    let (back, all) = (digests(&workspace, "back"), digests(&workspace, STARTER));
    assert_eq!(back.len(), 1);
    let (id, digest) = back.first_key_value().unwrap();
    assert_eq!(&all[id], digest);

    let ran = workspace
        .run(&[
            "tasks", "context", id, "--suite", STARTER, "--budget", "8000", "--format", "json",
        ])
        .expect(0);
    let value = ran.json();
    assert_eq!(value["findings"], serde_json::json!([]));
    let sections = value["context"]["sections"].as_array().unwrap();
    assert!(sections.len() >= 3, "{}", sections.len());
    assert_eq!(sections[1]["kind"], "main");
    assert_eq!(sections[1]["file"], "inflection/__init__.py");
    assert!(value["context"]["n_tokens"].as_u64().unwrap() <= 8000);
    let small = workspace
        .run(&["tasks", "context", id, "--suite", STARTER, "--budget", "1"])
        .expect(2);
    assert!(small.stderr.contains("raise --budget"), "{}", small.stderr);

    // A suite whose statements are followed by their context: the same tasks, otherwise told.
    let write = |to: &str, budget: &str, code| {
        workspace
            .run(&[
                "tasks", "context", "--suite", STARTER, "--task", id, "--budget", budget,
                "--write", to, "--format", "json",
            ])
            .expect(code)
    };
    let rows = write("told", "8000", 0).json();
    assert_eq!(rows[0]["task"].as_str(), Some(id.as_str()));
    assert_eq!(rows[0]["n_tokens"], value["context"]["n_tokens"]);
    let told = digests(&workspace, "told");
    assert_eq!(told.len(), 1);
    assert_ne!(told[id], all[id]);
    let line = fs::read_to_string(workspace.path("told/tasks.jsonl")).unwrap();
    let task: serde_json::Value = serde_json::from_str(line.trim()).unwrap();
    let statement = task["statement"].as_str().unwrap();
    for section in sections {
        let text = section["text"].as_str().unwrap().trim_end();
        assert!(statement.contains(text), "{text}");
    }
    // One that has no context keeps its statement, and the table says why.
    let rows = write("plain", "1", 0).json();
    assert!(
        rows[0]["problem"]
            .as_str()
            .unwrap()
            .contains("the statement alone has"),
        "{rows}"
    );
    assert_eq!(digests(&workspace, "plain")[id], all[id]);
    let again = write("told", "8000", 3);
    assert!(again.stderr.contains("there already"), "{}", again.stderr);
}
