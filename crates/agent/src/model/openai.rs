//! The client of OpenAI-compatible servers: OpenAI itself, vLLM, SGLang, llama.cpp, gateways.
//!
//! One call is one chat completion, with retries. Everything a server sends is bounded in size and
//! time and read tolerantly; what is not understood is an error, never a guess. `<think>` sections
//! in the content are left where they are: what the model wrote is the history.

mod classify;
mod config;
pub(super) mod http;
mod request;
mod response;
mod tokens;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::Value;
use temper_core::{PreparedTask, usage::MicroDollars};

use self::{
    http::{Answer, Transport},
    response::{Collected, Collector},
};
use super::{
    Model, ModelError, ModelErrorClass, ModelFactory, ModelReply, ModelRequest,
    retry::{Clock, Failed, Succeeded, with_retries},
    secret::Secret,
    sse::SseParser,
};

pub use config::{ConfigError, OpenAiConfig, OutputLimitField, ReasoningHistory};

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

    /// A client that belongs to no trial.
    pub fn client(&self) -> Box<dyn Model> {
        Box::new(OpenAiModel {
            shared: Arc::clone(&self.shared),
            sampled: Vec::new(),
            n_seen: 0,
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
        Ok(self.client())
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
