//! TRL's conversational shapes: `messages` for supervised training; `prompt`, `chosen` and
//! `rejected` for preferences. `tools` hold JSON schemas.
//!
//! Calls are OpenAI's: `{"type": "function", "function": {"name", "arguments"}}`. Arguments are an
//! object where that spells them again exactly, and text otherwise. Rows are JSON Lines: a columnar
//! file would join the arguments of all calls to one structure and fill in nulls.

use serde_json::{Map, Value, json};
use temper_core::{Message, ToolCall, message::Tool};

use super::{
    Conversation, FormatError, Preference, arguments_text, arguments_value,
    messages::{role_name, role_of},
};

const SHAPE: &str = "TRL";

/// A conversation as a row for supervised training.
pub fn to_json(conversation: &Conversation) -> Value {
    let mut row = Map::new();
    if let Some(id) = &conversation.instance_id {
        row.insert("instance_id".to_owned(), json!(id));
    }
    row.insert("messages".to_owned(), messages(&conversation.messages));
    insert_tools(&mut row, &conversation.tools);
    Value::Object(row)
}

/// A row for supervised training as a conversation.
///
/// # Errors
/// When it has another shape, or keys that are not known.
pub fn from_json(row: &Value) -> Result<Conversation, FormatError> {
    let row = object(row)?;
    only(row, &["instance_id", "messages", "tools"])?;
    Ok(Conversation {
        instance_id: optional_text(row, "instance_id")?,
        messages: read_messages(row, "messages")?,
        tools: read_tools(row)?,
    })
}

/// Two continuations as a row of preferences.
pub fn preference_to_json(preference: &Preference) -> Value {
    let mut row = Map::new();
    row.insert("prompt".to_owned(), messages(&preference.prompt));
    row.insert("chosen".to_owned(), messages(&preference.chosen));
    row.insert("rejected".to_owned(), messages(&preference.rejected));
    insert_tools(&mut row, &preference.tools);
    Value::Object(row)
}

/// A row of preferences as two continuations.
///
/// # Errors
/// As [`from_json`].
pub fn preference_from_json(row: &Value) -> Result<Preference, FormatError> {
    let row = object(row)?;
    only(row, &["prompt", "chosen", "rejected", "tools"])?;
    Ok(Preference {
        prompt: read_messages(row, "prompt")?,
        chosen: read_messages(row, "chosen")?,
        rejected: read_messages(row, "rejected")?,
        tools: read_tools(row)?,
    })
}

fn messages(messages: &[Message]) -> Value {
    messages.iter().map(message).collect()
}

fn message(message: &Message) -> Value {
    let mut value = Map::new();
    value.insert("role".to_owned(), json!(role_name(message.role)));
    value.insert("content".to_owned(), json!(message.content));
    if let Some(reasoning) = &message.reasoning {
        value.insert("reasoning_content".to_owned(), json!(reasoning));
    }
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().map(|call| {
            json!({
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": arguments_value(&call.arguments)},
            })
        });
        value.insert("tool_calls".to_owned(), calls.collect());
    }
    if let Some(id) = &message.tool_call_id {
        value.insert("tool_call_id".to_owned(), json!(id));
    }
    Value::Object(value)
}

fn insert_tools(row: &mut Map<String, Value>, tools: &[Tool]) {
    if tools.is_empty() {
        return;
    }
    let tools = tools.iter().map(|tool| {
        json!({
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
            },
        })
    });
    row.insert("tools".to_owned(), tools.collect());
}

fn wrong(problem: impl Into<String>) -> FormatError {
    FormatError::Shape {
        shape: SHAPE,
        problem: problem.into(),
    }
}

fn object(value: &Value) -> Result<&Map<String, Value>, FormatError> {
    value.as_object().ok_or_else(|| wrong("it is no object"))
}

fn only(row: &Map<String, Value>, known: &[&str]) -> Result<(), FormatError> {
    match row.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(wrong(format!("the key {key:?} is unknown"))),
        None => Ok(()),
    }
}

fn text(row: &Map<String, Value>, key: &str) -> Result<String, FormatError> {
    optional_text(row, key)?.ok_or_else(|| wrong(format!("{key:?} is missing")))
}

fn optional_text(row: &Map<String, Value>, key: &str) -> Result<Option<String>, FormatError> {
    match row.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(wrong(format!("{key:?} is no text"))),
    }
}

fn list<'a>(row: &'a Map<String, Value>, key: &str) -> Result<&'a [Value], FormatError> {
    match row.get(key) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(list)) => Ok(list),
        Some(_) => Err(wrong(format!("{key:?} is no list"))),
    }
}

fn read_messages(row: &Map<String, Value>, key: &str) -> Result<Vec<Message>, FormatError> {
    if !row.contains_key(key) {
        return Err(wrong(format!("{key:?} is missing")));
    }
    list(row, key)?.iter().map(read_message).collect()
}

fn read_message(value: &Value) -> Result<Message, FormatError> {
    let row = object(value)?;
    only(
        row,
        &[
            "role",
            "content",
            "reasoning_content",
            "tool_calls",
            "tool_call_id",
        ],
    )?;
    Ok(Message {
        role: role_of(&text(row, "role")?, SHAPE)?,
        content: optional_text(row, "content")?.unwrap_or_default(),
        reasoning: optional_text(row, "reasoning_content")?,
        tool_calls: list(row, "tool_calls")?
            .iter()
            .map(read_call)
            .collect::<Result<_, _>>()?,
        tool_call_id: optional_text(row, "tool_call_id")?,
    })
}

fn read_call(value: &Value) -> Result<ToolCall, FormatError> {
    let row = object(value)?;
    only(row, &["id", "type", "function"])?;
    let function = object(row.get("function").unwrap_or(&Value::Null))?;
    only(function, &["name", "arguments"])?;
    let arguments = function.get("arguments").unwrap_or(&Value::Null);
    Ok(ToolCall {
        id: optional_text(row, "id")?.unwrap_or_default(),
        name: text(function, "name")?,
        arguments: arguments_text(arguments)
            .ok_or_else(|| wrong("arguments are neither an object nor text"))?,
    })
}

fn read_tools(row: &Map<String, Value>) -> Result<Vec<Tool>, FormatError> {
    let tools = list(row, "tools")?.iter();
    tools
        .map(|value| {
            let row = object(value)?;
            only(row, &["type", "function"])?;
            let function = object(row.get("function").unwrap_or(&Value::Null))?;
            only(function, &["name", "description", "parameters"])?;
            Ok(Tool {
                name: text(function, "name")?,
                description: optional_text(function, "description")?.unwrap_or_default(),
                parameters: function.get("parameters").cloned().unwrap_or(Value::Null),
            })
        })
        .collect()
}
