//! Learning rates over the course of training.

use serde::{Deserialize, Serialize};

/// How the learning rate changes from update to update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Updates over which the rate rises from nothing to its peak. Update `t` of them, from 1, has
    /// `t / (warmup_updates + 1)` of it, so none is spent at a rate of zero.
    pub warmup_updates: u64,
    /// What follows.
    pub decay: Decay,
}

/// How the learning rate falls after its peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case", tag = "kind")]
pub enum Decay {
    /// It does not.
    #[default]
    Constant,
    /// On a straight line to `floor` times the peak, reached after `total_updates`.
    Linear {
        /// All updates, those of the rise among them.
        total_updates: u64,
        /// From 0 to 1.
        floor: f32,
    },
    /// On half a cosine wave to `floor` times the peak, reached after `total_updates`
    /// (arXiv 1608.03983, without restarts).
    Cosine {
        /// All updates, those of the rise among them.
        total_updates: u64,
        /// From 0 to 1.
        floor: f32,
    },
}

impl Schedule {
    /// What the peak is multiplied by at update `update`, counted from 1.
    ///
    /// The first update after the rise is at the peak; the floor would be reached by the one after
    /// the last, and holds from there.
    pub fn factor(&self, update: u64) -> f64 {
        let done = update.saturating_sub(1);
        if done < self.warmup_updates {
            return update as f64 / (self.warmup_updates as f64 + 1.0);
        }
        let progress = |total: u64| {
            let span = total.saturating_sub(self.warmup_updates).max(1);
            ((done - self.warmup_updates) as f64 / span as f64).min(1.0)
        };
        let between = |floor: f32, share: f64| {
            let floor = f64::from(floor);
            floor + (1.0 - floor) * share
        };
        match self.decay {
            Decay::Constant => 1.0,
            Decay::Linear {
                total_updates,
                floor,
            } => between(floor, 1.0 - progress(total_updates)),
            Decay::Cosine {
                total_updates,
                floor,
            } => {
                let angle = std::f64::consts::PI * progress(total_updates);
                between(floor, 0.5 * (1.0 + angle.cos()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factors(decay: Decay, updates: std::ops::RangeInclusive<u64>) -> Vec<f64> {
        let schedule = Schedule {
            warmup_updates: 3,
            decay,
        };
        updates.map(|update| schedule.factor(update)).collect()
    }

    fn assert_close(got: &[f64], expected: &[f64]) {
        assert_eq!(got.len(), expected.len());
        for (got, expected) in got.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-7, "{got} is not {expected}");
        }
    }

    #[test]
    fn the_rate_rises_to_its_peak_and_falls_to_its_floor() {
        let constant = factors(Decay::Constant, 1..=5);
        assert_close(&constant, &[0.25, 0.5, 0.75, 1.0, 1.0]);
        // After the rise these are the values of transformers' schedules with a warm-up of 3 of
        // 7 updates: (7 - s) / 4, and 0.5 (1 + cos(pi (s - 3) / 4)), for s from 3.
        let linear = Decay::Linear {
            total_updates: 7,
            floor: 0.0,
        };
        assert_close(&factors(linear, 4..=9), &[1.0, 0.75, 0.5, 0.25, 0.0, 0.0]);
        let cosine = Decay::Cosine {
            total_updates: 7,
            floor: 0.0,
        };
        let root = 0.5f64.sqrt();
        let expected = [1.0, 0.5 + 0.5 * root, 0.5, 0.5 - 0.5 * root, 0.0];
        assert_close(&factors(cosine, 4..=8), &expected);
        let floored = Decay::Cosine {
            total_updates: 7,
            floor: 0.1,
        };
        assert_close(&factors(floored, 6..=6), &[0.55]);
    }
}
