//! How a reply becomes commands, and how an output becomes text or the end of the trial.
//!
//! [`bash_block`] is the protocol of mini-swe-agent 1 (one fenced block a reply), [`tool_call`]
//! that of mini-swe-agent 2 (calls of a `bash` tool).

pub mod tool_call;

use serde::{Deserialize, Serialize};
pub use temper_core::protocol::{bash_block, shell_syntax, text};
use temper_core::{protocol::SUBMISSION_MARKERS, trajectory::FinishReason};
use temper_sandbox::Execution;

/// A protocol between the loop and the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// Exactly one fenced `bash` block a reply; observations are user messages.
    BashBlock,
    /// One or more calls of the `bash` tool; observations are tool messages.
    ToolCall,
}

impl Protocol {
    /// The submission in an output, if its first line that is not blank is a marker of this
    /// protocol. It is every later line, not trimmed.
    ///
    /// In the bash-block protocol the exit status plays no part and there are two markers; in the
    /// tool-call protocol there is one, and the command must have succeeded.
    pub fn submission(self, output: &str, exit_code: i32) -> Option<&str> {
        let output = output.trim_start_matches(text::is_space);
        let first = *text::split_lines(output).first()?;
        let marker = text::strip(first);
        let submits = match self {
            Protocol::BashBlock => SUBMISSION_MARKERS.contains(&marker),
            Protocol::ToolCall => marker == SUBMISSION_MARKERS[1] && exit_code == 0,
        };
        submits.then(|| &output[first.len()..])
    }
}

/// Whether a reply ended at the limit on its length: the server says so, or it has as many tokens as
/// were allowed, whatever the server says.
pub fn reached_limit(
    finish: &FinishReason,
    completion_tokens: Option<u64>,
    max_output_tokens: Option<u32>,
) -> bool {
    let used_up = match (completion_tokens, max_output_tokens) {
        (Some(produced), Some(limit)) => produced >= u64::from(limit),
        _ => false,
    };
    *finish == FinishReason::Length || used_up
}

/// An output as the model sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputText {
    /// The text, with a line that says so where bytes are missing.
    pub text: String,
    /// That line, if bytes are missing.
    pub gap: Option<String>,
}

/// Decodes what a command wrote. Line ends become LF for a command that came to its end, and stay
/// as they are in the partial output of one that was stopped, as upstream does it.
pub fn output_text(execution: &Execution, timed_out: bool) -> OutputText {
    let finish = |bytes: &[u8]| {
        let text = text::decode(bytes);
        if timed_out {
            text
        } else {
            text::universal_newlines(&text)
        }
    };
    match execution.omitted.filter(|omitted| omitted.bytes > 0) {
        None => OutputText {
            text: finish(&execution.output),
            gap: None,
        },
        Some(omitted) => {
            let (head, tail, missing) =
                text::split_at_gap(&execution.output, omitted.at, omitted.bytes);
            let gap = format!("[{missing} bytes of output were left out here]");
            OutputText {
                text: format!("{}\n{gap}\n{}", finish(head), finish(tail)),
                gap: Some(gap),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tool_protocol_wants_success_and_knows_one_marker() {
        let complete = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\nP\n";
        let mini = "MINI_SWE_AGENT_FINAL_OUTPUT\nP\n";
        assert_eq!(Protocol::ToolCall.submission(complete, 0), Some("P\n"));
        assert_eq!(Protocol::ToolCall.submission(complete, 1), None);
        assert_eq!(Protocol::ToolCall.submission(mini, 0), None);
        assert_eq!(Protocol::BashBlock.submission(complete, 1), Some("P\n"));
        assert_eq!(Protocol::BashBlock.submission(mini, 1), Some("P\n"));
        assert_eq!(Protocol::BashBlock.submission(" \n\u{1f} \n", 0), None);
    }
}
