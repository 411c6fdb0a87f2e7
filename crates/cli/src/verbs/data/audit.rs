//! `temper data audit`: what is in published trajectories.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use temper_checkpoint::tokenizer::{Specials, Tokenizer};
use temper_core::Split;
use temper_dataset::audit::{Distribution, Options, References, Report, RowAudit, RowPlace, audit};
use temper_report::table::{Align, Table};

use super::args::AuditArgs;
use crate::{
    error::CliError,
    exit_code,
    output::{self, printable},
    places::{Places, workers},
    suites,
};

/// Audits the files; exit code [`exit_code::FINDINGS`] when there are findings.
pub fn run(args: &AuditArgs, places: &Places) -> Result<u8, CliError> {
    let mut references = References::default();
    for suite in &args.against {
        let path = suites::locate(suite, &places.cache)?;
        let loaded = temper_tasks::load(&path, None)
            .map_err(|error| CliError::new(exit_code::INPUT, error))?;
        references.add(suite, &loaded.tasks);
    }
    let tokenizer = args.tokenizer.as_deref().map(tokenizer).transpose()?;
    let count = tokenizer.as_ref().map(|tokenizer| {
        move |text: &str| {
            let ids = tokenizer.encode(text, Specials::Literal);
            // A text that is too long for the tokenizer is longer than any limit.
            ids.map_or(u64::MAX, |ids| ids.len() as u64)
        }
    });
    let options = Options {
        workers: workers(args.workers),
        references: &references,
        tokens: count
            .as_ref()
            .map(|count| count as &(dyn Fn(&str) -> u64 + Sync)),
        max_tokens: args.max_tokens,
    };
    let mut rows = args.rows.as_deref().map(RowsFile::create).transpose()?;
    let report = audit(&args.files, &options, &mut |row| match &mut rows {
        Some(rows) => rows.write(row),
        None => Ok(()),
    })
    .map_err(|error| {
        let hint = error.hint();
        CliError::new(exit_code::INPUT, error).maybe_hint(hint)
    })?;
    if let Some(rows) = rows {
        rows.finish()?;
    }
    output::data(&args.format.format.one(&report, || text(&report)));
    if let Some(path) = &args.rows {
        output::note(&format!("rows: {}", path.display()));
    }
    Ok(if report.findings.is_empty() {
        exit_code::SUCCESS
    } else {
        exit_code::FINDINGS
    })
}

fn tokenizer(path: &Path) -> Result<Tokenizer, CliError> {
    let loaded = if path.is_dir() {
        Tokenizer::from_folder(path)
    } else {
        let json = std::fs::read(path).map_err(|error| {
            CliError::new(
                exit_code::INPUT,
                format!("read {}: {error}", path.display()),
            )
        })?;
        Tokenizer::from_json(&json)
    };
    loaded.map_err(|error| CliError::new(exit_code::INPUT, error))
}

/// The file of rows, beside its place until it is whole.
struct RowsFile<'a> {
    path: &'a Path,
    temporary: std::path::PathBuf,
    output: BufWriter<File>,
}

impl<'a> RowsFile<'a> {
    fn create(path: &'a Path) -> Result<Self, CliError> {
        let mut name = path.as_os_str().to_owned();
        name.push(".part");
        let temporary = std::path::PathBuf::from(name);
        let file = File::create(&temporary).map_err(|error| {
            let message = format!("create {}: {error}", temporary.display());
            CliError::new(exit_code::FAILURE, message)
        })?;
        Ok(RowsFile {
            path,
            temporary,
            output: BufWriter::new(file),
        })
    }

    fn write(&mut self, row: &RowAudit) -> io::Result<()> {
        serde_json::to_writer(&mut self.output, row)?;
        self.output.write_all(b"\n")
    }

    fn finish(self) -> Result<(), CliError> {
        let file = self
            .output
            .into_inner()
            .map_err(|error| CliError::from(error.into_error()))?;
        file.sync_all()?;
        std::fs::rename(&self.temporary, self.path)?;
        Ok(())
    }
}

fn text(report: &Report) -> String {
    let mut text = format!(
        "{} rows in {} files, {:.1} MB of text\n",
        report.n_rows,
        report.files.len(),
        report.n_bytes as f64 / 1e6
    );
    let columns: BTreeSet<String> = report
        .files
        .iter()
        .filter_map(|file| Some(file.columns.as_ref()?.join(", ")))
        .collect();
    for columns in columns {
        text.push_str(&format!("columns: {}\n", printable(&columns)));
    }
    text.push('\n');
    let mut figures = Table::new(&[
        ("rows that are", Align::Left),
        ("n", Align::Right),
        ("of", Align::Right),
        ("", Align::Left),
        ("share", Align::Right),
    ]);
    for figure in &report.figures {
        figures.row([
            figure.name.words().to_owned(),
            figure.n.to_string(),
            figure.of.to_string(),
            figure.denominator.words().to_owned(),
            share(figure.n, figure.of),
        ]);
    }
    text.push_str(&format!("{figures}\n"));
    let mut kinds = Table::new(&[
        ("of readable rows", Align::Left),
        ("kind", Align::Left),
        ("n", Align::Right),
    ]);
    let mut kind = |group: &str, name: String, n: u64| {
        if n > 0 {
            kinds.row([group.to_owned(), name, n.to_string()]);
        }
    };
    for (fault, n) in &report.format_faults {
        kind("form", word(fault), *n);
    }
    for (ending, n) in &report.endings {
        kind("ending", word(ending), *n);
    }
    for (sign, n) in &report.truncations {
        kind("cut off", word(sign), *n);
    }
    if !kinds.is_empty() {
        text.push_str(&format!("{kinds}\n"));
    }
    text.push_str(&distributions(report));
    text.push_str(&format!(
        "\n{} instance ids; {} have more than one row, at most {}\n",
        report.instances.n_distinct, report.instances.n_repeated, report.instances.most_rows
    ));
    if !report.overlaps.is_empty() {
        text.push_str(&overlaps(report));
    }
    text.push_str(&findings(report));
    text.push_str("\nNothing was run: no figure says whether submitted work is right.\n");
    text
}

fn distributions(report: &Report) -> String {
    let mut table = Table::new(&[
        ("of a readable row", Align::Left),
        ("min", Align::Right),
        ("median", Align::Right),
        ("mean", Align::Right),
        ("90 %", Align::Right),
        ("99 %", Align::Right),
        ("max", Align::Right),
    ]);
    let mut row = |name: &str, values: &Distribution| {
        table.row([
            name.to_owned(),
            values.min.to_string(),
            values.median.to_string(),
            format!("{:.1}", values.mean),
            values.p90.to_string(),
            values.p99.to_string(),
            values.max.to_string(),
        ]);
    };
    row("messages", &report.messages);
    row("bytes", &report.bytes);
    if let Some(tokens) = &report.tokens {
        row("tokens", tokens);
    }
    format!("{table}quantiles are at most an eighth too high\n")
}

fn overlaps(report: &Report) -> String {
    let mut table = Table::new(&[
        ("rows tied to", Align::Left),
        ("split", Align::Left),
        ("tasks", Align::Right),
        ("by id", Align::Right),
        ("by repository", Align::Right),
        ("by text", Align::Right),
        ("any", Align::Right),
        ("of readable rows", Align::Right),
    ]);
    for overlap in &report.overlaps {
        table.row([
            overlap.suite.clone(),
            split(overlap.split).to_owned(),
            overlap.n_tasks.to_string(),
            overlap.n_rows_by_id.to_string(),
            overlap.n_rows_by_repository.to_string(),
            overlap.n_rows_by_text.to_string(),
            overlap.n_rows.to_string(),
            overlap.of.to_string(),
        ]);
    }
    format!("\n{table}")
}

fn findings(report: &Report) -> String {
    if report.findings.is_empty() {
        return "\nno findings\n".to_owned();
    }
    let mut text = String::from("\nfindings:\n");
    for finding in &report.findings {
        let examples: Vec<String> = finding
            .examples
            .iter()
            .map(|at| place(report, *at))
            .collect();
        text.push_str(&format!(
            "  {} of {} {} {} (row {})\n",
            finding.n,
            finding.of,
            finding.denominator.words(),
            printable(&finding.kind.words()),
            examples.join(", ")
        ));
    }
    text
}

/// A row's number, from 1, with its file where there are several.
fn place(report: &Report, place: RowPlace) -> String {
    match report.files.get(place.file as usize) {
        Some(file) if report.files.len() > 1 => format!(
            "{} of {}",
            place.row + 1,
            printable(&file.path.display().to_string())
        ),
        _ => (place.row + 1).to_string(),
    }
}

fn share(n: u64, of: u64) -> String {
    match of {
        0 => "-".to_owned(),
        of => format!("{:.2} %", 100.0 * n as f64 / of as f64),
    }
}

fn split(split: Split) -> &'static str {
    match split {
        Split::Train => "train",
        Split::Dev => "dev",
        Split::Test => "test",
        Split::Unassigned => "unassigned",
    }
}

/// The name of a kind, as files have it.
fn word<T: serde::Serialize>(kind: &T) -> String {
    match serde_json::to_value(kind) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}
