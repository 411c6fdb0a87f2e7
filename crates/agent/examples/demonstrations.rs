//! How many tasks of a suite the demonstrator shows a verified way to solve, how long its
//! trajectories are, and how many trials a minute are made:
//!
//! ```text
//! cargo run --release -p temper-agent --example demonstrations -- SUITE CACHE JOB [ATTEMPTS [wrong]]
//! ```
//!
//! `CACHE` is Temper's cache directory and `JOB` a new directory for the trials. `wrong` asks for
//! demonstrations that go wrong first.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    path::Path,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use temper_agent::{
    baselines::demonstrator::{DemonstratorFactory, DemonstratorSettings, FirstTry, GaveUp},
    job::{self, Options, Plan, TaskEntry},
    model::ModelFactory,
    profile::{ProfileName, ResolvedProfile},
    trajectory_file,
    trial::TrialContext,
};
use temper_core::{
    AgentName,
    manifest::{Manifest, Producer},
};
use temper_sandbox::{Demand, Limits, Network, namespaces::Namespaces};
use temper_tasks::{
    cache::Cache,
    fetch::{FetchOptions, Fetcher},
    prepare::{Tools, prepare},
};

fn main() {
    temper_sandbox::namespaces::run_launcher_if_asked();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [suite, cache, directory] = [0, 1, 2].map(|at| Path::new(&arguments[at]));
    let attempts = arguments.get(3).map_or(1, |text| text.parse().unwrap());
    let settings = DemonstratorSettings {
        first_try: match arguments.get(4).map(String::as_str) {
            Some("wrong") => FirstTry::Wrong,
            _ => FirstTry::Right,
        },
        ..DemonstratorSettings::default()
    };
    let cache = Cache::open(cache).unwrap();
    let options = FetchOptions {
        index: std::env::var("PIP_INDEX_URL")
            .ok()
            .or_else(|| Some("https://pypi.org/simple".into())),
        ..FetchOptions::default()
    };
    let fetcher = Fetcher::new(cache.clone(), options).unwrap();
    let tools = Tools::new(fetcher, None, std::env::var_os("PATH").unwrap());
    let mut tasks = BTreeMap::new();
    let mut entries = Vec::new();
    for task in temper_tasks::load(suite, None).unwrap().tasks {
        let prepared = prepare(&task, &cache, &tools).unwrap().task;
        entries.push(TaskEntry::new(
            &task,
            Some(prepared.environment_digest.clone()),
        ));
        tasks.insert(task.id.clone(), Ok(prepared));
    }
    let n_tasks = entries.len();
    let models = DemonstratorFactory { settings };
    let profile = ResolvedProfile::embedded(ProfileName::ProjectHardened).unwrap();
    let backend = Namespaces::new();
    let cancel = AtomicBool::new(false);
    let context = TrialContext {
        agent: AgentName::new("demonstrator").unwrap(),
        profile: &profile,
        models: &models,
        tasks,
        backend: &backend,
        limits: Limits::default(),
        demand: Demand::default(),
        network: Network::None,
        wall_limit: Duration::from_secs(600),
        deadline: None,
        seed: 0,
        cancel: &cancel,
        is_job_limit: &|_| false,
        now: &|| "2000-01-01T00:00:00Z".into(),
    };
    let plan = Plan {
        directory: directory.to_owned(),
        manifest: Manifest {
            format: Manifest::FORMAT,
            kind: "job".into(),
            producer: Producer {
                name: "temper".into(),
                version: "measure".into(),
            },
            inputs: BTreeMap::new(),
            config: models.describe(),
            seed: 0,
        },
        tasks: entries,
        attempts,
    };
    let options = Options {
        workers: 2,
        shard: None,
        max_retries: 0,
        redo_lost: false,
    };
    let began = Instant::now();
    let (job, summary) = job::run(&plan, &options, &context, &|_| {}, &cancel).unwrap();
    let minutes = began.elapsed().as_secs_f64() / 60.0;

    let mut solved_tasks = std::collections::BTreeSet::new();
    let (mut n_solved, mut n_trials, mut steps) = (0, 0, Vec::new());
    let mut others: BTreeMap<String, usize> = BTreeMap::new();
    job.for_each_trial(|trial| {
        n_trials += 1;
        if trial.solved() == Some(true) {
            n_solved += 1;
            steps.push(trial.n_steps);
            solved_tasks.insert(trial.task_id.clone());
            return;
        }
        let key = job::TrialKey {
            task_id: trial.task_id.clone(),
            attempt: trial.attempt,
        };
        let path = job.trial_directory(&key).join("trajectory.jsonl");
        let trajectory = trajectory_file::read(&path).ok();
        let last = trajectory.and_then(|read| read.steps.last().map(|step| step.reply.clone()));
        let gave_up = last.as_ref().and_then(GaveUp::read);
        let why = match (&trial.failure, gave_up) {
            (Some(failure), _) => failure.message.clone(),
            (_, Some(why)) => format!("{why:?}"),
            _ => format!("{:?}", trial.verdict.resolution),
        };
        println!("{} {}: {why}", trial.task_id, trial.attempt);
        *others.entry(why).or_default() += 1;
    })
    .unwrap();
    steps.sort_unstable();
    println!(
        "tasks with a verified demonstration: {} of {n_tasks}",
        solved_tasks.len()
    );
    println!("verified trials: {n_solved} of {n_trials}; others: {others:?}");
    println!("steps, median: {:?}", steps.get(steps.len() / 2));
    println!("trials a minute: {:.1}", summary.n_run as f64 / minutes);
}
