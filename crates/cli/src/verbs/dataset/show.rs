//! `temper dataset show`: what a data set holds, and its rows token by token.

use std::io::IsTerminal;

use serde_json::{Value, json};
use temper_checkpoint::{Checkpoint, tokenizer::Tokenizer};
use temper_core::manifest::Manifest;
use temper_dataset::{
    build::Dataset,
    render::tokenizer_digest,
    row::{RowOrigin, TokenSource, TrainingRow},
    show::{ShownSpan, show},
    store,
};
use temper_report::table::{Align, Table};

use super::{args::ShowArgs, build};
use crate::{error::CliError, exit_code, output, places::Places, verbs::model::locate::locate};

/// Columns of a line of tokens.
const WIDTH: usize = 100;

/// Shows a data set, or what the flags choose of it.
pub fn run(args: &ShowArgs, places: &Places) -> Result<u8, CliError> {
    let (dataset, manifest) = store::read(&args.dataset)?;
    let rows: Vec<(String, &TrainingRow)> = match (args.row, args.pair) {
        (Some(index), _) => vec![(format!("row {index}"), at(&dataset.rows, index, "rows")?)],
        (None, Some(index)) => {
            let pair = at(&dataset.pairs, index, "pairs")?;
            vec![
                (format!("pair {index}, chosen"), &pair.chosen),
                (format!("pair {index}, rejected"), &pair.rejected),
            ]
        }
        (None, None) => {
            let value = json!({
                "manifest": manifest,
                "report": dataset.report,
                "rows": dataset.rows.iter().map(summary).collect::<Vec<_>>(),
            });
            output::data(&args.format.format.one(&value, || overview(&dataset)));
            return Ok(exit_code::SUCCESS);
        }
    };
    let tokenizer = tokenizer(args, &manifest, places)?;
    let colour = std::io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut values = Vec::new();
    let mut text = String::new();
    for (name, row) in rows {
        let spans =
            show(row, &tokenizer).map_err(|error| CliError::new(exit_code::INPUT, error))?;
        text.push_str(&format!("{name}: {}\n", about(row)));
        for span in &spans {
            write_span(span, colour, &mut text);
        }
        let mut value = summary(row);
        value["name"] = json!(name);
        value["spans"] = spans.iter().map(span_value).collect();
        values.push(value);
    }
    output::data(&args.format.format.list(&values, || text));
    Ok(exit_code::SUCCESS)
}

fn at<'a, T>(items: &'a [T], index: usize, what: &str) -> Result<&'a T, CliError> {
    items.get(index).ok_or_else(|| {
        CliError::new(
            exit_code::USAGE,
            format!("show number {index}: there are {} {what}", items.len()),
        )
        .hint("they are counted from 0")
    })
}

/// The tokenizer that spelled the rows, which is checked.
fn tokenizer(args: &ShowArgs, manifest: &Manifest, places: &Places) -> Result<Tokenizer, CliError> {
    let model = match &args.model {
        Some(model) => model.clone(),
        None => manifest.config["model"]["path"]
            .as_str()
            .ok_or_else(|| {
                CliError::new(
                    exit_code::INPUT,
                    "find the model of the data set: its manifest names none",
                )
                .hint("name it with --model")
            })?
            .to_owned(),
    };
    let located = locate(&model, &args.hub, places)?;
    let tokenizer = Checkpoint::open(&located.path)?.tokenizer()?;
    if manifest.inputs.get("tokenizer") != Some(&tokenizer_digest(&tokenizer)) {
        return Err(CliError::new(
            exit_code::INPUT,
            format!("show tokens with the tokenizer of {model}: the rows were spelled by another"),
        )
        .hint("name the model that the data set was built for with --model"));
    }
    Ok(tokenizer)
}

fn overview(dataset: &Dataset) -> String {
    let mut rows = Table::new(&[
        ("row", Align::Right),
        ("task", Align::Left),
        ("agent", Align::Left),
        ("attempt", Align::Right),
        ("tokens", Align::Right),
        ("learned", Align::Right),
        ("ids", Align::Left),
    ]);
    for (index, row) in dataset.rows.iter().enumerate() {
        let origin = row.origin();
        rows.row([
            index.to_string(),
            origin.task_id.to_string(),
            origin.agent.to_string(),
            origin.attempt.to_string(),
            row.ids().len().to_string(),
            row.n_learned().to_string(),
            source(row).to_owned(),
        ]);
    }
    format!("{}\n{rows}", build::text(&dataset.report))
}

fn about(row: &TrainingRow) -> String {
    let RowOrigin {
        task_id,
        agent,
        attempt,
        ..
    } = row.origin();
    format!(
        "{task_id} {agent}/{attempt}, {} tokens, {} learned, {}",
        row.ids().len(),
        row.n_learned(),
        source(row)
    )
}

fn source(row: &TrainingRow) -> &'static str {
    match row.source() {
        TokenSource::Sampled => "sampled",
        TokenSource::Rendered => "rendered",
    }
}

fn summary(row: &TrainingRow) -> Value {
    json!({
        "origin": row.origin(),
        "source": row.source(),
        "n_tokens": row.ids().len(),
        "n_learned": row.n_learned(),
    })
}

fn span_value(span: &ShownSpan) -> Value {
    let tokens: Vec<Value> = span
        .tokens
        .iter()
        .map(|token| json!({"id": token.id, "text": token.text, "logprob": token.logprob}))
        .collect();
    json!({
        "start": span.start,
        "kind": span.kind,
        "learned": span.learned,
        "reason": span.reason,
        "message": span.message,
        "tokens": tokens,
    })
}

/// A line that says what the tokens are, then each with its id. Learned ones are marked by `+` and,
/// on a terminal, green; the others by `-` and dim.
fn write_span(span: &ShownSpan, colour: bool, text: &mut String) {
    let (sign, on, off) = match (span.learned, colour) {
        (true, true) => ('+', "\u{1b}[32m", "\u{1b}[0m"),
        (false, true) => ('-', "\u{1b}[2m", "\u{1b}[0m"),
        (true, false) => ('+', "", ""),
        (false, false) => ('-', "", ""),
    };
    let message = match span.message {
        Some(message) => format!(", message {message}"),
        None => String::new(),
    };
    text.push_str(&format!(
        "{sign} {}..{}{message}: {}\n",
        span.start,
        span.start + span.tokens.len(),
        span.reason
    ));
    let mut line = String::new();
    let mut flush = |line: &mut String| {
        if !line.is_empty() {
            text.push_str(&format!("{sign}  {on}{line}{off}\n"));
            line.clear();
        }
    };
    for token in &span.tokens {
        // Escaped, so that what a model wrote does not steer the terminal.
        let shown = format!("{:?}={}", token.text, token.id);
        if !line.is_empty() && line.chars().count() + shown.chars().count() >= WIDTH {
            flush(&mut line);
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&shown);
    }
    flush(&mut line);
}
