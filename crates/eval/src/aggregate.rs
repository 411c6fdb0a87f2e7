//! Several training runs of one recipe, which differ in their seed: what their mean is, and how
//! much of it is chance of the tasks or of the seeds.
//!
//! Means are taken per task first: the share of attempts that solved it in each run, then over
//! runs. A task that no run scored has no mean and is counted, never a zero. Two intervals answer
//! two questions. *By task*: would other tasks give the same? A bootstrap over source groups with
//! the runs as they are. *By seed*: would other seeds give the same? Student's t over the runs'
//! means on the tasks that all of them scored. Neither contains the other.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use temper_core::{AgentName, Digest, SourceGroup, TaskId, Trial};

use crate::{
    arm::{Arm, ArmError, Gathered, TaskTally, gather},
    bootstrap::{self, Cluster},
    compare::Options,
    rate::{Bounds, Interval, IntervalMethod},
};

/// The trials of one training run, or of something that is not trained.
#[derive(Clone, Debug)]
pub struct SeedRun<'a> {
    /// The training seed, or the number of the run where it is not known.
    pub seed: u64,
    /// Its trials.
    pub trials: &'a [Trial],
}

/// Runs that differ in their seed alone.
#[derive(Clone, Debug)]
pub struct SeededArm<'a> {
    /// The label.
    pub name: AgentName,
    /// The runs, each with another seed.
    pub runs: Vec<SeedRun<'a>>,
}

/// What several arms came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Aggregate {
    /// Version of this format.
    pub format: u32,
    /// Samples of the bootstrap.
    pub n_resamples: u32,
    /// Seed of the bootstrap.
    pub seed: u64,
    /// The arms, in the order given.
    pub arms: Vec<ArmAggregate>,
    /// Every later arm against every earlier one.
    pub differences: Vec<Difference>,
    /// The stamp, where jobs of different profiles were put together all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixed_profiles: Option<String>,
}

/// One arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArmAggregate {
    /// The label.
    pub name: AgentName,
    /// Runs.
    pub n_runs: u64,
    /// Tasks that any run attempted.
    pub n_tasks: u64,
    /// Of these, those that some run scored: what the mean is over.
    pub n_tasks_scored: u64,
    /// Of these, those that every run scored: what runs are compared on.
    pub n_tasks_common: u64,
    /// Source groups of the tasks scored.
    pub n_source_groups: u64,
    /// Attempts that were lost to the infrastructure, over all runs.
    pub n_lost: u64,
    /// Mean over tasks of their means. Absent where nothing was scored.
    pub mean: Option<f64>,
    /// The mean if every lost attempt were unsolved, and if every one were solved.
    pub bounds: Option<Bounds>,
    /// 95 % by task.
    pub by_task: Option<Interval>,
    /// 95 % by seed; absent with fewer than two runs.
    pub by_seed: Option<BySeed>,
    /// Each run.
    pub runs: Vec<RunMean>,
    /// Each task.
    pub tasks: Vec<TaskMean>,
}

/// A run's mean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunMean {
    /// The training seed.
    pub seed: u64,
    /// Tasks that it scored.
    pub n_tasks_scored: u64,
    /// Mean over these.
    pub mean: Option<f64>,
    /// Mean over the tasks that every run scored.
    pub mean_common: Option<f64>,
}

/// A task over all runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskMean {
    /// The task.
    pub task: TaskId,
    /// Its source group.
    pub source_group: SourceGroup,
    /// Runs that scored it.
    pub n_runs_scored: u64,
    /// Mean over these of the share of scored attempts that solved it. Absent where none did.
    pub mean: Option<f64>,
}

/// What seeds say.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BySeed {
    /// Runs, or pairs of runs.
    pub n: u64,
    /// Mean of their means.
    pub mean: f64,
    /// Sample standard deviation of their means.
    pub standard_deviation: f64,
    /// Mean less and plus `t(0.975, n - 1)` standard errors.
    pub interval: Interval,
}

/// An arm against an earlier one, on the tasks that both scored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Difference {
    /// The earlier arm.
    pub baseline: AgentName,
    /// The later arm.
    pub candidate: AgentName,
    /// Tasks that both scored.
    pub n_tasks: u64,
    /// Tasks that only one of them scored, or that only one has.
    pub n_tasks_left_out: u64,
    /// Whether each task is the same in both, by content. Arms whose statements differ can be
    /// compared by task all the same.
    pub same_tasks: bool,
    /// Mean over tasks of candidate less baseline.
    pub mean: Option<f64>,
    /// 95 % by task.
    pub by_task: Option<Interval>,
    /// 95 % by seed: of runs with the same seed, or of each run against the baseline's only one.
    pub by_seed: Option<BySeed>,
    /// Tasks whose mean rose.
    pub n_improved: u64,
    /// Tasks whose mean fell, the furthest first.
    pub regressions: Vec<Regression>,
}

/// A task that an arm solves less often than an earlier one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Regression {
    /// The task.
    pub task: TaskId,
    /// Its source group.
    pub source_group: SourceGroup,
    /// The earlier arm's mean.
    pub baseline: f64,
    /// The later arm's.
    pub candidate: f64,
    /// Runs of the candidate that scored it.
    pub n_runs_scored: u64,
    /// Of these, those below the earlier arm's mean.
    pub n_runs_below: u64,
}

impl Aggregate {
    /// The format that this code writes.
    pub const FORMAT: u32 = 1;
}

/// Aggregates arms.
///
/// # Errors
/// When there are no arms, names or seeds are used twice, a run mixes agents, an attempt is there
/// twice, or a task is not the same in all runs of an arm.
pub fn aggregate(arms: &[SeededArm<'_>], options: &Options) -> Result<Aggregate, ArmError> {
    if arms.is_empty() {
        return Err(ArmError::NoArms);
    }
    let mut known: Vec<Known> = Vec::new();
    for arm in arms {
        if known.iter().any(|other| other.name == arm.name) {
            return Err(ArmError::SameName(arm.name.clone()));
        }
        known.push(Known::of(arm)?);
    }
    let mut differences = Vec::new();
    for (index, baseline) in known.iter().enumerate() {
        for candidate in &known[index + 1..] {
            differences.push(difference(baseline, candidate, options));
        }
    }
    Ok(Aggregate {
        format: Aggregate::FORMAT,
        n_resamples: options.n_resamples,
        seed: options.seed,
        arms: known.iter().map(|arm| arm.aggregate(options)).collect(),
        differences,
        mixed_profiles: None,
    })
}

/// One task of an arm, by run.
struct TaskRuns {
    group: SourceGroup,
    digest: Digest,
    /// In the order of the runs; absent where the run did not attempt it.
    tallies: Vec<Option<TaskTally>>,
}

struct Known {
    name: AgentName,
    seeds: Vec<u64>,
    tasks: BTreeMap<TaskId, TaskRuns>,
}

impl Known {
    fn of(arm: &SeededArm<'_>) -> Result<Self, ArmError> {
        let seeds: Vec<u64> = arm.runs.iter().map(|run| run.seed).collect();
        let mut labelled = Vec::new();
        for run in &arm.runs {
            let label = format!("{} seed {}", arm.name, run.seed);
            let name = AgentName::new(label).unwrap_or_else(|_| arm.name.clone());
            labelled.push(Arm {
                name,
                trials: run.trials,
            });
        }
        let runs = gather(&labelled)?;
        let mut tasks = BTreeMap::new();
        for trial in runs.iter().flat_map(Gathered::trials) {
            tasks.entry(trial.task_id.clone()).or_insert_with(|| {
                let tally = |run: &Gathered<'_>| {
                    let tally = run.tally(&trial.task_id);
                    (tally.n_attempts > 0).then_some(tally)
                };
                TaskRuns {
                    group: trial.source_group.clone(),
                    digest: trial.task_digest.clone(),
                    tallies: runs.iter().map(tally).collect(),
                }
            });
        }
        Ok(Known {
            name: arm.name.clone(),
            seeds,
            tasks,
        })
    }

    fn aggregate(&self, options: &Options) -> ArmAggregate {
        let scored: Vec<(&TaskRuns, f64)> = self
            .tasks
            .values()
            .filter_map(|task| Some((task, task.mean()?)))
            .collect();
        let common: Vec<&TaskRuns> = self
            .tasks
            .values()
            .filter(|task| (0..self.seeds.len()).all(|run| task.of_run(run).is_some()))
            .collect();
        let runs: Vec<RunMean> = self
            .seeds
            .iter()
            .enumerate()
            .map(|(run, &seed)| {
                let own: Vec<f64> = self.tasks.values().filter_map(|t| t.of_run(run)).collect();
                let shared: Vec<f64> = common.iter().filter_map(|t| t.of_run(run)).collect();
                RunMean {
                    seed,
                    n_tasks_scored: own.len() as u64,
                    mean: mean(&own),
                    mean_common: mean(&shared),
                }
            })
            .collect();
        let of_runs: Vec<f64> = runs.iter().filter_map(|run| run.mean_common).collect();
        let tallies = || self.tasks.values().flat_map(|t| t.tallies.iter().flatten());
        let values: Vec<f64> = scored.iter().map(|(_, mean)| *mean).collect();
        let groups: BTreeSet<&SourceGroup> = scored.iter().map(|(task, _)| &task.group).collect();
        ArmAggregate {
            name: self.name.clone(),
            n_runs: self.seeds.len() as u64,
            n_tasks: self.tasks.len() as u64,
            n_tasks_scored: scored.len() as u64,
            n_tasks_common: common.len() as u64,
            n_source_groups: groups.len() as u64,
            n_lost: tallies().map(|tally| tally.n_lost).sum(),
            mean: mean(&values),
            bounds: self.bounds(),
            by_task: by_task(
                scored.iter().map(|(task, mean)| (&task.group, *mean)),
                options,
            ),
            by_seed: by_seed(&of_runs),
            runs,
            tasks: self
                .tasks
                .iter()
                .map(|(id, task)| TaskMean {
                    task: id.clone(),
                    source_group: task.group.clone(),
                    n_runs_scored: task.n_runs_scored(),
                    mean: task.mean(),
                })
                .collect(),
        }
    }

    fn bounds(&self) -> Option<Bounds> {
        let of = |lost_is_solved: bool| {
            let tasks = self.tasks.values();
            let means: Vec<f64> = tasks
                .filter_map(|task| {
                    let tallies = task.tallies.iter().flatten();
                    let runs: Vec<f64> = tallies.map(|t| t.mean_if_lost(lost_is_solved)).collect();
                    mean(&runs)
                })
                .collect();
            mean(&means)
        };
        Some(Bounds {
            lower: of(false)?,
            upper: of(true)?,
        })
    }
}

impl TaskRuns {
    /// The share of scored attempts of a run that solved it.
    fn of_run(&self, run: usize) -> Option<f64> {
        self.tallies.get(run)?.as_ref()?.mean()
    }

    fn means(&self) -> Vec<f64> {
        (0..self.tallies.len())
            .filter_map(|run| self.of_run(run))
            .collect()
    }

    fn mean(&self) -> Option<f64> {
        mean(&self.means())
    }

    fn n_runs_scored(&self) -> u64 {
        self.means().len() as u64
    }
}

fn difference(baseline: &Known, candidate: &Known, options: &Options) -> Difference {
    let mut both = Vec::new();
    for (id, new) in &candidate.tasks {
        let Some(old) = baseline.tasks.get(id) else {
            continue;
        };
        if let (Some(before), Some(after)) = (old.mean(), new.mean()) {
            both.push((id, old, new, before, after));
        }
    }
    let all: BTreeSet<&TaskId> = baseline
        .tasks
        .keys()
        .chain(candidate.tasks.keys())
        .collect();
    let values: Vec<f64> = both.iter().map(|(.., old, new)| new - old).collect();
    let mut regressions: Vec<Regression> = both
        .iter()
        .filter(|(.., before, after)| after < before)
        .map(|(id, _, new, before, after)| Regression {
            task: (*id).clone(),
            source_group: new.group.clone(),
            baseline: *before,
            candidate: *after,
            n_runs_scored: new.n_runs_scored(),
            n_runs_below: new.means().iter().filter(|mean| *mean < before).count() as u64,
        })
        .collect();
    regressions.sort_by(|a, b| {
        let fall = |regression: &Regression| regression.candidate - regression.baseline;
        fall(a)
            .total_cmp(&fall(b))
            .then_with(|| a.task.cmp(&b.task))
    });
    let by_task = by_task(
        both.iter()
            .map(|(_, _, new, before, after)| (&new.group, after - before)),
        options,
    );
    // Runs that belong together, then the tasks that each of these runs scored.
    let pairs: Vec<(usize, usize)> = candidate
        .seeds
        .iter()
        .enumerate()
        .filter_map(|(run, seed)| {
            let single = baseline.seeds.len() == 1;
            let same = baseline.seeds.iter().position(|other| other == seed);
            Some((if single { 0 } else { same? }, run))
        })
        .collect();
    let common: Vec<(&TaskRuns, &TaskRuns)> = both
        .iter()
        .map(|(_, old, new, ..)| (*old, *new))
        .filter(|(old, new)| {
            let mut pairs = pairs.iter();
            pairs.all(|(a, b)| old.of_run(*a).is_some() && new.of_run(*b).is_some())
        })
        .collect();
    let of_pairs: Vec<f64> = pairs
        .iter()
        .filter_map(|(a, b)| {
            let values = common.iter();
            let values: Vec<f64> = values
                .filter_map(|(old, new)| Some(new.of_run(*b)? - old.of_run(*a)?))
                .collect();
            mean(&values)
        })
        .collect();
    Difference {
        baseline: baseline.name.clone(),
        candidate: candidate.name.clone(),
        n_tasks: both.len() as u64,
        n_tasks_left_out: (all.len() - both.len()) as u64,
        same_tasks: both
            .iter()
            .all(|(_, old, new, ..)| old.digest == new.digest),
        mean: mean(&values),
        by_task,
        by_seed: by_seed(&of_pairs),
        n_improved: values.iter().filter(|value| **value > 0.0).count() as u64,
        regressions,
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The bootstrap over source groups.
fn by_task<'a>(
    values: impl Iterator<Item = (&'a SourceGroup, f64)>,
    options: &Options,
) -> Option<Interval> {
    let mut groups: BTreeMap<&SourceGroup, Cluster> = BTreeMap::new();
    for (group, value) in values {
        let cluster = groups.entry(group).or_insert(Cluster { sum: 0.0, n: 0 });
        cluster.sum += value;
        cluster.n += 1;
    }
    let clusters: Vec<Cluster> = groups.into_values().collect();
    let (lower, upper) = bootstrap::interval(&clusters, options.n_resamples, options.seed)?;
    Some(Interval {
        lower,
        upper,
        method: IntervalMethod::SourceGroupBootstrap,
    })
}

/// Student's interval of a mean.
fn by_seed(values: &[f64]) -> Option<BySeed> {
    let n = values.len();
    let mean = mean(values)?;
    let t = t_975(n.checked_sub(1)?)?;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let standard_deviation = (squares / (n - 1) as f64).sqrt();
    let half = t * standard_deviation / (n as f64).sqrt();
    Some(BySeed {
        n: n as u64,
        mean,
        standard_deviation,
        interval: Interval {
            lower: mean - half,
            upper: mean + half,
            method: IntervalMethod::StudentT,
        },
    })
}

/// The 97.5 % quantile of Student's t. Exact to the digits given up to 10 degrees of freedom; the
/// expansion in their inverse beyond (Abramowitz and Stegun 26.7.5) is off by less than 1e-5.
fn t_975(degrees: usize) -> Option<f64> {
    const EXACT: [f64; 10] = [
        12.706204736,
        4.302652730,
        3.182446305,
        2.776445105,
        2.570581836,
        2.446911851,
        2.364624252,
        2.306004135,
        2.262157163,
        2.228138852,
    ];
    match degrees {
        0 => None,
        1..=10 => Some(EXACT[degrees - 1]),
        _ => {
            let (z, n) = (1.959_963_984_540_054_f64, degrees as f64);
            let g1 = (z.powi(3) + z) / 4.0;
            let g2 = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
            let g3 = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
            let g4 = (79.0 * z.powi(9) + 776.0 * z.powi(7) + 1482.0 * z.powi(5)
                - 1920.0 * z.powi(3)
                - 945.0 * z)
                / 92_160.0;
            Some(z + g1 / n + g2 / n.powi(2) + g3 / n.powi(3) + g4 / n.powi(4))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (degrees, expected) in [
            (1, 12.7062),
            (2, 4.3027),
            (11, 2.2010),
            (30, 2.0423),
            (120, 1.9799),
        ] {
            let t = t_975(degrees).unwrap();
            assert!((t - expected).abs() < 1e-4, "{degrees}: {t}");
        }
        assert_eq!(t_975(0), None);
    }

    #[test]
    fn an_interval_by_seed_needs_two() {
        assert_eq!(by_seed(&[]), None);
        assert_eq!(by_seed(&[0.5]), None);
        // Three means; R: t.test(c(0.2, 0.3, 0.4)) gives 0.05158625 to 0.54841375.
        let three = by_seed(&[0.2, 0.3, 0.4]).unwrap();
        assert!((three.interval.lower - 0.051_586_25).abs() < 1e-7);
        assert!((three.interval.upper - 0.548_413_75).abs() < 1e-7);
        assert!((three.standard_deviation - 0.1).abs() < 1e-12);
    }
}
