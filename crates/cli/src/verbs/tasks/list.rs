//! `temper tasks list`: the tasks of a suite, one a row.

use serde::Serialize;
use temper_core::{
    Digest, SourceGroup, Split, Task, TaskId,
    task::{TaskFormat, Verifier},
};
use temper_report::{
    Format,
    table::{Align, Table},
};

use crate::{args::SuiteArgs, error::CliError, exit_code, output, places::Places, tasks};

/// One row.
#[derive(Serialize)]
struct Row {
    id: TaskId,
    format: TaskFormat,
    split: Split,
    source_group: SourceGroup,
    project: String,
    version: Option<String>,
    licence: Option<String>,
    bug: Option<String>,
    n_public_fail_to_pass: Option<usize>,
    n_hidden_fail_to_pass: Option<usize>,
    n_pass_to_pass: Option<usize>,
    digest: Digest,
}

/// Prints the list.
pub fn run(args: &SuiteArgs, format: Format, places: &Places) -> Result<u8, CliError> {
    let suite = tasks::load(args, places)?;
    let rows: Vec<Row> = suite.tasks.iter().map(row).collect();
    output::data(&format.list(&rows, || table(&rows)));
    Ok(exit_code::SUCCESS)
}

fn row(task: &Task) -> Row {
    let (public, hidden, pass) = match &task.verifier {
        Verifier::Pytest { public, hidden, .. } => (
            Some(public.fail_to_pass.len()),
            Some(hidden.fail_to_pass.len()),
            Some(public.pass_to_pass.len() + hidden.pass_to_pass.len()),
        ),
        // The lists of a log verifier are all hidden from the agent.
        Verifier::Log { tests, .. } => (
            None,
            Some(tests.fail_to_pass.len()),
            Some(tests.pass_to_pass.len()),
        ),
        Verifier::Harbor { .. } => (None, None, None),
    };
    Row {
        id: task.id.clone(),
        format: task.format,
        split: task.split,
        source_group: task.source_group.clone(),
        project: task.origin.project.clone(),
        version: task.origin.version.clone(),
        licence: task.origin.licence.clone(),
        bug: task.origin.bug.clone(),
        n_public_fail_to_pass: public,
        n_hidden_fail_to_pass: hidden,
        n_pass_to_pass: pass,
        digest: task.digest(),
    }
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new(&[
        ("task", Align::Left),
        ("split", Align::Left),
        ("source group", Align::Left),
        ("bug", Align::Left),
        ("licence", Align::Left),
        ("public", Align::Right),
        ("hidden", Align::Right),
        ("pass", Align::Right),
    ]);
    let count = |n: Option<usize>| n.map_or("-".to_owned(), |n| n.to_string());
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
    for row in rows {
        table.row([
            row.id.to_string(),
            format!("{:?}", row.split).to_lowercase(),
            row.source_group.to_string(),
            text(&row.bug),
            text(&row.licence),
            count(row.n_public_fail_to_pass),
            count(row.n_hidden_fail_to_pass),
            count(row.n_pass_to_pass),
        ]);
    }
    format!(
        "{table}\n{} tasks; public and hidden count fail-to-pass tests, pass counts pass-to-pass tests\n",
        rows.len()
    )
}
