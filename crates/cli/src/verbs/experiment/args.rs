//! Flags of `temper experiment …`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use crate::args::FormatArgs;

/// What to do with an experiment.
#[derive(Subcommand, Debug)]
pub enum ExperimentVerb {
    /// Freeze a contract: question, arms, what is equal, metric, selection, seeds, test
    Declare(DeclareArgs),
    /// Say what is declared, and how far it is
    Status(StatusArgs),
    /// Collect, build, train and select every arm, then test each once
    Run(RunArgs),
}

/// Flags of `temper experiment declare`.
#[derive(ClapArgs, Debug)]
pub struct DeclareArgs {
    /// The contract, a TOML file
    #[arg(value_name = "EXPERIMENT")]
    pub contract: PathBuf,
    /// The directory to make for it [default: experiments/NAME]
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Change a contract that is declared already; the reason is recorded and shown
    #[arg(long, value_name = "REASON")]
    pub amend: Option<String>,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Flags of `temper experiment status`.
#[derive(ClapArgs, Debug)]
pub struct StatusArgs {
    /// The experiment's directory
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Flags of `temper experiment run`.
#[derive(ClapArgs, Debug)]
pub struct RunArgs {
    /// The experiment's directory
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Stop before the final tests
    #[arg(long)]
    pub until_test: bool,
    /// Run final tests again that were run before; the reason is recorded and shown
    #[arg(long, value_name = "REASON")]
    pub again: Option<String>,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
    /// Flags for `temper collect` and `temper train`, such as `--device cpu`
    #[arg(last = true, value_name = "FLAGS")]
    pub flags: Vec<String>,
}
