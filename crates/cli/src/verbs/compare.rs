//! `temper compare JOB JOB…`: paired statistics of finished jobs.

use temper_agent::job::write_atomically;
use temper_eval::Options;

use crate::{args::CompareArgs, comparison, error::CliError, exit_code, output};

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
