//! A short program that tries single edits, alone: what a policy reaches that does no more than
//! write it down.
//!
//! The teacher `demonstrator-search` shows this program as the first command of its
//! demonstrations, because a small model can learn it by heart. How much of such a policy's score
//! is the program's, and how much is what the model adds, shows only beside this agent: it runs the
//! same program, its tests, and submits, and does nothing where the program finds no edit.

use temper_core::{Message, PreparedTask};

use super::{reply, search::statement::Statement, submit};
use crate::model::{Model, ModelError, ModelFactory, ModelReply, ModelRequest};

/// The program. It traces the public tests, tries single edits of suspicious lines with them as the
/// judge, and keeps the first with which all pass. Where none does it prints suspicious code. It
/// prints less than what a profile shortens, and leaves the tests that failed and passed in
/// `/tmp/t`, one a line, as arguments of pytest.
pub(super) const PROGRAM: &str = include_str!("mend.py");
/// What stands behind the file's name where an edit passes all tests.
const MENDED: &str = " mended:\n";
/// Runs the tests in `/tmp/t`; they fail at once where the first of them do.
pub(super) const TESTS: &str = "python -m pytest -q -x --tb=no -oaddopts= @/tmp/t";

/// The command that runs a program of this kind with what the statement names: a subject to rank
/// by, and the public tests. None where the statement names no tests.
pub(super) fn command(messages: &[Message], program: &str) -> Option<String> {
    let statement = Statement::read(messages);
    let tests = statement.pytest_arguments()?;
    let subject = statement.subject.as_deref().unwrap_or("-");
    Some(format!("python - {subject} {tests} <<'EOF'\n{program}EOF"))
}

/// Whether the program says that it found an edit.
pub(super) fn found(output: &str) -> bool {
    output.contains(MENDED)
}

/// Makes agents that run the program.
#[derive(Clone, Copy, Debug, Default)]
pub struct MendFactory;

impl ModelFactory for MendFactory {
    fn describe(&self) -> serde_json::Value {
        serde_json::json!({
            "kind": "mend",
            "language_model": false,
            "description": "the program that demonstrator-search shows, alone: single edits tried \
                            against the public tests; not a language model",
            "program": temper_core::Digest::of(PROGRAM.as_bytes()),
        })
    }

    fn is_language_model(&self) -> bool {
        false
    }

    fn open(&self, _task: &PreparedTask, _seed: u64) -> Result<Box<dyn Model>, ModelError> {
        Ok(Box::new(Mend {
            next: Next::Program,
        }))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Program,
    Tests,
    Submission,
}

struct Mend {
    next: Next,
}

impl Model for Mend {
    fn query(&mut self, request: &ModelRequest<'_>) -> Result<ModelReply, ModelError> {
        let last = request
            .messages
            .last()
            .map_or("", |message| &message.content);
        Ok(match self.next {
            Next::Program => {
                self.next = Next::Tests;
                match command(request.messages, PROGRAM) {
                    Some(command) => reply(
                        request,
                        "I run the public tests and try small edits of the code that failing \
                         ones run.",
                        &command,
                    ),
                    None => submit(
                        request,
                        "The task names no public tests. I submit no change.",
                    ),
                }
            }
            Next::Tests if found(last) => {
                self.next = Next::Submission;
                reply(
                    request,
                    "An edit passes the tests. I run them once more.",
                    TESTS,
                )
            }
            Next::Tests => submit(request, "No edit passes the tests. I submit no change."),
            Next::Submission => submit(request, "I submit what stands."),
        })
    }
}
