//! How much of a data set is taken, so that two of them can be compared at equal size.
//!
//! A trial is taken whole or not at all, since rows are never cut. Trials come in an order drawn by
//! the seed, and each that still fits is taken: nothing that is left out would fit, and what is
//! missing to the budget is less than the smallest trial left out.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use temper_core::{Digest, digest::Hasher};

use crate::{
    build::Dataset,
    row::{RowOrigin, TrainingRow},
};

/// The most that a data set may hold, for rows and for pairs alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// What is counted.
    pub unit: BudgetUnit,
    /// How many.
    pub n: usize,
}

/// What a budget counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BudgetUnit {
    /// Tokens that are learned.
    LearnedTokens,
    /// All tokens.
    Tokens,
    /// Trials that there are rows of; pairs.
    Trials,
}

/// What a data set holds of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// In rows.
    pub rows: usize,
    /// In pairs.
    pub pairs: usize,
}

/// What a data set holds.
pub fn held(dataset: &Dataset, unit: BudgetUnit) -> Held {
    let rows = match unit {
        BudgetUnit::Trials => {
            let origins = dataset.rows.iter().map(TrainingRow::origin);
            origins.collect::<BTreeSet<_>>().len()
        }
        unit => dataset.rows.iter().map(|row| size(row, unit)).sum(),
    };
    let pairs = dataset.pairs.iter().map(|pair| match unit {
        BudgetUnit::Trials => 1,
        unit => size(&pair.chosen, unit) + size(&pair.rejected, unit),
    });
    Held {
        rows,
        pairs: pairs.sum(),
    }
}

/// Takes out of a data set what is over the budget: of its rows, and of its pairs. Groups stay.
/// Returns the trials whose rows were taken out.
pub fn limit(dataset: &mut Dataset, budget: Budget, seed: u64) -> Vec<RowOrigin> {
    let mut of_trial: BTreeMap<RowOrigin, usize> = BTreeMap::new();
    for row in &dataset.rows {
        let n = of_trial.entry(row.origin().clone()).or_default();
        *n = match budget.unit {
            BudgetUnit::Trials => 1,
            unit => *n + size(row, unit),
        };
    }
    let trials: Vec<(RowOrigin, usize)> = of_trial.into_iter().collect();
    let order = |origin: &RowOrigin| drawn(&[origin], seed);
    let sizes = trials.iter().map(|(origin, n)| (order(origin), *n));
    let taken = fitting(sizes.collect(), budget.n);
    let left_out: BTreeSet<RowOrigin> = trials
        .into_iter()
        .zip(&taken)
        .filter(|(_, taken)| !**taken)
        .map(|((origin, _), _)| origin)
        .collect();
    dataset.rows.retain(|row| !left_out.contains(row.origin()));

    let sizes = dataset.pairs.iter().map(|pair| {
        let n = match budget.unit {
            BudgetUnit::Trials => 1,
            unit => size(&pair.chosen, unit) + size(&pair.rejected, unit),
        };
        (
            drawn(&[pair.chosen.origin(), pair.rejected.origin()], seed),
            n,
        )
    });
    let taken = fitting(sizes.collect(), budget.n);
    let mut taken = taken.into_iter();
    dataset.pairs.retain(|_| taken.next() == Some(true));
    left_out.into_iter().collect()
}

fn size(row: &TrainingRow, unit: BudgetUnit) -> usize {
    match unit {
        BudgetUnit::LearnedTokens => row.n_learned(),
        BudgetUnit::Tokens => row.ids().len(),
        BudgetUnit::Trials => 1,
    }
}

/// A place in an order that is drawn by the seed.
fn drawn(origins: &[&RowOrigin], seed: u64) -> Digest {
    let mut hasher = Hasher::default();
    hasher.field(&seed.to_le_bytes());
    for origin in origins {
        hasher.field(Digest::of_value(origin).as_str().as_bytes());
    }
    hasher.finish()
}

/// Which of some things are taken: in the order of their digests each that still fits.
fn fitting(sizes: Vec<(Digest, usize)>, limit: usize) -> Vec<bool> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by(|a, b| sizes[*a].0.cmp(&sizes[*b].0));
    let mut left = limit;
    let mut taken = vec![false; sizes.len()];
    for index in order {
        let n = sizes[index].1;
        if n <= left {
            left -= n;
            taken[index] = true;
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_would_not_fit() {
        for limit in 0..60 {
            let sizes: Vec<(Digest, usize)> = (0..12u8)
                .map(|n| (Digest::of(&[n]), 3 + usize::from(n * 7 % 11)))
                .collect();
            let taken = fitting(sizes.clone(), limit);
            let n: usize = sizes
                .iter()
                .zip(&taken)
                .filter(|(_, taken)| **taken)
                .map(|((_, n), _)| n)
                .sum();
            assert!(n <= limit);
            let mut left_out = sizes.iter().zip(&taken).filter(|(_, taken)| !**taken);
            assert!(left_out.all(|((_, size), _)| n + size > limit), "{limit}");
        }
    }
}
