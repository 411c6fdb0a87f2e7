//! Audits of small sets in which it is known what is wrong.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};
use temper_core::{Split, Task};
use temper_dataset::audit::{
    Ending, FigureName, FindingKind, FormatFault, Options, References, Report, RowAudit, Tie,
    Truncation, audit,
};

use crate::support::task;

const SUBMIT: &str =
    "Done.\n\n```bash\necho MINI_SWE_AGENT_FINAL_OUTPUT && git add -A && git diff --cached\n```";

fn act(command: &str) -> String {
    format!("THOUGHT: next\n\n```bash\n{command}\n```\n")
}

/// A row with the turns of an assistant, each but the last answered.
fn row(id: &str, task: &str, turns: &[String]) -> Value {
    let mut messages = vec![
        json!({"role": "system", "content": "You act."}),
        json!({"role": "user", "content": task}),
    ];
    for (index, turn) in turns.iter().enumerate() {
        messages.push(json!({"role": "assistant", "content": turn}));
        if index + 1 < turns.len() {
            messages.push(json!({"role": "user", "content": "<returncode>0</returncode>"}));
        }
    }
    json!({"instance_id": id, "messages": messages})
}

fn edit(words: &str) -> String {
    act(&format!(
        "sed -i 's/{words} one two three four/five six seven/' src/a.py"
    ))
}

struct Audited {
    report: Report,
    rows: Vec<RowAudit>,
}

fn run(rows: &[Value], references: &References, workers: usize) -> Audited {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows.jsonl");
    let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
    fs::write(&path, lines).unwrap();
    let count = |text: &str| text.split_whitespace().count() as u64;
    let options = Options {
        workers,
        references,
        tokens: Some(&count),
        max_tokens: Some(500),
    };
    let mut seen = Vec::new();
    let mut report = audit(&[path], &options, &mut |row| {
        seen.push(row.clone());
        Ok(())
    })
    .unwrap();
    report.files[0].path = PathBuf::from("rows.jsonl");
    Audited { report, rows: seen }
}

fn figure(report: &Report, name: FigureName) -> (u64, u64) {
    let figure = report.figure(name).unwrap();
    (figure.n, figure.of)
}

/// A task of a project.
fn of_project(id: &str, project: &str, statement: &str, split: Split) -> Task {
    let mut task = task(id, "g", statement, split);
    task.origin.project = project.to_owned();
    task
}

#[test]
fn each_fault_is_found_and_counted_once() {
    let good = vec![edit("alpha"), act("pytest -q"), SUBMIT.to_owned()];
    let rows = [
        row("a__a.00000001.x", "Fix a.", &good),
        // No test at all; then the first row's messages under another id.
        row(
            "a__b.00000001.x",
            "Fix b.",
            &[edit("beta"), SUBMIT.to_owned()],
        ),
        row("a__c.00000001.x", "Fix a.", &good),
        // Tested before the last edit only.
        row(
            "a__d.00000001.x",
            "Fix d.",
            &[act("pytest"), edit("delta"), SUBMIT.to_owned()],
        ),
        // Two blocks in a turn; no block in another.
        row(
            "a__e.00000001.x",
            "Fix e.",
            &[act("ls") + &act("ls"), "Hm.".to_owned(), SUBMIT.to_owned()],
        ),
        // Ends in an open block, in an open command, without a marker.
        row("a__f.00000001.x", "Fix f.", &["```bash\nls".to_owned()]),
        row("a__g.00000001.x", "Fix g.", &[act("cat <<'EOF' > a.py\nx")]),
        row("a__h.00000001.x", "Fix h.", &[act("ls")]),
        // The marker after output.
        row(
            "a__i.00000001.x",
            "Fix i.",
            &[act("ls && echo MINI_SWE_AGENT_FINAL_OUTPUT")],
        ),
        // Ends with an observation; two user messages and an unknown role; nothing.
        json!({"instance_id": "a__a.00000001.x", "messages": [
            {"role": "user", "content": "Fix."}, {"role": "assistant", "content": act("ls")},
            {"role": "user", "content": "x"}]}),
        json!({"instance_id": null, "messages": [
            {"role": "user", "content": "a"}, {"role": "user", "content": "b"},
            {"role": "narrator", "content": "c"}]}),
        json!({"instance_id": "", "messages": []}),
        json!({"messages": "no list"}),
    ];
    let audited = run(&rows, &References::default(), 2);
    let report = &audited.report;
    assert_eq!(figure(report, FigureName::Readable), (12, 13));
    assert_eq!(figure(report, FigureName::FormatValid), (8, 12));
    assert_eq!(figure(report, FigureName::SubmitReady), (5, 12));
    assert_eq!(
        figure(report, FigureName::FormatValidAndSubmitReady),
        (4, 12)
    );
    assert_eq!(figure(report, FigureName::SelfTested), (3, 5));
    assert_eq!(figure(report, FigureName::SelfTestedAfterLastEdit), (2, 5));
    assert_eq!(figure(report, FigureName::Empty), (2, 12));
    assert_eq!(figure(report, FigureName::Truncated), (4, 12));
    assert_eq!(figure(report, FigureName::Duplicate), (1, 12));
    assert_eq!(figure(report, FigureName::RepeatedInstance), (2, 11));
    let counts = |fault| {
        let mut faults = report.format_faults.iter();
        faults.find(|(kind, _)| *kind == fault).unwrap().1
    };
    assert_eq!(counts(FormatFault::NoMessages), 1);
    assert_eq!(counts(FormatFault::UnknownRole), 1);
    assert_eq!(counts(FormatFault::RolesDoNotAlternate), 1);
    assert_eq!(counts(FormatFault::NoAssistantTurn), 2);
    assert_eq!(counts(FormatFault::TurnWithoutAction), 2);
    assert_eq!(counts(FormatFault::TurnWithSeveralActions), 1);
    let endings: Vec<u64> = report.endings.iter().map(|(_, n)| *n).collect();
    assert_eq!(endings, [5, 1, 3, 1, 2]);
    assert_eq!(
        report.truncations,
        [
            (Truncation::EndsWithObservation, 2),
            (Truncation::OpenBlock, 1),
            (Truncation::OpenCommand, 1)
        ]
    );
    assert_eq!(audited.rows.len(), 13);
    assert_eq!(audited.rows[2].duplicate_of, Some(audited.rows[0].place));
    assert_eq!(audited.rows[8].facts.ending, Ending::MarkerAfterOutput);
    assert!(audited.rows[12].facts.unreadable.is_some());
    let kinds: Vec<&FindingKind> = report
        .findings
        .iter()
        .map(|finding| &finding.kind)
        .collect();
    assert!(kinds.is_sorted());
    assert_eq!(report.findings[0].kind, FindingKind::Unreadable);
}

#[test]
fn the_report_does_not_depend_on_threads() {
    let rows: Vec<Value> = (0..5000)
        .map(|number| {
            let turns = [edit(&format!("word{}", number % 1777)), SUBMIT.to_owned()];
            row(&format!("a__b.{number:08x}.x"), "Fix it.", &turns)
        })
        .collect();
    let one = run(&rows, &References::default(), 1);
    let four = run(&rows, &References::default(), 4);
    assert_eq!(one.report, four.report);
    assert_eq!(one.rows, four.rows);
    assert_eq!(
        figure(&one.report, FigureName::Duplicate),
        (5000 - 1777, 5000)
    );
}

#[test]
fn rows_with_nearly_the_same_edits_are_found() {
    let long = |changed: usize| {
        let lines: String = (0..100)
            .map(|line| {
                let word = if line == changed { "other" } else { "value" };
                format!("{word}{line} = compute(argument{line}, option{line})\n")
            })
            .collect();
        act(&format!("cat > src/a.py <<'EOF'\n{lines}EOF"))
    };
    let submit = SUBMIT.to_owned();
    let rows = [
        row("a__a.00000001.x", "Fix a.", &[long(1000), submit.clone()]),
        row(
            "a__a.00000001.x",
            "Fix b.",
            &[act("ls"), long(50), submit.clone()],
        ),
        row(
            "a__a.00000001.x",
            "Fix c.",
            &[edit("entirely different words here"), submit],
        ),
    ];
    let audited = run(&rows, &References::default(), 1);
    let near = audited.rows[1].near_duplicate_of.unwrap();
    assert_eq!(near.row, audited.rows[0].place);
    assert!(near.similarity >= 0.9, "{near:?}");
    assert_eq!(audited.rows[2].near_duplicate_of, None);
    assert_eq!(figure(&audited.report, FigureName::NearDuplicate), (1, 3));
}

#[test]
fn ties_to_held_out_tasks_are_found_three_ways() {
    let statement = "The function partition_all drops the last element of a sequence whose length is not a multiple of n, since the fill value is compared by equality and not by identity.";
    let mut references = References::default();
    references.add(
        "suite",
        &[
            of_project("pytoolz__toolz-12", "pytoolz/toolz", statement, Split::Test),
            of_project("other", "otherlib", "Short.", Split::Train),
        ],
    );
    let submit = [SUBMIT.to_owned()];
    let shouted = format!(
        "<pr_description>\nHello! {}\n</pr_description> rules",
        statement.to_uppercase()
    );
    let rows = [
        row("pytoolz__toolz-12", "Anything.", &submit),
        row("PyToolz__toolz.12345678.x", "Anything else.", &submit),
        row("a__b.12345678.x", &shouted, &submit),
        row(
            "a__otherlib-3",
            "The function partition_all drops nothing.",
            &submit,
        ),
        row("a__b.12345678.y", "Unrelated.", &submit),
    ];
    let audited = run(&rows, &references, 2);
    let ties: Vec<Vec<(Split, Tie)>> = audited
        .rows
        .iter()
        .map(|row| row.overlaps.iter().map(|o| (o.split, o.tie)).collect())
        .collect();
    assert_eq!(
        ties,
        [
            vec![
                (Split::Test, Tie::InstanceId),
                (Split::Test, Tie::Repository)
            ],
            vec![(Split::Test, Tie::Repository)],
            vec![(Split::Test, Tie::TaskText)],
            vec![(Split::Train, Tie::Repository)],
            vec![],
        ]
    );
    let mut overlaps = audited.report.overlaps.iter();
    let test = overlaps.find(|o| o.split == Split::Test).unwrap();
    assert_eq!(
        (
            test.n_rows_by_id,
            test.n_rows_by_repository,
            test.n_rows_by_text,
            test.n_rows,
            test.of
        ),
        (1, 2, 1, 3, 5)
    );
    let held_out: Vec<u64> = audited
        .report
        .findings
        .iter()
        .filter(|finding| matches!(finding.kind, FindingKind::HeldOutOverlap { .. }))
        .map(|finding| finding.n)
        .collect();
    assert_eq!(held_out, [3]);
}

#[test]
fn nothing_ever_says_that_a_row_is_solved() {
    let audited = run(
        &[row("a__a.00000001.x", "Fix a.", &[SUBMIT.to_owned()])],
        &References::default(),
        1,
    );
    let mut text = serde_json::to_string(&audited.report).unwrap();
    text.push_str(&serde_json::to_string(&audited.rows).unwrap());
    for finding in &audited.report.findings {
        text.push_str(&finding.kind.words());
    }
    for figure in &audited.report.figures {
        text.push_str(figure.name.words());
        text.push_str(figure.denominator.words());
    }
    for word in [
        "solved", "resolved", "reward", "passed", "correct", "success",
    ] {
        assert!(!text.contains(word), "{word}");
    }
}
