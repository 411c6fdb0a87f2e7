//! How much better each trial of a group did than the others of its group: what group-relative
//! objectives multiply log-probabilities with.
//!
//! A trial without a reward (its verdict was lost, or a grader gave none) has no advantage, which is
//! not an advantage of 0: it enters no mean, no deviation and no loss. A group whose rewards are all
//! equal, or that has fewer than two, gives no signal: its scored trials have advantage 0.

use serde::{Deserialize, Serialize};

/// Rewards whose spread is below this share of the largest count as equal, so that sums of the same
/// parts in another order do not become a signal.
const EQUAL: f64 = 1e-9;

/// What an advantage is. `R` is the trial's reward, `mean` that of the scored trials of its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Estimator {
    /// `(R - mean) / (deviation of the group + epsilon)`: GRPO, arXiv 2402.03300.
    #[default]
    GroupDeviation,
    /// `(R - mean) / (deviation of all scored trials + epsilon)`: arXiv 2508.08221.
    BatchDeviation,
    /// `R - mean`: Dr. GRPO, arXiv 2503.20783.
    MeanOnly,
    /// `R` less the mean of the other scored trials of the group: RLOO, arXiv 2402.14740.
    LeaveOneOut,
}

/// The divisor of the squared distances; the papers do not say which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deviation {
    /// The number of rewards.
    #[default]
    Population,
    /// One less, as verl and TRL have it.
    Sample,
}

/// How advantages are computed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdvantageSettings {
    /// What an advantage is.
    pub estimator: Estimator,
    /// How a deviation is computed; means nothing to the estimators without one.
    pub deviation: Deviation,
    /// Added to a deviation, in units of reward.
    pub epsilon: f64,
}

impl Default for AdvantageSettings {
    fn default() -> Self {
        AdvantageSettings {
            estimator: Estimator::default(),
            deviation: Deviation::default(),
            epsilon: 1e-6,
        }
    }
}

/// Whether there is anything to learn from a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Signal {
    /// Rewards differ.
    Yes,
    /// All scored trials have the same reward.
    EqualRewards,
    /// Fewer than two trials have a reward.
    TooFewScored,
}

/// The advantages of one group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupAdvantages {
    /// Trials with a reward.
    pub n_scored: usize,
    /// Trials without.
    pub n_unscored: usize,
    /// Of the scored rewards; absent where there is none.
    pub mean: Option<f64>,
    /// Of the scored rewards, by the settings; absent where it is not defined.
    pub deviation: Option<f64>,
    /// Whether there is anything to learn.
    pub signal: Signal,
    /// One for each trial, in order; absent where the trial has no reward.
    pub advantages: Vec<Option<f64>>,
}

/// Counts over groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdvantageSummary {
    /// Groups.
    pub n_groups: usize,
    /// Trials with a reward.
    pub n_scored: usize,
    /// Trials without.
    pub n_unscored: usize,
    /// Groups that give no signal.
    pub n_without_signal: usize,
    /// Their share of all groups; absent where there is no group.
    pub share_without_signal: Option<f64>,
}

/// The advantages of groups of rewards, a reward a trial. Rewards and epsilon must be finite, and
/// epsilon not negative.
pub fn advantages(
    groups: &[Vec<Option<f64>>],
    settings: &AdvantageSettings,
) -> Vec<GroupAdvantages> {
    let all: Vec<f64> = groups.iter().flatten().flatten().copied().collect();
    let of_batch = deviation(&all, settings.deviation);
    groups
        .iter()
        .map(|rewards| of_group(rewards, of_batch, settings))
        .collect()
}

/// Counts of them.
pub fn summary(groups: &[GroupAdvantages]) -> AdvantageSummary {
    let n_without_signal = groups
        .iter()
        .filter(|group| group.signal != Signal::Yes)
        .count();
    AdvantageSummary {
        n_groups: groups.len(),
        n_scored: groups.iter().map(|group| group.n_scored).sum(),
        n_unscored: groups.iter().map(|group| group.n_unscored).sum(),
        n_without_signal,
        share_without_signal: (!groups.is_empty())
            .then(|| n_without_signal as f64 / groups.len() as f64),
    }
}

fn of_group(
    rewards: &[Option<f64>],
    of_batch: Option<f64>,
    settings: &AdvantageSettings,
) -> GroupAdvantages {
    let scored: Vec<f64> = rewards.iter().flatten().copied().collect();
    let n = scored.len() as f64;
    let mean = mean(&scored);
    let of_group = deviation(&scored, settings.deviation);
    let signal = if scored.len() < 2 {
        Signal::TooFewScored
    } else if are_equal(&scored) {
        Signal::EqualRewards
    } else {
        Signal::Yes
    };
    let advantage = |reward: f64| {
        if signal != Signal::Yes {
            return 0.0;
        }
        let distance = reward - mean.unwrap_or_default();
        match settings.estimator {
            Estimator::GroupDeviation => {
                distance / (of_group.unwrap_or_default() + settings.epsilon)
            }
            Estimator::BatchDeviation => {
                distance / (of_batch.unwrap_or_default() + settings.epsilon)
            }
            Estimator::MeanOnly => distance,
            Estimator::LeaveOneOut => distance * n / (n - 1.0),
        }
    };
    GroupAdvantages {
        n_scored: scored.len(),
        n_unscored: rewards.len() - scored.len(),
        mean,
        deviation: of_group,
        signal,
        advantages: rewards.iter().map(|reward| reward.map(advantage)).collect(),
    }
}

/// Whether rewards do not differ but for rounding.
pub(crate) fn are_equal(rewards: &[f64]) -> bool {
    let least = rewards.iter().copied().fold(f64::INFINITY, f64::min);
    let most = rewards.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    most - least <= EQUAL * least.abs().max(most.abs())
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn deviation(values: &[f64], which: Deviation) -> Option<f64> {
    let mean = mean(values)?;
    let divisor = match which {
        Deviation::Population => values.len(),
        Deviation::Sample => values.len() - 1,
    };
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (divisor > 0).then(|| (squares / divisor as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rewards: &[Option<f64>], settings: AdvantageSettings) -> GroupAdvantages {
        advantages(&[rewards.to_vec()], &settings).remove(0)
    }

    fn settings(estimator: Estimator, deviation: Deviation) -> AdvantageSettings {
        AdvantageSettings {
            estimator,
            deviation,
            ..AdvantageSettings::default()
        }
    }

    #[test]
    fn published_vectors() {
        let rewards = [1.0, 0.0, 0.0, 1.0, 0.0].map(Some);
        let one = |estimator, deviation| {
            let found = of(&rewards, settings(estimator, deviation)).advantages;
            (found[0].unwrap(), found[1].unwrap())
        };
        for ((solved, failed), (a, b)) in [
            (
                one(Estimator::GroupDeviation, Deviation::Sample),
                (1.095443115, -0.730295410),
            ),
            (
                one(Estimator::GroupDeviation, Deviation::Population),
                (1.224742371, -0.816494914),
            ),
            (one(Estimator::MeanOnly, Deviation::Sample), (0.6, -0.4)),
            (one(Estimator::LeaveOneOut, Deviation::Sample), (0.75, -0.5)),
        ] {
            assert!((solved - a).abs() < 1e-9 && (failed - b).abs() < 1e-9);
        }
    }

    #[test]
    fn a_lost_reward_is_no_reward_of_zero() {
        let lost = of(
            &[None, Some(-1.0), Some(-1.0), None],
            AdvantageSettings::default(),
        );
        assert_eq!(lost.advantages, [None, Some(0.0), Some(0.0), None]);
        assert_eq!((lost.n_scored, lost.n_unscored), (2, 2));
        assert_eq!((lost.mean, lost.signal), (Some(-1.0), Signal::EqualRewards));
        let half = [None, Some(1.0), Some(-1.0), None];
        for (deviation, size) in [
            (Deviation::Population, 1.0),
            (Deviation::Sample, 0.5f64.sqrt()),
        ] {
            let found = of(&half, settings(Estimator::GroupDeviation, deviation));
            assert_eq!(found.signal, Signal::Yes);
            assert!((found.advantages[1].unwrap() - size).abs() < 2e-6);
            assert!((found.advantages[2].unwrap() + size).abs() < 2e-6);
            assert_eq!((found.advantages[0], found.advantages[3]), (None, None));
        }
        for few in [vec![], vec![None], vec![None, Some(3.0)]] {
            let found = of(&few, settings(Estimator::LeaveOneOut, Deviation::Sample));
            assert_eq!(found.signal, Signal::TooFewScored);
            assert!(found.advantages.iter().flatten().all(|it| *it == 0.0));
        }
    }

    #[test]
    fn a_batch_shares_its_deviation() {
        let groups = [
            vec![Some(1.0), Some(0.0)],
            vec![Some(4.0), None, Some(0.0)],
            vec![Some(0.0), Some(0.0)],
        ];
        let found = advantages(
            &groups,
            &settings(Estimator::BatchDeviation, Deviation::Population),
        );
        // Six rewards with mean 5/6 and squares that sum to 17.
        let of_batch = (17.0f64 / 6.0 - 25.0 / 36.0).sqrt();
        assert!((found[0].advantages[0].unwrap() - 0.5 / (of_batch + 1e-6)).abs() < 1e-12);
        assert!((found[1].advantages[0].unwrap() - 2.0 / (of_batch + 1e-6)).abs() < 1e-12);
        let counts = summary(&found);
        assert_eq!((counts.n_scored, counts.n_unscored), (6, 1));
        assert_eq!(counts.n_without_signal, 1);
        assert_eq!(summary(&[]).share_without_signal, None);
    }

    #[test]
    fn advantages_of_a_group_sum_to_zero_and_do_not_see_lost_trials() {
        let mut state = 7u64;
        let mut draw = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 33
        };
        for _ in 0..500 {
            let n = draw() % 9;
            let rewards: Vec<_> = (0..n)
                .map(|_| (draw() % 4 > 0).then(|| draw() as f64 / 1e8))
                .collect();
            let scored: Vec<_> = rewards.iter().copied().filter(Option::is_some).collect();
            for estimator in [
                Estimator::GroupDeviation,
                Estimator::BatchDeviation,
                Estimator::MeanOnly,
                Estimator::LeaveOneOut,
            ] {
                let settings = settings(estimator, Deviation::Population);
                let all = of(&rewards, settings);
                let sum: f64 = all.advantages.iter().flatten().sum();
                assert!(sum.abs() < 1e-6, "{sum}");
                let lost = all.advantages.iter().zip(&rewards);
                assert!(lost.clone().all(|(a, r)| a.is_none() == r.is_none()));
                let kept: Vec<_> = lost.map(|(a, _)| *a).filter(Option::is_some).collect();
                assert_eq!(kept, of(&scored, settings).advantages);
            }
        }
    }
}
