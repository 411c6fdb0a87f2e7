//! A training row: token ids, and for each run of them what it is and hence whether it is learned.
//!
//! The loss mask is not stored beside the ids; it follows from the spans, so the two cannot
//! disagree, and every token that is not learned has its reason.

use serde::{Deserialize, Serialize};
use temper_core::{AgentName, Role, SourceGroup, TaskId, trial::TeacherKind};

/// Ids to train on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "StoredRow", into = "StoredRow")]
pub struct TrainingRow {
    origin: RowOrigin,
    source: TokenSource,
    ids: Vec<u32>,
    spans: Vec<Span>,
    logprobs: Option<Vec<Option<f32>>>,
}

/// The trial that a row comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowOrigin {
    /// The task.
    pub task_id: TaskId,
    /// Its source group.
    pub source_group: SourceGroup,
    /// The arm that made the trial.
    pub agent: AgentName,
    /// Which attempt at the task.
    pub attempt: u32,
    /// The trial's seed.
    pub seed: u64,
    /// As what it was collected; absent for a trial of a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher: Option<TeacherKind>,
}

/// Where the ids come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenSource {
    /// They were recorded when they were sampled.
    Sampled,
    /// Text was rendered by a chat template. No gradient of a policy is taken at them.
    Rendered,
}

/// A run of tokens of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// Behind its last token; it begins where the span before it ends.
    pub end: usize,
    /// What it is.
    pub kind: SpanKind,
    /// The message that it belongs to, counted from 0, where it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<usize>,
}

/// What a run of tokens is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpanKind {
    /// The assistant's own tokens, the one that ends its turn included: learned.
    Reply,
    /// A reply that had no action that could run.
    FaultyReply,
    /// A reply whose command failed, where these are not learned.
    FailedCommand,
    /// A reply of the assistant that another row teaches.
    EarlierReply,
    /// A reply that another trial gave, which this one goes on from.
    SharedReply,
    /// A reply whose sampling excluded it.
    ExcludedReply,
    /// Text of a message of this role.
    System,
    /// Text of a user's message: the task or an observation.
    User,
    /// Text of an observation that answers a call.
    Tool,
    /// What the chat template writes around messages.
    Markup,
    /// Part of a prompt whose messages are not told apart, because the server tokenized it.
    Prompt,
}

impl SpanKind {
    /// Whether its tokens are learned.
    pub fn is_learned(self) -> bool {
        self == SpanKind::Reply
    }

    /// Why its tokens are learned, or why they are not.
    pub fn reason(self) -> &'static str {
        match self {
            SpanKind::Reply => "the assistant's own tokens",
            SpanKind::FaultyReply => "masked: a reply without a usable action",
            SpanKind::FailedCommand => "masked: a reply whose command failed",
            SpanKind::EarlierReply => "masked: an earlier reply, learned in a row of its own",
            SpanKind::SharedReply => "masked: a reply of the trial that this one goes on from",
            SpanKind::ExcludedReply => "masked: excluded when it was sampled",
            SpanKind::System => "masked: the system's text",
            SpanKind::User => "masked: the task or an observation",
            SpanKind::Tool => "masked: an observation",
            SpanKind::Markup => "masked: written by the chat template",
            SpanKind::Prompt => "masked: prompt",
        }
    }

    /// The kind of a message's text.
    pub fn of_role(role: Role) -> Self {
        match role {
            Role::System => SpanKind::System,
            Role::User => SpanKind::User,
            Role::Tool => SpanKind::Tool,
            Role::Assistant => SpanKind::Reply,
        }
    }
}

/// Why ids are no training row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// Nothing would be learned.
    #[error("make a row: 0 of its {n_ids} tokens are learned: {reason}")]
    NothingLearned {
        /// Tokens of the row.
        n_ids: usize,
        /// Why.
        reason: String,
    },
    /// Spans do not cover the ids one after another.
    #[error("make a row: its spans end at {end}, its ids at {n_ids}")]
    Spans {
        /// Where the spans end or run backwards.
        end: usize,
        /// Tokens of the row.
        n_ids: usize,
    },
    /// The first token cannot be learned.
    #[error("make a row: its first token is learned, and nothing stands before it")]
    FirstLearned,
    /// Log-probabilities are missing or too many.
    #[error("make a row: {problem}")]
    Logprobs {
        /// What does not fit.
        problem: String,
    },
}

impl TrainingRow {
    /// A row of ids, the spans that cover them, and the log-probability of each sampled id, where
    /// they are known. One that is not known is absent, never 0.
    ///
    /// # Errors
    /// When spans do not cover the ids in order, nothing or the first token is learned, or
    /// log-probabilities are given for some of the learned tokens only.
    pub fn new(
        origin: RowOrigin,
        source: TokenSource,
        ids: Vec<u32>,
        spans: Vec<Span>,
        logprobs: Option<Vec<Option<f32>>>,
    ) -> Result<Self, RowError> {
        let mut at = 0;
        for span in &spans {
            if span.end < at || span.end > ids.len() {
                return Err(RowError::Spans {
                    end: span.end,
                    n_ids: ids.len(),
                });
            }
            at = span.end;
        }
        if at != ids.len() {
            return Err(RowError::Spans {
                end: at,
                n_ids: ids.len(),
            });
        }
        let row = TrainingRow {
            origin,
            source,
            ids,
            spans,
            logprobs,
        };
        let mask = row.loss_mask();
        if mask.first() == Some(&true) {
            return Err(RowError::FirstLearned);
        }
        if !mask.contains(&true) {
            return Err(RowError::NothingLearned {
                n_ids: row.ids.len(),
                reason: row.why_nothing(),
            });
        }
        if let Some(logprobs) = &row.logprobs {
            row.check_logprobs(logprobs, &mask)?;
        }
        Ok(row)
    }

    fn check_logprobs(&self, logprobs: &[Option<f32>], mask: &[bool]) -> Result<(), RowError> {
        let wrong = |problem: String| Err(RowError::Logprobs { problem });
        if self.source == TokenSource::Rendered {
            return wrong("rendered ids have no log-probabilities of sampling".to_owned());
        }
        if logprobs.len() != self.ids.len() {
            return wrong(format!(
                "{} log-probabilities for {} ids",
                logprobs.len(),
                self.ids.len()
            ));
        }
        let mut learned = logprobs.iter().zip(mask);
        if let Some(at) = learned.position(|(logprob, learned)| *learned && logprob.is_none()) {
            return wrong(format!("the learned token {at} has no log-probability"));
        }
        let mut known = logprobs.iter().flatten();
        match known.find(|logprob| !logprob.is_finite() || **logprob > 1e-4) {
            Some(logprob) => wrong(format!("{logprob} is no log-probability")),
            None => Ok(()),
        }
    }

    fn why_nothing(&self) -> String {
        let mut kinds: Vec<SpanKind> = self.spans.iter().map(|span| span.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        match kinds.as_slice() {
            [] => "it is empty".to_owned(),
            kinds => {
                let reasons: Vec<&str> = kinds.iter().map(|kind| kind.reason()).collect();
                reasons.join("; ")
            }
        }
    }

    /// The trial it comes from.
    pub fn origin(&self) -> &RowOrigin {
        &self.origin
    }

    /// Where its ids come from.
    pub fn source(&self) -> TokenSource {
        self.source
    }

    /// Token ids.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// What they are.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// For each id, whether it is learned.
    pub fn loss_mask(&self) -> Vec<bool> {
        let mut mask = Vec::with_capacity(self.ids.len());
        for span in &self.spans {
            mask.resize(span.end, span.kind.is_learned());
        }
        mask
    }

    /// For each id its natural log-probability when it was sampled; absent for the others.
    pub fn logprobs(&self) -> Option<&[Option<f32>]> {
        self.logprobs.as_deref()
    }

    /// Tokens that are learned; at least 1.
    pub fn n_learned(&self) -> usize {
        let mut from = 0;
        let mut n = 0;
        for span in &self.spans {
            if span.kind.is_learned() {
                n += span.end - from;
            }
            from = span.end;
        }
        n
    }

    /// Whether a policy gradient may be taken at it: sampled ids with a log-probability for each
    /// learned one.
    pub fn for_policy_gradient(&self) -> Result<(), NoPolicyGradient> {
        match (self.source, &self.logprobs) {
            (TokenSource::Rendered, _) => Err(NoPolicyGradient::RenderedText),
            (TokenSource::Sampled, None) => Err(NoPolicyGradient::NoLogprobs),
            (TokenSource::Sampled, Some(_)) => Ok(()),
        }
    }
}

/// Why no policy gradient may be taken at a row.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    thiserror::Error,
)]
#[serde(rename_all = "kebab-case")]
pub enum NoPolicyGradient {
    /// The server gave text without ids.
    #[error(
        "take a policy gradient: the row was rendered from text, and ids that nobody sampled have no gradient of the policy"
    )]
    RenderedText,
    /// The server gave ids without log-probabilities.
    #[error("take a policy gradient: the sampled ids have no log-probabilities")]
    NoLogprobs,
}

/// How a row lies in a file.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredRow {
    origin: RowOrigin,
    source: TokenSource,
    ids: Vec<u32>,
    spans: Vec<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<Option<f32>>>,
}

impl From<TrainingRow> for StoredRow {
    fn from(row: TrainingRow) -> Self {
        StoredRow {
            origin: row.origin,
            source: row.source,
            ids: row.ids,
            spans: row.spans,
            logprobs: row.logprobs,
        }
    }
}

impl TryFrom<StoredRow> for TrainingRow {
    type Error = RowError;
    fn try_from(row: StoredRow) -> Result<Self, RowError> {
        TrainingRow::new(row.origin, row.source, row.ids, row.spans, row.logprobs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> RowOrigin {
        RowOrigin {
            task_id: TaskId::new("t").unwrap(),
            source_group: SourceGroup::new("g").unwrap(),
            agent: AgentName::new("a").unwrap(),
            attempt: 0,
            seed: 1,
            teacher: None,
        }
    }

    fn span(end: usize, kind: SpanKind) -> Span {
        Span {
            end,
            kind,
            message: None,
        }
    }

    fn row(spans: &[Span], logprobs: Option<Vec<Option<f32>>>) -> Result<TrainingRow, RowError> {
        let source = TokenSource::Sampled;
        TrainingRow::new(origin(), source, vec![7; 4], spans.to_vec(), logprobs)
    }

    #[test]
    fn mask_and_counts_follow_from_spans() {
        let spans = [
            span(1, SpanKind::Prompt),
            span(3, SpanKind::Reply),
            span(4, SpanKind::User),
        ];
        let logprobs = vec![None, Some(-0.5), Some(0.0), None];
        let row = row(&spans, Some(logprobs)).unwrap();
        assert_eq!(row.loss_mask(), [false, true, true, false]);
        assert_eq!(row.n_learned(), 2);
        assert_eq!(row.for_policy_gradient(), Ok(()));
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(serde_json::from_str::<TrainingRow>(&text).unwrap(), row);
        assert!(
            serde_json::from_str::<TrainingRow>(&text.replace("\"end\":4", "\"end\":3")).is_err()
        );
    }

    #[test]
    fn what_cannot_be_trained_on_is_refused_with_its_reason() {
        let user = [span(4, SpanKind::User)];
        let error = row(&user, None).unwrap_err();
        assert!(error.to_string().contains("0 of its 4 tokens"), "{error}");
        assert!(
            error.to_string().contains("the task or an observation"),
            "{error}"
        );
        assert_eq!(
            row(&[span(4, SpanKind::Reply)], None),
            Err(RowError::FirstLearned)
        );
        assert!(matches!(
            row(&[span(3, SpanKind::User)], None),
            Err(RowError::Spans { .. })
        ));
        assert!(matches!(
            row(&[span(5, SpanKind::User)], None),
            Err(RowError::Spans { .. })
        ));
        let spans = [span(2, SpanKind::Prompt), span(4, SpanKind::Reply)];
        for logprobs in [
            vec![Some(-1.0); 3],
            vec![None, None, Some(-1.0), None],
            vec![None, None, Some(-1.0), Some(f32::NAN)],
            vec![None, None, Some(-1.0), Some(0.5)],
        ] {
            assert!(matches!(
                row(&spans, Some(logprobs)),
                Err(RowError::Logprobs { .. })
            ));
        }
        let without = row(&spans, None).unwrap();
        assert_eq!(
            without.for_policy_gradient(),
            Err(NoPolicyGradient::NoLogprobs)
        );
    }
}
