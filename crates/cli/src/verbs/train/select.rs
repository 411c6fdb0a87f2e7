//! Selection: every snapshot, and what training started from, solves the dev tasks.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Instant,
};

use serde_json::json;
use temper_agent::job::JobDirectory;
use temper_core::{
    Trial,
    task::{FinalTestTask, HeldOutTasks, SelectionTask},
};
use temper_eval::Selection;
use temper_recipe::{Stage, StageName, overlap};

use super::{
    fit::Trained,
    session::{Session, Step, task_set},
    trials::{self, Contender, TrialRun},
};
use crate::{args::SplitArg, error::CliError, exit_code, tasks};

/// What was taken.
pub struct Selected {
    /// The run that it comes from.
    pub seed: u64,
    /// Its objective.
    pub objective: String,
    /// The one that is taken.
    pub contender: Contender,
    /// Whether it is what training started from.
    pub is_start: bool,
    /// On what grounds; none where the recipe asks for no selection.
    pub selection: Option<Selection>,
}

/// Takes a snapshot of a run, or what it started from.
pub fn select(
    session: &Session<'_>,
    name: StageName,
    trained: &Trained,
    start: &Contender,
) -> Step<Selected> {
    let selected = |index: usize, selection: Option<Selection>| {
        let contender = match index.checked_sub(1) {
            None => start.clone(),
            Some(index) => trained.snapshots[index].clone(),
        };
        Selected {
            seed: trained.seed,
            objective: trained.objective.clone(),
            contender,
            is_start: index == 0,
            selection,
        }
    };
    let Some(settings) = &session.recipe.select else {
        return Ok(selected(trained.snapshots.len(), None));
    };
    let tasks = session.selecting(settings)?;
    let digest = task_set(&tasks)?;
    let tasks = SelectionTask::all(tasks).map_err(held_out)?;
    let contenders: Vec<&Contender> = std::iter::once(start).chain(&trained.snapshots).collect();
    let mut inputs = BTreeMap::from([("tasks".to_owned(), digest.clone())]);
    let mut jobs = Vec::new();
    for (index, contender) in contenders.iter().enumerate() {
        let done = trials::run(
            session,
            &TrialRun {
                stage: name,
                contender,
                split: SplitArg::Dev,
                patterns: &settings.tasks,
                limit: settings.limit,
                tasks: &digest,
                attempts: settings.attempts,
                seed: settings.seed,
                number: None,
            },
        )?;
        inputs.insert(format!("contender-{index}"), contender.digest.clone());
        inputs.insert(format!("verdicts-{index}"), done.digest);
        jobs.push(done.job);
    }
    let stage = Stage {
        name,
        part: Some(format!("seed-{}", trained.seed)),
        inputs,
        config: json!({ "rule": RULE }),
    };
    if let Some(record) = session.done(&stage)? {
        let selection: Selection = serde_json::from_value(record.result["selection"].clone())
            .map_err(|error| {
                let path = session.stages.folder(&stage);
                CliError::new(
                    exit_code::INPUT,
                    format!("read {}: {error}", path.display()),
                )
            })?;
        return Ok(selected(selection.chosen, Some(selection)));
    }
    let began = Instant::now();
    let selection = choose(&contenders, &jobs)?;
    let chosen = contenders[selection.chosen];
    session.finish(
        &stage,
        BTreeMap::from([("candidate".to_owned(), chosen.digest.clone())]),
        json!({
            "selection": selection,
            "candidate": chosen.name,
            "selection_tasks": tasks.iter().map(|task| &task.id).collect::<Vec<_>>(),
            "selection_tasks_digest": digest,
        }),
        began,
    )?;
    session.note(&verdict(&selection));
    Ok(selected(selection.chosen, Some(selection)))
}

/// The rule in words, as records and reports have it.
pub const RULE: &str = "most solved dev trials; a tie keeps what training started from, and an earlier \
                        snapshot before a later one";

/// A selection in words.
pub fn verdict(selection: &Selection) -> String {
    let scores: Vec<String> = selection
        .scores
        .iter()
        .enumerate()
        .map(|(index, score)| {
            let mark = if index == selection.chosen {
                " (taken)"
            } else {
                ""
            };
            format!("{} {}{mark}", score.name, score.n_solved)
        })
        .collect();
    let left_out = match selection.n_left_out {
        0 => String::new(),
        n => format!("; {n} trials left out, since one contender lost them"),
    };
    format!(
        "solved of {} dev trials: {}{left_out}",
        selection.n_compared,
        scores.join(", ")
    )
}

fn choose(contenders: &[&Contender], jobs: &[PathBuf]) -> Result<Selection, CliError> {
    let trials = jobs
        .iter()
        .map(|job| trials_of(job))
        .collect::<Result<Vec<_>, _>>()?;
    let contenders: Vec<temper_eval::Contender<'_>> = contenders
        .iter()
        .zip(&trials)
        .map(|(contender, trials)| temper_eval::Contender {
            name: contender.name.clone(),
            trials,
        })
        .collect();
    temper_eval::select(&contenders).map_err(|error| {
        CliError::new(exit_code::ALL_LOST, error)
            .hint("the jobs' trials say what lost them; `temper doctor` says what works here")
    })
}

fn trials_of(job: &Path) -> Result<Vec<Trial>, CliError> {
    Ok(JobDirectory::open(job)?.trials()?)
}

/// Dev tasks that select must have nothing in common with the test tasks: looked at before anything
/// is trained.
pub fn check_overlap(session: &Session<'_>) -> Result<(), CliError> {
    let (Some(select), Some(_)) = (&session.recipe.select, &session.recipe.evaluate) else {
        return Ok(());
    };
    let dev = SelectionTask::all(session.selecting(select)?).map_err(held_out)?;
    let test = FinalTestTask::all(session.tasks(SplitArg::Test, &[], None)?).map_err(held_out)?;
    let shared = overlap::selection_and_test(&dev, &test).map_err(tasks::input_error)?;
    let Some(first) = shared.first() else {
        return Ok(());
    };
    Err(CliError::new(
        exit_code::FINDINGS,
        format!(
            "select on these tasks: {} of {} have something in common with the final test; {first}",
            shared.len(),
            dev.len()
        ),
    )
    .hint("what selects must not be tested on: `temper split make` divides by source group"))
}

fn held_out(error: HeldOutTasks) -> CliError {
    let hint = error.hint();
    CliError::new(exit_code::INPUT, error).hint(hint)
}
