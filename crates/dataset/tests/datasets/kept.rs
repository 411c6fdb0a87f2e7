//! What a build keeps of trials, what it drops, and why.

use std::collections::BTreeMap;

use serde_json::Value;
use temper_core::{
    Bytes, Patch, Split, Task,
    task::TrainingTask,
    trajectory::{Action, Exit, StepOutcome},
    verdict::{Resolution, Tampering},
};
use temper_dataset::{
    budget::{Budget, BudgetUnit, held},
    build::{BuildConfig, BuildError, episodes_digest},
    episode::Episode,
    filter::{DropReason, Replay, contamination::HeldOut},
    pairs::PairConfig,
    row::SpanKind,
    sampled::{FailedCommands, FaultyReplies},
    show::show,
};

use crate::{
    setup::{config, dropped, run, run_with, sampled_trial, train, with_fix},
    support::{Made, made, patch, task, tokenizer},
};

#[test]
fn only_executed_untampered_solved_submitted_trials_are_kept() {
    let task = train("a");
    let solved = |attempt: u32, fix: &str| made(&task, attempt, Resolution::Resolved, fix);
    let mut not_run = solved(2, "return 2");
    not_run.trial.verdict.fail_to_pass.clear();
    let mut tampered = solved(3, "return 3");
    tampered.trial.verdict.tampering = vec![Tampering::CanaryTripped {
        detail: "a canary".into(),
    }];
    let mut limit = solved(4, "return 4");
    limit.trial.exit = Exit::ContextExceeded;
    let mut faulty = solved(5, "return 5");
    faulty.steps[0].outcome = StepOutcome::FormatError;
    let episodes: Vec<Episode> = vec![
        solved(0, "return 1"),
        made(&task, 1, Resolution::Unresolved, "return 9"),
        not_run,
        tampered,
        limit,
        faulty,
        made(&task, 6, Resolution::Lost, "return 6"),
        solved(7, "return 1 "),
    ]
    .into_iter()
    .map(Made::episode)
    .collect();
    let dataset = run(&episodes, &config()).unwrap();
    let reasons = dropped(&dataset);
    // Two trials have one patch; which of them is kept is drawn by the seed.
    let duplicate = if reasons.contains_key(&7) { 7 } else { 0 };
    assert_eq!(
        reasons,
        BTreeMap::from([
            (1, "not-solved"),
            (2, "not-executed"),
            (3, "tampered"),
            (4, "not-submitted"),
            (5, "faulty-reply"),
            (6, "not-executed"),
            (duplicate, "duplicate-patch"),
        ])
    );
    assert_eq!(dataset.report.n_rows, 1);
    assert_eq!(dataset.report.n_trials, 8);

    let mut reversed: Vec<Episode> = episodes.clone();
    reversed.reverse();
    assert_eq!(run(&reversed, &config()).unwrap(), dataset);
    assert_eq!(episodes_digest(&reversed), episodes_digest(&episodes));
}

#[test]
fn faulty_replies_can_be_masked() {
    let task = train("a");
    let mut trial = made(&task, 0, Resolution::Resolved, "return 1");
    trial.steps[0].outcome = StepOutcome::FormatError;
    trial.steps[0].reply.content = "no block at all".to_owned();
    let mut config = config();
    config.filter.faulty_replies = FaultyReplies::Mask;
    let dataset = run(&[trial.episode()], &config).unwrap();
    let row = &dataset.rows[0];
    let shown = show(row, &tokenizer("words")).unwrap();
    let of = |kind: SpanKind| -> Vec<&str> {
        let spans = shown.iter().filter(|span| span.kind == kind);
        spans.map(|span| span.text.as_str()).collect()
    };
    assert_eq!(of(SpanKind::FaultyReply), ["no block at all<|im_end|>"]);
    assert_eq!(
        of(SpanKind::Reply),
        ["```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```<|im_end|>"]
    );
    assert_eq!(of(SpanKind::System), ["You act."]);
    assert_eq!(of(SpanKind::User), ["Fix f.", "<returncode>0</returncode>"]);
    let whole: String = shown.iter().map(|span| span.text.as_str()).collect();
    assert!(
        whole.starts_with("<|im_start|>system\nYou act.<|im_end|>\n"),
        "{whole}"
    );
    for span in &shown {
        assert_eq!(span.learned, span.kind == SpanKind::Reply);
        assert!(
            span.learned || span.reason.starts_with("masked"),
            "{span:?}"
        );
    }
}

/// A trial whose first command ended with this exit code.
fn failing_first(task: &Task, attempt: u32, exit_code: Option<i32>) -> Made {
    let mut trial = made(task, attempt, Resolution::Resolved, "return 1");
    trial.steps[0].actions.push(Action {
        command: "ls".to_owned(),
        tool_call_id: None,
        exit_code,
        timed_out: exit_code.is_none(),
        output: Bytes(Vec::new()),
        omitted_bytes: 0,
        wall_seconds: 0.0,
    });
    trial
}

#[test]
fn replies_whose_command_failed_can_be_masked() {
    let task = train("a");
    let learned = |exit_code: Option<i32>, failed: FailedCommands| -> Vec<String> {
        let mut config = config();
        config.filter.failed_commands = failed;
        let dataset = run(&[failing_first(&task, 0, exit_code).episode()], &config).unwrap();
        let shown = show(&dataset.rows[0], &tokenizer("words")).unwrap();
        let learned = shown.iter().filter(|span| span.learned);
        learned.map(|span| span.text.clone()).collect()
    };
    let submits = "```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```<|im_end|>";
    let both = ["```bash\nls\n```<|im_end|>", submits];
    assert_eq!(learned(Some(0), FailedCommands::Mask), both);
    assert_eq!(learned(Some(1), FailedCommands::Learn), both);
    for failed in [Some(1), Some(-9), None] {
        assert_eq!(learned(failed, FailedCommands::Mask), [submits]);
    }
}

#[test]
fn several_ways_to_one_patch_are_kept_as_far_as_is_asked_for() {
    let task = train("a");
    let mut episodes: Vec<Episode> = (0..4)
        .map(|n| made(&task, n, Resolution::Resolved, "return 1").episode())
        .collect();
    episodes.push(made(&task, 4, Resolution::Resolved, "return 2").episode());
    for (most, n_rows) in [(None, 2), (Some(1), 2), (Some(3), 4), (Some(9), 5)] {
        let mut config = config();
        config.filter.max_same_patch = most;
        let dataset = run(&episodes, &config).unwrap();
        assert_eq!(dataset.rows.len(), n_rows, "{most:?}");
        let dropped = dataset.report.n_dropped.get("duplicate-patch");
        assert_eq!(dropped.copied().unwrap_or(0), 5 - n_rows);
    }
    let mut config = config();
    config.filter.max_same_patch = Some(0);
    assert!(matches!(
        run(&episodes, &config),
        Err(BuildError::Ineffective(_))
    ));
}

#[test]
fn the_cap_keeps_as_many_as_it_says() {
    let task = train("a");
    let episodes: Vec<Episode> = (0..5)
        .map(|n| made(&task, n, Resolution::Resolved, &format!("return {n}")).episode())
        .collect();
    let mut config = config();
    config.filter.max_per_task = Some(2);
    let dataset = run(&episodes, &config).unwrap();
    assert_eq!(
        dataset.report.n_dropped,
        BTreeMap::from([("over-cap".to_owned(), 3)])
    );
    let kept = |seed: u64| -> Vec<u32> {
        let mut config = config.clone();
        config.filter.seed = seed;
        let rows = run(&episodes, &config).unwrap().rows;
        rows.iter().map(|row| row.origin().attempt).collect()
    };
    assert_eq!(kept(1), kept(1));
    assert!((2..20).any(|seed| kept(seed) != kept(1)));
}

/// A replay that leaves a patch of its own for one attempt and fails for another.
struct Replayed;

impl Replay for Replayed {
    fn replay(&mut self, task: &TrainingTask, episode: &Episode) -> Result<Patch, String> {
        assert_eq!(task.id, episode.trial().task_id);
        match episode.trial().attempt {
            1 => Ok(patch("return 77")),
            2 => Err("step 1 failed".to_owned()),
            _ => Ok(episode.trial().patch.clone().unwrap()),
        }
    }
}

#[test]
fn a_patch_must_be_reproduced() {
    let task = train("a");
    let episodes: Vec<Episode> = (0..3)
        .map(|n| made(&task, n, Resolution::Resolved, &format!("return {n}")).episode())
        .collect();
    let config = BuildConfig {
        replay: true,
        ..config()
    };
    let dataset = run_with(&episodes, &config, &HeldOut::new([]), Some(&mut Replayed)).unwrap();
    // What is asked for must be possible.
    assert!(matches!(
        run(&episodes, &config),
        Err(BuildError::Ineffective(_))
    ));
    assert_eq!(
        dropped(&dataset),
        BTreeMap::from([(1, "patch-not-reproduced"), (2, "patch-not-reproduced")])
    );
}

#[test]
fn what_is_like_a_held_out_task_is_dropped() {
    let statement = "The function rounds half away from zero although the documentation says that it rounds half to even as the standard library does.";
    let fix = "total = sum(item.price * item.amount for item in basket if item.price is not None)\nreturn round_half_even(total, digits=2) if basket else Decimal(0)";
    let held_out = [
        with_fix(task("t1", "held", statement, Split::Test), fix),
        task("t2", "other", "Short.", Split::Dev),
        // A training task beside them is nothing to keep away from.
        task("t3", "group-free", "Fix f.", Split::Train),
    ];
    let held_out = HeldOut::new(&held_out);
    assert_eq!(held_out.n_tasks(), 2);
    let tasks = [
        task("same-group", "held", "Fix g.", Split::Train),
        task(
            "same-text",
            "x",
            &format!("Please help. {statement}"),
            Split::Train,
        ),
        task("same-code", "y", "Fix h.", Split::Train),
        task("free", "group-free", "Fix f.", Split::Train),
    ];
    let fixes = ["return 1", "return 2", fix, "return 3"];
    let episodes: Vec<Episode> = tasks
        .iter()
        .zip(fixes)
        .enumerate()
        .map(|(n, (task, fix))| made(task, n as u32, Resolution::Resolved, fix).episode())
        .collect();
    let dataset = run_with(&episodes, &config(), &held_out, None).unwrap();
    let by: BTreeMap<String, Value> = dataset
        .report
        .dropped
        .iter()
        .map(|dropped| {
            let value = serde_json::to_value(&dropped.reason).unwrap();
            (
                dropped.origin.task_id.to_string(),
                value["with"]["by"].clone(),
            )
        })
        .collect();
    assert_eq!(
        by,
        BTreeMap::from([
            ("same-code".to_owned(), "code".into()),
            ("same-group".to_owned(), "group".into()),
            ("same-text".to_owned(), "statement".into()),
        ])
    );
    assert_eq!(dataset.rows.len(), 1);
    assert!(TrainingTask::try_from(task("t", "g", "s", Split::Test)).is_err());
}

#[test]
fn length_is_checked_after_rendering_and_nothing_is_cut() {
    let long = "w ".repeat(200);
    let mut episodes = Vec::new();
    for n in 0..9 {
        let text = if n == 8 { "Go." } else { long.as_str() };
        let task = task(&format!("t{n}"), &format!("g{n}"), text, Split::Train);
        let mut trial = made(&task, n, Resolution::Resolved, "return 1");
        trial.steps.remove(0);
        trial.steps[0].number = 1;
        trial.steps[0].reply.content = "```bash\nls\n```".to_owned();
        episodes.push(trial.episode());
    }
    let mut config = config();
    config.max_tokens = Some(64);
    let dataset = run(&episodes, &config).unwrap();
    assert_eq!(dataset.rows.len(), 1);
    assert_eq!(
        dataset.report.n_dropped,
        BTreeMap::from([("too-long".to_owned(), 8)])
    );
    let DropReason::TooLong { n_tokens, limit } = dataset.report.dropped[0].reason else {
        panic!("{:?}", dataset.report.dropped[0]);
    };
    assert!(n_tokens > 200 && limit == 64);
    let error = run(&episodes[..8], &config).unwrap_err();
    assert_eq!(
        error.to_string(),
        "build a data set: all 8 trials were dropped: 8 too-long"
    );
    config.max_tokens = Some(0);
    assert!(matches!(
        run(&episodes, &config),
        Err(BuildError::Ineffective(_))
    ));
}

#[test]
fn a_trial_that_is_too_long_takes_no_place() {
    let task = train("a");
    let short = made(&task, 0, Resolution::Resolved, "return 1");
    let mut long = made(&task, 1, Resolution::Resolved, "return 1");
    let said = &mut long.steps[0].reply.content;
    *said = format!("{}{said}", "w ".repeat(200));
    let episodes = [short.episode(), long.episode()];
    // Which of several comes first is drawn by the seed.
    for seed in 0..8 {
        for (same, of_task) in [(1, None), (9, Some(1))] {
            let mut config = config();
            config.filter.seed = seed;
            config.filter.max_same_patch = Some(same);
            config.filter.max_per_task = of_task;
            config.max_tokens = Some(200);
            let dataset = run(&episodes, &config).unwrap();
            assert_eq!(dataset.rows[0].origin().attempt, 0, "{seed}");
            assert_eq!(dropped(&dataset), BTreeMap::from([(1, "too-long")]));
            assert_eq!(dataset.report.n_kept_trials, 1);
        }
    }
}

#[test]
fn a_budget_takes_whole_trials_and_names_the_others() {
    let episodes: Vec<Episode> = (0..6)
        .map(|attempt| {
            let task = train(&format!("t{attempt}"));
            let own: Vec<u32> = vec![7; 1 + attempt as usize];
            sampled_trial(&task, attempt, Resolution::Resolved, &own).episode()
        })
        .collect();
    let all = run(&episodes, &config()).unwrap();
    // Each learns 2 + (1 + attempt) + 1 tokens.
    assert_eq!(all.report.n_learned_tokens, 39);
    for n in [4, 10, 20, 38, 39] {
        let mut limited = config();
        limited.budget = Some(Budget {
            unit: BudgetUnit::LearnedTokens,
            n,
        });
        let dataset = run(&episodes, &limited).unwrap();
        let n_taken = dataset.report.n_learned_tokens;
        assert_eq!(held(&dataset, BudgetUnit::LearnedTokens).rows, n_taken);
        assert!(n_taken <= n && n_taken + 9 > n.min(39), "{n_taken} of {n}");
        assert_eq!(dataset.rows.len() + dataset.report.dropped.len(), 6);
        assert_eq!(dataset, run(&episodes, &limited).unwrap());
    }
    let none = BuildConfig {
        budget: Some(Budget {
            unit: BudgetUnit::Trials,
            n: 0,
        }),
        ..config()
    };
    assert!(matches!(
        run(&episodes, &none),
        Err(BuildError::Ineffective(_))
    ));
}

#[test]
fn the_default_configuration_says_what_it_leaves_out() {
    let config = BuildConfig::from_toml(BuildConfig::DEFAULT_TEXT).unwrap();
    assert!(config.replay && config.groups);
    assert_eq!(config.pairs, Some(PairConfig::default()));
    assert_eq!(config.budget, None);
    // Every key that it shows commented out is one.
    let all: String = BuildConfig::DEFAULT_TEXT
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(code) if code.contains(" = ") || code.starts_with('[') => format!("{code}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let all = BuildConfig::from_toml(&all).unwrap();
    assert_eq!(all.max_tokens, Some(4096));
    assert_eq!(all.filter.max_per_task, Some(4));
    assert_eq!(all.budget.map(|budget| budget.n), Some(100_000));
    assert!(BuildConfig::from_toml("repaly = true").is_err());
}
