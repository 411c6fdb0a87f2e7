//! `temper tasks import`: reads tasks of any format and stores them for Temper.

use std::path::Path;

use super::args::SourceFormat;
use crate::{error::CliError, exit_code, output, tasks};

/// Imports, and prints where to.
pub fn run(source: &Path, into: &Path, format: Option<SourceFormat>) -> Result<u8, CliError> {
    let imported = temper_tasks::import(source, into, format.map(tasks::format_of))
        .map_err(tasks::input_error)?;
    for warning in &imported.warnings {
        output::note(&format!("warning: {warning}"));
    }
    output::note(&format!("imported {} tasks", imported.n_tasks));
    output::data(&format!("{}\n", into.display()));
    Ok(exit_code::SUCCESS)
}
