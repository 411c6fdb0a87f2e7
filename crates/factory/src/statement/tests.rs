//! Statements as a whole: which source speaks, and that none gives the fix away.

use temper_core::{Bytes, Patch, Place, TestId};

use super::*;
use crate::chat::Prompt;

const FIX: &str = "diff --git a/pkg/seq.py b/pkg/seq.py\n--- a/pkg/seq.py\n+++ b/pkg/seq.py\n@@ -3,5 +3,5 @@\n def pairs(xs):\n     out = []\n-    for i in range(len(xs)):\n+    for i in range(len(xs) - 1):\n         out.append((xs[i], xs[i + 1]))\n     return out\n";
const OUTPUT: &str = "tests/test_seq.py:7: in test_pairs\n    assert pairs(data) == [(1, 2), (2, 3)]\npkg/seq.py:5: in pairs\n    out.append((xs[i], xs[i + 1]))\nE   IndexError: list index out of range\n";
const VISIBLE: &str = "from pkg import pairs\n\ndef test_pairs():\n    data = [1, 2, 3]\n    assert pairs(data) == [(1, 2), (2, 3)]\n";

struct Case {
    fix: Patch,
    test: TestId,
    hidden: TestId,
    places: Vec<Place>,
    subjects: Vec<Subject>,
    note: Option<Note>,
    output: Option<&'static str>,
}

impl Case {
    fn new() -> Self {
        Case {
            fix: Patch(Bytes::from(FIX)),
            test: "tests/test_seq.py::test_pairs".into(),
            hidden: "tests/test_seq.py::test_pairs_of_one".into(),
            places: vec![Place {
                file: "pkg/seq.py".parse().unwrap(),
                function: Some("pairs".into()),
                first_line: 5,
                last_line: 5,
            }],
            subjects: vec![Subject {
                name: "pkg.pairs".into(),
                documentation: Some(
                    "Neighbours of a list, two by two.\n\nA shorter list gives none.".into(),
                ),
            }],
            note: None,
            output: Some(OUTPUT),
        }
    }

    fn write(
        &self,
        order: &[Source],
        model: Option<&mut dyn ChatModel>,
    ) -> Result<Statement, StatementError> {
        let failures = [Failure {
            test: &self.test,
            output: self.output,
        }];
        let hidden = [HiddenTest {
            id: &self.hidden,
            source: "def test_pairs_of_one():\n    assert pairs(['single']) == []\n",
        }];
        let exception = self
            .output
            .filter(|_| order.contains(&Source::TestOutput))
            .and_then(exception);
        let facts = Facts {
            project: "pkg",
            failures: &failures,
            subjects: &self.subjects,
            exception: exception.as_deref(),
            note: self.note.as_ref(),
            test_arguments: "tests/test_seq.py",
            fix: &self.fix,
            places: &self.places,
            hidden: &hidden,
            visible: &[VISIBLE],
            may_name_place: false,
        };
        let written = write(order, &facts, model);
        if let Ok(statement) = &written {
            assert_eq!(leaks_of(&statement.text, &facts), []);
        }
        written
    }
}

fn commit(message: &str) -> Option<Note> {
    Some(Note::Commit {
        commit: "0".repeat(40),
        message: message.to_owned(),
    })
}

#[test]
fn the_template_names_behaviour_documentation_and_tests() {
    let statement = Case::new().write(&[Source::Template], None).unwrap();
    assert_eq!(
        statement.text,
        "# `pkg.pairs` gives wrong results\n\n\
         In this version of pkg, `pkg.pairs` does not behave as documented and tested.\n\n\
         The documentation of `pkg.pairs` says:\n\n> Neighbours of a list, two by two.\n>\n> A shorter list gives none.\n\n\
         This test fails and should pass:\n\n    tests/test_seq.py::test_pairs\n\n\
         Tests that pass must go on passing. Run the tests with:\n\n    python -m pytest -q tests/test_seq.py\n"
    );
}

#[test]
fn the_output_shows_the_error_and_the_way_there() {
    let statement = Case::new().write(&[Source::TestOutput], None).unwrap();
    assert_eq!(statement.source, Source::TestOutput);
    assert!(
        statement
            .text
            .starts_with("# `pkg.pairs` raises IndexError\n")
    );
    assert!(
        statement
            .text
            .contains("\n    pkg/seq.py: in pairs\n    IndexError: list index out of range\n")
    );
}

#[test]
fn a_leaking_source_is_passed_over_with_its_findings() {
    let mut case = Case::new();
    case.note = commit("Stop pairs before the end\n\nfor i in range(len(xs) - 1):\nis right.");
    let statement = case.write(&[Source::CommitMessage], None).unwrap();
    // The body quotes the fix, the title does not.
    assert!(statement.text.contains("> Stop pairs before the end\n"));
    assert!(!statement.text.contains("is right"));

    case.note = commit("Loop with `for i in range(len(xs) - 1)` in pairs");
    let statement = case
        .write(&[Source::CommitMessage, Source::TestOutput], None)
        .unwrap();
    assert_eq!(statement.source, Source::TestOutput);
    assert!(
        matches!(
            &statement.passed_over[..],
            [PassedOver { source: Source::CommitMessage, reason: Reason::Leaks { leaks } }]
                if matches!(&leaks[..], [Leak::FixExpression { .. } | Leak::FixLine { .. }])
        ),
        "{:?}",
        statement.passed_over
    );
    case.note = commit("wip");
    let statement = case
        .write(&[Source::CommitMessage, Source::Template], None)
        .unwrap();
    assert!(matches!(
        &statement.passed_over[0].reason,
        Reason::Nothing { .. }
    ));
}

#[test]
fn documentation_that_the_fix_restores_is_left_out() {
    let mut case = Case::new();
    case.fix = Patch(Bytes::from(
        "@@ -1,2 +1,2 @@\n def pairs(xs):\n-    \"\"\"Neighbours of a list, three by three.\"\"\"\n+    \"\"\"Neighbours of a list, two by two.\"\"\"\n",
    ));
    // Documentation in the start is visible by definition, so only other text is a leak.
    assert!(case.write(&[Source::Template], None).is_ok());
}

#[test]
fn a_model_is_asked_once_and_checked() {
    let good = "Here it is:\n```markdown\n# pairs raises IndexError\n\nI called `pairs([1, 2, 3])` and got an IndexError; I expected two pairs.\n```\n";
    for (answer, expected) in [
        (good, Source::Model),
        (
            "```\n# The loop must be for i in range(len(xs) - 1): and nothing else will do here\n```",
            Source::Template,
        ),
        (
            "```\n# It fails for pairs(['single']) == [] which is what test_pairs_of_one checks now\n```",
            Source::Template,
        ),
        ("no block at all", Source::Template),
        ("```\nshort\n```", Source::Template),
        (
            "```\n# A title of a report \u{1b}[31m that would colour the terminal of whoever reads it\n```",
            Source::Template,
        ),
    ] {
        let mut prompts: Vec<Prompt> = Vec::new();
        let mut model = |prompt: &Prompt| {
            prompts.push(prompt.clone());
            Ok(answer.to_owned())
        };
        let statement = Case::new()
            .write(&[Source::Model, Source::Template], Some(&mut model))
            .unwrap();
        assert_eq!(statement.source, expected, "{answer}");
        assert_eq!(prompts.len(), 1);
        for secret in ["range(len(xs) - 1)", "test_pairs_of_one", "single"] {
            assert!(
                !prompts[0].user.contains(secret),
                "the prompt holds {secret}"
            );
        }
    }
    let mut broken = |_: &Prompt| Err(ChatError("no route".into()));
    assert_eq!(
        Case::new().write(&[Source::Model, Source::Template], Some(&mut broken)),
        Err(StatementError::Model(ChatError("no route".into())))
    );
}

#[test]
fn without_a_source_the_reasons_are_said() {
    let mut case = Case::new();
    case.output = None;
    let error = case
        .write(
            &[Source::Model, Source::CommitMessage, Source::TestOutput],
            None,
        )
        .unwrap_err();
    let StatementError::NoSource(passed_over) = &error else {
        panic!("{error}")
    };
    assert_eq!(passed_over.len(), 3);
    assert!(
        error
            .to_string()
            .starts_with("write a statement: no source")
    );
}
