//! ShareGPT: `conversations` of `from` and `value`, a `system` text and `tools` as JSON text beside
//! them.
//!
//! Speakers are `human`, `gpt`, `function_call` and `observation`, as LLaMA-Factory has them. A call
//! is a turn of its own with `{"name", "arguments"}` as text. The shape has no ids of calls, no
//! separate reasoning, and one system text at the start.

use serde_json::{Map, Value, json};
use temper_core::{Message, Role, ToolCall, message::Tool};

use super::{Conversation, FormatError, arguments_text, arguments_value};

const SHAPE: &str = "ShareGPT";

/// A conversation as a row.
///
/// # Errors
/// When it holds what the shape has no place for: ids of calls, several calls in a message, text
/// beside a call, a reasoning, a system message that is not the first.
pub fn to_json(conversation: &Conversation) -> Result<Value, FormatError> {
    let mut row = Map::new();
    if let Some(id) = &conversation.instance_id {
        row.insert("id".to_owned(), json!(id));
    }
    let (system, rest) = match conversation.messages.split_first() {
        Some((first, rest)) if first.role == Role::System => (Some(first), rest),
        _ => (None, conversation.messages.as_slice()),
    };
    if let Some(system) = system {
        plain(system)?;
        row.insert("system".to_owned(), json!(system.content));
    }
    let turns: Vec<Value> = rest.iter().map(turn).collect::<Result<_, _>>()?;
    row.insert("conversations".to_owned(), Value::Array(turns));
    if !conversation.tools.is_empty() {
        let tools: Vec<Value> = conversation
            .tools
            .iter()
            .map(|tool| {
                json!({
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                })
            })
            .collect();
        row.insert("tools".to_owned(), json!(Value::Array(tools).to_string()));
    }
    Ok(Value::Object(row))
}

/// A row as a conversation.
///
/// # Errors
/// When it has another shape.
pub fn from_json(row: &Value) -> Result<Conversation, FormatError> {
    let row = row.as_object().ok_or_else(|| wrong("it is no object"))?;
    let known = ["id", "system", "conversations", "tools"];
    if let Some(key) = row.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(wrong(format!("the key {key:?} is unknown")));
    }
    let mut messages = Vec::new();
    if let Some(system) = text(row, "system")? {
        messages.push(Message::text(Role::System, system));
    }
    let turns = match row.get("conversations") {
        Some(Value::Array(turns)) => turns.as_slice(),
        _ => return Err(wrong("\"conversations\" is no list")),
    };
    for turn in turns {
        messages.push(read_turn(turn)?);
    }
    Ok(Conversation {
        instance_id: text(row, "id")?,
        messages,
        tools: read_tools(text(row, "tools")?)?,
    })
}

fn turn(message: &Message) -> Result<Value, FormatError> {
    if message.reasoning.is_some() {
        return Err(no_place("a separate reasoning"));
    }
    if message.tool_call_id.is_some() {
        return Err(no_place("ids of calls"));
    }
    let (from, value) = match (message.role, message.tool_calls.as_slice()) {
        (Role::User, []) => ("human", message.content.clone()),
        (Role::Tool, []) => ("observation", message.content.clone()),
        (Role::Assistant, []) => ("gpt", message.content.clone()),
        (Role::Assistant, [call]) if call.id.is_empty() && message.content.is_empty() => {
            let arguments = arguments_value(&call.arguments);
            let call = json!({"name": call.name, "arguments": arguments});
            ("function_call", call.to_string())
        }
        (Role::System, _) => return Err(no_place("a system message that is not the first")),
        _ => {
            return Err(no_place(
                "calls with ids, several calls, or text beside a call",
            ));
        }
    };
    Ok(json!({"from": from, "value": value}))
}

/// Refuses what is more than text.
fn plain(message: &Message) -> Result<(), FormatError> {
    if message.reasoning.is_some() {
        Err(no_place("a separate reasoning"))
    } else if message.tool_call_id.is_some() {
        Err(no_place("ids of calls"))
    } else if !message.tool_calls.is_empty() {
        Err(no_place("calls in this message"))
    } else {
        Ok(())
    }
}

fn read_turn(turn: &Value) -> Result<Message, FormatError> {
    let turn = turn
        .as_object()
        .ok_or_else(|| wrong("a turn is no object"))?;
    if let Some(key) = turn
        .keys()
        .find(|key| !["from", "value"].contains(&key.as_str()))
    {
        return Err(wrong(format!("the key {key:?} of a turn is unknown")));
    }
    let value = text(turn, "value")?.ok_or_else(|| wrong("a turn has no \"value\""))?;
    let from = text(turn, "from")?.ok_or_else(|| wrong("a turn has no \"from\""))?;
    Ok(match from.as_str() {
        "human" | "user" => Message::text(Role::User, value),
        "gpt" | "assistant" => Message::text(Role::Assistant, value),
        "observation" | "tool" => Message::text(Role::Tool, value),
        "system" => Message::text(Role::System, value),
        "function_call" => Message {
            tool_calls: vec![read_call(&value)?],
            ..Message::text(Role::Assistant, "")
        },
        other => return Err(wrong(format!("the speaker {other:?} is unknown"))),
    })
}

fn read_call(text: &str) -> Result<ToolCall, FormatError> {
    let call: Value =
        serde_json::from_str(text).map_err(|error| wrong(format!("a call is no JSON: {error}")))?;
    let name = call["name"].as_str();
    let arguments = arguments_text(&call["arguments"]);
    match (name, arguments) {
        (Some(name), Some(arguments)) => Ok(ToolCall {
            id: String::new(),
            name: name.to_owned(),
            arguments,
        }),
        _ => Err(wrong("a call has no name or arguments")),
    }
}

fn read_tools(text: Option<String>) -> Result<Vec<Tool>, FormatError> {
    let Some(text) = text else {
        return Ok(Vec::new());
    };
    let tools: Vec<Value> = serde_json::from_str(&text)
        .map_err(|error| wrong(format!("\"tools\" is no JSON list: {error}")))?;
    let tools = tools.iter();
    tools
        .map(|tool| {
            Ok(Tool {
                name: tool["name"]
                    .as_str()
                    .ok_or_else(|| wrong("a tool has no name"))?
                    .to_owned(),
                description: tool["description"].as_str().unwrap_or_default().to_owned(),
                parameters: tool["parameters"].clone(),
            })
        })
        .collect()
}

fn text(row: &Map<String, Value>, key: &str) -> Result<Option<String>, FormatError> {
    match row.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(wrong(format!("{key:?} is no text"))),
    }
}

fn wrong(problem: impl Into<String>) -> FormatError {
    FormatError::Shape {
        shape: SHAPE,
        problem: problem.into(),
    }
}

fn no_place(what: &str) -> FormatError {
    FormatError::NoPlace {
        shape: SHAPE,
        what: what.to_owned(),
    }
}
