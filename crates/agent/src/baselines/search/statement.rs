//! What the repair search takes from the first messages: the command of the public tests, and
//! words.

use std::collections::BTreeSet;

use temper_core::{Message, Role};

/// The line in front of the command, as statements of Temper's own tasks end: those written by hand
/// and those that the factory makes.
pub(in crate::baselines) const LEADS: [&str; 2] =
    ["Run the public tests with:", "Run the tests with:"];

/// More words than this do not sharpen anything.
const MOST_WORDS: usize = 400;

/// What is taken from a task's statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::baselines) struct Statement {
    /// The command that runs the public tests; its first word is a Python interpreter.
    pub(in crate::baselines) test_command: Option<String>,
    /// The first name in backticks of its title.
    pub(in crate::baselines) subject: Option<String>,
    /// Words that may be names in the code.
    pub(in crate::baselines) words: BTreeSet<String>,
}

impl Statement {
    /// Reads the first user message. The command is the last one announced, since the statement
    /// of a task ends with it; a template's text around the statement may follow.
    pub(in crate::baselines) fn read(messages: &[Message]) -> Self {
        let first = messages.iter().find(|message| message.role == Role::User);
        let Some(Message { content, .. }) = first else {
            return Statement::default();
        };
        let last = LEADS
            .iter()
            .filter_map(|lead| content.rfind(lead).map(|at| at + lead.len()))
            .max();
        let test_command = last
            .and_then(|end| {
                content[end..]
                    .lines()
                    .map(str::trim)
                    .find(|line| !line.is_empty())
            })
            .filter(|line| is_plain_pytest(line))
            .map(str::to_owned);
        let statement = element(content, "pr_description")
            .or_else(|| element(content, "task"))
            .unwrap_or(content);
        let words = statement
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .filter(|word| (3..=60).contains(&word.len()))
            .filter(|word| !word.starts_with(|c: char| c.is_ascii_digit()))
            .map(str::to_owned)
            .take(MOST_WORDS)
            .collect();
        Statement {
            test_command,
            subject: subject(statement),
            words,
        }
    }

    /// What the command of the public tests passes to pytest.
    pub(in crate::baselines) fn pytest_arguments(&self) -> Option<&str> {
        let (_, rest) = self.test_command.as_deref()?.split_once(" -m pytest ")?;
        Some(rest.strip_prefix("-q ").unwrap_or(rest))
    }
}

/// The first name in backticks of the title.
fn subject(statement: &str) -> Option<String> {
    let title = statement.trim_start().lines().next()?;
    let named = title.split('`').nth(1)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    (!named.is_empty() && named.chars().all(plain)).then(|| named.to_owned())
}

/// The text of an element that a template puts around the statement.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>"))
        .map(|(inner, _)| inner)
}

/// Whether a line runs pytest and does nothing else: words without anything that a shell
/// interprets, or that stand in single quotes.
fn is_plain_pytest(line: &str) -> bool {
    let mut in_quotes = false;
    let mut plain = |c: char| {
        in_quotes ^= c == '\'';
        // A backtick would end the block that holds an agent's command.
        let is_quoted = in_quotes && (c == ' ' || c.is_ascii_graphic()) && c != '`';
        c.is_ascii_alphanumeric() || " -_./:=,+@'".contains(c) || is_quoted
    };
    let words: Vec<_> = line.split(' ').collect();
    line.len() < 4_000
        && line.chars().all(&mut plain)
        && !in_quotes
        && words.len() > 3
        && (words[0] == "python" || words[0] == "python3")
        && words[1..3] == ["-m", "pytest"]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Statement {
        Statement::read(&[
            Message::text(
                Role::System,
                "Run the public tests with:\n\n    python -m pytest no.py",
            ),
            Message::text(Role::User, text),
        ])
    }

    #[test]
    fn finds_the_command_and_the_words_of_the_statement() {
        let statement = read(
            "<pr_description>\n`partition_all` drops 10 items.\n\nRun the public tests with:\n\n    \
             python -m pytest -q a/test_a.py b.py\n</pr_description>\nedit the sources",
        );
        assert_eq!(
            statement.test_command.as_deref(),
            Some("python -m pytest -q a/test_a.py b.py")
        );
        let made = read(
            "# `a` fails\n\nTests that pass must go on passing. Run the tests with:\n\n    python -m pytest -q t.py\n",
        );
        assert_eq!(
            made.test_command.as_deref(),
            Some("python -m pytest -q t.py")
        );
        let quoted = "python -m pytest -q -o addopts= -m 'not (a; b)' 't b.py'";
        assert_eq!(
            read(&format!("Run the tests with:\n\n    {quoted}\n"))
                .test_command
                .as_deref(),
            Some(quoted)
        );
        assert!(statement.words.contains("partition_all"));
        assert!(!statement.words.contains("sources"));
    }

    #[test]
    fn takes_no_command_that_does_more() {
        for line in [
            "python -m pytest -q a.py; rm -rf /",
            "python -m pytest $(id)",
            "python -m pytest 'a.py' $(id) 'b.py'",
            "python -m pytest 'a.py'; 'b.py'",
            "python -m pytest a.py '`id`'",
            "python -m pytest a.py 'b.py",
            "python -m pytest",
            "make test",
            "python -c 1 pytest a.py",
            "",
        ] {
            let text = format!("Run the public tests with:\n\n    {line}\n");
            assert_eq!(read(&text).test_command, None, "{line}");
        }
        assert_eq!(read("no tests are named").test_command, None);
        assert_eq!(Statement::read(&[]), Statement::default());
    }
}
