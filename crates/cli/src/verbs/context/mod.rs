//! `temper context …`: whether a model serves a window, by its configuration and by a server's
//! answers.

pub mod args;
mod plan;
mod probe;
mod vllm;

use args::ContextVerb;

use crate::{error::CliError, places::Places};

/// Runs one of them.
pub fn run(verb: ContextVerb, places: &Places) -> Result<u8, CliError> {
    match verb {
        ContextVerb::Plan(args) => plan::run(&args, places),
        ContextVerb::Probe(args) => probe::run(&args, places),
    }
}
