//! Where messages and an assistant's turns stand in a rendered conversation.
//!
//! A turn of the assistant begins behind its header: what the template writes for a generation
//! prompt. Headers are matched in the masked text, so that content cannot forge one that holds a
//! control token. A turn ends with the first end token behind its content.

use std::ops::Range;

use serde_json::{Value, json};

use super::mask::Origin;
use super::segment::{MessageSpan, Traced, hulls};
use super::{ChatTemplate, Conversation};
use crate::tokenizer::Piece;

/// What opens a block of thinking in templates that put one in.
const THINKING: [(&str, &str); 2] = [("<think>", "</think>"), ("<thinking>", "</thinking>")];
/// Templates without a header cost a rendering for each turn of the assistant; not for more.
const MAX_PREFIX_RENDERINGS: usize = 64;

/// What the places are found from.
pub(super) struct Layout<'a> {
    pub(super) traced: &'a Traced,
    pub(super) pieces: &'a [Piece],
    pub(super) header: Header,
    pub(super) ends: &'a [u32],
    pub(super) conversation: &'a Conversation<'a>,
}

/// How the template opens a turn of the assistant.
pub(super) struct Header {
    /// Empty if it writes nothing.
    text: String,
    /// The lengths of the renderings up to each assistant's message, for templates without a header.
    prompts: Vec<Option<usize>>,
}

/// Learns a template's header from a small conversation.
pub(super) fn header(template: &ChatTemplate, conversation: &Conversation) -> Header {
    let messages = [json!({"role": "user", "content": "x"})];
    let small = Conversation {
        messages: &messages,
        tools: None,
        add_generation_prompt: false,
        ..*conversation
    };
    let without = template.render(&small).unwrap_or_default();
    let with = template
        .render(&Conversation {
            add_generation_prompt: true,
            ..small
        })
        .unwrap_or_default();
    let mut text = with.strip_prefix(&without).unwrap_or_default();
    for (open, _) in THINKING {
        text = text.split(open).next().unwrap_or_default();
    }
    let mut prompts = Vec::new();
    let n_assistants = assistants(conversation).count();
    if text.is_empty() && n_assistants <= MAX_PREFIX_RENDERINGS {
        prompts = assistants(conversation)
            .map(|index| {
                let before = Conversation {
                    messages: &conversation.messages[..index],
                    add_generation_prompt: true,
                    ..*conversation
                };
                template.render(&before).ok().map(|text| text.len())
            })
            .collect();
    }
    Header {
        text: text.to_owned(),
        prompts,
    }
}

/// The place of each message, and which tokens an assistant sampled.
pub(super) fn locate(layout: &Layout) -> (Vec<MessageSpan>, Vec<bool>) {
    let hulls = hulls(&layout.traced.runs);
    let n_messages = layout.conversation.messages.len();
    let mut spans = vec![MessageSpan::default(); n_messages];
    for (index, span) in spans.iter_mut().enumerate() {
        let hull = hulls.get(&Origin::Message(index));
        span.content = hull.and_then(|hull| overlapping(layout.pieces, hull));
    }
    let headers = headers(layout, &hulls.values().cloned().collect::<Vec<_>>());
    let turns: Vec<usize> = assistants(layout.conversation).collect();
    let n_prompts = usize::from(layout.conversation.add_generation_prompt);
    let in_order = headers.len() == turns.len() + n_prompts;
    for (nth, index) in turns.iter().enumerate() {
        let hull = hulls.get(&Origin::Message(*index));
        let start = if in_order {
            Some(headers[nth].end)
        } else {
            hull.map(|hull| start_of_turn(layout, &headers, nth, hull))
        };
        let Some(start) = start else { continue };
        let start = hull.map_or(start, |hull| start.min(hull.start));
        let from = hull.map_or(start, |hull| hull.end);
        // Nothing of another message and no further header can belong to the turn.
        let others = layout
            .traced
            .runs
            .iter()
            .filter(|(_, o)| *o != Origin::Message(*index));
        let limit = others
            .map(|(run, _)| run.start)
            .chain(headers.iter().map(|header| header.start))
            .filter(|at| *at >= from && *at > start)
            .min()
            .unwrap_or(layout.traced.text.len());
        let end = layout
            .pieces
            .iter()
            .find(|piece| {
                piece.added && piece.range.start >= from && layout.ends.contains(&piece.id)
            })
            .filter(|piece| piece.range.end <= limit)
            .map_or(from, |piece| piece.range.end);
        let message = &layout.conversation.messages[*index];
        let start = behind_inserted_thinking(layout, message, start, hull);
        spans[*index].sampled = inside(layout.pieces, &(start..end));
    }
    let mut mask = vec![false; layout.pieces.len()];
    if layout.traced.generated.is_empty() {
        for sampled in spans.iter().filter_map(|span| span.sampled.clone()) {
            mask[sampled].fill(true);
        }
    } else {
        let blocks = layout.traced.generated.iter();
        for tokens in blocks.filter_map(|block| overlapping(layout.pieces, block)) {
            mask[tokens].fill(true);
        }
    }
    (spans, mask)
}

fn assistants(conversation: &Conversation) -> impl Iterator<Item = usize> {
    conversation
        .messages
        .iter()
        .enumerate()
        .filter(|(_, message)| message["role"] == "assistant")
        .map(|(index, _)| index)
}

/// Where the header stands outside of content.
fn headers(layout: &Layout, hulls: &[Range<usize>]) -> Vec<Range<usize>> {
    let header = layout.header.text.as_str();
    if header.is_empty() {
        return Vec::new();
    }
    let mut covered = vec![false; layout.traced.text.len() + 1];
    for (run, _) in &layout.traced.runs {
        covered[run.clone()].fill(true);
    }
    let text = &layout.traced.text;
    text.match_indices(header)
        .map(|(at, _)| at..at + header.len())
        .filter(|range| !covered[range.clone()].contains(&true))
        .filter(|range| {
            !hulls
                .iter()
                .any(|hull| hull.start < range.start && range.end < hull.end)
                || layout
                    .pieces
                    .iter()
                    .any(|piece| piece.added && piece.range.start == range.start)
        })
        .collect()
}

/// The start of a turn whose header is not one of as many as there are turns.
fn start_of_turn(
    layout: &Layout,
    headers: &[Range<usize>],
    nth: usize,
    hull: &Range<usize>,
) -> usize {
    let before = layout
        .traced
        .runs
        .iter()
        .map(|(run, _)| run.end)
        .filter(|end| *end <= hull.start)
        .max()
        .unwrap_or(0);
    let header = headers.iter().map(|header| header.end);
    let prompt = layout.header.prompts.get(nth).copied().flatten();
    header
        .filter(|end| (before..=hull.start).contains(end))
        .max()
        .or(prompt.filter(|end| (before..=hull.start).contains(end)))
        .unwrap_or(hull.start)
}

/// Moves `start` behind an empty block of thinking, unless the message has one of its own.
fn behind_inserted_thinking(
    layout: &Layout,
    message: &Value,
    start: usize,
    hull: Option<&Range<usize>>,
) -> usize {
    let text = &layout.traced.text;
    let end = hull.map_or(text.len(), |hull| hull.start);
    let Some(gap) = text.get(start..end) else {
        return start;
    };
    for (open, close) in THINKING {
        let own = message["content"]
            .as_str()
            .is_some_and(|text| text.contains(open));
        let block = gap.trim_start().strip_prefix(open);
        let rest = block.and_then(|block| block.trim_start().strip_prefix(close));
        if let (false, Some(rest)) = (own, rest) {
            return end - rest.trim_start().len();
        }
    }
    start
}

/// The tokens that share a byte with a range.
fn overlapping(pieces: &[Piece], range: &Range<usize>) -> Option<Range<usize>> {
    let hit = |piece: &Piece| piece.range.start < range.end && piece.range.end > range.start;
    let first = pieces.iter().position(hit)?;
    let last = pieces.iter().rposition(hit)?;
    Some(first..last + 1)
}

/// The tokens that lie in a range.
fn inside(pieces: &[Piece], range: &Range<usize>) -> Option<Range<usize>> {
    let hit = |piece: &Piece| piece.range.start >= range.start && piece.range.end <= range.end;
    let first = pieces.iter().position(hit)?;
    let last = pieces.iter().rposition(hit)?;
    Some(first..last + 1)
}
