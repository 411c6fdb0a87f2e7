//! `temper evaluate`: agents on a suite, compared, with a report. The main job.

use std::path::PathBuf;

use clap::Args;
use temper_agent::job::write_atomically;
use temper_eval::mixing;

use crate::{
    agents::{self, Agent},
    args::{FormatArgs, SuiteArgs, TrialArgs},
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

/// `temper evaluate`
#[derive(Args, Debug, Clone)]
pub struct EvaluateArgs {
    /// Tasks.
    #[command(flatten)]
    pub suite: SuiteArgs,
    /// The arm to be compared with, as for `run --agent`
    #[arg(long, default_value = "noop", value_name = "AGENT")]
    pub baseline: String,
    /// The arm in question, as for `run --agent` [default: the default model, embedded, beside
    /// `search`, with few steps and short replies]
    #[arg(long, value_name = "AGENT", conflicts_with = "model")]
    pub candidate: Option<String>,
    /// A model as the candidate: embedded, embedded:MODEL, http://HOST:PORT[/v1][#MODEL], openai:MODEL, …
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// One more arm beside these two, as for `run --agent`. May be given more than once
    #[arg(long, value_name = "AGENT")]
    pub beside: Vec<String>,
    /// Where the jobs, the comparison and the report go; one that exists is resumed
    /// [default: evaluations/TIME]
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Compare results of different profiles; the output is stamped
    #[arg(long)]
    pub allow_mixed: bool,
    /// Trials.
    #[command(flatten)]
    pub trials: TrialArgs,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// What the default model gets in the main job, so that it ends in minutes on a small machine. It
/// is drawn from rather than asked for the likeliest token: greedy, a model of this size falls into
/// loops.
const MAIN_JOB_STEPS: u32 = 3;
const MAIN_JOB_REPLY_TOKENS: u32 = 160;
const MAIN_JOB_TEMPERATURE: f32 = 0.7;

impl EvaluateArgs {
    /// The flags with the main job's candidate filled in where none is named.
    pub fn resolved(&self) -> Self {
        let mut args = self.clone();
        if args.candidate.is_none() && args.model.is_none() {
            args.candidate = Some("embedded".into());
            if args.beside.is_empty() {
                args.beside = vec!["search".into()];
            }
            let sampling = &mut args.trials.sampling;
            sampling.embedded_steps.get_or_insert(MAIN_JOB_STEPS);
            sampling
                .embedded_temperature
                .get_or_insert(MAIN_JOB_TEMPERATURE);
            sampling
                .embedded_reply_tokens
                .get_or_insert(MAIN_JOB_REPLY_TOKENS);
        }
        args
    }

    /// The arms with the directories of their jobs, the baseline first.
    pub fn arms(&self) -> Vec<(String, String)> {
        let beside = self.beside.iter().enumerate();
        let mut arms = vec![("baseline".to_owned(), self.baseline.clone())];
        arms.extend(beside.map(|(index, agent)| (format!("beside-{}", index + 1), agent.clone())));
        let candidate = self.model.as_ref().or(self.candidate.as_ref());
        arms.extend(candidate.map(|agent| ("candidate".to_owned(), agent.clone())));
        arms
    }
}

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
