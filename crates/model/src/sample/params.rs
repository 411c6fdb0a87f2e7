//! How a request wants its tokens drawn, and the limits of what can be asked for.

/// The most alternatives that are given for one position.
pub const MAX_TOP_LOGPROBS: usize = 20;
/// The most stop strings of one request.
pub const MAX_STOP_STRINGS: usize = 64;
/// The longest stop string, in bytes.
pub const MAX_STOP_BYTES: usize = 1024;

/// Sampling parameters of one request. `docs/sampling.md` defines each.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 takes the most likely token. Default 1.
    pub temperature: f32,
    /// Keeps the `top_k` most likely tokens; 0 keeps all. Default 0.
    pub top_k: u32,
    /// Of these, keeps the fewest whose probability sums to at least `top_p`. Default 1: all.
    pub top_p: f32,
    /// Of these, keeps those at least `min_p` times as likely as the most likely. Default 0: all.
    pub min_p: f32,
    /// Makes the draws repeatable. Default 0.
    pub seed: u64,
    /// The most tokens to draw; `None` goes on to the end of the context. 0 only scores.
    pub max_tokens: Option<usize>,
    /// While fewer tokens were drawn, nothing but the limit on tokens ends the request; the
    /// distribution is not altered. Default 0.
    pub min_tokens: usize,
    /// Strings that end the text.
    pub stop: Vec<String>,
    /// Ids that end the text besides the model's own.
    pub stop_ids: Vec<u32>,
    /// Whether the model's own end-of-text ids are passed over. Default false.
    pub ignore_eos: bool,
    /// Whether control tokens are left out of the text. Default true.
    pub skip_special: bool,
    /// How many of the most likely tokens are reported at each drawn position. Default 0.
    pub top_logprobs: usize,
    /// Log-probabilities of the prompt. Default none.
    pub prompt_logprobs: Option<PromptLogprobs>,
}

/// Which log-probabilities of the prompt are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptLogprobs {
    /// The first position that is scored; position 0 has none and is passed over. Tokens before
    /// `from - 1` may come from the cache.
    pub from: usize,
    /// How many of the most likely tokens are reported at each position.
    pub top: usize,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
            max_tokens: None,
            min_tokens: 0,
            stop: Vec::new(),
            stop_ids: Vec::new(),
            ignore_eos: false,
            skip_special: true,
            top_logprobs: 0,
            prompt_logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Takes the most likely token at each position.
    pub fn greedy() -> Self {
        SamplingParams {
            temperature: 0.0,
            ..SamplingParams::default()
        }
    }

    /// Checks every value.
    ///
    /// Errors: the name, the value and the permitted range of the first that is out of it.
    pub fn validate(&self) -> Result<(), ParamError> {
        let number = |name, value: f32, range: (f32, f32), open_below: bool| {
            let fits = value >= range.0 && value <= range.1 && !(open_below && value == range.0);
            if fits {
                return Ok(());
            }
            Err(ParamError {
                name,
                value: value.to_string(),
                expected: match (open_below, range.1 == f32::MAX) {
                    (true, _) => format!("more than {} and at most {}", range.0, range.1),
                    (false, true) => format!("a finite number from {} on", range.0),
                    (false, false) => format!("from {} to {}", range.0, range.1),
                },
            })
        };
        let count = |name, value: usize, most: usize| {
            if value <= most {
                return Ok(());
            }
            Err(ParamError {
                name,
                value: value.to_string(),
                expected: format!("at most {most}"),
            })
        };
        number("temperature", self.temperature, (0.0, f32::MAX), false)?;
        number("top_p", self.top_p, (0.0, 1.0), true)?;
        number("min_p", self.min_p, (0.0, 1.0), false)?;
        count("top_logprobs", self.top_logprobs, MAX_TOP_LOGPROBS)?;
        if let Some(prompt) = self.prompt_logprobs {
            count("prompt_logprobs", prompt.top, MAX_TOP_LOGPROBS)?;
        }
        count("stop strings", self.stop.len(), MAX_STOP_STRINGS)?;
        for stop in &self.stop {
            count("bytes of a stop string", stop.len(), MAX_STOP_BYTES)?;
            if stop.is_empty() {
                return Err(ParamError {
                    name: "stop",
                    value: "\"\"".into(),
                    expected: "strings that are not empty".into(),
                });
            }
        }
        if let Some(most) = self.max_tokens
            && self.min_tokens > most
        {
            return Err(ParamError {
                name: "min_tokens",
                value: self.min_tokens.to_string(),
                expected: format!("at most max_tokens, which is {most}"),
            });
        }
        Ok(())
    }
}

/// A parameter is outside its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use {name} = {value}: expected {expected}")]
pub struct ParamError {
    /// The parameter.
    pub name: &'static str,
    /// What was given.
    pub value: String,
    /// What is permitted.
    pub expected: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_their_range_are_refused_by_name() {
        let refused = |change: &dyn Fn(&mut SamplingParams)| {
            let mut params = SamplingParams::default();
            change(&mut params);
            params.validate().unwrap_err().to_string()
        };
        assert_eq!(SamplingParams::default().validate(), Ok(()));
        assert_eq!(SamplingParams::greedy().validate(), Ok(()));
        assert_eq!(
            refused(&|p| p.temperature = -0.5),
            "use temperature = -0.5: expected a finite number from 0 on"
        );
        assert!(refused(&|p| p.temperature = f32::NAN).starts_with("use temperature = NaN"));
        assert!(refused(&|p| p.temperature = f32::INFINITY).contains("inf"));
        assert_eq!(
            refused(&|p| p.top_p = 0.0),
            "use top_p = 0: expected more than 0 and at most 1"
        );
        assert!(refused(&|p| p.top_p = f32::NAN).contains("top_p"));
        assert_eq!(
            refused(&|p| p.min_p = 1.5),
            "use min_p = 1.5: expected from 0 to 1"
        );
        assert_eq!(
            refused(&|p| p.top_logprobs = 21),
            "use top_logprobs = 21: expected at most 20"
        );
        assert!(refused(&|p| p.stop = vec![String::new()]).contains("not empty"));
        assert!(refused(&|p| p.stop = vec!["x".repeat(1025)]).contains("1025"));
        assert!(refused(&|p| p.stop = vec!["x".into(); 65]).contains("65"));
        assert!(
            refused(&|p| {
                p.max_tokens = Some(3);
                p.min_tokens = 4;
            })
            .contains("max_tokens, which is 3")
        );
    }
}
