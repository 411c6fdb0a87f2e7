//! Conversations in the shapes that others read and write.
//!
//! Each shape is a file. What a shape cannot hold is an error that names it, never left out; what
//! is written reads back equal.

pub mod convert;
pub mod messages;
pub mod parquet;
pub mod sharegpt;
pub mod trl;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use temper_core::{Message, message::Tool};

/// A conversation and the tools that were on offer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conversation {
    /// The task it is about.
    pub instance_id: Option<String>,
    /// The messages.
    pub messages: Vec<Message>,
    /// The tools.
    pub tools: Vec<Tool>,
}

/// Two ways to go on from one prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preference {
    /// The messages that both begin with.
    pub prompt: Vec<Message>,
    /// The better continuation.
    pub chosen: Vec<Message>,
    /// The worse one.
    pub rejected: Vec<Message>,
    /// The tools.
    pub tools: Vec<Tool>,
}

/// Why a value is not of a shape, or cannot be put into it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The value is of another shape.
    #[error("read a {shape} row: {problem}")]
    Shape {
        /// The shape.
        shape: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The shape has no place for something.
    #[error("write a {shape} row: it has no place for {what}")]
    NoPlace {
        /// The shape.
        shape: &'static str,
        /// For what.
        what: String,
    },
}

/// Arguments of a call as a JSON object, if that spells them again exactly; else as they are, as
/// text. Keys and types of one call are never joined with those of another.
pub(crate) fn arguments_value(arguments: &str) -> Value {
    if let Ok(value @ Value::Object(_)) = serde_json::from_str(arguments) {
        let spelled = value.to_string();
        if spelled == arguments {
            return value;
        }
    }
    Value::String(arguments.to_owned())
}

/// The arguments' text of such a value.
pub(crate) fn arguments_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(_) => Some(value.to_string()),
        _ => None,
    }
}
