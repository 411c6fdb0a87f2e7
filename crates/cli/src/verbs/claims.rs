//! `temper claims`: what the results of jobs may be called.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use temper_core::{evidence::Alignment, run_profile::ModelIdentity};
use temper_eval::claims::{self, JobFacts, Ledger};

use crate::{
    agents,
    args::{FormatArgs, ProfileArg},
    comparison,
    error::CliError,
    exit_code, output, run_profile,
};

/// `temper claims`
#[derive(ClapArgs, Debug)]
pub struct ClaimsArgs {
    /// A ledger of what was published, as TOML [default: the one of Klear-AgentForge]
    #[arg(long, value_name = "FILE")]
    pub ledger: Option<PathBuf>,
    /// A finished job. May be given more than once; without one the ledger alone is shown
    #[arg(long = "job", value_name = "DIR")]
    pub jobs: Vec<PathBuf>,
    /// Before there is a job: hold the audit of a checkpoint, as `temper model audit --format json`
    /// wrote it, against the ledger
    #[arg(long, value_name = "FILE", conflicts_with = "jobs")]
    pub model_audit: Option<PathBuf>,
    /// Before there is a job: hold this profile against the ledger
    #[arg(long, value_enum, conflicts_with = "jobs")]
    pub profile: Option<ProfileArg>,
    /// The file of that profile
    #[arg(long, value_name = "FILE", requires = "profile")]
    pub profile_file: Option<PathBuf>,
    /// Take jobs of different profiles; none of them can then be called a reproduction
    #[arg(long)]
    pub allow_mixed: bool,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Prints the alignment matrix and the strongest wording. What is looked at before there is a job
/// and is not aligned is [`exit_code::FINDINGS`].
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
    if args.model_audit.is_some() || args.profile.is_some() {
        return before_a_run(args, &ledger);
    }
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

/// Holds what is known before a run against the ledger: rows of what is not known stay so.
fn before_a_run(args: &ClaimsArgs, ledger: &Ledger) -> Result<u8, CliError> {
    let model = match &args.model_audit {
        Some(path) => run_profile::of_audit_file(path)?,
        None => ModelIdentity::unknown(),
    };
    let profile = match args.profile {
        Some(name) => Some(agents::profile_of(name, args.profile_file.as_deref())?),
        None => None,
    };
    let job = JobFacts {
        job: "before a run".into(),
        facts: run_profile::facts_before(&model, profile.as_ref()),
        ..JobFacts::default()
    };
    let claims = claims::decide(ledger, &[job]);
    let format = args.format.format;
    output::data(&format.one(&claims, || temper_report::terminal::claims(&claims)));
    let mut rows = claims.jobs.iter().flat_map(|job| &job.rows);
    Ok(
        match rows.any(|row| row.alignment == Alignment::NotAligned) {
            true => exit_code::FINDINGS,
            false => exit_code::SUCCESS,
        },
    )
}
