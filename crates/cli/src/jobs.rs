//! Runs one job from the command line: one agent on the prepared tasks of a suite.

use std::{
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::json;
use temper_agent::{
    budget::{Ledger, Limits, Scope, Spent},
    job::{self, JobDirectory, JobError, Options, Plan, Shard, TaskEntry, outputs},
    profile::ResolvedProfile,
    trial::TrialContext,
};
use temper_core::{
    Digest,
    manifest::{Manifest, Producer},
    trajectory::Limit,
    usage::MicroDollars,
};

use crate::{
    agents::Agent,
    args::{BudgetArgs, TrialArgs},
    clock,
    error::CliError,
    exit_code, output,
    places::Places,
    progress::Progress,
    run_profile,
    sandboxes::Sandboxes,
    tasks::PreparedSuite,
};

/// One job.
pub struct Request<'a> {
    /// Where it lies.
    pub directory: PathBuf,
    /// The arm.
    pub agent: &'a Agent,
    /// Its profile.
    pub profile: &'a ResolvedProfile,
    /// The tasks.
    pub suite: &'a PreparedSuite,
    /// Where commands run.
    pub sandboxes: &'a Sandboxes,
    /// How.
    pub trials: &'a TrialArgs,
    /// Only a part.
    pub shard: Option<Shard>,
    /// Trials at a time, where it is not for the flags to say.
    pub workers: Option<usize>,
    /// Places.
    pub places: &'a Places,
}

impl Request<'_> {
    /// Trials at a time.
    pub fn n_workers(&self) -> usize {
        match self.workers {
            Some(n) => n.max(1),
            None => self.agent.workers(self.trials.workers),
        }
    }
}

/// A job after a run of it.
pub struct Done {
    /// The job.
    pub job: JobDirectory,
    /// The exit code that the run deserves.
    pub code: u8,
}

/// Runs what is missing of the job, and writes its outputs.
pub fn run(request: &Request<'_>) -> Result<Done, CliError> {
    let cancel = stop_flag()?;
    let plan = plan(request);
    // The identity is on disk before anything is asked or spent.
    run_profile::begin(request, &plan)?;
    let ledger = open_ledger(&request.trials.budget, &request.directory)?;
    let models = request.agent.with_budget(&ledger)?;
    let budget_spent = AtomicBool::new(false);
    let context = TrialContext {
        agent: request.agent.name.clone(),
        profile: request.profile,
        models: &models,
        tasks: request.suite.by_id(),
        backend: request.sandboxes.backend.as_ref(),
        limits: request.sandboxes.limits.clone(),
        demand: request.sandboxes.demand.clone(),
        network: request.sandboxes.network,
        wall_limit: Duration::from_secs(request.trials.trial_timeout),
        deadline: ledger.deadline(),
        seed: request.trials.seed,
        cancel,
        is_job_limit: &|limit| {
            // Trials have no budget of their own besides the profile's, so these limits are the
            // job's; its wall time is told from the trial's by the clock.
            let is_job_limit = match limit {
                Limit::Tokens | Limit::Money => true,
                Limit::WallTime => ledger.deadline().is_some_and(|end| Instant::now() >= end),
                _ => false,
            };
            if is_job_limit {
                budget_spent.store(true, Ordering::Relaxed);
            }
            is_job_limit
        },
        now: &clock::now,
    };
    let engine = request.agent.engine.as_deref();
    let progress = Progress::new(request.agent.name.as_str(), request.places.quiet, engine);
    let options = Options {
        workers: request.n_workers(),
        shard: request.shard,
        max_retries: request.trials.max_retries,
        redo_lost: request.trials.redo_lost,
    };
    let (job, summary) = progress.while_running(|| {
        job::run(
            &plan,
            &options,
            &context,
            &|event| progress.on_event(event),
            cancel,
        )
    })?;
    outputs::write(&job)?;

    let code = if cancel.load(Ordering::Relaxed) {
        output::note(&format!(
            "stopped: {} of {} trials are done; run the same command again to go on",
            summary.n_trials - summary.n_left,
            summary.n_trials
        ));
        exit_code::INTERRUPTED
    } else if budget_spent.load(Ordering::Relaxed) {
        output::note(&format!(
            "the budget is spent: {} of {} trials are done; run the same command with a larger one to go on",
            summary.n_trials - summary.n_left,
            summary.n_trials
        ));
        exit_code::BUDGET
    } else {
        exit_code::SUCCESS
    };
    Ok(Done { job, code })
}

/// What the job is. Whatever can change a result is in here; what cannot, is not.
fn plan(request: &Request<'_>) -> Plan {
    let tasks: Vec<TaskEntry> = request.suite.entries();
    let inputs = tasks
        .iter()
        .map(|task| {
            let digest = Digest::of_value(&(&task.digest, &task.environment_digest));
            (task.id.to_string(), digest)
        })
        .collect();
    Plan {
        directory: request.directory.clone(),
        manifest: Manifest {
            format: Manifest::FORMAT,
            kind: "job".into(),
            producer: Producer {
                name: "temper".into(),
                version: env!("CARGO_PKG_VERSION").into(),
            },
            inputs,
            config: json!({
                "suite": request.suite.name,
                "agent": {
                    "name": request.agent.name,
                    "is_language_model": request.agent.models.is_language_model(),
                    "model": request.agent.models.describe(),
                },
                "profile": request.profile.config(),
                "attempts": request.trials.attempts,
                "trial_timeout_seconds": request.trials.trial_timeout,
                "sandbox": {
                    "backend": request.sandboxes.backend.name(),
                    "limits": request.sandboxes.limits,
                    "demand": request.sandboxes.demand,
                    "host_network": request.trials.sandbox.host_network,
                },
            }),
            seed: request.trials.seed,
        },
        tasks,
        attempts: request.trials.attempts,
    }
}

/// The job's ledger, going on from what its finished trials used.
fn open_ledger(budget: &BudgetArgs, directory: &std::path::Path) -> Result<Arc<Ledger>, CliError> {
    let mut spent = Spent::default();
    match JobDirectory::open(directory) {
        Ok(job) => job.for_each_trial(|trial| spent.add_trial(&trial))?,
        Err(JobError::NotAJob { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    ledger(budget, spent)
}

/// A ledger that goes on from what has been spent.
pub fn ledger(budget: &BudgetArgs, spent: Spent) -> Result<Arc<Ledger>, CliError> {
    let money = match budget.max_cost {
        None => None,
        Some(dollars) => Some(MicroDollars::from_dollars(dollars).ok_or_else(|| {
            CliError::new(
                exit_code::USAGE,
                format!("read --max-cost {dollars}: expected an amount of dollars"),
            )
        })?),
    };
    Ok(Ledger::resumed(
        Scope::Job,
        Limits {
            tokens: budget.max_tokens,
            money,
            calls: None,
            wall_seconds: budget.max_seconds,
        },
        spent,
    ))
}

/// Set by the first Ctrl-C or termination signal. The second one ends the process at once; what
/// is on disk by then is whole either way.
pub fn stop_flag() -> Result<&'static AtomicBool, CliError> {
    static STOP: AtomicBool = AtomicBool::new(false);
    static INSTALLED: OnceLock<Result<(), String>> = OnceLock::new();
    INSTALLED
        .get_or_init(|| {
            ctrlc::set_handler(|| {
                if STOP.swap(true, Ordering::Relaxed) {
                    std::process::exit(i32::from(exit_code::INTERRUPTED));
                }
                output::note("stopping after a clean-up; once more ends at once");
            })
            .map_err(|error| error.to_string())
        })
        .clone()
        .map_err(|error| CliError::new(exit_code::FAILURE, format!("watch for Ctrl-C: {error}")))?;
    Ok(&STOP)
}
