//! `temper report JOB…`: one self-contained HTML page.

use temper_eval::{MetricLog, Options};

use crate::{args::ReportArgs, comparison, error::CliError, exit_code, output};

/// Writes the page and prints its path.
pub fn run(args: &ReportArgs) -> Result<u8, CliError> {
    let records = comparison::read_jobs(&args.jobs)?;
    let options = Options {
        seed: args.seed,
        ..Options::default()
    };
    let comparison = comparison::compare(&records, &options)?;
    let mut metrics = Vec::new();
    for path in &args.metrics {
        let wrong = |error: String| {
            CliError::new(
                exit_code::INPUT,
                format!("read {}: {error}", path.display()),
            )
        };
        let bytes = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let log = MetricLog::read(&bytes).map_err(|error| wrong(error.to_string()))?;
        metrics.push((path.display().to_string(), log));
    }
    comparison::write_report(&records, &comparison, &metrics, &args.output)?;
    output::data(&format!("{}\n", args.output.display()));
    Ok(exit_code::SUCCESS)
}
