//! Whether a conversation's tokens only ever grow at the end.

use super::{ChatTemplate, Conversation, TemplateError};
use crate::tokenizer::Tokenizer;

/// How a template's renderings of a growing conversation relate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixProperty {
    /// The places where tokens change that were already there; empty if the property holds.
    pub breaks: Vec<PrefixBreak>,
    /// Numbers of messages that the template refuses to render by themselves.
    pub refused: Vec<usize>,
}

/// A message that changes the rendering of those before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixBreak {
    /// The rendering of this many messages is no prefix of that of one more.
    pub n_messages: usize,
    /// The first token that differs.
    pub token: usize,
    /// Which message the difference is in, if it is in one.
    pub message: Option<usize>,
    /// What changes, in words.
    pub reason: String,
}

impl PrefixProperty {
    /// Whether every rendering is a prefix of the next.
    pub fn holds(&self) -> bool {
        self.breaks.is_empty()
    }
}

pub(super) fn check(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    conversation: &Conversation,
) -> Result<PrefixProperty, TemplateError> {
    let mut property = PrefixProperty::default();
    let n = conversation.messages.len();
    let render = |n_messages: usize| {
        let first = Conversation {
            messages: &conversation.messages[..n_messages],
            add_generation_prompt: false,
            ..*conversation
        };
        template.render_ids(tokenizer, &first)
    };
    let mut longer = render(n)?;
    for n_messages in (1..n).rev() {
        let shorter = match render(n_messages) {
            Ok(shorter) => shorter,
            Err(TemplateError::Raised(_) | TemplateError::Failed(_)) => {
                property.refused.push(n_messages);
                continue;
            }
            Err(error) => return Err(error),
        };
        if !longer.ids.starts_with(&shorter.ids) {
            let same = shorter
                .ids
                .iter()
                .zip(&longer.ids)
                .take_while(|(a, b)| a == b);
            let token = same.count();
            let message = shorter.spans.iter().position(|span| {
                [&span.content, &span.sampled]
                    .into_iter()
                    .flatten()
                    .any(|range| range.contains(&token))
            });
            let tail = |ids: &[u32]| {
                let ids = &ids[token..ids.len().min(token + 12)];
                tokenizer.decode(ids, false).unwrap_or_default()
            };
            let place = match message {
                Some(index) => format!("of message {index}"),
                None => "between messages".to_owned(),
            };
            property.breaks.push(PrefixBreak {
                n_messages,
                token,
                message,
                reason: format!(
                    "with message {n_messages} the text {place} changes from {:?} to {:?}",
                    tail(&shorter.ids),
                    tail(&longer.ids)
                ),
            });
        }
        longer = shorter;
    }
    property.breaks.reverse();
    property.refused.reverse();
    Ok(property)
}
