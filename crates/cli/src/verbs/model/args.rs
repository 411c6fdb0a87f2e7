//! Flags of `temper model`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use temper_checkpoint::save::SaveDtype;
use temper_train::Base;

use crate::args::FormatArgs;

/// What to do with models.
#[derive(Subcommand, Debug)]
pub enum ModelVerb {
    /// Get a model into the cache and print where it lies
    Fetch(FetchArgs),
    /// Say what a model is
    Show(ShowArgs),
    /// Hash a model's files and say what in them contradicts itself
    Audit(AuditArgs),
    /// Write a model as a Hugging Face folder
    Convert(ConvertArgs),
    /// Write a model with an adapter merged into its weights
    Merge(MergeArgs),
}

/// Which model, and where it may come from.
#[derive(ClapArgs, Debug, Clone)]
pub struct SourceArgs {
    /// A folder, a GGUF file, `default`, or org/name, org/name@revision, org/name@revision:file.gguf on a hub
    #[arg(default_value = "default", value_name = "MODEL")]
    pub model: String,
    /// How.
    #[command(flatten)]
    pub hub: HubArgs,
}

/// How a hub is reached.
#[derive(ClapArgs, Debug, Clone)]
pub struct HubArgs {
    /// The hub that models come from
    #[arg(
        long = "hub",
        env = "HF_ENDPOINT",
        value_name = "URL",
        default_value = "https://huggingface.co",
        help_heading = "Hub"
    )]
    pub endpoint: String,
    /// Name of the environment variable that holds the hub's token
    #[arg(
        long = "hub-token-variable",
        value_name = "NAME",
        default_value = "HF_TOKEN",
        help_heading = "Hub"
    )]
    pub token_variable: String,
}

/// `temper model fetch`
#[derive(ClapArgs, Debug)]
pub struct FetchArgs {
    /// Which.
    #[command(flatten)]
    pub source: SourceArgs,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// `temper model show`
#[derive(ClapArgs, Debug)]
pub struct ShowArgs {
    /// Which.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Also hash the files
    #[arg(long)]
    pub sha256: bool,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// `temper model audit`
#[derive(ClapArgs, Debug)]
pub struct AuditArgs {
    /// Which.
    #[command(flatten)]
    pub source: SourceArgs,
    /// The revision, where you know it; else it is taken from what the files and their place state
    #[arg(long, value_name = "COMMIT")]
    pub revision: Option<String>,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// What is written, and where.
#[derive(ClapArgs, Debug, Clone)]
pub struct TargetArgs {
    /// The folder to make
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,
    /// How elements are stored
    #[arg(long, default_value = "bfloat16")]
    pub dtype: DtypeArg,
    /// Shard the weights into files of at most this many megabytes
    #[arg(long, default_value_t = 5000, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub max_shard_mb: u64,
}

/// A data type, as typed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DtypeArg {
    /// bfloat16
    Bfloat16,
    /// 32-bit floating point
    Float32,
}

impl From<DtypeArg> for SaveDtype {
    fn from(dtype: DtypeArg) -> Self {
        match dtype {
            DtypeArg::Bfloat16 => SaveDtype::Bf16,
            DtypeArg::Float32 => SaveDtype::F32,
        }
    }
}

/// A form of the base in training, as typed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseArg {
    /// As the weights decode
    Dense,
    /// 8-bit integers in blocks of 32
    Int8,
    /// 4-bit NormalFloat
    Nf4,
    /// 4-bit NormalFloat with doubly quantised block maxima, as QLoRA has it
    Nf4Double,
}

impl From<BaseArg> for Base {
    fn from(base: BaseArg) -> Self {
        match base {
            BaseArg::Dense => Base::Dense,
            BaseArg::Int8 => Base::Int8,
            BaseArg::Nf4 => Base::Nf4 {
                double_quantised: false,
            },
            BaseArg::Nf4Double => Base::Nf4 {
                double_quantised: true,
            },
        }
    }
}

/// `temper model convert`
#[derive(ClapArgs, Debug)]
pub struct ConvertArgs {
    /// Which.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Where to.
    #[command(flatten)]
    pub target: TargetArgs,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// `temper model merge`
#[derive(ClapArgs, Debug)]
pub struct MergeArgs {
    /// The base: the weights that the adapter was trained against.
    #[command(flatten)]
    pub source: SourceArgs,
    /// The folder of the adapter, as PEFT saves it
    #[arg(long, short, value_name = "DIR")]
    pub adapter: PathBuf,
    /// How the adapter's training held the base: over a quantised one it is merged into the
    /// dequantised weights
    #[arg(long, default_value = "dense", value_name = "FORMAT")]
    pub base_format: BaseArg,
    /// Where to.
    #[command(flatten)]
    pub target: TargetArgs,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}
