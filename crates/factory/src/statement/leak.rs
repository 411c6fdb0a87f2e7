//! Finds what a statement must not say: the fix, and what only the hidden tests know.
//!
//! **What it finds.** Lines that the fix adds, the whole expression of such a line, lines that the
//! fix removes (they are the bug, and say where to look), names and lines of hidden tests, values
//! that only hidden assertions know, and file and line of the fix. Texts are compared as words and
//! signs, so neither white space nor quotes nor line breaks hide anything.
//!
//! **What it lets pass.** Lines too short to say anything (`return None`, `else:`), and whatever a
//! solver can read anyway in the texts given as visible.
//!
//! **What it cannot find.** A description of the fix in other words.

use serde::{Deserialize, Serialize};
use temper_core::{Patch, Place};

use super::{
    HiddenTest,
    tokens::{contains, is_word, length, tokens},
};

/// What must not be said.
#[derive(Clone, Copy, Debug)]
pub struct Secrets<'a> {
    /// From the start to the fixed state.
    pub fix: &'a Patch,
    /// The tests that a solver does not see.
    pub hidden: &'a [HiddenTest<'a>],
    /// What a solver sees that hidden tests may have in common with: public test files as they
    /// stand in the start, documentation of the functions that are named.
    pub visible: &'a [&'a str],
    /// Where the fix is; naming file and line together is then a leak.
    pub places: Option<&'a [Place]>,
}

/// Something a statement says and must not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Leak {
    /// A line that the fix adds.
    FixLine {
        /// The line, trimmed.
        line: String,
    },
    /// The expression or condition of a line that the fix adds.
    FixExpression {
        /// The expression.
        expression: String,
    },
    /// A line that the fix removes.
    BugLine {
        /// The line, trimmed.
        line: String,
    },
    /// File and line of the fix.
    FixPlace {
        /// The file.
        file: String,
        /// The line.
        line: u32,
    },
    /// A hidden test by its name.
    HiddenName {
        /// The name.
        name: String,
    },
    /// A line of a hidden test.
    HiddenLine {
        /// The line, trimmed.
        line: String,
    },
    /// A value that a hidden assertion compares with.
    HiddenLiteral {
        /// The value as the test writes it.
        literal: String,
    },
}

/// What `text` says and must not, each finding once, in order.
pub fn find_leaks(text: &str, secrets: &Secrets<'_>) -> Vec<Leak> {
    let said = tokens(text);
    // What is visible is looked through only for what was said.
    let visible: std::cell::OnceCell<Vec<Vec<&str>>> = std::cell::OnceCell::new();
    let is_visible = |needle: &[&str]| {
        visible
            .get_or_init(|| secrets.visible.iter().map(|text| tokens(text)).collect())
            .iter()
            .any(|text| contains(text, needle))
    };
    let says = |needle: &[&str]| contains(&said, needle) && !is_visible(needle);
    let mut leaks = Vec::new();
    let (added, removed) = changed_lines(secrets.fix);
    let mut fixed = Vec::new();
    for line in &added {
        let line = line.trim();
        let needle = tokens(line);
        let core = core(line);
        let core_tokens = tokens(core);
        if speaks(&needle) && says(&needle) {
            leaks.push(Leak::FixLine {
                line: line.to_owned(),
            });
            fixed.push(needle);
        } else if core.len() < line.len() && speaks(&core_tokens) && says(&core_tokens) {
            leaks.push(Leak::FixExpression {
                expression: core.to_owned(),
            });
        }
    }
    for line in &removed {
        let needle = tokens(line);
        // Part of a fixed line that was found already.
        let is_found = fixed.iter().any(|fixed| contains(fixed, &needle));
        if !is_found && speaks(&needle) && says(&needle) {
            leaks.push(Leak::BugLine {
                line: line.trim().to_owned(),
            });
        }
    }
    for test in secrets.hidden {
        hidden_test(test, &says, &mut leaks);
    }
    places(&said, secrets.places.unwrap_or_default(), &mut leaks);
    leaks.sort();
    leaks.dedup();
    leaks
}

fn hidden_test(test: &HiddenTest<'_>, says: &dyn Fn(&[&str]) -> bool, leaks: &mut Vec<Leak>) {
    let id = test.id.as_str();
    let name = id.rsplit("::").next().unwrap_or(id);
    let plain = name.split('[').next().unwrap_or(name);
    // `test` alone would be found in any prose.
    let names = [id, name, plain];
    if let Some(said) = names
        .iter()
        .find(|name| name.len() >= 5 && says(&tokens(name)))
    {
        leaks.push(Leak::HiddenName {
            name: (*said).to_owned(),
        });
    }
    for line in test.source.lines() {
        let needle = tokens(line);
        if needle.len() >= 4 && length(&needle) >= 12 && speaks(&needle) && says(&needle) {
            leaks.push(Leak::HiddenLine {
                line: line.trim().to_owned(),
            });
        }
        if is_assertion(line) {
            for literal in literals(line) {
                if says(&tokens(literal)) {
                    leaks.push(Leak::HiddenLiteral {
                        literal: literal.to_owned(),
                    });
                }
            }
        }
    }
}

fn places(said: &[&str], places: &[Place], leaks: &mut Vec<Leak>) {
    for place in places {
        let file = place.file.to_string();
        let base = file.rsplit('/').next().unwrap_or(&file);
        let name = tokens(base);
        for (index, window) in said.windows(name.len().max(1)).enumerate() {
            if window != name {
                continue;
            }
            // `f.py:12`, `f.py", line 12, in g`, `line 12 of f.py`.
            let from = index.saturating_sub(3 + 2 * file.matches('/').count());
            let to = (index + name.len() + 4).min(said.len());
            let line = said[from..to]
                .iter()
                .filter_map(|token| token.parse::<u32>().ok())
                .find(|line| (place.first_line..=place.last_line).contains(line));
            if let Some(line) = line {
                leaks.push(Leak::FixPlace {
                    file: file.clone(),
                    line,
                });
            }
        }
    }
}

/// Whether a line says enough to be recognized: three words or signs with eight characters, or six
/// of them where it is all words and could be prose.
fn speaks(tokens: &[&str]) -> bool {
    let least = if tokens.iter().all(|token| is_word(token)) {
        6
    } else {
        3
    };
    tokens.len() >= least && length(tokens) >= 8
}

/// A line without the keyword in front and the colon behind.
fn core(line: &str) -> &str {
    const KEYWORDS: [&str; 10] = [
        "return ", "if ", "elif ", "while ", "assert ", "not ", "yield ", "raise ", "await ",
        "del ",
    ];
    let mut core = line.trim();
    while let Some(rest) = KEYWORDS
        .iter()
        .find_map(|keyword| core.strip_prefix(keyword))
    {
        core = rest.trim_start();
    }
    // The right side of an assignment to a plain name.
    if let Some((target, value)) = core.split_once(" = ")
        && target
            .chars()
            .all(|c| c == '_' || c == '.' || c.is_alphanumeric())
    {
        core = value.trim_start();
    }
    core.strip_suffix(':').unwrap_or(core).trim_end()
}

fn is_assertion(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("assert") || line.starts_with("self.assert") || line.contains("raises(")
}

/// Strings of at least four characters and numbers of at least three.
fn literals(line: &str) -> Vec<&str> {
    let bytes = line.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        match bytes[at] {
            quote @ (b'"' | b'\'') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                let end = at.min(bytes.len());
                at = end + 1;
                if let Some(text) = line.get(start + 1..end)
                    && text.trim().chars().count() >= 4
                {
                    found.push(text);
                }
            }
            b'0'..=b'9' => {
                while at < bytes.len() && (bytes[at].is_ascii_alphanumeric() || bytes[at] == b'.') {
                    at += 1;
                }
                if at - start >= 3 {
                    found.push(&line[start..at]);
                }
            }
            b'_' | b'a'..=b'z' | b'A'..=b'Z' => {
                while at < bytes.len() && (bytes[at] == b'_' || bytes[at].is_ascii_alphanumeric()) {
                    at += 1;
                }
            }
            _ => at += 1,
        }
    }
    found
}

/// The lines that a patch adds.
pub(crate) fn added_lines(patch: &Patch) -> Vec<String> {
    changed_lines(patch).0
}

/// The lines that a patch adds and those it removes, without their signs. Bytes that are no text
/// are shown as U+FFFD.
pub(super) fn changed_lines(patch: &Patch) -> (Vec<String>, Vec<String>) {
    let text = patch.0.to_text();
    let (mut added, mut removed) = (Vec::new(), Vec::new());
    let (mut n_old, mut n_new) = (0usize, 0usize);
    for line in text.lines() {
        if n_old == 0 && n_new == 0 {
            if let Some((old, new)) = hunk_lengths(line) {
                (n_old, n_new) = (old, new);
            }
            continue;
        }
        match line.as_bytes().first() {
            Some(b'+') => {
                n_new = n_new.saturating_sub(1);
                added.push(line[1..].to_owned());
            }
            Some(b'-') => {
                n_old = n_old.saturating_sub(1);
                removed.push(line[1..].to_owned());
            }
            Some(b'\\') => {}
            _ => {
                n_old = n_old.saturating_sub(1);
                n_new = n_new.saturating_sub(1);
            }
        }
    }
    (added, removed)
}

/// The two lengths of a header `@@ -1,5 +1,6 @@`.
fn hunk_lengths(line: &str) -> Option<(usize, usize)> {
    let (ranges, _) = line.strip_prefix("@@ -")?.split_once(" @@")?;
    let (old, new) = ranges.split_once(" +")?;
    let length = |range: &str| match range.split_once(',') {
        Some((_, length)) => length.parse().ok(),
        None => Some(1),
    };
    Some((length(old)?, length(new)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use temper_core::{Bytes, TestId};

    const FIX: &str = "diff --git a/pkg/seq.py b/pkg/seq.py\n--- a/pkg/seq.py\n+++ b/pkg/seq.py\n@@ -10,4 +10,5 @@\n def chunk(xs, n):\n-    end = len(xs) - n\n+    end = len(xs) - n + 1\n+    if n <= 0 or not xs: \n     return None\n-    return xs\n+    return None\n";

    fn check(text: &str) -> Vec<Leak> {
        let id = TestId::from("tests/test_seq.py::TestChunk::test_uneven_tail[3-odd]");
        let hidden = [HiddenTest {
            id: &id,
            source: "    def test_uneven_tail(self, n):\n        got = chunk('abcdefg', 3)\n        assert got == ['abc', 'defx', 12345]\n",
        }];
        let fix = Patch(Bytes::from(FIX));
        let places = [Place {
            file: "pkg/seq.py".parse().unwrap(),
            function: Some("chunk".into()),
            first_line: 11,
            last_line: 12,
        }];
        find_leaks(
            text,
            &Secrets {
                fix: &fix,
                hidden: &hidden,
                visible: &["def test_plain():\n    assert chunk('abcd', 2) == ['shown', 999]\n"],
                places: Some(&places),
            },
        )
    }

    #[test]
    fn each_kind_of_leak_is_found() {
        for (text, expected) in [
            (
                "It should say `end = len(xs)\n- n + 1`.",
                Leak::FixLine {
                    line: "end = len(xs) - n + 1".into(),
                },
            ),
            (
                "The bound must be len( xs )-n+1.",
                Leak::FixExpression {
                    expression: "len(xs) - n + 1".into(),
                },
            ),
            (
                "Check n <= 0 or not xs first",
                Leak::FixExpression {
                    expression: "n <= 0 or not xs".into(),
                },
            ),
            (
                "test_uneven_tail fails",
                Leak::HiddenName {
                    name: "test_uneven_tail".into(),
                },
            ),
            (
                "call got=chunk(\"abcdefg\", 3)",
                Leak::HiddenLine {
                    line: "got = chunk('abcdefg', 3)".into(),
                },
            ),
            (
                "the second part should be defx",
                Leak::HiddenLiteral {
                    literal: "defx".into(),
                },
            ),
            (
                "it should be 12345",
                Leak::HiddenLiteral {
                    literal: "12345".into(),
                },
            ),
            (
                "raised in seq.py:12",
                Leak::FixPlace {
                    file: "pkg/seq.py".into(),
                    line: 12,
                },
            ),
            (
                "see line 11 of pkg/seq.py",
                Leak::FixPlace {
                    file: "pkg/seq.py".into(),
                    line: 11,
                },
            ),
        ] {
            assert_eq!(check(text), [expected], "{text}");
        }
        // The buggy line is part of the fixed one here, so only it is said.
        assert_eq!(
            check("the code says end = len(xs) - n today"),
            [Leak::BugLine {
                line: "end = len(xs) - n".into()
            }]
        );
    }

    #[test]
    fn what_says_nothing_or_is_visible_passes() {
        for text in [
            "`chunk` returns None for some inputs; expected ['shown', 999].",
            "assert chunk('abcd', 2) == ['shown', 999]",
            "seq.py is the module; there are 13 cases",
            "the test suite fails",
            "",
        ] {
            assert_eq!(check(text), [], "{text}");
        }
    }

    #[test]
    fn every_speaking_line_of_any_patch_is_found_again() {
        let (added, removed) = changed_lines(&Patch(Bytes::from(FIX)));
        assert_eq!(added.len(), 3);
        assert_eq!(removed, ["    end = len(xs) - n", "    return xs"]);
        let odd = "@@ -1,2 +1,2 @@\n--- a\n-x\n+++ b\n+y\n\\ No newline at end of file\n";
        assert_eq!(
            changed_lines(&Patch(Bytes::from(odd))),
            (
                vec!["++ b".to_owned(), "y".to_owned()],
                vec!["-- a".to_owned(), "x".to_owned()]
            )
        );
    }

    #[test]
    fn hostile_lines_do_not_panic() {
        for line in [
            "assert 'é",
            "assert \"\\",
            "assert '\\é' == 'ab\\",
            "@@ -x +y @@",
            "@@ -1,99999999999999999999 +1 @@",
        ] {
            literals(line);
            changed_lines(&Patch(Bytes::from(line)));
            find_leaks(
                line,
                &Secrets {
                    fix: &Patch(Bytes::from(line)),
                    hidden: &[],
                    visible: &[],
                    places: None,
                },
            );
        }
    }
}
