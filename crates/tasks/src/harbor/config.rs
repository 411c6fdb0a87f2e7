//! `task.toml`, schema version 1.4 and the older ones that it accepts.
//!
//! Differences from Harbor's own reader: an unknown key is an error (Harbor ignores it), except in
//! `[metadata]`; and templates such as `${VAR:-default}` stay as they are.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// `task.toml`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Version of the schema.
    pub schema_version: Option<String>,
    /// The older name of `schema_version`.
    pub version: Option<String>,
    /// Where the task was taken from.
    pub source: Option<String>,
    /// How the steps' rewards become one.
    pub multi_step_reward_strategy: Option<RewardStrategy>,
    /// What is kept of the container.
    pub artifacts: Vec<Artifact>,
    /// Name and description.
    pub task: Option<Package>,
    /// Free. Dates become text.
    #[serde(deserialize_with = "free_table")]
    pub metadata: Map<String, Value>,
    /// The agent's phase.
    pub agent: Agent,
    /// The verifier's phase.
    pub verifier: Verifier,
    /// The container.
    pub environment: Environment,
    /// The known solution.
    pub solution: Solution,
    /// Steps of a multi-step task.
    pub steps: Vec<Step>,
}

fn free_table<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Map<String, Value>, D::Error> {
    fn plain(value: toml::Value) -> Value {
        match value {
            toml::Value::String(text) => text.into(),
            toml::Value::Integer(number) => number.into(),
            // JSON has no NaN, and a null would look like something that was not said.
            toml::Value::Float(number) => serde_json::Number::from_f64(number)
                .map_or_else(|| number.to_string().into(), Value::Number),
            toml::Value::Boolean(value) => value.into(),
            toml::Value::Datetime(time) => time.to_string().into(),
            toml::Value::Array(items) => items.into_iter().map(plain).collect(),
            toml::Value::Table(table) => Value::Object(object(table)),
        }
    }
    fn object(table: toml::Table) -> Map<String, Value> {
        table
            .into_iter()
            .map(|(key, value)| (key, plain(value)))
            .collect()
    }
    toml::Table::deserialize(deserializer).map(object)
}

/// How the rewards of steps become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RewardStrategy {
    /// The mean of each.
    Mean,
    /// The last step's.
    Final,
}

/// `[task]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// `org/name`
    pub name: String,
    /// Any text.
    #[serde(default)]
    pub version: Option<String>,
    /// For people.
    #[serde(default)]
    pub description: String,
    /// Who wrote it.
    #[serde(default)]
    pub authors: Vec<Author>,
    /// For search.
    #[serde(default)]
    pub keywords: Vec<String>,
}

/// An author.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Author {
    /// Name.
    pub name: String,
    /// Address.
    #[serde(default)]
    pub email: Option<String>,
}

/// `[agent]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Agent {
    /// Wall-clock limit.
    pub timeout_sec: Option<f64>,
    /// Whom commands run as.
    pub user: Option<User>,
    /// Network of this phase, if it differs from the environment's.
    pub network_mode: Option<NetworkMode>,
    /// With `allowlist`.
    pub allowed_hosts: Option<Vec<String>>,
}

/// `[verifier]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Verifier {
    /// Wall-clock limit.
    pub timeout_sec: f64,
    /// Variables of the script; may hold templates.
    pub env: BTreeMap<String, String>,
    /// Whom the script runs as.
    pub user: Option<User>,
    /// Network of this phase, if it differs from the environment's.
    pub network_mode: Option<NetworkMode>,
    /// With `allowlist`.
    pub allowed_hosts: Option<Vec<String>>,
    /// In which container it runs.
    pub environment_mode: Option<EnvironmentMode>,
    /// A container of its own.
    pub environment: Option<Environment>,
    /// Commands that save state for it.
    pub collect: Vec<Collect>,
}

impl Default for Verifier {
    fn default() -> Self {
        Verifier {
            timeout_sec: 600.0,
            env: BTreeMap::new(),
            user: None,
            network_mode: None,
            allowed_hosts: None,
            environment_mode: None,
            environment: None,
            collect: Vec::new(),
        }
    }
}

/// A user by name or number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum User {
    /// By number.
    Id(u32),
    /// By name.
    Name(String),
}

/// Whether the verifier shares the agent's container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EnvironmentMode {
    /// It does.
    Shared,
    /// It sees only collected artifacts.
    Separate,
}

/// `[[verifier.collect]]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Collect {
    /// A shell command.
    pub command: String,
    /// The Compose service it runs in.
    #[serde(default = "main_service")]
    pub service: String,
    /// Wall-clock limit.
    #[serde(default = "sixty")]
    pub timeout_sec: f64,
    /// Whom it runs as.
    #[serde(default)]
    pub user: Option<User>,
}

fn main_service() -> String {
    "main".to_owned()
}

fn sixty() -> f64 {
    60.0
}

/// `[environment]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Environment {
    /// Wall-clock limit of the image's build.
    pub build_timeout_sec: f64,
    /// An image that needs no build.
    pub docker_image: Option<String>,
    /// The container's system.
    pub os: Os,
    /// Cores.
    pub cpus: Option<f64>,
    /// Memory in MiB.
    pub memory_mb: Option<u64>,
    /// Disk in MiB.
    pub storage_mb: Option<u64>,
    /// Deprecated: memory with a suffix.
    pub memory: Option<String>,
    /// Deprecated: disk with a suffix.
    pub storage: Option<String>,
    /// Number of GPUs.
    pub gpus: Option<u32>,
    /// GPUs that will do.
    pub gpu_types: Option<Vec<String>>,
    /// A TPU slice.
    pub tpu: Option<Tpu>,
    /// Tool servers for the agent.
    pub mcp_servers: Vec<McpServer>,
    /// Variables; may hold templates.
    pub env: BTreeMap<String, String>,
    /// A directory of skills in the container.
    pub skills_dir: Option<String>,
    /// When the container is ready.
    pub healthcheck: Option<Healthcheck>,
    /// Where commands run.
    pub workdir: Option<String>,
    /// What of the network is seen.
    pub network_mode: Option<NetworkMode>,
    /// With `allowlist`.
    pub allowed_hosts: Option<Vec<String>>,
    /// Deprecated: `network_mode`.
    pub allow_internet: Option<bool>,
}

impl Default for Environment {
    fn default() -> Self {
        Environment {
            build_timeout_sec: 600.0,
            docker_image: None,
            os: Os::Linux,
            cpus: None,
            memory_mb: None,
            storage_mb: None,
            memory: None,
            storage: None,
            gpus: None,
            gpu_types: None,
            tpu: None,
            mcp_servers: Vec::new(),
            env: BTreeMap::new(),
            skills_dir: None,
            healthcheck: None,
            workdir: None,
            network_mode: None,
            allowed_hosts: None,
            allow_internet: None,
        }
    }
}

impl Environment {
    /// The network of the container: what is said, else public.
    pub fn network(&self) -> NetworkMode {
        self.network_mode.unwrap_or(NetworkMode::Public)
    }
}

/// The system of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Os {
    /// Linux.
    Linux,
    /// Windows.
    Windows,
}

impl<'de> Deserialize<'de> for Os {
    /// In upper or lower case.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.to_lowercase().as_str() {
            "linux" => Ok(Os::Linux),
            "windows" => Ok(Os::Windows),
            _ => Err(serde::de::Error::unknown_variant(
                &text,
                &["linux", "windows"],
            )),
        }
    }
}

/// What of the network is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkMode {
    /// Nothing.
    NoNetwork,
    /// Everything.
    Public,
    /// Some hosts.
    Allowlist,
}

/// A TPU slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tpu {
    /// Its kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// `2x4`
    pub topology: String,
}

/// A tool server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct McpServer {
    /// Its name.
    pub name: String,
    /// `sse`, `streamable-http` (or `http`), `stdio`.
    #[serde(default = "sse")]
    pub transport: String,
    /// For HTTP.
    #[serde(default)]
    pub url: Option<String>,
    /// For `stdio`.
    #[serde(default)]
    pub command: Option<String>,
    /// For `stdio`.
    #[serde(default)]
    pub args: Vec<String>,
    /// For HTTP.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

fn sse() -> String {
    "sse".to_owned()
}

/// `[environment.healthcheck]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Healthcheck {
    /// A shell command; exit code 0 means ready.
    pub command: String,
    /// Between attempts.
    #[serde(default = "five")]
    pub interval_sec: f64,
    /// Of one attempt.
    #[serde(default = "thirty")]
    pub timeout_sec: f64,
    /// In which failures do not count.
    #[serde(default)]
    pub start_period_sec: f64,
    /// Between attempts in that period.
    #[serde(default = "five")]
    pub start_interval_sec: f64,
    /// Failures in a row that are too many.
    #[serde(default = "three")]
    pub retries: u32,
}

fn five() -> f64 {
    5.0
}

fn thirty() -> f64 {
    30.0
}

fn three() -> u32 {
    3
}

/// `[solution]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Solution {
    /// Variables of the script; may hold templates.
    pub env: BTreeMap<String, String>,
}

/// What is kept of the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Artifact {
    /// A path in the container.
    Path(String),
    /// With details.
    Entry(ArtifactEntry),
}

/// An artifact with details.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArtifactEntry {
    /// A path in the container.
    pub source: String,
    /// A path below the trial's artifacts.
    #[serde(default)]
    pub destination: Option<String>,
    /// Patterns of what is left out.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// The Compose service.
    #[serde(default)]
    pub service: Option<String>,
}

/// `[[steps]]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// A directory's name below `steps`.
    pub name: String,
    /// The agent's phase.
    #[serde(default)]
    pub agent: Agent,
    /// The verifier's phase.
    #[serde(default)]
    pub verifier: Verifier,
    /// Below it the steps that follow are not run.
    #[serde(default)]
    pub min_reward: Option<MinReward>,
    /// When the step may start.
    #[serde(default)]
    pub healthcheck: Option<Healthcheck>,
    /// What is kept after the step.
    #[serde(default)]
    pub artifacts: Vec<Artifact>,
}

/// A threshold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MinReward {
    /// Of the one reward.
    One(f64),
    /// Of each.
    Each(BTreeMap<String, f64>),
}
