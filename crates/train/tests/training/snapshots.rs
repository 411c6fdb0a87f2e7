//! Which snapshot a run goes on from when some are not whole, and what it says of the others.

use std::fs;

use temper_train::{
    Base, Event, SftConfig, SnapshotError, config::SnapshotSettings, snapshot::Snapshots,
};

use crate::common::{Bench, lora, rows, settings};

fn config() -> SftConfig {
    let mut training = settings(lora(Base::Dense));
    training.epochs = 20;
    training.snapshots = SnapshotSettings {
        every_epoch: false,
        every_updates: Some(10),
    };
    SftConfig {
        training,
        ..SftConfig::default()
    }
}

#[test]
fn a_run_goes_on_from_the_newest_whole_snapshot_and_says_why_not_from_others() {
    let bench = Bench::of("qwen2");
    let place = bench.place();
    let (config, rows) = (config(), rows(8));
    let (whole, _) = place.sft(&config, &rows, None);
    let whole = whole.unwrap();
    let updates: Vec<u64> = whole
        .snapshots
        .iter()
        .map(|it| it.manifest.update)
        .collect();
    assert_eq!(updates, [10, 20, 30, 40]);
    let snapshots = Snapshots::open(&bench.folder.path().join("snapshots")).unwrap();

    // Update 20 without its state, update 30 with half its weights, update 40 without its marker.
    fs::remove_file(snapshots.path(20).join("optimizer.bin")).unwrap();
    let weights = snapshots.path(30).join("adapter/adapter_model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    fs::write(&weights, &bytes[..bytes.len() / 2]).unwrap();
    fs::remove_file(snapshots.path(40).join("complete.json")).unwrap();
    let (resumed, told) = place.sft(&config, &rows, None);
    let passed_over: Vec<String> = told
        .0
        .iter()
        .filter_map(|event| match event {
            Event::PassedOver { snapshot, reason } => {
                let name = snapshot.file_name().unwrap().to_string_lossy().into_owned();
                Some(format!("{name}: {reason}"))
            }
            _ => None,
        })
        .collect();
    let half = bytes.len() / 2;
    assert_eq!(
        passed_over,
        [
            "update-00000040: its writing was not finished".to_owned(),
            format!(
                "update-00000030: its file adapter/adapter_model.safetensors has {half} bytes of {}",
                bytes.len()
            ),
            "update-00000020: its file optimizer.bin is missing".to_owned(),
        ]
    );
    assert_eq!(told.updates().next().unwrap().update, 11);
    // What was not whole has been made again, and is the same.
    assert_eq!(resumed.unwrap(), whole);
}

#[test]
fn damage_of_every_kind_is_seen() {
    let bench = Bench::of("llama_tied");
    let place = bench.place();
    let mut config = config();
    config.training.epochs = 1;
    config.training.snapshots.every_updates = Some(1);
    config.training.optimizer.warmup_updates = 0;
    let (outcome, _) = place.sft(&config, &rows(8), None);
    let last = outcome.unwrap().snapshots.pop().unwrap();
    let snapshots = Snapshots::open(&bench.folder.path().join("snapshots")).unwrap();
    let mut names: Vec<String> = last.manifest.files.keys().cloned().collect();
    names.extend(["manifest.json".to_owned(), "complete.json".to_owned()]);
    for name in names {
        let path = last.path.join(&name);
        let bytes = fs::read(&path).unwrap();
        let mut flipped = bytes.clone();
        let middle = bytes.len() / 2;
        flipped[middle] ^= 1;
        for damaged in [
            Some(flipped),
            Some(bytes[..middle].to_vec()),
            Some(Vec::new()),
            None,
        ] {
            match &damaged {
                Some(damaged) => fs::write(&path, damaged).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let found = snapshots.newest().unwrap();
            assert_eq!(found.snapshot.unwrap().manifest.update, 1, "{name}");
            assert_eq!(found.passed_over.len(), 1, "{name}");
            fs::write(&path, &bytes).unwrap();
        }
    }
    let found = snapshots.newest().unwrap();
    assert_eq!(found.snapshot.as_ref(), Some(&last));
    // A whole snapshot is never written again.
    let optimizer = last.optimizer().unwrap();
    let again = snapshots.write(last.manifest.clone(), &optimizer, |_| Ok(()));
    assert!(matches!(again, Err(SnapshotError::Exists { .. })));
    // Under another name it is not what the name says.
    let (from, to) = (&last.path, snapshots.path(7));
    fs::rename(from, &to).unwrap();
    let found = snapshots.newest().unwrap();
    assert!(found.passed_over[0].1.contains("snapshot of update 2"));
    assert_eq!(found.snapshot.unwrap().manifest.update, 1);
}
