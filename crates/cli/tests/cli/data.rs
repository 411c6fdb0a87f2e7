//! `temper data audit` through the binary.

use serde_json::{Value, json};

use crate::support::Workspace;

const SUBMIT: &str =
    "```bash\necho MINI_SWE_AGENT_FINAL_OUTPUT && git add -A && git diff --cached\n```";

fn rows(workspace: &Workspace) -> String {
    let turn = |text: &str| json!({"role": "assistant", "content": text});
    let user = |text: &str| json!({"role": "user", "content": text});
    let good = json!({"instance_id": "a__b.00000001.x", "messages": [
        user("Fix it."), turn("```bash\nsed -i s/a/b/ x.py\n```"), user("ok"),
        turn("```bash\npytest\n```"), user("ok"), turn(SUBMIT)]});
    let task = json!({"instance_id": "answer-0", "messages": [user("Fix."), turn(SUBMIT)]});
    let path = workspace.path("rows.jsonl");
    let lines = format!("{good}\n{good}\n{task}\nno row\n");
    std::fs::write(&path, lines).unwrap();
    path.display().to_string()
}

#[test]
fn an_audit_counts_compares_and_writes_rows() {
    let workspace = Workspace::new(2);
    let ids = workspace.temper(&["tasks", "list", "-s", "suite", "--format", "json"]);
    let listed: Value = serde_json::from_slice(&{ ids }.output().unwrap().stdout).unwrap();
    let id = listed[0]["id"].as_str().unwrap().to_owned();
    let text = rows(&workspace);
    let changed = std::fs::read_to_string(&text)
        .unwrap()
        .replace("answer-0", &id);
    std::fs::write(&text, changed).unwrap();

    let arguments = [
        "data",
        "audit",
        "rows.jsonl",
        "--against",
        "suite",
        "--rows",
        "out.jsonl",
    ];
    let output = workspace.temper(&arguments).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(7), "{table}");
    for words in [
        "4 rows in 1 files",
        "submit-ready",
        "1 of 4 rows cannot be read (row 4)",
        "were there before, word for word (row 2)",
        "tied to held-out tasks of suite",
        "no figure says whether submitted work is right",
    ] {
        assert!(table.contains(words), "{words}: {table}");
    }
    for word in ["solved", "resolved", "reward"] {
        assert!(!table.contains(word), "{table}");
    }
    let out = std::fs::read_to_string(workspace.path("out.jsonl")).unwrap();
    let rows: Vec<Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[1]["duplicate_of"], json!({"file": 0, "row": 0}));
    assert_eq!(rows[0]["ending"], "submit-ready");
    assert_eq!(rows[0]["self_test"]["after_last_edit"], true);
    assert_eq!(rows[2]["overlaps"][0]["tie"], "instance-id");
    assert!(!workspace.path("out.jsonl.part").exists());

    let json = workspace
        .temper(&["data", "audit", "rows.jsonl", "--format", "json"])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(report["n_rows"], 4);
    assert_eq!(
        report["figures"][2],
        json!({"name": "submit-ready", "n": 3, "of": 3, "denominator": "readable-rows"})
    );
}

#[test]
fn files_that_are_no_trajectories_are_refused_with_a_hint() {
    let workspace = Workspace::new(1);
    std::fs::write(workspace.path("list.json"), "[]").unwrap();
    std::fs::write(workspace.path("cut.parquet"), "PAR1 and no more").unwrap();
    for file in ["list.json", "cut.parquet", "absent.jsonl"] {
        let output = workspace.temper(&["data", "audit", file]).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{file}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.starts_with("error: failed to read "), "{error}");
        assert_eq!(error.contains("hint: "), file != "absent.jsonl", "{error}");
    }
    let output = workspace
        .temper(&["data", "audit", "x", "--max-tokens", "5"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// What a set does not hold shows in its columns: no result, no patch, no model.
#[test]
fn an_audit_names_the_columns_that_it_does_not_read_too() {
    let workspace = Workspace::new(0);
    let columns = |name: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../dataset/tests/fixtures/parquet")
            .join(name);
        let path = path.display().to_string();
        let table = workspace.run(&["data", "audit", &path]).expect(7).stdout;
        let json = workspace.run(&["data", "audit", &path, "--format", "json"]);
        let report = json.expect(7).json();
        (table, report["files"][0]["columns"].clone())
    };
    let (table, names) = columns("plain.parquet");
    assert!(
        table.contains("\ncolumns: instance_id, messages\n"),
        "{table}"
    );
    assert_eq!(names, json!(["instance_id", "messages"]));
    let (_, names) = columns("wide.parquet");
    assert_eq!(names, json!(["number", "instance_id", "messages"]));
    rows(&workspace);
    let lines = workspace
        .run(&["data", "audit", "rows.jsonl"])
        .expect(7)
        .stdout;
    assert!(!lines.contains("columns:"), "{lines}");
}
