//! What an answer to a probe means.

use std::sync::LazyLock;

use regex::Regex;

use super::{AnswerRecord, NeedleRecord, Outcome, Prompt};
use crate::model::{ModelError, ModelErrorClass, ModelReply};

/// The longest part of an answer that is kept, in characters.
const LONGEST_EXCERPT: usize = 400;

/// Servers that count a few tokens otherwise (a beginning token, another template) did not cut the
/// prompt; what is missing beyond this share, and beyond [`FEW_TOKENS`], they did.
const SMALL_SHARE: u64 = 100;
const FEW_TOKENS: u64 = 16;

/// Judges a reply: first the server's count, then the sense of the answer.
pub(super) fn reply(reply: &ModelReply, prompt: &Prompt, seconds: f64) -> (AnswerRecord, Outcome) {
    let said = format!(
        "{}\n{}",
        reply.message.reasoning.as_deref().unwrap_or_default(),
        reply.message.content
    );
    let needles: Vec<NeedleRecord> = prompt
        .needles
        .iter()
        .map(|(depth, code)| NeedleRecord {
            depth: *depth,
            is_found: said.contains(code.as_str()),
        })
        .collect();
    let n_found = needles.iter().filter(|needle| needle.is_found).count();
    let n = needles.len();
    let local_tokens = prompt.n_tokens;
    let outcome = match reply.usage.prompt_tokens {
        Some(server_tokens) if server_tokens != local_tokens => {
            let slack = FEW_TOKENS.max(local_tokens / SMALL_SHARE);
            match n_found < n && server_tokens + slack < local_tokens {
                true => Outcome::Truncated {
                    server_tokens,
                    local_tokens,
                },
                false => Outcome::Miscounted {
                    server_tokens,
                    local_tokens,
                },
            }
        }
        _ if n_found == 0 => Outcome::Nonsense,
        _ if n_found < n => Outcome::NeedlesMissed { n_found, n },
        Some(_) => Outcome::Accepted,
        None => Outcome::Uncounted,
    };
    let answer = AnswerRecord {
        server_tokens: reply.usage.prompt_tokens,
        output_tokens: reply.usage.completion_tokens,
        finish: reply.finish.clone(),
        seconds,
        needles,
        excerpt: said.trim().chars().take(LONGEST_EXCERPT).collect(),
    };
    (answer, outcome)
}

/// Judges a refusal or a failure.
pub(super) fn error(error: &ModelError, seconds: f64) -> Outcome {
    let message = error.message.clone();
    match error.class {
        ModelErrorClass::ContextExceeded => Outcome::Rejected {
            stated_limit: stated_limit(&message),
            message,
        },
        ModelErrorClass::Deadline => Outcome::TimedOut { seconds },
        ModelErrorClass::Connection => Outcome::Dropped { message },
        class => Outcome::Failed {
            class: class.name().to_owned(),
            message,
        },
    }
}

/// The window that a refusal names, in the words of vLLM old and new, SGLang, llama.cpp and OpenAI.
fn stated_limit(message: &str) -> Option<u64> {
    static LIMIT: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(
            r"(?i)(?:context length is(?: only)?|context length \(|model length of|context size \(|context window of)\s*(\d+)",
        )
        .expect("the pattern is valid")
    });
    LIMIT.captures(message)?[1].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_from_every_wording() {
        for (message, limit) in [
            (
                "This model's maximum context length is 40960 tokens. However, you requested 41024 tokens (40960 in the messages, 64 in the completion).",
                40_960,
            ),
            (
                "'max_tokens' is too large: 896. This model's maximum context length is 40960 tokens and your request has 40500 input tokens (896 > 40960 - 40500).",
                40_960,
            ),
            (
                "You passed 64500 input tokens and requested 256 output tokens. However, the model's context length is only 40960 tokens, resulting in a maximum input length of 40704 tokens.",
                40_960,
            ),
            (
                "The decoder prompt (length 64500) is longer than the maximum model length of 40960.",
                40_960,
            ),
            (
                "The input (64500 tokens) is longer than the model's context length (40960 tokens).",
                40_960,
            ),
            (
                "request (9412 tokens) exceeds the available context size (8192 tokens), try increasing it",
                8192,
            ),
        ] {
            assert_eq!(stated_limit(message), Some(limit), "{message}");
        }
        assert_eq!(stated_limit("prompt is too long"), None);
    }
}
