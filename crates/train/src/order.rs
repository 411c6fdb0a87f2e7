//! In which order rows are trained on: windows of rows, one for each update.
//!
//! The order of an epoch is a function of the seed, the epoch and the rows' lengths alone, so a
//! resumed run needs no more than the number of its update to go on where it stopped.

use serde::{Deserialize, Serialize};
use temper_model::random::mix;

/// How rows are put in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum DataOrder {
    /// As they are given, the same in every epoch.
    AsGiven,
    /// A new permutation for each epoch.
    Shuffled,
    /// As shuffled; then, within every `windows` windows, rows are sorted by length, cut into
    /// windows, and the windows shuffled. Rows of one window are of like length, so passes over
    /// packed rows fill evenly and updates take like times.
    Bucketed {
        /// Windows that are sorted together; at least 2.
        windows: usize,
    },
}

/// Where in the data an update stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Epochs that are complete.
    pub epoch: u64,
    /// Windows of the epoch under way that are done.
    pub window: u64,
}

/// The windows of all epochs.
#[derive(Clone, Debug)]
pub struct Windows {
    order: DataOrder,
    seed: u64,
    rows_per_update: usize,
    lengths: Vec<usize>,
    /// The epoch that is laid out, and its rows.
    laid_out: Option<(u64, Vec<usize>)>,
}

impl Windows {
    /// Windows of `rows_per_update` rows over rows of these lengths, in tokens. The last window of
    /// an epoch takes what is left.
    ///
    /// # Panics
    /// When there are no rows, or a window has none.
    pub fn new(order: DataOrder, seed: u64, rows_per_update: usize, lengths: Vec<usize>) -> Self {
        assert!(
            rows_per_update > 0 && !lengths.is_empty(),
            "windows have rows"
        );
        Windows {
            order,
            seed,
            rows_per_update,
            lengths,
            laid_out: None,
        }
    }

    /// Updates in an epoch.
    pub fn per_epoch(&self) -> u64 {
        self.lengths.len().div_ceil(self.rows_per_update) as u64
    }

    /// Where a run stands after `n_updates`.
    pub fn position(&self, n_updates: u64) -> Position {
        Position {
            epoch: n_updates / self.per_epoch(),
            window: n_updates % self.per_epoch(),
        }
    }

    /// The rows of the update after `n_updates`.
    pub fn window(&mut self, n_updates: u64) -> &[usize] {
        let Position { epoch, window } = self.position(n_updates);
        if self.laid_out.as_ref().is_none_or(|(of, _)| *of != epoch) {
            self.laid_out = Some((epoch, self.lay_out(epoch)));
        }
        let rows = self.laid_out.as_ref().map_or(&[][..], |(_, rows)| rows);
        let start = window as usize * self.rows_per_update;
        &rows[start..rows.len().min(start + self.rows_per_update)]
    }

    /// The rows of an epoch in order.
    fn lay_out(&self, epoch: u64) -> Vec<usize> {
        let mut rows: Vec<usize> = (0..self.lengths.len()).collect();
        let mut random = Random::of(self.seed, epoch);
        match self.order {
            DataOrder::AsGiven => {}
            DataOrder::Shuffled => random.shuffle(&mut rows),
            DataOrder::Bucketed { windows } => {
                random.shuffle(&mut rows);
                let of_bucket = windows.saturating_mul(self.rows_per_update);
                for bucket in rows.chunks_mut(of_bucket) {
                    // Stable, so equal lengths stay shuffled.
                    bucket.sort_by_key(|&row| self.lengths[row]);
                    // A window that is not full stays last: the windows before it are whole.
                    let n_full = bucket.len() / self.rows_per_update;
                    let mut order: Vec<usize> = (0..n_full).collect();
                    random.shuffle(&mut order);
                    let (full, rest) = bucket.split_at(n_full * self.rows_per_update);
                    let full: Vec<&[usize]> = full.chunks(self.rows_per_update).collect();
                    let mut shuffled: Vec<usize> =
                        order.iter().flat_map(|&at| full[at]).copied().collect();
                    shuffled.extend(rest);
                    bucket.copy_from_slice(&shuffled);
                }
            }
        }
        rows
    }
}

/// Random numbers of one epoch, by counter.
struct Random {
    key: u64,
    counter: u64,
}

impl Random {
    fn of(seed: u64, epoch: u64) -> Self {
        Random {
            key: mix(mix(seed) ^ epoch),
            counter: 0,
        }
    }

    /// A number below `bound`. The bias is below `bound / 2^64`.
    fn below(&mut self, bound: usize) -> usize {
        let bits = mix(self.key ^ mix(self.counter));
        self.counter += 1;
        ((u128::from(bits) * bound as u128) >> 64) as usize
    }

    /// Fisher and Yates' shuffle.
    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last + 1);
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(n: usize) -> Vec<usize> {
        (0..n).map(|row| 10 + (row * 7919) % 101).collect()
    }

    const ORDERS: [DataOrder; 4] = [
        DataOrder::AsGiven,
        DataOrder::Shuffled,
        DataOrder::Bucketed { windows: 2 },
        DataOrder::Bucketed { windows: 50 },
    ];

    fn epoch(order: DataOrder, seed: u64, n: usize, per: usize, epoch: u64) -> Vec<Vec<usize>> {
        let mut windows = Windows::new(order, seed, per, lengths(n));
        let per_epoch = windows.per_epoch();
        (epoch * per_epoch..(epoch + 1) * per_epoch)
            .map(|update| windows.window(update).to_vec())
            .collect()
    }

    #[test]
    fn every_epoch_has_every_row_once_and_only_its_last_window_is_short() {
        for order in ORDERS {
            for (n, per) in [(1, 1), (1, 4), (23, 4), (24, 4), (103, 7)] {
                for number in 0..3 {
                    let windows = epoch(order, 5, n, per, number);
                    let (last, full) = windows.split_last().unwrap();
                    assert!(full.iter().all(|window| window.len() == per));
                    let left = n - full.len() * per;
                    assert!(last.len() == left && left > 0, "{order:?} {n} {per}");
                    let mut rows = windows.concat();
                    rows.sort_unstable();
                    assert_eq!(rows, Vec::from_iter(0..n));
                }
            }
        }
    }

    #[test]
    fn seed_and_epoch_decide_the_order() {
        for order in &ORDERS[1..] {
            let windows = epoch(*order, 5, 103, 7, 0);
            assert_eq!(windows, epoch(*order, 5, 103, 7, 0));
            assert_ne!(windows, epoch(*order, 6, 103, 7, 0));
            assert_ne!(windows, epoch(*order, 5, 103, 7, 1));
        }
        // A run that begins in the middle sees what an uninterrupted one sees there.
        let mut whole = Windows::new(ORDERS[2], 5, 7, lengths(103));
        let seen: Vec<Vec<usize>> = (0..40).map(|it| whole.window(it).to_vec()).collect();
        for start in [0, 1, 14, 15, 31] {
            let mut resumed = Windows::new(ORDERS[2], 5, 7, lengths(103));
            for update in start..40 {
                assert_eq!(resumed.window(update), seen[update as usize]);
            }
        }
        assert_eq!(
            whole.position(31),
            Position {
                epoch: 2,
                window: 1
            }
        );
    }

    #[test]
    fn buckets_put_rows_of_like_length_together() {
        let all = lengths(400);
        let spread = |windows: &[Vec<usize>]| -> f64 {
            let spreads = windows.iter().map(|window| {
                let of = window.iter().map(|&row| all[row]);
                (of.clone().max().unwrap() - of.min().unwrap()) as f64
            });
            spreads.sum::<f64>() / windows.len() as f64
        };
        let shuffled = spread(&epoch(DataOrder::Shuffled, 1, 400, 8, 0));
        let bucketed = spread(&epoch(DataOrder::Bucketed { windows: 10 }, 1, 400, 8, 0));
        assert!(bucketed < shuffled / 4.0, "{bucketed} and {shuffled}");
        // And yet lengths do not rise along the epoch.
        let windows = epoch(DataOrder::Bucketed { windows: 50 }, 1, 400, 8, 0);
        let firsts: Vec<usize> = windows.iter().map(|window| all[window[0]]).collect();
        assert!(!firsts.is_sorted());
    }

    #[test]
    fn a_shuffle_is_uniform() {
        // All 24 orders of four rows, 24,000 seeds: each count has a standard deviation of 31.
        let mut counts = std::collections::BTreeMap::new();
        for seed in 0..24_000 {
            let rows = epoch(DataOrder::Shuffled, seed, 4, 4, 0).concat();
            *counts.entry(rows).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 24);
        assert!(counts.values().all(|&n: &i32| (n - 1000).abs() < 160));
    }
}
