//! `temper split …`: divide a suite, prove the division again, say why tasks belong together.

pub mod args;
mod make;
mod verify;
mod why;

use std::path::{Path, PathBuf};

use args::{PlaceArgs, SplitVerb};
use temper_core::Task;
use temper_tasks::{
    LoadOptions,
    isolation::{Archives, Collector, Evidence, LinkRule, SPLIT_FILE, SplitError, no_sources},
};

use crate::{error::CliError, exit_code, output, places::Places, suites, tasks};

/// Runs one of them.
pub fn run(verb: SplitVerb, places: &Places) -> Result<u8, CliError> {
    match verb {
        SplitVerb::Make(args) => make::run(&args, places),
        SplitVerb::Verify { place, format } => verify::run(&place, format.format, places),
        SplitVerb::Why {
            first,
            second,
            suite,
            manifest,
            format,
        } => {
            let place = PlaceArgs { suite, manifest };
            why::run(&first, &second, &place, format.format, places)
        }
    }
}

/// The suite's path and that of its split.
fn locate(place: &PlaceArgs, places: &Places) -> Result<(PathBuf, PathBuf), CliError> {
    let suite = suites::locate(&place.suite, &places.cache)?;
    let manifest = match &place.manifest {
        Some(path) => path.clone(),
        None if suite.is_dir() => suite.join(SPLIT_FILE),
        None => {
            return Err(CliError::new(
                exit_code::USAGE,
                format!("find the split of {}: it is no directory", place.suite),
            )
            .hint("name the file with --manifest"));
        }
    };
    Ok((suite, manifest))
}

/// The tasks as they are without a frozen split.
fn load(suite: &Path) -> Result<Vec<Task>, CliError> {
    let options = LoadOptions {
        without_split: true,
        ..LoadOptions::default()
    };
    let loaded = temper_tasks::load_with(suite, &options).map_err(tasks::input_error)?;
    for warning in &loaded.warnings {
        output::note(&format!("warning: {warning}"));
    }
    Ok(loaded.tasks)
}

/// What the tasks say of their code, as the rule reads it.
fn evidence(
    suite: &Path,
    tasks: &[Task],
    rule: &LinkRule,
    places: &Places,
) -> Result<Vec<Evidence>, CliError> {
    let mut collector = Collector::of(rule);
    if !rule.sources {
        return collector
            .all(tasks, &mut no_sources)
            .map_err(tasks::input_error);
    }
    let (cache, tools) = tasks::tools_of(suite, places)?;
    let mut archives = Archives::new(&cache, &tools);
    let found = collector
        .all(tasks, &mut archives)
        .map_err(tasks::input_error)?;
    if let Some((task, reason)) = archives.failed.first() {
        return Err(CliError::new(
            exit_code::ENVIRONMENT,
            format!(
                "read the code of {} tasks, the first of them {task}: {reason}",
                archives.failed.len()
            ),
        )
        .hint("`--files DIR` takes archives from a directory; a split made with --patches-only needs none"));
    }
    Ok(found)
}

fn split_error(error: SplitError) -> CliError {
    let hint = error.hint().map(str::to_owned);
    let code = match error {
        SplitError::Fractions(_)
        | SplitError::UnknownProject(_)
        | SplitError::Unassigned(_)
        | SplitError::HeldApart { .. } => exit_code::USAGE,
        SplitError::Empty
        | SplitError::Duplicate(_)
        | SplitError::LinksVersion { .. }
        | SplitError::Moved { .. } => exit_code::INPUT,
    };
    CliError::new(code, error).maybe_hint(hint)
}
