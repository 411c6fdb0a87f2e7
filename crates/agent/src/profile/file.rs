//! A profile as it lies in a file: the schema of mini-swe-agent 1 and 2, plus a `temper` section.
//!
//! Every key is either read, or refused, or listed as ignored with the reason. Keys that upstream
//! uses for its own containers, models and terminal are of the last kind.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use temper_core::trial::PatchSource;

use crate::protocol::{Protocol, bash_block::NestedFences};

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileFile {
    /// The loop and its texts.
    pub agent: AgentSection,
    /// Where commands run; the name that upstream's batch runners read.
    #[serde(default)]
    pub environment: Option<EnvironmentSection>,
    /// The same under the name that upstream's `mini` reads.
    #[serde(default)]
    pub env: Option<EnvironmentSection>,
    /// How the model is asked.
    #[serde(default)]
    pub model: ModelSection,
    /// Temper's own keys.
    #[serde(default)]
    pub temper: TemperSection,
}

/// Keys of `agent`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentSection {
    /// First message.
    pub system_template: String,
    /// Second message.
    pub instance_template: String,
    /// Version 1: what the model sees of an output.
    #[serde(default)]
    pub action_observation_template: Option<String>,
    /// Version 1: what the model is told after an unusable reply.
    #[serde(default)]
    pub format_error_template: Option<String>,
    /// Version 1: what the model is told after a command ran into its limit.
    #[serde(default)]
    pub timeout_template: Option<String>,
    /// Model calls; 0 for no limit.
    #[serde(default)]
    pub step_limit: u32,
    /// Dollars; 0 for no limit.
    #[serde(default = "default_cost_limit")]
    pub cost_limit: f64,
    /// Version 2: seconds; 0 for no limit.
    #[serde(default)]
    pub wall_time_limit_seconds: u64,
    /// Version 2: unusable replies in a row; 0 for no limit.
    #[serde(default)]
    pub max_consecutive_format_errors: Option<u32>,
    /// Ignored: upstream's terminal.
    #[serde(default)]
    pub mode: Option<Value>,
    /// Ignored: upstream's terminal.
    #[serde(default)]
    pub confirm_exit: Option<Value>,
    /// Ignored: trajectories lie in the job directory.
    #[serde(default)]
    pub output_path: Option<Value>,
}

fn default_cost_limit() -> f64 {
    3.0
}

/// Keys of `environment`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentSection {
    /// Where commands start.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Seconds a command may take.
    #[serde(default)]
    pub timeout: Option<u64>,
    /// Variables.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// `local` or `docker`: decides the shell.
    #[serde(default)]
    pub environment_class: Option<String>,
    /// Version 2: the shell.
    #[serde(default)]
    pub interpreter: Option<Vec<String>>,
    /// Refused unless empty: nothing of the host's environment enters a sandbox.
    #[serde(default)]
    pub forward_env: Vec<String>,
    /// Ignored: the task names its image.
    #[serde(default)]
    pub image: Option<Value>,
    /// Ignored: the sandbox is chosen by the job.
    #[serde(default)]
    pub executable: Option<Value>,
    /// Ignored: the sandbox is chosen by the job.
    #[serde(default)]
    pub run_args: Option<Value>,
    /// Ignored: a sandbox ends with its trial.
    #[serde(default)]
    pub container_timeout: Option<Value>,
    /// Ignored: the sandbox is chosen by the job.
    #[serde(default)]
    pub pull_timeout: Option<Value>,
}

/// Keys of `model`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSection {
    /// Ignored: the job names its model.
    #[serde(default)]
    pub model_name: Option<Value>,
    /// Ignored: the job names its model.
    #[serde(default)]
    pub model_class: Option<Value>,
    /// Ignored: an unknown price is never an error here.
    #[serde(default)]
    pub cost_tracking: Option<Value>,
    /// Sampling.
    #[serde(default)]
    pub model_kwargs: Map<String, Value>,
    /// Version 2: what the model sees of an output.
    #[serde(default)]
    pub observation_template: Option<String>,
    /// Version 2: what the model is told after an unusable reply.
    #[serde(default)]
    pub format_error_template: Option<String>,
}

/// Keys of `temper`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemperSection {
    /// The protocol; by default that of the version whose templates the file has.
    #[serde(default)]
    pub protocol: Option<Protocol>,
    /// The shell; by default that of `environment`.
    #[serde(default)]
    pub shell: Option<ShellName>,
    /// Limit on one reply.
    #[serde(default)]
    pub max_output_tokens: Option<u32>,
    /// Context that prompt and reply share.
    #[serde(default)]
    pub context_tokens: Option<u32>,
    /// Turns the context guard on, and says how much it keeps free.
    #[serde(default)]
    pub context_reserve_tokens: Option<u32>,
    /// Adds a note from this many equal outputs of an equal command on.
    #[serde(default)]
    pub repetition_note_after: Option<u32>,
    /// What happens to a command that a fence inside it cut off.
    #[serde(default)]
    pub nested_fences: Option<NestedFences>,
    /// Where the patch comes from.
    #[serde(default)]
    pub patch_source: Option<PatchSource>,
}

/// A shell by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShellName {
    /// `/bin/sh -c`, as upstream's local environment.
    Sh,
    /// `bash -c`.
    Bash,
    /// `bash -lc`, as upstream's Docker environment.
    BashLogin,
}

impl From<ShellName> for temper_sandbox::Shell {
    fn from(name: ShellName) -> Self {
        match name {
            ShellName::Sh => temper_sandbox::Shell::Sh,
            ShellName::Bash => temper_sandbox::Shell::Bash,
            ShellName::BashLogin => temper_sandbox::Shell::BashLogin,
        }
    }
}
