//! `temper aggregate`: several training seeds as one result.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use temper_agent::job::{JobDirectory, write_atomically};
use temper_core::{AgentName, Trial};
use temper_eval::{Aggregate, Options, SeedRun, SeededArm, aggregate, mixing::MixedProfiles};

use super::experiment::tested::{ArmTests, Tests};
use crate::{args::FormatArgs, comparison, error::CliError, exit_code, output};

/// `temper aggregate`
#[derive(ClapArgs, Debug)]
pub struct AggregateArgs {
    /// The jobs of one recipe's training seeds, in their order, or the directory of an experiment
    #[arg(required = true, value_name = "JOB|EXPERIMENT")]
    pub inputs: Vec<PathBuf>,
    /// The job of what training started from
    #[arg(long, value_name = "JOB")]
    pub baseline: Option<PathBuf>,
    /// The training seeds of the jobs, in their order [default: 0, 1, …]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub seeds: Vec<u64>,
    /// What the jobs are called together
    #[arg(long, default_value = "trained", value_name = "NAME")]
    pub name: String,
    /// Take jobs of different profiles; the output is stamped
    #[arg(long)]
    pub allow_mixed: bool,
    /// Also write the result as JSON
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Also write the report page of all jobs, with the aggregate
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Samples of the bootstrap
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    pub resamples: u32,
    /// Seed of the bootstrap
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Aggregates and prints.
pub fn run(args: &AggregateArgs) -> Result<u8, CliError> {
    let tests = tests(args)?;
    let options = Options {
        n_resamples: args.resamples,
        seed: args.seed,
    };
    let records = comparison::read_jobs(&tests.jobs())?;
    let mixed = comparison::check_mixing(&records, args.allow_mixed)?;
    let mut result = of_tests(&tests, &options)?;
    result.mixed_profiles = mixed.as_ref().map(MixedProfiles::stamp);
    if let Some(path) = &args.output {
        write(path, &result)?;
    }
    if let Some(path) = &args.report {
        let mut compared = comparison::compare(&records, &options)?;
        if let Some(mixed) = mixed {
            compared.stamp(mixed);
        }
        comparison::write_aggregate_report(&records, &compared, &result, path)?;
        output::note(&format!("report: {}", path.display()));
    }
    output::data(&args.format.format.one(&result, || {
        let stamp = result.mixed_profiles.iter();
        let stamp: String = stamp.map(|stamp| format!("{stamp}\n\n")).collect();
        stamp + &temper_report::aggregate::terminal(&result)
    }));
    Ok(exit_code::SUCCESS)
}

/// A training seed with the trials of its candidate.
type OfSeed = (u64, Vec<Trial>);

/// Aggregates the tests of several arms.
pub fn of_tests(tests: &Tests, options: &Options) -> Result<Aggregate, CliError> {
    let read = |path: &PathBuf| -> Result<Vec<Trial>, CliError> {
        let trials = JobDirectory::open(path)?.trials()?;
        if trials.is_empty() {
            return Err(CliError::new(
                exit_code::INPUT,
                format!("use the job {}: it has no finished trial", path.display()),
            ));
        }
        Ok(trials)
    };
    let mut arms: Vec<(AgentName, Vec<OfSeed>)> = Vec::new();
    let name = |text: &str| {
        AgentName::new(text.to_owned()).map_err(|error| CliError::new(exit_code::USAGE, error))
    };
    if let Some(baseline) = &tests.baseline {
        arms.push((name("baseline")?, vec![(0, read(baseline)?)]));
    }
    for arm in &tests.arms {
        let runs = arm.runs.iter();
        let runs = runs.map(|(seed, job)| Ok((*seed, read(job)?)));
        arms.push((name(&arm.name)?, runs.collect::<Result<_, CliError>>()?));
    }
    let arms: Vec<SeededArm<'_>> = arms
        .iter()
        .map(|(name, runs)| SeededArm {
            name: name.clone(),
            runs: runs
                .iter()
                .map(|(seed, trials)| SeedRun {
                    seed: *seed,
                    trials,
                })
                .collect(),
        })
        .collect();
    aggregate(&arms, options).map_err(|error| {
        CliError::new(exit_code::INPUT, error)
            .hint("the jobs of one arm must have run the same tasks of the same suite")
    })
}

/// Writes the result as JSON.
pub fn write(path: &std::path::Path, result: &Aggregate) -> Result<(), CliError> {
    let mut text = serde_json::to_vec_pretty(result).expect("an aggregate is plain data");
    text.push(b'\n');
    Ok(write_atomically(path, &text)?)
}

fn tests(args: &AggregateArgs) -> Result<Tests, CliError> {
    let usage = |message: &str| Err(CliError::new(exit_code::USAGE, message));
    if let [directory] = args.inputs.as_slice()
        && Tests::is_in(directory)
    {
        if args.baseline.is_some() || !args.seeds.is_empty() {
            return usage("use --baseline or --seeds: the experiment says them");
        }
        return Tests::read(directory);
    }
    let seeds: Vec<u64> = match args.seeds.len() {
        0 => (0..args.inputs.len() as u64).collect(),
        n if n == args.inputs.len() => args.seeds.clone(),
        _ => return usage("use --seeds: there must be as many as jobs"),
    };
    Ok(Tests {
        format: Tests::FORMAT,
        baseline: args.baseline.clone(),
        arms: vec![ArmTests {
            name: args.name.clone(),
            kept_start: Vec::new(),
            runs: seeds.into_iter().zip(args.inputs.iter().cloned()).collect(),
        }],
    })
}
