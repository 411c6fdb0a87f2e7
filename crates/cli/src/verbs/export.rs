//! `temper export JOB`: the trajectories of a job in another tool's format.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::Value;
use temper_agent::{
    export::{atif, mini_swe_agent},
    job::{JobDirectory, TrialKey, write_atomically},
    trajectory_file,
};

use crate::{error::CliError, exit_code, output};

/// `temper export`
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// The job
    pub job: PathBuf,
    /// The format to write
    #[arg(long)]
    pub to: ExportFormat,
    /// The directory to make
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,
}

/// A trajectory format.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// mini-swe-agent-1 or -1.1, by protocol
    MiniSweAgent,
    /// ATIF-v1.8
    Atif,
}

/// Writes one file a trial, and prints the directory.
pub fn run(args: &ExportArgs) -> Result<u8, CliError> {
    let job = JobDirectory::open(&args.job)?;
    if args.output.exists() {
        return Err(CliError::new(
            exit_code::INPUT,
            format!(
                "write {}: something is there already",
                args.output.display()
            ),
        ));
    }
    let mut keys = Vec::new();
    job.for_each_trial(|trial| {
        keys.push(TrialKey {
            task_id: trial.task_id,
            attempt: trial.attempt,
        });
    })?;
    let (mut n_written, mut n_without) = (0, 0);
    for key in keys {
        let path = job.trial_directory(&key).join("trajectory.jsonl");
        // Trials that were lost before the first prompt, and graded predictions, have none.
        if !path.exists() {
            n_without += 1;
            continue;
        }
        let trajectory =
            trajectory_file::read(&path).map_err(|error| CliError::new(exit_code::INPUT, error))?;
        let id = key.task_id.directory_name();
        let value = match args.to {
            ExportFormat::MiniSweAgent => Some(mini_swe_agent::trajectory(&trajectory)),
            ExportFormat::Atif => atif::trajectory(&trajectory),
        };
        let Some(value) = value else {
            n_without += 1;
            continue;
        };
        // mini-swe-agent has one run of a task in its directory; further attempts get their own.
        let directory = match key.attempt {
            0 => args.output.join(&id),
            attempt => args.output.join(format!("{id}.{attempt}")),
        };
        let name = match args.to {
            ExportFormat::MiniSweAgent => format!("{id}.traj.json"),
            ExportFormat::Atif => "trajectory.json".into(),
        };
        write(&directory, &name, &value)?;
        n_written += 1;
    }
    output::note(&format!(
        "{n_written} trajectories written; {n_without} trials have none"
    ));
    output::data(&format!("{}\n", args.output.display()));
    Ok(exit_code::SUCCESS)
}

fn write(directory: &Path, name: &str, value: &Value) -> Result<(), CliError> {
    std::fs::create_dir_all(directory)?;
    let mut text = serde_json::to_vec_pretty(value).expect("a trajectory is plain data");
    text.push(b'\n');
    Ok(write_atomically(&directory.join(name), &text)?)
}
