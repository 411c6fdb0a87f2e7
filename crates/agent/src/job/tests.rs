use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

use temper_core::{
    AgentName, Boundary, Failure, Patch, SourceGroup, Trial, Verdict,
    manifest::Producer,
    trajectory::Exit,
    trial::{PatchSource, Timing},
    usage::Usage,
    verdict::Resolution,
};

use super::*;

fn entry(id: &str) -> TaskEntry {
    TaskEntry {
        id: TaskId::new(id).unwrap(),
        digest: Digest::of(id.as_bytes()),
        environment_digest: None,
        source_group: SourceGroup::new("g").unwrap(),
        split: Split::Test,
        statement: "fix it".into(),
        origin: Origin::default(),
    }
}

fn plan(directory: &std::path::Path, ids: &[&str], attempts: u32) -> Plan {
    let tasks: Vec<_> = ids.iter().map(|id| entry(id)).collect();
    Plan {
        directory: directory.to_owned(),
        manifest: Manifest {
            format: Manifest::FORMAT,
            kind: "job".into(),
            producer: Producer {
                name: "temper".into(),
                version: "test".into(),
            },
            inputs: tasks
                .iter()
                .map(|task| (task.id.to_string(), task.digest.clone()))
                .collect::<BTreeMap<_, _>>(),
            config: serde_json::json!({
                "agent": { "name": "a" },
                "profile": { "name": "p", "step_limit": 5 },
                "attempts": attempts,
            }),
            seed: 1,
        },
        tasks,
        attempts,
    }
}

fn trial(key: &TrialKey, failure: Option<Failure>) -> Trial {
    Trial {
        format: Trial::FORMAT,
        task_id: key.task_id.clone(),
        task_digest: Digest::of(key.task_id.as_str().as_bytes()),
        source_group: SourceGroup::new("g").unwrap(),
        agent: AgentName::new("a").unwrap(),
        attempt: key.attempt,
        seed: key.seed(1),
        exit: Exit::Submitted,
        patch: Some(Patch("--- a\n".into())),
        patch_source: PatchSource::WorkTree,
        verdict: Verdict::bare(Resolution::Unresolved, "test"),
        failure,
        n_model_calls: 1,
        n_steps: 1,
        usage: Usage::default(),
        cost: None,
        timing: Timing::default(),
        n_retries: 0,
        started_at: "2026-01-01T00:00:00Z".into(),
        finished_at: "2026-01-01T00:00:01Z".into(),
    }
}

const OPTIONS: Options = Options {
    workers: 3,
    shard: None,
    max_retries: 2,
    redo_lost: false,
};

struct Runner<F>(F);

impl<F: Fn(&TrialKey, u32) -> Result<Trial, Cancelled> + Sync> TrialRunner for Runner<F> {
    fn run(
        &self,
        key: &TrialKey,
        directory: &std::path::Path,
        n_retries: u32,
    ) -> Result<Trial, Cancelled> {
        std::fs::write(directory.join("patch.diff"), b"--- a\n").unwrap();
        (self.0)(key, n_retries)
    }
}

fn run_with(
    plan: &Plan,
    options: &Options,
    runner: impl Fn(&TrialKey, u32) -> Result<Trial, Cancelled> + Sync,
) -> Result<Summary, JobError> {
    run(
        plan,
        options,
        &Runner(runner),
        &|_| {},
        &AtomicBool::new(false),
    )
    .map(|(_, summary)| summary)
}

#[test]
fn a_second_run_does_exactly_the_missing_trials() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("job");
    let plan = plan(&root, &["a", "b", "org/c"], 2);
    let calls = AtomicU32::new(0);
    let runner = |key: &TrialKey, _: u32| {
        calls.fetch_add(1, Ordering::Relaxed);
        Ok(trial(key, None))
    };
    let summary = run_with(&plan, &OPTIONS, runner).unwrap();
    assert_eq!(
        (summary.n_run, summary.n_resumed, summary.n_left),
        (6, 0, 0)
    );
    std::fs::remove_dir_all(root.join("trials/org%2Fc/1")).unwrap();
    let summary = run_with(&plan, &OPTIONS, runner).unwrap();
    assert_eq!((summary.n_run, summary.n_resumed), (1, 5));
    assert_eq!(calls.into_inner(), 7);
    assert_eq!(
        std::fs::read_dir(root.join("unfinished")).unwrap().count(),
        0
    );
}

#[test]
fn a_changed_setting_is_refused_by_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("job");
    let first = plan(&root, &["a"], 1);
    run_with(&first, &OPTIONS, |key, _| Ok(trial(key, None))).unwrap();

    let mut changed = first.clone();
    changed.manifest.config["profile"]["step_limit"] = 6.into();
    let error = run_with(&changed, &OPTIONS, |_, _| unreachable!()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("config.profile.step_limit differs: it has 5, this run has 6"),
        "{error}"
    );
    let mut changed = first.clone();
    changed
        .manifest
        .inputs
        .insert("a".into(), Digest::of(b"other"));
    let error = run_with(&changed, &OPTIONS, |_, _| unreachable!()).unwrap_err();
    assert!(error.to_string().contains("inputs.a differs"), "{error}");
}

#[test]
fn shards_cover_a_job_once() {
    let directory = tempfile::tempdir().unwrap();
    let plan = plan(&directory.path().join("job"), &["a", "b", "c", "d", "e"], 3);
    let mut n_run = 0;
    for index in 1..=4 {
        let options = Options {
            shard: Shard::new(index, 4),
            ..OPTIONS
        };
        let summary = run_with(&plan, &options, |key, _| Ok(trial(key, None))).unwrap();
        assert_eq!((summary.n_resumed, summary.n_left), (0, 0));
        n_run += summary.n_run;
    }
    assert_eq!(n_run, 15);
    assert!("0/4".parse::<Shard>().is_err() && "5/4".parse::<Shard>().is_err());
}

fn sandbox_failure(retryable: bool) -> Failure {
    Failure {
        boundary: Boundary::Sandbox,
        class: "SandboxStart".into(),
        message: "no space".into(),
        retryable,
    }
}

#[test]
fn only_failures_of_the_infrastructure_are_retried_and_only_so_often() {
    let directory = tempfile::tempdir().unwrap();
    let plan = plan(
        &directory.path().join("job"),
        &["flaky", "broken", "final", "wrong"],
        1,
    );
    let calls = std::sync::Mutex::new(BTreeMap::new());
    run_with(&plan, &OPTIONS, |key, n_retries| {
        let id = key.task_id.to_string();
        *calls.lock().unwrap().entry(id.clone()).or_insert(0) += 1;
        let failure = match id.as_str() {
            "flaky" => (n_retries == 0).then(|| sandbox_failure(true)),
            "broken" => Some(sandbox_failure(true)),
            "final" => Some(sandbox_failure(false)),
            _ => None,
        };
        Ok(trial(key, failure))
    })
    .unwrap();
    let calls = calls.into_inner().unwrap();
    let count = |id: &str| calls[id];
    assert_eq!(
        (
            count("flaky"),
            count("broken"),
            count("final"),
            count("wrong")
        ),
        (2, 3, 1, 1)
    );

    // What was lost stays lost until the user asks for it again; what failed stays failed.
    let summary = run_with(&plan, &OPTIONS, |_, _| unreachable!()).unwrap();
    assert_eq!(summary.n_run, 0);
    let options = Options {
        redo_lost: true,
        ..OPTIONS
    };
    let summary = run_with(&plan, &options, |key, _| Ok(trial(key, None))).unwrap();
    assert_eq!(summary.n_run, 2);
}

#[test]
fn a_stopped_run_leaves_a_job_that_can_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("job");
    let plan = plan(&root, &["a", "b", "c", "d"], 1);
    let cancel = AtomicBool::new(false);
    let options = Options {
        workers: 1,
        ..OPTIONS
    };
    let runner = Runner(|key: &TrialKey, _| {
        if key.task_id.as_str() == "b" {
            cancel.store(true, Ordering::Relaxed);
            return Err(Cancelled);
        }
        Ok(trial(key, None))
    });
    let (_, summary) = run(&plan, &options, &runner, &|_| {}, &cancel).unwrap();
    assert_eq!((summary.n_run, summary.n_left), (1, 3));
    assert_eq!(
        std::fs::read_dir(root.join("unfinished")).unwrap().count(),
        0
    );
    let summary = run_with(&plan, &options, |key, _| Ok(trial(key, None))).unwrap();
    assert_eq!((summary.n_run, summary.n_resumed), (3, 1));
}

#[test]
fn leftovers_of_dead_processes_are_removed_and_those_of_live_ones_stay() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("job");
    let plan = plan(&root, &["a"], 1);
    let unfinished = root.join("unfinished");
    std::fs::create_dir_all(unfinished.join("dead")).unwrap();
    std::fs::write(unfinished.join("dead.lock"), b"").unwrap();
    std::fs::create_dir_all(unfinished.join("live")).unwrap();
    let live = std::fs::File::create(unfinished.join("live.lock")).unwrap();
    live.lock().unwrap();
    run_with(&plan, &OPTIONS, |key, _| Ok(trial(key, None))).unwrap();
    assert!(!unfinished.join("dead").exists() && !unfinished.join("dead.lock").exists());
    assert!(unfinished.join("live").exists());
}

#[test]
fn a_run_killed_while_making_the_job_does_not_stand_in_the_way() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("job");
    let plan = plan(&root, &["a"], 1);
    std::fs::create_dir_all(root.join("trials")).unwrap();
    std::fs::write(root.join("tasks.json.17.0.new"), b"[").unwrap();
    std::fs::write(root.join("manifest.json.17.1.new"), b"").unwrap();
    let summary = run_with(&plan, &OPTIONS, |key, _| Ok(trial(key, None))).unwrap();
    assert_eq!(summary.n_run, 1);
}

#[test]
fn a_foreign_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("thesis.tex"), b"").unwrap();
    let plan = plan(directory.path(), &["a"], 1);
    let error = run_with(&plan, &OPTIONS, |_, _| unreachable!()).unwrap_err();
    assert!(matches!(error, JobError::NotAJob { .. }), "{error}");
    assert!(!directory.path().join("manifest.json").exists());
}

#[test]
fn outputs_keep_lost_apart_from_unresolved() {
    let directory = tempfile::tempdir().unwrap();
    let plan = plan(
        &directory.path().join("job"),
        &["lost", "solved", "wrong", "empty"],
        1,
    );
    run_with(&plan, &OPTIONS, |key, _| {
        let mut trial = trial(key, None);
        match key.task_id.as_str() {
            "lost" => {
                trial.failure = Some(sandbox_failure(false));
                trial.verdict = Verdict::lost("test", "no sandbox");
                trial.patch = None;
            }
            "solved" => trial.verdict.resolution = Resolution::Resolved,
            "empty" => trial.verdict.resolution = Resolution::EmptyPatch,
            _ => {}
        }
        Ok(trial)
    })
    .unwrap();
    let job = JobDirectory::open(directory.path().join("job")).unwrap();
    outputs::write(&job).unwrap();
    let read = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(job.path().join(name)).unwrap()).unwrap()
    };
    let report = read("a.job.json");
    assert_eq!(report["total_instances"], 4);
    assert_eq!(report["resolved_ids"], serde_json::json!(["solved"]));
    assert_eq!(report["unresolved_ids"], serde_json::json!(["wrong"]));
    assert_eq!(report["empty_patch_ids"], serde_json::json!(["empty"]));
    assert_eq!(report["infra_failure_ids"], serde_json::json!(["lost"]));
    assert_eq!(read("preds.json")["lost"]["model_patch"], "");
    let result = read("result.json");
    let lost = &result["trial_results"][0];
    assert_eq!(lost["task_name"], "lost");
    assert!(lost["verifier_result"].is_null() && lost["reward_valid"] == false);
    let rewards = &result["stats"]["evals"]["a__adhoc"]["reward_stats"]["reward"];
    assert_eq!(rewards["1"], serde_json::json!(["solved__0"]));
    assert_eq!(rewards["0"], serde_json::json!(["wrong__0", "empty__0"]));
}
