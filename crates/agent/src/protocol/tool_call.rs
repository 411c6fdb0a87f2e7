//! The protocol of mini-swe-agent 2: a reply calls the `bash` tool one or more times.

use serde_json::Value;
use temper_core::{Message, Role, ToolCall, trajectory::FinishReason};

use crate::model::Tool;

/// The tool as it is offered.
pub fn bash_tool() -> Tool {
    Tool {
        name: TOOL.into(),
        description: "Runs a command in a new bash shell and returns its exit code and output."
            .into(),
        parameters: serde_json::json!({
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The command to run."}
            },
            "required": ["command"]
        }),
    }
}

/// A command and the call that asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The command.
    pub command: String,
    /// The call's id.
    pub id: String,
}

/// The commands of a reply in order, or what is wrong with its first bad call, in words.
pub fn parse(reply: &Message) -> Result<Vec<Call>, String> {
    if reply.tool_calls.is_empty() {
        return Err("the reply calls no tool; each reply has to call `bash` at least once".into());
    }
    reply.tool_calls.iter().map(command).collect()
}

/// Whether a reply that did not [reach the limit](super::reached_limit) by its own account was cut
/// off all the same: its arguments end inside their JSON, or it announces calls and has none.
pub fn looks_cut(reply: &Message, finish: &FinishReason) -> bool {
    let announced_only = *finish == FinishReason::ToolCalls && reply.tool_calls.is_empty();
    let incomplete_json = reply.tool_calls.iter().any(|call| {
        serde_json::from_str::<Value>(&call.arguments).is_err_and(|error| error.is_eof())
    });
    announced_only || incomplete_json
}

/// A reply that is not acted on, in a form that can be sent back, and the messages that say why.
///
/// When every call has arguments that are a JSON object and an id of its own, the calls stay and
/// each is answered. Else no server has to accept them, so they are kept as text in the reply and
/// the answer is a user message.
pub fn refuse(mut reply: Message, why: &str) -> (Message, Vec<Message>) {
    let ids: std::collections::BTreeSet<_> = reply.tool_calls.iter().map(|c| &c.id).collect();
    let replayable = ids.len() == reply.tool_calls.len()
        && reply.tool_calls.iter().all(|call| {
            !call.id.is_empty()
                && !call.name.is_empty()
                && serde_json::from_str::<Value>(&call.arguments).is_ok_and(|v| v.is_object())
        });
    if replayable && !reply.tool_calls.is_empty() {
        let answers = reply
            .tool_calls
            .iter()
            .map(|call| observation(&call.id, why))
            .collect();
        return (reply, answers);
    }
    reply = calls_as_text(reply);
    (reply, vec![Message::text(Role::User, why)])
}

/// The message with its tool calls turned into text.
pub fn calls_as_text(mut reply: Message) -> Message {
    for call in std::mem::take(&mut reply.tool_calls) {
        if !reply.content.is_empty() {
            reply.content.push('\n');
        }
        reply.content.push_str(&format!(
            "[call of {} that was not run] {}",
            call.name, call.arguments
        ));
    }
    reply
}

/// The answer to a call.
pub fn observation(id: &str, content: impl Into<String>) -> Message {
    Message {
        tool_call_id: Some(id.to_owned()),
        ..Message::text(Role::Tool, content)
    }
}

const TOOL: &str = "bash";

fn command(call: &ToolCall) -> Result<Call, String> {
    let arguments: Value = serde_json::from_str(&call.arguments)
        .map_err(|error| format!("the arguments of the call are not JSON: {error}"))?;
    if call.name != TOOL {
        return Err(format!(
            "there is no tool {:?}; the only tool is `bash`",
            call.name
        ));
    }
    match arguments.get("command") {
        Some(Value::String(command)) => Ok(Call {
            command: command.clone(),
            id: call.id.clone(),
        }),
        Some(_) => Err("the argument `command` of the call is not a string".into()),
        None => Err("the call lacks the argument `command`".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(calls: &[(&str, &str, &str)]) -> Message {
        Message {
            tool_calls: calls
                .iter()
                .map(|(id, name, arguments)| ToolCall {
                    id: (*id).into(),
                    name: (*name).into(),
                    arguments: (*arguments).into(),
                })
                .collect(),
            ..Message::text(Role::Assistant, "thinking")
        }
    }

    #[test]
    fn calls_are_read_in_order() {
        let calls = parse(&reply(&[
            ("1", "bash", r#"{"command": "ls"}"#),
            ("2", "bash", r#"{"command": "pwd", "note": 1}"#),
        ]))
        .unwrap();
        assert_eq!(
            calls.iter().map(|c| c.command.as_str()).collect::<Vec<_>>(),
            ["ls", "pwd"]
        );
    }

    #[test]
    fn each_fault_is_told_apart() {
        for (message, part) in [
            (reply(&[]), "calls no tool"),
            (reply(&[("1", "bash", "{")]), "not JSON"),
            (reply(&[("1", "python", "{}")]), "no tool \"python\""),
            (reply(&[("1", "bash", "{}")]), "lacks"),
            (reply(&[("1", "bash", "[1]")]), "lacks"),
            (reply(&[("1", "bash", r#"{"command": 1}"#)]), "not a string"),
        ] {
            let error = parse(&message).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_cut_is_seen_however_the_server_puts_it() {
        let whole = reply(&[("1", "bash", r#"{"command": "ls"}"#)]);
        let broken = reply(&[("1", "bash", r#"{"command": "ca"#)]);
        assert!(!looks_cut(&whole, &FinishReason::ToolCalls));
        assert!(looks_cut(&broken, &FinishReason::ToolCalls));
        assert!(looks_cut(&reply(&[]), &FinishReason::ToolCalls));
        assert!(!looks_cut(&reply(&[]), &FinishReason::Stop));
        let limit = |finish, n| super::super::reached_limit(&finish, n, Some(10));
        assert!(!limit(FinishReason::ToolCalls, Some(9)));
        assert!(limit(FinishReason::ToolCalls, Some(10)));
        assert!(limit(FinishReason::Length, None));
        assert!(!limit(FinishReason::Stop, None));
    }

    #[test]
    fn a_refused_reply_can_be_sent_back() {
        let (kept, answers) = refuse(reply(&[("1", "python", "{}"), ("2", "bash", "{}")]), "no");
        assert_eq!(kept.tool_calls.len(), 2);
        assert_eq!(answers.len(), 2);
        assert_eq!(answers[1].tool_call_id.as_deref(), Some("2"));

        let (kept, answers) = refuse(reply(&[("1", "bash", r#"{"command": "ca"#)]), "no");
        assert!(kept.tool_calls.is_empty());
        assert!(kept.content.contains(r#"{"command": "ca"#));
        assert_eq!(answers, [Message::text(Role::User, "no")]);

        // Two calls with one id cannot be answered apart.
        let (kept, _) = refuse(reply(&[("1", "bash", "{}"), ("1", "bash", "{}")]), "no");
        assert!(kept.tool_calls.is_empty());
    }
}
