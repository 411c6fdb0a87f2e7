//! Masks: characters that stand for characters of content while a template runs.
//!
//! Each pair of a message and a character gets a private-use character that occurs nowhere in the
//! conversation or the template. A template passes masks through as it passes the characters, so the
//! output shows what came from which message, and no token is matched where a mask stands. Whitespace
//! and JSON's special characters stay as they are, because templates trim and escape them, and so do
//! the template's own string constants where they occur in content, because it looks for them.

use std::collections::{HashMap, HashSet};

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::{Map, Value};

use super::TemplateError;

/// Fields whose strings are content even where they look like names.
const CONTENT_KEYS: [&str; 8] = [
    "content",
    "text",
    "reasoning_content",
    "reasoning",
    "thinking",
    "arguments",
    "output",
    "input",
];

/// Where content comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Origin {
    Message(usize),
    Tools,
}

/// How much of content is masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coverage {
    /// Every character but those that templates act on.
    Full,
    /// The characters with which control tokens begin and end: enough that none can be formed.
    Edges,
    /// The first character of each occurrence of a control token, in what the template then sees as
    /// content. Not a coverage to encode with, but to compare with.
    Occurrences,
}

/// What must not be formed by content.
pub(super) struct Forbidden {
    /// First and last characters of the texts.
    edges: HashSet<char>,
    /// Matches the texts.
    occurrences: Option<AhoCorasick>,
    /// Matches the template's constants, and markers that are allowed, that cannot be part of a
    /// forbidden text.
    kept: Option<AhoCorasick>,
}

impl Forbidden {
    /// `texts` are forbidden, `kept` stay unmasked where that is safe.
    pub(super) fn new<'a>(
        texts: &[&str],
        kept: impl Iterator<Item = &'a str>,
    ) -> Result<Self, TemplateError> {
        let edges = texts
            .iter()
            .flat_map(|text| {
                let mut solid = text.chars().filter(|c| !c.is_whitespace());
                let first = solid.next();
                [first, solid.next_back().or(first)]
            })
            .flatten()
            .collect();
        let kept: Vec<&str> = kept
            .filter(|kept| texts.iter().all(|text| !can_overlap(kept, text)))
            .collect();
        Ok(Self {
            edges,
            occurrences: automaton(texts)?,
            kept: automaton(&kept)?,
        })
    }

    /// Whether a text holds a forbidden one.
    pub(super) fn occurs_in(&self, text: &str) -> bool {
        self.occurrences
            .as_ref()
            .is_some_and(|automaton| automaton.is_match(text))
    }
}

fn automaton(texts: &[&str]) -> Result<Option<AhoCorasick>, TemplateError> {
    let texts: Vec<&str> = texts
        .iter()
        .copied()
        .filter(|text| !text.is_empty())
        .collect();
    if texts.is_empty() {
        return Ok(None);
    }
    AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(texts)
        .map(Some)
        .map_err(|error| TemplateError::Unsegmentable(error.to_string()))
}

/// Whether some text has both `kept` and `text` as parts that share a character.
fn can_overlap(kept: &str, text: &str) -> bool {
    if kept.contains(text) || text.contains(kept) {
        return true;
    }
    let shares = |a: &str, b: &str| {
        a.char_indices()
            .skip(1)
            .any(|(at, _)| b.starts_with(&a[at..]))
    };
    shares(kept, text) || shares(text, kept)
}

/// Gives out masks and knows what they stand for.
pub(super) struct Masks {
    taken: HashSet<char>,
    next: u32,
    by_character: HashMap<(Origin, char), char>,
    meaning: HashMap<char, (Origin, char)>,
}

impl Masks {
    /// Masks that occur in none of the values and not in the template.
    pub(super) fn new<'a>(source: &str, values: impl Iterator<Item = &'a Value>) -> Self {
        let mut taken: HashSet<char> = source.chars().filter(|c| is_private(*c)).collect();
        for value in values {
            collect_private(value, &mut taken);
        }
        Self {
            taken,
            next: 0xF_0000,
            by_character: HashMap::new(),
            meaning: HashMap::new(),
        }
    }

    /// What a character of the output stands for, if it is a mask.
    pub(super) fn meaning(&self, mask: char) -> Option<(Origin, char)> {
        self.meaning.get(&mask).copied()
    }

    /// A private-use character that means nothing else.
    pub(super) fn fresh(&mut self) -> Result<char, TemplateError> {
        while self.next < 0x11_0000 {
            let candidate = char::from_u32(self.next);
            self.next += 1;
            match candidate {
                Some(c) if is_private(c) && !self.taken.contains(&c) => return Ok(c),
                _ => {}
            }
        }
        Err(TemplateError::Unsegmentable(
            "the conversation has too many different characters".to_owned(),
        ))
    }

    fn mask(&mut self, origin: Origin, character: char) -> Result<char, TemplateError> {
        if let Some(mask) = self.by_character.get(&(origin, character)) {
            return Ok(*mask);
        }
        let mask = self.fresh()?;
        self.by_character.insert((origin, character), mask);
        self.meaning.insert(mask, (origin, character));
        Ok(mask)
    }

    /// Masks the strings of a message or a tool.
    pub(super) fn mask_value(
        &mut self,
        value: &Value,
        origin: Origin,
        forbidden: &Forbidden,
        coverage: Coverage,
    ) -> Result<Value, TemplateError> {
        self.walk(
            value,
            None,
            &Scope {
                origin,
                forbidden,
                coverage,
            },
        )
    }

    fn walk(
        &mut self,
        value: &Value,
        key: Option<&str>,
        scope: &Scope,
    ) -> Result<Value, TemplateError> {
        Ok(match value {
            Value::String(text) => {
                let is_content = key.is_some_and(|key| CONTENT_KEYS.contains(&key));
                match !is_content && is_name(text) && !scope.forbidden.occurs_in(text) {
                    true => value.clone(),
                    false => Value::String(self.mask_text(text, scope)?),
                }
            }
            Value::Array(list) => Value::Array(
                list.iter()
                    .map(|item| self.walk(item, key, scope))
                    .collect::<Result<_, _>>()?,
            ),
            Value::Object(map) => {
                let mut masked = Map::with_capacity(map.len());
                for (key, value) in map {
                    let name = match is_name(key) && !scope.forbidden.occurs_in(key) {
                        true => key.clone(),
                        false => self.mask_text(key, scope)?,
                    };
                    // A role names a kind of message; it was checked to be a plain word.
                    let value = match key == "role" {
                        true => value.clone(),
                        false => self.walk(value, Some(key), scope)?,
                    };
                    masked.insert(name, value);
                }
                Value::Object(masked)
            }
            _ => value.clone(),
        })
    }

    fn mask_text(&mut self, text: &str, scope: &Scope) -> Result<String, TemplateError> {
        let mut out = String::with_capacity(2 * text.len());
        let kept = match scope.coverage {
            Coverage::Occurrences => &scope.forbidden.occurrences,
            _ => &scope.forbidden.kept,
        };
        let mut done = 0;
        for found in kept.iter().flat_map(|kept| kept.find_iter(text)) {
            for c in text[done..found.start()].chars() {
                let mask = self.cover(c, scope)?;
                out.push(mask);
            }
            let mut part = text[found.range()].chars();
            if scope.coverage == Coverage::Occurrences {
                for c in part.by_ref() {
                    // A mask in place of whitespace would hide it from a template that trims.
                    let solid = !c.is_whitespace();
                    out.push(if solid {
                        self.mask(scope.origin, c)?
                    } else {
                        c
                    });
                    if solid {
                        break;
                    }
                }
            }
            out.push_str(part.as_str());
            done = found.end();
        }
        for c in text[done..].chars() {
            let mask = self.cover(c, scope)?;
            out.push(mask);
        }
        Ok(out)
    }

    fn cover(&mut self, c: char, scope: &Scope) -> Result<char, TemplateError> {
        let is_covered = match scope.coverage {
            Coverage::Occurrences => false,
            _ if scope.forbidden.edges.contains(&c) => true,
            Coverage::Edges => false,
            Coverage::Full => !(c.is_whitespace() || c.is_control() || c == '"' || c == '\\'),
        };
        match is_covered && !self.meaning.contains_key(&c) {
            true => self.mask(scope.origin, c),
            false => Ok(c),
        }
    }
}

struct Scope<'a> {
    origin: Origin,
    forbidden: &'a Forbidden,
    coverage: Coverage,
}

/// Whether a string names something: a kind, a function, an id. Such strings steer templates.
pub(super) fn is_name(text: &str) -> bool {
    text.len() <= 128
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'$'))
}

fn is_private(c: char) -> bool {
    matches!(c, '\u{F0000}'..='\u{FFFFD}' | '\u{100000}'..='\u{10FFFD}')
}

fn collect_private(value: &Value, taken: &mut HashSet<char>) {
    match value {
        Value::String(text) => taken.extend(text.chars().filter(|c| is_private(*c))),
        Value::Array(list) => list.iter().for_each(|value| collect_private(value, taken)),
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            taken.extend(key.chars().filter(|c| is_private(*c)));
            collect_private(value, taken);
        }),
        _ => {}
    }
}
