//! Rows of rendered text: for trials whose server gave no ids.
//!
//! The checkpoint's own chat template spells the conversation; which tokens are the assistant's is
//! known from the rendering, not from a search for markers. A template that changes what it wrote
//! before (earlier thinking dropped) would teach replies after prompts that no trial ever has, so
//! there each reply gets a row of its own, rendered as its prompt was.

use serde_json::{Map, Value};
use temper_checkpoint::{
    chat_template::{
        ChatTemplate, CivilTime, Conversation, RenderedIds, TemplateError, message_value,
        tool_value,
    },
    tokenizer::Tokenizer,
};
use temper_core::{Digest, Message, Role, digest::Hasher};

use crate::{
    episode::Episode,
    row::{RowError, Span, SpanKind, TokenSource, TrainingRow},
    sampled::{OnBreak, Unlearned},
};

/// Spells conversations as one checkpoint does.
#[derive(Clone, Debug)]
pub struct Renderer<'a> {
    /// Its tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Its template, by a name that errors use.
    pub template: &'a ChatTemplate,
    /// What the template is called.
    pub template_name: &'a str,
    /// Further variables of the template.
    pub extra: Option<&'a Map<String, Value>>,
    /// The date that the template tells.
    pub now: Option<CivilTime>,
}

/// The digest of what a tokenizer does with ids: the bytes of each, and whether it is a control
/// token. A folder and a GGUF file of one tokenizer have the same.
pub fn tokenizer_digest(tokenizer: &Tokenizer) -> Digest {
    let mut hasher = Hasher::default();
    for id in 0..tokenizer.n_tokens() as u32 {
        hasher.field(tokenizer.token_bytes(id).unwrap_or_default());
        hasher.field(&[u8::from(tokenizer.is_control(id))]);
    }
    hasher.finish()
}

/// Why a conversation gives no rows.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// The template failed.
    #[error("render with the chat template {template}: {error}")]
    Template {
        /// Its name.
        template: String,
        /// Why.
        error: TemplateError,
    },
    /// The template changes what it wrote before.
    #[error("render with the chat template {template}: {reason}")]
    Break {
        /// Its name.
        template: String,
        /// What changes.
        reason: String,
    },
    /// No token is the assistant's.
    #[error(
        "render with the chat template {template}: 0 of {n_ids} tokens are trainable: {reason}"
    )]
    NothingTrainable {
        /// Its name.
        template: String,
        /// Tokens of the rendering.
        n_ids: usize,
        /// Why.
        reason: String,
    },
    /// A row cannot be made.
    #[error(transparent)]
    Row(#[from] RowError),
}

/// Rows of one conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    /// The rows.
    pub rows: Vec<TrainingRow>,
    /// Whether content looked like a control token and was encoded as ordinary text in a way that
    /// changed the rendering.
    pub defused: bool,
    /// Why there is a row for each reply, if so.
    pub split: Option<String>,
}

impl Renderer<'_> {
    /// The rows of a trial's text.
    ///
    /// # Errors
    /// What the template refuses; a break, if that is refused; a rendering in which nothing is
    /// trainable, with the template's name.
    pub fn rows(&self, episode: &Episode, on_break: OnBreak) -> Result<Rendered, RenderError> {
        let unlearned = Unlearned {
            n_shared: episode.n_shared(),
            ..Unlearned::default()
        };
        self.rows_without(episode, unlearned, on_break)
    }

    /// As [`Renderer::rows`], without what is not to be learned.
    pub(crate) fn rows_without(
        &self,
        episode: &Episode,
        unlearned: Unlearned,
        on_break: OnBreak,
    ) -> Result<Rendered, RenderError> {
        let messages = episode.messages();
        let tools: Vec<Value> = episode.tools().iter().map(tool_value).collect();
        let mut masked = vec![None; messages.len()];
        let mut steps = episode.steps().iter();
        for (index, message) in messages.iter().enumerate().skip(episode.prompt().len()) {
            if message.role == Role::Assistant {
                masked[index] = steps.next().and_then(|step| unlearned.kind(step));
            }
        }
        let values: Vec<Value> = messages.iter().map(message_value).collect();
        let kinds = Kinds {
            messages: &messages,
            masked: &masked,
            first_reply: episode.prompt().len(),
        };
        let whole = self.conversation(&values, &tools);
        let property = self
            .template
            .prefix_property(self.tokenizer, &whole)
            .map_err(|error| self.failed(error))?;
        let make = |ids: Vec<u32>, spans: Vec<Span>| {
            TrainingRow::new(episode.origin(), TokenSource::Rendered, ids, spans, None)
        };
        if property.holds() {
            let rendered = self.render(&whole)?;
            let spans = kinds.spans(&rendered, None);
            let defused = rendered.defused;
            self.check(&rendered, &spans)?;
            return Ok(Rendered {
                rows: vec![make(rendered.ids, spans)?],
                defused,
                split: None,
            });
        }
        let reason = property.breaks[0].reason.clone();
        if on_break == OnBreak::Refuse {
            return Err(RenderError::Break {
                template: self.template_name.to_owned(),
                reason,
            });
        }
        let mut rows = Vec::new();
        let mut defused = false;
        for (index, message) in messages.iter().enumerate().skip(kinds.first_reply) {
            if message.role != Role::Assistant || masked[index].is_some() {
                continue;
            }
            let rendered = self.render(&self.conversation(&values[..=index], &tools))?;
            let spans = kinds.spans(&rendered, Some(index));
            defused |= rendered.defused;
            self.check(&rendered, &spans)?;
            rows.push(make(rendered.ids, spans)?);
        }
        if rows.is_empty() {
            return Err(self.nothing(0, "it holds no reply with a usable action"));
        }
        Ok(Rendered {
            rows,
            defused,
            split: Some(reason),
        })
    }

    fn conversation<'b>(&'b self, messages: &'b [Value], tools: &'b [Value]) -> Conversation<'b> {
        Conversation {
            messages,
            tools: (!tools.is_empty()).then_some(tools),
            add_generation_prompt: false,
            extra: self.extra,
            now: self.now,
        }
    }

    fn render(&self, conversation: &Conversation<'_>) -> Result<RenderedIds, RenderError> {
        self.template
            .render_ids(self.tokenizer, conversation)
            .map_err(|error| self.failed(error))
    }

    fn check(&self, rendered: &RenderedIds, spans: &[Span]) -> Result<(), RenderError> {
        if spans.iter().any(|span| span.kind.is_learned()) {
            return Ok(());
        }
        let reason = if rendered.assistant_mask.contains(&true) {
            "none of the replies has a usable action"
        } else {
            "the template shows no reply of the assistant"
        };
        Err(self.nothing(rendered.ids.len(), reason))
    }

    fn nothing(&self, n_ids: usize, reason: &str) -> RenderError {
        RenderError::NothingTrainable {
            template: self.template_name.to_owned(),
            n_ids,
            reason: reason.to_owned(),
        }
    }

    fn failed(&self, error: TemplateError) -> RenderError {
        RenderError::Template {
            template: self.template_name.to_owned(),
            error,
        }
    }
}

/// What the messages of a conversation are.
struct Kinds<'a> {
    messages: &'a [Message],
    /// Replies that are not learned, by what they are.
    masked: &'a [Option<SpanKind>],
    /// Messages before it are the prompt, whoever speaks in them.
    first_reply: usize,
}

impl Kinds<'_> {
    /// What the reply of a message is.
    fn reply(&self, index: usize, only: Option<usize>) -> SpanKind {
        if index < self.first_reply || only.is_some_and(|only| only != index) {
            SpanKind::EarlierReply
        } else {
            self.masked[index].unwrap_or(SpanKind::Reply)
        }
    }

    /// The spans of a rendering. With `only`, the reply of that message alone is learned.
    fn spans(&self, rendered: &RenderedIds, only: Option<usize>) -> Vec<Span> {
        let mut kinds = vec![(SpanKind::Markup, None); rendered.ids.len()];
        let mut replies: Vec<(usize, SpanKind, usize)> = Vec::new();
        for (index, place) in rendered.spans.iter().enumerate() {
            let message = &self.messages[index];
            if message.role == Role::Assistant {
                let start = place.sampled.as_ref().map(|range| range.start);
                replies.extend(start.map(|start| (start, self.reply(index, only), index)));
                continue;
            }
            for token in place.content.clone().into_iter().flatten() {
                kinds[token] = (SpanKind::of_role(message.role), Some(index));
            }
        }
        // Which tokens are the assistant's the mask says; a generation block of the template may
        // hold more than the reply and its end. Each belongs to the reply that began last.
        for (token, sampled) in rendered.assistant_mask.iter().enumerate() {
            let mut before = replies.iter().rev();
            let reply = before.find(|(start, ..)| *start <= token);
            if let (true, Some((_, kind, index))) = (*sampled, reply) {
                kinds[token] = (*kind, Some(*index));
            }
        }
        let mut spans: Vec<Span> = Vec::new();
        for (token, (kind, message)) in kinds.into_iter().enumerate() {
            match spans.last_mut() {
                Some(last) if last.kind == kind && last.message == message => last.end = token + 1,
                _ => spans.push(Span {
                    end: token + 1,
                    kind,
                    message,
                }),
            }
        }
        spans
    }
}
