//! Whole comparisons from trials.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use temper_core::{
    AgentName, Boundary, Digest, Failure, Patch, SourceGroup, TaskId, Trial, Verdict,
    trajectory::{Exit, Limit},
    trial::{PatchSource, Timing},
    usage::{MicroDollars, Usage},
    verdict::{Resolution, Tampering},
};
use temper_eval::{
    Arm, ArmError, Comparison, Conclusion, Contender, Options, SelectionError, Standing, TrialKey,
    catalog, compare, select,
};

const QUICK: Options = Options {
    n_resamples: 2_000,
    seed: 1,
};

fn name(text: &str) -> AgentName {
    AgentName::new(text).unwrap()
}

fn trial(agent: &str, task: &str, attempt: u32, resolution: Resolution) -> Trial {
    Trial {
        format: Trial::FORMAT,
        task_id: TaskId::new(task).unwrap(),
        task_digest: Digest::of(task.as_bytes()),
        source_group: SourceGroup::new(format!("group of {task}")).unwrap(),
        agent: name(agent),
        attempt,
        seed: 0,
        exit: Exit::Submitted,
        patch: Some(Patch(
            format!("{agent} {task} {attempt}").into_bytes().into(),
        )),
        patch_source: PatchSource::WorkTree,
        verdict: Verdict::bare(resolution, "scripted"),
        failure: None,
        n_model_calls: 3,
        n_steps: 3,
        usage: Usage::default(),
        cost: None,
        timing: Timing::default(),
        n_retries: 0,
        started_at: "2026-01-01T00:00:00Z".into(),
        finished_at: "2026-01-01T00:00:01Z".into(),
    }
}

fn lost(agent: &str, task: &str, attempt: u32) -> Trial {
    Trial {
        failure: Some(Failure {
            boundary: Boundary::Sandbox,
            class: "SandboxStart".into(),
            message: "the sandbox did not start".into(),
            retryable: true,
        }),
        patch: None,
        ..trial(agent, task, attempt, Resolution::Lost)
    }
}

/// One trial per character: `+` solved, `-` unsolved, `?` lost. Spaces separate tasks, so `+- ??`
/// are two tasks with two attempts each.
fn trials(agent: &str, outcomes: &str) -> Vec<Trial> {
    let mut trials = Vec::new();
    for (task, attempts) in outcomes.split(' ').enumerate() {
        for (attempt, outcome) in attempts.chars().enumerate() {
            let (task, attempt) = (format!("task-{task:03}"), attempt as u32);
            trials.push(match outcome {
                '+' => trial(agent, &task, attempt, Resolution::Resolved),
                '-' => trial(agent, &task, attempt, Resolution::Unresolved),
                '?' => lost(agent, &task, attempt),
                other => panic!("{other:?}"),
            });
        }
    }
    trials
}

/// One attempt per task.
fn single(agent: &str, outcomes: &str) -> Vec<Trial> {
    let spread: Vec<String> = outcomes.chars().map(String::from).collect();
    trials(agent, &spread.join(" "))
}

fn pair_of(baseline: &[Trial], candidate: &[Trial]) -> Comparison {
    let arms = [
        Arm {
            name: name("baseline"),
            trials: baseline,
        },
        Arm {
            name: name("candidate"),
            trials: candidate,
        },
    ];
    compare(&arms, &QUICK).unwrap()
}

#[test]
fn lost_trials_are_bounds_and_are_listed() {
    let trials = single("a", "+++++---??");
    let comparison = compare(
        &[Arm {
            name: name("a"),
            trials: &trials,
        }],
        &QUICK,
    )
    .unwrap();
    let arm = &comparison.arms[0];
    let rate = &arm.trials_solved;
    assert_eq!(
        (rate.n, rate.n_solved, rate.n_scored, rate.n_lost),
        (10, 5, 8, 2)
    );
    let bounds = rate.bounds.unwrap();
    assert_eq!((bounds.lower, bounds.upper), (0.5, 0.7));
    assert!(
        rate.sentence()
            .starts_with("5 of 10, 8 scored, 2 lost, bounds 0.50 to 0.70")
    );
    let lost: Vec<_> = arm.lost.iter().map(|lost| lost.trial.to_string()).collect();
    assert_eq!(lost, ["task-008 attempt 0", "task-009 attempt 0"]);
    assert_eq!(arm.failures.len(), 1);
    assert_eq!(arm.failures[0].n, 2);
    assert!(
        !serde_json::to_string(&comparison)
            .unwrap()
            .contains("0.625")
    );
    assert!(comparison.pairs.is_empty());
}

#[test]
fn a_failure_outweighs_a_verdict() {
    let mut trials = single("a", "+");
    trials[0].failure = lost("a", "x", 0).failure;
    let comparison = compare(
        &[Arm {
            name: name("a"),
            trials: &trials,
        }],
        &QUICK,
    )
    .unwrap();
    assert_eq!(comparison.arms[0].trials_solved.n_lost, 1);
    assert_eq!(comparison.arms[0].resolutions[&Resolution::Lost], 1);
}

#[test]
fn the_test_and_the_difference_match_the_counts() {
    // b = 2, c = 10: the exact p value of the specification's table.
    let comparison = pair_of(
        &single("a", "++----------++--"),
        &single("b", "--++++++++++++--"),
    );
    let pair = &comparison.pairs[0];
    assert_eq!(
        (pair.mcnemar.n_baseline_only, pair.mcnemar.n_candidate_only),
        (2, 10)
    );
    assert_eq!((pair.mcnemar.n_both, pair.mcnemar.n_neither), (2, 2));
    assert!((pair.mcnemar.exact_p - 0.0385742188).abs() < 1e-9);
    assert_eq!(pair.mcnemar.holm_p, pair.mcnemar.exact_p);
    assert_eq!(pair.difference.estimate, Some(0.5));
    assert_eq!(pair.conclusion, Conclusion::CandidateBetter);
    assert_eq!(pair.standings.n_gained, 10);
    assert_eq!(pair.standings.n_regressed, 2);
    assert_eq!(pair.mcnemar.minimum_one_sided_flips, 6);
    assert!(pair.sentence.contains("p = 0.0386"), "{}", pair.sentence);
    assert!(
        pair.sentence.contains("+0.50 (95% interval"),
        "{}",
        pair.sentence
    );
}

#[test]
fn exchanging_the_arms_mirrors_the_pair() {
    let (a, b) = (
        trials("a", "++- +-? --- +++ -?? +--"),
        trials("b", "+++ --- -+- ++- +-- ?+-"),
    );
    let (ab, ba) = (pair_of(&a, &b), pair_of(&b, &a));
    let (ab, ba) = (&ab.pairs[0], &ba.pairs[0]);
    assert_eq!(ab.mcnemar.exact_p, ba.mcnemar.exact_p);
    assert_eq!(ab.mcnemar.n_baseline_only, ba.mcnemar.n_candidate_only);
    assert_eq!(ab.standings.n_gained, ba.standings.n_regressed);
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
    near(
        ab.difference.estimate.unwrap(),
        -ba.difference.estimate.unwrap(),
    );
    let (i, j) = (
        ab.difference.by_task.unwrap(),
        ba.difference.by_task.unwrap(),
    );
    near(i.lower, -j.upper);
    near(i.upper, -j.lower);
    let (i, j) = (ab.difference.bounds.unwrap(), ba.difference.bounds.unwrap());
    near(i.lower, -j.upper);
    near(i.upper, -j.lower);
    assert_eq!(
        ab.mcnemar_lost_for_baseline.exact_p,
        ba.mcnemar_lost_for_candidate.exact_p
    );
}

#[test]
fn several_attempts_are_averaged_within_a_task_first() {
    let comparison = pair_of(&trials("a", "++++ ----"), &trials("b", "++-- -+??"));
    let pair = &comparison.pairs[0];
    // Task 0: 0.5 - 1; task 1: 0.5 of the two scored attempts - 0.
    assert_eq!(pair.difference.estimate, Some(0.0));
    assert_eq!(pair.tasks[0].standing, Standing::Regressed);
    assert_eq!(pair.tasks[1].standing, Standing::Gained);
    // By majority, task 0 is solved in one arm only (an even split is not solved), and task 1 is
    // open in the candidate: its two lost attempts could make three of four.
    assert_eq!(pair.mcnemar.n_tasks, 1);
    assert_eq!(pair.mcnemar.n_baseline_only, 1);
    assert_eq!(pair.mcnemar_lost_for_candidate.n_candidate_only, 1);
}

#[test]
fn lost_tasks_can_leave_the_conclusion_open() {
    // 6 one-sided flips are significant; a seventh task lost in the candidate could undo it.
    let significant = pair_of(&single("a", "------++"), &single("b", "++++++++"));
    assert_eq!(significant.pairs[0].conclusion, Conclusion::CandidateBetter);
    let open = pair_of(&single("a", "------++"), &single("b", "+++++++?"));
    assert_eq!(open.pairs[0].conclusion, Conclusion::OpenBecauseOfLost);
    assert!(
        open.pairs[0].sentence.contains("1 task lost"),
        "{}",
        open.pairs[0].sentence
    );
    let plain = pair_of(&single("a", "-----+++"), &single("b", "++++++++"));
    assert_eq!(
        plain.pairs[0].conclusion,
        Conclusion::NoSignificantDifference
    );
    assert!(
        plain.pairs[0]
            .sentence
            .contains("at least 6 one-sided flips")
    );
    let few = pair_of(&single("a", "-----"), &single("b", "+++++"));
    assert_eq!(few.pairs[0].conclusion, Conclusion::TooFewTasks);
    let all_lost = pair_of(&single("a", "??????"), &single("b", "++++++"));
    assert_eq!(all_lost.pairs[0].conclusion, Conclusion::NothingToCompare);
    assert_eq!(all_lost.pairs[0].difference.estimate, None);
    assert_eq!(all_lost.pairs[0].standings.n_unknown, 6);
}

#[test]
fn an_arm_that_changed_nothing_is_said_so() {
    let a = single("a", "++--");
    let mut b = single("b", "++--");
    for (a, b) in a.iter().zip(&mut b) {
        b.patch = a.patch.clone();
    }
    let comparison = pair_of(&a, &b);
    let pair = &comparison.pairs[0];
    assert_eq!(pair.conclusion, Conclusion::ChangedNothing);
    assert!(
        pair.sentence
            .contains("candidate changed nothing relative to baseline")
    );
    assert!(
        pair.sentence
            .contains("without spread because no task differs")
    );
    b[0].verdict.resolution = Resolution::Unresolved;
    let pair = &pair_of(&a, &b).pairs[0];
    assert_eq!(pair.identical_patches.n_judged_differently, 1);
    assert!(
        pair.identical_patches
            .sentence
            .contains("not deterministic")
    );
    b[1].patch = Some(Patch(b"other".to_vec().into()));
    let pair = &pair_of(&a, &b).pairs[0];
    assert_eq!(pair.identical_patches.n_identical, 3);
    assert!(pair.sentence.contains("too few") || pair.conclusion == Conclusion::TooFewTasks);
}

#[test]
fn unmatched_tasks_are_named_and_take_no_part() {
    let a = single("a", "++-");
    let mut b = single("b", "++-");
    b[2].task_id = TaskId::new("elsewhere").unwrap();
    let pair = &pair_of(&a, &b).pairs[0];
    assert_eq!(pair.tasks.len(), 2);
    assert_eq!(pair.only_baseline, [TaskId::new("task-002").unwrap()]);
    assert_eq!(pair.only_candidate, [TaskId::new("elsewhere").unwrap()]);
}

#[test]
fn what_would_mislead_is_refused_by_name() {
    let a = single("a", "+");
    let duplicated = [a[0].clone(), a[0].clone()];
    assert_eq!(
        compare(
            &[Arm {
                name: name("x"),
                trials: &duplicated
            }],
            &QUICK
        ),
        Err(ArmError::Duplicate {
            arm: name("x"),
            trial: TrialKey {
                task: a[0].task_id.clone(),
                attempt: 0
            },
        })
    );
    let mut other = single("b", "+");
    other[0].task_digest = Digest::of(b"another task");
    let arms = [
        Arm {
            name: name("x"),
            trials: &a,
        },
        Arm {
            name: name("y"),
            trials: &other,
        },
    ];
    let error = compare(&arms, &QUICK).unwrap_err().to_string();
    assert!(
        error.contains("task-000") && error.contains("not the same task"),
        "{error}"
    );
    let same = [
        Arm {
            name: name("x"),
            trials: &a,
        },
        Arm {
            name: name("x"),
            trials: &[],
        },
    ];
    assert_eq!(compare(&same, &QUICK), Err(ArmError::SameName(name("x"))));
    let mixed = [single("a", "+"), trials("b", "- -")[1..].to_vec()].concat();
    assert!(matches!(
        compare(
            &[Arm {
                name: name("x"),
                trials: &mixed
            }],
            &QUICK
        ),
        Err(ArmError::MixedAgents { .. })
    ));
    assert_eq!(compare(&[], &QUICK), Err(ArmError::NoArms));
}

#[test]
fn nothing_at_all_is_still_a_comparison() {
    let comparison = pair_of(&[], &[]);
    let arm = &comparison.arms[0];
    assert_eq!((arm.tasks_solved.n, arm.tasks_solved.bounds), (0, None));
    assert_eq!(arm.steps.mean, None);
    assert_eq!(arm.cost.total_micro_dollars, None);
    let pair = &comparison.pairs[0];
    assert_eq!(pair.mcnemar.exact_p, 1.0);
    assert_eq!(pair.conclusion, Conclusion::NothingToCompare);
    let one = pair_of(&single("a", "-"), &single("b", "+"));
    assert_eq!(one.pairs[0].difference.estimate, Some(1.0));
    assert_eq!(one.pairs[0].mcnemar.exact_p, 1.0);
}

#[test]
fn pass_at_k_is_limited_by_the_task_with_fewest_attempts() {
    let trials = trials("a", "++-- +-- ----");
    let comparison = compare(
        &[Arm {
            name: name("a"),
            trials: &trials,
        }],
        &QUICK,
    )
    .unwrap();
    let arm = &comparison.arms[0];
    let ks: Vec<_> = arm.attempts_solved.iter().map(|at| at.k).collect();
    assert_eq!(ks, [1, 2, 3]);
    assert_eq!(arm.fewer_attempts.len(), 1);
    assert_eq!(arm.fewer_attempts[0].n_attempts, 3);
    let at_2 = &arm.attempts_solved[1];
    // (1 - C(2,2)/C(4,2) + 1 - C(2,2)/C(3,2) + 0) / 3
    let expected = (5.0 / 6.0 + 2.0 / 3.0) / 3.0;
    assert!((at_2.any.lower - expected).abs() < 1e-12 && at_2.any.lower == at_2.any.upper);
    assert!((at_2.all.lower - (1.0 / 6.0) / 3.0).abs() < 1e-12);
    for at in &arm.attempts_solved {
        assert!(at.any_interval.lower <= at.any.lower && at.any.upper <= at.any_interval.upper);
        assert!(at.all.lower <= at.any.lower);
    }
}

#[test]
fn three_arms_are_corrected_for_three_pairs() {
    let (a, b, c) = (
        single("a", "-------"),
        single("b", "++++++-"),
        single("c", "+++++++"),
    );
    let arms = [
        Arm {
            name: name("a"),
            trials: &a,
        },
        Arm {
            name: name("b"),
            trials: &b,
        },
        Arm {
            name: name("c"),
            trials: &c,
        },
    ];
    let comparison = compare(&arms, &QUICK).unwrap();
    assert_eq!(comparison.pairs.len(), 3);
    let exact: Vec<f64> = comparison
        .pairs
        .iter()
        .map(|pair| pair.mcnemar.exact_p)
        .collect();
    assert_eq!(exact, [0.03125, 0.015625, 1.0]);
    let holm: Vec<f64> = comparison
        .pairs
        .iter()
        .map(|pair| pair.mcnemar.holm_p)
        .collect();
    assert_eq!(holm, [0.0625, 0.046875, 1.0]);
    assert_eq!(
        comparison.pairs[0].conclusion,
        Conclusion::NoSignificantDifference
    );
    assert_eq!(comparison.pairs[1].conclusion, Conclusion::CandidateBetter);
    assert_eq!(comparison.pairs[0].mcnemar.minimum_one_sided_flips, 7);
}

#[test]
fn shared_source_groups_widen_the_interval() {
    let a = single("a", &"-".repeat(40));
    let mut b = single("b", &("+".repeat(20) + &"-".repeat(20)));
    let mut a = a;
    for (index, (a, b)) in a.iter_mut().zip(&mut b).enumerate() {
        let group = SourceGroup::new(format!("group {}", index / 10)).unwrap();
        a.source_group = group.clone();
        b.source_group = group;
    }
    let comparison = pair_of(&a, &b);
    let difference = &comparison.pairs[0].difference;
    assert_eq!(difference.n_source_groups, 4);
    let (by_task, by_group) = (
        difference.by_task.unwrap(),
        difference.by_source_group.unwrap(),
    );
    assert!(by_group.upper - by_group.lower > 1.5 * (by_task.upper - by_task.lower));
    assert!(
        comparison.pairs[0]
            .sentence
            .contains("bootstrap over source groups")
    );
}

/// Two arms that use every field: lost, tampered, priced and repeated trials.
fn rich() -> Comparison {
    let mut a = trials("a", "++ +- -- ??");
    let mut b = trials("b", "++ ++ -- +");
    a[0].usage = Usage {
        prompt_tokens: Some(1_000),
        cached_tokens: Some(10),
        completion_tokens: Some(200),
    };
    a[0].cost = Some(MicroDollars(1_500));
    a[1].exit = Exit::LimitReached {
        limit: Limit::Steps,
    };
    a[2].verdict.tampering.push(Tampering::CanaryTripped {
        detail: "seen".into(),
    });
    b[0].timing.total_seconds = 12.5;
    b[1].n_retries = 2;
    b[3].verdict.verifier = "another".into();
    pair_of(&a, &b)
}

#[test]
fn survives_its_own_json_and_refuses_unknown_fields() {
    let comparison = rich();
    let json = serde_json::to_string(&comparison).unwrap();
    assert!(serde_json::from_str::<Comparison>(&json).unwrap() == comparison);
    let unknown = json.replacen("{\"format\":1", "{\"format\":1,\"extra\":2", 1);
    assert!(serde_json::from_str::<Comparison>(&unknown).is_err());
    assert!(
        comparison
            .notes
            .iter()
            .any(|note| note.contains("between 1 and 2 attempts"))
    );
    assert!(
        comparison
            .notes
            .iter()
            .any(|note| note.contains("different verifiers"))
    );
    assert_eq!(comparison.arms[0].tokens.prompt.n_not_reported, 7);
    assert_eq!(comparison.arms[0].cost.n_unknown, 7);
    assert_eq!(comparison.arms[0].exits["limit-reached: steps"], 1);
    assert_eq!(comparison.arms[0].tampering.trials.len(), 1);
}

/// Paths of all values, and of all numbers, with list positions and free keys left out.
fn paths(
    value: &serde_json::Value,
    path: &str,
    all: &mut BTreeSet<String>,
    numbers: &mut BTreeSet<String>,
) {
    all.insert(path.to_owned());
    match value {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                let free = ["resolutions", "exits", "by_kind", "by_source"]
                    .iter()
                    .any(|parent| path.ends_with(parent));
                let key = if free { "*" } else { key };
                let path = if path.is_empty() {
                    key.to_owned()
                } else {
                    format!("{path}.{key}")
                };
                paths(value, &path, all, numbers);
            }
        }
        serde_json::Value::Array(items) => {
            for item in items {
                paths(item, &format!("{path}[]"), all, numbers);
            }
        }
        serde_json::Value::Number(_) => {
            numbers.insert(path.to_owned());
        }
        _ => {}
    }
}

#[test]
fn the_list_of_metrics_describes_every_number() {
    let (mut all, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    paths(
        &serde_json::to_value(rich()).unwrap(),
        "",
        &mut all,
        &mut numbers,
    );
    for metric in catalog::METRICS {
        assert!(all.contains(metric.path), "nothing is at {}", metric.path);
    }
    for number in &numbers {
        let described = catalog::METRICS.iter().any(|metric| {
            number.strip_prefix(metric.path).is_some_and(|rest| {
                rest.is_empty() || rest.starts_with('.') || rest.starts_with('[')
            })
        });
        assert!(described, "no metric describes {number}");
    }
}

#[test]
fn the_page_of_metrics_is_current() {
    let page = include_str!("../../../docs/metrics.md");
    assert!(
        page == catalog::markdown(),
        "docs/metrics.md differs from the list; run `cargo run -p temper-eval --example metrics_page > docs/metrics.md`"
    );
}

/// The outcomes of contenders, the first of which is what training started from: who is taken, how
/// many each solved, and how many trials count.
fn selected(outcomes: &[&str]) -> Result<(usize, Vec<u64>, u64, u64), SelectionError> {
    let trials: Vec<Vec<Trial>> = outcomes
        .iter()
        .enumerate()
        .map(|(index, outcomes)| trials(&format!("snapshot-{index}"), outcomes))
        .collect();
    let contenders: Vec<Contender<'_>> = trials
        .iter()
        .enumerate()
        .map(|(index, trials)| Contender {
            name: format!("snapshot-{index}"),
            trials,
        })
        .collect();
    let selection = select(&contenders)?;
    let solved = selection.scores.iter().map(|score| score.n_solved);
    Ok((
        selection.chosen,
        solved.collect(),
        selection.n_compared,
        selection.n_left_out,
    ))
}

#[test]
fn a_snapshot_is_taken_only_when_it_solves_more_than_those_before_it() {
    let taken = |outcomes: &[&str]| selected(outcomes).unwrap();
    assert_eq!(taken(&["+-", "++", "-+"]), (1, vec![1, 2, 1], 2, 0));
    // A tie keeps the start, and an earlier snapshot before a later one.
    assert_eq!(taken(&["+- -", "-+ -"]), (0, vec![1, 1], 3, 0));
    assert_eq!(taken(&["- -", "+ -", "- +"]), (1, vec![0, 1, 1], 2, 0));
    assert_eq!(taken(&["--", "--", "--"]).0, 0);
    assert_eq!(taken(&["+"]), (0, vec![1], 1, 0));
    // What was lost for one counts for nobody: the last one is no better for the first one's luck.
    assert_eq!(taken(&["?+", "+-", "++"]), (0, vec![1, 0, 1], 1, 1));
    assert_eq!(
        selected(&["?+", "+?"]),
        Err(SelectionError::NothingCompared { n_trials: 2 })
    );
    assert_eq!(selected(&[]), Err(SelectionError::Nobody));
    assert!(matches!(
        selected(&["++", "+ +"]),
        Err(SelectionError::OtherTrials { .. })
    ));
}
