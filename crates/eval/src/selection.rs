//! Which of several snapshots is taken: the one that solves most of the dev tasks' trials. The first
//! of them is the incumbent, and a tie keeps whoever came first, so that nothing is replaced by
//! something that is not better.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use temper_core::Trial;

use crate::arm::TrialKey;

/// Something that may be taken.
#[derive(Clone, Debug)]
pub struct Contender<'a> {
    /// What it is called.
    pub name: String,
    /// Its trials on the dev tasks.
    pub trials: &'a [Trial],
}

/// What was taken, and on what grounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Selection {
    /// Every contender in the order given.
    pub scores: Vec<Score>,
    /// The one that is taken.
    pub chosen: usize,
    /// Trials that count: those with a verdict for every contender.
    pub n_compared: u64,
    /// Trials left out, since the infrastructure lost them for one contender at least.
    pub n_left_out: u64,
}

/// A contender's result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Score {
    /// What it is called.
    pub name: String,
    /// Compared trials that it solved.
    pub n_solved: u64,
}

/// Nothing can be selected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// There is nobody.
    #[error("select a snapshot: there is none")]
    Nobody,
    /// Contenders ran different trials.
    #[error("select a snapshot: {first} and {second} did not run the same trials")]
    OtherTrials {
        /// One.
        first: String,
        /// The other.
        second: String,
    },
    /// No trial has a verdict for all of them.
    #[error("select a snapshot: none of {n_trials} dev trials has a verdict for every snapshot")]
    NothingCompared {
        /// Trials of each.
        n_trials: usize,
    },
}

/// Takes the contender with most solved trials, of several the first.
///
/// Every trial counts the same; one that was lost for any contender counts for none, so that luck
/// with the infrastructure selects nobody.
///
/// # Errors
/// When there is no contender, they ran different trials, or nothing is left to compare.
pub fn select(contenders: &[Contender<'_>]) -> Result<Selection, SelectionError> {
    let results: Vec<BTreeMap<TrialKey, Option<bool>>> = contenders
        .iter()
        .map(|contender| {
            let trials = contender.trials.iter();
            trials
                .map(|trial| (TrialKey::of(trial), trial.solved()))
                .collect()
        })
        .collect();
    let Some(first) = results.first() else {
        return Err(SelectionError::Nobody);
    };
    if let Some(other) = results
        .iter()
        .position(|result| !result.keys().eq(first.keys()))
    {
        return Err(SelectionError::OtherTrials {
            first: contenders[0].name.clone(),
            second: contenders[other].name.clone(),
        });
    }
    let compared: BTreeSet<&TrialKey> = first
        .keys()
        .filter(|key| results.iter().all(|result| result[*key].is_some()))
        .collect();
    if compared.is_empty() {
        return Err(SelectionError::NothingCompared {
            n_trials: first.len(),
        });
    }
    let scores: Vec<Score> = contenders
        .iter()
        .zip(&results)
        .map(|(contender, result)| Score {
            name: contender.name.clone(),
            n_solved: compared
                .iter()
                .filter(|key| result[**key] == Some(true))
                .count() as u64,
        })
        .collect();
    let mut chosen = 0;
    for (index, score) in scores.iter().enumerate() {
        if score.n_solved > scores[chosen].n_solved {
            chosen = index;
        }
    }
    Ok(Selection {
        chosen,
        n_compared: compared.len() as u64,
        n_left_out: (first.len() - compared.len()) as u64,
        scores,
    })
}
