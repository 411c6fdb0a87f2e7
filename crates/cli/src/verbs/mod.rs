//! One file per verb.

pub mod aggregate;
pub mod canary;
pub mod claims;
pub mod collect;
pub mod compare;
mod completions;
pub mod context;
pub mod data;
pub mod dataset;
pub mod doctor;
pub mod evaluate;
pub mod experiment;
pub mod export;
pub mod grade;
pub mod model;
pub mod profile;
pub mod record;
pub mod report;
pub mod run;
pub mod serve;
pub mod split;
pub mod tasks;
pub mod train;

use crate::{
    args::{Args, Verb},
    error::CliError,
    places::Places,
};

/// Runs a verb; the result is the process's exit code.
pub fn run(args: Args) -> Result<u8, CliError> {
    let places = Places::resolve(&args.places)?;
    match args.verb {
        Verb::Tasks(verb) => tasks::run(verb, &places),
        Verb::Split(verb) => split::run(verb, &places),
        Verb::Data(verb) => data::run(verb, &places),
        Verb::Dataset(verb) => dataset::run(verb, &places),
        Verb::Model(verb) => model::run(verb, &places),
        Verb::Context(verb) => context::run(verb, &places),
        Verb::Run(args) => run::run(&args, &places),
        Verb::Canary(args) => canary::run(&args, &places),
        Verb::Claims(args) => claims::run(&args),
        Verb::Record(verb) => record::run(verb, &places),
        Verb::Grade(args) => grade::run(&args, &places),
        Verb::Evaluate(args) => evaluate::run(&args, &places),
        Verb::Collect(args) => collect::run(&args, &places),
        Verb::Train(args) => train::run(&args, &places),
        Verb::Experiment(verb) => experiment::run(verb, &places),
        Verb::Aggregate(args) => aggregate::run(&args),
        Verb::Compare(args) => compare::run(&args),
        Verb::Report(args) => report::run(&args),
        Verb::Serve(args) => serve::run(&args, &places),
        Verb::Export(args) => export::run(&args),
        Verb::Profile(args) => profile::run(&args),
        Verb::Doctor(args) => doctor::run(&args, &places),
        Verb::Completions { shell } => completions::run(shell),
    }
}
