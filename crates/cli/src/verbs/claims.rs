//! `temper claims`: what the results of jobs may be called.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use temper_eval::claims::Ledger;

use crate::{args::FormatArgs, comparison, error::CliError, exit_code, output};

/// `temper claims`
#[derive(ClapArgs, Debug)]
pub struct ClaimsArgs {
    /// A ledger of what was published, as TOML [default: the one of Klear-AgentForge]
    #[arg(long, value_name = "FILE")]
    pub ledger: Option<PathBuf>,
    /// A finished job. May be given more than once; without one the ledger alone is shown
    #[arg(long = "job", value_name = "DIR")]
    pub jobs: Vec<PathBuf>,
    /// Take jobs of different profiles; none of them can then be called a reproduction
    #[arg(long)]
    pub allow_mixed: bool,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Prints the alignment matrix and the strongest wording.
pub fn run(args: &ClaimsArgs) -> Result<u8, CliError> {
    let ledger = match &args.ledger {
        None => Ledger::shipped(),
        Some(path) => {
            let wrong = |error: &dyn std::fmt::Display| {
                CliError::new(exit_code::INPUT, format!("{error} ({})", path.display()))
            };
            let text = std::fs::read_to_string(path)
                .map_err(|error| wrong(&format!("read the ledger: {error}")))?;
            Ledger::parse(&text).map_err(|error| wrong(&error))?
        }
    };
    let records = comparison::read_jobs(&args.jobs)?;
    let mixed = comparison::check_mixing(&records, args.allow_mixed)?;
    let claims = comparison::claims(&ledger, &records, mixed.is_some())?;
    output::data(
        &args
            .format
            .format
            .one(&claims, || temper_report::terminal::claims(&claims)),
    );
    Ok(exit_code::SUCCESS)
}
