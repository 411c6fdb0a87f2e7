//! Flags of `temper context …`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use temper_checkpoint::context::Version;

use crate::{
    args::FormatArgs,
    verbs::model::args::{HubArgs, SourceArgs},
};

/// What to do about a context window.
#[derive(Subcommand, Debug)]
pub enum ContextVerb {
    /// Say whether a checkpoint serves a window, how a server is started for it, what memory it
    /// takes, and whether trainer and server rotate alike. Nothing is started
    Plan(Box<PlanArgs>),
    /// Send prompts of known lengths to a live server and say which it accepts, counts alike and
    /// understands. A probe that was interrupted goes on
    Probe(Box<ProbeArgs>),
}

/// `temper context plan`
#[derive(ClapArgs, Debug)]
pub struct PlanArgs {
    /// Which. A config.json alone will do.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Tokens of prompt and output together
    #[arg(long, default_value_t = 65_536, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub window: u64,
    /// The commit to name in the command [default: that of a model from a hub]
    #[arg(long, value_name = "COMMIT", help_heading = "Server")]
    pub revision: Option<String>,
    /// The vLLM release to write the command for [default: the one on PATH, else both shapes]
    #[arg(long, value_name = "VERSION", help_heading = "Server")]
    pub vllm_version: Option<Version>,
    /// Memory of one GPU: a number of GiB, or with GiB or GB behind it
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Memory")]
    pub gpu_memory: Option<u64>,
    /// The share of it that the server may take [default: the server's, 0.9]
    #[arg(long, value_name = "SHARE", value_parser = share, help_heading = "Memory")]
    pub gpu_memory_utilization: Option<f64>,
    /// What activations, graphs and libraries take of it, in GiB
    #[arg(long, value_name = "SIZE", default_value = "2", value_parser = size, help_heading = "Memory")]
    pub overhead: u64,
    /// Size of the weights as they are served [default: that of the files, else of the shapes in
    /// bfloat16]
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Memory")]
    pub weights: Option<u64>,
    /// Bits of one element of the key-value cache
    #[arg(
        long,
        value_name = "BITS",
        default_value = "16",
        help_heading = "Memory"
    )]
    pub kv_cache_bits: CacheBits,
    /// What trains: its config.json or folder, or a rope_identity; it must rotate as the server does
    #[arg(long, value_name = "FILE", help_heading = "Gate")]
    pub trainer: Option<PathBuf>,
    /// What serves, where it is not the checkpoint with this plan's arguments
    #[arg(long, value_name = "FILE", requires = "trainer", help_heading = "Gate")]
    pub server_config: Option<PathBuf>,
    /// The record of a probe of the running server, made with this checkpoint's tokenizer: it
    /// decides what the configuration leaves undecided, and shows what the server did not take
    #[arg(long, value_name = "FILE")]
    pub probe: Option<PathBuf>,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// `temper context probe`
#[derive(ClapArgs, Debug)]
pub struct ProbeArgs {
    /// The server: http://HOST:PORT[/v1]
    #[arg(long, value_name = "URL")]
    pub base_url: String,
    /// The model's name there [default: the only one that it offers]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Tokenizer and chat template that count: a model as for `temper model show` [default: the
    /// model's name]
    #[arg(long, value_name = "MODEL")]
    pub tokenizer: Option<String>,
    /// Prompt lengths in tokens
    #[arg(long, value_name = "TOKENS,…", value_delimiter = ',', default_value = "8192,40960,64500", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub levels: Vec<u64>,
    /// The record; one that exists is gone on with
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,
    /// Limit of each answer in tokens; a model that thinks first needs more
    #[arg(long, default_value_t = 256, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub output_tokens: u32,
    /// The window in tokens [default: what the server states]
    #[arg(long, value_name = "TOKENS")]
    pub window: Option<u64>,
    /// The longest that one answer may take, in seconds
    #[arg(long, default_value_t = 900, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
    /// The hidden codes follow from it
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Name of the environment variable that holds the API key
    #[arg(long, default_value = "OPENAI_API_KEY", value_name = "NAME")]
    pub api_key_variable: String,
    /// One more field of every request, as JSON. May be given more than once
    #[arg(long = "model-kwarg", value_name = "KEY=JSON")]
    pub model_kwargs: Vec<String>,
    /// Where the tokenizer may come from.
    #[command(flatten)]
    pub hub: HubArgs,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Bits of one element of the cache, as typed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheBits {
    /// half precision
    #[value(name = "16")]
    Sixteen,
    /// fp8
    #[value(name = "8")]
    Eight,
}

/// Reads a size in bytes: `80`, `80GiB`, `80GB`.
fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("expected a size such as 80, 80GiB or 80GB, got {text:?}");
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let number: f64 = text[..split].parse().map_err(|_| wrong())?;
    let unit = match &text[split..] {
        "" | "GiB" => f64::from(1 << 30),
        "GB" => 1e9,
        _ => return Err(wrong()),
    };
    match number * unit {
        bytes if bytes < 1e15 => Ok(bytes as u64),
        _ => Err(wrong()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|share| *share > 0.0 && *share <= 1.0)
        .ok_or_else(|| format!("expected a share above 0 and at most 1, got {text:?}"))
}
