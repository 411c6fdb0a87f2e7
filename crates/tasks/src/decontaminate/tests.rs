//! Suites against references of every shape.

use std::path::Path;

use serde_json::json;
use temper_core::Task;

use super::*;
use crate::isolation::tests::{body, task};

const STATEMENT: &str = "When a list of numbers is given in reverse order the median function returns the wrong element and raises for an empty list";

fn tasks() -> Vec<Task> {
    let mut a = task("a", "toolz", "toolz/a.py", &body(1));
    a.statement = STATEMENT.into();
    a.origin.url = Some("https://github.com/pytoolz/toolz".into());
    let mut b = task("b", "flask", "flask/b.py", &body(2));
    b.metadata.insert(
        "commit".into(),
        "0123456789abcdef0123456789abcdef01234567".into(),
    );
    vec![a, b]
}

fn against(path: &Path, renames: &[(String, String)]) -> Report {
    let mut suite = Suite::new(&tasks(), Thresholds::default(), renames);
    check(&mut suite, path).unwrap();
    suite.report()
}

fn found(report: &Report) -> Vec<(&str, &str, &str)> {
    report
        .matches
        .iter()
        .map(|m| {
            (
                m.task.as_str(),
                m.overlap.kind(),
                m.record.as_deref().unwrap_or(""),
            )
        })
        .collect()
}

#[test]
fn records_are_compared_by_repository_commit_words_and_code() {
    let patch = format!(
        "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1,9 +1,8 @@\n-gone\n{}",
        body(2)
            .lines()
            .map(|line| format!(" {line}\n"))
            .collect::<String>()
    );
    let rows = [
        json!({"instance_id": "pallets__flask-1", "repo": "pallets/flask", "problem_statement": "nothing of it", "patch": patch}),
        json!({"instance_id": "x__y-2", "base_commit": "0123456789ABCDEF0123456789abcdef01234567"}),
        json!({"instance_id": "x__y-3", "problem_statement": format!("Hello. {}", STATEMENT.to_uppercase().replace(' ', "\n"))}),
        json!({"task_id": "HumanEval/4", "prompt": "def f():\n", "canonical_solution": body(1)}),
        json!({"task_id": 5, "text": "harmless", "code": "x = 1"}),
        json!({"instance_id": "pytoolz__toolz.0aa1bb2c.func_pm__x1"}),
    ];
    let expected = [
        ("a", "code", "HumanEval/4"),
        ("a", "near-duplicate", "HumanEval/4"),
        ("a", "repository", "pytoolz__toolz.0aa1bb2c.func_pm__x1"),
        ("a", "words", "x__y-3"),
        ("b", "code", "pallets__flask-1"),
        ("b", "commit", "x__y-2"),
        ("b", "near-duplicate", "pallets__flask-1"),
        ("b", "repository", "pallets__flask-1"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
    let list = serde_json::to_string(&rows).unwrap();
    for (name, text) in [("set.jsonl", lines), ("set.json", list)] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let report = against(&path, &[]);
        let mut got = found(&report);
        got.dedup();
        assert_eq!(got, expected, "{name}");
        assert_eq!((report.n_tasks_overlapping, report.n_references), (2, 6));
        let words = report
            .matches
            .iter()
            .find(|m| m.overlap.kind() == "words")
            .unwrap();
        assert!(
            words
                .task_excerpt
                .as_ref()
                .unwrap()
                .contains("median function")
        );
        assert!(
            words
                .reference_excerpt
                .as_ref()
                .unwrap()
                .contains("MEDIAN\nFUNCTION")
        );
        assert!(words.reference_excerpt.as_ref().unwrap().len() <= 320);
    }
}

/// A fix shown from inside a docstring on, and a copy of the function as a whole.
#[test]
fn code_below_a_docstring_that_the_fix_does_not_begin_is_compared() {
    let shown = format!("    of the first.\n    \"\"\"\n{}", body(7));
    let task = task("c", "tools", "tools/c.py", &shown);
    let whole = format!("def copied(self):\n    \"\"\"The text\n{shown}");
    let patch = format!(
        "--- a/x.py\n+++ b/x.py\n@@ -1,11 +1,12 @@\n{}+    return 1\n",
        whole
            .lines()
            .map(|line| format!(" {line}\n"))
            .collect::<String>()
    );
    let hidden = format!("of the first.\n\"\"\"\n{}", body(8));
    for (row, kinds) in [
        (
            json!({"id": 1, "code": whole}),
            &["code", "near-duplicate"][..],
        ),
        (
            json!({"id": 1, "patch": patch}),
            &["code", "near-duplicate"],
        ),
        (
            json!({"id": 1, "solution": body(7)}),
            &["code", "near-duplicate"],
        ),
        // Other code below the same words.
        (json!({"id": 1, "code": hidden}), &[]),
    ] {
        let mut suite = Suite::new(std::slice::from_ref(&task), Thresholds::default(), &[]);
        let serde_json::Value::Object(fields) = row else {
            panic!()
        };
        suite.check_record(&fields, "set", 1);
        let report = suite.report();
        let mut found: Vec<_> = report.matches.iter().map(|m| m.overlap.kind()).collect();
        found.dedup();
        assert_eq!(found, kinds, "{fields:?}");
    }
}

#[test]
fn directories_are_compared_by_file_and_function() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    let rest: String = (10..20)
        .map(|n| format!("def f{n}():\n{}", body(n)))
        .collect();
    let text = format!("{rest}def copied():\n{}", body(1));
    std::fs::write(folder.path().join("sub/m.py"), text).unwrap();
    std::fs::write(folder.path().join("notes.txt"), STATEMENT).unwrap();
    std::fs::write(folder.path().join(".hidden"), STATEMENT).unwrap();
    let report = against(folder.path(), &[]);
    let got: Vec<_> = report
        .matches
        .iter()
        .map(|m| (m.overlap.kind(), m.file.as_str()))
        .collect();
    assert_eq!(
        got.iter().filter(|m| **m == ("words", "notes.txt")).count(),
        1
    );
    assert!(got.contains(&("code", "sub/m.py")));
    let near = report
        .matches
        .iter()
        .find(|m| m.overlap.kind() == "near-duplicate")
        .unwrap();
    assert!(near.record.as_ref().unwrap().starts_with("copied (line "));
    assert_eq!(report.n_references, 2);
}

/// What the index says must be what sets say.
#[test]
fn shares_are_those_of_the_sets() {
    use crate::similarity::{Names, code, containment, jaccard, ngrams};
    let tokens = |text: &str| {
        let mut found = Vec::new();
        code(text.as_bytes(), Names::Kept, |token| found.push(token.hash));
        found
    };
    let reference = body(1).replace("left_33", "other") + &body(3);
    let mut suite = Suite::new(
        &tasks(),
        Thresholds {
            containment_permille: 1,
            jaccard_permille: 1,
            ..Thresholds::default()
        },
        &[],
    );
    suite.check_file(reference.as_bytes(), "r.txt");
    let report = suite.report();
    let own = body(1);
    for (kind, expected) in [
        (
            "code",
            containment(&ngrams(&tokens(&own), 13), &ngrams(&tokens(&reference), 13)),
        ),
        (
            "near-duplicate",
            jaccard(&ngrams(&tokens(&own), 5), &ngrams(&tokens(&reference), 5)),
        ),
    ] {
        let got = report
            .matches
            .iter()
            .find(|m| m.part == "fix toolz/a.py" && m.overlap.kind() == kind)
            .unwrap();
        assert_eq!(
            got.overlap.strength(),
            (expected.unwrap() * 1000.0) as u32,
            "{kind}"
        );
    }
}

#[test]
fn forks_and_known_sets_are_repositories_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set.jsonl");
    std::fs::write(&path, "{\"repo\": \"someone/cytools\"}\n").unwrap();
    assert_eq!(found(&against(&path, &[])), []);
    let renames = [("pytoolz/toolz".to_owned(), "someone/cytools".to_owned())];
    assert_eq!(found(&against(&path, &renames)), [("a", "repository", "1")]);
    let mut suite = Suite::new(&tasks(), Thresholds::default(), &[]);
    for set in &KNOWN_SETS {
        suite.check_known(set);
    }
    assert_eq!(found(&suite.report()), [("b", "repository", "")]);
    assert_eq!(KNOWN_SETS.map(|set| set.repositories.len()), [12, 6, 11]);
}

#[test]
fn many_matches_stay_few_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set.jsonl");
    let line = json!({"text": STATEMENT}).to_string() + "\n";
    std::fs::write(&path, line.repeat(50)).unwrap();
    let report = against(&path, &[]);
    assert_eq!(report.matches.len(), MAX_LISTED);
    assert_eq!(report.matches[0].record.as_deref(), Some("1"));
    assert_eq!(report.n_not_listed, 45);
}
