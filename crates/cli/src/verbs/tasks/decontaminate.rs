//! `temper tasks decontaminate`: holds a suite against what others measure with.

use std::path::PathBuf;

use temper_report::{
    Format,
    table::{Align, Table},
};
use temper_tasks::decontaminate::{self, KNOWN_SETS, Match, Report, Suite, Thresholds};

use crate::{error::CliError, exit_code, output, places::Places, suites, tasks};

/// Columns of an excerpt.
const WIDTH: usize = 58;
/// Lines of an excerpt.
const MAX_LINES: usize = 12;

/// Flags.
#[derive(clap::Args, Debug)]
pub struct DecontaminateArgs {
    /// A file or directory of tasks
    pub suite: String,
    /// A reference: records (.json, .jsonl, .parquet; .gz too), a file of text or code, or a
    /// directory of such. May be given more than once
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub against: Vec<PathBuf>,
    /// The repositories of a published set: swe-bench, swe-bench-dev, swe-gym
    /// [default: all, when no reference is given]
    #[arg(long, value_name = "NAME")]
    pub known: Vec<String>,
    /// Two repositories are one (a fork, a new name). May be given more than once
    #[arg(long, value_name = "A=B")]
    pub rename: Vec<String>,
    /// Show the texts side by side
    #[arg(long)]
    pub excerpts: bool,
    /// How.
    #[command(flatten)]
    pub format: crate::args::FormatArgs,
}

/// Compares; exit code [`exit_code::FINDINGS`] when something overlaps.
pub fn run(args: &DecontaminateArgs, places: &Places) -> Result<u8, CliError> {
    let path = suites::locate(&args.suite, &places.cache)?;
    let loaded = temper_tasks::load(&path, None).map_err(tasks::input_error)?;
    let usage = |message: String| CliError::new(exit_code::USAGE, message);
    let renames: Vec<(String, String)> = args
        .rename
        .iter()
        .map(|pair| {
            let (a, b) = pair
                .split_once('=')
                .ok_or_else(|| usage(format!("read the rename {pair:?}: expected A=B")))?;
            Ok((a.to_owned(), b.to_owned()))
        })
        .collect::<Result<_, CliError>>()?;
    let mut suite = Suite::new(&loaded.tasks, Thresholds::default(), &renames);
    let all = args.against.is_empty() && args.known.is_empty();
    for name in &args.known {
        if !KNOWN_SETS.iter().any(|set| set.name == name) {
            let names: Vec<&str> = KNOWN_SETS.iter().map(|set| set.name).collect();
            return Err(usage(format!(
                "compare with the set {name:?}: it is none of {}",
                names.join(", ")
            ))
            .hint("a file of its records can be given with --against"));
        }
    }
    for set in KNOWN_SETS
        .iter()
        .filter(|set| all || args.known.iter().any(|name| name == set.name))
    {
        suite.check_known(set);
    }
    for path in &args.against {
        decontaminate::check(&mut suite, path).map_err(tasks::input_error)?;
    }
    let report = suite.report();
    let format: Format = args.format.format;
    output::data(&format.one(&report, || table(&report, args.excerpts)));
    Ok(if report.matches.is_empty() {
        exit_code::SUCCESS
    } else {
        exit_code::FINDINGS
    })
}

fn table(report: &Report, excerpts: bool) -> String {
    let mut table = Table::new(&[
        ("task", Align::Left),
        ("part", Align::Left),
        ("overlap", Align::Left),
        ("reference", Align::Left),
    ]);
    let mut sides = String::new();
    for found in &report.matches {
        table.row([
            found.task.to_string(),
            output::printable(&found.part),
            output::printable(&found.overlap.to_string()),
            output::printable(&place(found)),
        ]);
        if let (true, Some(own), Some(other)) =
            (excerpts, &found.task_excerpt, &found.reference_excerpt)
        {
            sides.push_str(&format!(
                "\n{} and {}\n",
                found.task,
                output::printable(&place(found))
            ));
            sides.push_str(&side_by_side(own, other));
        }
    }
    let more = match report.n_not_listed {
        0 => String::new(),
        n => format!("; {n} weaker or equal matches are not listed"),
    };
    let summary = format!(
        "{} of {} tasks overlap with {} references{more}\n",
        report.n_tasks_overlapping, report.n_tasks, report.n_references
    );
    if report.matches.is_empty() {
        summary
    } else {
        format!("{table}{sides}\n{summary}")
    }
}

fn place(found: &Match) -> String {
    [
        Some(&found.file),
        found.record.as_ref(),
        found.field.as_ref(),
    ]
    .into_iter()
    .flatten()
    .map(String::as_str)
    .collect::<Vec<_>>()
    .join(" ")
}

fn side_by_side(own: &str, other: &str) -> String {
    let lines = |text: &str| -> Vec<String> {
        output::printable(text)
            .lines()
            .flat_map(|line| {
                let characters: Vec<char> = line.replace('\t', "    ").chars().collect();
                let pieces: Vec<String> = characters
                    .chunks(WIDTH)
                    .map(|piece| piece.iter().collect())
                    .collect();
                pieces
            })
            .take(MAX_LINES)
            .collect()
    };
    let (own, other) = (lines(own), lines(other));
    let n = own.len().max(other.len());
    let at = |side: &[String], line: usize| side.get(line).cloned().unwrap_or_default();
    (0..n)
        .map(|line| format!("  {:<WIDTH$} | {}\n", at(&own, line), at(&other, line)))
        .collect()
}
