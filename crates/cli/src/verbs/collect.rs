//! `temper collect`: candidates from a teacher for the training tasks of a suite.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use clap::Args as ClapArgs;
use serde_json::json;
use temper_agent::{
    collect::{
        self, Branches, CollectError, CollectTask, Collection, Progress, Run, Store, StoreError,
        TeacherKind,
    },
    profile::ResolvedProfile,
    trial::TrialContext,
};
use temper_core::trajectory::Limit;

use crate::{
    agents::{self, Agent},
    args::{FormatArgs, SplitArg, SuiteArgs, TrialArgs},
    clock,
    error::CliError,
    exit_code, jobs, output,
    places::Places,
    run_profile,
    sandboxes::Sandboxes,
    tasks::{self, PreparedSuite},
};

/// `temper collect`
#[derive(ClapArgs, Debug, Clone)]
pub struct CollectArgs {
    /// Tasks. Only training tasks can be given; the default is all of them.
    #[command(flatten)]
    pub suite: SuiteArgs,
    /// demonstrator, demonstrator-plain, either with -recovery, demonstrator-search, search, or a model as for `run
    /// --agent`
    #[arg(long, value_name = "TEACHER")]
    pub teacher: String,
    /// Label the teacher as the policy that is to be trained: rejection sampling
    #[arg(long)]
    pub policy: bool,
    /// The collection's directory; what is in it already is taken
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,
    /// Continue each failed candidate this often from one state
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub branches: Option<u32>,
    /// Take failed candidates up again this many steps before their end [default: 2]
    #[arg(long, value_name = "N", requires = "branches", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub steps_back: Option<u32>,
    /// Trials.
    #[command(flatten)]
    pub trials: TrialArgs,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Collects what is missing and prints what there is.
pub fn run(args: &CollectArgs, places: &Places) -> Result<u8, CliError> {
    if args.trials.redo_lost {
        return Err(CliError::new(
            exit_code::USAGE,
            "use --redo-lost: a collection always tries lost trials again",
        ));
    }
    if args.trials.identity.model_audit.is_some() || args.trials.identity.dataset.is_some() {
        return Err(CliError::new(
            exit_code::USAGE,
            "use --model-audit or --dataset: a collection keeps no run profile",
        ));
    }
    let profile = agents::profile(&args.trials)?;
    let (agent, kind) =
        Agent::resolve_teacher(&args.teacher, args.policy, &args.trials, &profile, places)?;
    let profile = agent.profile(&profile)?;
    run_profile::check_context(&agent, &profile, &args.trials)?;
    let sandboxes = Sandboxes::open_for_untrusted(&args.trials.sandbox)?;
    output::note(&sandboxes.summary());
    output::note(&profile.statement());
    let mut suite = args.suite.clone();
    suite.split.get_or_insert(SplitArg::Train);
    let suite = tasks::prepare(&suite, places, args.trials.workers)?;
    let branches = args.branches.map(|n_continuations| Branches {
        n_continuations,
        steps_back: args.steps_back.unwrap_or(Branches::default().steps_back),
        ..Branches::default()
    });
    let Collected { run, code } = collect_into(&Request {
        agent: &agent,
        kind,
        profile: &profile,
        sandboxes: &sandboxes,
        suite: &suite,
        trials: &args.trials,
        branches,
        output: &args.output,
        places,
    })?;

    let [trials, tokens, money, seconds] = run.saved();
    let value = json!({
        "teacher": run.teacher,
        "n_tasks": run.tasks.len(),
        "n_tasks_verified": run.n_tasks_verified(),
        "n_candidates": run.total.n_candidates,
        "n_verified": n_verified(&run),
        "n_lost": run.lost.len(),
        "n_left": run.n_left,
        "total": run.total,
        "reused": run.reused,
        "saved": { "trials": trials, "tokens": tokens, "money": money, "seconds": seconds },
        "tasks": run.tasks,
    });
    output::data(&args.format.format.one(&value, || table(&run)));
    output::note(&format!("collection: {}", args.output.display()));
    Ok(code)
}

/// What is collected, from whom and how.
pub struct Request<'a> {
    /// The teacher.
    pub agent: &'a Agent,
    /// Its label.
    pub kind: TeacherKind,
    /// Its profile.
    pub profile: &'a ResolvedProfile,
    /// Where commands run.
    pub sandboxes: &'a Sandboxes,
    /// The tasks; one of another split than train is an error.
    pub suite: &'a PreparedSuite,
    /// How trials run.
    pub trials: &'a TrialArgs,
    /// Continuations of failed candidates.
    pub branches: Option<Branches>,
    /// The collection's directory.
    pub output: &'a Path,
    /// Places.
    pub places: &'a Places,
}

/// What came of it.
pub struct Collected {
    /// The run's record.
    pub run: Run,
    /// The exit code that it deserves.
    pub code: u8,
}

/// Samples, replays and judges what the collection lacks.
pub fn collect_into(request: &Request<'_>) -> Result<Collected, CliError> {
    let Request {
        agent,
        sandboxes,
        trials,
        ..
    } = request;
    let mut training = Vec::new();
    for (_, prepared) in request.suite.iter() {
        // One that could not be prepared has been reported.
        if let Ok(prepared) = prepared {
            let task = CollectTask::try_from(prepared.clone()).map_err(|error| {
                CliError::new(exit_code::INPUT, error).hint("teachers see training tasks alone")
            })?;
            training.push(task);
        }
    }

    let cancel = jobs::stop_flag()?;
    let store = Store::open(request.output).map_err(store_error)?;
    let budget_spent = AtomicBool::new(false);
    let context = TrialContext {
        agent: agent.name.clone(),
        profile: request.profile,
        models: agent.models.as_ref(),
        tasks: BTreeMap::new(),
        backend: sandboxes.backend.as_ref(),
        limits: sandboxes.limits.clone(),
        demand: sandboxes.demand.clone(),
        network: sandboxes.network,
        wall_limit: Duration::from_secs(trials.trial_timeout),
        deadline: None,
        seed: trials.seed,
        cancel,
        is_job_limit: &|_| false,
        now: &clock::now,
    };
    let unlimited = Collection {
        context: &context,
        kind: request.kind,
        n_candidates: trials.attempts,
        branches: request.branches,
        workers: agent.workers(trials.workers),
        max_retries: trials.max_retries,
    };
    // The budget is no part of the request, so that a larger one goes on with the same.
    let spent = store
        .spent(&collect::request(&unlimited))
        .map_err(store_error)?;
    let ledger = jobs::ledger(&trials.budget, spent)?;
    let models = agent.with_budget(&ledger)?;
    let is_job_limit = |limit: Limit| {
        let is_job_limit = match limit {
            Limit::Tokens | Limit::Money => true,
            Limit::WallTime => ledger.deadline().is_some_and(|end| Instant::now() >= end),
            _ => false,
        };
        if is_job_limit {
            budget_spent.store(true, Ordering::Relaxed);
        }
        is_job_limit
    };
    let limited = TrialContext {
        agent: agent.name.clone(),
        models: &models,
        tasks: BTreeMap::new(),
        limits: sandboxes.limits.clone(),
        demand: sandboxes.demand.clone(),
        deadline: ledger.deadline(),
        is_job_limit: &is_job_limit,
        ..context
    };
    let collection = Collection {
        context: &limited,
        ..unlimited
    };
    let run = collect::collect(&collection, &training, &store, &|event| {
        if !request.places.quiet {
            output::note(&line(&event));
        }
    })
    .map_err(|CollectError::Store(error)| store_error(error))?;
    let code = if cancel.load(Ordering::Relaxed) {
        exit_code::INTERRUPTED
    } else if budget_spent.load(Ordering::Relaxed) {
        output::note("the budget is spent; run the same command with a larger one to go on");
        exit_code::BUDGET
    } else if run.total.n_candidates == 0 && !run.lost.is_empty() {
        exit_code::ALL_LOST
    } else {
        exit_code::SUCCESS
    };
    Ok(Collected { run, code })
}

fn n_verified(run: &Run) -> usize {
    let candidates = run.tasks.iter().flat_map(|task| task.candidates.values());
    candidates
        .filter(|verified| **verified == Some(true))
        .count()
}

fn table(run: &Run) -> String {
    let share = |value: Option<f64>| {
        value.map_or("none spent".to_owned(), |value| {
            format!("{:.0} %", value * 100.0)
        })
    };
    let [trials, tokens, money, seconds] = run.saved().map(share);
    format!(
        "teacher               {}\n\
         tasks                 {}, with a verified candidate {}\n\
         candidates            {}, verified {}\n\
         lost                  {}\n\
         left                  {}\n\
         saved by reuse        trials {trials}, tokens {tokens}, money {money}, time {seconds}\n",
        run.teacher.name,
        run.tasks.len(),
        run.n_tasks_verified(),
        run.total.n_candidates,
        n_verified(run),
        run.lost.len(),
        run.n_left,
    )
}

fn line(event: &Progress<'_>) -> String {
    match event {
        Progress::Candidate {
            task,
            candidate,
            graded,
            taken,
        } => {
            let what = match (graded, candidate.gave_up, &candidate.failure) {
                (Some(graded), _, _) if graded.verified() => "verified".to_owned(),
                (_, Some(why), _) => format!("gave up: {why:?}"),
                (Some(graded), ..) => format!("{:?}", graded.verdict.resolution),
                (None, _, Some(failure)) => format!("nothing to judge: {}", failure.message),
                (None, ..) => "nothing to judge".to_owned(),
            };
            format!("{task} {}: {what} ({taken:?})", candidate.key.name)
        }
        Progress::Lost { task, failure } => format!("{task}: lost: {}", failure.message),
    }
}

/// An error of a collection's files for the user.
pub fn store_error(error: StoreError) -> CliError {
    let code = match &error {
        StoreError::Busy(_) | StoreError::Corrupt { .. } => exit_code::INPUT,
        StoreError::File { .. } => exit_code::FAILURE,
    };
    CliError::new(code, error)
}
