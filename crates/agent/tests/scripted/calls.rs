//! Replies that call tools, and sandboxes with prepared outputs.

use temper_agent::model::ModelReply;
use temper_core::{ToolCall, trajectory::FinishReason};
use temper_sandbox::Execution;

use crate::agent_loop::{Pretend, text_reply};

pub fn call_reply(calls: &[(&str, &str, &str)]) -> ModelReply {
    let mut reply = text_reply("");
    reply.finish = FinishReason::ToolCalls;
    reply.message.tool_calls = calls
        .iter()
        .map(|(id, name, arguments)| ToolCall {
            id: (*id).into(),
            name: (*name).into(),
            arguments: (*arguments).into(),
        })
        .collect();
    reply
}

impl Pretend {
    pub fn answering(outputs: impl IntoIterator<Item = Execution>) -> Self {
        Pretend {
            commands: Vec::new(),
            answers: outputs.into_iter().map(Ok).collect(),
        }
    }
}
