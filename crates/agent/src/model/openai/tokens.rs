//! Token ids and log-probabilities as the server sends them.
//!
//! They are recorded as sent or not at all: a record whose parts do not agree is refused with a
//! note, nothing is padded, and ids are never derived from text.

use serde_json::Value;
use temper_core::trajectory::TokenRecord;

/// Rounding may lift the probability of a sampled token a little above one.
const MOST_LOGPROB: f64 = 1e-3;

/// Collects the record of one reply.
#[derive(Default)]
pub(super) struct TokenCollector {
    prompt: Option<Vec<u32>>,
    /// Ids from a field made for them.
    ids: Option<Vec<u32>>,
    /// Ids that come with the log-probabilities; an entry without one is `None`.
    ids_of_logprobs: Vec<Option<u32>>,
    logprobs: Vec<f32>,
    saw_logprobs: bool,
    problem: Option<String>,
}

impl TokenCollector {
    pub(super) fn take_prompt(&mut self, value: Option<&Value>) {
        if let Some(ids) = self.read_ids("prompt_token_ids", value)
            && self.prompt.is_none()
        {
            self.prompt = Some(ids);
        }
    }

    /// Takes what a choice, or a chunk of one, says about its tokens.
    pub(super) fn take_choice(&mut self, choice: &Value, whole: bool) {
        // vLLM, then SGLang.
        for name in ["token_ids", "response_token_ids"] {
            if let Some(ids) = self.read_ids(name, choice.get(name)) {
                self.ids.get_or_insert_default().extend(ids);
                break;
            }
        }
        if let Some(entries) = choice
            .pointer("/logprobs/content")
            .and_then(Value::as_array)
        {
            self.saw_logprobs = true;
            for entry in entries {
                // llama.cpp has the id beside the token, older vLLM in place of its text.
                let id = entry.get("id").and_then(read_id).or_else(|| {
                    entry
                        .get("token")?
                        .as_str()?
                        .strip_prefix("token_id:")?
                        .parse()
                        .ok()
                });
                self.take_logprob(entry.get("logprob"), id);
            }
        } else if whole
            && let Some(entries) = choice
                .pointer("/meta_info/output_token_logprobs")
                .and_then(Value::as_array)
        {
            // SGLang: [log-probability, id, text]. In a stream this list is a running total.
            self.saw_logprobs = true;
            for entry in entries {
                let id = entry.get(1).and_then(read_id);
                self.take_logprob(entry.get(0), id);
            }
        }
    }

    /// The record, if the server gave one that can be kept.
    pub(super) fn complete(
        mut self,
        n_reported: Option<u64>,
        streamed: bool,
        notes: &mut Vec<String>,
    ) -> Option<TokenRecord> {
        let from_logprobs = || -> Option<Vec<u32>> {
            let ids: Option<Vec<u32>> = self.ids_of_logprobs.iter().copied().collect();
            ids.filter(|ids| !ids.is_empty())
        };
        let ids = self.ids.take().or_else(from_logprobs);
        let Some(ids) = ids else {
            if let Some(problem) = self.problem {
                notes.push(format!("token record refused: {problem}"));
            } else if self.saw_logprobs {
                notes.push(
                    "token record refused: the server gave log-probabilities without token ids"
                        .into(),
                );
            }
            return None;
        };
        if self.saw_logprobs && self.logprobs.len() != ids.len() && self.problem.is_none() {
            self.problem = Some(format!(
                "{} token ids and {} log-probabilities",
                ids.len(),
                self.logprobs.len()
            ));
        }
        if let Some(n) = n_reported
            && n != ids.len() as u64
            && self.problem.is_none()
        {
            let difference = format!("{} token ids, but {n} tokens in the usage", ids.len());
            // A stream may drop chunks whose text a parser held back, and their ids with them.
            if streamed {
                self.problem = Some(difference);
            } else {
                notes.push(difference);
            }
        }
        if let Some(problem) = self.problem {
            notes.push(format!("token record refused: {problem}"));
            return None;
        }
        Some(TokenRecord {
            prompt_ids: self.prompt,
            logprobs: self.saw_logprobs.then_some(self.logprobs),
            completion_ids: ids,
            loss_mask: None,
        })
    }

    fn take_logprob(&mut self, value: Option<&Value>, id: Option<u32>) {
        self.ids_of_logprobs.push(id);
        match value.and_then(Value::as_f64) {
            Some(logprob) if logprob <= MOST_LOGPROB && (logprob as f32).is_finite() => {
                self.logprobs.push(logprob as f32);
            }
            Some(other) => self.refuse(format!("{other} is not a log-probability")),
            None => self.refuse("a log-probability is missing".into()),
        }
    }

    fn read_ids(&mut self, name: &str, value: Option<&Value>) -> Option<Vec<u32>> {
        let list = match value {
            None | Some(Value::Null) => return None,
            Some(Value::Array(list)) => list,
            Some(_) => {
                self.refuse(format!("{name} is not a list"));
                return None;
            }
        };
        let ids: Option<Vec<u32>> = list.iter().map(read_id).collect();
        if ids.is_none() {
            self.refuse(format!("{name} holds something that is not a token id"));
        }
        ids
    }

    fn refuse(&mut self, why: String) {
        self.problem.get_or_insert(why);
    }
}

fn read_id(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}
