//! `temper run`: one agent on a suite.

use std::path::PathBuf;

use clap::Args;

use crate::{
    agents::{self, Agent},
    args::{FormatArgs, SuiteArgs, TrialArgs},
    comparison,
    error::CliError,
    exit_code,
    jobs::{self, Done, Request},
    output,
    places::Places,
    run_profile,
    sandboxes::Sandboxes,
    tasks,
};

/// `temper run`
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Tasks.
    #[command(flatten)]
    pub suite: SuiteArgs,
    /// noop, oracle, search, mend, or a model: embedded, embedded:MODEL, http://HOST:PORT[/v1][#MODEL],
    /// openai:MODEL, scripted:FILE, replay:FILE
    #[arg(long, short, value_name = "AGENT")]
    pub agent: String,
    /// The job's directory; one that exists is resumed
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,
    /// Run only this part of the trials: INDEX/COUNT
    #[arg(long, value_name = "I/N")]
    pub shard: Option<temper_agent::job::Shard>,
    /// Trials.
    #[command(flatten)]
    pub trials: TrialArgs,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Runs or resumes the job, and prints its summary.
pub fn run(args: &RunArgs, places: &Places) -> Result<u8, CliError> {
    let profile = agents::profile(&args.trials)?;
    let agent = Agent::resolve(&args.agent, &args.trials, &profile, places)?;
    let profile = agent.profile(&profile)?;
    run_profile::check_audit([&agent], &args.trials)?;
    run_profile::check_context(&agent, &profile, &args.trials)?;
    let sandboxes = Sandboxes::open_for_untrusted(&args.trials.sandbox)?;
    output::note(&sandboxes.summary());
    output::note(&profile.statement());
    let suite = tasks::prepare(&args.suite, places, args.trials.workers)?;
    let Done { job, code, .. } = jobs::run(&Request {
        directory: args.output.clone(),
        agent: &agent,
        profile: &profile,
        suite: &suite,
        sandboxes: &sandboxes,
        trials: &args.trials,
        shard: args.shard,
        workers: None,
        places,
    })?;
    if job.trials()?.is_empty() {
        return Ok(code);
    }
    let records = comparison::read_jobs(&[job.path().to_owned()])?;
    let comparison = comparison::compare(&records, &temper_eval::Options::default())?;
    let arm = &comparison.arms[0];
    output::data(
        &args
            .format
            .format
            .one(arm, || temper_report::terminal::summary(arm)),
    );
    for note in comparison::continuity_notes(&records)? {
        output::note(&format!("note: {note}"));
    }
    output::note(&format!("job: {}", job.path().display()));
    if code == exit_code::SUCCESS && arm.trials_solved.n_scored == 0 {
        return Ok(exit_code::ALL_LOST);
    }
    Ok(code)
}
