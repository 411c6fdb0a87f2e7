//! Supervised fine-tuning as a whole: what a run gives, resumed or not, packed or not.

use temper_checkpoint::Adapter as AdapterFile;
use temper_model::device::Device;
use temper_train::{
    Base, DataOrder, Event, Method, Metric, MomentKind, Outcome, Row, SftConfig, TrainError,
    TrainingConfig,
    config::{Activations, DecayKind, OptimizerSettings, Precision, SnapshotSettings},
};

use crate::common::{Bench, Place, Told, lora, row, rows, settings};

fn config(method: Method) -> SftConfig {
    SftConfig {
        training: settings(method),
        ..SftConfig::default()
    }
}

fn nf4() -> Base {
    Base::Nf4 {
        double_quantised: true,
    }
}

/// Trains in a folder of its own.
fn train(name: &'static str, config: &SftConfig, rows: &[Row]) -> (Outcome, Told) {
    let (outcome, told) = Bench::of(name).place().sft(config, rows, None);
    (outcome.unwrap(), told)
}

/// Every method learns, and a run that was stopped and went on ends with the same bytes as one
/// that was not.
#[test]
fn a_resumed_run_is_the_uninterrupted_one_bit_for_bit() {
    let stabilised = Method::Lora {
        rank: 2,
        alpha: 4.0,
        rank_stabilised: true,
        targets: vec!["q_proj".into(), "down_proj".into()],
        base: Base::Dense,
    };
    let rows = rows(14);
    for (name, method, moments, packing) in [
        ("llama_tied", lora(Base::Dense), MomentKind::F32, false),
        ("qwen2", stabilised, MomentKind::Int8, false),
        ("llama_untied", lora(nf4()), MomentKind::Int8, true),
        ("qwen3_yarn", Method::Full, MomentKind::F32, false),
        ("llama_tied", Method::Full, MomentKind::Int8, true),
    ] {
        let mut config = config(method);
        config.packing = packing;
        config.max_tokens_per_pass = packing.then_some(50);
        config.training.order = DataOrder::Bucketed { windows: 2 };
        config.training.optimizer.moments = moments;
        let (whole, told) = train(name, &config, &rows);
        assert!(whole.is_finished() && whole.update == 8, "{name}");

        for stop_after in [1, 3, 4, 7] {
            let bench = Bench::of(name);
            let place = bench.place();
            let (first, before) = place.sft(&config, &rows, Some(stop_after));
            let first = first.unwrap();
            assert!(!first.is_finished() && first.update == stop_after);
            let (second, after) = place.sft(&config, &rows, None);
            let second = second.unwrap();
            assert!(second.is_finished());
            let both: Vec<_> = before.updates().chain(after.updates()).collect();
            let same = |record: &temper_train::events::UpdateRecord| {
                let metric = |it| record.metrics.get(it);
                (
                    record.update,
                    metric(Metric::Loss),
                    metric(Metric::GradientNorm),
                )
            };
            assert!(
                both.iter().map(|it| same(it)).eq(told.updates().map(same)),
                "{name} stopped after {stop_after}"
            );
            let end = |outcome: &Outcome| outcome.snapshots.last().unwrap().manifest.clone();
            assert_eq!(end(&second), end(&whole), "{name} after {stop_after}");
        }
    }
}

#[test]
fn every_method_learns() {
    for (name, method) in [
        ("llama_tied", lora(Base::Dense)),
        ("llama_untied", lora(nf4())),
        ("qwen2", lora(Base::Int8)),
        ("qwen3_yarn", Method::Full),
    ] {
        let mut config = config(method);
        config.training.epochs = 15;
        let (_, told) = train(name, &config, &rows(8));
        let losses = told.losses();
        let (first, last) = (losses[0] + losses[1], losses[28] + losses[29]);
        assert!(last < 0.8 * first, "{name}: {losses:?}");
    }
}

#[test]
fn a_finished_run_does_nothing_and_other_inputs_are_refused() {
    let bench = Bench::of("llama_tied");
    let place = bench.place();
    let (rows, config) = (rows(8), config(lora(Base::Dense)));
    let (first, _) = place.sft(&config, &rows, None);
    let (again, told) = place.sft(&config, &rows, None);
    assert_eq!(again.unwrap(), first.unwrap());
    assert_eq!(told.updates().count(), 0);
    // What does not change results may change.
    let mut other = config.clone();
    other.training.snapshots.every_epoch = false;
    other.training.activations = Activations::Recompute;
    place.sft(&other, &rows, None).0.unwrap();
    let differences = |config: &SftConfig, rows: &[Row]| match place.sft(config, rows, None).0 {
        Err(TrainError::OtherRun { differences, .. }) => differences.join(", "),
        other => panic!("{other:?}"),
    };
    other.training.seed = 12;
    assert_eq!(differences(&other, &rows), "settings");
    assert_eq!(differences(&config, &rows[..7]), "data");
    assert_eq!(differences(&other, &rows[..7]), "data, settings");
}

/// The window's loss and the weights after it are the same however its rows go through the model.
#[test]
fn packing_recomputing_and_row_order_within_a_window_change_nothing() {
    let rows = rows(10);
    let plain = config(Method::Full);
    let (_, expected) = train("qwen2", &plain, &rows);
    let expected = expected.losses();
    let mut packed = plain.clone();
    packed.packing = true;
    packed.max_tokens_per_pass = Some(64);
    let (_, told) = train("qwen2", &packed, &rows);
    for (got, expected) in told.losses().iter().zip(&expected) {
        assert!((got - expected).abs() < 2e-5, "{got} {expected}");
    }
    assert!((told.losses()[0] - expected[0]).abs() < 1e-6);
    let mut recomputed = plain.clone();
    recomputed.training.activations = Activations::Recompute;
    let (_, told) = train("qwen2", &recomputed, &rows);
    assert_eq!(told.losses(), expected);
}

/// One supervised token and nine of them in one update: the mean is over ten tokens whether they
/// go through the model in one pass or two.
#[test]
fn a_window_counts_tokens_and_not_rows() {
    let ids = |seed: u64| row(seed, 20).ids().to_vec();
    let supervise = |seed, n: usize| {
        let mask = (0..20).map(|at| at >= 20 - n).collect();
        Row::new(ids(seed), mask).unwrap()
    };
    let (one, nine) = (supervise(3, 1), supervise(4, 9));
    let loss = |rows: &[Row], packing: bool| {
        let mut config = config(Method::Full);
        config.training.rows_per_update = rows.len();
        config.training.optimizer.warmup_updates = 0;
        config.packing = packing;
        config.max_tokens_per_pass = packing.then_some(40);
        let (outcome, told) = train("llama_tied", &config, rows);
        let weights = outcome.snapshots.last().unwrap().manifest.files.clone();
        (told.losses(), weights.len())
    };
    let ((alone_one, _), (alone_nine, _)) = (
        loss(std::slice::from_ref(&one), false),
        loss(std::slice::from_ref(&nine), false),
    );
    let (two_passes, _) = loss(&[one.clone(), nine.clone()], false);
    let (one_pass, _) = loss(&[one, nine], true);
    let expected = (alone_one[0] + 9.0 * alone_nine[0]) / 10.0;
    let mean_of_means = (alone_one[0] + alone_nine[0]) / 2.0;
    assert!((expected - mean_of_means).abs() > 0.05, "the test can fail");
    assert!((two_passes[0] - expected).abs() < 1e-6);
    assert!((one_pass[0] - expected).abs() < 1e-6);
    // The second update sees the weights that the first left.
    assert!((one_pass[1] - two_passes[1]).abs() < 1e-5);
}

#[test]
fn a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_snapshot() {
    let bench = Bench::of("llama_untied");
    let place = bench.place();
    let mut config = config(Method::Full);
    config.training.epochs = 6;
    config.training.optimizer = OptimizerSettings {
        // Small during the rise, then ruinous.
        learning_rate: 1e30,
        warmup_updates: 0,
        ..OptimizerSettings::default()
    };
    config.training.snapshots.every_updates = Some(1);
    let (result, told) = place.sft(&config, &rows(8), None);
    let error = result.unwrap_err();
    let TrainError::NotFinite {
        update,
        last_snapshot,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert!(*update >= 2);
    let text = error.to_string();
    assert!(text.contains(&format!("of update {update} is")), "{text}");
    assert!(
        text.contains(&format!("update-{:08}", update - 1)),
        "{text}"
    );
    assert!(
        last_snapshot
            .as_ref()
            .unwrap()
            .join("complete.json")
            .exists()
    );
    let last = told.updates().last().unwrap();
    assert_eq!((last.update, last.applied), (*update, false));
    let stopped = told.0.last().unwrap();
    assert!(matches!(stopped, Event::Stopped { update: at, .. } if at + 1 == *update));
}

#[test]
fn settings_without_effect_are_errors_with_the_reason() {
    let rows: Vec<Row> = (0..8).map(|seed| row(seed, 20 + seed as usize)).collect();
    let check = |setting: &str, reason: &str, change: &dyn Fn(&mut SftConfig)| {
        let bench = Bench::of("llama_tied");
        let mut config = config(lora(Base::Dense));
        change(&mut config);
        let refused = bench.place().sft(&config, &rows, None).0.unwrap_err();
        let text = refused.to_string();
        assert!(
            text.contains(&format!("setting {setting}: ")) && text.contains(reason),
            "{setting}: {text}"
        );
        assert!(bench.folder.path().read_dir().unwrap().next().is_none());
    };
    type Change<'a> = &'a dyn Fn(&mut TrainingConfig);
    let shared: &[(&str, &str, Change<'_>)] = &[
        ("epochs", "nothing", &|it| it.epochs = 0),
        ("max_updates", "end after 4 updates", &|it| {
            it.max_updates = Some(4);
        }),
        ("rows_per_update", "there are 8", &|it| {
            it.rows_per_update = 9
        }),
        ("order.windows", "2 or more", &|it| {
            it.order = DataOrder::Bucketed { windows: 1 };
        }),
        ("order", "one window", &|it| {
            it.order = DataOrder::Bucketed { windows: 4 };
            it.rows_per_update = 8;
            it.epochs = 4;
        }),
        ("optimizer.learning_rate", "not a positive", &|it| {
            it.optimizer.learning_rate = 0.0;
        }),
        ("optimizer.warmup_updates", "never reach", &|it| {
            it.optimizer.warmup_updates = 4;
        }),
        ("optimizer.decay", "one update of 4 left", &|it| {
            it.optimizer.warmup_updates = 3;
        }),
        ("optimizer.floor", "no floor", &|it| {
            it.optimizer.decay = DecayKind::Constant;
            it.optimizer.floor = 0.1;
        }),
        ("optimizer.floor", "set decay to constant", &|it| {
            it.optimizer.floor = 1.0;
        }),
        ("method.rank_stabilised", "at rank 1", &|it| {
            it.method = Method::Lora {
                rank: 1,
                alpha: 1.0,
                rank_stabilised: true,
                targets: vec!["q_proj".into()],
                base: Base::Dense,
            };
        }),
        ("method.targets", "is none of q_proj", &|it| {
            it.method = Method::Lora {
                rank: 1,
                alpha: 1.0,
                rank_stabilised: false,
                targets: vec!["lm_head".into()],
                base: Base::Dense,
            };
        }),
        ("activations.layers", "all but the last", &|it| {
            it.activations = Activations::KeepLayers { layers: 1 };
        }),
        ("precision", "computes in F32", &|it| {
            it.precision = Some(Precision::Bf16);
        }),
        ("snapshots.every_updates", "after the last anyway", &|it| {
            it.snapshots = SnapshotSettings {
                every_epoch: true,
                every_updates: Some(4),
            };
        }),
    ];
    for (setting, reason, change) in shared {
        check(setting, reason, &|config| change(&mut config.training));
    }
    check("packing", "two shortest rows", &|it| {
        it.packing = true;
        it.max_tokens_per_pass = None;
    });
    check("packing", "nothing to pack", &|it| {
        it.packing = true;
        it.training.rows_per_update = 1;
    });
    check("max_tokens_per_pass", "holds one row", &|it| {
        it.max_tokens_per_pass = Some(64);
    });
    check("max_tokens_per_pass", "do not hold", &|it| {
        it.max_tokens_per_pass = Some(10);
    });
    // Unknown settings, in every place where one can stand.
    for json in [
        r#"{"pack": true}"#,
        r#"{"training": {"method": {"lora": {"rank": 4, "alpha": 8.0, "dropout": 0.1}}}}"#,
        r#"{"training": {"method": {"full": {"rank": 4}}}}"#,
        r#"{"training": {"optimizer": {"lr": 1.0}}}"#,
        r#"{"training": {"activations": {"keep_all": {"layers": 2}}}}"#,
    ] {
        assert!(serde_json::from_str::<SftConfig>(json).is_err(), "{json}");
    }
    let json = r#"{"training": {"method": {"lora": {"rank": 4, "alpha": 8.0}},
        "order": {"bucketed": {"windows": 8}}, "activations": "recompute"}}"#;
    let read: SftConfig = serde_json::from_str(json).unwrap();
    assert_eq!(read.training.method, lora(Base::Dense));
}

#[test]
fn memory_is_known_before_it_is_taken() {
    for (name, method) in [
        ("llama_tied", lora(Base::Dense)),
        ("qwen2", lora(nf4())),
        ("llama_untied", lora(Base::Int8)),
        ("qwen3_yarn", Method::Full),
    ] {
        let (_, told) = train(name, &config(method), &rows(8));
        let Some(Event::Begun(begun)) = told.0.first() else {
            panic!("{:?}", told.0.first());
        };
        let peak = told.series(Metric::MemoryPeak)[0].finite().unwrap();
        let planned = begun.memory_bytes as f64;
        // The rest is scratch of the device, which tensors are not, and blocks that do not come
        // out even.
        let share = peak / planned;
        assert!(
            (0.80..=1.06).contains(&share),
            "{name}: {peak} of {planned}"
        );
        assert!(begun.memory.contains("optimizer states"));
    }
}

/// A run that starts from an adapter goes on with that adapter's numbers, and its snapshots are
/// adapters that say the same.
#[test]
fn training_goes_on_from_an_adapter() {
    let bench = Bench::of("llama_tied");
    let adapter = &bench.fixture.adapter;
    let place = Place {
        adapter: Some(adapter),
        ..bench.place()
    };
    let mut config = config(lora(Base::Dense));
    let refused = place.sft(&config, &rows(8), None).0.unwrap_err();
    assert!(refused.to_string().contains("training starts from"));
    config.training.method = Method::Lora {
        rank: adapter.rank,
        alpha: adapter.alpha,
        rank_stabilised: adapter.rank_stabilised,
        targets: adapter
            .targets()
            .iter()
            .map(|it| it.module().into())
            .collect(),
        base: Base::Dense,
    };
    let (outcome, told) = place.sft(&config, &rows(8), None);
    let (_, fresh) = train("llama_tied", &config, &rows(8));
    assert_ne!(told.losses()[0], fresh.losses()[0]);
    let last = outcome.unwrap().snapshots.pop().unwrap();
    let trained = AdapterFile::read(&last.weights(), bench.fixture.config()).unwrap();
    assert_eq!(trained.base_model, adapter.base_model);
    assert_ne!(trained.tensors, adapter.tensors);
    assert!(
        bench.device.memory_used().0 == 0,
        "a run gives its memory back"
    );
}
