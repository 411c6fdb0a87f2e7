//! What can be known so far: the statement and what commands have printed. Every lead of a
//! demonstration is taken from here, so that it never goes where its own text does not point.

use std::{collections::BTreeSet, sync::LazyLock};

use regex::Regex;
use temper_core::{Message, Role};

use crate::baselines::search::statement::LEADS;

/// A file and a line that some text names together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The line, counted from 1.
    pub line: usize,
    /// Whether it was a traceback that named it.
    pub traceback: bool,
}

/// Everything that has been shown.
#[derive(Clone, Debug, Default)]
pub struct Visible {
    /// The task's statement.
    pub statement: String,
    /// What commands printed, in order.
    pub outputs: Vec<String>,
}

impl Visible {
    /// Reads a conversation. Only the statement counts of the first message, not what a template
    /// says around it, and nothing counts that was said rather than observed.
    pub fn read(messages: &[Message]) -> Visible {
        let mut visible = Visible::default();
        let mut first = true;
        for message in messages {
            match message.role {
                Role::User if first => {
                    let text = &message.content;
                    visible.statement = element(text, "pr_description")
                        .or_else(|| element(text, "task"))
                        .unwrap_or(text)
                        .trim()
                        .to_owned();
                    first = false;
                }
                Role::User | Role::Tool => visible.outputs.push(output_of(&message.content)),
                _ => {}
            }
        }
        visible
    }

    /// What the last command printed.
    pub fn last(&self) -> &str {
        self.outputs.last().map_or("", String::as_str)
    }

    /// Every text in the order in which it was shown.
    pub fn texts(&self) -> impl DoubleEndedIterator<Item = &str> {
        std::iter::once(self.statement.as_str()).chain(self.outputs.iter().map(String::as_str))
    }

    /// Whether a name occurs as a word.
    pub fn names(&self, name: &str) -> bool {
        self.texts().any(|text| has_word(text, name))
    }

    /// Whether the statement itself holds the word.
    pub fn statement_names(&self, name: &str) -> bool {
        has_word(&self.statement, name)
    }

    /// Where any text names a line of `file`.
    pub fn hits(&self, file: &str) -> Vec<Hit> {
        let mut hits: Vec<Hit> = Vec::new();
        let mut add = |hit: Hit| {
            if !hits.iter().any(|known| known.line == hit.line) {
                hits.push(hit);
            }
        };
        for text in &self.outputs {
            for row in text.lines() {
                let mut rest = row;
                while let Some(at) = rest.find(file) {
                    let before = rest[..at].chars().next_back();
                    let after = &rest[at + file.len()..];
                    let begins = before.is_none_or(|c| !(c.is_alphanumeric() || "_-.".contains(c)));
                    let begins = begins || rest[..at].ends_with("./");
                    if begins {
                        if let Some(line) = after.strip_prefix(':').and_then(leading_number) {
                            let traceback = after.contains(": in ") || is_error_line(after);
                            add(Hit { line, traceback });
                        } else if let Some(line) =
                            after.strip_prefix("\", line ").and_then(leading_number)
                        {
                            let traceback = true;
                            add(Hit { line, traceback });
                        }
                    }
                    rest = after;
                }
            }
        }
        hits
    }

    /// Whether a file is named, by its path or as a module that the statement or code imports.
    pub fn names_file(&self, file: &str) -> bool {
        if self.texts().any(|text| text.contains(file)) {
            return true;
        }
        let modules = module_names(file);
        self.texts()
            .any(|text| modules.iter().any(|module| imports(text, module)))
    }

    /// The words of the statement that may be names in the code, those in code marks first.
    pub fn statement_words(&self) -> Vec<String> {
        static CODE: LazyLock<Regex> =
            LazyLock::new(|| Regex::new("`([^`\n]+)`|>>> (.*)").expect("a constant pattern"));
        let mut words = Vec::new();
        let mut seen = BTreeSet::new();
        let mut take = |text: &str| {
            for word in text.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
                let long = (3..=40).contains(&word.len());
                let starts = word.starts_with(|c: char| c.is_alphabetic() || c == '_');
                if long && starts && seen.insert(word.to_owned()) {
                    words.push(word.to_owned());
                }
            }
        };
        for found in CODE.captures_iter(&self.statement) {
            for part in found.iter().skip(1).flatten() {
                take(part.as_str());
            }
        }
        let end = LEADS
            .iter()
            .filter_map(|lead| self.statement.find(lead))
            .min();
        take(&self.statement[..end.unwrap_or(self.statement.len())]);
        words
    }

    /// Tests that pytest listed as failed, newest listing only: `FILE::NAME`.
    pub fn failed_tests(&self) -> Vec<&str> {
        self.outputs
            .iter()
            .rev()
            .map(|text| {
                text.lines()
                    .filter_map(|line| {
                        line.strip_prefix("FAILED ")
                            .or_else(|| line.strip_prefix("ERROR "))
                    })
                    .map(|line| line.split(" - ").next().unwrap_or(line).trim())
                    .collect::<Vec<_>>()
            })
            .find(|tests| !tests.is_empty())
            .unwrap_or_default()
    }
}

/// How a run of pytest ended, by its last line; `None` if the output does not say.
pub fn tests_passed(output: &str) -> Option<bool> {
    static COUNTS: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(?m)^[= ]*(?:\d+ [a-z]+, )*\d+ (?:passed|failed|errors?)\b.* in [0-9.]+")
            .expect("a constant pattern")
    });
    let last = COUNTS.find_iter(output).last()?.as_str();
    Some(last.contains("passed") && !last.contains("failed") && !last.contains("error"))
}

/// The line that says why a test failed, if one is shown: pytest's `E` lines.
pub fn reason(output: &str) -> Option<&str> {
    let reasons = output.lines().filter_map(|line| line.strip_prefix("E "));
    let mut reasons = reasons.map(str::trim).filter(|line| !line.is_empty());
    reasons.next()
}

/// What a command printed, without what the loop's template puts around it.
fn output_of(content: &str) -> String {
    let inner = element(content, "output").map(str::to_owned);
    inner.unwrap_or_else(|| {
        // A long output is shown as its head and its tail.
        let parts = [
            element(content, "output_head"),
            element(content, "output_tail"),
        ];
        match parts {
            [Some(head), Some(tail)] => format!("{head}\n{tail}"),
            _ => content.to_owned(),
        }
    })
}

/// The text of the outermost element of this name.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.rsplit_once(&format!("</{name}>"))
        .map(|(inner, _)| inner.trim_start_matches('\n'))
}

/// Whether `word` stands in `text` between characters that no name contains.
pub fn has_word(text: &str, word: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    let mut from = 0;
    while let Some(at) = text[from..].find(word).map(|at| at + from) {
        let end = at + word.len();
        let before = text[..at].chars().next_back().is_some_and(inside);
        let after = text[end..].chars().next().is_some_and(inside);
        if !before && !after {
            return true;
        }
        from = end;
    }
    false
}

fn leading_number(text: &str) -> Option<usize> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text[..end].parse().ok()
}

/// `:12: ValueError`, as pytest ends a traceback.
fn is_error_line(after: &str) -> bool {
    let rest = after.trim_start_matches([':', ' ']);
    let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    let rest = rest.strip_prefix(": ").unwrap_or_default().trim();
    (rest.ends_with("Error") || rest.ends_with("Exception")) && !rest.contains(' ')
}

/// The names under which code imports a file: `a.b.c` for `src/a/b/c.py`.
fn module_names(file: &str) -> Vec<String> {
    let Some(path) = file.strip_suffix(".py") else {
        return Vec::new();
    };
    let path = path.strip_suffix("/__init__").unwrap_or(path);
    let path = path.strip_prefix("src/").unwrap_or(path);
    vec![path.replace('/', ".")]
}

fn imports(text: &str, module: &str) -> bool {
    let from = format!("from {module} import");
    let import = format!("import {module}");
    let long = module.split_once('.').is_some() && has_word(text, module);
    long || text.lines().any(|line| {
        let line = line.trim_start().trim_start_matches(">>> ");
        line.starts_with(&from) || line == import || line.starts_with(&format!("{import} "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visible(statement: &str, outputs: &[&str]) -> Visible {
        Visible {
            statement: statement.into(),
            outputs: outputs.iter().map(|text| (*text).to_owned()).collect(),
        }
    }

    #[test]
    fn only_what_was_shown_is_visible() {
        let messages = [
            Message::text(Role::System, "secret_system"),
            Message::text(Role::User, "<task>\nfix `f`\n</task>\nuse secret_template"),
            Message::text(Role::Assistant, "secret_thought"),
            Message::text(
                Role::User,
                "<returncode>0</returncode>\n<output>\na.py:3:x = 1\n</output>",
            ),
        ];
        let visible = Visible::read(&messages);
        for hidden in [
            "secret_system",
            "secret_template",
            "secret_thought",
            "returncode",
        ] {
            assert!(!visible.names(hidden), "{hidden}");
        }
        assert!(visible.names("f") && visible.names_file("a.py"));
        assert_eq!(visible.hits("a.py")[0].line, 3);
    }

    #[test]
    fn lines_are_found_in_searches_and_tracebacks() {
        let visible = visible(
            "",
            &[
                "./src/a.py:7:def f\nxsrc/a.py:8:\nsrc/a.py:9: in g\nsrc/a.py:10: ValueError\n  File \"/testbed/src/a.py\", line 11, in f\nsrc/a.pyc:12:",
            ],
        );
        let hits: Vec<_> = visible
            .hits("src/a.py")
            .iter()
            .map(|hit| (hit.line, hit.traceback))
            .collect();
        assert_eq!(hits, [(7, false), (9, true), (10, true), (11, true)]);
    }

    #[test]
    fn modules_are_files() {
        let shown = visible(">>> from boltons.setutils import IndexedSet", &[]);
        assert!(shown.names_file("boltons/setutils.py"));
        assert!(!shown.names_file("boltons/listutils.py"));
        let plain = visible(">>> import click\n", &[]);
        assert!(plain.names_file("src/click/__init__.py"));
        assert!(!plain.names_file("src/click/types.py"));
    }

    #[test]
    fn the_end_of_a_test_run_is_read_from_its_counts() {
        for (output, passed) in [
            ("....\n4 passed in 0.02s\n", Some(true)),
            ("FAILED a\n1 failed, 3 passed in 0.10s", Some(false)),
            ("==== 3 passed, 1 warning in 0.10s ====", Some(true)),
            ("1 skipped, 2 passed in 1.00s", Some(true)),
            ("3 passed, 1 error in 0.1s", Some(false)),
            ("no tests ran in 0.01s", None),
            ("error: 4 passed the border", None),
        ] {
            assert_eq!(tests_passed(output), passed, "{output}");
        }
    }

    #[test]
    fn words_in_code_come_first() {
        let visible = visible("The result of `f_x(1)` is wrong\n>>> call_me()\n", &[]);
        assert_eq!(
            visible.statement_words(),
            ["f_x", "call_me", "The", "result", "wrong"]
        );
    }
}
