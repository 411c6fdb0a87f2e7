//! Choosing tasks of a suite: by id, split and source group.

use regex::Regex;
use temper_core::{SourceGroup, Split, Task};

/// A pattern of ids: a glob for the whole id (`*` any text, `?` any character), or a regular
/// expression for a part of it between slashes (`/^toolz-/`).
#[derive(Clone, Debug)]
pub struct IdPattern(Regex);

/// The regular expression between the slashes is not one, or too large.
#[derive(Debug, thiserror::Error)]
#[error("read the pattern of ids {pattern:?}: {reason}")]
pub struct InvalidPattern {
    pattern: String,
    reason: String,
}

impl std::str::FromStr for IdPattern {
    type Err = InvalidPattern;
    fn from_str(pattern: &str) -> Result<Self, InvalidPattern> {
        let expression = match pattern
            .strip_prefix('/')
            .and_then(|rest| rest.strip_suffix('/'))
        {
            Some(expression) => expression.to_owned(),
            None => {
                let mut expression = "(?s)^".to_owned();
                for character in pattern.chars() {
                    match character {
                        '*' => expression.push_str(".*"),
                        '?' => expression.push('.'),
                        other => expression.push_str(&regex::escape(&other.to_string())),
                    }
                }
                expression.push('$');
                expression
            }
        };
        Regex::new(&expression)
            .map(IdPattern)
            .map_err(|error| InvalidPattern {
                pattern: pattern.to_owned(),
                reason: error.to_string(),
            })
    }
}

impl IdPattern {
    /// Whether an id fits.
    pub fn matches(&self, id: &str) -> bool {
        self.0.is_match(id)
    }
}

/// What is chosen. An empty list of a kind leaves that kind open.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Any of these.
    pub ids: Vec<IdPattern>,
    /// Any of these.
    pub splits: Vec<Split>,
    /// Any of these.
    pub source_groups: Vec<SourceGroup>,
}

impl Selection {
    /// Whether a task is chosen.
    pub fn contains(&self, task: &Task) -> bool {
        (self.ids.is_empty() || self.ids.iter().any(|id| id.matches(task.id.as_str())))
            && (self.splits.is_empty() || self.splits.contains(&task.split))
            && (self.source_groups.is_empty() || self.source_groups.contains(&task.source_group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_choose_ids() {
        for (pattern, id, expected) in [
            ("*", "anything", true),
            ("toolz-*", "toolz-1.0-x", true),
            ("toolz-*", "atoolz-1", false),
            ("toolz-1.0*", "toolz-1x0", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("(", "(", true),
            ("", "a", false),
            ("/lz-/", "toolz-1.0-x", true),
            ("/^lz/", "toolz", false),
            ("/", "/", true),
        ] {
            let parsed: IdPattern = pattern.parse().unwrap();
            assert_eq!(parsed.matches(id), expected, "{pattern} {id}");
        }
        assert!("/(/".parse::<IdPattern>().is_err());
        assert!("/a{1000000}/".parse::<IdPattern>().is_err());
    }
}
