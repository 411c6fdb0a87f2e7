//! `temper compare JOB JOB…`: paired statistics of finished jobs.

use std::path::PathBuf;

use clap::Args;
use temper_agent::job::write_atomically;
use temper_eval::Options;

use crate::{args::FormatArgs, comparison, error::CliError, exit_code, output};

/// `temper compare`
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// Two or more jobs; the first is the baseline
    #[arg(required = true, num_args = 2.., value_name = "JOB")]
    pub jobs: Vec<PathBuf>,
    /// Also write the comparison as JSON
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Samples of the bootstrap
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    pub resamples: u32,
    /// Compare results of different profiles; the output is stamped
    #[arg(long)]
    pub allow_mixed: bool,
    /// Seed of the bootstrap
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Compares the jobs.
pub fn run(args: &CompareArgs) -> Result<u8, CliError> {
    let records = comparison::read_jobs(&args.jobs)?;
    let mixed = comparison::check_mixing(&records, args.allow_mixed)?;
    let mut comparison = comparison::compare(
        &records,
        &Options {
            n_resamples: args.resamples,
            seed: args.seed,
        },
    )?;
    let notes = comparison::continuity_notes(&records)?;
    comparison.notes.extend(notes);
    if let Some(mixed) = mixed {
        comparison.stamp(mixed);
    }
    if let Some(path) = &args.output {
        let mut text = serde_json::to_vec_pretty(&comparison).expect("a comparison is plain data");
        text.push(b'\n');
        write_atomically(path, &text)?;
    }
    output::data(&args.format.format.one(&comparison, || {
        temper_report::terminal::comparison(&comparison)
    }));
    Ok(exit_code::SUCCESS)
}
