//! Whether the next call can still fit the model's context.
//!
//! The size of the next prompt is what the server counted for the last one, plus its reply, plus
//! an estimate for the messages added since. Where no server has counted yet, all of it is
//! estimated. The estimate is one token per [`BYTES_PER_TOKEN`] bytes of text and
//! [`TOKENS_PER_MESSAGE`] tokens of framing a message: source code has about 3.5 bytes a token in
//! today's vocabularies, so the estimate is rather too high. Text that is dense in tokens (long
//! numbers, scripts a vocabulary knows little of) can exceed it; the reserve is there for that.

use serde::{Deserialize, Serialize};
use temper_core::{Message, usage::Usage};

/// Bytes that are taken for one token.
pub const BYTES_PER_TOKEN: u64 = 3;

/// Tokens that are taken for what a chat template puts around a message.
pub const TOKENS_PER_MESSAGE: u64 = 8;

/// When to stop before a call is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextGuard {
    /// The context that prompt and reply share.
    pub context_tokens: u32,
    /// What a reply may take.
    pub max_output_tokens: u32,
    /// What is kept free beyond both.
    pub reserve_tokens: u32,
}

impl ContextGuard {
    /// Whether a prompt of so many tokens leaves room for a whole reply and the reserve.
    pub fn fits(&self, prompt_tokens: u64) -> bool {
        let free = u64::from(self.context_tokens)
            .saturating_sub(u64::from(self.max_output_tokens))
            .saturating_sub(u64::from(self.reserve_tokens));
        prompt_tokens <= free
    }
}

/// What is known of the size of a growing conversation.
#[derive(Clone, Copy, Debug, Default)]
pub struct PromptSize {
    counted_messages: usize,
    counted_tokens: u64,
}

impl PromptSize {
    /// Takes over the server's count of a call, whose reply is the last of `messages`.
    pub fn counted(&mut self, usage: &Usage, messages: &[Message]) {
        let Some(prompt) = usage.prompt_tokens else {
            return;
        };
        let reply = usage
            .completion_tokens
            .unwrap_or_else(|| messages.last().map_or(0, estimate));
        self.counted_messages = messages.len();
        self.counted_tokens = prompt.saturating_add(reply);
    }

    /// Tokens of the conversation, counted as far as a server has and estimated beyond.
    pub fn tokens(&self, messages: &[Message]) -> u64 {
        let new = messages.get(self.counted_messages..).unwrap_or_default();
        new.iter()
            .map(estimate)
            .fold(self.counted_tokens, u64::saturating_add)
    }
}

fn estimate(message: &Message) -> u64 {
    let calls: usize = message
        .tool_calls
        .iter()
        .map(|call| call.name.len() + call.arguments.len())
        .sum();
    let reasoning = message.reasoning.as_ref().map_or(0, String::len);
    let bytes = (message.content.len() + reasoning + calls) as u64;
    bytes.div_ceil(BYTES_PER_TOKEN) + TOKENS_PER_MESSAGE
}

#[cfg(test)]
mod tests {
    use temper_core::Role;

    use super::*;

    #[test]
    fn room_is_counted_to_the_token() {
        let guard = ContextGuard {
            context_tokens: 32_768,
            max_output_tokens: 896,
            reserve_tokens: 256,
        };
        assert!(guard.fits(31_616));
        assert!(!guard.fits(31_617));
        let tiny = ContextGuard {
            context_tokens: 100,
            ..guard
        };
        assert!(!tiny.fits(1));
    }

    #[test]
    fn a_server_count_replaces_the_estimate() {
        let mut messages = vec![Message::text(Role::User, "x".repeat(301))];
        let mut size = PromptSize::default();
        assert_eq!(size.tokens(&messages), 101 + 8);
        messages.push(Message::text(Role::Assistant, "y".repeat(30)));
        size.counted(&Usage::default(), &messages);
        assert_eq!(size.tokens(&messages), 101 + 8 + 10 + 8);
        let usage = Usage {
            prompt_tokens: Some(50),
            completion_tokens: Some(7),
            cached_tokens: None,
        };
        size.counted(&usage, &messages);
        assert_eq!(size.tokens(&messages), 57);
        messages.push(Message::text(Role::User, "abc"));
        assert_eq!(size.tokens(&messages), 57 + 1 + 8);
    }
}
