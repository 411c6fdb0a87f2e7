//! `temper dataset …`: from verified trials to what a model is trained on.

mod advantages;
pub mod args;
pub mod build;
mod convert;
mod gather;
mod replay;
mod show;

use temper_dataset::store::StoreError;

use crate::{error::CliError, exit_code, places::Places};
use args::DatasetVerb;

/// Runs one of them.
pub fn run(verb: DatasetVerb, places: &Places) -> Result<u8, CliError> {
    match verb {
        DatasetVerb::Build(args) => build::run(&args, places),
        DatasetVerb::Show(args) => show::run(&args, places),
        DatasetVerb::Convert(args) => convert::run(&args),
        DatasetVerb::Advantages(args) => advantages::run(&args),
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Exists(_) => CliError::new(exit_code::INPUT, &error)
                .hint("a data set is never changed; name another directory"),
            StoreError::Malformed { .. } => CliError::new(exit_code::INPUT, &error)
                .hint("`temper dataset build` makes a data set"),
            StoreError::Io { .. } => CliError::new(exit_code::FAILURE, &error),
        }
    }
}
