//! Tool calls in a model's text, as Qwen and Hermes models write them:
//! `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

use serde_json::Value;
use temper_core::ToolCall;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// A reply split into what was said and what was called.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The text outside the calls; absent where there is only white space beside calls.
    pub content: Option<String>,
    /// The calls, ids made of `prefix` and their number.
    pub calls: Vec<ToolCall>,
}

/// Splits a reply. A block that is not one call in valid JSON stays text: nothing is guessed.
pub fn split(text: &str, prefix: &str) -> Reply {
    let mut content = String::new();
    let mut calls = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(OPEN) {
        let inside = &rest[start + OPEN.len()..];
        // A model may end its turn where the last block ends.
        let (body, after) = match inside.find(CLOSE) {
            Some(end) => (&inside[..end], &inside[end + CLOSE.len()..]),
            None => (inside, ""),
        };
        match call(body, &format!("{prefix}-{}", calls.len())) {
            Some(call) => {
                content.push_str(&rest[..start]);
                calls.push(call);
            }
            None => content.push_str(&rest[..rest.len() - after.len()]),
        }
        rest = after;
    }
    content.push_str(rest);
    let nothing_said = !calls.is_empty() && content.trim().is_empty();
    Reply {
        content: (!nothing_said).then_some(content),
        calls,
    }
}

fn call(body: &str, id: &str) -> Option<ToolCall> {
    let value: Value = serde_json::from_str(body.trim()).ok()?;
    let name = value.get("name")?.as_str()?;
    let arguments = match value.get("arguments").or(value.get("parameters")) {
        Some(Value::Object(object)) => Value::Object(object.clone()).to_string(),
        Some(Value::String(text)) => text.clone(),
        None => "{}".into(),
        Some(_) => return None,
    };
    Some(ToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_taken_out_and_everything_else_stays() {
        let reply = split(
            "I look.\n<tool_call>\n{\"name\": \"bash\", \"arguments\": {\"command\": \"ls </tool\"}}\n</tool_call>",
            "call",
        );
        assert_eq!(reply.content.as_deref(), Some("I look.\n"));
        assert_eq!(reply.calls[0].name, "bash");
        assert_eq!(reply.calls[0].arguments, "{\"command\":\"ls </tool\"}");
        for text in [
            "plain",
            "<tool_call>{not json}</tool_call> after",
            "<tool_call>",
            "<tool_call>{\"name\": 3}</tool_call>",
            "",
        ] {
            let reply = split(text, "call");
            assert_eq!(reply.content.as_deref(), Some(text));
            assert!(reply.calls.is_empty());
        }
        let two = split(
            "<tool_call>{\"name\": \"a\"}</tool_call>\n<tool_call>{\"name\": \"b\", \"arguments\": \"{}\"}",
            "c",
        );
        assert_eq!(two.content, None);
        assert_eq!(two.calls.len(), 2);
        assert_eq!(two.calls[1].id, "c-1");
    }
}
