//! Flags of `temper tasks …`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

use super::{
    context::ContextArgs, decontaminate::DecontaminateArgs, export::TasksExportArgs,
    make::args::MakeArgs, sample::SampleArgs,
};
use crate::args::{FormatArgs, SandboxArgs, SuiteArgs};

/// What to do with tasks.
#[derive(Subcommand, Debug)]
pub enum TasksVerb {
    /// Make tasks of repositories: bugs that their tests notice, proven and packed as a suite
    Make(Box<MakeArgs>),
    /// Obtain the archives and wheels of a suite by name and hash, and prove its tasks again
    Fetch {
        /// Which.
        #[command(flatten)]
        suite: SuiteArgs,
        /// Do not prove the tasks
        #[arg(long)]
        no_prove: bool,
        /// How often each side is run
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
        repeat: u32,
        /// Where they run.
        #[command(flatten)]
        sandbox: SandboxArgs,
        /// Tasks at a time [default: the number of cores]
        #[arg(long, short = 'j')]
        workers: Option<usize>,
        /// How.
        #[command(flatten)]
        format: FormatArgs,
    },
    /// List the tasks of a suite
    List {
        /// Which.
        #[command(flatten)]
        suite: SuiteArgs,
        /// How.
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Draw a subset of a suite by a seed, with a statement of what it can stand for
    Sample(SampleArgs),
    /// Count what a suite holds: splits, groups, projects, licences, kinds, tests, mutation audits
    Card {
        /// Which.
        #[command(flatten)]
        suite: SuiteArgs,
        /// How.
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Show one task
    Show {
        /// Its id
        id: String,
        /// Where.
        #[command(flatten)]
        suite: SuiteArgs,
        /// Also show the known fix
        #[arg(long)]
        oracle: bool,
        /// How.
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Compare tasks with published sets, or any text and code, that they must not overlap with
    Decontaminate(DecontaminateArgs),
    /// Read tasks of another format and store them for Temper
    Import {
        /// A file or directory: SWE-bench or SWE-smith records, a Harbor task, an archive of one
        source: PathBuf,
        /// The directory to make
        #[arg(long, short)]
        output: PathBuf,
        /// The format [default: told from the files]
        #[arg(long)]
        source_format: Option<SourceFormat>,
    },
    /// Write tasks in another format
    Export(TasksExportArgs),
    /// Show what a solver may be shown of a task, within a budget, and prove that nothing hidden is in it
    Context(ContextArgs),
    /// Prove tasks: without a fix they fail, with the known fix they pass, every time
    Validate {
        /// Which.
        #[command(flatten)]
        suite: SuiteArgs,
        /// How often each side is run; more than once exposes flaky tests
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
        repeat: u32,
        /// Where they run.
        #[command(flatten)]
        sandbox: SandboxArgs,
        /// Tasks at a time [default: the number of cores]
        #[arg(long, short = 'j')]
        workers: Option<usize>,
        /// How.
        #[command(flatten)]
        format: FormatArgs,
    },
}

/// Names the format of tasks.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceFormat {
    /// Temper's own task directories
    Native,
    /// SWE-bench instances
    SweBench,
    /// SWE-smith instances
    SweSmith,
    /// Harbor task directories
    Harbor,
}
