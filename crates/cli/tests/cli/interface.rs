//! The command line as an interface: exit codes, help, errors, formats.

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
    for (page, n_lines) in [
        (include_str!("../../../../docs/klear-agentforge.md"), 17),
        (include_str!("../../../../docs/context.md"), 2),
        (include_str!("../../../../docs/claims.md"), 4),
        (include_str!("../../../../docs/canary.md"), 3),
    ] {
        let whole = page.replace("\\\n", " ");
        let lines = whole.lines().filter_map(|line| line.strip_prefix("    "));
        let mut n = 0;
        for line in lines.filter_map(|line| line.trim().strip_prefix("temper ")) {
            n += 1;
            let line = line.split(" > ").next().unwrap_or(line);
            let line = line
                .replace("[the flags of run]", "")
                .replace("AGENT", "noop");
            // What is in brackets may be left out, and may be there.
            let words: Vec<&str> = line
                .split_whitespace()
                .map(|word| word.trim_matches(['[', ']']))
                .filter(|word| !word.is_empty() && *word != "…")
                .chain(["--help"])
                .collect();
            let shown = workspace.run(&words).expect(0).stdout;
            assert!(shown.contains("Usage: temper"), "{line}: {shown}");
        }
        assert!(n >= n_lines, "{n} of {n_lines} lines");
    }
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
