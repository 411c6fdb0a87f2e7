//! `temper completions SHELL`: prints a completion script.

use clap::CommandFactory;

use crate::{args::Args, error::CliError, exit_code, output};

/// Prints the script.
pub fn run(shell: clap_complete::Shell) -> Result<u8, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "temper", &mut script);
    output::data(&String::from_utf8_lossy(&script));
    Ok(exit_code::SUCCESS)
}
