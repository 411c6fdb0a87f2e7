//! Flags of `temper dataset …`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use temper_dataset::formats::convert::Shape;

use crate::{
    args::{FormatArgs, SandboxArgs},
    verbs::model::args::HubArgs,
};

/// What to do with data sets.
#[derive(Subcommand, Debug)]
pub enum DatasetVerb {
    /// Make training rows, preference pairs and groups of verified trials
    Build(Box<BuildArgs>),
    /// Show a data set, or a row of it token by token
    Show(ShowArgs),
    /// Write conversations in another shape
    Convert(ConvertArgs),
    /// What the rewards of groups weigh in a group-relative objective
    Advantages(AdvantagesArgs),
}

/// Flags of `temper dataset advantages`.
#[derive(ClapArgs, Debug)]
pub struct AdvantagesArgs {
    /// A data set with groups, or a file of groups, one JSON object a line: "group", a name, and
    /// "rewards", one for each trial: a number, a list of numbers that are added, or null where
    /// there is none
    #[arg(value_name = "DIR|FILE")]
    pub source: PathBuf,
    /// What an advantage is
    #[arg(long, value_enum, default_value_t = EstimatorArg::GroupDeviation)]
    pub estimator: EstimatorArg,
    /// The divisor of a deviation
    #[arg(long, value_enum, default_value_t = DeviationArg::Population)]
    pub deviation: DeviationArg,
    /// What is added to a deviation
    #[arg(long, default_value_t = 1e-6, value_parser = not_negative)]
    pub epsilon: f64,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// What an advantage is, as typed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum EstimatorArg {
    /// Distance to the group's mean over the group's deviation (GRPO)
    GroupDeviation,
    /// Distance to the group's mean over the deviation of all scored trials
    BatchDeviation,
    /// Distance to the group's mean (Dr. GRPO)
    MeanOnly,
    /// Distance to the mean of the group's other scored trials (RLOO)
    LeaveOneOut,
}

/// The divisor of a deviation, as typed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviationArg {
    /// The number of rewards
    Population,
    /// One less
    Sample,
}

fn not_negative(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("it is no number from 0 on".to_owned()),
    }
}

/// Flags of `temper dataset build`.
#[derive(ClapArgs, Debug, Clone)]
pub struct BuildArgs {
    /// Jobs of `temper run`, and collections of `temper collect`
    #[arg(
        required_unless_present = "print_config",
        value_name = "JOB|COLLECTION"
    )]
    pub inputs: Vec<PathBuf>,
    /// The suite of their tasks. Its training tasks alone can be trained on, and nothing may be
    /// like the others
    #[arg(long, short, default_value = "starter", value_name = "SUITE")]
    pub suite: String,
    /// Nothing may be like the tasks of this suite either. May be given more than once
    #[arg(long, value_name = "SUITE")]
    pub against: Vec<String>,
    /// The model that is to be trained: its tokenizer and chat template spell the rows
    #[arg(long, short, default_value = "default", value_name = "MODEL")]
    pub model: String,
    /// The directory to make
    #[arg(
        long,
        short,
        value_name = "DIR",
        required_unless_present = "print_config"
    )]
    pub output: Option<PathBuf>,
    /// What is built, as TOML; `--print-config` shows the one in force without it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the configuration in force and do nothing
    #[arg(long)]
    pub print_config: bool,
    /// Take no more learned tokens than this, of rows and of pairs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "equal_budget")]
    pub learned_tokens: Option<u64>,
    /// Take no more learned tokens than the smallest of these data sets has, as rows. May be given
    /// more than once
    #[arg(long, value_name = "DIR")]
    pub equal_budget: Vec<PathBuf>,
    /// Draws what is taken, in place of the configuration's
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Do not do the actions of trials again
    #[arg(long)]
    pub no_replay: bool,
    /// Where they are done again.
    #[command(flatten)]
    pub sandbox: SandboxArgs,
    /// Where the model comes from.
    #[command(flatten)]
    pub hub: HubArgs,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Flags of `temper dataset show`.
#[derive(ClapArgs, Debug)]
pub struct ShowArgs {
    /// The data set
    #[arg(value_name = "DIR")]
    pub dataset: PathBuf,
    /// Show this row token by token, counted from 0
    #[arg(long, value_name = "N", conflicts_with = "pair")]
    pub row: Option<usize>,
    /// Show both rows of this pair token by token, counted from 0
    #[arg(long, value_name = "N")]
    pub pair: Option<usize>,
    /// The model whose tokenizer spelled the rows [default: the one that they were built for]
    #[arg(long, short, value_name = "MODEL")]
    pub model: Option<String>,
    /// Where the model comes from.
    #[command(flatten)]
    pub hub: HubArgs,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Flags of `temper dataset convert`.
#[derive(ClapArgs, Debug)]
pub struct ConvertArgs {
    /// The file to read
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The file to make; a name that ends in .parquet is written as Parquet
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// The shape that it has
    #[arg(long)]
    pub from: ShapeArg,
    /// The shape that it gets
    #[arg(long)]
    pub to: ShapeArg,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// A shape, as typed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShapeArg {
    /// `instance_id` and `messages` of role and content; JSON Lines or Parquet
    Messages,
    /// TRL's conversations, with tools and calls
    Trl,
    /// TRL's preferences
    TrlPreference,
    /// ShareGPT
    Sharegpt,
}

impl From<ShapeArg> for Shape {
    fn from(shape: ShapeArg) -> Self {
        match shape {
            ShapeArg::Messages => Shape::Messages,
            ShapeArg::Trl => Shape::Trl,
            ShapeArg::TrlPreference => Shape::TrlPreference,
            ShapeArg::Sharegpt => Shape::ShareGpt,
        }
    }
}
