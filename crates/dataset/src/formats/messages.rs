//! The published shape: `instance_id` and `messages`, each with `role` and `content` alone.

use serde_json::{Value, json};
use temper_core::{Message, Role};

use super::{Conversation, FormatError};
use crate::rows::Row;

const SHAPE: &str = "messages";

/// A conversation as a JSON row.
///
/// # Errors
/// When it holds calls, tools or a separate reasoning: the shape has no place for them.
pub fn to_json(conversation: &Conversation) -> Result<Value, FormatError> {
    let messages: Vec<Value> = pairs(conversation)?
        .into_iter()
        .map(|(role, content)| json!({"role": role, "content": content}))
        .collect();
    Ok(json!({"instance_id": conversation.instance_id, "messages": messages}))
}

/// Role and content of each message, for Parquet.
///
/// # Errors
/// As [`to_json`].
pub fn pairs(conversation: &Conversation) -> Result<Vec<(&'static str, &str)>, FormatError> {
    let no_place = |what: &str| FormatError::NoPlace {
        shape: SHAPE,
        what: what.to_owned(),
    };
    if !conversation.tools.is_empty() {
        return Err(no_place("tools"));
    }
    let messages = conversation.messages.iter();
    messages
        .map(|message| {
            if !message.tool_calls.is_empty() || message.tool_call_id.is_some() {
                return Err(no_place("calls of tools"));
            }
            if message.reasoning.is_some() {
                return Err(no_place("a separate reasoning"));
            }
            Ok((role_name(message.role), message.content.as_str()))
        })
        .collect()
}

/// A row of a published set as a conversation.
///
/// # Errors
/// When a role is unknown.
pub fn from_row(row: &Row<'_>) -> Result<Conversation, FormatError> {
    let messages = row.messages.iter();
    Ok(Conversation {
        instance_id: row.instance_id.as_deref().map(str::to_owned),
        messages: messages
            .map(|message| {
                let role = role_of(&message.role, SHAPE)?;
                Ok(Message::text(role, message.content.as_ref()))
            })
            .collect::<Result<_, FormatError>>()?,
        tools: Vec::new(),
    })
}

pub(super) fn role_name(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    }
}

pub(super) fn role_of(name: &str, shape: &'static str) -> Result<Role, FormatError> {
    match name {
        "system" => Ok(Role::System),
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        "tool" => Ok(Role::Tool),
        other => Err(FormatError::Shape {
            shape,
            problem: format!("the role {other:?} is unknown"),
        }),
    }
}
