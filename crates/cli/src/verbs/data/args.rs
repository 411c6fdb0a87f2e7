//! Flags of `temper data …`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use crate::args::FormatArgs;

/// What to do with data.
#[derive(Subcommand, Debug)]
pub enum DataVerb {
    /// Say what is in trajectories that others published: form, endings, tests, duplicates,
    /// overlap with tasks. Nothing is run, so nothing is said about whether the work was right
    Audit(AuditArgs),
}

/// Flags of `temper data audit`.
#[derive(ClapArgs, Debug)]
pub struct AuditArgs {
    /// Parquet or JSON Lines with the columns `instance_id` and `messages`; several are one set
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Compare with the tasks of this suite: id, repository, statement. May be given more than once
    #[arg(long, value_name = "SUITE")]
    pub against: Vec<String>,
    /// Count tokens with this tokenizer.json, or that of a model's folder; takes much longer
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<PathBuf>,
    /// Rows with more tokens are a finding
    #[arg(long, value_name = "N", requires = "tokenizer")]
    pub max_tokens: Option<u64>,
    /// Write what was found of each row to this file, as JSON Lines
    #[arg(long, value_name = "FILE")]
    pub rows: Option<PathBuf>,
    /// Threads that take rows apart [default: the number of cores]
    #[arg(long, short = 'j')]
    pub workers: Option<usize>,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}
