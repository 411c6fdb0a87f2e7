//! Courses of training against TRL, PEFT and bitsandbytes; `fixtures/trl/make.py` tells how.

use std::{collections::BTreeMap, path::PathBuf};

use serde::Deserialize;
use serde_json::Value;
use temper_checkpoint::{Adapter as AdapterFile, Checkpoint};
use temper_model_fixtures::{device, fixture};
use temper_train::{
    Base, DataOrder, Method, Metric, Outcome, Pair, PreferenceConfig, PreferenceObjective, Row,
    Run, SftConfig, TrainError, TrainingConfig, config::OptimizerSettings, train_preference,
    train_sft,
};

use crate::common::{Place, Told};

#[derive(Deserialize)]
struct Course {
    losses: Vec<f64>,
    norms: Vec<f64>,
}

fn beside(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/trl");
    folder.join(name)
}

fn read(name: &str) -> BTreeMap<String, Value> {
    serde_json::from_slice(&std::fs::read(beside(name)).unwrap()).unwrap()
}

fn course(file: &BTreeMap<String, Value>, name: &str) -> Course {
    serde_json::from_value(file[name].clone()).unwrap()
}

fn training(method: Method, epochs: u64, rows_per_update: usize) -> TrainingConfig {
    TrainingConfig {
        method,
        epochs,
        rows_per_update,
        order: DataOrder::AsGiven,
        optimizer: OptimizerSettings {
            learning_rate: 0.01,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.1,
            max_gradient_norm: Some(1.0),
            ..OptimizerSettings::default()
        },
        ..TrainingConfig::default()
    }
}

fn check(what: &str, told: &Told, expected: &Course, tolerance: f64) {
    let norms: Vec<f64> = told
        .series(Metric::GradientNorm)
        .into_iter()
        .map(|it| it.finite().unwrap())
        .collect();
    for (kind, got, expected) in [
        ("losses", told.losses(), &expected.losses),
        ("gradient norms", norms, &expected.norms),
    ] {
        assert_eq!(got.len(), expected.len(), "{what} {kind}");
        for (update, (got, expected)) in got.iter().zip(expected).enumerate() {
            let error = (got - expected).abs() / expected.abs().max(1e-2);
            assert!(
                error <= tolerance,
                "{what}: of the {kind}, number {update} is {got}, expected {expected}"
            );
        }
    }
}

/// Trains from the fixture's adapter, or everything.
fn train(
    name: &'static str,
    with_adapter: bool,
    base: Base,
    body: impl FnOnce(&mut Run<'_, temper_model::cpu::Cpu>, Method) -> Result<Outcome, TrainError>,
) -> Told {
    let device = device();
    let folder = tempfile::tempdir().unwrap();
    let (checkpoint, adapter) = match name {
        "wide" => {
            let checkpoint = Checkpoint::open(&beside("wide")).unwrap();
            let adapter = AdapterFile::read(&beside("wide/adapter"), checkpoint.config()).unwrap();
            (checkpoint, adapter)
        }
        name => {
            let fixture = fixture(name);
            (fixture.checkpoint, fixture.adapter)
        }
    };
    let adapter = with_adapter.then_some(&adapter);
    let method = adapter.map_or(Method::Full, |adapter| Method::Lora {
        rank: adapter.rank,
        alpha: adapter.alpha,
        rank_stabilised: adapter.rank_stabilised,
        targets: adapter
            .targets()
            .iter()
            .map(|it| it.module().into())
            .collect(),
        base,
    });
    let place = Place {
        device: &device,
        checkpoint: &checkpoint,
        adapter,
        folder: folder.path(),
    };
    let (outcome, told) = place.run(None, |run| body(run, method));
    outcome.unwrap();
    told
}

#[test]
fn ten_updates_of_supervised_training_are_those_of_trl() {
    #[derive(Deserialize)]
    struct FileRow {
        ids: Vec<u32>,
        mask: Vec<bool>,
    }
    let file = read("sft.json");
    let rows: Vec<FileRow> = serde_json::from_value(file["rows"].clone()).unwrap();
    let rows: Vec<Row> = rows
        .into_iter()
        .map(|it| Row::new(it.ids, it.mask).unwrap())
        .collect();
    let nf4 = Base::Nf4 {
        double_quantised: true,
    };
    for (what, name, with_adapter, base, tolerance) in [
        ("full", "qwen2", false, Base::Dense, 2e-4),
        ("lora", "llama_tied", true, Base::Dense, 2e-4),
        ("rslora", "llama_untied", true, Base::Dense, 2e-4),
        // bitsandbytes rounds a quantised maximum near the middle of two codes to the other one
        // now and then.
        ("qlora", "wide", true, nf4, 2e-4),
    ] {
        let expected = course(&file, what);
        assert_eq!(expected.losses.len(), 10);
        for packing in [false, true] {
            let told = train(name, with_adapter, base, |run, method| {
                let config = SftConfig {
                    training: training(method, 2, 4),
                    packing,
                    max_tokens_per_pass: packing.then_some(64),
                };
                train_sft(run, &config, &rows)
            });
            check(what, &told, &expected, tolerance);
        }
    }
}

#[test]
fn preference_objectives_go_as_in_trl() {
    #[derive(Deserialize)]
    struct FilePair {
        prompt: Vec<u32>,
        chosen: Vec<u32>,
        rejected: Vec<u32>,
    }
    let file = read("preference.json");
    let pairs: Vec<FilePair> = serde_json::from_value(file["pairs"].clone()).unwrap();
    let row = |prompt: &[u32], reply: &[u32]| {
        let ids = [prompt, reply].concat();
        let mask = (0..ids.len()).map(|at| at >= prompt.len()).collect();
        Row::new(ids, mask).unwrap()
    };
    let pairs: Vec<Pair> = pairs
        .iter()
        .map(|it| Pair::new(row(&it.prompt, &it.chosen), row(&it.prompt, &it.rejected)).unwrap())
        .collect();
    let (beta, label_smoothing) = (0.1, 0.1);
    for (what, objective) in [
        ("dpo", PreferenceObjective::Dpo { beta }),
        (
            "conservative_dpo",
            PreferenceObjective::ConservativeDpo {
                beta,
                label_smoothing,
            },
        ),
        (
            "robust_dpo",
            PreferenceObjective::RobustDpo {
                beta,
                label_smoothing,
            },
        ),
        (
            "ipo",
            PreferenceObjective::Ipo {
                tau: 0.1,
                averaged: true,
            },
        ),
        (
            "ipo_summed",
            PreferenceObjective::Ipo {
                tau: 0.1,
                averaged: false,
            },
        ),
        (
            "length_normalised_dpo",
            PreferenceObjective::LengthNormalisedDpo { beta: 5.0 },
        ),
        (
            "simpo",
            PreferenceObjective::Simpo {
                beta: 2.0,
                gamma: 0.5,
            },
        ),
    ] {
        let expected = course(&file, what);
        assert_eq!(expected.losses.len(), 4);
        let told = train("llama_untied", false, Base::Dense, |run, method| {
            let config = PreferenceConfig {
                training: training(method, 1, 2),
                objective,
            };
            train_preference(run, &config, &pairs)
        });
        check(what, &told, &expected, 5e-4);
    }
}
