//! Jobs through the binary: run, resume, refuse, stop, shard, kill.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use crate::{
    model_server::{Behaviour, ModelServer},
    support::{Ran, Workspace, bash, submit},
};

const SUITE: [&str; 2] = ["--suite", "suite"];

fn solver(workspace: &Workspace) -> String {
    workspace.script(
        "solver",
        &[&bash("ls"), &bash("echo yes > answer.txt"), &submit()],
    )
}

/// Resolution and patch of every trial, by task and attempt.
fn results(job: &Path) -> BTreeMap<String, (String, String)> {
    let mut results = BTreeMap::new();
    for task in fs::read_dir(job.join("trials")).unwrap() {
        let task = task.unwrap();
        for attempt in fs::read_dir(task.path()).unwrap() {
            let attempt = attempt.unwrap();
            let name = format!(
                "{}/{}",
                task.file_name().to_string_lossy(),
                attempt.file_name().to_string_lossy()
            );
            let text = fs::read(attempt.path().join("trial.json")).unwrap();
            let trial: serde_json::Value = serde_json::from_slice(&text).unwrap();
            let field = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
            results.insert(
                name,
                (
                    field(&trial["verdict"]["resolution"]),
                    field(&trial["patch"]),
                ),
            );
        }
    }
    results
}

#[test]
fn a_scripted_agent_solves_and_its_trajectory_is_kept() {
    let workspace = Workspace::new(2);
    let agent = solver(&workspace);
    let ran = workspace
        .run(&[
            "run", SUITE[0], SUITE[1], "--agent", &agent, "-o", "job", "--format", "json",
        ])
        .expect(0);
    let summary = ran.json();
    assert_eq!(summary["trials_solved"]["n"], 2);
    assert_eq!(summary["trials_solved"]["n_solved"], 2);

    let trial = workspace.path("job/trials/answer-000/0");
    let patch = fs::read_to_string(trial.join("patch.diff")).unwrap();
    assert!(patch.contains("-no\n+yes\n"), "{patch}");
    let lines: Vec<serde_json::Value> = fs::read_to_string(trial.join("trajectory.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let kinds: Vec<_> = lines
        .iter()
        .map(|line| line["record"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        ["header", "prompt", "prompt", "step", "step", "step", "end"]
    );
    assert_eq!(lines[3]["actions"][0]["output"], "answer.txt\nkeep.txt\n");
    let preds: serde_json::Value =
        serde_json::from_slice(&fs::read(workspace.path("job/preds.json")).unwrap()).unwrap();
    assert_eq!(preds["answer-001"]["model_patch"].as_str().unwrap(), patch);
}

#[test]
fn resuming_does_what_is_missing_and_refuses_what_differs() {
    let workspace = Workspace::new(3);
    let agent = solver(&workspace);
    let run = |more: &[&str]| -> Ran {
        let mut arguments = vec!["run", SUITE[0], SUITE[1], "--agent", &agent, "-o", "job"];
        arguments.extend(more);
        workspace.run(&arguments)
    };
    run(&[]).expect(0);
    let before = results(&workspace.path("job"));
    fs::remove_dir_all(workspace.path("job/trials/answer-001")).unwrap();
    let ran = run(&[]).expect(0);
    assert!(
        ran.stderr.contains("3 trials, 2 of them finished before"),
        "{}",
        ran.stderr
    );
    assert_eq!(results(&workspace.path("job")), before);

    let ran = run(&["--seed", "1"]).expect(6);
    assert!(
        ran.stderr
            .contains("seed differs: it has 0, this run has 1"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("hint:"), "{}", ran.stderr);
    let ran = run(&["--set", "agent.step_limit=7"]).expect(6);
    assert!(ran.stderr.contains("config.profile"), "{}", ran.stderr);
    fs::write(
        workspace.path("suite/tasks/answer-002/start/answer.txt"),
        "No\n",
    )
    .unwrap();
    let ran = run(&[]).expect(6);
    assert!(
        ran.stderr.contains("inputs.answer-002 differs"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_model_that_never_answers_is_lost_and_not_unsolved() {
    let workspace = Workspace::new(2);
    let agent = workspace.script("silent", &[]);
    let ran = workspace
        .run(&[
            "run", SUITE[0], SUITE[1], "--agent", &agent, "-o", "job", "--format", "json",
        ])
        .expect(8);
    let rate = &ran.json()["trials_solved"];
    assert_eq!(
        (&rate["n"], &rate["n_scored"], &rate["n_lost"]),
        (&2.into(), &0.into(), &2.into())
    );
    let text = fs::read_to_string(workspace.path("job/result.json")).unwrap();
    let result: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(result["trial_results"][0]["verifier_result"].is_null());
}

#[test]
fn a_spent_budget_stops_the_job_and_a_larger_one_goes_on() {
    let workspace = Workspace::new(3);
    let agent = solver(&workspace);
    let run = |budget: &str| -> Ran {
        workspace.run(&[
            "run",
            SUITE[0],
            SUITE[1],
            "--agent",
            &agent,
            "-o",
            "job",
            "--max-tokens",
            budget,
        ])
    };
    let ran = run("10").expect(9);
    assert!(ran.stderr.contains("the budget is spent"), "{}", ran.stderr);
    // Nothing that the budget cut off is a result, lost or otherwise.
    assert_eq!(workspace.path("job/trials").read_dir().unwrap().count(), 0);
    run("100000000").expect(0);
    assert_eq!(results(&workspace.path("job")).len(), 3);
}

#[test]
fn money_stops_the_job_before_it_is_overspent() {
    let workspace = Workspace::new(3);
    let replies = [bash("echo yes > answer.txt"), submit()];
    let agent = workspace.priced_script("priced", &[&replies[0], &replies[1]], 0.01);
    let run = |dollars: &str| -> Ran {
        workspace.run(&[
            "run",
            SUITE[0],
            SUITE[1],
            "--agent",
            &agent,
            "-o",
            "job",
            "-j",
            "1",
            "--max-cost",
            dollars,
        ])
    };
    // A trial takes two calls: the second trial's second call is one too many.
    let ran = run("0.03").expect(9);
    assert!(
        ran.stderr.contains("the budget is spent: 1 of 3"),
        "{}",
        ran.stderr
    );
    assert_eq!(results(&workspace.path("job")).len(), 1);
    run("1").expect(0);
    assert_eq!(results(&workspace.path("job")).len(), 3);

    // Money cannot be kept where nobody knows what a call costs.
    let server = ModelServer::start(Behaviour {
        windows: vec![32_768],
        n_refused: 0,
        n_broken: 0,
    });
    let priceless = workspace
        .run(&[
            "run",
            SUITE[0],
            SUITE[1],
            "--agent",
            &server.address,
            "-o",
            "other",
            "--max-cost",
            "1",
        ])
        .expect(2);
    assert!(priceless.stderr.contains("--price"), "{}", priceless.stderr);
}

#[test]
fn wall_time_stops_the_job_in_the_middle_of_a_command() {
    let workspace = Workspace::new(1);
    let scripted = |name: &str, command: &str| workspace.script(name, &[&bash(command), &submit()]);
    let run = |agent: &str, job: &str, seconds: &str| -> Ran {
        workspace.run(&[
            "run",
            SUITE[0],
            SUITE[1],
            "--agent",
            agent,
            "-o",
            job,
            "--set",
            "environment.timeout=900",
            "--max-seconds",
            seconds,
        ])
    };
    let endless = scripted("endless", "sleep 900");
    let started = Instant::now();
    let ran = run(&endless, "cut", "2").expect(9);
    assert!(started.elapsed() < Duration::from_secs(450));
    assert!(ran.stderr.contains("0 of 1"), "{}", ran.stderr);
    assert!(results(&workspace.path("cut")).is_empty());

    let slow = scripted("slow", "sleep 4; echo yes > answer.txt");
    run(&slow, "job", "2").expect(9);
    // What was spent counts, and a larger budget goes on.
    run(&slow, "job", "2").expect(9);
    run(&slow, "job", "3600").expect(0);
    assert_eq!(results(&workspace.path("job")).len(), 1);
}

#[test]
fn shards_make_one_job() {
    let workspace = Workspace::new(5);
    let agent = solver(&workspace);
    for shard in ["1/3", "2/3", "3/3"] {
        workspace
            .run(&[
                "run", SUITE[0], SUITE[1], "--agent", &agent, "-o", "job", "--shard", shard,
            ])
            .expect(0);
    }
    assert_eq!(results(&workspace.path("job")).len(), 5);
    workspace
        .run(&[
            "run", SUITE[0], SUITE[1], "--agent", &agent, "-o", "job", "--shard", "4/3",
        ])
        .expect(2);
}

#[test]
fn an_interrupt_leaves_a_job_that_goes_on() {
    let workspace = Workspace::new(4);
    let agent = workspace.script(
        "slow",
        &[&bash("sleep 1; echo yes > answer.txt"), &submit()],
    );
    let arguments = [
        "run", SUITE[0], SUITE[1], "--agent", &agent, "-o", "job", "-j", "1",
    ];
    let child = workspace
        .temper(&arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for(|| {
        workspace
            .path("job/unfinished")
            .read_dir()
            .is_ok_and(|mut dir| dir.next().is_some())
    });
    signal(child.id(), "INT");
    let ran = Ran::new(child.wait_with_output().unwrap()).expect(130);
    assert!(
        ran.stderr.contains("run the same command again"),
        "{}",
        ran.stderr
    );
    assert_eq!(
        workspace.path("job/unfinished").read_dir().unwrap().count(),
        0
    );
    workspace.run(&arguments).expect(0);
    let results = results(&workspace.path("job"));
    assert_eq!(results.len(), 4);
    assert!(
        results
            .values()
            .all(|(resolution, _)| resolution == "resolved")
    );
}

/// The moments are spread over the whole run by a fixed sequence, so that a failure can be seen
/// again; set `TEMPER_KILL_SEED` to try others.
#[test]
fn killing_a_job_at_any_moment_loses_nothing() {
    const N_KILLS: u64 = 30;
    let workspace = Workspace::new(8);
    let agent = solver(&workspace);
    let arguments = |job: &str| -> Vec<String> {
        [
            "run", SUITE[0], SUITE[1], "--agent", &agent, "-o", job, "-j", "2", "-q",
        ]
        .map(str::to_owned)
        .to_vec()
    };
    let run = |job: &str| {
        let arguments = arguments(job);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let started = std::time::Instant::now();
        workspace.run(&arguments).expect(0);
        started.elapsed()
    };
    let whole = run("whole");
    let expected = results(&workspace.path("whole"));
    assert_eq!(expected.len(), 8);

    let mut random: u64 = std::env::var("TEMPER_KILL_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1);
    let mut n_killed_at_work = 0;
    // How long a run takes, followed as it changes with what else the machine does.
    let mut span = whole;
    for round in 0..N_KILLS {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let share = (random >> 33) as f64 / (1u64 << 31) as f64;
        let job = format!("job-{round}");
        let child_arguments = arguments(&job);
        let mut child = workspace
            .temper(
                &child_arguments
                    .iter()
                    .map(String::as_str)
                    .collect::<Vec<_>>(),
            )
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(span.mul_f64(share));
        signal(child.id(), "KILL");
        let status = child.wait().unwrap();
        let n_done = workspace
            .path(&format!("{job}/trials"))
            .read_dir()
            .map_or(0, Iterator::count);
        if !status.success() && n_done < 8 {
            n_killed_at_work += 1;
            span = span.mul_f64(1.1);
        } else {
            span = span.mul_f64(0.7);
        }
        run(&job);
        assert_eq!(results(&workspace.path(&job)), expected, "round {round}");
        assert_eq!(
            workspace
                .path(&format!("{job}/unfinished"))
                .read_dir()
                .unwrap()
                .count(),
            0
        );
    }
    assert!(
        n_killed_at_work >= N_KILLS / 3,
        "only {n_killed_at_work} kills met a job at work"
    );
}

fn signal(process: u32, name: &str) {
    let status = std::process::Command::new("kill")
        .args([format!("-{name}"), process.to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

fn wait_for(condition: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "waited too long");
        std::thread::sleep(Duration::from_millis(20));
    }
}
