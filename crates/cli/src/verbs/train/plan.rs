//! What a run would do: stages, what is done of them, tokens, memory and time.
//!
//! Nothing is written, trained or run. Numbers that nothing measured are not guessed.

use std::{collections::BTreeMap, path::Path};

use serde::Serialize;
use serde_json::{Value, json};
use temper_checkpoint::Adapter;
use temper_core::Digest;
use temper_recipe::{StageName, rate};
use temper_train::RunPlan;

use super::{
    data,
    fit::{Objective, read_adapter},
    gather, select,
    session::Session,
    trials::{Contender, Weights},
};
use crate::{
    args::SplitArg, engines::Chosen, error::CliError, exit_code, live_line::duration, output,
};

/// A plan: stages, and the memory of each kind of training as a table.
#[derive(Serialize)]
struct Plan {
    stages: Vec<Line>,
    memory: BTreeMap<&'static str, String>,
}

/// A line of the plan.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    stage: StageName,
    part: Option<String>,
    state: &'static str,
    /// What is done in it, in words.
    work: String,
    /// Tokens that go through the model in training.
    tokens: Option<u64>,
    /// Bytes on the device.
    memory_bytes: Option<usize>,
    /// From a measured rate.
    seconds: Option<f64>,
}

/// Prints the plan.
pub fn print(session: &Session<'_>) -> Result<u8, CliError> {
    select::check_overlap(session)?;
    let plan = plan(session)?;
    let value = json!({ "stages": plan.stages, "recipe": session.recipe, "memory": plan.memory });
    output::data(&session.args.format.format.one(&value, || {
        let mut text = table(&plan.stages);
        for (label, plan) in &plan.memory {
            text.push_str(&format!("\nmemory of {label}\n{plan}\n"));
        }
        text
    }));
    Ok(exit_code::SUCCESS)
}

fn plan(session: &Session<'_>) -> Result<Plan, CliError> {
    let recipe = &session.recipe;
    let mut lines = gather::plan(session)?;
    let data = data::existing(session)?;
    let start = session.start()?;
    let mut memory = BTreeMap::new();
    let mut n_snapshots = None;
    for &seed in &recipe.train.seeds {
        let config = recipe.train.of_seed(seed);
        let line = match &data {
            None => Line::new(
                StageName::Train,
                "to do",
                "the data set is not there yet".into(),
            ),
            Some(data) => {
                let objective = Objective::Sft(&config, &data.rows);
                let (line, run) = training(
                    session,
                    objective,
                    &data.rows_digest,
                    &start,
                    data.rows.len(),
                )?;
                memory
                    .entry("supervised training")
                    .or_insert_with(|| run.memory.to_string());
                n_snapshots = Some(run.snapshots.len());
                line
            }
        };
        lines.push(Line {
            part: Some(format!("seed-{seed}")),
            ..line
        });
    }
    if let Some(select) = &recipe.select {
        let n_tasks = session.selecting(select)?.len();
        for &seed in &recipe.train.seeds {
            lines.push(trials(
                session,
                StageName::Select,
                format!("seed-{seed}"),
                n_snapshots.map(|n| (n + 1) * n_tasks * select.attempts as usize),
                format!("the start and every snapshot on {n_tasks} dev tasks"),
            )?);
        }
    }
    if let Some(preference) = &recipe.preference {
        let mut n_snapshots = None;
        for &seed in &recipe.train.seeds {
            let config = preference.after(&recipe.train.of_seed(seed));
            let mut line = Line::new(
                StageName::Preference,
                "to do",
                "pairs, from what is selected".into(),
            );
            if let Some(data) = &data
                && !data.pairs.is_empty()
            {
                // The adapter is not known yet; a fresh one takes as much.
                let objective = Objective::Preference(&config, &data.pairs);
                let run = planned(session, objective, None)?;
                memory
                    .entry("preference training")
                    .or_insert_with(|| run.memory.to_string());
                n_snapshots = Some(run.snapshots.len());
                line.fill(&run, measured(session, StageName::Preference)?);
            }
            lines.push(Line {
                part: Some(format!("seed-{seed}")),
                ..line
            });
        }
        if let Some(select) = &recipe.select {
            let n_tasks = session.selecting(select)?.len();
            for &seed in &recipe.train.seeds {
                lines.push(trials(
                    session,
                    StageName::SelectPreference,
                    format!("seed-{seed}"),
                    n_snapshots.map(|n| n * n_tasks * select.attempts as usize),
                    format!("every snapshot on {n_tasks} dev tasks"),
                )?);
            }
        }
    }
    if let Some(evaluate) = &recipe.evaluate {
        let n_tasks = session.tasks(SplitArg::Test, &[], evaluate.limit)?.len();
        let of_each = if recipe.preference.is_some() { 2 } else { 1 };
        let n_arms = 1 + recipe.train.seeds.len() * of_each;
        lines.push(trials(
            session,
            StageName::Evaluate,
            format!("at most {n_arms} arms"),
            Some(n_arms * n_tasks * evaluate.attempts as usize),
            format!("the start and every candidate once on {n_tasks} test tasks"),
        )?);
    }
    lines.push(Line::new(
        StageName::Report,
        "to do",
        "written anew each time".into(),
    ));
    Ok(Plan {
        stages: lines,
        memory,
    })
}

impl Line {
    /// A line of what is done or not.
    pub fn of(stage: StageName, part: Option<String>, is_done: bool, work: String) -> Self {
        Line {
            part,
            ..Line::new(stage, if is_done { "done" } else { "to do" }, work)
        }
    }

    fn new(stage: StageName, state: &'static str, work: String) -> Self {
        Line {
            stage,
            part: None,
            state,
            work,
            tokens: None,
            memory_bytes: None,
            seconds: None,
        }
    }

    fn fill(&mut self, run: &RunPlan, tokens_per_second: Option<f64>) {
        self.tokens = Some(run.n_tokens);
        self.memory_bytes = Some(run.memory.total_bytes());
        self.seconds = tokens_per_second.map(|rate| run.n_tokens as f64 / rate);
    }
}

/// Supervised training with one seed.
fn training(
    session: &Session<'_>,
    objective: Objective<'_>,
    digest: &Digest,
    start: &Contender,
    n_rows: usize,
) -> Result<(Line, RunPlan), CliError> {
    let adapter = match &start.weights {
        Weights::Adapter(path) => Some(read_adapter(path, session)?),
        Weights::Base | Weights::Model(_) => None,
    };
    let run = planned(session, objective, adapter.as_ref())?;
    let stage = objective.stage(session, digest, start)?;
    let state = match session.stages.record(&stage)? {
        Some(_) => "done",
        None if session.stages.is_begun(&stage) => "unfinished",
        None => "to do",
    };
    let work = format!(
        "{} updates over {n_rows} rows, {} snapshots",
        run.total_updates,
        run.snapshots.len()
    );
    let mut line = Line::new(StageName::Train, state, work);
    line.fill(&run, measured(session, StageName::Train)?);
    Ok((line, run))
}

fn planned(
    session: &Session<'_>,
    objective: Objective<'_>,
    start: Option<&Adapter>,
) -> Result<RunPlan, CliError> {
    match session.device()? {
        Chosen::Gpu(gpu) => objective.plan(session, gpu.as_ref(), start),
        Chosen::Processor(cpu) => objective.plan(session, cpu, start),
    }
}

fn trials(
    session: &Session<'_>,
    stage: StageName,
    part: String,
    n_trials: Option<usize>,
    work: String,
) -> Result<Line, CliError> {
    let work = match n_trials {
        Some(n) => format!("{work}: at most {n} trials"),
        None => work,
    };
    let rate = trials_per_second(session)?;
    Ok(Line {
        part: Some(part),
        seconds: n_trials
            .zip(rate)
            .map(|(n_trials, rate)| n_trials as f64 / rate),
        ..Line::new(stage, "to do", work)
    })
}

/// Tokens a second of earlier training of this run on this device.
fn measured(session: &Session<'_>, stage: StageName) -> Result<Option<f64>, CliError> {
    let device = session.device()?.name();
    let mut latest = None;
    for record in records(&session.at(stage.as_str()), 2) {
        let of_device = record.1["config"]["device"] == device.as_str();
        let at = record.1["ended_at"].as_str().unwrap_or_default().to_owned();
        if of_device
            && let Ok(metrics) = std::fs::read(record.0.join("metrics.jsonl"))
            && let Some(rate) = rate::tokens_per_second(&metrics)
            && latest.as_ref().is_none_or(|(known, _)| *known < at)
        {
            latest = Some((at, rate));
        }
    }
    Ok(latest.map(|(_, rate)| rate))
}

/// Trials a second of earlier trials of this run on this device.
fn trials_per_second(session: &Session<'_>) -> Result<Option<f64>, CliError> {
    let device = session.device()?.name();
    let (mut n_trials, mut seconds) = (0.0, 0.0);
    for stage in [
        StageName::Select,
        StageName::SelectPreference,
        StageName::Evaluate,
    ] {
        for (_, record) in records(&session.at(stage.as_str()), 2) {
            if record["config"]["device"] == device.as_str()
                && let (Some(n), Some(s)) = (
                    record["result"]["n_run_last"].as_f64(),
                    record["seconds"].as_f64(),
                )
            {
                n_trials += n;
                seconds += s;
            }
        }
    }
    Ok((n_trials > 0.0 && seconds > 0.0).then(|| n_trials / seconds))
}

/// The records of stages so many folders below one, with their folders.
fn records(folder: &Path, depth: usize) -> Vec<(std::path::PathBuf, Value)> {
    let mut found = Vec::new();
    let Ok(items) = std::fs::read_dir(folder) else {
        return found;
    };
    for path in items.filter_map(|item| Some(item.ok()?.path())) {
        if depth > 1 {
            found.extend(records(&path, depth - 1));
        } else if let Ok(bytes) = std::fs::read(path.join("stage.json"))
            && let Ok(record) = serde_json::from_slice(&bytes)
        {
            found.push((path, record));
        }
    }
    found
}

fn table(lines: &[Line]) -> String {
    let head = ["stage", "", "state", "tokens", "memory", "time", "work"].map(str::to_owned);
    let unknown = || "unknown".to_owned();
    let rows = lines.iter().map(|line| {
        let trains = matches!(line.stage, StageName::Train | StageName::Preference);
        let is_over = line.state == "done" || line.stage == StageName::Report;
        let of_training = |value: Option<String>| match (trains, value) {
            (_, Some(value)) => value,
            (true, None) => unknown(),
            (false, None) => "-".to_owned(),
        };
        [
            line.stage.to_string(),
            line.part.clone().unwrap_or_default(),
            line.state.to_owned(),
            of_training(line.tokens.map(|n| n.to_string())),
            of_training(
                line.memory_bytes
                    .map(|n| format!("{:.2} GiB", n as f64 / f64::from(1 << 30))),
            ),
            match line.seconds {
                _ if is_over => "-".to_owned(),
                Some(seconds) => duration(seconds),
                None => unknown(),
            },
            line.work.clone(),
        ]
    });
    let rows: Vec<[String; 7]> = std::iter::once(head).chain(rows).collect();
    let widths: Vec<usize> = (0..7)
        .map(|column| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}
