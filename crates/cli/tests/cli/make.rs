//! From a repository to proven tasks, and what unsuitable repositories are told.

use std::{fs, path::Path};

use crate::support::Workspace;

const SHAPES: &str = r#"
"""Areas and intervals."""


def area(width, height):
    """The area of a rectangle; a negative side has none."""
    if width < 0 or height < 0:
        return 0
    return width * height


def clamp(value, low, high):
    """The nearest value between low and high."""
    if value < low:
        return low
    if value > high:
        return high
    return value


def overlap(first, second):
    """The length that two intervals share."""
    start = max(first[0], second[0])
    end = min(first[1], second[1])
    return max(0, end - start)
"#;

const TESTS: &str = r#"
import pytest
from shapes import area, clamp, overlap


def test_area():
    assert area(2, 3) == 6


def test_negative_area():
    assert area(-2, 3) == 0
    assert area(2, -3) == 0


@pytest.mark.parametrize("value, expected", [(-1, 0), (0, 0), (5, 5), (10, 10), (11, 10)])
def test_clamp(value, expected):
    assert clamp(value, 0, 10) == expected


def test_clamp_keeps_floats():
    assert clamp(0.5, 0, 1) == 0.5
    assert clamp(1.5, 0, 1) == 1


def test_overlap():
    assert overlap((0, 5), (3, 8)) == 2


def test_overlap_of_strangers():
    assert overlap((0, 1), (3, 8)) == 0
"#;

fn write(directory: &Path, files: &[(&str, &str)]) {
    for (path, content) in files {
        let path = directory.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

#[test]
fn a_project_becomes_proven_tasks_whatever_the_number_of_workers() {
    let workspace = Workspace::new(0);
    write(
        &workspace.path("shapes"),
        &[
            (
                "pyproject.toml",
                "[project]\nname = \"shapes\"\nversion = \"1.0\"\nlicense = \"MIT\"\ndependencies = []\n",
            ),
            ("src/shapes/__init__.py", SHAPES),
            ("tests/test_shapes.py", TESTS),
        ],
    );
    let make = |output: &str, cache: &str, workers: &str| {
        let cache = workspace.path(cache);
        let ran = workspace
            .run(&[
                "tasks",
                "make",
                "shapes",
                "--output",
                output,
                "--limit",
                "6",
                "--max-candidates",
                "40",
                "--seed",
                "3",
                "--workers",
                workers,
                "--cache",
                cache.to_str().unwrap(),
            ])
            .expect(0);
        assert!(
            ran.stderr
                .contains("measuring the tests: 10 tests trusted, 0 excluded"),
            "{}",
            ran.stderr
        );
        assert!(ran.stdout.contains("6 proven tasks"), "{}", ran.stdout);
        assert!(ran.stdout.trim_end().ends_with(output), "{}", ran.stdout);
    };
    make("one", "cache", "2");
    make("two", "another-cache", "1");
    for file in ["tasks.jsonl", "made.json", "archives/shapes-1.0.tar.gz"] {
        let read = |suite: &str| fs::read(workspace.path(suite).join(file)).unwrap();
        assert_eq!(read("one"), read("two"), "{file}");
    }

    let list = workspace
        .run(&["tasks", "list", "--suite", "one", "--format", "json"])
        .expect(0);
    let rows: serde_json::Value = serde_json::from_str(&list.stdout).unwrap();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        assert_eq!(row["licence"], "MIT");
        assert_ne!(row["n_hidden_fail_to_pass"], 0);
    }
    let text = fs::read_to_string(workspace.path("one/tasks.jsonl")).unwrap();
    let statements: std::collections::BTreeSet<String> = text
        .lines()
        .map(|line| {
            let task: serde_json::Value = serde_json::from_str(line).unwrap();
            task["statement"].as_str().unwrap().to_lowercase()
        })
        .collect();
    assert_eq!(statements.len(), 6, "no statement is another task's too");
    let card = workspace
        .run(&["tasks", "card", "--suite", "one", "--format", "json"])
        .expect(0)
        .json();
    let total = |field: &str| -> u64 { rows.iter().map(|row| row[field].as_u64().unwrap()).sum() };
    assert_eq!(card["n_tasks"], 6);
    assert_eq!(card["projects"]["shapes 1.0"]["licence"], "MIT");
    assert_eq!(
        (
            &card["tests"]["n_hidden_fail_to_pass"],
            &card["tests"]["n_pass_to_pass"]
        ),
        (
            &total("n_hidden_fail_to_pass").into(),
            &total("n_pass_to_pass").into()
        )
    );
    // Other candidates in the same functions were run, so every task is audited.
    assert_eq!(card["mutation"]["n_audited_tasks"], 6);

    // What another machine has: the suite alone.
    fs::remove_dir_all(workspace.path("shapes")).unwrap();
    workspace
        .run(&[
            "tasks",
            "fetch",
            "--suite",
            "one",
            "--limit",
            "2",
            "--cache",
            workspace.path("third").to_str().unwrap(),
        ])
        .expect(0);

    // Known from the first run, so it is only written again.
    write(
        &workspace.path("shapes"),
        &[
            (
                "pyproject.toml",
                "[project]\nname = \"shapes\"\nversion = \"1.0\"\nlicense = \"MIT\"\ndependencies = []\n",
            ),
            ("src/shapes/__init__.py", SHAPES),
            ("tests/test_shapes.py", TESTS),
        ],
    );
    let again = workspace
        .run(&[
            "tasks",
            "make",
            "shapes",
            "--output",
            "one",
            "--limit",
            "6",
            "--max-candidates",
            "40",
            "--seed",
            "3",
        ])
        .expect(0);
    assert!(
        again.stderr.contains("tried (known from an earlier run)"),
        "{}",
        again.stderr
    );
}

fn git(directory: &Path, arguments: &[&str]) {
    let done = std::process::Command::new("git")
        .current_dir(directory)
        .args(["-c", "user.name=A", "-c", "user.email=a@example.org"])
        .args([
            "-c",
            "init.defaultBranch=main",
            "-c",
            "commit.gpgsign=false",
        ])
        .args(arguments)
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn histories_releases_and_models_give_bugs_and_failing_tests_say_what_is_wrong() {
    let workspace = Workspace::new(0);
    let project = (
        "pyproject.toml",
        "[project]\nname = \"shapes\"\nversion = \"1.0\"\nlicense = \"MIT\"\ndependencies = []\n",
    );
    let then = SHAPES.replace("high:\n        return high", "high:\n        return low");
    let before = SHAPES.replace("width < 0 or", "width > 0 or");
    for (place, code) in [("shapes", then.as_str()), ("earlier", before.as_str())] {
        let directory = workspace.path(place);
        write(
            &directory,
            &[
                project,
                ("src/shapes/__init__.py", code),
                ("tests/test_shapes.py", TESTS),
            ],
        );
    }
    let directory = workspace.path("shapes");
    git(&directory, &["init", "--quiet"]);
    git(&directory, &["add", "."]);
    git(&directory, &["commit", "--quiet", "-m", "Begin"]);
    write(&directory, &[("src/shapes/__init__.py", SHAPES)]);
    git(
        &directory,
        &[
            "commit",
            "--quiet",
            "-am",
            "Fix clamp for large values\n\nValues above the upper bound became the lower one.",
        ],
    );
    // Whatever function is asked for, one of the replies has its signature.
    let reply = "```python\ndef overlap(first, second):\n    start = max(first[0], second[0])\n    end = min(first[1], second[1])\n    return end - start\n```\nIntervals apart share less than nothing.\n";
    fs::write(
        workspace.path("script.json"),
        serde_json::json!(vec![reply; 6]).to_string(),
    )
    .unwrap();
    let make = |output: &str, cache: &str| {
        let ran = workspace
            .run(&[
                "tasks",
                "make",
                "shapes",
                "--output",
                output,
                "--earlier",
                "earlier",
                "--model",
                "scripted:script.json",
                "--model-calls",
                "6",
                "--kinds",
                "pr_mirror,release_history,lm_rewrite,lm_modify",
                "--cache",
                workspace.path(cache).to_str().unwrap(),
            ])
            .expect(0);
        (
            ran,
            fs::read_to_string(workspace.path(output).join("tasks.jsonl")).unwrap(),
        )
    };
    let (ran, one) = make("one", "cache");
    assert_eq!(make("two", "another-cache").1, one);
    let tasks: Vec<serde_json::Value> = one
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &serde_json::Value| line.get("statement").is_some())
        .collect();
    let task = |bug: &str| {
        tasks
            .iter()
            .find(|task| task["origin"]["bug"].as_str().unwrap().starts_with(bug))
            .unwrap_or_else(|| panic!("{bug}: {} {}", ran.stdout, ran.stderr))
    };
    let statement = |bug: &str| task(bug)["statement"].as_str().unwrap();
    assert_eq!(
        task("pr-mirror")["construction"]["statement"],
        "commit-message"
    );
    assert!(
        statement("pr-mirror").contains("became the lower one"),
        "{}",
        statement("pr-mirror")
    );
    assert_eq!(
        task("release-history")["construction"]["statement"],
        "test-output"
    );
    assert!(
        statement("release-history").contains("assert 0 == 6"),
        "{}",
        statement("release-history")
    );
    task("model:lm_");
}

#[test]
fn unsuitable_repositories_are_told_why_and_what_to_do() {
    let workspace = Workspace::new(0);
    let test = ("tests/test_a.py", "def test_a():\n    import a\n");
    let code = ("a.py", "x = 1\n");
    type Files<'a> = &'a [(&'a str, &'a str)];
    let cases: [(&str, Files<'_>, i32, &str, &str); 7] = [
        (
            "untested",
            &[code],
            3,
            "find tests of untested",
            "--tests PATH",
        ),
        (
            "go",
            &[("main.go", "package main\n")],
            3,
            "there is no Python file",
            "--python-path",
        ),
        (
            "rust",
            &[
                (
                    "pyproject.toml",
                    "[build-system]\nbuild-backend = \"maturin\"\n",
                ),
                code,
                test,
            ],
            3,
            "maturin compiles an extension",
            "without compiled extensions",
        ),
        (
            "computed",
            &[
                (
                    "setup.py",
                    "from setuptools import setup\nsetup(name='computed', install_requires=read())\n",
                ),
                code,
                test,
            ],
            3,
            "its setup.py computes them",
            "--with REQUIREMENT",
        ),
        (
            "twisted",
            &[("tox.ini", "[testenv]\ncommands = trial a\n"), code],
            3,
            "they are run with trial",
            "--tests PATH",
        ),
        (
            "binary",
            &[
                (
                    "pyproject.toml",
                    "[project]\nname = \"binary\"\nversion = \"1\"\ndependencies = [\"markupsafe==2.1.5\"]\n",
                ),
                code,
                test,
            ],
            3,
            "find a pure-Python wheel of markupsafe==2.1.5",
            "--leave-out markupsafe",
        ),
        (
            "broken",
            &[
                (
                    "pyproject.toml",
                    "[project]\nname = \"broken\"\nversion = \"1\"\n",
                ),
                code,
                ("test_a.py", "import missing_module\ndef test_a(): pass\n"),
            ],
            3,
            "find tests that can be trusted",
            "--with REQUIREMENT",
        ),
    ];
    for (name, files, code, words, hint) in cases {
        write(&workspace.path(name), files);
        let ran = workspace.run(&["tasks", "make", name, "--output", "made"]);
        assert_eq!(ran.code, Some(code), "{name}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{name}: {}", ran.stderr);
        let line = ran
            .stderr
            .lines()
            .find(|line| line.starts_with("hint:"))
            .unwrap_or_default();
        assert!(line.contains(hint), "{name}: {}", ran.stderr);
        assert!(!workspace.path("made/tasks.jsonl").exists());
    }
    for (arguments, code, words) in [
        (vec!["./nowhere"], 3, "it is no directory"),
        (vec!["untested", "binary"], 2, "it has no name"),
        (
            vec!["untested", "--tests", "elsewhere"],
            2,
            "has no elsewhere",
        ),
        (
            vec!["untested", "--output", "untested"],
            3,
            "something else is there",
        ),
    ] {
        let ran = workspace.run(&[vec!["tasks", "make"], arguments].concat());
        assert_eq!(ran.code, Some(code), "{}", ran.stderr);
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
    }
}
