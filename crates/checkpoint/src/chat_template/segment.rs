//! Token ids of a conversation, with content and markup told apart.

use std::collections::HashMap;
use std::ops::Range;

use serde_json::Value;

use super::literals::string_literals;
use super::mask::{Coverage, Forbidden, Masks, Origin, is_name};
use super::turns::{self, Layout};
use super::{ChatTemplate, Conversation, TemplateError};
use crate::tokenizer::Tokenizer;

/// Comparing each constant with each token is bounded; beyond it no constant is kept.
const MAX_COMPARISONS: usize = 1 << 22;

/// A conversation as token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedIds {
    /// The tokens.
    pub ids: Vec<u32>,
    /// The text they encode; that of [`ChatTemplate::render`] unless `defused`.
    pub text: String,
    /// Where each message stands, by message.
    pub spans: Vec<MessageSpan>,
    /// For each token, whether an assistant sampled it: what it wrote, its calls of tools and the
    /// token that ends its turn, but not the header of the turn and not an empty block of thinking
    /// that the template puts in. If the template has `{% generation %}` blocks, their tokens.
    pub assistant_mask: Vec<bool>,
    /// Whether the text differs from the plain rendering, because the template looks for the text of
    /// a control token in content and would have let itself be steered by it.
    pub defused: bool,
}

/// Where a message stands in a rendered conversation, in tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageSpan {
    /// From the first to the last token that holds something of the message; `None` if nothing of it
    /// is in the text (it is empty, or the template leaves it out), or only what every template
    /// spells alike.
    pub content: Option<Range<usize>>,
    /// For an assistant's message: from behind the header of its turn through the token that ends
    /// it, as far as it was sampled.
    pub sampled: Option<Range<usize>>,
}

/// The output of a rendering, with the origin of its characters.
pub(super) struct Traced {
    pub(super) text: String,
    /// As `text`, with masks where content stands.
    pub(super) masked: String,
    /// Bytes of `text` that are known to come from somewhere, in order.
    pub(super) runs: Vec<(Range<usize>, Origin)>,
    /// Bytes of `text` in generation blocks.
    pub(super) generated: Vec<Range<usize>>,
}

pub(super) fn render_ids(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    conversation: &Conversation,
) -> Result<RenderedIds, TemplateError> {
    let plain = template.render(conversation)?;
    let (traced, defused) = trace(template, tokenizer, conversation, &plain)?;
    let pieces = tokenizer.encode_masked(&traced.text, &traced.masked)?;
    let layout = Layout {
        traced: &traced,
        pieces: &pieces,
        header: turns::header(template, conversation),
        ends: tokenizer.eos_ids(),
        conversation,
    };
    let (spans, assistant_mask) = turns::locate(&layout);
    Ok(RenderedIds {
        ids: pieces.iter().map(|piece| piece.id).collect(),
        spans,
        assistant_mask,
        defused,
        text: traced.text,
    })
}

/// Finds a rendering with masks that reads as the plain one.
fn trace(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    conversation: &Conversation,
    plain: &str,
) -> Result<(Traced, bool), TemplateError> {
    let rules = Rules::new(template, tokenizer)?;
    for (index, message) in conversation.messages.iter().enumerate() {
        rules.check_role(index, message)?;
    }
    let values = conversation
        .messages
        .iter()
        .chain(conversation.tools.into_iter().flatten())
        .chain(
            conversation
                .extra
                .into_iter()
                .flat_map(|extra| extra.values()),
        );
    let mut masks = Masks::new(template.source(), values);
    let marks = [masks.fresh()?, masks.fresh()?];
    let original = Content {
        messages: conversation.messages.to_vec(),
        tools: conversation.tools.map(<[Value]>::to_vec),
    };
    for coverage in [Coverage::Full, Coverage::Edges] {
        let masked = rules.mask(&original, &mut masks, coverage)?;
        if let Some(traced) = attempt(template, conversation, masked, &masks, marks, plain) {
            return Ok((traced, false));
        }
    }
    // Either the template changes content, or it looks for what content must not say. In the second
    // case it is steered no more once the occurrences are broken.
    let defused = rules.mask(&original, &mut masks, Coverage::Occurrences)?;
    if defused != original {
        let bare = template
            .render_values(
                conversation,
                Value::Array(defused.messages.clone()),
                defused.tools.clone().map(Value::Array),
                None,
            )
            .map(|text| unmask(&text, &masks, marks));
        for coverage in [Coverage::Full, Coverage::Edges] {
            let masked = rules.mask(&defused, &mut masks, coverage)?;
            if let Ok(bare) = &bare
                && let Some(traced) =
                    attempt(template, conversation, masked, &masks, marks, &bare.text)
            {
                return Ok((traced, true));
            }
        }
    }
    Err(TemplateError::Unsegmentable(
        "it changes content otherwise than by cutting, escaping or looking for its own constants"
            .to_owned(),
    ))
}

fn attempt(
    template: &ChatTemplate,
    conversation: &Conversation,
    content: Content,
    masks: &Masks,
    marks: [char; 2],
    expected: &str,
) -> Option<Traced> {
    let output = template
        .render_values(
            conversation,
            Value::Array(content.messages),
            content.tools.map(Value::Array),
            Some(marks),
        )
        .ok()?;
    // What the template itself writes must not look like a mask.
    let forged = expected
        .chars()
        .any(|c| marks.contains(&c) || masks.meaning(c).is_some());
    let traced = unmask(&output, masks, marks);
    (!forged && traced.text == expected).then_some(traced)
}

fn unmask(output: &str, masks: &Masks, marks: [char; 2]) -> Traced {
    let mut traced = Traced {
        text: String::with_capacity(output.len()),
        masked: String::with_capacity(output.len()),
        runs: Vec::new(),
        generated: Vec::new(),
    };
    let mut opened = Vec::new();
    for c in output.chars() {
        let at = traced.text.len();
        if c == marks[0] {
            opened.push(at);
            continue;
        }
        if c == marks[1] {
            traced.generated.extend(opened.pop().map(|start| start..at));
            continue;
        }
        traced.masked.push(c);
        let Some((origin, real)) = masks.meaning(c) else {
            traced.text.push(c);
            continue;
        };
        traced.text.push(real);
        let end = traced.text.len();
        match traced.runs.last_mut() {
            Some((run, last)) if *last == origin && run.end == at => run.end = end,
            _ => traced.runs.push((at..end, origin)),
        }
    }
    traced
}

#[derive(Clone, PartialEq)]
struct Content {
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
}

/// What may be formed by content of which role.
struct Rules {
    /// For what an assistant or the operator wrote: control tokens are forbidden, markers are not.
    trusted: Forbidden,
    /// For everything else: no added token may be formed.
    foreign: Forbidden,
}

impl Rules {
    fn new(template: &ChatTemplate, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        let solid = |text: &str| text.chars().any(|c| !c.is_whitespace());
        let tokens: Vec<(&str, bool)> = tokenizer
            .added_tokens()
            .filter(|(_, text, _)| solid(text))
            .map(|(_, text, is_control)| (text, is_control))
            .collect();
        let all: Vec<&str> = tokens.iter().map(|(text, _)| *text).collect();
        let control: Vec<&str> = tokens.iter().filter(|t| t.1).map(|t| t.0).collect();
        let markers = tokens.iter().filter(|t| !t.1).map(|t| t.0);
        let mut literals = string_literals(template.source());
        if literals.len() * all.len() > MAX_COMPARISONS {
            literals.clear();
        }
        let literals = || literals.iter().map(String::as_str);
        Ok(Self {
            trusted: Forbidden::new(&control, literals().chain(markers))?,
            foreign: Forbidden::new(&all, literals())?,
        })
    }

    fn check_role(&self, index: usize, message: &Value) -> Result<(), TemplateError> {
        let problem = |problem: String| Err(TemplateError::Message { index, problem });
        match message.get("role") {
            None => Ok(()),
            Some(Value::String(role)) if is_name(role) && !self.foreign.occurs_in(role) => Ok(()),
            Some(Value::String(role)) => {
                problem(format!("its role {:?} is no plain word", clip(role)))
            }
            Some(_) => problem("its role is no text".to_owned()),
        }
    }

    fn of_role(&self, role: &str) -> &Forbidden {
        match role {
            "assistant" | "system" | "developer" => &self.trusted,
            _ => &self.foreign,
        }
    }

    fn mask(
        &self,
        content: &Content,
        masks: &mut Masks,
        coverage: Coverage,
    ) -> Result<Content, TemplateError> {
        let messages = content.messages.iter().enumerate().map(|(index, message)| {
            let role = message
                .get("role")
                .and_then(Value::as_str)
                .unwrap_or_default();
            masks.mask_value(
                message,
                Origin::Message(index),
                self.of_role(role),
                coverage,
            )
        });
        let messages = messages.collect::<Result<_, _>>()?;
        let mask = |tool| masks.mask_value(tool, Origin::Tools, &self.foreign, coverage);
        let tools = content.tools.as_ref();
        Ok(Content {
            messages,
            tools: tools
                .map(|tools| tools.iter().map(mask).collect::<Result<_, _>>())
                .transpose()?,
        })
    }
}

/// The hull of what each origin contributed, in bytes.
pub(super) fn hulls(runs: &[(Range<usize>, Origin)]) -> HashMap<Origin, Range<usize>> {
    let mut hulls: HashMap<Origin, Range<usize>> = HashMap::new();
    for (run, origin) in runs {
        hulls
            .entry(*origin)
            .and_modify(|hull| hull.end = run.end)
            .or_insert_with(|| run.clone());
    }
    hulls
}

fn clip(text: &str) -> String {
    text.chars().take(40).collect()
}
