//! What drives an agent: anything that answers a conversation.

pub mod openai;
pub mod policy;
pub mod pricing;
pub mod probe;
pub mod record;
pub mod replay;
pub mod retry;
pub mod scripted;
pub mod secret;
pub mod spec;
pub mod sse;
pub mod tool_text;

use std::time::Instant;

pub use temper_core::message::Tool;
use temper_core::{
    Message,
    trajectory::{Attempt, FinishReason, TokenRecord},
    usage::{MicroDollars, Usage},
};

/// Answers conversations. One value serves one trial; a [`ModelFactory`] makes them.
pub trait Model: Send {
    /// Answers the conversation so far.
    fn query(&mut self, request: &ModelRequest<'_>) -> Result<ModelReply, ModelError>;
}

/// Makes one [`Model`] per trial, and describes what it is.
pub trait ModelFactory: Send + Sync {
    /// Everything that can change an answer, without secrets: it goes into the job's digest, the
    /// trajectory and the report.
    fn describe(&self) -> serde_json::Value;

    /// Whether a language model answers, or a program that is honest about being one.
    fn is_language_model(&self) -> bool;

    /// A model for one trial of `task`.
    fn open(
        &self,
        task: &temper_core::PreparedTask,
        seed: u64,
    ) -> Result<Box<dyn Model>, ModelError>;
}

/// One call.
pub struct ModelRequest<'a> {
    /// The whole history.
    pub messages: &'a [Message],
    /// Tools on offer; empty in the bash-block protocol.
    pub tools: &'a [Tool],
    /// Limit on the reply, if the profile sets one.
    pub max_output_tokens: Option<u32>,
    /// Sampling temperature, if the profile sets one.
    pub temperature: Option<f64>,
    /// The trial's seed.
    pub seed: u64,
    /// After this no attempt may start or go on.
    pub deadline: Option<Instant>,
}

/// A reply.
#[derive(Clone, Debug)]
pub struct ModelReply {
    /// The assistant's message.
    pub message: Message,
    /// Why it ended.
    pub finish: FinishReason,
    /// Tokens, as reported.
    pub usage: Usage,
    /// Price, where known.
    pub cost: Option<MicroDollars>,
    /// Sampled ids and log-probabilities, where given.
    pub tokens: Option<TokenRecord>,
    /// Every attempt, the last one successful.
    pub attempts: Vec<Attempt>,
}

/// Why a call gave no reply. The class decides what follows; the attempts go into the trajectory.
#[derive(Clone, Debug, thiserror::Error)]
#[error("query the model: {message}")]
pub struct ModelError {
    /// What kind of error it is.
    pub class: ModelErrorClass,
    /// The cause in words, without secrets.
    pub message: String,
    /// Every attempt.
    pub attempts: Vec<Attempt>,
}

/// Kinds of model errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelErrorClass {
    /// The prompt does not fit. Ends the trial as data, not as a failure.
    ContextExceeded,
    /// 401, 403.
    Authentication,
    /// 404 of the model.
    ModelNotFound,
    /// Another 4xx: asking again gives the same answer.
    BadRequest,
    /// 429 after all retries.
    RateLimited,
    /// 5xx after all retries.
    Server,
    /// No connection, or one that broke, after all retries.
    Connection,
    /// The deadline passed.
    Deadline,
    /// The answer is not what the protocol promises.
    InvalidResponse,
    /// A scripted or replayed model has no further reply.
    Exhausted,
    /// A budget's hard stop, before the call was made.
    Budget(temper_core::trajectory::Limit),
}

impl ModelErrorClass {
    /// A stable name, for attempts and failures.
    pub fn name(self) -> &'static str {
        match self {
            ModelErrorClass::ContextExceeded => "ContextExceeded",
            ModelErrorClass::Authentication => "Authentication",
            ModelErrorClass::ModelNotFound => "ModelNotFound",
            ModelErrorClass::BadRequest => "BadRequest",
            ModelErrorClass::RateLimited => "RateLimited",
            ModelErrorClass::Server => "Server",
            ModelErrorClass::Connection => "Connection",
            ModelErrorClass::Deadline => "Deadline",
            ModelErrorClass::InvalidResponse => "InvalidResponse",
            ModelErrorClass::Exhausted => "Exhausted",
            ModelErrorClass::Budget(_) => "Budget",
        }
    }
}
