//! Data sets through the binary: from jobs and collections to rows that can be looked at.

use std::fs;

use serde_json::Value;

use crate::{
    support::{Workspace, bash, submit, training},
    tiny_model::write_model,
};

/// Runs a scripted agent on the whole suite.
fn job(workspace: &Workspace, name: &str, replies: &[&str]) {
    let agent = workspace.script(name, replies);
    let arguments = [
        "run", "--suite", "suite", "--agent", &agent, "-o", name, "-q",
    ];
    workspace.run(&arguments).expect(0);
}

fn model(workspace: &Workspace) {
    write_model(&workspace.path("model"));
}

/// `dataset build` with the tiny model; `rest` are inputs and further flags.
fn build(output: &str, rest: &[&str]) -> Vec<String> {
    let fixed = "dataset build --suite suite --model model --format json -q -o";
    let mut arguments: Vec<String> = fixed.split(' ').map(str::to_owned).collect();
    arguments.push(output.to_owned());
    arguments.extend(rest.iter().map(|argument| (*argument).to_owned()));
    arguments
}

fn run(workspace: &Workspace, arguments: &[String], code: i32) -> crate::support::Ran {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    workspace.run(&arguments).expect(code)
}

fn reasons(report: &Value) -> Vec<(String, String)> {
    let dropped = report["dropped"].as_array().unwrap().iter();
    dropped
        .map(|dropped| {
            let word = |value: &Value| value.as_str().unwrap().to_owned();
            (
                word(&dropped["origin"]["agent"]),
                word(&dropped["reason"]["kind"]),
            )
        })
        .collect()
}

#[test]
fn verified_trials_become_rows_and_the_others_have_a_reason() {
    // 0 and 1 are one source group; 2 and 3 another, of which one is held out.
    let workspace = training(3);
    workspace.in_split(2, "dev");
    model(&workspace);
    let solve = bash("echo yes > answer.txt");
    job(&workspace, "solver", &[&bash("ls"), &solve, &submit()]);
    job(
        &workspace,
        "loser",
        &[&bash("echo maybe > answer.txt"), &submit()],
    );
    // What it leaves differs each time, so nobody can say that these commands solve the task.
    job(
        &workspace,
        "clock",
        &[
            &bash("date +%s%N > stamp; echo yes > answer.txt"),
            &submit(),
        ],
    );
    let arguments = build("data", &["solver", "loser", "clock"]);
    let built = run(&workspace, &arguments, 0).json();
    let report = &built["report"];
    assert_eq!(report["n_trials"], 9);
    assert_eq!(report["n_rows"], 2);
    assert_eq!(report["n_pairs"], 2);
    let mut reasons = reasons(report);
    reasons.sort();
    let expected = [
        ("scripted-clock", "held-out-task"),
        ("scripted-clock", "patch-not-reproduced"),
        ("scripted-clock", "patch-not-reproduced"),
        ("scripted-loser", "held-out-task"),
        ("scripted-loser", "not-solved"),
        ("scripted-loser", "not-solved"),
        ("scripted-solver", "held-out-task"),
    ];
    let expected = expected.map(|(agent, kind)| (agent.to_owned(), kind.to_owned()));
    assert_eq!(reasons, expected);

    // The same trials without replay, with no more learned tokens than one row has.
    let shown = run(
        &workspace,
        &["dataset", "show", "data", "--format", "json"].map(str::to_owned),
        0,
    )
    .json();
    let n_learned = shown["rows"][0]["n_learned"].as_u64().unwrap().to_string();
    let flags = [
        "solver",
        "clock",
        "--no-replay",
        "--learned-tokens",
        &n_learned,
    ];
    let less = run(&workspace, &build("less", &flags), 0).json();
    assert_eq!(less["report"]["n_rows"], 1, "{less}");
    assert!(less["report"]["n_dropped"]["over-budget"].as_u64() > Some(0));
    assert_eq!(
        less["report"]["n_dropped"]["patch-not-reproduced"],
        Value::Null
    );

    // Nothing is written over, and a suite in which all is held out gives nothing.
    let again = run(&workspace, &arguments, 3);
    assert!(again.stderr.contains("there already"), "{}", again.stderr);
    for number in 0..2 {
        workspace.in_split(number, "test");
    }
    fs::remove_dir_all(workspace.path("data")).unwrap();
    let nothing = run(&workspace, &arguments, 3);
    assert!(
        nothing.stderr.contains("9 held-out-task"),
        "{}",
        nothing.stderr
    );
    assert!(!workspace.path("data").exists());
}

#[test]
fn a_failed_state_and_its_continuation_are_a_pair_that_learns_no_shared_step() {
    let workspace = training(1);
    model(&workspace);
    // Solves the task only where it was tried before: in the state after the first step.
    let try_once = bash(
        "if [ -f tried ]; then echo yes > answer.txt; else echo maybe > answer.txt; touch tried; fi",
    );
    let teacher = workspace.script("teacher", &[&try_once, &bash("cat answer.txt"), &submit()]);
    let collect = [
        "collect",
        "--suite",
        "suite",
        "--teacher",
        &teacher,
        "--policy",
        "--branches",
        "2",
        "-o",
        "candidates",
        "-q",
        "--format",
        "json",
    ];
    let collected = workspace.run(&collect).expect(0).json();
    assert_eq!(collected["n_candidates"], 3);
    assert_eq!(collected["n_verified"], 2);

    let arguments = build("data", &["candidates"]);
    let built = run(&workspace, &arguments, 0).json();
    let report = &built["report"];
    // Both continuations leave one patch.
    assert_eq!(report["n_rows"], 1);
    assert_eq!(report["n_pairs"], 1);
    assert_eq!(report["n_same_state_pairs"], 1);
    let pairs = fs::read_to_string(workspace.path("data/pairs.jsonl")).unwrap();
    let pair: Value = serde_json::from_str(&pairs).unwrap();
    assert_eq!(pair["shared"]["n_steps"], 1);
    assert_eq!(pair["chosen"]["origin"]["teacher"], "policy");
    let show = ["dataset", "show", "data", "--pair", "0", "--format", "json"];
    let rows = workspace.run(&show).expect(0).json();
    // The script begins anew in a continuation.
    for (row, n_own) in rows.as_array().unwrap().iter().zip([3, 2]) {
        let spans = row["spans"].as_array().unwrap();
        let of = |kind: &str| spans.iter().filter(|span| span["kind"] == kind).count();
        assert_eq!(
            (of("shared-reply"), of("reply")),
            (1, n_own),
            "{}",
            row["name"]
        );
    }
    // What stands before the first own reply is the same in both.
    let ids = |row: &str| -> Vec<u64> { serde_json::from_value(pair[row]["ids"].clone()).unwrap() };
    let mut spans = rows[0]["spans"].as_array().unwrap().iter();
    let first = spans.find(|span| span["kind"] == "reply").unwrap();
    let start = first["start"].as_u64().unwrap() as usize;
    assert_eq!(ids("chosen")[..start], ids("rejected")[..start]);

    let table = workspace
        .run(&["dataset", "show", "data", "--row", "0"])
        .expect(0)
        .stdout;
    assert!(
        table.contains("the trial that this one goes on from"),
        "{table}"
    );
    assert!(table.contains("+ "), "{table}");
    assert!(!table.contains('\u{1b}'), "{table}");
    let beyond = workspace
        .run(&["dataset", "show", "data", "--row", "1"])
        .expect(2);
    assert!(
        beyond.stderr.contains("there are 1 rows"),
        "{}",
        beyond.stderr
    );
}

#[test]
fn conversations_go_from_shape_to_shape_and_back() {
    let workspace = Workspace::new(0);
    let rows = concat!(
        r#"{"instance_id":"a","messages":[{"role":"system","content":"s"},{"role":"user","content":"é\n"},{"role":"assistant","content":"x"}]}"#,
        "\n",
        r#"{"instance_id":"b","messages":[{"role":"user","content":"q"},{"role":"assistant","content":"y"}]}"#,
        "\n",
    );
    fs::write(workspace.path("in.jsonl"), rows).unwrap();
    let convert = |input: &str, from: &str, output: &str, to: &str, code: i32| {
        workspace
            .run(&[
                "dataset", "convert", input, output, "--from", from, "--to", to,
            ])
            .expect(code)
    };
    convert("in.jsonl", "messages", "1.parquet", "messages", 0);
    convert("1.parquet", "messages", "2.jsonl", "trl", 0);
    convert("2.jsonl", "trl", "3.jsonl", "sharegpt", 0);
    convert("3.jsonl", "sharegpt", "4.jsonl", "messages", 0);
    assert_eq!(fs::read_to_string(workspace.path("4.jsonl")).unwrap(), rows);
    let tools = r#"{"messages":[],"tools":[{"type":"function","function":{"name":"f","description":"","parameters":{}}}]}"#;
    fs::write(workspace.path("tools.jsonl"), tools).unwrap();
    let refused = convert("tools.jsonl", "trl", "5.jsonl", "messages", 3);
    assert!(
        refused.stderr.contains("no place for tools"),
        "{}",
        refused.stderr
    );
    assert!(!workspace.path("5.jsonl").exists());
    let refused = convert("in.jsonl", "messages", "6.jsonl", "trl-preference", 2);
    assert!(
        refused.stderr.contains("one holds preferences"),
        "{}",
        refused.stderr
    );
}

#[test]
fn lost_rewards_have_no_advantage_and_equal_ones_no_signal() {
    let workspace = training(1);
    let groups = "\
{\"group\": \"lost\", \"rewards\": [null, -1, -1, null]}
{\"group\": \"half\", \"rewards\": [null, 1, -1, null]}
{\"group\": \"parts\", \"rewards\": [[1, 2], [2, 1], [0.5, 2.5], [3, 0]]}
{\"group\": \"no part\", \"rewards\": [[1, null], 1, 0]}
";
    fs::write(workspace.path("groups.jsonl"), groups).unwrap();
    let found = workspace
        .run(&["dataset", "advantages", "groups.jsonl", "--format", "json"])
        .expect(0)
        .json();
    let of = |index: usize| &found["groups"][index];
    assert_eq!(
        of(0)["advantages"],
        serde_json::json!([null, 0.0, 0.0, null])
    );
    assert_eq!(of(0)["signal"], "equal-rewards");
    let half = of(1)["advantages"].as_array().unwrap();
    assert!((half[1].as_f64().unwrap() - 1.0).abs() < 2e-6, "{half:?}");
    assert!((half[2].as_f64().unwrap() + 1.0).abs() < 2e-6, "{half:?}");
    assert!(half[0].is_null() && half[3].is_null());
    assert_eq!(of(2)["advantages"], serde_json::json!([0.0, 0.0, 0.0, 0.0]));
    assert_eq!(of(2)["mean"], 3.0);
    assert_eq!(of(3)["advantages"][0], Value::Null);
    assert_eq!(found["settings"]["deviation"], "population");
    assert_eq!(
        found["summary"],
        serde_json::json!({
            "n_groups": 4, "n_scored": 10, "n_unscored": 5, "n_without_signal": 2,
            "share_without_signal": 0.5,
        })
    );
    let sample = workspace
        .run(&[
            "dataset",
            "advantages",
            "groups.jsonl",
            "--deviation",
            "sample",
        ])
        .expect(0);
    for part in [
        "none: equal rewards",
        "– +0.707 -0.707 –",
        "2 of 4 groups give no signal (0.50); 10 trials scored, 5 unscored",
        "sample deviation, epsilon 0.000001",
    ] {
        assert!(sample.stdout.contains(part), "{part}: {}", sample.stdout);
    }
    for (text, expected) in [
        ("{\"group\": \"a\", \"rewards\": [1, \"x\"]}", "line 1"),
        ("{\"group\": \"a\", \"rewards\": [1], \"more\": 1}", "more"),
        (
            "{\"group\": \"a\", \"rewards\": [[1e308, 1e308]]}",
            "not finite",
        ),
        ("\n", "no groups"),
    ] {
        fs::write(workspace.path("groups.jsonl"), text).unwrap();
        let refused = workspace
            .run(&["dataset", "advantages", "groups.jsonl"])
            .expect(3);
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    }
}
