//! `temper model …`

pub mod args;
mod audit;
pub mod convert;
mod fetch;
pub mod locate;
mod merge;
mod show;
mod transfer;

use args::ModelVerb;
use temper_checkpoint::{CheckpointError, export::ExportError};

use crate::{error::CliError, exit_code, places::Places};

/// Runs a verb on models.
pub fn run(verb: ModelVerb, places: &Places) -> Result<u8, CliError> {
    match verb {
        ModelVerb::Fetch(args) => fetch::run(&args, places),
        ModelVerb::Show(args) => show::run(&args, places),
        ModelVerb::Audit(args) => audit::run(&args, places),
        ModelVerb::Convert(args) => convert::run(&args, places),
        ModelVerb::Merge(args) => merge::run(&args, places),
    }
}

impl From<CheckpointError> for CliError {
    fn from(error: CheckpointError) -> Self {
        let hint = error.hint();
        CliError::new(exit_code::INPUT, error).maybe_hint(hint)
    }
}

impl From<ExportError> for CliError {
    fn from(error: ExportError) -> Self {
        let code = match &error {
            ExportError::Save(_) => exit_code::FAILURE,
            ExportError::Unchanged { .. } => exit_code::FINDINGS,
            _ => exit_code::INPUT,
        };
        let hint = error.hint();
        CliError::new(code, error).maybe_hint(hint)
    }
}
