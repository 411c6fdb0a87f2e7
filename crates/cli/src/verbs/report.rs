//! `temper report JOB…`: one self-contained HTML page.

use temper_eval::Options;

use crate::{args::ReportArgs, comparison, error::CliError, exit_code, output};

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
