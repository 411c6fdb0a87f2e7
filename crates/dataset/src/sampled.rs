//! Rows of ids as they were sampled.
//!
//! A step's record holds the prompt's ids and the sampled ones. Where each prompt begins with what
//! the step before it ended with, the trial is one row; where a prompt goes another way (a template
//! that drops earlier thinking, a server that renders anew), a new row begins. Ids and
//! log-probabilities are copied; nothing is encoded again.

use serde::{Deserialize, Serialize};
use temper_core::trajectory::{Step, StepOutcome, TokenRecord};

use crate::{
    episode::{Episode, is_faulty},
    row::{RowError, Span, SpanKind, TokenSource, TrainingRow},
};

/// What becomes of a conversation whose tokens do not only grow at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnBreak {
    /// A new row begins where it breaks; each reply is learned once, after what stood before it
    /// when it was made.
    #[default]
    Split,
    /// The trial is refused.
    Refuse,
}

/// What becomes of replies without an action that could run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultyReplies {
    /// The trial is refused.
    #[default]
    Refuse,
    /// They stay in the conversation and are not learned; what follows them is.
    Mask,
}

/// What becomes of replies whose command failed: ended with another exit code than 0, or not in
/// time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailedCommands {
    /// They are learned as others are. A test run that shows the fault fails too, and rightly so.
    #[default]
    Learn,
    /// They stay in the conversation and are not learned; how the trial goes on from them is. For
    /// trials in which a command fails only where something went wrong.
    Mask,
}

/// What of a trial is not learned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unlearned {
    /// Steps at the beginning that are another trial's.
    pub n_shared: usize,
    /// Whether replies whose command failed are.
    pub failed: FailedCommands,
}

impl Unlearned {
    /// As what a step's reply is masked, if it is.
    pub(crate) fn kind(self, step: &Step) -> Option<SpanKind> {
        if step.number as usize <= self.n_shared {
            Some(SpanKind::SharedReply)
        } else if is_faulty(step) {
            Some(SpanKind::FaultyReply)
        } else if self.failed == FailedCommands::Mask && has_failed(step) {
            Some(SpanKind::FailedCommand)
        } else {
            None
        }
    }
}

fn has_failed(step: &Step) -> bool {
    let failed = step
        .actions
        .iter()
        .any(|action| action.exit_code != Some(0));
    step.outcome == StepOutcome::TimedOut || (step.outcome == StepOutcome::Ran && failed)
}

/// Why a trial gives no rows of sampled ids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampledError {
    /// The server gave text without ids.
    #[error("take sampled ids: step {step} has none: the server gave text only")]
    NoIds {
        /// The step, from 1.
        step: u32,
    },
    /// The ids of the prompt are not known, so it is not known what was sampled after them.
    #[error("take sampled ids: step {step} has no ids of its prompt")]
    NoPrompt {
        /// The step, from 1.
        step: u32,
    },
    /// Lists of one record have different lengths.
    #[error("take sampled ids: step {step} has {n_ids} ids and {n} {what}")]
    Length {
        /// The step, from 1.
        step: u32,
        /// Sampled ids.
        n_ids: usize,
        /// Entries of the other list.
        n: usize,
        /// Which list.
        what: &'static str,
    },
    /// The prompt does not go on from what was sampled before.
    #[error(
        "take sampled ids: the prompt of step {step} does not go on from the step before: token {token} differs"
    )]
    Break {
        /// The step, from 1.
        step: u32,
        /// The first token that differs.
        token: usize,
    },
    /// A row cannot be made.
    #[error(transparent)]
    Row(#[from] RowError),
}

/// Whether every step has sampled ids.
pub fn has_ids(episode: &Episode) -> bool {
    !episode.steps().is_empty() && episode.steps().iter().all(|step| step.tokens.is_some())
}

/// The rows of a trial whose ids were recorded. What it shares with the trial that it goes on from
/// is not learned.
///
/// # Errors
/// When ids are missing or lists disagree, when a prompt breaks and that is refused, and when a row
/// would teach nothing.
pub fn rows(episode: &Episode, on_break: OnBreak) -> Result<Vec<TrainingRow>, SampledError> {
    let unlearned = Unlearned {
        n_shared: episode.n_shared(),
        ..Unlearned::default()
    };
    rows_without(episode, unlearned, on_break)
}

/// As [`rows`], without what is not to be learned.
pub(crate) fn rows_without(
    episode: &Episode,
    unlearned: Unlearned,
    on_break: OnBreak,
) -> Result<Vec<TrainingRow>, SampledError> {
    let mut rows = Vec::new();
    let mut current = Growing::default();
    for step in episode.steps() {
        let (record, prompt) = checked(step)?;
        if !prompt.starts_with(&current.ids) {
            if on_break == OnBreak::Refuse {
                let same = prompt.iter().zip(&current.ids).take_while(|(a, b)| a == b);
                return Err(SampledError::Break {
                    step: step.number,
                    token: same.count(),
                });
            }
            rows.extend(std::mem::take(&mut current).finish(episode)?);
        }
        current.extend_prompt(&prompt[current.ids.len()..]);
        current.extend_reply(record, unlearned.kind(step));
    }
    rows.extend(current.finish(episode)?);
    if rows.is_empty() {
        // Every reply is masked; the error of a row says so.
        let kind = episode
            .steps()
            .first()
            .and_then(|step| unlearned.kind(step));
        let reason = kind.unwrap_or(SpanKind::ExcludedReply).reason().to_owned();
        return Err(RowError::NothingLearned { n_ids: 0, reason }.into());
    }
    Ok(rows)
}

/// The record of a step, its lists of one length, and the ids of its prompt.
fn checked(step: &Step) -> Result<(&TokenRecord, &[u32]), SampledError> {
    let number = step.number;
    let record = step
        .tokens
        .as_ref()
        .ok_or(SampledError::NoIds { step: number })?;
    let n_ids = record.completion_ids.len();
    let logprobs = record.logprobs.as_ref().map(Vec::len);
    let mask = record.loss_mask.as_ref().map(Vec::len);
    for (n, what) in [(logprobs, "log-probabilities"), (mask, "mask entries")] {
        if let Some(n) = n.filter(|n| *n != n_ids) {
            return Err(SampledError::Length {
                step: number,
                n_ids,
                n,
                what,
            });
        }
    }
    let prompt = record
        .prompt_ids
        .as_deref()
        .ok_or(SampledError::NoPrompt { step: number })?;
    Ok((record, prompt))
}

#[derive(Default)]
struct Growing {
    ids: Vec<u32>,
    spans: Vec<Span>,
    logprobs: Vec<Option<f32>>,
    /// Whether each learned token so far has its log-probability.
    complete: bool,
    learns: bool,
}

impl Growing {
    fn extend_prompt(&mut self, ids: &[u32]) {
        if self.ids.is_empty() {
            self.complete = true;
        }
        self.ids.extend_from_slice(ids);
        self.logprobs.resize(self.ids.len(), None);
        self.span(SpanKind::Prompt);
    }

    fn extend_reply(&mut self, record: &TokenRecord, masked: Option<SpanKind>) {
        for (at, id) in record.completion_ids.iter().enumerate() {
            let kept = record.loss_mask.as_ref().is_none_or(|mask| mask[at]);
            let logprob = record.logprobs.as_ref().map(|logprobs| logprobs[at]);
            self.ids.push(*id);
            self.logprobs.push(logprob);
            let kind = match (masked, kept) {
                (Some(kind), _) => kind,
                (None, false) => SpanKind::ExcludedReply,
                (None, true) => SpanKind::Reply,
            };
            if kind.is_learned() {
                self.learns = true;
                self.complete &= logprob.is_some();
            }
            self.span(kind);
        }
    }

    /// Everything since the last span is of a kind.
    fn span(&mut self, kind: SpanKind) {
        let end = self.ids.len();
        match self.spans.last_mut() {
            Some(last) if last.kind == kind => last.end = end,
            Some(last) if last.end == end => {}
            None if end == 0 => {}
            _ => self.spans.push(Span {
                end,
                kind,
                message: None,
            }),
        }
    }

    /// The row, unless it would only repeat prompts and faulty replies.
    fn finish(self, episode: &Episode) -> Result<Option<TrainingRow>, RowError> {
        if !self.learns {
            return Ok(None);
        }
        let logprobs = self.complete.then_some(self.logprobs);
        let source = TokenSource::Sampled;
        TrainingRow::new(episode.origin(), source, self.ids, self.spans, logprobs).map(Some)
    }
}
