//! The recorded, append-only list of steps of one trial.
//!
//! On disk a trajectory is JSON Lines: one [`Record`] a line, a header first, an end last. A file
//! without an end belongs to a trial that was cut off; its steps are still good.

use serde::{Deserialize, Serialize};

use crate::{
    AgentName, Bytes, Digest, Failure, Message, TaskId,
    usage::{MicroDollars, Usage},
};

/// One line of a trajectory file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Record {
    /// First line.
    Header(Header),
    /// A message that opens the conversation (system, task).
    Prompt {
        /// The message.
        message: Message,
    },
    /// One agent turn.
    Step(Box<Step>),
    /// Last line.
    End(End),
}

/// What the trajectory belongs to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Version of this format.
    pub format: u32,
    /// The task.
    pub task_id: TaskId,
    /// The arm.
    pub agent: AgentName,
    /// Counted from 0.
    pub attempt: u32,
    /// The trial's seed.
    pub seed: u64,
    /// Name of the profile.
    pub profile: String,
    /// Digest of the profile's text.
    pub profile_digest: Digest,
    /// The resolved agent configuration, templates included.
    pub config: serde_json::Value,
    /// What drives the agent, without secrets.
    pub model: serde_json::Value,
    /// The sandbox's protections in force.
    pub sandbox: serde_json::Value,
    /// RFC 3339.
    pub started_at: String,
    /// What it shares with another trajectory, where it goes on from a state of that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<Branch>,
}

/// Where a trajectory parts from another. Its file holds the shared steps too, as they were
/// recorded, so that it can be read alone; they count as the other's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Branch {
    /// Digest of the prompts and the shared steps. Trajectories of one prefix form a group.
    pub prefix: Digest,
    /// How many steps are shared.
    pub n_steps: u32,
    /// Tokens of the conversation up to there, as the server counted them for the call that
    /// followed; absent where it did not.
    #[serde(default)]
    pub n_tokens: Option<u64>,
    /// Digest of the sandbox's state that it starts from.
    pub state: Digest,
    /// Model calls, tokens and price of the shared steps; the end's numbers contain them.
    pub usage: Usage,
    /// Price of the shared steps, where known.
    #[serde(default)]
    pub cost: Option<MicroDollars>,
}

impl Header {
    /// The format that this code writes.
    pub const FORMAT: u32 = 1;
}

/// One agent turn: what the model answered, what was done, what came back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Counted from 1 without gaps.
    pub number: u32,
    /// The model's reply, as it goes into the history.
    pub reply: Message,
    /// Why the model stopped.
    pub finish: FinishReason,
    /// The actions that were run, in order.
    #[serde(default)]
    pub actions: Vec<Action>,
    /// The messages appended to the history after the reply: observations, or the text that told
    /// the model what was wrong with its reply.
    #[serde(default)]
    pub observations: Vec<Message>,
    /// What kind of turn it was.
    pub outcome: StepOutcome,
    /// Tokens of the call.
    #[serde(default)]
    pub usage: Usage,
    /// Price of the call, where known.
    #[serde(default)]
    pub cost: Option<MicroDollars>,
    /// Sampled ids and log-probabilities, where the server gave them.
    #[serde(default)]
    pub tokens: Option<TokenRecord>,
    /// Every attempt at the call, the failed ones included.
    #[serde(default)]
    pub attempts: Vec<Attempt>,
    /// Wall time of the model call, retries included.
    pub model_seconds: f64,
    /// Wall time of the actions.
    pub action_seconds: f64,
}

/// What kind of turn a step was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepOutcome {
    /// The actions ran.
    Ran,
    /// The reply held no usable action; nothing ran.
    FormatError,
    /// The reply was cut off at the output limit; nothing ran.
    Truncated,
    /// An action ran into its time limit.
    TimedOut,
    /// An action submitted the work.
    Submitted,
}

/// Why the model stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FinishReason {
    /// A natural end.
    Stop,
    /// The output limit.
    Length,
    /// It calls tools.
    ToolCalls,
    /// The provider withheld the reply.
    ContentFilter,
    /// The server did not say, or said something else.
    Other(String),
}

/// One command and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// The command as it was run.
    pub command: String,
    /// The tool call it answers.
    #[serde(default)]
    pub tool_call_id: Option<String>,
    /// Exit status; negative for a signal; absent when it timed out.
    pub exit_code: Option<i32>,
    /// Whether it ran into its time limit.
    pub timed_out: bool,
    /// Both streams, merged, as bytes, cut at the sandbox's output limit.
    pub output: Bytes,
    /// Bytes beyond that limit.
    #[serde(default)]
    pub omitted_bytes: u64,
    /// Wall time.
    pub wall_seconds: f64,
}

/// Token ids as the server sampled them. All vectors that are present have the same length as
/// `completion_ids`; missing log-probabilities stay missing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRecord {
    /// The prompt as the server tokenized it, where given.
    #[serde(default)]
    pub prompt_ids: Option<Vec<u32>>,
    /// The sampled ids.
    pub completion_ids: Vec<u32>,
    /// Natural-log probability of each sampled id.
    #[serde(default)]
    pub logprobs: Option<Vec<f32>>,
    /// Loss mask over `completion_ids`.
    #[serde(default)]
    pub loss_mask: Option<Vec<bool>>,
}

/// One attempt at a model call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    /// HTTP status, where there was an answer.
    #[serde(default)]
    pub status: Option<u16>,
    /// Class of the error; absent for the attempt that succeeded.
    #[serde(default)]
    pub error: Option<String>,
    /// The server's message, without secrets, cut to a readable length.
    #[serde(default)]
    pub message: Option<String>,
    /// Wall time of the attempt.
    pub wall_seconds: f64,
    /// How long was waited before the next one.
    #[serde(default)]
    pub waited_seconds: f64,
}

/// How a trajectory ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// How the loop ended.
    pub exit: Exit,
    /// The submission text, if there was one.
    #[serde(default)]
    pub submission: Option<Bytes>,
    /// The last message appended to the history, if the ending appended one.
    #[serde(default)]
    pub message: Option<Message>,
    /// Tokens of all calls.
    pub usage: Usage,
    /// Price of all calls, where known.
    #[serde(default)]
    pub cost: Option<MicroDollars>,
    /// Model calls that returned a reply.
    pub n_model_calls: u32,
    /// Attempts of a last model call that gave no reply; those of a call that gave one are in its
    /// step.
    #[serde(default)]
    pub attempts: Vec<Attempt>,
    /// RFC 3339.
    pub finished_at: String,
}

/// How an agent's loop ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Exit {
    /// The agent submitted.
    Submitted,
    /// A limit of the profile or the budget.
    LimitReached {
        /// Which one.
        limit: Limit,
    },
    /// The server refused the prompt, or the guard saw that the next one cannot fit.
    ContextExceeded,
    /// The agent kept answering without a usable action.
    RepeatedFormatErrors,
    /// The last reply was cut off at the output limit and the protocol has no way on.
    Truncated,
    /// Something broke; the failure says where.
    Failed {
        /// What broke.
        failure: Failure,
    },
}

/// A limit that ended a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// Steps of the profile.
    Steps,
    /// Cost of the profile.
    Cost,
    /// Wall time of the trial.
    WallTime,
    /// The trial's or the job's token budget.
    Tokens,
    /// The job's money budget.
    Money,
    /// The trial's or the job's budget of model calls.
    Calls,
}

impl Exit {
    /// The exit status in mini-swe-agent's words.
    pub fn mini_swe_agent_status(&self) -> String {
        match self {
            Exit::Submitted => "Submitted".into(),
            Exit::LimitReached {
                limit: Limit::WallTime,
            } => "TimeExceeded".into(),
            Exit::LimitReached { .. } => "LimitsExceeded".into(),
            Exit::ContextExceeded => "ContextWindowExceededError".into(),
            Exit::RepeatedFormatErrors => "RepeatedFormatError".into(),
            Exit::Truncated => "TruncatedOutput".into(),
            Exit::Failed { failure } => failure.class.clone(),
        }
    }
}
