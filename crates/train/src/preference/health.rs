//! What the numbers of preference training mean while it runs.
//!
//! Preference losses fall whether or not a model becomes better, and a run that cannot work looks
//! like one that does. These are the usual ways, each told once, in words. Thresholds are ours;
//! no paper names any.

use std::collections::{BTreeSet, VecDeque};

use crate::{events::UpdateRecord, loss::PreferenceObjective, metrics::Metric};

/// Updates that are looked at together.
const WINDOW: usize = 8;
/// Gradient weight below which a pair no longer pulls.
const SATISFIED_WEIGHT: f64 = 0.05;
/// Margin, in units of reward, below which nothing has moved.
const UNMOVED_MARGIN: f64 = 1e-3;
/// Updates after which something should have.
const PATIENCE: u64 = 20;
/// A fall of the chosen reply's log-probability, nats per reply, that is more than noise.
const FALL: f64 = 1.0;
/// Share of pairs that the starting policy already prefers, above which pairs teach little.
const PREFERRED: f64 = 0.95;

/// Watches the metrics of a run.
#[derive(Debug)]
pub(super) struct Health {
    objective: PreferenceObjective,
    recent: VecDeque<Numbers>,
    told: BTreeSet<&'static str>,
}

#[derive(Clone, Copy, Debug)]
struct Numbers {
    loss: f64,
    weight: f64,
    margin: f64,
    preferred: f64,
    gradient_norm: f64,
    chosen: Option<f64>,
    rejected: Option<f64>,
}

impl Health {
    pub fn new(objective: PreferenceObjective) -> Self {
        Health {
            objective,
            recent: VecDeque::new(),
            told: BTreeSet::new(),
        }
    }

    /// Takes an update's metrics; gives what is new to say.
    pub fn look(&mut self, update: &UpdateRecord) -> Vec<(&'static str, String)> {
        let get = |metric| update.metrics.get(metric).finite();
        let (Some(loss), Some(weight), Some(margin), Some(preferred), Some(gradient_norm)) = (
            get(Metric::Loss),
            get(Metric::GradientWeight),
            get(Metric::RewardMargin),
            get(Metric::PreferredShare),
            get(Metric::GradientNorm),
        ) else {
            return Vec::new();
        };
        if self.recent.len() == WINDOW {
            self.recent.pop_front();
        }
        self.recent.push_back(Numbers {
            loss,
            weight,
            margin,
            preferred,
            gradient_norm,
            chosen: get(Metric::ChosenLogprobChange),
            rejected: get(Metric::RejectedLogprobChange),
        });
        let first = self.first(update, loss);
        let later = [
            self.satisfied(),
            self.unmoved(update.update),
            self.both_fall(),
            self.preferred_already(update.update),
            self.no_gradient(),
        ];
        let all: Vec<_> = first
            .into_iter()
            .chain(later.into_iter().flatten())
            .collect();
        all.into_iter()
            .filter(|(name, _)| self.told.insert(name))
            .collect()
    }

    fn is_full(&self) -> bool {
        self.recent.len() == WINDOW
    }

    fn mean(&self, of: impl Fn(&Numbers) -> f64) -> f64 {
        self.recent.iter().map(of).sum::<f64>() / self.recent.len().max(1) as f64
    }

    fn first(&self, update: &UpdateRecord, loss: f64) -> Option<(&'static str, String)> {
        let expected = self.objective.first_loss()?;
        let is_off = (loss - expected).abs() > 1e-6 * expected;
        (update.update == 1 && is_off).then(|| {
            let text = format!(
                "the first loss is {loss} where {expected} is certain while the policy is the \
                 reference: the two do not score alike"
            );
            ("first_loss", text)
        })
    }

    fn satisfied(&self) -> Option<(&'static str, String)> {
        let weight = self.mean(|it| it.weight);
        (self.is_full() && weight < SATISFIED_WEIGHT).then(|| {
            let text = format!(
                "the pairs are already satisfied: over the last {WINDOW} updates the gradient \
                 weight is {weight:.4} of at most 1, so further updates change nothing. Use a \
                 smaller beta, fewer epochs, or harder pairs."
            );
            ("pairs_satisfied", text)
        })
    }

    fn preferred_already(&self, update: u64) -> Option<(&'static str, String)> {
        let preferred = self.mean(|it| it.preferred);
        (update == WINDOW as u64 && preferred > PREFERRED).then(|| {
            let text = format!(
                "the policy gave the chosen reply the higher log-probability per token in {:.0}% \
                 of the pairs of its first {WINDOW} updates: it had little to learn from them. \
                 Pairs from its own failures teach more.",
                100.0 * preferred
            );
            ("pairs_preferred_already", text)
        })
    }

    fn unmoved(&self, update: u64) -> Option<(&'static str, String)> {
        let margin = self.mean(|it| it.margin.abs());
        let compares = self.objective.needs_reference();
        (compares && update >= PATIENCE && margin < UNMOVED_MARGIN).then(|| {
            let text = format!(
                "after {update} updates the margin between chosen and rejected replies is \
                 {margin:.1e}: the policy has hardly moved. Raise the learning rate."
            );
            ("policy_unmoved", text)
        })
    }

    fn both_fall(&self) -> Option<(&'static str, String)> {
        let latest = self.recent.back()?;
        let (chosen, rejected) = (latest.chosen?, latest.rejected?);
        let first = self.recent.front()?.chosen?;
        let falls = self.is_full() && chosen < -FALL && chosen < first && rejected < chosen;
        falls.then(|| {
            let text = format!(
                "the chosen replies have become less likely than the reference has them, by \
                 {:.1} nats, and the rejected ones by {:.1}: margins grow while both fall, and \
                 what takes their place was in no pair. Use a greater beta, a lower learning \
                 rate, or length_normalised_dpo.",
                -chosen, -rejected
            );
            ("chosen_falls", text)
        })
    }

    fn no_gradient(&self) -> Option<(&'static str, String)> {
        let latest = self.recent.back()?;
        (latest.gradient_norm == 0.0).then(|| {
            let text = format!(
                "the gradient is exactly zero at a loss of {}: nothing can be learned",
                latest.loss
            );
            ("no_gradient", text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{metrics::Metrics, order::Position};

    struct Course {
        health: Health,
        update: u64,
    }

    impl Course {
        fn new(objective: PreferenceObjective) -> Self {
            Course {
                health: Health::new(objective),
                update: 0,
            }
        }

        fn look(&mut self, numbers: &[(Metric, f64)]) -> Vec<&'static str> {
            self.update += 1;
            let mut metrics = Metrics::default();
            for (metric, value) in [
                (Metric::Loss, std::f64::consts::LN_2),
                (Metric::GradientNorm, 1.0),
                (Metric::GradientWeight, 0.5),
                (Metric::RewardMargin, 0.1),
                (Metric::PreferredShare, 0.5),
                (Metric::ChosenLogprobChange, 0.2),
                (Metric::RejectedLogprobChange, -0.2),
            ] {
                metrics.set(metric, value);
            }
            for (metric, value) in numbers {
                metrics.set(*metric, *value);
            }
            let record = UpdateRecord {
                update: self.update,
                total_updates: 100,
                position: Position {
                    epoch: 0,
                    window: 0,
                },
                applied: true,
                metrics,
            };
            let told = self.health.look(&record);
            assert!(told.iter().all(|(_, text)| text.len() > 40));
            told.into_iter().map(|(name, _)| name).collect()
        }
    }

    const DPO: PreferenceObjective = PreferenceObjective::Dpo { beta: 0.1 };

    #[test]
    fn a_healthy_run_is_told_nothing() {
        let mut course = Course::new(DPO);
        for _ in 0..60 {
            assert!(course.look(&[]).is_empty());
        }
    }

    #[test]
    fn what_cannot_work_is_told_once_with_its_reason() {
        for (name, numbers, at) in [
            ("first_loss", vec![(Metric::Loss, 0.7)], 1),
            ("pairs_satisfied", vec![(Metric::GradientWeight, 0.01)], 8),
            (
                "pairs_preferred_already",
                vec![(Metric::PreferredShare, 1.0)],
                8,
            ),
            ("policy_unmoved", vec![(Metric::RewardMargin, 1e-5)], 20),
            ("no_gradient", vec![(Metric::GradientNorm, 0.0)], 1),
        ] {
            let mut course = Course::new(DPO);
            let told: Vec<_> = (1..=40)
                .flat_map(|update| {
                    let told = course.look(&numbers);
                    told.into_iter().map(move |name| (update, name))
                })
                .collect();
            assert_eq!(told, [(at, name)]);
        }
        let mut course = Course::new(DPO);
        let mut fall = |to: f64| {
            course.look(&[
                (Metric::ChosenLogprobChange, to),
                (Metric::RejectedLogprobChange, 2.0 * to),
            ])
        };
        let told: Vec<_> = (0..20).map(|it| fall(-0.3 * f64::from(it))).collect();
        assert_eq!(told.concat(), ["chosen_falls"]);
    }

    #[test]
    fn an_objective_without_a_reference_is_not_measured_against_one() {
        let simpo = PreferenceObjective::Simpo {
            beta: 2.0,
            gamma: 0.5,
        };
        let mut course = Course::new(simpo);
        for _ in 0..40 {
            let told = course.look(&[(Metric::RewardMargin, 0.0), (Metric::Loss, 3.0)]);
            assert!(told.is_empty());
        }
    }
}
