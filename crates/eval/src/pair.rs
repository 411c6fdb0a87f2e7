//! Two arms, task by task.

use serde::{Deserialize, Serialize};
use temper_core::{AgentName, SourceGroup, TaskId};

use crate::{
    arm::{Gathered, TaskTally},
    bootstrap::{self, Cluster},
    compare::{ALPHA, Options},
    mcnemar,
    rate::{Bounds, Interval, IntervalMethod},
    text,
};

/// A paired comparison. Differences are candidate minus baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// One arm's label.
    pub baseline: AgentName,
    /// The other's.
    pub candidate: AgentName,
    /// Tasks that both arms attempted, in order of their ids.
    pub tasks: Vec<PairedTask>,
    /// Tasks that only the baseline attempted; they take no part.
    pub only_baseline: Vec<TaskId>,
    /// Tasks that only the candidate attempted; they take no part.
    pub only_candidate: Vec<TaskId>,
    /// `tasks` by standing.
    pub standings: Standings,
    /// How many final patches are the same.
    pub identical_patches: IdenticalPatches,
    /// The test on tasks whose outcome is known in both arms.
    pub mcnemar: Mcnemar,
    /// The same test on all paired tasks, with what is lost taken as solved for the baseline and
    /// unsolved for the candidate.
    pub mcnemar_lost_for_baseline: Mcnemar,
    /// The same, taken the other way.
    pub mcnemar_lost_for_candidate: Mcnemar,
    /// The mean difference.
    pub difference: Difference,
    /// What follows.
    pub conclusion: Conclusion,
    /// What follows, in words.
    pub sentence: String,
}

/// One task in both arms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairedTask {
    /// The task.
    pub task: TaskId,
    /// Its source group.
    pub source_group: SourceGroup,
    /// The baseline's attempts.
    pub baseline: TaskTally,
    /// The candidate's attempts.
    pub candidate: TaskTally,
    /// How they compare.
    pub standing: Standing,
}

/// How the candidate did on a task, by the share of its scored attempts that solved it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// The candidate won: a greater share than the baseline.
    Gained,
    /// The candidate was beaten: a smaller share. Not called lost, which is kept for what the
    /// infrastructure lost.
    Regressed,
    /// Equal shares above zero.
    TiedSolved,
    /// No attempt of either arm solved it.
    TiedUnsolved,
    /// An arm has no scored attempt.
    Unknown,
}

/// Tasks by standing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Standings {
    /// [`Standing::Gained`]
    pub n_gained: u64,
    /// [`Standing::Regressed`]
    pub n_regressed: u64,
    /// [`Standing::TiedSolved`]
    pub n_tied_solved: u64,
    /// [`Standing::TiedUnsolved`]
    pub n_tied_unsolved: u64,
    /// [`Standing::Unknown`]
    pub n_unknown: u64,
}

/// Final patches of the same task and attempt that are equal byte for byte.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdenticalPatches {
    /// Attempts for which both arms have a patch.
    pub n_compared: u64,
    /// Those whose patches are equal.
    pub n_identical: u64,
    /// Those whose patches are equal because both are empty.
    pub n_both_empty: u64,
    /// Those whose patches are equal and whose scored outcomes differ all the same: the verifier
    /// gave two answers to one question.
    pub n_judged_differently: u64,
    /// What that means, in words.
    pub sentence: String,
}

/// McNemar's test on task level, where a task is solved or not (by majority of its attempts).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mcnemar {
    /// Tasks whose outcome is known in both arms.
    pub n_tasks: u64,
    /// Solved by both.
    pub n_both: u64,
    /// Solved by the baseline only.
    pub n_baseline_only: u64,
    /// Solved by the candidate only.
    pub n_candidate_only: u64,
    /// Solved by neither.
    pub n_neither: u64,
    /// Exact two-sided p value.
    pub exact_p: f64,
    /// Mid-p value.
    pub mid_p: f64,
    /// The exact p value corrected for the number of pairs in the comparison (Holm); equal to it
    /// with two arms.
    pub holm_p: f64,
    /// How many tasks would have to change in one direction for significance, given the number of
    /// pairs.
    pub minimum_one_sided_flips: u32,
}

/// The mean over tasks of the difference between the arms' shares of solved attempts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Difference {
    /// Tasks with a scored attempt in both arms.
    pub n_tasks: u64,
    /// Paired tasks without one in either arm.
    pub n_unknown: u64,
    /// Source groups among the former.
    pub n_source_groups: u64,
    /// The mean difference over them; absent if there are none.
    pub estimate: Option<f64>,
    /// Its 95% interval when tasks are resampled.
    pub by_task: Option<Interval>,
    /// Its 95% interval when source groups are resampled; the one to quote when tasks share code.
    pub by_source_group: Option<Interval>,
    /// The difference over all paired tasks with everything lost counted for the baseline, and
    /// for the candidate. Absent without paired tasks.
    pub bounds: Option<Bounds>,
}

/// What a pair shows, at the level 0.05, after Holm's correction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Conclusion {
    /// No task has a known outcome in both arms.
    NothingToCompare,
    /// Every pair of final patches is byte-identical: whatever differs between the arms changed
    /// nothing.
    ChangedNothing,
    /// The candidate solved significantly more, whatever became of what was lost.
    CandidateBetter,
    /// The baseline solved significantly more, whatever became of what was lost.
    BaselineBetter,
    /// Whether the difference is significant depends on results that were lost.
    OpenBecauseOfLost,
    /// There are too few tasks for any result to be significant.
    TooFewTasks,
    /// No significant difference.
    NoSignificantDifference,
}

pub(crate) fn compare(
    baseline: &Gathered<'_>,
    candidate: &Gathered<'_>,
    n_pairs: usize,
    options: &Options,
) -> Pair {
    let only = |this: &Gathered<'_>, other: &Gathered<'_>| -> Vec<TaskId> {
        this.tasks
            .keys()
            .filter(|task| !other.tasks.contains_key(*task))
            .map(|&task| task.clone())
            .collect()
    };
    let tasks: Vec<PairedTask> = baseline
        .tasks
        .iter()
        .filter(|(task, _)| candidate.tasks.contains_key(*task))
        .filter_map(|(&task, trials)| {
            let (b, c) = (baseline.tally(task), candidate.tally(task));
            Some(PairedTask {
                task: task.clone(),
                source_group: trials.values().next()?.source_group.clone(),
                baseline: b,
                candidate: c,
                standing: standing(b, c),
            })
        })
        .collect();
    let known = |tally: TaskTally| tally.solved();
    let as_solved = |tally: TaskTally| Some(tally.solved_if_lost(true));
    let as_unsolved = |tally: TaskTally| Some(tally.solved_if_lost(false));
    Pair {
        baseline: baseline.name.clone(),
        candidate: candidate.name.clone(),
        only_baseline: only(baseline, candidate),
        only_candidate: only(candidate, baseline),
        standings: standings(&tasks),
        identical_patches: identical_patches(baseline, candidate),
        mcnemar: table(&tasks, known, known, n_pairs),
        mcnemar_lost_for_baseline: table(&tasks, as_solved, as_unsolved, n_pairs),
        mcnemar_lost_for_candidate: table(&tasks, as_unsolved, as_solved, n_pairs),
        difference: difference(&tasks, options),
        // Both wait for Holm's correction over all pairs.
        conclusion: Conclusion::NothingToCompare,
        sentence: String::new(),
        tasks,
    }
}

/// Decides and words what the pair shows, once its p values are corrected.
pub(crate) fn conclude(pair: &mut Pair, n_pairs: usize) {
    pair.conclusion = conclusion(pair);
    pair.sentence = sentence(pair, n_pairs);
}

fn standing(baseline: TaskTally, candidate: TaskTally) -> Standing {
    match (baseline.mean(), candidate.mean()) {
        (Some(b), Some(c)) if c > b => Standing::Gained,
        (Some(b), Some(c)) if c < b => Standing::Regressed,
        (Some(b), Some(_)) if b > 0.0 => Standing::TiedSolved,
        (Some(_), Some(_)) => Standing::TiedUnsolved,
        _ => Standing::Unknown,
    }
}

fn standings(tasks: &[PairedTask]) -> Standings {
    let mut counts = Standings::default();
    for task in tasks {
        *match task.standing {
            Standing::Gained => &mut counts.n_gained,
            Standing::Regressed => &mut counts.n_regressed,
            Standing::TiedSolved => &mut counts.n_tied_solved,
            Standing::TiedUnsolved => &mut counts.n_tied_unsolved,
            Standing::Unknown => &mut counts.n_unknown,
        } += 1;
    }
    counts
}

fn identical_patches(baseline: &Gathered<'_>, candidate: &Gathered<'_>) -> IdenticalPatches {
    let (mut n_compared, mut n_identical, mut n_both_empty, mut n_judged_differently) =
        (0, 0, 0, 0);
    for (task, trials) in &baseline.tasks {
        let Some(others) = candidate.tasks.get(task) else {
            continue;
        };
        for (attempt, trial) in trials {
            let Some(other) = others.get(attempt) else {
                continue;
            };
            if let (Some(a), Some(b)) = (&trial.patch, &other.patch) {
                n_compared += 1;
                if a == b {
                    n_identical += 1;
                    n_both_empty += u64::from(a.is_empty());
                    let outcomes = trial.solved().zip(other.solved());
                    n_judged_differently += u64::from(outcomes.is_some_and(|(a, b)| a != b));
                }
            }
        }
    }
    let mut sentence = if n_compared == 0 {
        "no attempt has a final patch in both arms".into()
    } else if n_identical == n_compared {
        let subject = format!(
            "{} changed nothing relative to {}",
            candidate.name, baseline.name
        );
        if n_compared == 1 {
            format!("{subject}: the only pair of final patches is byte-identical")
        } else {
            format!("{subject}: all {n_compared} pairs of final patches are byte-identical")
        }
    } else {
        format!("{n_identical} of {n_compared} pairs of final patches are byte-identical")
    };
    if n_judged_differently > 0 {
        sentence += &format!(
            "; {} was judged differently in the two arms, so the verifier is not deterministic",
            text::count(n_judged_differently, "identical pair")
        );
    }
    IdenticalPatches {
        n_compared,
        n_identical,
        n_both_empty,
        n_judged_differently,
        sentence,
    }
}

fn table(
    tasks: &[PairedTask],
    baseline: impl Fn(TaskTally) -> Option<bool>,
    candidate: impl Fn(TaskTally) -> Option<bool>,
    n_pairs: usize,
) -> Mcnemar {
    let (mut both, mut b, mut c, mut neither) = (0, 0, 0, 0);
    for task in tasks {
        match (baseline(task.baseline), candidate(task.candidate)) {
            (Some(true), Some(true)) => both += 1,
            (Some(true), Some(false)) => b += 1,
            (Some(false), Some(true)) => c += 1,
            (Some(false), Some(false)) => neither += 1,
            _ => {}
        }
    }
    let p = mcnemar::test(b, c);
    Mcnemar {
        n_tasks: both + b + c + neither,
        n_both: both,
        n_baseline_only: b,
        n_candidate_only: c,
        n_neither: neither,
        exact_p: p.exact,
        mid_p: p.mid,
        holm_p: p.exact,
        minimum_one_sided_flips: mcnemar::minimum_one_sided_flips(ALPHA / n_pairs.max(1) as f64)
            .expect("the level is positive"),
    }
}

fn difference(tasks: &[PairedTask], options: &Options) -> Difference {
    let known: Vec<(&SourceGroup, f64)> = tasks
        .iter()
        .filter_map(|task| {
            Some((
                &task.source_group,
                task.candidate.mean()? - task.baseline.mean()?,
            ))
        })
        .collect();
    let values: Vec<f64> = known.iter().map(|&(_, value)| value).collect();
    let mut groups = std::collections::BTreeMap::<&SourceGroup, Cluster>::new();
    for &(group, value) in &known {
        let cluster = groups.entry(group).or_insert(Cluster { sum: 0.0, n: 0 });
        cluster.sum += value;
        cluster.n += 1;
    }
    let groups: Vec<Cluster> = groups.into_values().collect();
    let estimate = (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    let resample = |clusters: &[Cluster], method| {
        let (lower, upper) = bootstrap::interval(clusters, options.n_resamples, options.seed)?;
        let estimate = estimate?;
        // Rounding must not leave an estimate outside its own interval.
        Some(Interval {
            lower: lower.min(estimate),
            upper: upper.max(estimate),
            method,
        })
    };
    let extreme = |for_candidate: bool| {
        let sum: f64 = tasks
            .iter()
            .map(|task| {
                task.candidate.mean_if_lost(for_candidate)
                    - task.baseline.mean_if_lost(!for_candidate)
            })
            .sum();
        sum / tasks.len() as f64
    };
    Difference {
        n_tasks: known.len() as u64,
        n_unknown: (tasks.len() - known.len()) as u64,
        n_source_groups: groups.len() as u64,
        estimate,
        by_task: resample(
            &bootstrap::singletons(&values),
            IntervalMethod::TaskBootstrap,
        ),
        by_source_group: resample(&groups, IntervalMethod::SourceGroupBootstrap),
        bounds: (!tasks.is_empty()).then(|| Bounds {
            lower: extreme(false),
            upper: extreme(true),
        }),
    }
}

fn conclusion(pair: &Pair) -> Conclusion {
    let patches = &pair.identical_patches;
    if pair.mcnemar.n_tasks == 0 {
        return Conclusion::NothingToCompare;
    }
    let n_lost_pairs = pair.tasks.len() as u64 - pair.mcnemar.n_tasks;
    if n_lost_pairs == 0 && patches.n_compared > 0 && patches.n_identical == patches.n_compared {
        return Conclusion::ChangedNothing;
    }
    // -1, 0 or 1: which arm is significantly better under each reading of what was lost.
    let direction = |test: &Mcnemar| match test.n_candidate_only.cmp(&test.n_baseline_only) {
        _ if test.holm_p >= ALPHA => 0,
        std::cmp::Ordering::Greater => 1,
        _ => -1,
    };
    let readings = [
        direction(&pair.mcnemar),
        direction(&pair.mcnemar_lost_for_baseline),
        direction(&pair.mcnemar_lost_for_candidate),
    ];
    match readings {
        [1, 1, 1] => Conclusion::CandidateBetter,
        [-1, -1, -1] => Conclusion::BaselineBetter,
        [0, 0, 0]
            if (pair.tasks.len() as u64) < u64::from(pair.mcnemar.minimum_one_sided_flips) =>
        {
            Conclusion::TooFewTasks
        }
        [0, 0, 0] => Conclusion::NoSignificantDifference,
        _ => Conclusion::OpenBecauseOfLost,
    }
}

fn sentence(pair: &Pair, n_pairs: usize) -> String {
    let test = &pair.mcnemar;
    let (baseline, candidate) = (&pair.baseline, &pair.candidate);
    if test.n_tasks == 0 {
        return format!(
            "{candidate} and {baseline} cannot be compared: of {} no outcome is known in both",
            text::count(pair.tasks.len() as u64, "paired task")
        );
    }
    let mut out = format!(
        "on {} with a known outcome in both, {candidate} solved {} and {baseline} {} \
         ({} only {candidate}, {} only {baseline})",
        text::count(test.n_tasks, "task"),
        test.n_both + test.n_candidate_only,
        test.n_both + test.n_baseline_only,
        test.n_candidate_only,
        test.n_baseline_only,
    );
    if let Some((estimate, interval)) = pair.difference.estimate.zip(quoted(&pair.difference)) {
        out += &format!(
            "; paired difference {} (95% interval {} to {}, {})",
            text::difference(estimate),
            text::difference(interval.lower),
            text::difference(interval.upper),
            interval.method.words(),
        );
        if test.n_candidate_only + test.n_baseline_only == 0 && interval.lower == interval.upper {
            // A bootstrap of equal values has no width, which is a limit of the method.
            out += ", without spread because no task differs";
        }
    }
    out += &format!("; exact McNemar p {}", text::p_relation(test.exact_p));
    if n_pairs > 1 {
        out += &format!(
            ", {} after Holm's correction for {n_pairs} pairs",
            text::p_value(test.holm_p)
        );
    }
    let n_lost = pair.tasks.len() as u64 - test.n_tasks;
    let flips = test.minimum_one_sided_flips;
    out += &match pair.conclusion {
        Conclusion::NothingToCompare => String::new(),
        Conclusion::ChangedNothing => format!("; {}", pair.identical_patches.sentence),
        Conclusion::CandidateBetter => format!(": {candidate} is significantly better"),
        Conclusion::BaselineBetter => format!(": {baseline} is significantly better"),
        Conclusion::OpenBecauseOfLost => format!(
            "; {} lost, and whether the difference is significant depends on them",
            text::count(n_lost, "task")
        ),
        Conclusion::TooFewTasks => format!(
            ": not significant, and no result on so few tasks could be (at least {flips} one-sided flips are needed)"
        ),
        Conclusion::NoSignificantDifference => {
            format!(": not significant (at least {flips} one-sided flips are needed)")
        }
    };
    out
}

/// The interval to quote: over source groups where tasks share one, over tasks otherwise.
pub fn quoted(difference: &Difference) -> Option<Interval> {
    if difference.n_source_groups < difference.n_tasks {
        difference.by_source_group
    } else {
        difference.by_task
    }
}
