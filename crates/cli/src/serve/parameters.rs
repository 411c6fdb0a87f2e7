//! What a request may ask for, read and checked.
//!
//! A field that would change the answer and that this server cannot honour is an error unless it
//! has its neutral value: a setting without effect would be a silent lie. Fields that nobody here
//! knows are named in the response's `x-temper-ignored` header.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::error::ApiError;

/// The largest number of choices of one request.
const MOST_CHOICES: u32 = 64;
/// The most stop strings of one request, and the longest, in bytes.
const MOST_STOPS: usize = 16;
const LONGEST_STOP: usize = 1024;
/// The most alternatives per token.
const MOST_ALTERNATIVES: u32 = 20;

/// Fields that chat and plain completions share.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Parameters {
    /// Which model or adapter answers.
    pub model: Option<String>,
    /// Limit on the reply, older name.
    pub max_tokens: Option<u64>,
    /// Limit on the reply.
    pub max_completion_tokens: Option<u64>,
    /// Softmax temperature; 0 is greedy.
    pub temperature: Option<f32>,
    /// Nucleus.
    pub top_p: Option<f32>,
    /// Largest candidates; -1 and 0 keep all.
    pub top_k: Option<i64>,
    /// Share of the largest probability.
    pub min_p: Option<f32>,
    /// Choices.
    pub n: Option<u32>,
    /// Stop strings.
    pub stop: Option<OneOrMany>,
    /// Ids that end the reply beside the model's own.
    pub stop_token_ids: Option<Vec<u32>>,
    /// Do not end at the model's own end of turn.
    pub ignore_eos: Option<bool>,
    /// Tokens before any end counts.
    pub min_tokens: Option<u32>,
    /// All randomness of the reply.
    pub seed: Option<i64>,
    /// Send pieces as they come.
    pub stream: Option<bool>,
    /// How.
    pub stream_options: Option<StreamOptions>,
    /// Give token ids of prompt and reply.
    pub return_token_ids: Option<bool>,
    /// Name tokens `token_id:N` in log-probabilities.
    pub return_tokens_as_token_ids: Option<bool>,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: Option<bool>,

    /// Known and not honoured; see [`Parameters::check`].
    pub include_stop_str_in_output: Option<bool>,
    /// As above.
    pub presence_penalty: Option<f64>,
    /// As above.
    pub frequency_penalty: Option<f64>,
    /// As above.
    pub repetition_penalty: Option<f64>,
    /// As above.
    pub logit_bias: Option<BTreeMap<String, f64>>,
    /// As above.
    pub response_format: Option<Value>,
    /// As above.
    pub prompt_logprobs: Option<i64>,
    /// Who asks; of no effect on the answer.
    pub user: Option<Value>,

    /// Everything else.
    #[serde(flatten)]
    pub others: serde_json::Map<String, Value>,
}

/// One text or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl OneOrMany {
    /// As a list.
    pub fn into_vec(self) -> Vec<String> {
        match self {
            OneOrMany::One(text) => vec![text],
            OneOrMany::Many(texts) => texts,
        }
    }
}

/// How pieces are sent.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StreamOptions {
    /// A last piece with the counts.
    pub include_usage: Option<bool>,
    /// Counts in every piece.
    pub continuous_usage_stats: Option<bool>,
}

/// The parameters of one request with every default applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// Limit on the reply, where the request names one.
    pub max_tokens: Option<usize>,
    /// Softmax temperature; 0 is greedy.
    pub temperature: f32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 0 keeps all.
    pub min_p: f32,
    /// Choices.
    pub n: u32,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Ids that end the reply beside the model's own.
    pub stop_ids: Vec<u32>,
    /// Whether the model's own end of turn counts.
    pub ignore_eos: bool,
    /// Tokens before any end counts.
    pub min_tokens: usize,
    /// All randomness; absent where the request names none.
    pub seed: Option<u64>,
    /// Whether pieces are sent as they come.
    pub stream: bool,
    /// Whether the last piece has the counts.
    pub stream_usage: bool,
    /// Whether every piece has the counts.
    pub stream_usage_always: bool,
    /// Whether token ids are given.
    pub token_ids: bool,
    /// Whether tokens are named by id in log-probabilities.
    pub tokens_as_ids: bool,
    /// Whether special tokens stay out of the text.
    pub skip_special: bool,
}

impl Parameters {
    /// Checks every field and applies the defaults.
    pub fn resolve(&self) -> Result<Resolved, ApiError> {
        self.check()?;
        let temperature = self.temperature.unwrap_or(1.0);
        if !(0.0..=100.0).contains(&temperature) {
            return Err(ApiError::field(
                "temperature",
                format!("temperature must be from 0 to 100, got {temperature}"),
            ));
        }
        let top_p = self.top_p.unwrap_or(1.0);
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(ApiError::field(
                "top_p",
                format!("top_p must be above 0 and at most 1, got {top_p}"),
            ));
        }
        let min_p = self.min_p.unwrap_or(0.0);
        if !(0.0..=1.0).contains(&min_p) {
            return Err(ApiError::field(
                "min_p",
                format!("min_p must be from 0 to 1, got {min_p}"),
            ));
        }
        let top_k = match self.top_k.unwrap_or(0) {
            -1 | 0 => 0,
            k => u32::try_from(k).map_err(|_| {
                ApiError::field("top_k", format!("top_k must be -1, 0 or positive, got {k}"))
            })?,
        };
        let n = self.n.unwrap_or(1);
        if !(1..=MOST_CHOICES).contains(&n) {
            return Err(ApiError::field(
                "n",
                format!("n must be from 1 to {MOST_CHOICES}, got {n}"),
            ));
        }
        let stop = self.stop.clone().map_or(Vec::new(), OneOrMany::into_vec);
        if stop.len() > MOST_STOPS || stop.iter().any(|text| text.len() > LONGEST_STOP) {
            return Err(ApiError::field(
                "stop",
                format!("at most {MOST_STOPS} stop strings of at most {LONGEST_STOP} bytes"),
            ));
        }
        if stop.iter().any(String::is_empty) {
            return Err(ApiError::field("stop", "a stop string must not be empty"));
        }
        let stop_ids = self.stop_token_ids.clone().unwrap_or_default();
        if stop_ids.len() > 256 {
            return Err(ApiError::field("stop_token_ids", "at most 256 ids"));
        }
        let most = match (self.max_completion_tokens, self.max_tokens) {
            (Some(a), Some(b)) if a != b => {
                return Err(ApiError::field(
                    "max_tokens",
                    format!("max_tokens {b} and max_completion_tokens {a} differ: give one"),
                ));
            }
            (a, b) => a.or(b),
        };
        let stream = self.stream.unwrap_or(false);
        let options = self.stream_options.unwrap_or_default();
        if !stream && self.stream_options.is_some() {
            return Err(ApiError::field(
                "stream_options",
                "stream_options has no effect without stream",
            ));
        }
        let min_tokens = self.min_tokens.unwrap_or(0) as usize;
        if most.is_some_and(|most| (min_tokens as u64) > most) {
            return Err(ApiError::field(
                "min_tokens",
                format!("min_tokens {min_tokens} is above the limit on the reply"),
            ));
        }
        Ok(Resolved {
            max_tokens: most.map(|most| usize::try_from(most).unwrap_or(usize::MAX)),
            temperature,
            top_p,
            top_k,
            min_p,
            n,
            stop,
            stop_ids,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            min_tokens,
            seed: self.seed.map(|seed| seed as u64),
            stream,
            stream_usage: options.include_usage.unwrap_or(false),
            stream_usage_always: options.continuous_usage_stats.unwrap_or(false),
            token_ids: self.return_token_ids.unwrap_or(false),
            tokens_as_ids: self.return_tokens_as_token_ids.unwrap_or(false),
            skip_special: self.skip_special_tokens.unwrap_or(true),
        })
    }

    /// Names of fields that nobody here knows.
    pub fn ignored(&self) -> String {
        let known = [
            "best_of",
            "use_beam_search",
            "parallel_tool_calls",
            "metadata",
            "store",
        ];
        let names: Vec<&str> = self
            .others
            .keys()
            .map(String::as_str)
            .filter(|name| !known.contains(name) && !name.starts_with("guided_"))
            .take(32)
            .collect();
        names.join(", ")
    }

    /// Refuses what would change the answer and is not done here.
    fn check(&self) -> Result<(), ApiError> {
        let penalties = [
            ("presence_penalty", self.presence_penalty, 0.0),
            ("frequency_penalty", self.frequency_penalty, 0.0),
            ("repetition_penalty", self.repetition_penalty, 1.0),
        ];
        for (name, value, neutral) in penalties {
            if value.is_some_and(|value| value != neutral) {
                return Err(ApiError::field(
                    name,
                    format!("{name} is not supported; leave it out or give {neutral}"),
                ));
            }
        }
        if self
            .logit_bias
            .as_ref()
            .is_some_and(|bias| !bias.is_empty())
        {
            return Err(ApiError::field("logit_bias", "logit_bias is not supported"));
        }
        if self.include_stop_str_in_output == Some(true) {
            return Err(ApiError::field(
                "include_stop_str_in_output",
                "include_stop_str_in_output is not supported: text ends before the stop string",
            ));
        }
        if let Some(format) = &self.response_format
            && !format.is_null()
            && format["type"] != "text"
        {
            return Err(ApiError::field(
                "response_format",
                "only {\"type\": \"text\"} is supported: output is not constrained here",
            ));
        }
        if self.prompt_logprobs.is_some_and(|n| n != 0) {
            return Err(ApiError::field(
                "prompt_logprobs",
                "prompt_logprobs beyond 0 is not supported; \
                 /v1/completions with echo and logprobs scores a prompt",
            ));
        }
        for name in [
            "guided_json",
            "guided_regex",
            "guided_grammar",
            "guided_choice",
        ] {
            if self.others.get(name).is_some_and(|value| !value.is_null()) {
                return Err(ApiError::field(name, format!("{name} is not supported")));
            }
        }
        if self.others.get("best_of").is_some_and(|value| *value != 1) {
            return Err(ApiError::field("best_of", "best_of is not supported"));
        }
        if self
            .others
            .get("use_beam_search")
            .is_some_and(|value| *value == true)
        {
            return Err(ApiError::field(
                "use_beam_search",
                "use_beam_search is not supported",
            ));
        }
        Ok(())
    }
}

/// Alternatives per token, checked.
pub fn alternatives(name: &str, asked: u32) -> Result<usize, ApiError> {
    if asked > MOST_ALTERNATIVES {
        return Err(ApiError::field(
            name,
            format!("{name} must be at most {MOST_ALTERNATIVES}, got {asked}"),
        ));
    }
    Ok(asked as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Parameters {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn defaults_are_those_of_the_field() {
        let resolved = read("{}").resolve().unwrap();
        assert_eq!(resolved.temperature, 1.0);
        assert_eq!(resolved.top_p, 1.0);
        assert_eq!((resolved.top_k, resolved.n), (0, 1));
        assert_eq!(resolved.max_tokens, None);
        assert!(!resolved.stream && resolved.skip_special);
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_and_neutral_values_pass() {
        let refused = [
            ("temperature", "-0.1"),
            ("temperature", "1e9"),
            ("top_p", "0"),
            ("top_p", "1.01"),
            ("min_p", "-1"),
            ("top_k", "-2"),
            ("n", "0"),
            ("n", "65"),
            ("stop", "\"\""),
            ("presence_penalty", "0.5"),
            ("repetition_penalty", "1.1"),
            ("logit_bias", "{\"1\": 5}"),
            ("response_format", "{\"type\": \"json_object\"}"),
            ("guided_json", "{}"),
            ("best_of", "3"),
            ("stream_options", "{\"include_usage\": true}"),
            ("prompt_logprobs", "3"),
        ];
        for (name, value) in refused {
            let error = read(&format!("{{\"{name}\": {value}}}"))
                .resolve()
                .unwrap_err();
            assert_eq!(error.parameter.as_deref(), Some(name), "{value}");
        }
        let neutral = r#"{"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {},
            "repetition_penalty": 1, "response_format": {"type": "text"}, "best_of": 1,
            "guided_json": null, "top_k": -1, "stop": null, "seed": -5, "user": "x"}"#;
        assert_eq!(read(neutral).resolve().unwrap().seed, Some(-5i64 as u64));
        assert_eq!(read(neutral).ignored(), "");
        assert_eq!(read(r#"{"frobnicate": 1, "n": 1}"#).ignored(), "frobnicate");
    }
}
