//! The client of OpenAI-compatible servers: OpenAI itself, vLLM, SGLang, llama.cpp, gateways.
//!
//! One call is one chat completion, with retries. Everything a server sends is bounded in size and
//! time and read tolerantly; what is not understood is an error, never a guess. `<think>` sections
//! in the content are left where they are: what the model wrote is the history.

mod classify;
pub(super) mod http;
mod request;
mod response;
mod tokens;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use temper_core::{PreparedTask, usage::MicroDollars};

use self::{
    http::{Answer, Transport},
    request::{LIMIT_FIELDS, OWN_FIELDS},
    response::{Collected, Collector},
};
use crate::budget::{CallPrice, CallSize};

use super::{
    Model, ModelError, ModelErrorClass, ModelFactory, ModelReply, ModelRequest,
    pricing::Price,
    retry::{Clock, Failed, RetryPolicy, Succeeded, with_retries},
    secret::Secret,
    spec::Endpoint,
    sse::SseParser,
};

/// Tokens that a budget reserves for a reply that nothing limits.
const UNLIMITED_REPLY_TOKENS: u64 = 32_768;

/// How to talk to a server.
#[derive(Clone, Debug)]
pub struct OpenAiConfig {
    /// The server.
    pub endpoint: Endpoint,
    /// The model's name there.
    pub model: String,
    /// Further request fields (`temperature`, `top_p`, …), sent as they are. Fields that Temper
    /// sets itself are refused.
    pub body: Map<String, Value>,
    /// Ask for a stream (default no). It changes nothing in the reply, but keeps gateways from
    /// closing a silent connection.
    pub stream: bool,
    /// The name of the field that limits the reply (default by server).
    pub output_limit_field: OutputLimitField,
    /// Send a seed (default yes).
    pub send_seed: bool,
    /// Ask for the log-probability of each sampled token (default no).
    pub logprobs: bool,
    /// Ask for token ids, which OpenAI itself refuses (default no).
    pub token_ids: bool,
    /// Whether reasoning of earlier turns is sent back (default no).
    pub reasoning_history: ReasoningHistory,
    /// The longest one attempt may take (default 900 s).
    pub attempt_timeout: Duration,
    /// The longest a connection may take (default 20 s).
    pub connect_timeout: Duration,
    /// The longest answer in bytes (default 16 MiB).
    pub max_response_bytes: u64,
    /// When to ask again.
    pub retry: RetryPolicy,
    /// The user's price for the model, where the provider reports none.
    pub price: Option<Price>,
    /// A proxy's address, which may hold a password; the environment is not consulted.
    pub proxy: Option<Secret>,
}

/// Which field limits the reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputLimitField {
    /// `max_completion_tokens` for OpenAI and Azure, `max_tokens` for everybody else.
    #[default]
    ByServer,
    /// `max_tokens`.
    MaxTokens,
    /// `max_completion_tokens`.
    MaxCompletionTokens,
}

/// Under which name earlier reasoning is sent back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReasoningHistory {
    /// It is not sent; some servers refuse it.
    #[default]
    Omit,
    /// `reasoning_content`.
    ReasoningContent,
    /// `reasoning`.
    Reasoning,
}

/// A setting cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A request field that Temper sets itself.
    #[error("set {name:?} in model_kwargs: {why}")]
    OwnField {
        /// The field.
        name: String,
        /// What to do instead.
        why: &'static str,
    },
    /// A limit that is not one.
    #[error("set {name:?} in model_kwargs: expected a whole number above 0, got {value}")]
    OutputLimit {
        /// The field.
        name: &'static str,
        /// What was given.
        value: String,
    },
    /// Both names of the limit.
    #[error("set the reply's limit: model_kwargs has both max_tokens and max_completion_tokens")]
    TwoLimits,
    /// The key stands where it would be recorded.
    #[error("set up the model: the API key also occurs in {0}, which is written into reports")]
    KeyInConfig(&'static str),
    /// A proxy address that cannot be read; it may hold a password and is not shown.
    #[error("set up the model: the proxy's address cannot be read")]
    Proxy,
    /// A limit of zero.
    #[error("set up the model: {0} must be above zero")]
    Zero(&'static str),
}

impl OpenAiConfig {
    /// The defaults for a model on a server.
    pub fn new(endpoint: Endpoint, model: impl Into<String>) -> Self {
        OpenAiConfig {
            endpoint,
            model: model.into(),
            body: Map::new(),
            stream: false,
            output_limit_field: OutputLimitField::default(),
            send_seed: true,
            logprobs: false,
            token_ids: false,
            reasoning_history: ReasoningHistory::default(),
            attempt_timeout: Duration::from_secs(900),
            connect_timeout: Duration::from_secs(20),
            max_response_bytes: 16 * 1024 * 1024,
            retry: RetryPolicy::default(),
            price: None,
            proxy: None,
        }
    }

    /// Takes a profile's `model_kwargs`.
    ///
    /// `drop_params`, which tells LiteLLM to leave out fields that it believes the provider does
    /// not know, is accepted when true and not sent: Temper sends the fields that are set, and a
    /// server that refuses one says so.
    pub fn set_model_kwargs(&mut self, kwargs: &Map<String, Value>) -> Result<(), ConfigError> {
        let mut body = Map::new();
        for (name, value) in kwargs {
            if name == "drop_params" && value.as_bool().is_some() {
                continue;
            }
            body.insert(name.clone(), value.clone());
        }
        self.body = body;
        self.check()
    }

    /// The most tokens a reply may have by `model_kwargs`.
    pub fn max_output_tokens(&self) -> Option<u64> {
        LIMIT_FIELDS
            .iter()
            .find_map(|name| self.body.get(*name)?.as_u64())
    }

    /// What is known of a call before it is made, for a budget: the table's price, and the reply's
    /// limit or else the whole context.
    pub fn call_size(&self, context_tokens: Option<u64>) -> CallSize {
        CallSize {
            price: self.price.map_or(CallPrice::Unknown, CallPrice::Tokens),
            reply_tokens: self
                .max_output_tokens()
                .or(context_tokens)
                .unwrap_or(UNLIMITED_REPLY_TOKENS),
            context_tokens,
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        for (name, why) in OWN_FIELDS {
            if self.body.contains_key(*name) {
                return Err(ConfigError::OwnField {
                    name: (*name).into(),
                    why,
                });
            }
        }
        let mut n_limits = 0;
        for name in LIMIT_FIELDS {
            if let Some(value) = self.body.get(name) {
                n_limits += 1;
                if value.as_u64().is_none_or(|limit| limit == 0) {
                    return Err(ConfigError::OutputLimit {
                        name,
                        value: value.to_string(),
                    });
                }
            }
        }
        match n_limits {
            2 => Err(ConfigError::TwoLimits),
            _ if self.attempt_timeout.is_zero() => Err(ConfigError::Zero("the attempt's time")),
            _ if self.retry.max_attempts == 0 => Err(ConfigError::Zero("the number of attempts")),
            _ => Ok(()),
        }
    }

    fn describe(&self) -> Value {
        json!({
            "kind": "openai",
            "endpoint": self.endpoint.as_str(),
            "model": self.model,
            "body": self.body,
            "output_limit_field": match self.output_limit_field {
                OutputLimitField::ByServer => "by-server",
                OutputLimitField::MaxTokens => "max_tokens",
                OutputLimitField::MaxCompletionTokens => "max_completion_tokens",
            },
            "send_seed": self.send_seed,
            "logprobs": self.logprobs,
            "token_ids": self.token_ids,
            "reasoning_history": match self.reasoning_history {
                ReasoningHistory::Omit => "omit",
                ReasoningHistory::ReasoningContent => "reasoning_content",
                ReasoningHistory::Reasoning => "reasoning",
            },
        })
    }
}

/// Makes clients of one server and model.
#[derive(Clone)]
pub struct OpenAiFactory {
    shared: Arc<Shared>,
}

struct Shared {
    config: OpenAiConfig,
    transport: Transport,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for OpenAiFactory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenAiFactory")
            .field("config", &self.shared.config)
            .finish_non_exhaustive()
    }
}

impl OpenAiFactory {
    /// Checks the settings. No connection is made.
    pub fn new(
        config: OpenAiConfig,
        key: Option<Secret>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        if let Some(key) = &key {
            let body = Value::Object(config.body.clone()).to_string();
            for (place, text) in [
                ("the server's address", config.endpoint.as_str()),
                ("the model's name", &config.model),
                ("model_kwargs", &body),
            ] {
                if key.occurs_in(text) {
                    return Err(ConfigError::KeyInConfig(place));
                }
            }
        }
        let proxy = match &config.proxy {
            Some(address) => {
                Some(ureq::Proxy::new(address.expose()).map_err(|_| ConfigError::Proxy)?)
            }
            None => None,
        };
        let transport = Transport::new(
            config.endpoint.clone(),
            key,
            config.connect_timeout,
            config.max_response_bytes,
            proxy,
        );
        Ok(OpenAiFactory {
            shared: Arc::new(Shared {
                config,
                transport,
                clock,
            }),
        })
    }

    /// The settings in force.
    pub fn config(&self) -> &OpenAiConfig {
        &self.shared.config
    }
}

impl ModelFactory for OpenAiFactory {
    fn describe(&self) -> Value {
        self.shared.config.describe()
    }

    fn is_language_model(&self) -> bool {
        true
    }

    fn open(&self, _task: &PreparedTask, _seed: u64) -> Result<Box<dyn Model>, ModelError> {
        Ok(Box::new(OpenAiModel {
            shared: Arc::clone(&self.shared),
            sampled: Vec::new(),
            n_seen: 0,
        }))
    }
}

/// A client for one trial.
struct OpenAiModel {
    shared: Arc<Shared>,
    /// The ids of the last prompt and reply: the next prompt should begin with them.
    sampled: Vec<u32>,
    /// Messages of the last request: what was noted about them is not said again.
    n_seen: usize,
}

impl Model for OpenAiModel {
    fn query(&mut self, request: &ModelRequest<'_>) -> Result<ModelReply, ModelError> {
        let shared = Arc::clone(&self.shared);
        let body = request::build(&shared.config, request).map_err(|message| ModelError {
            class: ModelErrorClass::BadRequest,
            message,
            attempts: Vec::new(),
        })?;
        let turn = request.messages.len();
        let (mut collected, mut attempts) = with_retries(
            &shared.config.retry,
            &*shared.clock,
            mix_seed(request),
            request.deadline,
            |_| shared.attempt(&body, turn, request.deadline),
        )?;
        self.compare_with_earlier_tokens(&mut collected);
        let new = body.notes.into_iter().filter(|(n, _)| *n >= self.n_seen);
        let notes: Vec<String> = new.map(|(_, note)| note).chain(collected.notes).collect();
        self.n_seen = turn;
        if let (Some(last), false) = (attempts.last_mut(), notes.is_empty()) {
            last.message = Some(notes.join("; "));
        }
        Ok(ModelReply {
            message: collected.message,
            finish: collected.finish,
            usage: collected.usage,
            cost: collected.cost,
            tokens: collected.tokens,
            attempts,
        })
    }
}

impl OpenAiModel {
    /// Chat servers tokenize the whole history anew. Where that gives other tokens than were
    /// sampled, training on the record would train on something the model never produced, so it
    /// is said.
    fn compare_with_earlier_tokens(&mut self, collected: &mut Collected) {
        let Some(record) = &collected.tokens else {
            self.sampled.clear();
            return;
        };
        let Some(prompt) = &record.prompt_ids else {
            self.sampled.clear();
            return;
        };
        if !prompt.starts_with(&self.sampled) {
            let same = prompt
                .iter()
                .zip(&self.sampled)
                .take_while(|(a, b)| a == b)
                .count();
            collected.notes.push(format!(
                "the prompt's tokens differ from the {} tokens of the turn before at position \
                 {same}: the server tokenized the history anew",
                self.sampled.len()
            ));
        }
        self.sampled.clone_from(prompt);
        self.sampled.extend(&record.completion_ids);
    }
}

fn mix_seed(request: &ModelRequest<'_>) -> u64 {
    super::retry::mix(request.seed) ^ request.messages.len() as u64
}

impl Shared {
    fn attempt(
        &self,
        body: &request::Body,
        turn: usize,
        deadline: Option<Instant>,
    ) -> Result<Succeeded<Collected>, Failed> {
        let now = Instant::now();
        let timeout = match deadline {
            Some(deadline) => deadline
                .saturating_duration_since(now)
                .min(self.config.attempt_timeout)
                // A timer of zero would be no timer.
                .max(Duration::from_millis(1)),
            None => self.config.attempt_timeout,
        };
        let until = now + timeout;
        let answer = self
            .transport
            .post("chat/completions", &body.bytes, timeout, &*self.clock)?;
        let status = answer.status;
        let header_cost = cost_header(&answer);
        let collector = if answer.is_event_stream() {
            self.read_stream(answer, until)?
        } else {
            self.read_whole(answer, until)?
        };
        let mut collected = collector
            .complete(body.max_output_tokens, turn, self.transport.key())
            .map_err(|why| invalid(status, why))?;
        collected.cost = collected
            .cost
            .or(header_cost)
            .or_else(|| self.config.price?.cost(collected.usage));
        Ok(Succeeded {
            value: collected,
            status: Some(status),
            note: None,
        })
    }

    fn read_whole(&self, answer: Answer, until: Instant) -> Result<Collector, Failed> {
        let status = answer.status;
        let bytes = answer.read_all(&self.transport, until)?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| {
            if error.is_eof() {
                cut_off(status)
            } else {
                let start = String::from_utf8_lossy(&bytes[..bytes.len().min(4096)]);
                let start = match self.transport.key() {
                    Some(key) => key.redact(&start),
                    None => start.into_owned(),
                };
                let start: String = classify::clean(&start).chars().take(200).collect();
                invalid(status, format!("the answer is not JSON ({error}): {start}"))
            }
        })?;
        let mut collector = Collector::default();
        self.take(&mut collector, status, &value)?;
        Ok(collector)
    }

    fn read_stream(&self, answer: Answer, until: Instant) -> Result<Collector, Failed> {
        let status = answer.status;
        let limit = usize::try_from(self.config.max_response_bytes).unwrap_or(usize::MAX);
        let mut parser = SseParser::new(limit);
        let mut collector = Collector::default();
        let mut done = false;
        answer.read(&self.transport, until, |bytes| {
            let mut outcome = Ok(());
            parser
                .push(bytes, |event| {
                    if outcome.is_ok() && !done {
                        outcome = self.take_event(&mut collector, status, &event, &mut done);
                    }
                })
                .map_err(|error| invalid(status, error.to_string()))?;
            outcome?;
            Ok(!done)
        })?;
        if !done
            && let Some(event) = parser
                .finish()
                .map_err(|error| invalid(status, error.to_string()))?
        {
            // What follows the last blank line may be half an event: then the stream was cut.
            self.take_event(&mut collector, status, &event, &mut done)
                .map_err(|failed| match failed.class {
                    ModelErrorClass::InvalidResponse => cut_off(status),
                    _ => failed,
                })?;
        }
        if !done && !collector.is_finished() {
            return Err(cut_off(status));
        }
        Ok(collector)
    }

    fn take_event(
        &self,
        collector: &mut Collector,
        status: u16,
        event: &str,
        done: &mut bool,
    ) -> Result<(), Failed> {
        let event = event.trim();
        if event == "[DONE]" {
            *done = true;
            return Ok(());
        }
        if event.is_empty() {
            return Ok(());
        }
        let value: Value = serde_json::from_str(event)
            .map_err(|error| invalid(status, format!("an event is not JSON ({error})")))?;
        self.take(collector, status, &value)
    }

    fn take(&self, collector: &mut Collector, status: u16, value: &Value) -> Result<(), Failed> {
        let is_error = value.get("error").is_some_and(|error| !error.is_null())
            || value.get("object").and_then(Value::as_str) == Some("error");
        if is_error {
            let body = value.to_string();
            return Err(classify::classify(
                status,
                body.as_bytes(),
                None,
                self.transport.key(),
            ));
        }
        collector.take(value).map_err(|why| invalid(status, why))
    }
}

fn invalid(status: u16, message: String) -> Failed {
    Failed {
        class: ModelErrorClass::InvalidResponse,
        retry: false,
        status: Some(status),
        message,
        retry_after: None,
    }
}

fn cut_off(status: u16) -> Failed {
    Failed {
        class: ModelErrorClass::Connection,
        retry: true,
        status: Some(status),
        message: "the answer ended before the reply did".into(),
        retry_after: None,
    }
}

/// LiteLLM's proxy reports the price of a call in a header.
fn cost_header(answer: &Answer) -> Option<MicroDollars> {
    let text = answer
        .headers
        .get("x-litellm-response-cost")?
        .to_str()
        .ok()?;
    MicroDollars::from_dollars(text.trim().parse().ok()?)
}
