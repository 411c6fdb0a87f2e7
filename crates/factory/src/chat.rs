//! A language model as the factory sees it: a prompt in, a text out. Which model it is, and how it
//! is reached, is up to the caller; nothing here knows a network.

/// What a model is asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prompt {
    /// The part that does not differ between questions of one kind.
    pub system: String,
    /// The question.
    pub user: String,
}

/// A model did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ask the model: {0}")]
pub struct ChatError(pub String);

/// Answers prompts. An answer is untrusted text.
pub trait ChatModel {
    /// The answer to one prompt.
    fn answer(&mut self, prompt: &Prompt) -> Result<String, ChatError>;
}

impl<F: FnMut(&Prompt) -> Result<String, ChatError>> ChatModel for F {
    fn answer(&mut self, prompt: &Prompt) -> Result<String, ChatError> {
        self(prompt)
    }
}

/// The content of the only fenced block of an answer; `None` when there is none, more than one, or
/// one that does not end. The fence may name a language.
pub(crate) fn only_block(answer: &str) -> Option<&str> {
    let mut found = None;
    let mut open: Option<(usize, usize)> = None;
    let mut at = 0;
    for line in answer.split_inclusive('\n') {
        let start = at;
        at += line.len();
        let text = line.trim_end();
        let n_ticks = text.bytes().take_while(|byte| *byte == b'`').count();
        match open {
            None if n_ticks >= 3 && !text[n_ticks..].contains('`') => open = Some((n_ticks, at)),
            // A fence ends at one of at least its own length, so code may hold shorter ones.
            Some((length, from)) if n_ticks >= length && n_ticks == text.len() => {
                if found.is_some() {
                    return None;
                }
                found = Some(&answer[from..start]);
                open = None;
            }
            _ => {}
        }
    }
    if open.is_some() { None } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_block_is_taken() {
        for (answer, expected) in [
            ("```python\nx = 1\n```\n", Some("x = 1\n")),
            ("words\n```\na\n\nb\n```\nmore", Some("a\n\nb\n")),
            ("````\n```\ninner\n```\n````", Some("```\ninner\n```\n")),
            ("no block", None),
            ("```\none\n```\n```\ntwo\n```\n", None),
            ("```python\nnever ends\n", None),
            ("```\n```\n", Some("")),
            ("``` `x` ```\n", None),
            ("", None),
        ] {
            assert_eq!(only_block(answer), expected, "{answer:?}");
        }
    }
}
