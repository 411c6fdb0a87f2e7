//! A row token by token: what each is, and why it is learned or not.

use temper_checkpoint::tokenizer::{Tokenizer, TokenizerError};

use crate::row::{SpanKind, TrainingRow};

/// One token of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct ShownToken {
    /// Its id.
    pub id: u32,
    /// Its text, as far as its bytes are whole characters; the rest is replaced visibly.
    pub text: String,
    /// Its natural-log probability when it was sampled.
    pub logprob: Option<f32>,
}

/// A run of tokens of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct ShownSpan {
    /// What they are.
    pub kind: SpanKind,
    /// Whether they are learned.
    pub learned: bool,
    /// Why, or why not.
    pub reason: &'static str,
    /// The message they belong to, counted from 0.
    pub message: Option<usize>,
    /// Where they begin in the row.
    pub start: usize,
    /// All of them as text.
    pub text: String,
    /// Each.
    pub tokens: Vec<ShownToken>,
}

/// The spans of a row.
///
/// # Errors
/// When the tokenizer does not know an id.
pub fn show(row: &TrainingRow, tokenizer: &Tokenizer) -> Result<Vec<ShownSpan>, TokenizerError> {
    let mut start = 0;
    let mut shown = Vec::with_capacity(row.spans().len());
    for span in row.spans() {
        let ids = &row.ids()[start..span.end];
        let tokens = ids
            .iter()
            .enumerate()
            .map(|(at, id)| {
                Ok(ShownToken {
                    id: *id,
                    text: tokenizer.decode(&[*id], false)?,
                    logprob: row.logprobs().and_then(|logprobs| logprobs[start + at]),
                })
            })
            .collect::<Result<_, TokenizerError>>()?;
        shown.push(ShownSpan {
            kind: span.kind,
            learned: span.kind.is_learned(),
            reason: span.kind.reason(),
            message: span.message,
            start,
            text: tokenizer.decode(ids, false)?,
            tokens,
        });
        start = span.end;
    }
    Ok(shown)
}
