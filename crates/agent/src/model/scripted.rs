//! Replies from a list, in place of a model: for tests, demonstrations and rehearsals.
//!
//! A script is YAML or JSON: a list of replies for every task, or a mapping with `replies`,
//! `tasks` (replies by task id, which go before `replies`) and `cost_per_call`. A reply is a text,
//! or a mapping with the fields of [`ScriptedReply`].

use std::{collections::BTreeMap, path::Path, sync::Arc};

use serde::Deserialize;
use temper_core::{
    Digest, Message, PreparedTask, Role, ToolCall,
    trajectory::{Attempt, FinishReason, TokenRecord},
    usage::{MicroDollars, Usage},
};

use super::{Model, ModelError, ModelErrorClass, ModelFactory, ModelReply, ModelRequest};

/// A script longer than this is refused.
const LONGEST_SCRIPT: u64 = 64 * 1024 * 1024;

/// What a scripted model says, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// Replies for every task that has none of its own.
    pub replies: Vec<ScriptedReply>,
    /// Replies by task id.
    pub tasks: BTreeMap<String, Vec<ScriptedReply>>,
    /// Price of every call that does not name its own.
    pub cost_per_call: Option<MicroDollars>,
}

/// One reply, or one error in its place.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScriptedReply {
    /// The text.
    pub content: String,
    /// The text of the reasoning channel.
    pub reasoning: Option<String>,
    /// Calls of tools.
    pub tool_calls: Vec<ScriptedCall>,
    /// Why the reply ended: `stop`, `length`, `tool-calls`, `content-filter`. Without it: tool
    /// calls if there are any, else a natural end.
    pub finish: Option<FinishReason>,
    /// Tokens.
    pub usage: Usage,
    /// Price in dollars.
    pub cost: Option<f64>,
    /// Token ids and log-probabilities.
    pub tokens: Option<TokenRecord>,
    /// An error instead of a reply.
    pub error: Option<ScriptedError>,
}

/// One tool call.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedCall {
    /// Its id; without one it is made from its place.
    #[serde(default)]
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// The arguments: a text is taken as it is, anything else as JSON.
    pub arguments: serde_json::Value,
}

/// Errors a script can raise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScriptedError {
    /// The prompt does not fit.
    ContextExceeded,
    /// The key is refused.
    Authentication,
    /// Too many calls.
    RateLimited,
    /// The server is broken.
    Server,
    /// The connection broke.
    Connection,
}

/// A script cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The file cannot be read.
    #[error("read the script {path}: {cause}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        cause: std::io::Error,
    },
    /// It is too long.
    #[error("read the script {path}: it is longer than {LONGEST_SCRIPT} bytes")]
    TooLong {
        /// The file.
        path: String,
    },
    /// It is not a script.
    #[error("read the script: {0}")]
    Invalid(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptFile {
    #[serde(default)]
    replies: Vec<serde_json::Value>,
    #[serde(default)]
    tasks: BTreeMap<String, Vec<serde_json::Value>>,
    #[serde(default)]
    cost_per_call: Option<f64>,
}

impl Script {
    /// Reads YAML or JSON text.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let invalid = |message: String| ScriptError::Invalid(message);
        let value: serde_json::Value =
            serde_saphyr::from_str(text).map_err(|error| invalid(error.to_string()))?;
        let file = match value {
            serde_json::Value::Array(replies) => ScriptFile {
                replies,
                tasks: BTreeMap::new(),
                cost_per_call: None,
            },
            mapping @ serde_json::Value::Object(_) => {
                serde_json::from_value(mapping).map_err(|error| invalid(error.to_string()))?
            }
            _ => return Err(invalid("expected a list of replies or a mapping".into())),
        };
        let dollars = |amount: f64| {
            MicroDollars::from_dollars(amount)
                .ok_or_else(|| invalid(format!("{amount} is not an amount of dollars")))
        };
        let read = |replies: Vec<serde_json::Value>| -> Result<Vec<_>, ScriptError> {
            let mut out = Vec::new();
            for (index, reply) in replies.into_iter().enumerate() {
                let reply = match reply {
                    serde_json::Value::String(content) => ScriptedReply {
                        content,
                        ..ScriptedReply::default()
                    },
                    other => serde_json::from_value(other)
                        .map_err(|error| invalid(format!("reply {}: {error}", index + 1)))?,
                };
                reply.cost.map(dollars).transpose()?;
                out.push(reply);
            }
            Ok(out)
        };
        let mut tasks = BTreeMap::new();
        for (id, replies) in file.tasks {
            tasks.insert(id, read(replies)?);
        }
        Ok(Script {
            replies: read(file.replies)?,
            tasks,
            cost_per_call: file.cost_per_call.map(dollars).transpose()?,
        })
    }

    /// A script of plain texts.
    pub fn of_texts<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> Self {
        Script {
            replies: texts
                .into_iter()
                .map(|text| ScriptedReply {
                    content: text.into(),
                    ..ScriptedReply::default()
                })
                .collect(),
            ..Script::default()
        }
    }
}

/// Makes scripted models; each trial starts at the first reply.
#[derive(Clone, Debug)]
pub struct ScriptedFactory {
    script: Arc<Script>,
    digest: Digest,
}

impl ScriptedFactory {
    /// A factory for a script in memory.
    pub fn new(script: Script) -> Self {
        // The debug form names every field of every reply; the digest is only compared with
        // digests of the same program version.
        let digest = Digest::of(format!("{script:?}").as_bytes());
        ScriptedFactory {
            script: Arc::new(script),
            digest,
        }
    }

    /// Reads a script file.
    pub fn read(path: &Path) -> Result<Self, ScriptError> {
        let shown = path.display().to_string();
        let failed = |cause| ScriptError::Read {
            path: shown.clone(),
            cause,
        };
        if std::fs::metadata(path).map_err(failed)?.len() > LONGEST_SCRIPT {
            return Err(ScriptError::TooLong { path: shown });
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        Ok(ScriptedFactory {
            script: Arc::new(Script::parse(&text)?),
            digest: Digest::of(text.as_bytes()),
        })
    }

    /// The most that one call can cost, where every call has a price.
    pub fn dearest_call(&self) -> Option<MicroDollars> {
        let all = self
            .script
            .replies
            .iter()
            .chain(self.script.tasks.values().flatten());
        all.filter(|reply| reply.error.is_none())
            .map(|reply| cost_of(reply, &self.script))
            .try_fold(
                self.script.cost_per_call.unwrap_or_default(),
                |most, cost| cost.map(|cost| most.max(cost)),
            )
    }
}

impl ModelFactory for ScriptedFactory {
    fn describe(&self) -> serde_json::Value {
        serde_json::json!({"kind": "scripted", "script": self.digest})
    }

    fn is_language_model(&self) -> bool {
        false
    }

    fn open(&self, task: &PreparedTask, _seed: u64) -> Result<Box<dyn Model>, ModelError> {
        Ok(Box::new(ScriptedModel::new(
            Arc::clone(&self.script),
            task.task.id.as_str(),
        )))
    }
}

/// A model that says what a script says.
#[derive(Debug)]
pub struct ScriptedModel {
    script: Arc<Script>,
    task: String,
    next: usize,
}

impl ScriptedModel {
    /// A model at the beginning of its script for a task.
    pub fn new(script: Arc<Script>, task: &str) -> Self {
        ScriptedModel {
            script,
            task: task.to_owned(),
            next: 0,
        }
    }
}

impl Model for ScriptedModel {
    fn query(&mut self, _request: &ModelRequest<'_>) -> Result<ModelReply, ModelError> {
        let own = self.script.tasks.get(&self.task);
        let replies = own.unwrap_or(&self.script.replies);
        let Some(reply) = replies.get(self.next) else {
            return Err(ModelError {
                class: ModelErrorClass::Exhausted,
                message: format!("the script has no reply after its {}", replies.len()),
                attempts: Vec::new(),
            });
        };
        self.next += 1;
        let attempt = |error: Option<&str>| Attempt {
            status: None,
            error: error.map(str::to_owned),
            message: error.map(|_| "the script says so".to_owned()),
            wall_seconds: 0.0,
            waited_seconds: 0.0,
        };
        if let Some(error) = reply.error {
            let class = match error {
                ScriptedError::ContextExceeded => ModelErrorClass::ContextExceeded,
                ScriptedError::Authentication => ModelErrorClass::Authentication,
                ScriptedError::RateLimited => ModelErrorClass::RateLimited,
                ScriptedError::Server => ModelErrorClass::Server,
                ScriptedError::Connection => ModelErrorClass::Connection,
            };
            return Err(ModelError {
                class,
                message: format!("the script says {}", class.name()),
                attempts: vec![attempt(Some(class.name()))],
            });
        }
        let tool_calls: Vec<ToolCall> = reply
            .tool_calls
            .iter()
            .enumerate()
            .map(|(index, call)| ToolCall {
                id: call
                    .id
                    .clone()
                    .unwrap_or_else(|| format!("call_{}_{index}", self.next)),
                name: call.name.clone(),
                arguments: match &call.arguments {
                    serde_json::Value::String(text) => text.clone(),
                    other => other.to_string(),
                },
            })
            .collect();
        let finish = reply.finish.clone().unwrap_or(if tool_calls.is_empty() {
            FinishReason::Stop
        } else {
            FinishReason::ToolCalls
        });
        Ok(ModelReply {
            message: Message {
                reasoning: reply.reasoning.clone(),
                tool_calls,
                ..Message::text(Role::Assistant, reply.content.clone())
            },
            finish,
            usage: reply.usage,
            cost: cost_of(reply, &self.script),
            tokens: reply.tokens.clone(),
            attempts: vec![attempt(None)],
        })
    }
}

fn cost_of(reply: &ScriptedReply, script: &Script) -> Option<MicroDollars> {
    match reply.cost {
        Some(dollars) => MicroDollars::from_dollars(dollars),
        None => script.cost_per_call,
    }
}
