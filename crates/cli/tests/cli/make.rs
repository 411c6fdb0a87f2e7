//! From a repository to proven tasks, and what unsuitable repositories are told.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use crate::support::{Workspace, bash, submit};

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

#[test]
fn the_command_of_a_statement_runs_where_the_projects_own_options_do_not() {
    let workspace = Workspace::new(0);
    let project = "[project]\nname = \"shapes\"\nversion = \"1.0\"\ndependencies = []\n\
        [project.optional-dependencies]\ntest = [\"pytest-timeout\"]\n\
        [tool.pytest.ini_options]\n\
        addopts = \"--cov=shapes --strict-markers --ignore-glob=docs/* -m 'not slow'\"\n\
        markers = [\"slow\"]\n";
    write(
        &workspace.path("shapes"),
        &[
            ("pyproject.toml", project),
            ("src/shapes/__init__.py", SHAPES),
            ("tests/test_shapes.py", TESTS),
        ],
    );
    let arguments = ["tasks", "make", "shapes", "--output", "made", "--limit"];
    workspace
        .run(&[&arguments[..], &["4", "--max-candidates", "40"]].concat())
        .expect(0);
    let text = fs::read_to_string(workspace.path("made/tasks.jsonl")).unwrap();
    let (task, n_public) = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|task| {
            let n_public = task["verifier"]["public"]["fail_to_pass"]
                .as_array()
                .map_or(0, Vec::len);
            (task, n_public)
        })
        .find(|(_, n_public)| *n_public > 0)
        .unwrap();
    let given = task["verifier"]["arguments"].to_string();
    assert!(
        given.contains("pytest_timeout") && given.contains("--ignore-glob"),
        "{given}"
    );
    let statement = task["statement"].as_str().unwrap();
    let command = statement.trim_end().lines().next_back().unwrap().trim();
    assert_eq!(
        command,
        "python -m pytest -q -o addopts= --strict-markers -m 'not slow' tests/test_shapes.py"
    );

    let agent = workspace.script("tester", &[&bash(command), &submit()]);
    let id = task["id"].as_str().unwrap();
    let only = ["run", "--suite", "made", "--task", id, "--agent", &agent];
    workspace
        .run(&[&only[..], &["-o", "job"]].concat())
        .expect(0);
    let trial = workspace.path("job/trials").join(id).join("0");
    let step = fs::read_to_string(trial.join("trajectory.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .find(|line| line["record"] == "step")
        .unwrap();
    let output = step["actions"][0]["output"].as_str().unwrap();
    assert!(output.contains(&format!("{n_public} failed, ")), "{output}");
}

/// Makes a repository of what stands there, and commits the shapes without their fault.
fn commit_fix(directory: &Path, message: &str) {
    git(directory, &["init", "--quiet"]);
    git(directory, &["add", "."]);
    git(directory, &["commit", "--quiet", "-m", "Begin"]);
    write(directory, &[("src/shapes/__init__.py", SHAPES)]);
    git(directory, &["commit", "--quiet", "-am", message]);
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
    commit_fix(
        &directory,
        "Fix clamp for large values\n\nValues above the upper bound became the lower one.",
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

/// Serves the files of a directory on loopback until the process ends; git reads a bare repository
/// from it that `update-server-info` was run in.
fn serve(root: PathBuf) -> (String, Arc<std::sync::atomic::AtomicBool>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let is_down = Arc::new(AtomicBool::new(false));
    let down = is_down.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let first = lines.next().unwrap().unwrap();
            for line in lines {
                if line.unwrap().is_empty() {
                    break;
                }
            }
            let path = first
                .split([' ', '?'])
                .nth(1)
                .unwrap()
                .trim_start_matches('/');
            let content = fs::read(root.join(path))
                .ok()
                .filter(|_| !down.load(Relaxed));
            let (status, body) = match content {
                Some(body) => ("200 OK", body),
                None => ("404 Not Found", Vec::new()),
            };
            let n = body.len();
            let head =
                format!("HTTP/1.1 {status}\r\nContent-Length: {n}\r\nConnection: close\r\n\r\n");
            let _ = stream
                .write_all(head.as_bytes())
                .and_then(|()| stream.write_all(&body));
        }
    });
    (address, is_down)
}

#[test]
fn an_address_gives_its_branches_tags_and_history_as_they_are_now() {
    let workspace = Workspace::new(0);
    let directory = workspace.path("shapes");
    let then = SHAPES.replace("high:\n        return high", "high:\n        return low");
    let project = "[project]\nname = \"shapes\"\nversion = \"1.0\"\ndependencies = []\n";
    write(
        &directory,
        &[
            ("pyproject.toml", project),
            ("src/shapes/__init__.py", &then),
            ("tests/test_shapes.py", TESTS),
        ],
    );
    commit_fix(&directory, "Fix clamp for values above the bound");
    git(&directory, &["tag", "v1"]);
    let served = workspace.path("www/shapes.git");
    fs::create_dir_all(&served).unwrap();
    git(&served, &["init", "--quiet", "--bare"]);
    let publish = || {
        git(
            &directory,
            &["push", "--quiet", "--all", served.to_str().unwrap()],
        );
        git(
            &directory,
            &["push", "--quiet", "--tags", served.to_str().unwrap()],
        );
        git(&served, &["update-server-info"]);
    };
    publish();
    let (host, is_down) = serve(workspace.path("www"));
    let make = |source: &str, more: &[&str]| {
        let source = source.replace("HOST", &host);
        let arguments = [
            "tasks",
            "make",
            &source,
            "--output",
            "made",
            "--kinds",
            "pr_mirror",
        ];
        workspace.run(&[&arguments[..], more].concat())
    };
    let tag = "HOST/shapes.git@v1";
    make(tag, &[]).expect(0);
    let text = fs::read_to_string(workspace.path("made/tasks.jsonl")).unwrap();
    let tasks: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(tasks.len(), 1);
    assert_eq!(tasks[0]["origin"]["bug"], "pr-mirror");
    let statement = tasks[0]["statement"].as_str().unwrap();
    assert!(
        statement.contains("Fix clamp for values above"),
        "{statement}"
    );

    // What was pushed since is seen.
    git(&directory, &["checkout", "--quiet", "-b", "without/tests"]);
    git(&directory, &["rm", "--quiet", "-r", "tests"]);
    git(&directory, &["commit", "--quiet", "-m", "Drop tests"]);
    publish();
    let ran = make("HOST/shapes.git@without/tests", &[]).expect(3);
    assert!(
        ran.stderr.contains("find tests of shapes"),
        "{}",
        ran.stderr
    );
    let ran = make("HOST/shapes.git@v2", &[]).expect(3);
    assert!(ran.stderr.contains("find v2 in http://"), "{}", ran.stderr);

    // What was copied stays of use.
    is_down.store(true, Relaxed);
    let ran = make(tag, &[]).expect(0);
    let note = "shapes.git is taken as an earlier run copied it: failed to run git fetch";
    assert!(ran.stderr.contains(note), "{}", ran.stderr);
    make(tag, &["--offline"]).expect(0);
    for (more, hint) in [
        (&[][..], "hint: check the address"),
        (&["--offline"], "clone it elsewhere"),
    ] {
        let ran = make("HOST/other.git", more).expect(4);
        assert!(
            ran.stderr.contains("failed to copy the repository http://"),
            "{}",
            ran.stderr
        );
        assert!(ran.stderr.contains(hint), "{}", ran.stderr);
    }

    // A bare repository on this machine gives its main branch, here as `git clone` names it.
    let bare = format!("file://{}", served.display());
    make(&bare, &["--limit", "1"]).expect(0);
}

#[test]
fn unsuitable_repositories_are_told_why_and_what_to_do() {
    let workspace = Workspace::new(0);
    let test = ("tests/test_a.py", "def test_a():\n    import a\n");
    let code = ("a.py", "x = 1\n");
    type Files<'a> = &'a [(&'a str, &'a str)];
    let cases: [(&str, Files<'_>, i32, &str, &str); 9] = [
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
            "No module named 'missing_module' (test_a.py, line 1); --with REQUIREMENT",
        ),
        (
            "failing",
            &[
                (
                    "pyproject.toml",
                    "[project]\nname = \"failing\"\nversion = \"1\"\n",
                ),
                code,
                ("test_a.py", "def test_a():\n    assert 4 == 5\n"),
            ],
            3,
            "1 found, 1 excluded (not-passing 1), 0 files not collected",
            "FAILED test_a.py::test_a - assert 4 == 5; tasks need tests that pass",
        ),
        (
            "unparsed",
            &[
                (
                    "pyproject.toml",
                    "[project]\nname = \"unparsed\"\nversion = \"1\"\n",
                ),
                ("a.py", "def f(x:\n"),
                test,
            ],
            3,
            "find tests that can be trusted",
            "SyntaxError",
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
