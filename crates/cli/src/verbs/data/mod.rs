//! `temper data …`: look at data sets that others made.

pub mod args;
mod audit;

use crate::{error::CliError, places::Places};
use args::DataVerb;

/// Runs one of them.
pub fn run(verb: DataVerb, places: &Places) -> Result<u8, CliError> {
    match verb {
        DataVerb::Audit(args) => audit::run(&args, places),
    }
}
