//! The command line as an interface: exit codes, help, errors, formats.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::support::{Ran, Workspace, bash, submit};

#[test]
fn the_page_of_exit_codes_is_true() {
    let source = include_str!("../../src/exit_code.rs");
    let page = include_str!("../../../../docs/exit-codes.md");
    let mut n_codes = 0;
    for line in source.lines() {
        let Some(rest) = line.strip_prefix("pub const ") else {
            continue;
        };
        let (name, value) = rest.trim_end_matches(';').split_once(": u8 = ").unwrap();
        assert!(
            page.contains(&format!("| {value} | `{name}` |")),
            "{name} = {value}"
        );
        n_codes += 1;
    }
    assert_eq!(page.matches("\n| ").count() - 2, n_codes);
}

/// The command lines that pages tell a reader to type have verbs and flags that there are. `--help`
/// at the end lets a line be read without being run.
#[test]
fn the_command_lines_of_the_pages_are_those_of_the_program() {
    let workspace = Workspace::new(0);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = fs::read_dir(root.join("docs")).unwrap();
    let mut pages: Vec<PathBuf> = docs.map(|entry| entry.unwrap().path()).collect();
    let others = [
        "README.md",
        "README.zh-CN.md",
        "CONTRIBUTING.md",
        "benches/README.md",
        "examples/experiments/README.md",
        "suites/temper-mend/README.md",
    ];
    pages.extend(others.map(|page| root.join(page)));
    let (mut n, mut wrong) = (0, Vec::new());
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        // A line that ends in a backslash goes on in the next, which is indented.
        let whole = text
            .split("\\\n")
            .enumerate()
            .map(|(index, part)| if index == 0 { part } else { part.trim_start() })
            .collect::<String>();
        for line in typed(&whole) {
            n += 1;
            let words: Vec<&str> = line.split_whitespace().chain(["--help"]).collect();
            let ran = workspace.run(&words);
            if !ran.stdout.contains("Usage: temper") {
                wrong.push(format!("{}: {line}\n{}", page.display(), ran.stderr));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(n >= 130, "{n} lines");
}

/// The arguments in every line and every piece of a sentence that a page sets as code and that begins
/// with the program's name. What stands for something of the reader's is replaced where not every
/// word would do.
fn typed(page: &str) -> Vec<String> {
    let mut is_fenced = false;
    let mut lines = Vec::new();
    for line in page.lines() {
        if line.starts_with("```") {
            is_fenced = !is_fenced;
        } else if is_fenced || line.starts_with("    ") {
            lines.extend(line.split(" && ").map(str::trim));
        } else {
            // Every other piece between backticks is code in a sentence.
            lines.extend(line.split('`').skip(1).step_by(2));
        }
    }
    let commands = lines.into_iter().filter_map(|line| {
        line.strip_prefix("temper ")
            .or_else(|| line.strip_prefix("cargo run -- "))
    });
    commands
        .map(|command| {
            // An output file, a comment, and what goes on to another program.
            let ends = [" > ", " # ", " -- ", " [-- "];
            let command = ends
                .iter()
                .fold(command, |rest, end| rest.split(end).next().unwrap_or(rest));
            // Two spaces begin an explanation, or align a flag.
            let mut columns = command.split("  ").map(str::trim);
            let first = columns.next().unwrap_or_default().to_owned();
            let flags = columns.filter(|column| column.starts_with("--"));
            let command = flags.fold(first, |line, flag| format!("{line} {flag}"));
            // Of alternatives in brackets the first; what is in brackets may be there.
            let mut line = String::new();
            for part in command.split_inclusive(']') {
                line += part.split(" | ").next().unwrap_or(part);
                line.push(' ');
            }
            line.replace(['[', ']', '…'], "")
                .replace("the flags of run", "")
                .replace("AGENT", "noop")
                .replace("SHAPE", "messages")
                .replace(" N ", " 1 ")
                .replace("TOKENS", "1")
        })
        .collect()
}

#[test]
fn every_verb_explains_itself() {
    let workspace = Workspace::new(0);
    for verb in [
        "tasks",
        "model",
        "context",
        "run",
        "grade",
        "evaluate",
        "collect",
        "canary",
        "claims",
        "record",
        "compare",
        "report",
        "export",
        "profile",
        "doctor",
        "completions",
    ] {
        let ran = workspace.run(&[verb, "--help"]).expect(0);
        assert!(ran.stdout.contains("Usage: temper"), "{verb}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let ran = workspace.run(&["completions", shell]).expect(0);
        assert!(ran.stdout.contains("evaluate"), "{shell}");
    }
}

#[test]
fn the_made_suite_is_what_its_page_says() {
    let workspace = Workspace::new(0);
    let page = include_str!("../../../../suites/temper-mend/README.md");
    let card = workspace
        .run(&["tasks", "card", "--suite", "temper-mend"])
        .expect(0);
    assert!(page.contains(&card.stdout), "{}", card.stdout);
}

#[test]
fn wrong_input_is_named_with_a_hint_and_a_code() {
    let workspace = Workspace::new(1);
    for (arguments, code, words) in [
        (
            vec!["tasks", "list", "--suite", "nowhere"],
            3,
            "there is no such file",
        ),
        (
            vec!["tasks", "list", "--suite", "suite", "--task", "x*"],
            3,
            "none matches",
        ),
        (
            vec!["run", "--suite", "suite", "--agent", "gpt", "-o", "job"],
            2,
            "expected http://",
        ),
        (
            vec![
                "run", "--suite", "suite", "--agent", "noop", "-o", "job", "--demand", "magic",
            ],
            2,
            "none of that name",
        ),
        (
            vec![
                "run",
                "--suite",
                "suite",
                "--agent",
                "noop",
                "-o",
                "job",
                "--set",
                "agent.magic=1",
            ],
            2,
            "magic",
        ),
        (vec!["compare", "suite", "suite"], 3, "no manifest.json"),
        (
            vec!["evaluate", "--candidate", "noop", "--model", "scripted:x"],
            2,
            "cannot be used with",
        ),
    ] {
        let ran = workspace.run(&arguments).expect(code);
        assert!(ran.stderr.contains(words), "{arguments:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{arguments:?}");
        assert!(!workspace.path("job").exists(), "{arguments:?}");
    }
}

#[test]
fn an_evaluation_ends_with_a_comparison_and_a_page() {
    let workspace = Workspace::new(4);
    let model = workspace.script("solver", &[&bash("echo yes > answer.txt"), &submit()]);
    let ran = workspace
        .run(&[
            "evaluate", "--suite", "suite", "--model", &model, "-o", "out", "--format", "json",
        ])
        .expect(0);
    let comparison = ran.json();
    assert_eq!(comparison["arms"][0]["tasks_solved"]["n_solved"], 0);
    assert_eq!(comparison["arms"][1]["tasks_solved"]["n_solved"], 4);
    let written = std::fs::read_to_string(workspace.path("out/comparison.json")).unwrap();
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&written).unwrap(),
        comparison
    );
    let page = std::fs::read_to_string(workspace.path("out/report.html")).unwrap();
    assert!(page.contains("answer-003"));
    assert!(!page.contains("src=\"http") && !page.contains("href=\"http://"));

    let again = workspace
        .run(&[
            "compare",
            "out/baseline",
            "out/candidate",
            "--format",
            "json",
        ])
        .expect(0);
    assert_eq!(again.json(), comparison);
    let table = workspace
        .run(&["compare", "out/baseline", "out/candidate"])
        .expect(0)
        .stdout;
    assert!(table.contains("4 gained, 0 regressed"), "{table}");
}

#[test]
fn validation_proves_and_disproves() {
    let workspace = Workspace::new(2);
    let ran = workspace
        .run(&["tasks", "validate", "--suite", "suite", "--format", "json"])
        .expect(0);
    assert!(
        ran.json()
            .as_array()
            .unwrap()
            .iter()
            .all(|row| row["proven"] == true)
    );
    std::fs::write(
        workspace.path("suite/tasks/answer-001/start/answer.txt"),
        "yes\n",
    )
    .unwrap();
    let ran = workspace
        .run(&["tasks", "validate", "--suite", "suite", "--format", "json"])
        .expect(7);
    let rows = ran.json();
    assert_eq!(
        (&rows[0]["proven"], &rows[1]["proven"]),
        (&true.into(), &false.into())
    );
}

#[test]
fn a_secret_in_the_environment_stays_out_of_every_file() {
    let workspace = Workspace::new(1);
    let secret = "sk-0123456789abcdef0123456789abcdef";
    let model = workspace.script(
        "thief",
        &[
            &bash("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; cat ~/.netrc 2>/dev/null; true"),
            &submit(),
        ],
    );
    let mut command =
        workspace.temper(&["run", "--suite", "suite", "--agent", &model, "-o", "job"]);
    let output = command.env("OPENAI_API_KEY", secret).output().unwrap();
    Ran::new(output).expect(0);
    let found = std::process::Command::new("grep")
        .args(["-rl", secret])
        .arg(workspace.path("job"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
}
