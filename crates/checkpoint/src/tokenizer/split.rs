//! Pre-tokenization with a budget: which stages a tokenizer has, and regular expressions whose
//! backtracking is counted.
//!
//! The `tokenizers` crate takes the end of matches for the end of the text when an expression reaches
//! its step limit, so that a long run of spaces is encoded otherwise than in Python. Here the limit
//! grows with the need, the whole call has a budget, and a spent budget is an error.

use std::cell::Cell;

use fancy_regex::{Regex, RegexBuilder};
use tokenizers::pattern::{Invert, Pattern};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    Offsets, PreTokenizedString, PreTokenizer, PreTokenizerWrapper, SplitDelimiterBehavior,
};

use super::TokenizerError;

/// The expression that splits words for GPT-2, which `ByteLevel` stands for.
pub(crate) const GPT2_PATTERN: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Step limits that are tried in turn; a find is charged every limit that it tried.
///
/// The expressions of real tokenizers step back at most twice for each character of a run, so a find
/// that outgrows a limit has covered enough bytes to pay for the next one.
const LIMITS: [usize; 4] = [1 << 6, 1 << 12, 1 << 18, 1 << 25];
const BASE_STEPS: u64 = 1 << 22;
const STEPS_PER_BYTE: u64 = 192;

/// Backtracking steps left to one call.
#[derive(Debug)]
pub(crate) struct BacktrackBudget {
    left: Cell<u64>,
    spent: Cell<bool>,
}

impl BacktrackBudget {
    pub(crate) fn for_text(n_bytes: usize) -> Self {
        Self {
            left: Cell::new(BASE_STEPS + STEPS_PER_BYTE * n_bytes as u64),
            spent: Cell::new(false),
        }
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.spent.get()
    }

    fn charge(&self, steps: u64) -> bool {
        match self.left.get().checked_sub(steps) {
            Some(left) => {
                self.left.set(left);
                true
            }
            None => {
                self.spent.set(true);
                false
            }
        }
    }
}

/// The stages of a pre-tokenizer, in order.
#[derive(Debug, Default)]
pub(crate) struct PreTokenization(Vec<Stage>);

#[derive(Debug)]
enum Stage {
    Expression {
        expression: Expression,
        behavior: SplitDelimiterBehavior,
        invert: bool,
    },
    PrefixSpace,
    Other(PreTokenizerWrapper),
}

impl PreTokenization {
    pub(crate) fn new(pre: Option<&PreTokenizerWrapper>) -> Result<Self, TokenizerError> {
        let mut stages = Vec::new();
        if let Some(pre) = pre {
            collect(pre, &mut stages)?;
        }
        Ok(Self(stages))
    }

    pub(crate) fn apply(
        &self,
        pieces: &mut PreTokenizedString,
        budget: &BacktrackBudget,
    ) -> tokenizers::Result<()> {
        for stage in &self.0 {
            match stage {
                Stage::Expression {
                    expression,
                    behavior,
                    invert,
                } => pieces.split(|_, text| {
                    let pattern = Budgeted { expression, budget };
                    match invert {
                        true => text.split(Invert(pattern), *behavior),
                        false => text.split(pattern, *behavior),
                    }
                })?,
                Stage::PrefixSpace => pieces.split(|_, mut text| {
                    if !text.get().starts_with(' ') {
                        text.prepend(" ");
                    }
                    Ok([text])
                })?,
                Stage::Other(other) => other.pre_tokenize(pieces)?,
            }
        }
        Ok(())
    }
}

fn collect(pre: &PreTokenizerWrapper, stages: &mut Vec<Stage>) -> Result<(), TokenizerError> {
    match pre {
        PreTokenizerWrapper::Sequence(sequence) => {
            for inner in sequence.as_ref() {
                collect(inner, stages)?;
            }
        }
        PreTokenizerWrapper::Split(split) => stages.push(Stage::Expression {
            expression: Expression::new(&source(split))?,
            behavior: split.behavior,
            invert: split.invert,
        }),
        PreTokenizerWrapper::ByteLevel(level) => {
            if level.add_prefix_space {
                stages.push(Stage::PrefixSpace);
            }
            if level.use_regex {
                stages.push(Stage::Expression {
                    expression: Expression::new(GPT2_PATTERN)?,
                    behavior: SplitDelimiterBehavior::Isolated,
                    invert: false,
                });
            }
            stages.push(Stage::Other(PreTokenizerWrapper::ByteLevel(
                ByteLevel::new(false, level.trim_offsets, false),
            )));
        }
        other => stages.push(Stage::Other(other.clone())),
    }
    Ok(())
}

fn source(split: &Split) -> String {
    match &split.pattern {
        SplitPattern::String(text) => fancy_regex::escape(text).into_owned(),
        SplitPattern::Regex(pattern) => pattern.clone(),
    }
}

/// One expression compiled under each of [`LIMITS`].
#[derive(Debug)]
struct Expression(Vec<Regex>);

impl Expression {
    fn new(pattern: &str) -> Result<Self, TokenizerError> {
        LIMITS
            .iter()
            .map(|limit| {
                RegexBuilder::new(pattern)
                    .backtrack_limit(*limit)
                    .delegate_size_limit(16 << 20)
                    .build()
            })
            .collect::<Result<Vec<_>, _>>()
            .map(Self)
            .map_err(|error| TokenizerError::Invalid(format!("pattern {pattern:?}: {error}")))
    }

    fn find(
        &self,
        text: &str,
        from: usize,
        budget: &BacktrackBudget,
    ) -> tokenizers::Result<Option<Offsets>> {
        let mut last = None;
        for (regex, limit) in self.0.iter().zip(LIMITS) {
            if !budget.charge(limit as u64) {
                break;
            }
            match regex.find_from_pos(text, from) {
                Ok(found) => return Ok(found.map(|found| (found.start(), found.end()))),
                Err(error) => last = Some(error),
            }
        }
        budget.spent.set(true);
        Err(last
            .map_or("out of steps".to_owned(), |error| error.to_string())
            .into())
    }
}

struct Budgeted<'a> {
    expression: &'a Expression,
    budget: &'a BacktrackBudget,
}

impl Pattern for Budgeted<'_> {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        if inside.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let mut parts = Vec::new();
        let mut done = 0;
        let mut from = 0;
        while let Some((start, end)) = self.expression.find(inside, from, self.budget)? {
            if end == start {
                // An empty match splits nothing; the search goes on behind the next character.
                match inside[end..].chars().next() {
                    Some(next) => from = end + next.len_utf8(),
                    None => break,
                }
                continue;
            }
            if done != start {
                parts.push(((done, start), false));
            }
            parts.push(((start, end), true));
            done = end;
            from = end;
        }
        if done != inside.len() {
            parts.push(((done, inside.len()), false));
        }
        Ok(parts)
    }
}
