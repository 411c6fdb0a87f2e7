//! What failing tests print, for statements.

use std::collections::HashMap;

use temper_core::TestId;

use super::screen::{ScreenOptions, changes_of, job};
use crate::{
    Candidate,
    measure::{TestIndex, coverage::Index},
    pool::{self, Cost, Ended, Job, PoolError, Subject, Workshop},
    statement,
};

/// Jobs of one sandbox.
const BATCH: usize = 32;
/// A test whose output is not the same so often is not quoted: times, random numbers and process
/// numbers would make each run give another task.
const N_RUNS: usize = 2;

/// What pytest says of each test that was asked for.
pub type Outputs = Vec<Option<String>>;

/// Runs failing tests of candidates and gives what pytest says of each, in the same order: the
/// lines that fail, the errors and the places, without addresses and temporary paths. `None` for a
/// test that passes, that has no end, or whose output differs between two runs.
pub fn explain(
    subject: &Subject,
    workshop: &Workshop<'_>,
    index: &Index<'_>,
    asked: &[(&Candidate, &[TestId])],
    options: &ScreenOptions,
) -> Result<(Vec<Outputs>, Cost), PoolError> {
    let measurement = index.measurement();
    let numbers: HashMap<&TestId, TestIndex> = measurement
        .tests
        .iter()
        .enumerate()
        .map(|(number, test)| (&test.id, TestIndex(number as u32)))
        .collect();
    let pending: Vec<(usize, Vec<TestIndex>)> = asked
        .iter()
        .enumerate()
        .filter_map(|(number, (_, ids))| {
            let mut tests: Vec<TestIndex> = ids
                .iter()
                .filter_map(|id| numbers.get(id).copied())
                .collect();
            tests.sort();
            (!tests.is_empty()).then_some((number, tests))
        })
        .collect();
    let n_jobs = N_RUNS * pending.len();
    let (printed, cost) = pool::run(
        subject,
        workshop,
        &measurement.imports,
        BATCH.min(n_jobs.div_ceil(workshop.n_workers.max(1))),
        n_jobs,
        &|turn| {
            let (number, tests) = &pending[turn / N_RUNS];
            let changes = changes_of(subject, asked[*number].0).unwrap_or_default();
            Job {
                explain: true,
                ..job(index, changes, tests, options)
            }
        },
        &|turn, ended| {
            let mut printed: HashMap<TestIndex, String> = HashMap::new();
            if let Ended::Reported(report) = ended {
                let tests = &pending[turn / N_RUNS].1;
                for (place, output) in report.outputs {
                    // The call comes before the teardown, which says less.
                    printed
                        .entry(tests[place])
                        .or_insert_with(|| statement::tidied(&output));
                }
            }
            printed
        },
    )?;
    let mut outputs: Vec<Outputs> = asked.iter().map(|(_, ids)| vec![None; ids.len()]).collect();
    for ((number, _), runs) in pending.iter().zip(printed.chunks(N_RUNS)) {
        let ids = asked[*number].1;
        for (id, output) in ids.iter().zip(&mut outputs[*number]) {
            let Some(test) = numbers.get(id) else {
                continue;
            };
            let first = runs.first().and_then(|run| run.get(test));
            *output = first
                .filter(|first| runs.iter().all(|run| run.get(test) == Some(first)))
                .cloned();
        }
    }
    Ok((outputs, cost))
}
