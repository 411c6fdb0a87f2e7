//! Flags of `temper split`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use temper_tasks::isolation::{Fractions, Granularity};

use crate::args::FormatArgs;

/// What to do with splits.
#[derive(Subcommand, Debug)]
pub enum SplitVerb {
    /// Divide a suite into train, dev and test by source group and freeze it, or add the tasks that
    /// are new to a frozen split
    Make(MakeArgs),
    /// Prove a frozen split again from the tasks themselves
    Verify {
        /// Which suite, and where its split is.
        #[command(flatten)]
        place: PlaceArgs,
        /// How.
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Say why two tasks are in one source group, or that they are not
    Why {
        /// A task
        first: String,
        /// Another
        second: String,
        /// The suite
        #[arg(long, short, default_value = "starter", value_name = "SUITE")]
        suite: String,
        /// The frozen split [default: split.json in the suite]
        #[arg(long, value_name = "FILE")]
        manifest: Option<PathBuf>,
        /// How.
        #[command(flatten)]
        format: FormatArgs,
    },
}

/// A suite and its split.
#[derive(ClapArgs, Debug, Clone)]
pub struct PlaceArgs {
    /// A file or directory of tasks
    pub suite: String,
    /// The frozen split [default: split.json in the suite]
    #[arg(long, value_name = "FILE")]
    pub manifest: Option<PathBuf>,
}

/// Flags of `temper split make`. All but the place say how to divide, and are an error when there
/// is a frozen split, which keeps its own rule.
#[derive(ClapArgs, Debug)]
pub struct MakeArgs {
    /// Which suite, and where its split goes.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Sizes of train, dev and test, as parts [default: 70:10:20]
    #[arg(long, value_name = "TRAIN:DEV:TEST")]
    pub fractions: Option<Fractions>,
    /// Decides between what is equally good [default: 0]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Put a whole project into one split. May be given more than once
    #[arg(long, value_name = "PROJECT=SPLIT")]
    pub hold_out: Vec<String>,
    /// What is never divided [default: file]
    #[arg(long)]
    pub granularity: Option<GranularityArg>,
    /// Also keep tasks together that name the same source group themselves
    #[arg(long)]
    pub declared: bool,
    /// Compare only what the patches show: needs no archives, and finds fewer near-duplicates
    #[arg(long)]
    pub patches_only: bool,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// What is never divided, as typed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum GranularityArg {
    /// Functions
    Function,
    /// Files
    File,
    /// Upstream projects
    Project,
}

impl From<GranularityArg> for Granularity {
    fn from(typed: GranularityArg) -> Self {
        match typed {
            GranularityArg::Function => Granularity::Function,
            GranularityArg::File => Granularity::File,
            GranularityArg::Project => Granularity::Project,
        }
    }
}
