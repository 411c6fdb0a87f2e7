//! Added tokens: where their text stands in a text, and which of them may be matched there.

use std::collections::HashMap;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::normalizer::Range;
use tokenizers::{AddedToken, NormalizedString, PreTokenizedString, Token};

use super::TokenizerError;

/// What the text of an added token means in a text to encode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// The token itself, as in a rendered template.
    Parse,
    /// The token itself where it is a mere marker (not flagged special, as `<tool_call>` of Qwen);
    /// ordinary text where it is a control token. For what an assistant wrote.
    Markers,
    /// Ordinary text, always. For what came from outside.
    Literal,
}

/// The added tokens of a vocabulary.
#[derive(Debug)]
pub(crate) struct AddedTokens {
    tokens: Vec<(u32, AddedToken)>,
    by_id: HashMap<u32, usize>,
    by_text: HashMap<String, usize>,
    parse: Matcher,
    markers: Matcher,
    literal: Matcher,
}

/// Two sets of patterns: those that are looked for before normalization and those after.
#[derive(Debug)]
struct Matcher {
    raw: Option<(AhoCorasick, Vec<usize>)>,
    normalized: Option<(AhoCorasick, Vec<usize>)>,
}

impl AddedTokens {
    /// `normalized` gives each token's text as the normalizer leaves it.
    pub(crate) fn new(
        mut tokens: Vec<(u32, AddedToken)>,
        normalized: impl Fn(&str) -> Result<String, TokenizerError>,
    ) -> Result<Self, TokenizerError> {
        tokens.sort_by_key(|(id, _)| *id);
        let patterns = tokens
            .iter()
            .map(|(_, token)| match token.normalized {
                true => normalized(&token.content),
                false => Ok(token.content.clone()),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let matcher = |keep: &dyn Fn(&AddedToken) -> bool| Matcher::new(&tokens, &patterns, keep);
        Ok(Self {
            by_id: tokens.iter().enumerate().map(|(i, t)| (t.0, i)).collect(),
            by_text: tokens
                .iter()
                .enumerate()
                .map(|(i, t)| (t.1.content.clone(), i))
                .collect(),
            parse: matcher(&|_| true)?,
            markers: matcher(&|token| !token.special || is_blank(token))?,
            literal: matcher(&is_blank)?,
            tokens,
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &str, bool)> {
        self.tokens
            .iter()
            .map(|(id, token)| (*id, token.content.as_str(), token.special))
    }

    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        self.by_text.get(text).map(|index| self.tokens[*index].0)
    }

    pub(crate) fn text(&self, id: u32) -> Option<&str> {
        self.by_id
            .get(&id)
            .map(|index| self.tokens[*index].1.content.as_str())
    }

    pub(crate) fn is_control(&self, id: u32) -> bool {
        self.by_id
            .get(&id)
            .is_some_and(|index| self.tokens[*index].1.special)
    }

    /// Whether ordinary text must never be encoded as this token.
    pub(crate) fn is_reserved(&self, id: u32) -> bool {
        self.by_id
            .get(&id)
            .is_some_and(|index| !is_blank(&self.tokens[*index].1))
    }

    /// Cuts the added tokens out of `pieces`, whose text is `masked` but for replaced characters.
    ///
    /// Returns the ids that were cut out, in order.
    pub(crate) fn split(
        &self,
        pieces: &mut PreTokenizedString,
        masked: &str,
        specials: Specials,
        normalize: impl Fn(&mut NormalizedString) -> tokenizers::Result<()>,
    ) -> tokenizers::Result<Vec<u32>> {
        let matcher = match specials {
            Specials::Parse => &self.parse,
            Specials::Markers => &self.markers,
            Specials::Literal => &self.literal,
        };
        let mut found: Vec<(usize, u32)> = Vec::new();
        let raw = self.find(&matcher.raw, masked);
        let mut rest = raw
            .iter()
            .filter(|(id, _)| id.is_none())
            .map(|(_, (start, end))| &masked[*start..*end]);
        pieces.split(|_, text| {
            let spans = transfer(&raw, masked, text.get());
            note(&mut found, &spans, |start| start);
            Ok(cut(&text, &spans))
        })?;
        pieces.split(|_, mut text| {
            let origin = text.offsets_original().0;
            normalize(&mut text)?;
            let mut spans = vec![(None, (0, text.get().len()))];
            if let (Some(covered), true) = (rest.next(), matcher.normalized.is_some()) {
                let mut covered = NormalizedString::from(covered);
                normalize(&mut covered)?;
                // A normalizer that treats a mask otherwise than the character behind it (as a
                // composition with the next one) leaves nothing to compare; the piece stays text.
                if covered.get().chars().count() == text.get().chars().count() {
                    let wanted = self.find(&matcher.normalized, covered.get());
                    spans = transfer(&wanted, covered.get(), text.get());
                }
            }
            note(&mut found, &spans, |start| {
                let range = text.convert_offsets(Range::Normalized(start..text.get().len()));
                origin + range.map_or(0, |range| range.start)
            });
            Ok(cut(&text, &spans))
        })?;
        found.sort_by_key(|(at, _)| *at);
        Ok(found.into_iter().map(|(_, id)| id).collect())
    }

    /// The parts of `text`, in order and without gaps, with the token where one was matched.
    fn find(
        &self,
        patterns: &Option<(AhoCorasick, Vec<usize>)>,
        text: &str,
    ) -> Vec<(Option<u32>, (usize, usize))> {
        let Some((automaton, indices)) = patterns else {
            return vec![(None, (0, text.len()))];
        };
        let mut spans = Vec::new();
        let mut done = 0;
        for found in automaton.find_iter(text) {
            let (id, token) = &self.tokens[indices[found.pattern().as_usize()]];
            let (mut start, mut end) = (found.start(), found.end());
            if start < done {
                continue;
            }
            if token.single_word {
                let before = text[..start].chars().next_back().is_some_and(is_word);
                let after = text[end..].chars().next().is_some_and(is_word);
                if before || after {
                    continue;
                }
            }
            if token.lstrip {
                start = text[..start].trim_end().len().max(done);
            }
            if token.rstrip {
                end = text.len() - text[end..].trim_start().len();
            }
            if done < start {
                spans.push((None, (done, start)));
            }
            spans.push((Some(*id), (start, end)));
            done = end;
        }
        if done < text.len() {
            spans.push((None, (done, text.len())));
        }
        spans
    }
}

impl Matcher {
    fn new(
        tokens: &[(u32, AddedToken)],
        patterns: &[String],
        keep: &dyn Fn(&AddedToken) -> bool,
    ) -> Result<Self, TokenizerError> {
        let build = |normalized: bool| {
            let indices: Vec<usize> = (0..tokens.len())
                .filter(|&i| tokens[i].1.normalized == normalized)
                .filter(|&i| !patterns[i].is_empty() && keep(&tokens[i].1))
                .collect();
            if indices.is_empty() {
                return Ok(None);
            }
            AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .build(indices.iter().map(|&i| &patterns[i]))
                .map(|automaton| Some((automaton, indices)))
                .map_err(|error| TokenizerError::Invalid(format!("added tokens: {error}")))
        };
        Ok(Self {
            raw: build(false)?,
            normalized: build(true)?,
        })
    }
}

/// Runs of whitespace are added by some vocabularies for compression; they control nothing.
fn is_blank(token: &AddedToken) -> bool {
    token.content.chars().all(char::is_whitespace)
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

type Span = (Option<u32>, (usize, usize));

fn note(found: &mut Vec<(usize, u32)>, spans: &[Span], at: impl Fn(usize) -> usize) {
    for (id, (start, _)) in spans {
        if let Some(id) = id {
            found.push((at(*start), *id));
        }
    }
}

/// Carries byte positions in `from` over to `to`, which has as many characters.
fn transfer(spans: &[Span], from: &str, to: &str) -> Vec<Span> {
    if std::ptr::eq(from, to) || from == to {
        return spans.to_vec();
    }
    let mut ends = Vec::with_capacity(spans.len());
    let mut wanted = spans.iter().map(|(_, (_, end))| *end).peekable();
    let (mut at_from, mut at_to) = (0, 0);
    for (a, b) in from.chars().zip(to.chars()) {
        at_from += a.len_utf8();
        at_to += b.len_utf8();
        if wanted.peek() == Some(&at_from) {
            ends.push(at_to);
            wanted.next();
        }
    }
    let mut start = 0;
    spans
        .iter()
        .zip(ends)
        .map(|((id, _), end)| (*id, (std::mem::replace(&mut start, end), end)))
        .collect()
}

fn cut(text: &NormalizedString, spans: &[Span]) -> Vec<(NormalizedString, Option<Vec<Token>>)> {
    spans
        .iter()
        .filter_map(|(id, (start, end))| {
            let part = text.slice(Range::Normalized(*start..*end))?;
            let tokens = id.map(|id| {
                let value = part.get().to_owned();
                let len = value.len();
                vec![Token::new(id, value, (0, len))]
            });
            Some((part, tokens))
        })
        .collect()
}
