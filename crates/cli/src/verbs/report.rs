//! `temper report JOB…`: one self-contained HTML page.

use std::path::PathBuf;

use clap::Args;
use temper_eval::Options;

use crate::{comparison, error::CliError, exit_code, output};

/// `temper report`
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// The jobs; the first is the baseline
    #[arg(required = true, value_name = "JOB")]
    pub jobs: Vec<PathBuf>,
    /// The page to write
    #[arg(long, short, default_value = "report.html", value_name = "FILE")]
    pub output: PathBuf,
    /// Metric logs (JSON Lines of update, name and value) to draw. May be given more than once
    #[arg(long, value_name = "FILE")]
    pub metrics: Vec<PathBuf>,
    /// Compare results of different profiles; the output is stamped
    #[arg(long)]
    pub allow_mixed: bool,
    /// Seed of the bootstrap
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// Writes the page and prints its path.
pub fn run(args: &ReportArgs) -> Result<u8, CliError> {
    let records = comparison::read_jobs(&args.jobs)?;
    let mixed = comparison::check_mixing(&records, args.allow_mixed)?;
    let options = Options {
        seed: args.seed,
        ..Options::default()
    };
    let mut comparison = comparison::compare(&records, &options)?;
    if let Some(mixed) = mixed {
        comparison.stamp(mixed);
    }
    let mut metrics = Vec::new();
    for path in &args.metrics {
        metrics.push((path.display().to_string(), comparison::read_metrics(path)?));
    }
    comparison::write_report(&records, &comparison, &metrics, None, &args.output)?;
    output::data(&format!("{}\n", args.output.display()));
    Ok(exit_code::SUCCESS)
}
