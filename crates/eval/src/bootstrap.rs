//! The percentile bootstrap over clusters.

use crate::random::Generator;

/// The sum of a cluster's values and how many there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cluster {
    /// Sum over the cluster's tasks.
    pub sum: f64,
    /// Number of tasks.
    pub n: u32,
}

/// The 2.5% and 97.5% percentiles of the mean over tasks when whole clusters are drawn with
/// replacement, as many as there are. `None` without clusters, without tasks, or without
/// resamples.
///
/// A cluster is one task, or all tasks of a source group; a paired difference stays together
/// because it is one value of one task. Percentiles are order statistics, so the ends are values
/// that the resampled mean takes; both lie equally many ranks from their end, at least 95% of the
/// resamples lie between them, and exchanging the arms exactly mirrors the interval.
pub fn interval(clusters: &[Cluster], n_resamples: u32, seed: u64) -> Option<(f64, f64)> {
    if n_resamples == 0 || clusters.iter().all(|cluster| cluster.n == 0) {
        return None;
    }
    let mut generator = Generator::new(seed);
    let mut means = Vec::with_capacity(n_resamples as usize);
    while means.len() < n_resamples as usize {
        let mut sum = 0.0;
        let mut n = 0u64;
        for _ in 0..clusters.len() {
            let cluster = clusters[generator.index(clusters.len())];
            sum += cluster.sum;
            n += u64::from(cluster.n);
        }
        // A draw of empty clusters only has no mean; it is drawn again.
        if n > 0 {
            means.push(sum / n as f64);
        }
    }
    means.sort_by(f64::total_cmp);
    let n_outside = (f64::from(n_resamples) * 0.025).floor() as usize;
    let lower = n_outside.saturating_sub(1);
    Some((means[lower], means[means.len() - 1 - lower]))
}

/// One cluster per value.
pub fn singletons(values: &[f64]) -> Vec<Cluster> {
    values.iter().map(|&sum| Cluster { sum, n: 1 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differences(n: usize, plus: usize, minus: usize) -> Vec<Cluster> {
        let values: Vec<f64> = (0..n)
            .map(|i| {
                if i < plus {
                    1.0
                } else if i < plus + minus {
                    -1.0
                } else {
                    0.0
                }
            })
            .collect();
        singletons(&values)
    }

    #[test]
    fn exact_distributions() {
        for (n, plus, minus, lower, upper) in [
            (20, 1, 0, 0.0, 0.15),
            (20, 3, 1, -0.10, 0.30),
            (100, 12, 5, -0.01, 0.15),
        ] {
            let (l, u) = interval(&differences(n, plus, minus), 100_000, 1).unwrap();
            let step = 1.0 / n as f64 + 1e-9;
            assert!(
                (l - lower).abs() < step && (u - upper).abs() < step,
                "{n}: {l} {u}"
            );
        }
    }

    #[test]
    fn empty_inputs_give_nothing() {
        assert_eq!(interval(&[], 100, 0), None);
        assert_eq!(interval(&[Cluster { sum: 0.0, n: 0 }], 100, 0), None);
        assert_eq!(interval(&differences(3, 1, 0), 0, 0), None);
        assert_eq!(interval(&differences(1, 1, 0), 10, 0), Some((1.0, 1.0)));
    }

    #[test]
    fn a_seed_fixes_the_result_and_signs_mirror() {
        let clusters = differences(50, 9, 4);
        assert_eq!(interval(&clusters, 2_000, 5), interval(&clusters, 2_000, 5));
        let (l, u) = interval(&clusters, 20_000, 5).unwrap();
        let negated: Vec<Cluster> = clusters
            .iter()
            .map(|cluster| Cluster {
                sum: -cluster.sum,
                n: 1,
            })
            .collect();
        assert_eq!(interval(&negated, 20_000, 5), Some((-u, -l)));
        assert!(l <= 0.1 && 0.1 <= u);
    }

    #[test]
    fn whole_groups_move_together() {
        // Ten groups of ten identical tasks hold ten observations, not a hundred: the interval
        // must be about as wide as that of ten tasks.
        let grouped: Vec<Cluster> = (0..10)
            .map(|i| Cluster {
                sum: if i < 3 { 10.0 } else { 0.0 },
                n: 10,
            })
            .collect();
        let by_group = interval(&grouped, 20_000, 2).unwrap();
        let ten = interval(&differences(10, 3, 0), 20_000, 2).unwrap();
        assert_eq!(by_group, ten);
        let as_if_independent = interval(&differences(100, 30, 0), 20_000, 2).unwrap();
        assert!(by_group.1 - by_group.0 > 2.0 * (as_if_independent.1 - as_if_independent.0));
    }

    /// 500 simulated evaluations of 60 tasks with a true difference of 0.1. The percentile
    /// interval is known to cover a little less than its level at this size; 0.95 is expected
    /// within 0.03, three standard errors of the simulation.
    #[test]
    fn covers_at_the_stated_rate() {
        let mut generator = Generator::new(11);
        let mut n_covered = 0;
        for simulation in 0..500 {
            let values: Vec<f64> = (0..60)
                .map(|_| match generator.unit() {
                    u if u < 0.25 => 1.0,
                    u if u < 0.40 => -1.0,
                    _ => 0.0,
                })
                .collect();
            let (l, u) = interval(&singletons(&values), 1_000, simulation).unwrap();
            if l <= 0.1 && 0.1 <= u {
                n_covered += 1;
            }
        }
        let coverage = f64::from(n_covered) / 500.0;
        assert!((coverage - 0.95).abs() <= 0.03, "{coverage}");
    }
}
