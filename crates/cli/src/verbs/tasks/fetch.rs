//! `temper tasks fetch`: obtains what a suite names by hash, rebuilds it, and proves it again.

use std::collections::BTreeMap;

use temper_core::task::{Archive, Environment, Start};

use super::validate;
use crate::{
    args::{FormatArgs, SandboxArgs, SuiteArgs},
    error::CliError,
    exit_code, output,
    places::Places,
    suites, tasks,
};

/// Fetches every archive and wheel, lays every task ready and, unless told otherwise, proves it.
pub fn run(
    args: &SuiteArgs,
    no_prove: bool,
    repeat: u32,
    sandbox: &SandboxArgs,
    n_workers: Option<usize>,
    format: &FormatArgs,
    places: &Places,
) -> Result<u8, CliError> {
    let suite = tasks::load(args, places)?;
    let mut files: BTreeMap<&Archive, usize> = BTreeMap::new();
    for task in &suite.tasks {
        if let Start::SourceDistribution { archive, .. } = &task.start {
            *files.entry(archive).or_default() += 1;
        }
        if let Environment::Python { wheels, .. } = &task.environment {
            for wheel in wheels {
                *files.entry(wheel).or_default() += 1;
            }
        }
    }
    let path = suites::locate(&args.suite, &places.cache)?;
    let (_, tools) = tasks::tools_of(&path, places)?;
    let n_files = files.len();
    for (number, file) in files.into_keys().enumerate() {
        if !places.quiet {
            output::note(&format!("{}/{n_files} {}", number + 1, file.file_name));
        }
        tools.fetcher().fetch(file).map_err(|error| {
            let hint = error.hint();
            CliError::new(exit_code::ENVIRONMENT, error).maybe_hint(hint)
        })?;
    }
    if no_prove {
        let prepared = tasks::prepare(args, places, n_workers)?;
        let n_failed = prepared
            .iter()
            .filter(|(_, result)| result.is_err())
            .count();
        let n = suite.tasks.len();
        output::data(&format!(
            "{} of {n} tasks ready from {n_files} files\n",
            n - n_failed
        ));
        return Ok(if n_failed == 0 {
            exit_code::SUCCESS
        } else {
            exit_code::ENVIRONMENT
        });
    }
    validate::run(args, repeat, sandbox, n_workers, format.format, places)
}
