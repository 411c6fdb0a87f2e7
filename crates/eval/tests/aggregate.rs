//! Several training seeds, against numbers worked out by hand.

#![allow(clippy::unwrap_used)]

use temper_core::{
    AgentName, Boundary, Digest, Failure, SourceGroup, TaskId, Trial, Verdict,
    trajectory::Exit,
    trial::{PatchSource, Timing},
    usage::Usage,
    verdict::Resolution,
};
use temper_eval::{Aggregate, ArmError, Options, SeedRun, SeededArm, aggregate};

const QUICK: Options = Options {
    n_resamples: 2_000,
    seed: 1,
};

fn name(text: &str) -> AgentName {
    AgentName::new(text).unwrap()
}

fn trial(task: usize, attempt: u32, outcome: char) -> Trial {
    let lost = outcome == '?';
    let failure = || Failure {
        boundary: Boundary::Sandbox,
        class: "SandboxStart".into(),
        message: "gone".into(),
        retryable: true,
    };
    Trial {
        format: Trial::FORMAT,
        task_id: TaskId::new(format!("task-{task}")).unwrap(),
        task_digest: Digest::of(&[task as u8]),
        // Two neighbours are one group.
        source_group: SourceGroup::new(format!("group-{}", task / 2)).unwrap(),
        agent: name("model"),
        attempt,
        seed: 0,
        exit: Exit::Submitted,
        patch: None,
        patch_source: PatchSource::WorkTree,
        verdict: Verdict::bare(
            match outcome {
                '+' => Resolution::Resolved,
                '-' => Resolution::Unresolved,
                _ => Resolution::Lost,
            },
            "scripted",
        ),
        failure: lost.then(failure),
        n_model_calls: 1,
        n_steps: 1,
        usage: Usage::default(),
        cost: None,
        timing: Timing::default(),
        n_retries: 0,
        started_at: String::new(),
        finished_at: String::new(),
    }
}

/// A run: words are tasks, characters their attempts; a word `.` leaves the task out.
fn run(outcomes: &str) -> Vec<Trial> {
    let words = outcomes.split(' ').enumerate();
    words
        .filter(|(_, word)| *word != ".")
        .flat_map(|(task, word)| {
            let attempts = word.chars().enumerate();
            attempts.map(move |(attempt, outcome)| trial(task, attempt as u32, outcome))
        })
        .collect()
}

fn arms(arms: &[(&str, &[&str])]) -> Result<Aggregate, ArmError> {
    let trials: Vec<(&str, Vec<Vec<Trial>>)> = arms
        .iter()
        .map(|(name, runs)| (*name, runs.iter().map(|outcomes| run(outcomes)).collect()))
        .collect();
    let arms: Vec<SeededArm<'_>> = trials
        .iter()
        .map(|(label, runs)| SeededArm {
            name: name(label),
            runs: runs
                .iter()
                .enumerate()
                .map(|(seed, trials)| SeedRun {
                    seed: seed as u64,
                    trials,
                })
                .collect(),
        })
        .collect();
    aggregate(&arms, &QUICK)
}

fn near(a: Option<f64>, b: f64) -> bool {
    a.is_some_and(|a| (a - b).abs() < 1e-12)
}

#[test]
fn tasks_come_first_then_runs() {
    // Task 1 has four attempts in the first run and one in the second: each run counts the same.
    let result = arms(&[("new", &["+ ++-- - +", "+ + - -"])]).unwrap();
    let arm = &result.arms[0];
    let means: Vec<f64> = arm.tasks.iter().map(|task| task.mean.unwrap()).collect();
    assert_eq!(means, [1.0, 0.75, 0.0, 0.5]);
    assert!(near(arm.mean, 2.25 / 4.0));
    assert_eq!(arm.n_source_groups, 2);
    let runs: Vec<f64> = arm.runs.iter().map(|run| run.mean.unwrap()).collect();
    assert_eq!(runs, [2.5 / 4.0, 0.5]);
    let by_seed = arm.by_seed.unwrap();
    // t(0.975, 1) times |a - b| / 2.
    let half = 12.706204736 * 0.125 / 2.0;
    assert!(near(Some(by_seed.interval.upper - by_seed.mean), half));
    let by_task = arm.by_task.unwrap();
    // Two groups with means 0.875 and 0.25: their resampled mean takes three values.
    assert_eq!((by_task.lower, by_task.upper), (0.25, 0.875));
}

#[test]
fn what_no_run_scored_is_absent_and_not_zero() {
    let result = arms(&[("new", &["+ ? . -", "+ ? + ?"])]).unwrap();
    let arm = &result.arms[0];
    let means: Vec<Option<f64>> = arm.tasks.iter().map(|task| task.mean).collect();
    assert_eq!(means, [Some(1.0), None, Some(1.0), Some(0.0)]);
    assert_eq!((arm.n_tasks, arm.n_tasks_scored), (4, 3));
    assert_eq!((arm.n_tasks_common, arm.n_lost), (1, 3));
    assert!(near(arm.mean, 2.0 / 3.0));
    let bounds = arm.bounds.unwrap();
    // Lost attempts unsolved: 1, 0, 1, 0. Solved: 1, 1, 1, 0.5.
    assert!(near(Some(bounds.lower), 0.5) && near(Some(bounds.upper), 3.5 / 4.0));
    let nothing = arms(&[("new", &["? ?"])]).unwrap();
    let arm = &nothing.arms[0];
    assert_eq!((arm.mean, arm.by_task, arm.by_seed), (None, None, None));
}

#[test]
fn regressions_are_listed_by_task_the_furthest_first() {
    let result = arms(&[
        ("base", &["+ + - - +"]),
        ("new", &["- + + + .", "- - + - .", "+ + + - ?"]),
    ])
    .unwrap();
    let difference = &result.differences[0];
    assert_eq!((difference.n_tasks, difference.n_tasks_left_out), (4, 1));
    assert!(difference.same_tasks);
    // -2/3, -1/3, +1, +1/3.
    assert!(near(difference.mean, (1.0 / 3.0) / 4.0));
    assert_eq!(difference.n_improved, 2);
    let listed: Vec<(&str, u64, u64)> = difference
        .regressions
        .iter()
        .map(|it| (it.task.as_str(), it.n_runs_below, it.n_runs_scored))
        .collect();
    assert_eq!(listed, [("task-0", 2, 3), ("task-1", 1, 3)]);
    // Each run against the only baseline: +1/4, -1/4, +1/4.
    let by_seed = difference.by_seed.unwrap();
    assert_eq!(by_seed.n, 3);
    assert!(near(Some(by_seed.mean), 1.0 / 12.0));
    // The mean is in both intervals.
    let mean = difference.mean.unwrap();
    for interval in [by_seed.interval, difference.by_task.unwrap()] {
        assert!(interval.lower <= mean && mean <= interval.upper);
    }
    let text = serde_json::to_string(&result).unwrap();
    assert_eq!(serde_json::from_str::<Aggregate>(&text).unwrap(), result);
}

#[test]
fn an_arm_against_itself_differs_by_nothing() {
    let runs: &[&str] = &["+ - + ?", "- - + +"];
    let result = arms(&[("one", runs), ("same", runs)]).unwrap();
    let difference = &result.differences[0];
    assert_eq!(difference.mean, Some(0.0));
    assert!(difference.regressions.is_empty() && difference.n_improved == 0);
    let by_seed = difference.by_seed.unwrap();
    assert_eq!((by_seed.interval.lower, by_seed.interval.upper), (0.0, 0.0));
    assert!(matches!(
        arms(&[("one", runs), ("one", runs)]),
        Err(ArmError::SameName(_))
    ));
    assert!(matches!(arms(&[]), Err(ArmError::NoArms)));
}
