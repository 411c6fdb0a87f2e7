//! `temper tasks …`: look at, import and prove tasks.

pub mod decontaminate;
mod import;
mod list;
mod show;
mod validate;

use crate::{args::TasksVerb, error::CliError, places::Places};

/// Runs one of them.
pub fn run(verb: TasksVerb, places: &Places) -> Result<u8, CliError> {
    match verb {
        TasksVerb::List { suite, format } => list::run(&suite, format.format, places),
        TasksVerb::Show {
            id,
            suite,
            oracle,
            format,
        } => show::run(&id, suite, oracle, format.format, places),
        TasksVerb::Import {
            source,
            output,
            source_format,
        } => import::run(&source, &output, source_format),
        TasksVerb::Decontaminate(args) => decontaminate::run(&args, places),
        TasksVerb::Validate {
            suite,
            repeat,
            sandbox,
            workers,
            format,
        } => validate::run(&suite, repeat, &sandbox, workers, format.format, places),
    }
}
