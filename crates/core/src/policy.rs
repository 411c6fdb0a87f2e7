//! A policy: a language model in the terms of training, prompt ids in, sampled ids and their
//! log-probabilities out.
//!
//! A conversation is a list of ids that only grows. What a policy sampled stays in it as it was
//! sampled, because text turned into ids again may give others, and a gradient at other ids is a
//! gradient of something that nobody did. [`Conversation`] keeps that list.

use serde::{Deserialize, Serialize};

use crate::{Message, Role, message::Tool, trajectory::FinishReason};

/// Turns conversations into ids, and ids into sampled ids. Calls block; many threads may call at
/// the same time, and a policy that can works for all of them at once.
pub trait Policy: Send + Sync {
    /// Everything that can change what is sampled, without secrets.
    fn describe(&self) -> serde_json::Value;

    /// The longest sequence in tokens, prompt and sampled ids together.
    fn context_tokens(&self) -> usize;

    /// The ids of a conversation, up to where the assistant is to speak. They begin with the
    /// recorded ids where there are some.
    ///
    /// # Errors
    /// When the conversation cannot be rendered, or not in continuation of what is recorded.
    fn tokenize(&self, prompt: &PolicyPrompt<'_>) -> Result<Vec<u32>, PolicyError>;

    /// Samples a continuation.
    ///
    /// # Errors
    /// When the request cannot be done, or the policy fails.
    fn sample(&self, request: &PolicyRequest) -> Result<Sampled, PolicyError>;
}

/// A conversation to be turned into ids.
#[derive(Clone, Copy, Debug)]
pub struct PolicyPrompt<'a> {
    /// The whole history.
    pub messages: &'a [Message],
    /// Tools on offer.
    pub tools: &'a [Tool],
    /// The ids of the first messages, where they were sampled before.
    pub recorded: Option<Recorded<'a>>,
}

/// Ids that stand for the first messages of a conversation.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    /// How many messages; the last of them is an assistant's.
    pub n_messages: usize,
    /// The prompt of that turn and what was sampled.
    pub ids: &'a [u32],
}

/// A continuation to be sampled.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyRequest {
    /// The prompt.
    pub prompt_ids: Vec<u32>,
    /// The most tokens to sample; `None` goes on to the end of the context.
    pub max_tokens: Option<usize>,
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Keeps the most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the fewest tokens whose probability sums to at least this; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this many times as likely as the most likely; 0 keeps all.
    pub min_p: f32,
    /// The same request with the same seed samples the same ids.
    pub seed: u64,
    /// Strings that end the text.
    pub stop: Vec<String>,
    /// An adapter by name.
    pub adapter: Option<String>,
    /// When to end whatever was reached.
    pub deadline: Option<std::time::Instant>,
}

impl PolicyRequest {
    /// A request at temperature 1 without limits.
    pub fn new(prompt_ids: Vec<u32>, seed: u64) -> Self {
        PolicyRequest {
            prompt_ids,
            max_tokens: None,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed,
            stop: Vec::new(),
            adapter: None,
            deadline: None,
        }
    }
}

/// What a policy sampled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampled {
    /// The ids, the one that ended the turn included.
    pub ids: Vec<u32>,
    /// Natural-log probability of each id after the temperature and before any truncation.
    pub logprobs: Vec<f32>,
    /// The text, without control tokens and without a stop string.
    pub text: String,
    /// Why it ended.
    pub finish: FinishReason,
    /// Prompt tokens that were not computed again.
    pub n_cached_tokens: usize,
}

/// Why a policy gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The prompt does not fit.
    #[error("fit a prompt of {n_prompt} tokens into a context of {max_context}")]
    ContextLength {
        /// Tokens of the prompt.
        n_prompt: usize,
        /// Tokens of the context.
        max_context: usize,
    },
    /// The conversation cannot be turned into ids.
    #[error("render the conversation: {0}")]
    Conversation(String),
    /// The request is not one that can be done.
    #[error("sample: {0}")]
    Request(String),
    /// The deadline passed before anything was sampled.
    #[error("sample before the deadline")]
    Deadline,
    /// The policy failed.
    #[error("sample: {0}")]
    Failed(String),
}

/// The ids of one conversation as they grow, turn by turn.
///
/// After [`Conversation::record`], [`Conversation::prompt_ids`] of a history that goes on from
/// there begins with exactly what was recorded. A history that was changed before that point starts
/// anew, and [`Conversation::n_restarts`] counts it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    /// The messages that `ids` stand for.
    messages: Vec<Message>,
    ids: Vec<u32>,
    n_restarts: usize,
}

impl Conversation {
    /// A conversation in which nothing was sampled yet.
    pub fn new() -> Self {
        Conversation::default()
    }

    /// The recorded ids.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// How often a history did not go on from what was recorded.
    pub fn n_restarts(&self) -> usize {
        self.n_restarts
    }

    /// The ids of a history, up to where the assistant is to speak.
    ///
    /// # Errors
    /// As [`Policy::tokenize`].
    pub fn prompt_ids(
        &mut self,
        policy: &dyn Policy,
        messages: &[Message],
        tools: &[Tool],
    ) -> Result<Vec<u32>, PolicyError> {
        let goes_on = messages.starts_with(&self.messages);
        if !goes_on {
            self.n_restarts += 1;
            self.messages.clear();
            self.ids.clear();
        }
        let recorded = (!self.messages.is_empty()).then_some(Recorded {
            n_messages: self.messages.len(),
            ids: &self.ids,
        });
        policy.tokenize(&PolicyPrompt {
            messages,
            tools,
            recorded,
        })
    }

    /// Records a turn: what was sampled after `prompt_ids`, and the history up to and with the
    /// assistant's message that stands for it, however much that message was changed on the way
    /// from the sampled text.
    ///
    /// # Panics
    /// When the history does not end with an assistant's message: a fault of the caller.
    pub fn record(&mut self, messages: Vec<Message>, prompt_ids: &[u32], sampled: &[u32]) {
        assert!(
            messages
                .last()
                .is_some_and(|last| last.role == Role::Assistant),
            "a recorded turn ends with the assistant's message"
        );
        self.messages = messages;
        self.ids.clear();
        self.ids.extend_from_slice(prompt_ids);
        self.ids.extend_from_slice(sampled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Renders every message as its length, and refuses to go on from anything but its own ids.
    struct Lengths;

    impl Policy for Lengths {
        fn describe(&self) -> serde_json::Value {
            serde_json::json!("lengths")
        }

        fn context_tokens(&self) -> usize {
            100
        }

        fn tokenize(&self, prompt: &PolicyPrompt<'_>) -> Result<Vec<u32>, PolicyError> {
            let (n, mut ids) = match prompt.recorded {
                Some(recorded) => (recorded.n_messages, recorded.ids.to_vec()),
                None => (0, Vec::new()),
            };
            let rest = prompt.messages[n..].iter();
            ids.extend(rest.map(|message| message.content.len() as u32));
            Ok(ids)
        }

        fn sample(&self, _: &PolicyRequest) -> Result<Sampled, PolicyError> {
            Err(PolicyError::Deadline)
        }
    }

    #[test]
    fn a_turn_extends_what_was_recorded_and_a_changed_history_starts_anew() {
        let mut conversation = Conversation::new();
        let mut history = vec![Message::text(Role::User, "four")];
        let prompt = conversation.prompt_ids(&Lengths, &history, &[]).unwrap();
        assert_eq!(prompt, [4]);
        history.push(Message::text(Role::Assistant, "trimmed"));
        conversation.record(history.clone(), &prompt, &[900, 901]);
        history.push(Message::text(Role::User, "ab"));
        let prompt = conversation.prompt_ids(&Lengths, &history, &[]).unwrap();
        assert_eq!(prompt, [4, 900, 901, 2]);
        assert_eq!(
            (conversation.ids(), conversation.n_restarts()),
            (&[4, 900, 901][..], 0)
        );

        history[1].content = "changed".into();
        let prompt = conversation.prompt_ids(&Lengths, &history, &[]).unwrap();
        assert_eq!(prompt, [4, 7, 2]);
        assert_eq!(
            (conversation.ids(), conversation.n_restarts()),
            (&[][..], 1)
        );
    }
}
