//! `temper tasks validate`: proves tasks by running them.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use serde::Serialize;
use temper_agent::trial::known_fix;
use temper_core::{Failure, PreparedTask, Task, TaskId};
use temper_report::{
    Format,
    table::{Align, Table},
};
use temper_sandbox::verify::{
    self, GradeRequest, Submission,
    proof::{self, Finding},
};

use crate::{
    args::{SandboxArgs, SuiteArgs},
    error::CliError,
    exit_code, output,
    places::{Places, workers},
    sandboxes::Sandboxes,
    tasks,
};

/// What was found of one task.
#[derive(Serialize)]
struct Row {
    task: TaskId,
    proven: bool,
    findings: Vec<Finding>,
    n_runs: u32,
    seconds: f64,
}

/// Proves the tasks; exit code [`exit_code::FINDINGS`] when one is not proven.
pub fn run(
    suite: &SuiteArgs,
    repeat: u32,
    sandbox: &SandboxArgs,
    n_workers: Option<usize>,
    format: Format,
    places: &Places,
) -> Result<u8, CliError> {
    let sandboxes = Sandboxes::open_for_untrusted(sandbox)?;
    output::note(&sandboxes.summary());
    let suite = tasks::prepare(suite, places, n_workers)?;
    let tasks: Vec<_> = suite.iter().collect();
    let next = AtomicUsize::new(0);
    let rows = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..workers(n_workers).min(tasks.len()) {
            scope.spawn(|| {
                while let Some((task, prepared)) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let row = prove(task, prepared, repeat, &sandboxes);
                    if !places.quiet {
                        let word = if row.proven { "proven" } else { "NOT proven" };
                        output::note(&format!("{}: {word} in {:.1} s", row.task, row.seconds));
                    }
                    if let Ok(mut rows) = rows.lock() {
                        rows.push(row);
                    }
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap_or_default();
    rows.sort_by(|a, b| a.task.cmp(&b.task));
    let n_proven = rows.iter().filter(|row| row.proven).count();
    output::data(&format.list(&rows, || table(&rows, n_proven, repeat)));
    Ok(if n_proven == rows.len() {
        exit_code::SUCCESS
    } else {
        exit_code::FINDINGS
    })
}

fn prove(
    task: &Task,
    prepared: &Result<PreparedTask, Failure>,
    repeat: u32,
    sandboxes: &Sandboxes,
) -> Row {
    let started = Instant::now();
    let mut row = Row {
        task: task.id.clone(),
        proven: false,
        findings: Vec::new(),
        n_runs: 0,
        seconds: 0.0,
    };
    match prepared {
        Err(failure) => row.findings.push(Finding::Lost {
            side: "start",
            reason: failure.message.clone(),
        }),
        Ok(prepared) => match known_fix(task) {
            Err(error) => row.findings.push(Finding::Lost {
                side: "oracle",
                reason: format!("the known fix: {error}"),
            }),
            Ok(fix) => {
                let mut grade = |submission| {
                    row.n_runs += 1;
                    verify::grade(
                        &GradeRequest {
                            task: prepared,
                            submission,
                            backend: sandboxes.backend.as_ref(),
                            limits: sandboxes.limits.clone(),
                            demand: sandboxes.demand.clone(),
                            label: format!("validate.{}", task.id),
                            proven: false,
                        },
                        &mut |_, _| {},
                    )
                };
                let start: Vec<_> = (0..repeat).map(|_| grade(Submission::Start)).collect();
                let oracle: Vec<_> = match &fix {
                    Some(fix) => (0..repeat).map(|_| grade(Submission::Patch(fix))).collect(),
                    None => Vec::new(),
                };
                row.findings = proof::judge(&start, &oracle);
            }
        },
    }
    row.proven = row.findings.is_empty();
    row.seconds = started.elapsed().as_secs_f64();
    row
}

fn table(rows: &[Row], n_proven: usize, repeat: u32) -> String {
    let mut table = Table::new(&[
        ("task", Align::Left),
        ("proven", Align::Left),
        ("runs", Align::Right),
        ("seconds", Align::Right),
        ("first finding", Align::Left),
    ]);
    for row in rows {
        let finding = match row.findings.first() {
            None => String::new(),
            Some(finding) => {
                let more = row.findings.len() - 1;
                let text = serde_json::to_string(finding).expect("findings are plain data");
                let text: String = text.chars().take(120).collect();
                if more > 0 {
                    format!("{text} and {more} more")
                } else {
                    text
                }
            }
        };
        table.row([
            row.task.to_string(),
            if row.proven { "yes" } else { "NO" }.to_owned(),
            row.n_runs.to_string(),
            format!("{:.1}", row.seconds),
            finding,
        ]);
    }
    format!(
        "{table}\n{n_proven} of {} tasks proven: without a fix the fail-to-pass tests fail and the rest pass, with the known fix all pass, {repeat} times each\n",
        rows.len()
    )
}
