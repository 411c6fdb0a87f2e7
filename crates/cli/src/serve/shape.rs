//! The JSON that clients read: counts, log-probabilities, names of tokens.

use serde_json::{Value, json};
use temper_checkpoint::tokenizer::Tokenizer;
use temper_core::ToolCall;
use temper_model::sample::runner::{Alternative, TokenLogprob};

use super::generate::Choice;

/// `usage` of a whole request: the prompt counts once, whatever the number of choices.
pub fn usage(n_prompt: usize, n_cached: usize, n_drawn: usize) -> Value {
    json!({
        "prompt_tokens": n_prompt,
        "completion_tokens": n_drawn,
        "total_tokens": n_prompt + n_drawn,
        "prompt_tokens_details": {"cached_tokens": n_cached},
    })
}

/// `usage` of finished choices by prompt.
pub fn usage_of(groups: &[Vec<Choice>]) -> Value {
    let firsts: Vec<&Choice> = groups.iter().filter_map(|group| group.first()).collect();
    let n_prompt = firsts.iter().map(|choice| choice.finish.n_prompt).sum();
    let n_cached = firsts.iter().map(|choice| choice.finish.n_cached).sum();
    let n_drawn = groups.iter().flatten().map(|c| c.finish.n_drawn).sum();
    usage(n_prompt, n_cached, n_drawn)
}

/// The name of a token: its text, or `token_id:N`.
pub fn token_name(tokenizer: &Tokenizer, id: u32, as_id: bool) -> String {
    if as_id {
        return format!("token_id:{id}");
    }
    match tokenizer.token_bytes(id) {
        Some(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        None => String::new(),
    }
}

/// A call in OpenAI's shape.
pub fn tool_call(call: &ToolCall) -> Value {
    json!({
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    })
}

/// JSON has no infinity: a token of no probability is given the value the field uses for it.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}

/// One entry of a chat's `logprobs.content`.
pub fn chat_logprob(tokenizer: &Tokenizer, token: &TokenLogprob, as_id: bool) -> Value {
    let entry = |id: u32, logprob: f32| {
        json!({
            "token": token_name(tokenizer, id, as_id),
            "logprob": finite(logprob),
            "bytes": tokenizer.token_bytes(id).unwrap_or_default(),
        })
    };
    let mut whole = entry(token.id, token.raw_logprob);
    whole["top_logprobs"] = token
        .top
        .iter()
        .map(|other| entry(other.id, other.raw_logprob))
        .collect();
    whole
}

/// The `logprobs` object of plain completions.
#[derive(Debug, Default)]
pub struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
    offset: usize,
}

impl CompletionLogprobs {
    /// Starts where `offset` characters of text were given already.
    pub fn starting_at(offset: usize) -> Self {
        CompletionLogprobs {
            offset,
            ..CompletionLogprobs::default()
        }
    }

    /// A token that nothing precedes has no probability.
    pub fn push_first(&mut self, tokenizer: &Tokenizer, id: u32, as_id: bool) {
        self.push_name(tokenizer, id, as_id);
        self.token_logprobs.push(None);
        self.top_logprobs.push(Value::Null);
    }

    /// Adds a token.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: &TokenLogprob, as_id: bool) {
        self.push_name(tokenizer, token.id, as_id);
        self.token_logprobs.push(Some(finite(token.raw_logprob)));
        let name = |other: &Alternative| token_name(tokenizer, other.id, as_id);
        let mut top = serde_json::Map::new();
        for other in &token.top {
            top.entry(name(other))
                .or_insert_with(|| finite(other.raw_logprob).into());
        }
        self.top_logprobs.push(Value::Object(top));
    }

    fn push_name(&mut self, tokenizer: &Tokenizer, id: u32, as_id: bool) {
        self.text_offset.push(self.offset);
        self.offset += token_name(tokenizer, id, false).chars().count();
        self.tokens.push(token_name(tokenizer, id, as_id));
    }

    /// The object.
    pub fn into_value(self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }
}
