//! Messages and tools of a conversation as the values that templates know.

use serde_json::{Map, Value, json};
use temper_core::{Message, Role, message::Tool};

/// A message as templates know it.
pub fn message_value(message: &Message) -> Value {
    let role = match message.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let mut value = json!({"role": role, "content": message.content});
    if let Some(reasoning) = &message.reasoning {
        value["reasoning_content"] = json!(reasoning);
    }
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter();
        value["tool_calls"] = calls
            .map(|call| {
                // Templates write arguments as JSON, which would quote a string once more.
                let arguments = serde_json::from_str::<Map<String, Value>>(&call.arguments)
                    .map_or_else(|_| json!(call.arguments), Value::Object);
                json!({
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": arguments},
                })
            })
            .collect();
    }
    if let Some(id) = &message.tool_call_id {
        value["tool_call_id"] = json!(id);
    }
    value
}

/// A tool as templates know it.
pub fn tool_value(tool: &Tool) -> Value {
    json!({
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
        },
    })
}
