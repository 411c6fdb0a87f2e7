//! What an agent is told: the symptom, as a user of the library would report it.
//!
//! A statement comes from one of several sources, one file each. Whatever the source, it is checked
//! for what it must not say ([`find_leaks`]); one that leaks is passed over and the next source is
//! asked. No source is shown the fix or a hidden test, so a leak is an accident (a commit message
//! that quotes its own code, a traceback through the changed lines).

mod command;
mod commit_message;
mod leak;
mod model;
mod subject;
mod template;
mod test_output;
mod tokens;

use serde::{Deserialize, Serialize};
use temper_core::{Patch, Place, TestId};

pub use command::test_arguments;
pub(crate) use leak::added_lines;
pub use leak::{Leak, Secrets, find_leaks};
pub use subject::{Subjects, subjects};
pub use test_output::exception;
pub(crate) use test_output::tidied;
pub(crate) use tokens::tokens as words;

use crate::{
    Note,
    chat::{ChatError, ChatModel},
};

/// Longer statements are cut by their sources; an agent's context is not for logs.
const MAX_BYTES: usize = 8 << 10;

/// Where a statement's words come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Which public behaviour is wrong, what its documentation says, which tests show it.
    Template,
    /// As the template, with what the failing public tests print.
    TestOutput,
    /// The message of the commit that a PR mirror undoes.
    CommitMessage,
    /// A model's words.
    Model,
}

impl Source {
    /// Every source, in the order in which they are tried unless the caller says otherwise: the
    /// rarest knowledge first, the one that never fails last.
    pub const ALL: [Source; 4] = [
        Source::Model,
        Source::CommitMessage,
        Source::TestOutput,
        Source::Template,
    ];

    /// The name that is recorded in a task.
    pub fn as_str(self) -> &'static str {
        match self {
            Source::Template => "template",
            Source::TestOutput => "test-output",
            Source::CommitMessage => "commit-message",
            Source::Model => "model",
        }
    }
}

/// A public test that fails on the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure<'a> {
    /// The test.
    pub test: &'a TestId,
    /// What pytest or Python printed of it, where that is known.
    pub output: Option<&'a str>,
}

/// A test that a solver does not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HiddenTest<'a> {
    /// The test.
    pub id: &'a TestId,
    /// The text of its function, decorators included.
    pub source: &'a str,
}

/// A piece of the library's public behaviour.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// As a user writes it: `toolz.partition_all`, `IndexedSet.pop`.
    pub name: String,
    /// Its documentation in the start.
    pub documentation: Option<String>,
}

/// What statements are made of.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The project's name.
    pub project: &'a str,
    /// The public tests that fail on the start. Output of hidden tests must not get here.
    pub failures: &'a [Failure<'a>],
    /// Which public behaviour the failing tests exercise, the likeliest first: [`Subjects`].
    pub subjects: &'a [Subject],
    /// The exception that failing tests end with, hidden ones included: [`exception`]. It is what a
    /// user sees, and says nothing of a test.
    pub exception: Option<&'a str>,
    /// What the maker of the bug knows.
    pub note: Option<&'a Note>,
    /// The arguments after `python -m pytest` that run the public tests: [`test_arguments`].
    pub test_arguments: &'a str,
    /// From the start to the fixed state.
    pub fix: &'a Patch,
    /// Where the bug is.
    pub places: &'a [Place],
    /// The hidden tests.
    pub hidden: &'a [HiddenTest<'a>],
    /// Texts of the start that a solver sees: the public test files.
    pub visible: &'a [&'a str],
    /// Whether a statement may name file and line of the bug, as a traceback does.
    pub may_name_place: bool,
}

/// A statement and how it came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The text, Markdown.
    pub text: String,
    /// Its source, for [`temper_core::Construction::statement`].
    pub source: Source,
    /// Sources that were asked before, and why their text was not taken.
    pub passed_over: Vec<PassedOver>,
}

/// A source whose text was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassedOver {
    /// The source.
    pub source: Source,
    /// Why.
    pub reason: Reason,
}

/// Why a source's text was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Reason {
    /// It has nothing to say of this task.
    Nothing {
        /// What is missing.
        why: String,
    },
    /// It says what it must not.
    Leaks {
        /// What.
        leaks: Vec<Leak>,
    },
}

/// No source gave a statement.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StatementError {
    /// The model did not answer, which is no finding about the task.
    #[error(transparent)]
    Model(#[from] ChatError),
    /// Every source was passed over.
    #[error("write a statement: {}", reasons(.0))]
    NoSource(Vec<PassedOver>),
}

fn reasons(passed_over: &[PassedOver]) -> String {
    let mut text = String::from("no source gave one without a leak");
    for PassedOver { source, reason } in passed_over {
        text.push_str(&match reason {
            Reason::Nothing { why } => format!("; {}: {why}", source.as_str()),
            Reason::Leaks { leaks } => format!("; {}: {} leaks", source.as_str(), leaks.len()),
        });
    }
    text
}

/// Writes a statement: the first source of `order` that has something to say and does not leak.
/// [`Source::Model`] is passed over without a model.
///
/// # Errors
///
/// The model did not answer, or no source was left.
pub fn write(
    order: &[Source],
    facts: &Facts<'_>,
    mut model: Option<&mut dyn ChatModel>,
) -> Result<Statement, StatementError> {
    let mut passed_over = Vec::new();
    for &source in order {
        let written = match source {
            Source::Template => template::write(facts),
            Source::TestOutput => test_output::write(facts),
            Source::CommitMessage => commit_message::write(facts),
            Source::Model => match model.as_deref_mut() {
                Some(model) => model::write(facts, model)?,
                None => Err("there is no model".to_owned()),
            },
        };
        let drafts = match written {
            Ok(drafts) => drafts,
            Err(why) => {
                passed_over.push(PassedOver {
                    source,
                    reason: Reason::Nothing { why },
                });
                continue;
            }
        };
        let mut first_leaks = None;
        for text in drafts {
            let leaks = leaks_of(&text, facts);
            if leaks.is_empty() {
                return Ok(Statement {
                    text,
                    source,
                    passed_over,
                });
            }
            first_leaks.get_or_insert(leaks);
        }
        passed_over.push(PassedOver {
            source,
            reason: Reason::Leaks {
                leaks: first_leaks.unwrap_or_default(),
            },
        });
    }
    Err(StatementError::NoSource(passed_over))
}

/// What a text says of this task and must not; for statements that were written elsewhere.
pub fn leaks_of(text: &str, facts: &Facts<'_>) -> Vec<Leak> {
    let mut visible: Vec<&str> = facts.visible.to_vec();
    visible.extend(
        facts
            .subjects
            .iter()
            .filter_map(|subject| subject.documentation.as_deref()),
    );
    find_leaks(
        text,
        &Secrets {
            fix: facts.fix,
            hidden: facts.hidden,
            visible: &visible,
            places: (!facts.may_name_place).then_some(facts.places),
        },
    )
}

/// Texts of one source, the best first; the later ones say less. An error says why there is none.
type Drafts = Result<Vec<String>, String>;

/// Cuts a text at a line's end so that it has at most `limit` bytes, and says that it did.
fn cut(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let mut end = limit;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let end = text[..end].rfind('\n').unwrap_or(end);
    format!("{}\n…", &text[..end])
}

#[cfg(test)]
mod tests;
