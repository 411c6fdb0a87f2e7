//! Records of results, and samples of suites.

use std::fs;

use serde_json::Value;

use crate::support::{Workspace, bash, submit};

fn fields(verified: &Value) -> Vec<String> {
    verified["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|difference| difference["field"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_record_holds_until_a_file_or_the_record_is_touched() {
    let workspace = Workspace::new(2);
    let agent = workspace.script("solver", &[&bash("echo yes > answer.txt"), &submit()]);
    workspace
        .run(&["run", "--suite", "suite", "--agent", &agent, "-o", "job"])
        .expect(0);
    let record = workspace
        .run(&[
            "record",
            "make",
            "job",
            "-o",
            "record.json",
            "--format",
            "json",
        ])
        .expect(0)
        .json();
    assert_eq!(record["trials"]["n_valid"], 2);
    assert_eq!(record["pass_rate"]["n_solved"], 2);
    assert_eq!(record["continuity"]["kind"], "clean-run");
    assert_eq!(record["claims"]["wording"], "project-experiment");
    assert_eq!(
        record["identity"]["settings"]["sampling.max_output_tokens"]["value"],
        896
    );
    assert!(record["sessions"][0]["machine"]["temper"].is_string());
    let verify = |code| {
        workspace
            .run(&["record", "verify", "record.json", "--format", "json"])
            .expect(code)
            .json()
    };
    assert_eq!(verify(0)["holds"], true);
    // The outputs for other tools are made of the trials and are no part of the record.
    fs::remove_file(workspace.path("job/preds.json")).unwrap();
    verify(0);

    let trial = workspace.path("job/trials/answer-001/0/trial.json");
    let before = fs::read_to_string(&trial).unwrap();
    fs::write(&trial, before.replace("\"resolved\"", "\"unresolved\"")).unwrap();
    let found = fields(&verify(7));
    for field in [
        "files.trials/answer-001/0/trial.json",
        "pass_rate.n_solved",
        "trials.n_solved",
    ] {
        assert!(found.iter().any(|name| name == field), "{field}: {found:?}");
    }
    fs::write(&trial, before).unwrap();
    verify(0);

    fs::remove_file(workspace.path("job/trials/answer-000/0/trajectory.jsonl")).unwrap();
    assert_eq!(
        fields(&verify(7)),
        ["files.trials/answer-000/0/trajectory.jsonl"]
    );

    // A record that says more than the files do.
    let text = fs::read_to_string(workspace.path("record.json")).unwrap();
    let better = text.replace(
        "\"wording\": \"project-experiment\"",
        "\"wording\": \"paper-reproduction\"",
    );
    assert_ne!(text, better);
    fs::write(workspace.path("record.json"), better).unwrap();
    assert!(fields(&verify(7)).contains(&"claims.wording".to_owned()));
    // A record under another ledger: what differs for that reason is said to; the file that was
    // taken away is missed all the same.
    let record: Value = serde_json::from_str(&text).unwrap();
    let digest = record["ledger"]["digest"].as_str().unwrap();
    let other = text.replace(digest, &"0".repeat(digest.len()));
    fs::write(workspace.path("record.json"), other).unwrap();
    let ran = workspace
        .run(&["record", "verify", "record.json"])
        .expect(7);
    assert!(
        ran.stdout.contains("ledger.digest") && ran.stdout.contains("2 differences"),
        "{}",
        ran.stdout
    );
    assert!(ran.stderr.contains("decided anew"), "{}", ran.stderr);
    fs::write(
        workspace.path("record.json"),
        text.replace("\"format\": 1", "\"format\": 9"),
    )
    .unwrap();
    workspace
        .run(&["record", "verify", "record.json"])
        .expect(3);
}

#[test]
fn a_sample_is_drawn_run_and_held_to() {
    let workspace = Workspace::new(10);
    let draw = |more: &[&str]| {
        let mut arguments = vec!["tasks", "sample", "suite", "-n", "4", "-o", "sample.json"];
        arguments.extend(["--stratify", "source-group", "--format", "json"]);
        arguments.extend(more);
        workspace.run(&arguments)
    };
    let sample = draw(&["--seed", "3"]).expect(0).json();
    assert_eq!(sample, draw(&["--seed", "3"]).expect(0).json());
    assert_eq!(sample["tasks"].as_object().unwrap().len(), 4);
    assert!(
        sample["does_not_stand_for"]
            .to_string()
            .contains("all 10 tasks")
    );
    let capped = draw(&["--per-repository", "3"]).expect(3);
    assert!(capped.stderr.contains("leaves 3"), "{}", capped.stderr);
    let available = draw(&["--available", "--seed", "3"]).expect(0).json();
    assert_eq!(available["availability_checked"], true);

    let agent = workspace.script("solver", &[&submit()]);
    let run = |job: &str| {
        workspace.run(&[
            "run",
            "--suite",
            "suite",
            "--agent",
            &agent,
            "-o",
            job,
            "--tasks-from",
            "sample.json",
            "--format",
            "json",
        ])
    };
    assert_eq!(run("job").expect(0).json()["trials_solved"]["n"], 4);
    let id = sample["tasks"].as_object().unwrap().keys().next().unwrap();
    fs::write(
        workspace.path(&format!("suite/tasks/{id}/statement.md")),
        "Another task.\n",
    )
    .unwrap();
    let refused = run("other").expect(3);
    assert!(
        refused.stderr.contains("another task by now"),
        "{}",
        refused.stderr
    );
}
