//! `temper evaluate`: agents on a suite, compared, with a report. The main job.

use std::path::PathBuf;

use temper_agent::job::write_atomically;
use temper_eval::mixing;

use crate::{
    agents::{self, Agent},
    args::EvaluateArgs,
    clock, comparison,
    error::CliError,
    exit_code,
    jobs::{self, Request},
    output,
    places::Places,
    run_profile,
    sandboxes::Sandboxes,
    tasks,
};

/// Runs a job for each arm, and prints the comparison and the report's path.
pub fn run(args: &EvaluateArgs, places: &Places) -> Result<u8, CliError> {
    let args = &args.resolved();
    let profile = agents::profile(&args.trials)?;
    let mut arms = Vec::new();
    for (role, agent) in args.arms() {
        let agent = Agent::resolve(&agent, &args.trials, &profile, places)?;
        let profile = agent.profile(&profile)?;
        run_profile::check_context(&agent, &profile, &args.trials)?;
        arms.push((role, agent, profile));
    }
    run_profile::check_audit(arms.iter().map(|(_, agent, _)| agent), &args.trials)?;
    // Before anything is spent: what cannot be compared at the end is not begun.
    let mixed = mixing::check(
        &arms
            .iter()
            .map(|(_, agent, profile)| agent.arm_profile(profile))
            .collect::<Vec<_>>(),
    );
    comparison::allowed(mixed, args.allow_mixed)?;
    let sandboxes = Sandboxes::open_for_untrusted(&args.trials.sandbox)?;
    output::note(&sandboxes.summary());
    for (role, agent, profile) in &arms {
        output::note(&format!("{role}: {}, {}", agent.name, agent.kind()));
        output::note(&format!("  {}", profile.statement()));
    }
    let suite = tasks::prepare(&args.suite, places, args.trials.workers)?;
    let output_directory = match &args.output {
        Some(path) => path.clone(),
        None => PathBuf::from("evaluations").join(clock::file_stamp()),
    };

    let mut directories = Vec::new();
    for (role, agent, profile) in &arms {
        let done = jobs::run(&Request {
            directory: output_directory.join(role),
            agent,
            profile,
            suite: &suite,
            sandboxes: &sandboxes,
            trials: &args.trials,
            shard: None,
            workers: None,
            places,
        })?;
        if done.code != exit_code::SUCCESS {
            output::note(&format!(
                "to go on: the same command with --output {}",
                output_directory.display()
            ));
            return Ok(done.code);
        }
        directories.push(done.job.path().to_owned());
    }

    let records = comparison::read_jobs(&directories)?;
    let mut comparison = comparison::compare(&records, &temper_eval::Options::default())?;
    if let Some(mixed) = comparison::check_mixing(&records, args.allow_mixed)? {
        comparison.stamp(mixed);
    }
    let mut text = serde_json::to_vec_pretty(&comparison).expect("a comparison is plain data");
    text.push(b'\n');
    let comparison_path = output_directory.join("comparison.json");
    write_atomically(&comparison_path, &text)?;
    let report_path = output_directory.join("report.html");
    comparison::write_report(&records, &comparison, &[], None, &report_path)?;

    output::data(&args.format.format.one(&comparison, || {
        temper_report::terminal::comparison(&comparison)
    }));
    output::note(&format!(
        "jobs:       {}\ncomparison: {}\nreport:     {}",
        output_directory.display(),
        comparison_path.display(),
        report_path.display()
    ));
    let n_scored: u64 = comparison
        .arms
        .iter()
        .map(|arm| arm.trials_solved.n_scored)
        .sum();
    Ok(if n_scored == 0 {
        exit_code::ALL_LOST
    } else {
        exit_code::SUCCESS
    })
}
