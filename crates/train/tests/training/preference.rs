//! Preference training as a whole: first losses, the kept reference, resumption, diagnoses.

use std::fs;

use temper_train::{
    Base, Event, Method, Metric, Outcome, Pair, PreferenceConfig, PreferenceObjective, TrainError,
    train_preference,
};

use crate::common::{Bench, Place, Told, lora, pairs, settings};

const DPO: PreferenceObjective = PreferenceObjective::Dpo { beta: 0.1 };

fn config(method: Method, objective: PreferenceObjective) -> PreferenceConfig {
    PreferenceConfig {
        training: settings(method),
        objective,
    }
}

fn train(
    place: &Place<'_>,
    config: &PreferenceConfig,
    pairs: &[Pair],
    stop_after: Option<u64>,
) -> (Result<Outcome, TrainError>, Told) {
    place.run(stop_after, |run| train_preference(run, config, pairs))
}

/// Trains in a folder of its own.
fn fresh(name: &'static str, config: &PreferenceConfig, pairs: &[Pair]) -> (Outcome, Told) {
    let bench = Bench::of(name);
    let place = bench.place();
    let (outcome, told) = train(&place, config, pairs, None);
    (outcome.unwrap(), told)
}

fn reference_of(told: &Told) -> (usize, usize) {
    let counts = told.0.iter().find_map(|event| match event {
        Event::Reference { n_scored, n_cached } => Some((*n_scored, *n_cached)),
        _ => None,
    });
    counts.unwrap()
}

#[test]
fn the_first_loss_is_exact_and_training_parts_the_replies() {
    let pairs = pairs(8);
    let nf4 = Base::Nf4 {
        double_quantised: true,
    };
    for (name, method, objective) in [
        ("llama_tied", lora(Base::Dense), DPO),
        ("qwen2", Method::Full, DPO),
        ("llama_untied", lora(nf4), DPO),
        (
            "qwen3_yarn",
            lora(Base::Dense),
            PreferenceObjective::LengthNormalisedDpo { beta: 5.0 },
        ),
    ] {
        let mut config = config(method, objective);
        config.training.epochs = 10;
        let (outcome, told) = fresh(name, &config, &pairs);
        assert!(outcome.is_finished());
        let losses = told.losses();
        assert_eq!(losses[0], std::f64::consts::LN_2, "{name}");
        assert_eq!(reference_of(&told), (8, 0));
        let last = losses.len() - 1;
        assert!(losses[last] < 0.9 * losses[0], "{name}: {losses:?}");
        let series = |metric| -> Vec<f64> {
            let values = told.series(metric).into_iter();
            values.map(|it| it.finite().unwrap()).collect()
        };
        for metric in [
            Metric::RewardMargin,
            Metric::ChosenLogprobChange,
            Metric::RejectedLogprobChange,
            Metric::SatisfiedShare,
        ] {
            assert_eq!(series(metric)[0], 0.0, "{name} {}", metric.name());
        }
        assert_eq!(series(Metric::GradientWeight)[0], 0.5);
        assert!(series(Metric::RewardMargin)[last] > 0.0);
        assert_eq!(series(Metric::SatisfiedShare)[last], 1.0, "{name}");
    }
}

#[test]
fn objectives_without_a_known_first_loss_train_too() {
    let pairs = pairs(8);
    for (objective, first) in [
        (
            PreferenceObjective::Ipo {
                tau: 0.1,
                averaged: true,
            },
            Some(25.0),
        ),
        (
            PreferenceObjective::RobustDpo {
                beta: 0.1,
                label_smoothing: 0.2,
            },
            Some(std::f64::consts::LN_2),
        ),
        (
            PreferenceObjective::Simpo {
                beta: 2.0,
                gamma: 0.5,
            },
            None,
        ),
    ] {
        let mut config = config(lora(Base::Dense), objective);
        config.training.epochs = 10;
        let (_, told) = fresh("llama_untied", &config, &pairs);
        let losses = told.losses();
        if let Some(first) = first {
            assert!((losses[0] - first).abs() < 1e-9 * first, "{objective:?}");
        } else {
            let has_reference = told
                .0
                .iter()
                .any(|it| matches!(it, Event::Reference { .. }));
            assert!(!has_reference);
            let change = told.series(Metric::ChosenLogprobChange)[0];
            assert_eq!(change, None.into(), "no reference is no change of zero");
        }
        assert!(losses[losses.len() - 1] < losses[0], "{objective:?}");
        let unexpected = told
            .0
            .iter()
            .find(|event| matches!(event, Event::Diagnosis { name, .. } if *name == "first_loss"));
        assert_eq!(unexpected, None);
    }
}

/// The reference of a resumed run is the policy at its very start, not at the snapshot.
#[test]
fn a_resumed_run_is_the_uninterrupted_one_bit_for_bit() {
    let pairs = pairs(10);
    for (name, method) in [("llama_tied", lora(Base::Dense)), ("qwen2", Method::Full)] {
        let config = config(method, DPO);
        let (whole, told) = fresh(name, &config, &pairs);
        for forget in [false, true] {
            let bench = Bench::of(name);
            let place = bench.place();
            let (_, before) = train(&place, &config, &pairs, Some(2));
            assert_eq!(reference_of(&before), (10, 0));
            if forget {
                fs::remove_file(bench.folder.path().join("reference.jsonl")).unwrap();
            }
            let (second, after) = train(&place, &config, &pairs, None);
            let expected = if forget { (10, 0) } else { (0, 10) };
            assert_eq!(reference_of(&after), expected);
            let losses = [before.losses(), after.losses()].concat();
            assert_eq!(losses, told.losses(), "{name}");
            let end = |outcome: &Outcome| outcome.snapshots.last().unwrap().manifest.clone();
            assert_eq!(end(&second.unwrap()), end(&whole), "{name}");
        }
    }
}

#[test]
fn the_reference_is_kept_for_what_it_depends_on_and_nothing_else() {
    let bench = Bench::of("llama_tied");
    let run = |config: &PreferenceConfig, pairs: &[Pair]| {
        // The snapshots of another run would be in the way; its reference is not.
        let _ = fs::remove_dir_all(bench.folder.path().join("snapshots"));
        let (outcome, told) = train(&bench.place(), config, pairs, None);
        outcome.unwrap();
        reference_of(&told)
    };
    let all = pairs(8);
    let first = config(lora(Base::Dense), DPO);
    assert_eq!(run(&first, &all), (8, 0));
    let mut other = first.clone();
    other.objective = PreferenceObjective::Dpo { beta: 0.3 };
    other.training.optimizer.learning_rate = 0.001;
    other.training.seed = 5;
    assert_eq!(run(&other, &all), (0, 8));
    let int8 = config(lora(Base::Int8), DPO);
    assert_eq!(run(&int8, &all), (8, 0));
    // A line that a kill left half-written costs one pair.
    let path = bench.folder.path().join("reference.jsonl");
    let text = fs::read(&path).unwrap();
    let lines: Vec<&[u8]> = text.split_inclusive(|&byte| byte == b'\n').collect();
    let torn = [&lines[..8].concat()[..], &lines[8..].concat()[..]].concat();
    fs::write(&path, &torn[..torn.len() - 10]).unwrap();
    assert_eq!(run(&int8, &all), (1, 7));
    assert_eq!(run(&int8, &all), (0, 8));
}

#[test]
fn pairs_that_cannot_teach_are_diagnosed() {
    let mut config = config(lora(Base::Dense), PreferenceObjective::Dpo { beta: 50.0 });
    config.training.epochs = 30;
    config.training.rows_per_update = 2;
    let (_, told) = fresh("llama_tied", &config, &pairs(2));
    let names: Vec<&str> = told
        .0
        .iter()
        .filter_map(|event| match event {
            Event::Diagnosis { name, .. } => Some(*name),
            _ => None,
        })
        .collect();
    assert!(names.contains(&"pairs_satisfied"), "{names:?}");
    let mut config = config.clone();
    config.objective = DPO;
    config.training.optimizer.learning_rate = 1e-9;
    let (_, told) = fresh("llama_tied", &config, &pairs(2));
    let is_unmoved =
        |event: &Event| matches!(event, Event::Diagnosis { name, .. } if *name == "policy_unmoved");
    assert_eq!(told.0.iter().filter(|it| is_unmoved(it)).count(), 1);
}

#[test]
fn an_objective_that_is_not_itself_is_refused() {
    let bench = Bench::of("llama_tied");
    let place = bench.place();
    let smoothed = PreferenceObjective::ConservativeDpo {
        beta: 0.1,
        label_smoothing: 0.0,
    };
    let (result, _) = train(
        &place,
        &config(lora(Base::Dense), smoothed),
        &pairs(4),
        None,
    );
    assert!(result.unwrap_err().to_string().contains("plain dpo"));
}
