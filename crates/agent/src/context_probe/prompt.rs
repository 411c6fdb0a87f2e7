//! Prompts of a known number of tokens.
//!
//! The number of tokens of a text is not the sum of its parts', so a prompt is measured whole. The
//! first line of filler and later ones cost differently (they merge with what stands before them);
//! both slopes are measured, the number of lines is estimated from them, and a bounded search
//! brings the prompt as close below the target as single words allow.

use serde::{Deserialize, Serialize};
use temper_core::{Digest, Message, Role};

use super::CountTokens;

/// How often one prompt's tokens are counted at most.
pub const MAX_COUNTS: u32 = 48;

const OPENING: &str = "Read the text below to its end. A question about it follows.\n\n";
const UNIT: &str = "The ferry crossed the grey water once more, and the people on the quay talked about the weather until the evening.\n";
const PAD: &str = " and";
const QUESTION: &str = "\n\nThe text ends here. Four boxes were named in it, each with a code of six digits. What are the codes of the red, the green, the blue and the white box? Answer with the four codes in this order and nothing else.";
/// What is hidden, and how deep: shares of the lines of filler that stand before it.
const NEEDLES: [(&str, f64); 4] = [
    ("red", 0.02),
    ("green", 0.35),
    ("blue", 0.65),
    ("white", 0.98),
];
/// Lines over which the later lines' slope is measured.
const SLOPE_UNITS: u64 = 64;

/// What the parts of a prompt cost, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slopes {
    /// The prompt without filler.
    pub empty: u64,
    /// The first line of filler.
    pub first_unit: u64,
    /// A further line, on average over a long run.
    pub long_run: f64,
}

/// A prompt and what was hidden in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// The text of the user's message.
    pub text: String,
    /// Its tokens with the chat template's markup, as counted here.
    pub n_tokens: u64,
    /// Lines of filler.
    pub n_units: u64,
    /// Single words behind them.
    pub n_pads: u64,
    /// How often it was counted.
    pub n_counts: u32,
    /// Depth and code of what is asked for.
    pub needles: Vec<(f64, String)>,
}

/// Why a prompt cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    /// The question alone is longer.
    #[error("make a prompt of {target} tokens: without filler it has {empty}")]
    TooShort {
        /// Asked for.
        target: u64,
        /// Without filler.
        empty: u64,
    },
    /// Filler costs nothing, so no length can be reached.
    #[error("make a prompt: {n_units} lines of filler have no tokens of their own")]
    NoSlope {
        /// Lines that were counted.
        n_units: u64,
    },
    /// The tokenizer or the template refused.
    #[error("{0}")]
    Count(String),
}

/// Makes prompts, all with the slopes that were measured once.
pub struct PromptMaker<'a> {
    seed: u64,
    count: &'a CountTokens<'a>,
    slopes: Slopes,
}

impl<'a> PromptMaker<'a> {
    /// Measures the slopes.
    pub fn new(seed: u64, count: &'a CountTokens<'a>) -> Result<Self, PromptError> {
        let needles = needles(seed, 0);
        let measure = |n_units| tokens(count, &text(&needles, n_units, 0));
        let (empty, one) = (measure(0)?, measure(1)?);
        let many = measure(1 + SLOPE_UNITS)?;
        if many <= one {
            return Err(PromptError::NoSlope {
                n_units: 1 + SLOPE_UNITS,
            });
        }
        Ok(PromptMaker {
            seed,
            count,
            slopes: Slopes {
                empty,
                first_unit: one.saturating_sub(empty),
                long_run: (many - one) as f64 / SLOPE_UNITS as f64,
            },
        })
    }

    /// What the parts cost.
    pub fn slopes(&self) -> Slopes {
        self.slopes
    }

    /// A prompt of at most `target` tokens, as close to it as words of filler come. The codes follow
    /// from the seed and `level`.
    pub fn make(&self, target: u64, level: u64) -> Result<Prompt, PromptError> {
        let needles = needles(self.seed, level);
        let mut n_counts = 0;
        let mut measure = |n_units, n_pads| {
            n_counts += 1;
            tokens(self.count, &text(&needles, n_units, n_pads))
        };
        let empty = measure(0, 0)?;
        if empty > target {
            return Err(PromptError::TooShort { target, empty });
        }
        let Slopes {
            first_unit,
            long_run,
            ..
        } = self.slopes;
        let missing = (target - empty).saturating_sub(first_unit);
        let guess = 1 + (missing as f64 / long_run) as u64;
        let budget = MAX_COUNTS / 2;
        let found = |n, tokens| Found { n, tokens };
        let units = search(found(0, empty), guess, long_run, target, budget, |n| {
            measure(n, 0)
        })?;
        let left = target - units.tokens;
        let pads = search(found(0, units.tokens), left, 1.0, target, budget - 2, |n| {
            measure(units.n, n)
        })?;
        Ok(Prompt {
            text: text(&needles, units.n, pads.n),
            n_tokens: pads.tokens,
            n_units: units.n,
            n_pads: pads.n,
            n_counts,
            needles: NEEDLES
                .iter()
                .zip(needles)
                .map(|((_, depth), code)| (*depth, code))
                .collect(),
        })
    }
}

#[derive(Clone, Copy)]
struct Found {
    n: u64,
    tokens: u64,
}

/// The largest `n` with at most `target` tokens that `budget` counts find, begun at `guess`; `slope`
/// is what one more costs. `low` is known to fit.
fn search(
    mut low: Found,
    guess: u64,
    slope: f64,
    target: u64,
    budget: u32,
    mut measure: impl FnMut(u64) -> Result<u64, PromptError>,
) -> Result<Found, PromptError> {
    let mut high: Option<u64> = None;
    let mut next = guess;
    for at in 0..budget {
        if low.tokens == target || high.is_some_and(|high| high <= low.n + 1) {
            break;
        }
        let most = high.map_or(u64::MAX, |high| high - 1);
        let n = next.clamp(low.n + 1, most);
        let tokens = measure(n)?;
        if tokens <= target {
            low = Found { n, tokens };
        } else {
            high = Some(n);
        }
        // The slope brings the guess to within a step or two; where it misleads, halving ends it.
        next = match high {
            Some(high) if at >= 4 => low.n + (high - low.n) / 2,
            _ => low.n + ((target - low.tokens) as f64 / slope) as u64,
        };
    }
    Ok(low)
}

fn tokens(count: &CountTokens<'_>, text: &str) -> Result<u64, PromptError> {
    count(&[Message::text(Role::User, text)]).map_err(PromptError::Count)
}

fn text(needles: &[String], n_units: u64, n_pads: u64) -> String {
    let mut text = String::with_capacity(UNIT.len() * n_units as usize + 2048);
    text.push_str(OPENING);
    let mut at = 0;
    for ((colour, depth), code) in NEEDLES.iter().zip(needles) {
        let until = (n_units as f64 * depth) as u64;
        for _ in at..until {
            text.push_str(UNIT);
        }
        at = until;
        text.push_str(&format!(
            "Remember this: the code of the {colour} box is {code}.\n"
        ));
    }
    for _ in at..n_units {
        text.push_str(UNIT);
    }
    for _ in 0..n_pads {
        text.push_str(PAD);
    }
    text.push_str(QUESTION);
    text
}

/// Codes of six digits, the same for the same seed and level.
fn needles(seed: u64, level: u64) -> Vec<String> {
    NEEDLES
        .iter()
        .map(|(colour, _)| {
            let digest = Digest::of_value(&(seed, level, colour));
            let number = u64::from_str_radix(&digest.as_str()[..12], 16)
                .expect("a digest is hexadecimal digits");
            (100_000 + number % 900_000).to_string()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tokenizer in which the first line merges with what stands before it, and pads in threes.
    fn rough(messages: &[Message]) -> Result<u64, String> {
        let (body, _) = messages[0].content.split_once(QUESTION).unwrap();
        let n_lines = body.matches(UNIT).count() as u64;
        let n_pads = body.matches(PAD).count() as u64 - n_lines;
        Ok(200 + 23 * n_lines - u64::from(n_lines > 0) * 3 + n_lines / 7 + n_pads / 3)
    }

    #[test]
    fn prompts_come_close_and_never_exceed() {
        let maker = PromptMaker::new(3, &rough).unwrap();
        assert_eq!(maker.slopes().empty, 200);
        assert_eq!(maker.slopes().first_unit, 20);
        assert!((maker.slopes().long_run - 23.14).abs() < 0.02);
        for target in [200, 201, 223, 224, 1000, 8192, 40_960, 64_500, 1_000_003] {
            let prompt = maker.make(target, target).unwrap();
            assert!(prompt.n_tokens <= target && prompt.n_counts <= MAX_COUNTS);
            assert!(
                target - prompt.n_tokens <= 1,
                "{target}: {}",
                prompt.n_tokens
            );
            let counted = rough(&[Message::text(Role::User, prompt.text.as_str())]);
            assert_eq!(counted, Ok(prompt.n_tokens));
            let places: Vec<_> = prompt
                .needles
                .iter()
                .map(|(_, code)| prompt.text.find(code.as_str()).unwrap())
                .collect();
            assert!(places.is_sorted());
        }
        assert_eq!(
            maker.make(199, 0).unwrap_err(),
            PromptError::TooShort {
                target: 199,
                empty: 200
            }
        );
    }

    #[test]
    fn a_counter_that_misleads_ends_within_the_bound() {
        // Lines cost more the more there are, so every slope is wrong.
        let curved = |messages: &[Message]| {
            let n = messages[0].content.matches(UNIT).count() as u64;
            Ok(10 + n * n / 50 + n)
        };
        let maker = PromptMaker::new(0, &curved).unwrap();
        let prompt = maker.make(50_000, 0).unwrap();
        assert!(prompt.n_tokens <= 50_000 && prompt.n_counts <= MAX_COUNTS);
        assert!(50_000 - prompt.n_tokens < 80, "{}", prompt.n_tokens);
        let flat = |_: &[Message]| Ok(5);
        assert!(matches!(
            PromptMaker::new(0, &flat),
            Err(PromptError::NoSlope { .. })
        ));
    }

    #[test]
    fn codes_differ_between_levels_and_seeds() {
        assert_eq!(needles(1, 8192), needles(1, 8192));
        assert_ne!(needles(1, 8192), needles(1, 40_960));
        assert_ne!(needles(1, 8192), needles(2, 8192));
        for code in needles(9, 9) {
            assert_eq!(code.len(), 6);
        }
    }
}
