//! Pairs and groups of trials of one task.

use std::collections::BTreeMap;

use temper_core::{
    Digest,
    trajectory::StepOutcome,
    verdict::{Layer, LayerName, LayerOutcome, Resolution},
};
use temper_dataset::{
    build::{BuildConfig, Dataset, Sources, build},
    episode::Episode,
    filter::contamination::HeldOut,
    pairs::{PairConfig, Parting, Unpaired},
    row::SpanKind,
};

use crate::{
    setup::{config, run, sampled_trial, spelling, train},
    support::{Made, made, tokens},
};

#[test]
fn pairs_are_of_one_task_hardest_first() {
    let task = train("a");
    let mut public = made(
        &task,
        2,
        Resolution::Unresolved,
        "something\nelse\nentirely",
    );
    layers(&mut public, LayerOutcome::Passed, LayerOutcome::Failed);
    let mut near = made(
        &task,
        1,
        Resolution::Unresolved,
        "x = 1\ny = 2\nz = 3\nreturn y",
    );
    layers(&mut near, LayerOutcome::Failed, LayerOutcome::NotRun);
    let other = train("b");
    let mut prompted = made(&task, 6, Resolution::Unresolved, "return 8");
    prompted.prompt[0].content = "You act otherwise.".to_owned();
    let episodes: Vec<Episode> = vec![
        made(
            &task,
            0,
            Resolution::Resolved,
            "x = 1\ny = 2\nz = 3\nreturn x",
        ),
        near,
        public,
        made(&task, 3, Resolution::Unresolved, "nothing\nalike"),
        made(&task, 4, Resolution::Unresolved, "nothing\nalike"),
        made(&task, 5, Resolution::Lost, "return 5"),
        prompted,
        made(&other, 9, Resolution::Unresolved, "return 1"),
    ]
    .into_iter()
    .map(Made::episode)
    .collect();
    let mut config = config();
    config.pairs = Some(PairConfig::default());
    let dataset = run(&episodes, &config).unwrap();
    let attempts: Vec<(u32, u32)> = dataset
        .pairs
        .iter()
        .map(|pair| (pair.chosen.origin().attempt, pair.rejected.origin().attempt))
        .collect();
    assert_eq!(attempts, [(0, 2), (0, 1), (0, 3)]);
    assert!(dataset.pairs[0].hardness.passes_public);
    // Of seven changed lines of the two, one removed and three added are shared.
    assert!((dataset.pairs[1].hardness.patch_distance - 2.0 / 6.0).abs() < 1e-12);
    let unpaired: BTreeMap<u32, &Unpaired> = dataset
        .report
        .unpaired
        .iter()
        .map(|(origin, why)| (origin.attempt, why))
        .collect();
    assert!(matches!(unpaired[&4], Unpaired::SamePatch { kept } if kept.attempt == 3));
    assert_eq!(*unpaired[&5], Unpaired::NoLabel);
    assert_eq!(*unpaired[&6], Unpaired::OtherPrompt);
    assert_eq!(*unpaired[&9], Unpaired::NothingSolved);

    config.pairs = Some(PairConfig {
        hard_only: true,
        ..PairConfig::default()
    });
    assert_eq!(run(&episodes, &config).unwrap().pairs.len(), 2);
}

#[test]
fn groups_hold_rewards_and_what_was_lost_has_none() {
    let task = train("a");
    let outcomes = [
        Resolution::Resolved,
        Resolution::Unresolved,
        Resolution::Lost,
    ];
    let episodes: Vec<Episode> = outcomes
        .iter()
        .enumerate()
        .map(|(n, resolution)| {
            let mut trial = made(&task, n as u32, *resolution, &format!("return {n}"));
            trial.steps[0].tokens = tokens(&[1, 2], &[3], Some(&[-1.0]));
            trial.steps[1].tokens = tokens(&[1, 2, 3, 4], &[5], Some(&[-2.0]));
            trial.episode()
        })
        .collect();
    let mut config = config();
    config.groups = true;
    let dataset = run(&episodes, &config).unwrap();
    let [group] = dataset.groups.as_slice() else {
        panic!("{:?}", dataset.groups);
    };
    let rewards: Vec<Option<f64>> = group.members.iter().map(|member| member.reward).collect();
    assert_eq!(rewards, [Some(1.0), Some(0.0), None]);
    assert_eq!(group.n_scored(), 2);
    assert!(group.has_signal());
    assert_eq!(dataset.report.n_groups_with_signal, 1);
    // Another policy makes another group; two groups of one are none.
    let spelling = spelling("smollm2.jinja");
    let renderer = spelling.renderer();
    let sources = Sources {
        refused: Vec::new(),
        renderer: Some(&renderer),
        held_out: &HeldOut::new([]),
        policy_of: &|episode| Digest::of(&episode.trial().attempt.to_le_bytes()),
    };
    assert!(
        build(&episodes, &config, sources, None)
            .unwrap()
            .groups
            .is_empty()
    );
}

/// Public and hidden layers with these outcomes.
fn layers(made: &mut Made, public: LayerOutcome, hidden: LayerOutcome) {
    let layers = [(LayerName::Public, public), (LayerName::Hidden, hidden)];
    made.trial.verdict.layers = layers
        .into_iter()
        .map(|(name, outcome)| Layer {
            name,
            outcome,
            tests: BTreeMap::new(),
            detail: String::new(),
            wall_seconds: 0.0,
        })
        .collect();
}

#[test]
fn continuations_of_one_state_are_compared_from_there() {
    let task = train("a");
    // The failed trial that the state is of; its first reply has no usable action.
    let mut failed = sampled_trial(&task, 0, Resolution::Unresolved, &[7]);
    failed.steps[0].outcome = StepOutcome::FormatError;
    let continuation = |attempt: u32, resolution: Resolution, own: &[u32]| {
        let mut trial = sampled_trial(&task, attempt, resolution, own);
        trial.steps[0] = failed.steps[0].clone();
        trial.branches_after(1);
        trial
    };
    let solved = continuation(1, Resolution::Resolved, &[8, 8]);
    let lost = continuation(2, Resolution::Unresolved, &[10]);
    // From the task's start, and from another state.
    let whole = sampled_trial(&task, 3, Resolution::Resolved, &[11]);
    let mut elsewhere = sampled_trial(&task, 4, Resolution::Unresolved, &[12]);
    elsewhere.branches_after(2);
    let made = [failed, solved, lost, whole, elsewhere];
    let episodes: Vec<Episode> = made.into_iter().map(Made::episode).collect();
    let mut config = BuildConfig {
        pairs: Some(PairConfig::default()),
        groups: true,
        ..config()
    };
    let dataset = run(&episodes, &config).unwrap();

    // The fault in the shared step is the other trial's: the continuation teaches its own steps.
    let row = dataset.rows.iter().find(|row| row.origin().attempt == 1);
    let row = row.unwrap();
    let kinds: Vec<SpanKind> = row.spans().iter().map(|span| span.kind).collect();
    assert_eq!(
        kinds,
        [
            SpanKind::Prompt,
            SpanKind::SharedReply,
            SpanKind::Prompt,
            SpanKind::Reply,
            SpanKind::Prompt,
            SpanKind::Reply
        ]
    );
    assert_eq!(row.n_learned(), 3);

    let attempts = |dataset: &Dataset| -> Vec<(u32, u32, Option<u32>)> {
        let pairs = dataset.pairs.iter();
        let mut pairs: Vec<_> = pairs
            .map(|pair| {
                (
                    pair.chosen.origin().attempt,
                    pair.rejected.origin().attempt,
                    pair.shared.as_ref().map(|shared| shared.n_steps),
                )
            })
            .collect();
        pairs.sort_unstable();
        pairs
    };
    assert_eq!(attempts(&dataset), [(1, 0, Some(1)), (1, 2, Some(1))]);
    assert_eq!(dataset.report.n_same_state_pairs, 2);
    for pair in &dataset.pairs {
        // In the trial that the state is of, the shared step is masked too.
        for row in [&pair.chosen, &pair.rejected] {
            assert!(!row.loss_mask()[..5].contains(&true));
            assert_eq!(row.ids()[..5], [1, 2, 3, 4, 5]);
        }
    }
    let unpaired = dataset.report.unpaired.iter();
    let unpaired: Vec<_> = unpaired
        .map(|(origin, why)| (origin.attempt, why))
        .collect();
    assert_eq!(unpaired, [(4, &Unpaired::OtherState)]);

    config.pairs = Some(PairConfig {
        parting: Parting::Start,
        ..PairConfig::default()
    });
    assert_eq!(attempts(&run(&episodes, &config).unwrap()), [(3, 0, None)]);

    // One group from the start, one from the state. The failed trial is in the first alone.
    let groups = dataset.groups.iter();
    let mut groups: Vec<(bool, Vec<u32>)> = groups
        .map(|group| {
            let members = group.members.iter().map(|member| member.origin.attempt);
            (group.prefix.is_some(), members.collect())
        })
        .collect();
    groups.sort();
    assert_eq!(groups, [(false, vec![0, 3]), (true, vec![1, 2])]);
}
