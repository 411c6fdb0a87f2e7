//! The verbs, and the flags that several of them share, as they are typed. A verb has its own flags
//! beside its code. What flags mean together is decided where they are used.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use temper_report::Format;

use crate::{
    engines::{EngineArgs, SamplingArgs},
    verbs::{self, model::args::HubArgs},
};

/// Evaluate and train code-repair agents, with numbers you can defend.
#[derive(Parser, Debug)]
#[command(
    name = "temper",
    version,
    about,
    max_term_width = 100,
    arg_required_else_help = true
)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
    /// Where places and tools are found.
    #[command(flatten)]
    pub places: PlacesArgs,
}

/// Flags that every verb takes.
#[derive(ClapArgs, Debug, Clone)]
pub struct PlacesArgs {
    /// Cache for archives, trees and environments [default: the user's cache directory]
    #[arg(
        long,
        global = true,
        env = "TEMPER_CACHE",
        value_name = "DIR",
        help_heading = "Places"
    )]
    pub cache: Option<PathBuf>,
    /// Package index that archives and wheels come from
    #[arg(
        long,
        global = true,
        env = "PIP_INDEX_URL",
        value_name = "URL",
        default_value = "https://pypi.org/simple",
        hide_env_values = true,
        help_heading = "Places"
    )]
    pub index_url: String,
    /// Take archives and wheels from this directory; with --offline from nowhere else
    #[arg(
        long,
        global = true,
        env = "TEMPER_FILES",
        value_name = "DIR",
        help_heading = "Places"
    )]
    pub files: Option<PathBuf>,
    /// Do not use the network for archives and wheels
    #[arg(long, global = true, help_heading = "Places")]
    pub offline: bool,
    /// The Python interpreter of Python tasks [default: python3 on PATH]
    #[arg(
        long,
        global = true,
        env = "TEMPER_PYTHON",
        value_name = "FILE",
        help_heading = "Places"
    )]
    pub python: Option<PathBuf>,
    /// No progress, only results and errors
    #[arg(long, short, global = true, help_heading = "Places")]
    pub quiet: bool,
}

/// The verbs, in the order of the data's way.
#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Look at, import and prove tasks
    #[command(subcommand)]
    Tasks(verbs::tasks::args::TasksVerb),
    /// Divide a suite into train, dev and test so that none learns from another
    #[command(subcommand)]
    Split(verbs::split::args::SplitVerb),
    /// Look at trajectories that others published
    #[command(subcommand)]
    Data(verbs::data::args::DataVerb),
    /// Fetch, look at, convert and merge models
    #[command(subcommand)]
    Model(verbs::model::args::ModelVerb),
    /// Plan a context window, and probe a server for it
    #[command(subcommand)]
    Context(verbs::context::args::ContextVerb),
    /// Run one agent on a suite: a job of trials
    Run(verbs::run::RunArgs),
    /// Run an agent on one task, then ten, then more, as long as each rung shows that all works
    Canary(Box<verbs::canary::CanaryArgs>),
    /// Judge predictions that something else made
    Grade(verbs::grade::GradeArgs),
    /// Evaluate two agents on a suite, compare them, write the report
    Evaluate(verbs::evaluate::EvaluateArgs),
    /// Sample candidates for training tasks from a teacher, replay and judge them
    Collect(Box<verbs::collect::CollectArgs>),
    /// Make data sets of verified trials, look at them, convert them
    #[command(subcommand)]
    Dataset(verbs::dataset::args::DatasetVerb),
    /// Follow a recipe: collect, build, train, select, evaluate, report
    Train(Box<verbs::train::args::TrainArgs>),
    /// Declare a comparison of training recipes, follow it, test it once
    #[command(subcommand)]
    Experiment(verbs::experiment::args::ExperimentVerb),
    /// Several training seeds as one result: by task, by seed, regressions
    Aggregate(verbs::aggregate::AggregateArgs),
    /// Compare finished jobs, paired by task
    Compare(verbs::compare::CompareArgs),
    /// Write the report page of finished jobs
    Report(verbs::report::ReportArgs),
    /// Decide what the results of jobs may be called, by what was published and what they did
    Claims(verbs::claims::ClaimsArgs),
    /// Write the record of a result, or check one against the files
    #[command(subcommand)]
    Record(verbs::record::RecordVerb),
    /// Write the trajectories of a job in another format
    Export(verbs::export::ExportArgs),
    /// Serve a model through an OpenAI-compatible interface
    Serve(verbs::serve::ServeArgs),
    /// Show the agent profiles and their resolved settings
    Profile(verbs::profile::ProfileArgs),
    /// Say what works on this machine, and what is in force
    Doctor(verbs::doctor::DoctorArgs),
    /// Print the completions of a shell
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Which tasks.
#[derive(ClapArgs, Debug, Clone)]
pub struct SuiteArgs {
    /// A suite that ships with Temper, or a file or directory of tasks
    #[arg(long, short, default_value = "starter", value_name = "SUITE")]
    pub suite: String,
    /// Only tasks whose id fits: a glob, or a regular expression between slashes. May be given
    /// more than once
    #[arg(long = "task", short = 't', value_name = "PATTERN")]
    pub tasks: Vec<String>,
    /// Only tasks of this split
    #[arg(long)]
    pub split: Option<SplitArg>,
    /// At most this many tasks, the first by id
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Only the tasks of this list: a sample that `tasks sample` drew, whose digests must still
    /// hold, or a file of ids, one a line
    #[arg(long, value_name = "FILE")]
    pub tasks_from: Option<PathBuf>,
}

/// A split, as typed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitArg {
    /// May be trained on
    Train,
    /// Selects between snapshots
    Dev,
    /// Measured once
    Test,
    /// Not said
    Unassigned,
}

/// How a table is printed.
#[derive(ClapArgs, Debug, Clone)]
pub struct FormatArgs {
    /// How results are printed
    #[arg(long, default_value = "table", value_name = "table|json|jsonl")]
    pub format: Format,
}

/// Where untrusted commands run.
#[derive(ClapArgs, Debug, Clone)]
pub struct SandboxArgs {
    /// The kind of sandbox
    #[arg(long, default_value = "namespaces", help_heading = "Sandbox")]
    pub sandbox: SandboxKind,
    /// The engine's API socket [default: DOCKER_HOST, else the usual places]
    #[arg(
        long,
        env = "DOCKER_HOST",
        value_name = "URL",
        help_heading = "Sandbox"
    )]
    pub engine: Option<String>,
    /// Memory of one sandbox, in MiB
    #[arg(
        long,
        default_value_t = 2048,
        value_name = "MIB",
        help_heading = "Sandbox"
    )]
    pub memory_mib: u64,
    /// Space for everything a sandbox writes, in MiB
    #[arg(
        long,
        default_value_t = 1024,
        value_name = "MIB",
        help_heading = "Sandbox"
    )]
    pub disk_mib: u64,
    /// Processes of one sandbox
    #[arg(
        long,
        default_value_t = 512,
        value_name = "N",
        help_heading = "Sandbox"
    )]
    pub processes: u64,
    /// Also demand this protection. May be given more than once
    #[arg(long, value_name = "PROTECTION", help_heading = "Sandbox")]
    pub demand: Vec<String>,
    /// Do without this protection, on your own responsibility. May be given more than once
    #[arg(long, value_name = "PROTECTION", help_heading = "Sandbox")]
    pub without: Vec<String>,
    /// Give sandboxes the host's network, for tasks whose format asks for it
    #[arg(long, help_heading = "Sandbox")]
    pub host_network: bool,
}

/// A kind of sandbox.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxKind {
    /// Linux namespaces; no daemon, no images
    Namespaces,
    /// Docker, through its API
    Docker,
    /// Podman, through its Docker-compatible API
    Podman,
}

/// How trials are run; shared by `run` and `evaluate`.
#[derive(ClapArgs, Debug, Clone)]
pub struct TrialArgs {
    /// Trials per task
    #[arg(long, short = 'k', default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub attempts: u32,
    /// All randomness derives from it
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Trials at a time [default: the number of cores]
    #[arg(long, short = 'j')]
    pub workers: Option<usize>,
    /// How often a trial is started over after a failure of the infrastructure
    #[arg(long, default_value_t = 2)]
    pub max_retries: u32,
    /// Run trials again that earlier runs lost to the infrastructure
    #[arg(long)]
    pub redo_lost: bool,
    /// Wall-clock limit of one trial, in seconds
    #[arg(long, default_value_t = 3600, value_name = "SECONDS")]
    pub trial_timeout: u64,
    /// What the run says of itself.
    #[command(flatten)]
    pub identity: IdentityArgs,
    /// The agent's profile
    #[arg(long, default_value = "project-hardened", help_heading = "Agent")]
    pub profile: ProfileArg,
    /// The file of the profile: the published YAML of `official-public-repro`, or your own for
    /// `custom`
    #[arg(long, value_name = "FILE", help_heading = "Agent")]
    pub profile_file: Option<PathBuf>,
    /// Change one setting of the profile; the change is recorded. May be given more than once
    #[arg(long = "set", value_name = "KEY=VALUE", help_heading = "Agent")]
    pub overrides: Vec<String>,
    /// Models.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The embedded engine.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// How it samples.
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Where its models come from.
    #[command(flatten)]
    pub hub: HubArgs,
    /// Budget.
    #[command(flatten)]
    pub budget: BudgetArgs,
    /// Sandbox.
    #[command(flatten)]
    pub sandbox: SandboxArgs,
}

impl Default for TrialArgs {
    /// What the flags are when none is given.
    fn default() -> Self {
        #[derive(clap::Parser)]
        struct Flags {
            #[command(flatten)]
            trials: TrialArgs,
        }
        <Flags as clap::Parser>::parse_from(["trials"]).trials
    }
}

/// What a run says of itself beyond what Temper can see.
#[derive(ClapArgs, Debug, Clone, Default)]
pub struct IdentityArgs {
    /// The audit of the model that the server serves, as `temper model audit --format json` wrote
    /// it. It is recorded as stated, since no server proves which files it serves
    #[arg(long, value_name = "FILE", help_heading = "Identity")]
    pub model_audit: Option<PathBuf>,
    /// What the tasks are: NAME or NAME@REVISION, recorded as stated
    #[arg(long, value_name = "NAME", help_heading = "Identity")]
    pub dataset: Option<String>,
    /// The sequence length that the model was trained with; profile and server must agree with it
    #[arg(long, value_name = "TOKENS", help_heading = "Identity")]
    pub training_context: Option<u64>,
    /// Run although profile, server and training differ in their context; the result is stamped
    #[arg(long, help_heading = "Identity")]
    pub allow_context_mismatch: bool,
}

/// A profile's name.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileArg {
    /// Temper's own, made for small models
    ProjectHardened,
    /// The published one of Klear-AgentForge
    OfficialPublicRepro,
    /// A file of your own, which claims to be neither
    Custom,
}

/// How a model is called.
#[derive(ClapArgs, Debug, Clone)]
pub struct ModelArgs {
    /// Name of the environment variable that holds the API key
    #[arg(
        long,
        default_value = "OPENAI_API_KEY",
        value_name = "NAME",
        help_heading = "Model"
    )]
    pub api_key_variable: String,
    /// One more field of every request, as JSON. May be given more than once
    #[arg(long = "model-kwarg", value_name = "KEY=JSON", help_heading = "Model")]
    pub model_kwargs: Vec<String>,
    /// Receive replies as a stream
    #[arg(long, help_heading = "Model")]
    pub stream: bool,
    /// Ask for token ids and log-probabilities, and keep them
    #[arg(long, help_heading = "Model")]
    pub token_ids: bool,
    /// Prices per million tokens: INPUT/OUTPUT or INPUT/CACHED/OUTPUT in dollars
    #[arg(long, value_name = "PRICES", help_heading = "Model")]
    pub price: Option<String>,
    /// Write every request and reply to this file, to be replayed with replay:FILE
    #[arg(long, value_name = "FILE", help_heading = "Model")]
    pub record: Option<PathBuf>,
}

impl Default for ModelArgs {
    fn default() -> Self {
        ModelArgs {
            api_key_variable: "OPENAI_API_KEY".into(),
            model_kwargs: Vec::new(),
            stream: false,
            token_ids: false,
            price: None,
            record: None,
        }
    }
}

/// Hard stops.
#[derive(ClapArgs, Debug, Clone)]
pub struct BudgetArgs {
    /// Stop the job before it costs more than this many dollars
    #[arg(long, value_name = "DOLLARS", help_heading = "Budget")]
    pub max_cost: Option<f64>,
    /// Stop the job before it uses more than this many tokens
    #[arg(long, value_name = "N", help_heading = "Budget")]
    pub max_tokens: Option<u64>,
    /// Stop the job after this many seconds
    #[arg(long, value_name = "SECONDS", help_heading = "Budget")]
    pub max_seconds: Option<u64>,
}
