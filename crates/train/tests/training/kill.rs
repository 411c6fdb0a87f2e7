//! Kills a training process while it saves, thirty times, and lets it go on each time.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use temper_model::random::mix;
use temper_model_fixtures::{device, fixture};
use temper_train::{
    Base, Event, Outcome, SftConfig, config::SnapshotSettings, snapshot::Snapshots,
};

use crate::common::{Place, lora, rows, settings};

const FOLDER: &str = "TEMPER_TEST_TRAIN_INTO";
const N_KILLS: u64 = 30;

/// So many updates that no child gets to the end.
fn config() -> SftConfig {
    let mut training = settings(lora(Base::Dense));
    training.epochs = 2000;
    training.rows_per_update = 2;
    training.snapshots = SnapshotSettings {
        every_epoch: false,
        every_updates: Some(1),
    };
    SftConfig {
        training,
        ..SftConfig::default()
    }
}

fn train(folder: &Path, stop_after: Option<u64>, told: bool) -> Outcome {
    let (fixture, device) = (fixture("llama_tied"), device());
    let place = Place {
        device: &device,
        checkpoint: &fixture.checkpoint,
        adapter: None,
        folder,
    };
    let (config, rows) = (config(), rows(4));
    let (outcome, _) = place.run(stop_after, |run| {
        let inner = &mut *run.events;
        let mut events = |at: f64, event: &Event| {
            if told && matches!(event, Event::Update(_)) {
                let mut out = std::io::stdout().lock();
                writeln!(out, "update")?;
                out.flush()?;
            }
            inner.record(at, event)
        };
        let mut run = temper_train::Run {
            device: run.device,
            checkpoint: run.checkpoint,
            base: run.base.clone(),
            adapter: run.adapter,
            tokenizer_files: run.tokenizer_files,
            folder: run.folder,
            producer: run.producer.clone(),
            clock: run.clock,
            stop: run.stop,
            events: &mut events,
        };
        temper_train::train_sft(&mut run, &config, &rows)
    });
    outcome.unwrap()
}

/// What the child of the next test does; by itself it has nothing to do.
#[test]
fn a_child_that_trains_until_it_is_killed() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        train(&PathBuf::from(folder), None, true);
    }
}

#[test]
fn a_run_that_is_killed_while_saving_ends_as_one_that_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut newest = 0;
    let mut n_torn = 0;
    for round in 0..N_KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "kill::a_child_that_trains_until_it_is_killed",
                "--nocapture",
            ])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(
            lines
                .map_while(Result::ok)
                .any(|line| line.contains("update"))
        );
        // Updates of this model take less time than their snapshots.
        std::thread::sleep(Duration::from_micros(mix(round) % 12_000));
        child.kill().unwrap();
        child.wait().unwrap();

        let saved = folder.path().join("snapshots");
        let n_unfinished = fs::read_dir(&saved)
            .unwrap()
            .map(|item| item.unwrap().path())
            .filter(|path| !path.join("complete.json").exists())
            .count();
        n_torn += usize::from(n_unfinished > 0);
        let found = Snapshots::open(&saved).unwrap().newest().unwrap();
        let update = found.snapshot.map_or(0, |it| it.manifest.update);
        assert!(update >= newest, "{update} after {newest}");
        newest = update;
        for (path, reason) in found.passed_over {
            assert!(
                reason.contains("not finished"),
                "{}: {reason}",
                path.display()
            );
        }
    }
    assert!(n_torn >= 5, "{n_torn} of {N_KILLS} kills came while saving");
    let stop_after = 3;
    let end = train(folder.path(), Some(stop_after), false);
    assert_eq!(end.update, newest + stop_after);
    let other = tempfile::tempdir().unwrap();
    let whole = train(other.path(), Some(end.update), false);
    let last = |outcome: &Outcome| outcome.snapshots.last().unwrap().manifest.clone();
    assert_eq!(last(&end), last(&whole));
}
