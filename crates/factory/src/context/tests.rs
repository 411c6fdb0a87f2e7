//! Contexts of a small project: what is in them, that they keep to their budget, and that an audit
//! finds what was planted.

use temper_core::{Bytes, Patch};

use super::*;
use crate::statement::{HiddenTest, Leak};

const SEQ: &str = "from .util import check\n\n\ndef pairs(xs):\n    \"\"\"Neighbours.\"\"\"\n    check(xs)\n    return [(xs[i], xs[i + 1]) for i in range(len(xs))]\n\n\ndef other(xs):\n    total = 0\n    for x in xs:\n        total = total + x * x - 1\n    return total\n";
const FIX: &str = "--- a/src/pkg/seq.py\n+++ b/src/pkg/seq.py\n@@ -7 +7 @@\n-    return [(xs[i], xs[i + 1]) for i in range(len(xs))]\n+    return [(xs[i], xs[i + 1]) for i in range(len(xs) - 1)]\n";
const HIDDEN: &str = "def test_single_element_list():\n    assert pairs([\"lonely\"]) == [], \"one has no neighbour\"\n";

fn start() -> Tree {
    [
        ("src/pkg/__init__.py", "from .seq import pairs\n"),
        ("src/pkg/seq.py", SEQ),
        (
            "src/pkg/util.py",
            "from . import deep\n\ndef check(xs):\n    assert deep.IS_ON\n",
        ),
        ("src/pkg/deep.py", "IS_ON = True\n"),
        ("src/pkg/apart.py", "def apart(): pass\n"),
        (
            "tests/test_seq.py",
            "from pkg import pairs\n\ndef test_two():\n    assert pairs([1, 2]) == [(1, 2)]\n",
        ),
        ("README.md", "```\nread me\n"),
    ]
    .into_iter()
    .map(|(name, text)| (name.parse().unwrap(), Entry::file(text)))
    .collect()
}

/// Words and signs, which is near enough to tokens.
fn count(text: &str) -> usize {
    crate::statement::words(text).len()
}

fn context(budget: usize, statement: &str, outputs: &[&str]) -> Result<Context, TooSmall> {
    let start = start();
    let tests = [TestId::from("tests/test_seq.py::test_two")];
    let built = build(&Request {
        statement,
        start: &start,
        python_path: &["src".to_owned()],
        public_tests: &tests,
        outputs,
        budget,
        count: &count,
    });
    if let Ok(context) = &built {
        assert!(
            context.n_tokens <= budget,
            "{} > {budget}",
            context.n_tokens
        );
        assert_eq!(context.n_tokens, count(&context.text()));
        assert_eq!(audit(&context.text(), &start, &hidden(&fix())), []);
    }
    built
}

fn fix() -> Patch {
    Patch(Bytes::from(FIX))
}

fn hidden(fix: &Patch) -> Hidden<'_> {
    static ID: std::sync::LazyLock<TestId> =
        std::sync::LazyLock::new(|| "tests/test_seq.py::test_single_element_list".into());
    static TESTS: std::sync::LazyLock<[HiddenTest<'static>; 1]> = std::sync::LazyLock::new(|| {
        [HiddenTest {
            id: &ID,
            source: HIDDEN,
        }]
    });
    Hidden {
        fix,
        tests: &*TESTS,
    }
}

fn shape(context: &Context) -> Vec<(SectionKind, String, usize)> {
    context
        .sections
        .iter()
        .skip(1)
        .map(|section| {
            let file = section.file.as_ref().unwrap();
            (section.kind, file.to_string(), section.n_shortened)
        })
        .collect()
}

#[test]
fn the_evidence_leads_to_the_file_and_what_it_imports() {
    use SectionKind::{Dependency, Main, Tests};
    let context_found = context(10_000, "`pkg.pairs` is wrong.", &[]).unwrap();
    let expected = [
        (Main, "src/pkg/seq.py".to_owned(), 0),
        (Tests, "tests/test_seq.py".to_owned(), 0),
        (Dependency, "src/pkg/util.py".to_owned(), 0),
        (Dependency, "src/pkg/deep.py".to_owned(), 0),
    ];
    let without_package = |context: &Context| {
        let mut found = shape(context);
        found.retain(|(_, file, _)| file != "src/pkg/__init__.py");
        found
    };
    assert_eq!(without_package(&context_found), expected);
    assert_eq!(context_found.left_out, []);
    // A traceback says more than a name.
    let output = "src/pkg/apart.py:1: in apart\nE   ValueError\n";
    let context_found = context(10_000, "`pkg.pairs` is wrong.", &[output]).unwrap();
    assert_eq!(
        shape(&context_found)[0],
        (Main, "src/pkg/apart.py".to_owned(), 0)
    );
}

#[test]
fn what_does_not_fit_is_shortened_by_whole_functions() {
    let whole = context(10_000, "`pkg.pairs` is wrong.", &[])
        .unwrap()
        .n_tokens;
    let mut seen_shortened = false;
    for budget in 0..=whole {
        let Ok(context) = context(budget, "`pkg.pairs` is wrong.", &[]) else {
            assert!(budget < 6);
            continue;
        };
        for section in &context.sections {
            let Some(file) = &section.file else { continue };
            if section.n_shortened == 0 {
                let Entry::File { content, .. } = &start()[file] else {
                    panic!()
                };
                assert_eq!(section.text.as_bytes(), content);
                continue;
            }
            // What is left is Python, and the function that the statement names goes last.
            crate::syntax::Source::parse(section.text.as_bytes()).unwrap();
            if file.to_string() == "src/pkg/seq.py" && section.n_shortened == 1 {
                seen_shortened = true;
                assert!(section.text.contains("range(len(xs))"));
                assert!(section.text.contains("def other(xs): ...\n"));
            }
        }
    }
    assert!(seen_shortened);
}

#[test]
fn the_source_of_a_test_is_its_function() {
    let source = |id: &str| test_source(&start(), &id.into());
    assert_eq!(
        source("tests/test_seq.py::test_two[1-2]"),
        "def test_two():\n    assert pairs([1, 2]) == [(1, 2)]"
    );
    for id in [
        "tests/test_seq.py::gone",
        "gone.py::test_two",
        "../x::y",
        "",
    ] {
        assert_eq!(source(id), "");
    }
}

#[test]
fn an_audit_finds_what_was_planted() {
    let start = start();
    let fix = fix();
    let text = context(10_000, "`pkg.pairs` is wrong.", &[])
        .unwrap()
        .text();
    let found = |planted: &str| audit(&format!("{text}\n{planted}"), &start, &hidden(&fix));
    assert_eq!(found("nothing"), []);
    assert!(found("test_single_element_list").contains(&Finding::Leak {
        leak: Leak::HiddenName {
            name: "test_single_element_list".into()
        }
    }));
    assert!(
        found("return [(xs[i], xs[i+1]) for i in range(len(xs) - 1)]")
            .iter()
            .any(|finding| matches!(
                finding,
                Finding::Leak {
                    leak: Leak::FixLine { .. }
                }
            ))
    );
    // A part of a hidden line, in other clothes.
    let fragments = found("pairs ( ['lonely'] ) == [ ] , one has no");
    assert!(
        fragments.iter().any(
            |finding| matches!(finding, Finding::Fragment { text } if text.contains("lonely"))
        ),
        "{fragments:?}"
    );
    // The tree after the fix gives itself away.
    assert!(
        !audit(
            &SEQ.replace("len(xs))]", "len(xs) - 1)]"),
            &start,
            &hidden(&fix)
        )
        .is_empty()
    );
}
