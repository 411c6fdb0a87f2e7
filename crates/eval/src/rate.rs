//! A rate that cannot be printed without what it rests on.

use serde::{Deserialize, Serialize};

use crate::{
    bootstrap::{self, Cluster},
    text, wilson,
};

/// How often something was solved, out of everything that was tried.
///
/// The rate itself is deliberately not a field: with lost trials there is no single one. The
/// bounds hold every value it could have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Everything that was tried, lost ones included.
    pub n: u64,
    /// Known to be solved.
    pub n_solved: u64,
    /// Known to be solved or unsolved.
    pub n_scored: u64,
    /// Lost to the infrastructure: `n - n_scored`.
    pub n_lost: u64,
    /// The rate if every lost one were unsolved, and if every one were solved. Absent if `n` is 0.
    pub bounds: Option<Bounds>,
    /// A 95% interval around both bounds. Absent if `n` is 0.
    pub interval: Option<Interval>,
}

/// The least and the greatest value that lost results leave possible.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Everything lost counted against.
    pub lower: f64,
    /// Everything lost counted in favour.
    pub upper: f64,
}

/// A 95% interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// Lower end.
    pub lower: f64,
    /// Upper end.
    pub upper: f64,
    /// How it was computed.
    pub method: IntervalMethod,
}

/// How an interval was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IntervalMethod {
    /// Wilson's score interval.
    Wilson,
    /// Percentile bootstrap that resamples tasks.
    TaskBootstrap,
    /// Percentile bootstrap that resamples source groups.
    SourceGroupBootstrap,
    /// Student's t over the means of runs.
    StudentT,
}

impl IntervalMethod {
    /// The method in words.
    pub fn words(self) -> &'static str {
        match self {
            IntervalMethod::Wilson => "Wilson",
            IntervalMethod::TaskBootstrap => "bootstrap over tasks",
            IntervalMethod::SourceGroupBootstrap => "bootstrap over source groups",
            IntervalMethod::StudentT => "Student's t over seeds",
        }
    }
}

impl Rate {
    /// A rate of independent units. Its interval reaches from the lower end of Wilson's interval
    /// with everything lost unsolved to the upper end of the one with everything lost solved;
    /// without losses that is Wilson's interval.
    pub fn of_units(n: u64, n_solved: u64, n_lost: u64) -> Self {
        let interval = wilson::interval(n_solved, n)
            .zip(wilson::interval(n_solved + n_lost, n))
            .map(|((lower, _), (_, upper))| Interval {
                lower,
                upper,
                method: IntervalMethod::Wilson,
            });
        Rate {
            interval,
            ..Rate::counts(n, n_solved, n_lost)
        }
    }

    /// A rate of attempts that belong together by task: one `(n, n_solved, n_lost)` per task. The
    /// interval resamples tasks, once with everything lost unsolved and once solved.
    pub fn of_clusters(clusters: &[(u64, u64, u64)], n_resamples: u32, seed: u64) -> Self {
        let sum = |pick: fn(&(u64, u64, u64)) -> u64| clusters.iter().map(pick).sum();
        let resample = |with_lost: bool| {
            let clusters: Vec<Cluster> = clusters
                .iter()
                .map(|&(n, n_solved, n_lost)| Cluster {
                    sum: (n_solved + if with_lost { n_lost } else { 0 }) as f64,
                    n: n as u32,
                })
                .collect();
            bootstrap::interval(&clusters, n_resamples, seed)
        };
        let interval = resample(false)
            .zip(resample(true))
            .map(|((lower, _), (_, upper))| Interval {
                lower,
                upper,
                method: IntervalMethod::TaskBootstrap,
            });
        Rate {
            interval,
            ..Rate::counts(sum(|c| c.0), sum(|c| c.1), sum(|c| c.2))
        }
    }

    fn counts(n: u64, n_solved: u64, n_lost: u64) -> Self {
        assert!(
            n_solved + n_lost <= n,
            "{n_solved} solved and {n_lost} lost of {n}"
        );
        Rate {
            n,
            n_solved,
            n_scored: n - n_lost,
            n_lost,
            bounds: (n > 0).then(|| Bounds {
                lower: n_solved as f64 / n as f64,
                upper: (n_solved + n_lost) as f64 / n as f64,
            }),
            interval: None,
        }
    }

    /// The rate in words, complete: `5 of 10, 8 scored, 2 lost, bounds 0.50 to 0.70, …`.
    pub fn sentence(&self) -> String {
        let mut out = format!(
            "{} of {}, {} scored, {} lost",
            self.n_solved, self.n, self.n_scored, self.n_lost
        );
        if let Some(bounds) = self.bounds {
            out += &if self.n_lost > 0 {
                format!(
                    ", bounds {} to {}",
                    text::share(bounds.lower),
                    text::share(bounds.upper)
                )
            } else {
                format!(", rate {}", text::share(bounds.lower))
            };
        }
        if let Some(interval) = self.interval {
            out += &format!(
                ", 95% interval {} to {} ({})",
                text::share(interval.lower),
                text::share(interval.upper),
                interval.method.words()
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_results_are_bounds_and_not_a_rate() {
        let rate = Rate::of_units(10, 5, 2);
        assert_eq!((rate.n, rate.n_scored, rate.n_lost), (10, 8, 2));
        assert_eq!(
            rate.bounds,
            Some(Bounds {
                lower: 0.5,
                upper: 0.7
            })
        );
        assert!(
            rate.sentence()
                .starts_with("5 of 10, 8 scored, 2 lost, bounds 0.50 to 0.70")
        );
        let json = serde_json::to_string(&rate).unwrap();
        assert!(!json.contains("0.625"), "{json}");
        assert!(!rate.sentence().contains("0.625") && !rate.sentence().contains("0.63"));
        assert_eq!(serde_json::from_str::<Rate>(&json).unwrap(), rate);
    }

    #[test]
    fn nothing_tried_is_no_rate() {
        let rate = Rate::of_units(0, 0, 0);
        assert_eq!((rate.bounds, rate.interval), (None, None));
        assert_eq!(rate.sentence(), "0 of 0, 0 scored, 0 lost");
        assert_eq!(Rate::of_clusters(&[], 100, 0).interval, None);
        let lost = Rate::of_units(4, 0, 4);
        assert_eq!(
            lost.bounds,
            Some(Bounds {
                lower: 0.0,
                upper: 1.0
            })
        );
        let interval = lost.interval.unwrap();
        assert_eq!((interval.lower, interval.upper), (0.0, 1.0));
    }

    #[test]
    fn intervals_hold_both_bounds() {
        for n in 1..25u64 {
            for solved in 0..=n {
                for lost in 0..=(n - solved) {
                    let rate = Rate::of_units(n, solved, lost);
                    let (bounds, interval) = (rate.bounds.unwrap(), rate.interval.unwrap());
                    assert!(interval.lower <= bounds.lower && bounds.upper <= interval.upper);
                }
            }
        }
        let clusters = [(4, 3, 0), (4, 0, 1), (4, 4, 0), (2, 1, 1)];
        let rate = Rate::of_clusters(&clusters, 2_000, 1);
        let (bounds, interval) = (rate.bounds.unwrap(), rate.interval.unwrap());
        assert_eq!((rate.n, rate.n_solved, rate.n_lost), (14, 8, 2));
        assert!(interval.lower <= bounds.lower && bounds.upper <= interval.upper);
    }
}
