//! The binary `temper`: reads the command line, runs one verb, maps its result to an exit code.
//!
//! Data goes to standard output, everything else to standard error.

mod agents;
mod args;
mod clock;
mod comparison;
mod engines;
mod error;
mod exit_code;
mod jobs;
mod live_line;
mod machine;
mod output;
mod places;
mod progress;
mod run_profile;
mod sandboxes;
mod serve;
mod suites;
mod tasks;
mod training_view;
mod verbs;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    // A sandbox is started by running this binary again; then nothing below must happen.
    temper_sandbox::namespaces::run_launcher_if_asked();
    let args = args::Args::parse();
    match verbs::run(args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            output::error(&error);
            ExitCode::from(error.code)
        }
    }
}
