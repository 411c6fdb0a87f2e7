//! `temper tasks …`: make, look at, import, fetch and prove tasks.

pub mod args;
mod card;
pub mod context;
pub mod decontaminate;
pub mod export;
mod fetch;
mod import;
mod list;
pub mod make;
pub mod sample;
mod show;
mod validate;

use args::TasksVerb;

use crate::{error::CliError, places::Places};

/// Runs one of them.
pub fn run(verb: TasksVerb, places: &Places) -> Result<u8, CliError> {
    match verb {
        TasksVerb::Sample(args) => sample::run(&args, places),
        TasksVerb::Make(args) => make::run(&args, places),
        TasksVerb::Fetch {
            suite,
            no_prove,
            repeat,
            sandbox,
            workers,
            format,
        } => fetch::run(&suite, no_prove, repeat, &sandbox, workers, &format, places),
        TasksVerb::List { suite, format } => list::run(&suite, format.format, places),
        TasksVerb::Card { suite, format } => card::run(&suite, format.format, places),
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
        TasksVerb::Export(args) => export::run(&args, places),
        TasksVerb::Context(args) => context::run(&args, places),
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
