//! What is trained on: a data set that is there, or one that is collected and built.

use temper_core::{Digest, Task, digest::Hasher};
use temper_dataset::{
    row::{RowOrigin, TrainingRow},
    store,
};
use temper_recipe::{StageName, overlap};
use temper_train::{Pair, Row};

use super::{
    gather,
    session::{Session, Step},
};
use crate::{args::SplitArg, error::CliError, exit_code};

/// Rows and pairs, ready for training.
pub struct TrainingData {
    /// Rows.
    pub rows: Vec<Row>,
    /// Their digest.
    pub rows_digest: Digest,
    /// Pairs.
    pub pairs: Vec<Pair>,
    /// Their digest.
    pub pairs_digest: Digest,
    /// The trials that they come from.
    origins: Vec<RowOrigin>,
}

impl TrainingData {
    /// Reads a data set whole.
    pub fn read(directory: &std::path::Path) -> Result<Self, CliError> {
        let (dataset, _) = store::read(directory).map_err(|error| {
            CliError::new(exit_code::INPUT, error)
                .hint("a data set is a directory that `temper dataset build` made")
        })?;
        let row = |row: &TrainingRow| {
            Row::new(row.ids().to_vec(), row.loss_mask()).map_err(|error| {
                CliError::new(exit_code::INPUT, error)
                    .hint(format!("it is in {}", directory.display()))
            })
        };
        let rows = dataset
            .rows
            .iter()
            .map(row)
            .collect::<Result<Vec<_>, _>>()?;
        let mut pairs = Vec::new();
        for pair in &dataset.pairs {
            let pair = Pair::new(row(&pair.chosen)?, row(&pair.rejected)?)
                .map_err(|error| CliError::new(exit_code::INPUT, error))?;
            pairs.push(pair);
        }
        let of_rows = dataset.rows.iter().map(TrainingRow::origin);
        let of_pairs = dataset
            .pairs
            .iter()
            .flat_map(|pair| [pair.chosen.origin(), pair.rejected.origin()]);
        let origins = of_rows.chain(of_pairs).cloned().collect();
        let digest = |rows: &mut dyn Iterator<Item = &Row>| {
            let mut hasher = Hasher::default();
            for row in rows {
                hasher.field(row.digest().as_str().as_bytes());
            }
            hasher.finish()
        };
        let rows_digest = digest(&mut rows.iter());
        let of_pairs = |pair: &Pair| [pair.chosen().clone(), pair.rejected().clone()];
        let both: Vec<Row> = pairs.iter().flat_map(of_pairs).collect();
        Ok(TrainingData {
            rows_digest,
            pairs_digest: digest(&mut both.iter()),
            rows,
            pairs,
            origins,
        })
    }

    /// Refuses data without what the recipe trains on, and data of tasks that select or test.
    fn check(&self, session: &Session<'_>) -> Result<(), CliError> {
        if session.recipe.preference.is_some() && self.pairs.is_empty() {
            return Err(CliError::new(
                exit_code::INPUT,
                "train on preferences: the data set has no pairs",
            )
            .hint(
                "pairs need [build.pairs], and solved and failed trials of one task under one prompt; \
                 the data set's report.json says of each failed trial why it is in none",
            ));
        }
        self.check_held_out(session)
    }

    /// Refuses rows and pairs of tasks that select or test, and of their source groups.
    fn check_held_out(&self, session: &Session<'_>) -> Result<(), CliError> {
        let mut held_out: Vec<Task> = Vec::new();
        if session.recipe.select.is_some() {
            held_out.extend(session.tasks(SplitArg::Dev, &[], None)?);
        }
        if session.recipe.evaluate.is_some() {
            held_out.extend(session.tasks(SplitArg::Test, &[], None)?);
        }
        let held_out: Vec<&Task> = held_out.iter().collect();
        let found = overlap::rows_and_held_out(&self.origins, &held_out);
        let Some((origin, task)) = found.first() else {
            return Ok(());
        };
        Err(CliError::new(
            exit_code::FINDINGS,
            format!(
                "train on these rows: {} trials are of held-out tasks or their source groups; \
                 the first is of {} in group {}, where {task} is held out",
                found.len(),
                origin.task_id,
                origin.source_group
            ),
        )
        .hint(
            "build the data set against this suite: `temper dataset build` leaves such trials out",
        ))
    }
}

/// The data set of the run; none where `--until` stops before it is needed.
pub fn provide(session: &Session<'_>) -> Step<Option<TrainingData>> {
    let data = match &session.recipe.data {
        Some(data) => TrainingData::read(&data.directory)?,
        None => {
            let Some(directory) = gather::provide(session)? else {
                return Ok(None);
            };
            if !session.reaches(StageName::Train) {
                return Ok(None);
            }
            TrainingData::read(&directory)?
        }
    };
    data.check(session)?;
    Ok(Some(data))
}

/// The data set where it is there already.
pub fn existing(session: &Session<'_>) -> Result<Option<TrainingData>, CliError> {
    let directory = match &session.recipe.data {
        Some(data) => data.directory.clone(),
        None => match gather::existing(session)? {
            Some(directory) => directory,
            None => return Ok(None),
        },
    };
    let data = TrainingData::read(&directory)?;
    data.check(session)?;
    Ok(Some(data))
}
