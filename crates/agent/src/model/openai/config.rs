//! The client's settings.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{
    super::{pricing::Price, retry::RetryPolicy, secret::Secret, spec::Endpoint},
    request::{LIMIT_FIELDS, OWN_FIELDS},
};
use crate::budget::{CallPrice, CallSize};

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
    /// The profile and the request fields disagree.
    #[error("set {setting}: it is {profile} in the profile and {kwargs} in model_kwargs")]
    Contradiction {
        /// Which setting.
        setting: &'static str,
        /// By the profile.
        profile: String,
        /// By `model_kwargs`.
        kwargs: String,
    },
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

    /// Whether a profile's own settings agree with `model_kwargs`. Every call checks it; asked
    /// before a job starts it saves the job from failing trial by trial.
    pub fn check_against(
        &self,
        temperature: Option<f64>,
        max_output_tokens: Option<u32>,
    ) -> Result<(), ConfigError> {
        let contradiction = |setting, profile: String, kwargs: String| {
            Err(ConfigError::Contradiction {
                setting,
                profile,
                kwargs,
            })
        };
        if let (Some(own), Some(other)) = (temperature, self.body.get("temperature"))
            && other.as_f64() != Some(own)
        {
            return contradiction("the temperature", own.to_string(), other.to_string());
        }
        if let (Some(own), Some(other)) = (max_output_tokens, self.max_output_tokens())
            && u64::from(own) != other
        {
            return contradiction("the reply's limit", own.to_string(), other.to_string());
        }
        Ok(())
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

    pub(super) fn check(&self) -> Result<(), ConfigError> {
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

    pub(super) fn describe(&self) -> Value {
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
