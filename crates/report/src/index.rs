//! What the outcome matrix of the page is drawn from: one small row per task.

use std::collections::BTreeMap;

use serde::Serialize;
use temper_core::{TaskId, Trial};

use crate::{detail::effective, input::ReportInput, words};

/// The matrix. Field names are short because there is one object per trial.
#[derive(Debug, Serialize)]
pub struct Index {
    arms: Vec<ArmHead>,
    pairs: Vec<PairHead>,
    tasks: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct ArmHead {
    name: String,
    driver: &'static str,
}

#[derive(Debug, Serialize)]
struct PairHead {
    label: String,
}

#[derive(Debug, Serialize)]
struct Row {
    id: String,
    group: String,
    /// Per pair: key, sign, words; absent where the task is not paired.
    standing: Vec<Option<[&'static str; 3]>>,
    /// Per arm: its attempts.
    cells: Vec<Vec<Cell>>,
}

#[derive(Debug, Serialize)]
struct Cell {
    /// Attempt.
    a: u32,
    /// Outcome: key, sign, words.
    o: [&'static str; 3],
    /// Steps.
    n: u32,
    /// Total seconds, to sort by, and as text.
    s: f64,
    t: String,
    /// Number of tampering findings.
    f: usize,
}

/// The tasks of all arms in order of their ids, each with its trials by arm and attempt.
pub fn trials_by_task<'a>(
    input: &ReportInput<'a>,
) -> BTreeMap<&'a TaskId, Vec<BTreeMap<u32, &'a Trial>>> {
    let mut tasks: BTreeMap<&TaskId, Vec<BTreeMap<u32, &Trial>>> = BTreeMap::new();
    for (arm, arm_input) in input.arms.iter().enumerate() {
        for trial in arm_input.trials {
            tasks
                .entry(&trial.task_id)
                .or_insert_with(|| vec![BTreeMap::new(); input.arms.len()])[arm]
                .insert(trial.attempt, trial);
        }
    }
    tasks
}

/// Builds the matrix; rows are in the order of [`trials_by_task`].
pub fn build(input: &ReportInput<'_>) -> Index {
    let standings: Vec<BTreeMap<&TaskId, [&'static str; 3]>> = input
        .comparison
        .pairs
        .iter()
        .map(|pair| {
            let word = |task: &temper_eval::pair::PairedTask| words::standing(task.standing).into();
            pair.tasks
                .iter()
                .map(|task| (&task.task, word(task)))
                .collect()
        })
        .collect();
    Index {
        arms: input
            .comparison
            .arms
            .iter()
            .zip(&input.arms)
            .map(|(summary, arm)| ArmHead {
                name: summary.name.to_string(),
                driver: arm.driver.words(),
            })
            .collect(),
        pairs: input
            .comparison
            .pairs
            .iter()
            .map(|pair| PairHead {
                label: format!("{} against {}", pair.candidate, pair.baseline),
            })
            .collect(),
        tasks: trials_by_task(input)
            .into_iter()
            .map(|(task, arms)| Row {
                id: crate::visible::for_page(task.as_str()),
                group: arms
                    .iter()
                    .flat_map(BTreeMap::values)
                    .next()
                    .map_or_else(String::new, |trial| {
                        crate::visible::for_page(trial.source_group.as_str())
                    }),
                standing: standings
                    .iter()
                    .map(|pair| pair.get(task).copied())
                    .collect(),
                cells: arms
                    .iter()
                    .map(|attempts| attempts.values().map(|trial| cell(trial)).collect())
                    .collect(),
            })
            .collect(),
    }
}

fn cell(trial: &Trial) -> Cell {
    Cell {
        a: trial.attempt,
        o: words::resolution(effective(trial)).into(),
        n: trial.n_steps,
        s: (trial.timing.total_seconds * 100.0).round() / 100.0,
        t: words::seconds(trial.timing.total_seconds),
        f: trial.verdict.tampering.len(),
    }
}
