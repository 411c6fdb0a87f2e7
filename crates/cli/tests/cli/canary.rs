//! The canary ladder, and each of its gates failing and holding.

use std::fs;

use serde_json::Value;

use crate::{
    model_server::{Behaviour, ModelServer},
    support::{Ran, Workspace, bash, submit},
};

fn climb(workspace: &Workspace, agent: &str, output: &str, more: &[&str]) -> Ran {
    let mut arguments = vec![
        "canary",
        "--suite",
        "suite",
        "--agent",
        agent,
        "-o",
        output,
        "--format",
        "json",
        "-j",
        "4",
        "--max-retries",
        "0",
    ];
    arguments.extend(more);
    workspace.run(&arguments)
}

/// Which gates of the last rung do not hold.
fn failed(climb: &Value) -> Vec<String> {
    let rungs = climb["rungs"].as_array().unwrap();
    rungs[rungs.len() - 1]["gates"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|gate| gate["passed"] == false)
        .map(|gate| gate["gate"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_ladder_is_climbed_rung_by_rung() {
    let workspace = Workspace::new(12);
    // Nothing is solved, and that is no reason to stop.
    let agent = workspace.script("idle", &[&bash("true"), &submit()]);
    let whole = climb(&workspace, &agent, "out", &[]).expect(0).json();
    assert_eq!(
        (&whole["passed"], &whole["clean"]),
        (&true.into(), &true.into())
    );
    let rungs: Vec<(u64, u64)> = whole["rungs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|climbed| {
            let rung = &climbed["rung"];
            (
                rung["n_tasks"].as_u64().unwrap(),
                rung["concurrency"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(rungs, [(1, 1), (10, 2), (12, 4)]);
    assert_eq!(whole["label"], "one clean climb");
    // Again: nothing is run anew, and what is shown is no clean climb.
    let again = climb(&workspace, &agent, "out", &[]).expect(0).json();
    assert_eq!(again["clean"], false);
    assert!(
        again["label"]
            .as_str()
            .unwrap()
            .starts_with("RESUMED COMPOSITE")
    );
    let table = workspace
        .run(&[
            "canary", "--suite", "suite", "--agent", &agent, "-o", "few", "--last", "3",
        ])
        .expect(0);
    assert!(
        table.stdout.contains("all 2 rungs hold"),
        "{}",
        table.stdout
    );

    // An observation that is taken away is missed.
    let trials = workspace.path("out/rung-1/trials");
    let task = trials.read_dir().unwrap().next().unwrap().unwrap().path();
    let path = task.join("0/trajectory.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<String> = text
        .lines()
        .map(|line| {
            let mut record: Value = serde_json::from_str(line).unwrap();
            if record["record"] == "step" {
                record["observations"] = Value::Array(Vec::new());
            }
            record.to_string() + "\n"
        })
        .collect();
    fs::write(&path, lines.concat()).unwrap();
    let stopped = climb(&workspace, &agent, "out", &[]).expect(11).json();
    assert_eq!(failed(&stopped), ["observations"]);
    assert_eq!(stopped["rungs"].as_array().unwrap().len(), 1);
}

#[test]
fn every_gate_stops_the_climb() {
    let workspace = Workspace::new(2);
    let silent = workspace.script("silent", &[]);
    let stopped = climb(&workspace, &silent, "silent", &[]).expect(11);
    let gates = failed(&stopped.json());
    for gate in ["infrastructure", "assistant-turns", "rewards"] {
        assert!(
            gates.iter().any(|failed| failed == gate),
            "{gate}: {gates:?}"
        );
    }
    assert!(
        stopped.json()["stopped"]
            .as_str()
            .unwrap()
            .contains("at 1 tasks")
    );
    assert!(!workspace.path("silent/rung-2").exists());

    let with = |windows: &[u64], n_refused, n_broken| {
        ModelServer::start(Behaviour {
            windows: windows.to_vec(),
            n_refused,
            n_broken,
        })
    };
    let refusing = with(&[32_768], 1, 0);
    let stopped = climb(&workspace, &refusing.address, "refusing", &[]).expect(11);
    assert!(
        failed(&stopped.json()).contains(&"context".to_owned()),
        "{}",
        stopped.stdout
    );

    // A server that answers every call with nothing, as behind a parser that eats the text.
    let empty = workspace.script("empty", &[""; 5]);
    let stopped = climb(
        &workspace,
        &empty,
        "empty",
        &["--set", "agent.step_limit=3"],
    )
    .expect(11);
    assert_eq!(failed(&stopped.json()), ["assistant-turns"]);
    assert!(
        stopped.stdout.contains("each of 3 replies is empty"),
        "{}",
        stopped.stdout
    );

    // The call is repeated and succeeds, the trial is solved, and the rung does not hold.
    let broken = with(&[32_768], 0, 1);
    let stopped = climb(&workspace, &broken.address, "broken", &[]).expect(11);
    assert_eq!(
        failed(&stopped.json()),
        ["infrastructure"],
        "{}",
        stopped.stdout
    );

    // The server comes back with another window between two rungs.
    let changed = with(&[32_768, 16_384], 0, 0);
    let stopped = climb(&workspace, &changed.address, "changed", &[]).expect(11);
    let record: Value =
        serde_json::from_slice(&fs::read(workspace.path("changed/canary.json")).unwrap()).unwrap();
    assert_eq!(record, stopped.json());
    assert!(
        record["stopped"]
            .as_str()
            .unwrap()
            .contains("declares 16384"),
        "{record}"
    );
    let changed = with(&[16_384, 8_192], 0, 0);
    let stopped = climb(
        &workspace,
        &changed.address,
        "let-pass",
        &["--allow-context-mismatch"],
    )
    .expect(11);
    assert_eq!(failed(&stopped.json()), ["identity"], "{}", stopped.stdout);

    let good = with(&[32_768], 0, 0);
    climb(&workspace, &good.address, "good", &[]).expect(0);
    assert!(good.n_lists.load(std::sync::atomic::Ordering::SeqCst) >= 2);
}
