//! Flags of `temper train`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use temper_recipe::StageName;

use crate::{
    args::{BudgetArgs, FormatArgs, SandboxArgs},
    engines::DeviceArgs,
    verbs::model::args::HubArgs,
};

/// `temper train`
#[derive(ClapArgs, Debug)]
pub struct TrainArgs {
    /// The recipe, a TOML file
    #[arg(required_unless_present = "example")]
    pub recipe: Option<PathBuf>,
    /// Print a recipe with every section, explained
    #[arg(long, conflicts_with = "recipe")]
    pub example: bool,
    /// Where the run's stages go, in place of the recipe's directory
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Print what would be done, with estimated tokens, memory and time, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Stop after this stage
    #[arg(long, value_name = "STAGE")]
    pub until: Option<StageArg>,
    /// Begin with this stage: earlier ones must be done
    #[arg(long, value_name = "STAGE")]
    pub from: Option<StageArg>,
    /// Run final tests again that were run before; the reason is recorded and shown
    #[arg(long, value_name = "REASON")]
    pub again: Option<String>,
    /// Trials at a time [default: the number of cores, 8 for the trained model]
    #[arg(long, short = 'j', value_name = "N")]
    pub workers: Option<usize>,
    /// On what.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Memory of the key-value cache of trials, in MiB [default: what all sequences need and the
    /// device has]
    #[arg(long, value_name = "MIB", help_heading = "Engine")]
    pub kv_cache_mib: Option<usize>,
    /// Where models come from.
    #[command(flatten)]
    pub hub: HubArgs,
    /// Budget of each teacher.
    #[command(flatten)]
    pub budget: BudgetArgs,
    /// Sandbox.
    #[command(flatten)]
    pub sandbox: SandboxArgs,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// A stage, as typed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageArg {
    /// Candidates from teachers
    Collect,
    /// A data set of them
    Build,
    /// Supervised training
    Train,
    /// Selection on dev tasks
    Select,
    /// Preference training
    Preference,
    /// Selection after that
    SelectPreference,
    /// The final test
    Evaluate,
    /// The page
    Report,
}

impl From<StageArg> for StageName {
    fn from(stage: StageArg) -> Self {
        match stage {
            StageArg::Collect => StageName::Collect,
            StageArg::Build => StageName::Build,
            StageArg::Train => StageName::Train,
            StageArg::Select => StageName::Select,
            StageArg::Preference => StageName::Preference,
            StageArg::SelectPreference => StageName::SelectPreference,
            StageArg::Evaluate => StageName::Evaluate,
            StageArg::Report => StageName::Report,
        }
    }
}
