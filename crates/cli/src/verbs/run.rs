//! `temper run`: one agent on a suite.

use crate::{
    agents::{self, Agent},
    args::RunArgs,
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
