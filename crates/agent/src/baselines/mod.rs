//! Agents that are honest about not being language models.
//!
//! [`noop`] shows what a suite gives away for nothing, [`oracle`] that known fixes pass through
//! the whole pipeline, [`search`] what a classical search for repairs reaches, [`mend`] what a much
//! shorter one does that a small model can learn, and [`demonstrator`] shows known fixes as
//! trajectories to learn from. Each answers a conversation as a language model would, in whatever
//! protocol the profile speaks, so that the loop, the sandbox and the grading are the same for all
//! arms.

pub mod demonstrator;
pub mod mend;
pub mod noop;
pub mod oracle;
pub mod search;

use temper_core::{Message, Role, ToolCall, trajectory::FinishReason, usage::Usage};

use crate::model::{ModelReply, ModelRequest};

/// A reply of one sentence and one command: a fenced block, or a call of the first tool on offer.
///
/// A program consumes no tokens, and says so, so that a guard against a full context does not
/// mistake its replies for a language model's.
fn reply(request: &ModelRequest<'_>, thought: &str, command: &str) -> ModelReply {
    let (message, finish) = match request.tools.first() {
        Some(tool) => {
            let n_earlier = request.messages.len();
            let mut message = Message::text(Role::Assistant, thought);
            message.tool_calls.push(ToolCall {
                id: format!("call-{n_earlier}"),
                name: tool.name.clone(),
                arguments: serde_json::json!({ "command": command }).to_string(),
            });
            (message, FinishReason::ToolCalls)
        }
        None => {
            let content = format!("THOUGHT: {thought}\n\n```bash\n{command}\n```");
            (Message::text(Role::Assistant, content), FinishReason::Stop)
        }
    };
    ModelReply {
        message,
        finish,
        usage: Usage {
            prompt_tokens: Some(0),
            cached_tokens: None,
            completion_tokens: Some(0),
        },
        cost: None,
        tokens: None,
        attempts: Vec::new(),
    }
}

/// A reply that submits the work tree. Where there is no git the marker alone submits; what git
/// complains about must not become part of the submission.
fn submit(request: &ModelRequest<'_>, thought: &str) -> ModelReply {
    let marker = if request.tools.is_empty() {
        "MINI_SWE_AGENT_FINAL_OUTPUT"
    } else {
        "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    };
    let command = format!("echo {marker} && (git add -A && git diff --cached || true) 2>/dev/null");
    reply(request, thought, &command)
}

/// A word that the shell takes as it is, whatever bytes it holds.
fn quoted(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
        _ => {
            use std::fmt::Write;
            let mut word = String::from("$'");
            for byte in bytes {
                write!(word, "\\x{byte:02x}").expect("writing to a string succeeds");
            }
            word + "'"
        }
    }
}
