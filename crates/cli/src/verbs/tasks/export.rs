//! `temper tasks export`: writes tasks in the formats of others.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use temper_tasks::{
    export::{ExportFormat, ExportOptions, export},
    fetch::{FetchOptions, Fetcher},
    native::packed,
};

use crate::{args::SuiteArgs, error::CliError, exit_code, output, places::Places, suites, tasks};

/// What to write and where.
#[derive(Args, Debug)]
pub struct TasksExportArgs {
    /// Which.
    #[command(flatten)]
    pub suite: SuiteArgs,
    /// The format
    #[arg(long)]
    pub to: Target,
    /// The file (.jsonl or .parquet) or, for Harbor, the directory to make
    #[arg(long, short)]
    pub output: PathBuf,
}

/// A format to write.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Rows whose patch introduces the bug
    SweSmith,
    /// Rows whose patch is the known fix
    SweBench,
    /// Task directories
    Harbor,
}

/// Exports, and prints where to.
pub fn run(args: &TasksExportArgs, places: &Places) -> Result<u8, CliError> {
    let suite = tasks::load(&args.suite, places)?;
    let path = suites::locate(&args.suite.suite, &places.cache)?;
    let cache = temper_tasks::cache::Cache::open(&places.cache)
        .map_err(|error| CliError::new(exit_code::FAILURE, error))?;
    let fetcher = Fetcher::new(
        cache,
        FetchOptions {
            directories: places.files.iter().cloned().collect(),
            index: (!places.offline).then(|| places.index_url.clone()),
            ..FetchOptions::default()
        },
    )
    .map_err(|error| CliError::new(exit_code::USAGE, &error).maybe_hint(error.hint()))?;
    let archives = packed::archives(&path);
    let options = ExportOptions {
        fetcher: Some(&fetcher),
        archives: archives.as_deref(),
    };
    let to = match args.to {
        Target::SweSmith => ExportFormat::SweSmith,
        Target::SweBench => ExportFormat::SweBench,
        Target::Harbor => ExportFormat::Harbor,
    };
    let exported = export(&suite.tasks, to, &args.output, &options).map_err(tasks::input_error)?;
    for note in &exported.notes {
        output::note(note);
    }
    output::note(&format!("exported {} tasks", exported.n_tasks));
    output::data(&format!("{}\n", args.output.display()));
    Ok(exit_code::SUCCESS)
}
