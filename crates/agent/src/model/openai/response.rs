//! From an answer to a reply. The reader takes a whole completion and the chunks of a stream alike
//! and accepts the variants of vLLM, SGLang, llama.cpp and the common gateways; what it does not
//! know it ignores.

use serde_json::Value;
use temper_core::{
    Message, Role, ToolCall,
    trajectory::FinishReason,
    usage::{MicroDollars, Usage},
};

use super::super::secret::Secret;
use super::{request::sendable_arguments, tokens::TokenCollector};

/// A reply with more calls than this is refused.
const MOST_CALLS: usize = 128;

/// Counts beyond this are not counts of tokens.
const MOST_TOKENS: u64 = 1 << 40;

/// Amounts beyond this, in dollars, are not prices of a call.
const DEAREST_CALL: f64 = 10_000.0;

/// Collects a reply.
#[derive(Default)]
pub(super) struct Collector {
    saw_choice: bool,
    streamed: bool,
    content: String,
    refusal: String,
    reasoning: String,
    calls: Vec<PartialCall>,
    finish: Option<String>,
    usage: Usage,
    cost: Option<MicroDollars>,
    tokens: TokenCollector,
}

#[derive(Default)]
struct PartialCall {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
}

/// A complete reply, before attempts are added.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) message: Message,
    pub(super) finish: FinishReason,
    pub(super) usage: Usage,
    pub(super) cost: Option<MicroDollars>,
    pub(super) tokens: Option<temper_core::trajectory::TokenRecord>,
    pub(super) notes: Vec<String>,
}

impl Collector {
    /// Takes a completion or one chunk of it.
    pub(super) fn take(&mut self, value: &Value) -> Result<(), String> {
        if let Some(usage) = value.get("usage").filter(|usage| usage.is_object()) {
            self.take_usage(usage);
        }
        self.tokens.take_prompt(value.get("prompt_token_ids"));
        let Some(choices) = value.get("choices").and_then(Value::as_array) else {
            return Ok(());
        };
        let first = choices.iter().find(|choice| {
            choice
                .get("index")
                .is_none_or(|index| index.is_null() || index.as_u64() == Some(0))
        });
        match first {
            Some(choice) => self.take_choice(choice),
            None => Ok(()),
        }
    }

    /// Whether the server said that the reply is complete.
    pub(super) fn is_finished(&self) -> bool {
        self.finish.is_some()
    }

    /// The reply. `max_output_tokens` is what the request allowed; `turn` makes ids of calls
    /// unique where the server gives none.
    pub(super) fn complete(
        mut self,
        max_output_tokens: Option<u64>,
        turn: usize,
        key: Option<&Secret>,
    ) -> Result<Collected, String> {
        if !self.saw_choice {
            return Err("the answer holds no reply".into());
        }
        let mut notes = Vec::new();
        let calls: Vec<ToolCall> = self
            .calls
            .into_iter()
            .enumerate()
            .map(|(index, call)| ToolCall {
                id: if call.id.is_empty() {
                    format!("call_{turn}_{index}")
                } else {
                    call.id
                },
                name: call.name,
                arguments: call.arguments,
            })
            .collect();
        let mut finish = match self.finish.as_deref() {
            Some("stop" | "eos" | "eos_token" | "end_turn" | "stop_sequence") => FinishReason::Stop,
            Some("length" | "max_tokens" | "max_output_tokens") => FinishReason::Length,
            Some("tool_calls" | "function_call" | "tool_use") => FinishReason::ToolCalls,
            Some("content_filter") => FinishReason::ContentFilter,
            Some(other) => {
                let other = key.map_or(other.to_owned(), |key| key.redact(other));
                FinishReason::Other(super::classify::clean(&other))
            }
            None => FinishReason::Other(String::new()),
        };
        // Some servers report a call whose arguments were cut off as a complete one.
        let broken = calls
            .iter()
            .find(|call| sendable_arguments(&call.arguments).is_err());
        let at_limit = max_output_tokens
            .zip(self.usage.completion_tokens)
            .is_some_and(|(limit, used)| used >= limit);
        if let (Some(call), true) = (broken, at_limit && finish != FinishReason::Length) {
            notes.push(format!(
                "the server reports {:?}, but the arguments of {:?} end early and the reply has all \
                 {} tokens that were allowed: it was cut off",
                self.finish.as_deref().unwrap_or("nothing"),
                call.name,
                max_output_tokens.unwrap_or_default(),
            ));
            finish = FinishReason::Length;
        }
        let n_reported = self.usage.completion_tokens;
        let tokens = self.tokens.complete(n_reported, self.streamed, &mut notes);
        if self.content.is_empty() {
            self.content = self.refusal;
        }
        let keep = |text: String| match key {
            Some(key) => key.redact_reply(text),
            None => text,
        };
        Ok(Collected {
            message: Message {
                role: Role::Assistant,
                content: keep(self.content),
                reasoning: (!self.reasoning.is_empty()).then(|| keep(self.reasoning)),
                tool_calls: calls
                    .into_iter()
                    .map(|call| ToolCall {
                        id: keep(call.id),
                        name: keep(call.name),
                        arguments: keep(call.arguments),
                    })
                    .collect(),
                tool_call_id: None,
            },
            finish,
            usage: self.usage,
            cost: self.cost,
            tokens,
            notes: notes
                .into_iter()
                .map(|note| key.map_or(note.clone(), |key| key.redact(&note)))
                .collect(),
        })
    }

    fn take_choice(&mut self, choice: &Value) -> Result<(), String> {
        self.saw_choice = true;
        let whole = choice.get("message").filter(|message| message.is_object());
        let delta = choice.get("delta").filter(|delta| delta.is_object());
        self.streamed |= whole.is_none();
        if let Some(message) = whole.or(delta) {
            append_text(message.get("content"), &mut self.content);
            append_text(message.get("refusal"), &mut self.refusal);
            // Two names for one thing; a gateway may send both.
            let reasoning = ["reasoning_content", "reasoning"]
                .into_iter()
                .find_map(|name| message.get(name).filter(|value| value.is_string()));
            append_text(reasoning, &mut self.reasoning);
            if let Some(calls) = message.get("tool_calls").and_then(Value::as_array) {
                for call in calls {
                    self.take_call(call, whole.is_some())?;
                }
            } else if let Some(call) = message.get("function_call").filter(|c| c.is_object()) {
                self.take_call(&serde_json::json!({"index": 0, "function": call}), false)?;
            }
        }
        match choice.get("finish_reason") {
            Some(Value::String(reason)) => self.finish = Some(reason.clone()),
            Some(Value::Object(reason)) => {
                self.finish = reason
                    .get("type")
                    .and_then(Value::as_str)
                    .map(str::to_owned);
            }
            _ => {}
        }
        self.tokens.take_prompt(choice.get("prompt_token_ids"));
        self.tokens.take_choice(choice, whole.is_some());
        Ok(())
    }

    fn take_call(&mut self, call: &Value, whole: bool) -> Result<(), String> {
        let index = call.get("index").and_then(Value::as_u64);
        let id = call.get("id").and_then(Value::as_str).unwrap_or_default();
        let known = if whole {
            None
        } else if index.is_some() {
            self.calls.iter().position(|known| known.index == index)
        } else if id.is_empty() || self.calls.last().is_some_and(|last| last.id == id) {
            self.calls.len().checked_sub(1)
        } else {
            None
        };
        let position = match known {
            Some(position) => position,
            None if self.calls.len() >= MOST_CALLS => {
                return Err(format!("the reply makes more than {MOST_CALLS} tool calls"));
            }
            None => {
                self.calls.push(PartialCall {
                    index,
                    ..PartialCall::default()
                });
                self.calls.len() - 1
            }
        };
        let entry = &mut self.calls[position];
        if entry.id.is_empty() {
            entry.id = id.to_owned();
        }
        let function = call.get("function").unwrap_or(call);
        if let Some(name) = function.get("name").and_then(Value::as_str) {
            // Some servers repeat the whole name in every chunk.
            if entry.name != name {
                entry.name.push_str(name);
            }
        }
        match function.get("arguments") {
            Some(Value::String(text)) => entry.arguments.push_str(text),
            Some(Value::Null) | None => {}
            // Ollama's own form: an object instead of its text.
            Some(other) => entry.arguments.push_str(&other.to_string()),
        }
        Ok(())
    }

    fn take_usage(&mut self, usage: &Value) {
        let count = |pointers: &[&str]| {
            pointers.iter().find_map(|pointer| {
                let number = usage.pointer(pointer)?;
                // A count may arrive as 12.0; a negative or fractional one is no count.
                let count = number.as_u64().or_else(|| {
                    let float = number.as_f64()?;
                    (float >= 0.0 && float.fract() == 0.0 && float <= MOST_TOKENS as f64)
                        .then_some(float as u64)
                })?;
                (count <= MOST_TOKENS).then_some(count)
            })
        };
        let latest = Usage {
            prompt_tokens: count(&["/prompt_tokens", "/input_tokens"]),
            cached_tokens: count(&[
                "/prompt_tokens_details/cached_tokens",
                "/input_tokens_details/cached_tokens",
                "/prompt_cache_hit_tokens",
                "/cached_tokens",
            ]),
            completion_tokens: count(&["/completion_tokens", "/output_tokens"]),
        };
        // Streams may report running totals in every chunk; the last word counts.
        self.usage = Usage {
            prompt_tokens: latest.prompt_tokens.or(self.usage.prompt_tokens),
            cached_tokens: latest.cached_tokens.or(self.usage.cached_tokens),
            completion_tokens: latest.completion_tokens.or(self.usage.completion_tokens),
        };
        self.cost = reported_cost(usage).or(self.cost);
    }
}

/// What the provider says the call cost.
fn reported_cost(usage: &Value) -> Option<MicroDollars> {
    let amount = |pointer: &str| {
        let dollars = usage.pointer(pointer)?.as_f64()?;
        (dollars <= DEAREST_CALL)
            .then(|| MicroDollars::from_dollars(dollars))
            .flatten()
    };
    let cost = ["/cost", "/cost/total_cost", "/estimated_cost"]
        .into_iter()
        .find_map(amount)?;
    // With a key of one's own, OpenRouter's cost is only its fee.
    if usage.get("is_byok").and_then(Value::as_bool) == Some(true) {
        let upstream = amount("/cost_details/upstream_inference_cost")?;
        return Some(MicroDollars(cost.0.saturating_add(upstream.0)));
    }
    Some(cost)
}

/// Text, or a list of parts of which the text ones count.
fn append_text(value: Option<&Value>, out: &mut String) {
    match value {
        Some(Value::String(text)) => out.push_str(text),
        Some(Value::Array(parts)) => {
            for part in parts {
                if let Some(text) = part.get("text").and_then(Value::as_str) {
                    out.push_str(text);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(bytes: &[u8]) -> Option<Collected> {
        let value: Value = serde_json::from_slice(bytes).ok()?;
        let mut collector = Collector::default();
        collector.take(&value).ok()?;
        collector.complete(Some(2), 1, None).ok()
    }

    /// Every prefix of a good answer, and every answer with one byte changed, ends in a reply or
    /// an error, and a token record is whole or absent.
    #[test]
    fn mutated_answers_never_panic_or_give_uneven_records() {
        let whole = json!({
            "choices": [{"index": 0, "finish_reason": "tool_calls", "token_ids": [1, 2],
                "logprobs": {"content": [
                    {"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1}]},
                "message": {"content": "a", "reasoning": "b", "tool_calls": [
                    {"id": "x", "function": {"name": "f", "arguments": "{\"a\": \"b\"}"}}]}}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 2, "cost": 0.1},
            "prompt_token_ids": [1, 2, 3],
        })
        .to_string()
        .into_bytes();
        assert!(read(&whole).unwrap().tokens.is_some());
        let (mut n_good, mut n_refused) = (0, 0);
        for index in 0..whole.len() {
            assert!(read(&whole[..index]).is_none());
            for replacement in [0, b'"', b'0', b'9', b'-', b'{', b'[', b',', b'e', 0xff] {
                let mut changed = whole.clone();
                changed[index] = replacement;
                let Some(collected) = read(&changed) else {
                    continue;
                };
                n_good += 1;
                match collected.tokens {
                    Some(record) => {
                        let n = record.completion_ids.len();
                        assert_eq!(record.logprobs.map_or(n, |l| l.len()), n);
                    }
                    None => n_refused += 1,
                }
            }
        }
        assert!(n_good > 100 && n_refused > 0, "{n_good} {n_refused}");
    }

    #[test]
    fn calls_are_put_together_from_any_kind_of_pieces() {
        let call = |index: Option<u64>, id: &str, name: &str, arguments: &str| {
            let mut call = json!({"function": {"name": name, "arguments": arguments}});
            if let Some(index) = index {
                call["index"] = json!(index);
            }
            if !id.is_empty() {
                call["id"] = json!(id);
            }
            json!({"choices": [{"delta": {"tool_calls": [call]}}]})
        };
        for (name, pieces) in [
            (
                "by index",
                vec![
                    call(Some(0), "x", "f", ""),
                    call(Some(1), "y", "g", ""),
                    call(Some(0), "", "", "{\"a\""),
                    call(Some(1), "", "", "{}"),
                    call(Some(0), "", "", ":1}"),
                ],
            ),
            (
                "with repeated names",
                vec![
                    call(Some(0), "x", "f", "{\"a\""),
                    call(Some(0), "x", "f", ":1}"),
                    call(Some(7), "y", "g", "{}"),
                ],
            ),
            (
                "by id",
                vec![
                    call(None, "x", "f", "{\"a\""),
                    call(None, "", "", ":1"),
                    call(None, "x", "", "}"),
                    call(None, "y", "g", "{}"),
                ],
            ),
        ] {
            let mut collector = Collector::default();
            for piece in pieces {
                collector.take(&piece).unwrap();
            }
            let calls = collector
                .complete(None, 1, None)
                .unwrap()
                .message
                .tool_calls;
            let seen: Vec<_> = calls
                .iter()
                .map(|c| (c.id.as_str(), c.name.as_str(), c.arguments.as_str()))
                .collect();
            assert_eq!(seen, [("x", "f", "{\"a\":1}"), ("y", "g", "{}")], "{name}");
        }
    }
}
