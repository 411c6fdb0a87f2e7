//! Metrics in files: strict JSON, and TensorBoard's own format.

use std::{fs, path::PathBuf};

use serde_json::Value;
use temper_core::metric::MetricValue;
use temper_train::{
    Base, Event, EventSink, Metric, Metrics, SftConfig,
    events::{Begun, UpdateRecord},
    metrics::{jsonl::JsonLines, tensorboard::TensorBoard},
    order::Position,
    train_sft,
};

use crate::common::{Bench, lora, rows, settings};

fn begun(from_update: u64) -> Event {
    Event::Begun(Begun {
        objective: "sft",
        from_update,
        from_snapshot: None,
        n_rows: 3,
        n_tokens: 30,
        n_supervised: 20,
        updates_per_epoch: 2,
        total_updates: 6,
        identity: "0".repeat(64),
        memory_bytes: 1,
        memory: "none".into(),
    })
}

fn update(update: u64, values: &[(Metric, MetricValue)]) -> Event {
    let mut metrics = Metrics::default();
    for (metric, value) in values {
        metrics.set(*metric, *value);
    }
    Event::Update(UpdateRecord {
        update,
        total_updates: 6,
        position: Position {
            epoch: 0,
            window: update - 1,
        },
        applied: true,
        metrics,
    })
}

/// Losses of a run that failed and went on: 1, 0.5, NaN and -inf; then 3 and 4 again.
fn course() -> Vec<(f64, Event)> {
    let loss = |value: f64| (Metric::Loss, MetricValue::from(value));
    let norm = |value: Option<f64>| (Metric::GradientNorm, MetricValue::from(value));
    vec![
        (1000.0, begun(0)),
        (1001.0, update(1, &[loss(1.0), norm(Some(2.0))])),
        (1002.0, update(2, &[loss(0.5), norm(None)])),
        (
            1003.0,
            update(3, &[loss(f64::NAN), norm(Some(f64::INFINITY))]),
        ),
        (1004.0, update(4, &[loss(f64::NEG_INFINITY)])),
        (2000.5, begun(2)),
        (2001.5, update(3, &[loss(0.375)])),
        (2002.5, update(4, &[loss(f64::INFINITY)])),
    ]
}

fn lines(path: &std::path::Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn lines_are_strict_json_and_every_update_stands_there_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    let losses = |lines: &[Value]| -> Vec<(u64, Value)> {
        let updates = lines.iter().filter(|line| line["event"] == "update");
        updates
            .map(|line| {
                (
                    line["update"].as_u64().unwrap(),
                    line["metrics"]["loss"].clone(),
                )
            })
            .collect()
    };
    let course = course();
    let mut sink = JsonLines::open(&path).unwrap();
    for (at, event) in &course[..5] {
        sink.record(*at, event).unwrap();
    }
    let first = lines(&path);
    assert_eq!(
        losses(&first),
        [
            (1, 1.0.into()),
            (2, 0.5.into()),
            (3, "NaN".into()),
            (4, "-Infinity".into()),
        ]
    );
    assert_eq!(first[2]["metrics"]["gradient_norm"], Value::Null);
    assert_eq!(first[3]["metrics"]["gradient_norm"], "Infinity");
    assert!(first[4]["metrics"].get("gradient_norm").is_none());
    drop(sink);
    // A kill in the middle of a line.
    let mut text = fs::read(&path).unwrap();
    text.extend(br#"{"at":1005.0,"event":"upd"#);
    fs::write(&path, text).unwrap();
    let mut sink = JsonLines::open(&path).unwrap();
    for (at, event) in &course[5..] {
        sink.record(*at, event).unwrap();
    }
    let all = lines(&path);
    assert_eq!(
        losses(&all),
        [
            (1, 1.0.into()),
            (2, 0.5.into()),
            (3, 0.375.into()),
            (4, "Infinity".into()),
        ]
    );
    assert_eq!(
        all.iter().filter(|line| line["event"] == "begun").count(),
        2
    );
    // A run that begins anew in the same folder leaves nothing of the other.
    sink.record(3000.0, &begun(0)).unwrap();
    assert!(losses(&lines(&path)).is_empty());
}

/// `check.py` beside the fixture reads these very files with TensorBoard's reader and says what it
/// must find; this says that they are still what is written.
#[test]
fn event_files_are_what_tensorboard_has_read() {
    let fixture = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tensorboard");
    let folder = tempfile::tempdir().unwrap();
    let course = course();
    for part in [&course[..5], &course[5..]] {
        let mut sink = TensorBoard::open(folder.path()).unwrap();
        for (at, event) in part {
            sink.record(*at, event).unwrap();
        }
    }
    let files = |folder: &std::path::Path| -> Vec<(String, Vec<u8>)> {
        let items = fs::read_dir(folder).unwrap().map(|item| item.unwrap());
        let mut files: Vec<_> = items
            .map(|item| (item.file_name().into_string().unwrap(), item.path()))
            .filter(|(name, _)| name.starts_with("events."))
            .map(|(name, path)| (name, fs::read(path).unwrap()))
            .collect();
        files.sort();
        files
    };
    let written = files(folder.path());
    assert_eq!(written.len(), 2);
    assert_eq!(written, files(&fixture));
}

#[test]
fn every_metric_of_a_run_is_in_the_list_and_in_the_files() {
    let bench = Bench::of("llama_tied");
    let place = bench.place();
    let config = SftConfig {
        training: settings(lora(Base::Dense)),
        ..SftConfig::default()
    };
    let path = bench.folder.path().join("metrics.jsonl");
    let mut sinks: Vec<Box<dyn EventSink>> = vec![
        Box::new(JsonLines::open(&path).unwrap()),
        Box::new(TensorBoard::open(&bench.folder.path().join("tensorboard")).unwrap()),
    ];
    let rows = rows(8);
    place
        .run(None, |run| {
            let mut run = temper_train::Run {
                device: run.device,
                checkpoint: run.checkpoint,
                base: run.base.clone(),
                adapter: None,
                tokenizer_files: &[],
                folder: run.folder,
                producer: run.producer.clone(),
                clock: run.clock,
                stop: run.stop,
                events: &mut sinks,
            };
            train_sft(&mut run, &config, &rows)
        })
        .0
        .unwrap();
    let names: Vec<&str> = Metric::ALL.iter().map(|metric| metric.name()).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), names.len());
    let lines = lines(&path);
    let kinds: Vec<&str> = lines
        .iter()
        .map(|it| it["event"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "begun",
            "self_test",
            "update",
            "update",
            "snapshot",
            "update",
            "update",
            "snapshot",
            "finished"
        ]
    );
    for line in lines.iter().filter(|line| line["event"] == "update") {
        let metrics = line["metrics"].as_object().unwrap();
        assert!(metrics.keys().all(|name| names.contains(&name.as_str())));
        assert!(metrics["loss"].as_f64().is_some_and(|loss| loss > 0.0));
        // The clock of the test stands still, so there is no rate.
        assert_eq!(metrics["tokens_per_second"], Value::Null);
    }
}

#[test]
fn the_page_has_every_metric_as_the_list_has_it() {
    let page = include_str!("../../../../docs/training.md");
    for metric in Metric::ALL {
        let row = format!(
            "| `{}` | {} | {} | {} |",
            metric.name(),
            metric.unit(),
            metric.denominator(),
            metric.meaning()
        );
        assert!(page.contains(&row), "docs/training.md lacks\n{row}");
    }
}
