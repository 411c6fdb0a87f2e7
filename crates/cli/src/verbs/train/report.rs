//! The page of a run: what was tested, how it was chosen, and the curves of training.

use std::path::PathBuf;

use serde_json::Value;
use temper_agent::job::write_atomically;
use temper_eval::{Comparison, Options};
use temper_report::{SelectionInput, TrainingInput};

use super::{
    Done,
    select::{RULE, Selected},
    session::{Session, Step},
};
use crate::{comparison, error::CliError};

/// Writes `report.html` and, where something was tested, `comparison.json` of all arms.
pub fn write(session: &Session<'_>, done: &Done) -> Step<PathBuf> {
    let path = session.at("report.html");
    let mut metrics = Vec::new();
    for trained in &done.trained {
        let log = comparison::read_metrics(&trained.folder.join("metrics.jsonl"))?;
        metrics.push((format!("{}, seed {}", trained.objective, trained.seed), log));
    }
    let training = Some(training(session, done)?);
    let mut jobs = Vec::new();
    if let Some(tested) = &done.tested {
        jobs.push(tested.baseline.clone());
        jobs.extend(tested.tested.iter().map(|tested| tested.job.clone()));
    }
    if jobs.is_empty() {
        let nothing = Comparison {
            format: Comparison::FORMAT,
            options: Options::default(),
            arms: Vec::new(),
            pairs: Vec::new(),
            notes: Vec::new(),
            mixed_profiles: Vec::new(),
        };
        comparison::write_report(&[], &nothing, &metrics, training, &path)?;
        return Ok(path);
    }
    let records = comparison::read_jobs(&jobs)?;
    let settings = session.recipe.evaluate.clone().unwrap_or_default();
    let options = Options {
        n_resamples: settings.resamples,
        ..Options::default()
    };
    let all = comparison::compare(&records, &options)?;
    let mut text = serde_json::to_vec_pretty(&all).expect("a comparison is plain data");
    text.push(b'\n');
    write_atomically(&session.at("comparison.json"), &text).map_err(CliError::from)?;
    comparison::write_report(&records, &all, &metrics, training, &path)?;
    Ok(path)
}

fn training(session: &Session<'_>, done: &Done) -> Result<TrainingInput, CliError> {
    let recipe = &session.recipe;
    let text = |value: Value| value.to_string();
    let mut facts = vec![
        ("model".to_owned(), session.located.name()),
        ("device".to_owned(), session.device()?.name()),
        (
            "settings of supervised training".to_owned(),
            text(serde_json::to_value(&recipe.train).expect("plain data serializes to JSON")),
        ),
    ];
    if let Some(preference) = &recipe.preference {
        let value = serde_json::to_value(preference).expect("plain data serializes to JSON");
        facts.push(("settings of preference training".to_owned(), text(value)));
    }
    let runs = done.tested.iter().flat_map(|tested| &tested.runs);
    let mut warnings = Vec::new();
    let mut final_tests = Vec::new();
    for run in runs {
        let ended = match &run.ended_at {
            Some(at) => format!("ended {at}"),
            None => "not finished".to_owned(),
        };
        let mut line = format!(
            "{}, time {}: began {}, {ended}",
            run.name, run.number, run.began_at
        );
        if let Some(reason) = &run.again {
            line.push_str(&format!("; reason: {reason}"));
            warnings.push(format!(
                "{} saw the test tasks {} times; the reason given is: {reason}",
                run.name, run.number
            ));
        }
        final_tests.push(line);
    }
    for selected in done.selected.iter().filter(|selected| selected.is_start) {
        warnings.push(format!(
            "{}, seed {}: no snapshot solved more dev trials than what training started from, \
             which was kept",
            selected.objective, selected.seed
        ));
    }
    Ok(TrainingInput {
        facts,
        selections: done.selected.iter().map(selection).collect(),
        final_tests,
        warnings,
    })
}

fn selection(selected: &Selected) -> SelectionInput {
    SelectionInput {
        title: format!("{}, seed {}", selected.objective, selected.seed),
        rule: match &selected.selection {
            Some(_) => RULE.to_owned(),
            None => "the last snapshot, since the recipe asks for no selection".to_owned(),
        },
        selection: selected.selection.clone(),
        taken: selected.contender.name.clone(),
    }
}
