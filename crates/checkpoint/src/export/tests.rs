use std::fs;

use super::*;
use crate::{Projection, safetensors::Shards};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn f32_options() -> ExportOptions {
    ExportOptions {
        dtype: SaveDtype::F32,
        ..ExportOptions::default()
    }
}

#[test]
fn a_converted_gguf_file_is_the_same_model() {
    let base = Checkpoint::open(&fixture("models/llama.gguf")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("model");
    let mut seen = Vec::new();
    let files = [("tokenizer.json", "{}".to_owned())];
    let report = convert(&base, &target, f32_options(), &files, |progress| {
        seen.push(progress.n_done);
    })
    .unwrap();
    assert_eq!(seen, Vec::from_iter(1..=report.n_tensors));
    assert!(report.has_tokenizer && report.change.is_none());
    let saved = Checkpoint::open(&target).unwrap();
    let expected = Shards::single(&fixture("models/llama.safetensors")).unwrap();
    for name in saved.names() {
        let (ours, theirs) = (saved.get(name).unwrap(), expected.tensor(&name.to_string()));
        assert_eq!(ours.bytes, theirs.unwrap().unwrap().bytes, "{name}");
    }
    assert_eq!(saved.config().eos_token_ids, base.config().eos_token_ids);
    assert_eq!(saved.config().rope.theta, base.config().rope.theta);
    // A second time there is something in the way.
    let error = convert(&base, &target, f32_options(), &[], |_| {}).unwrap_err();
    assert!(matches!(error, ExportError::Save(SaveError::Exists { .. })));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_merge_is_what_peft_merges() {
    let base = Checkpoint::open(&fixture("models/folder")).unwrap();
    let adapter = Adapter::read(&fixture("adapter/plain"), base.config()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("merged");
    let report = merge(&base, &adapter, &target, f32_options(), &[], |_| {}).unwrap();
    let merged = Checkpoint::open(&target).unwrap();
    let expected = Shards::single(&fixture("adapter/merged.safetensors")).unwrap();
    assert_eq!(expected.names().count(), 8);
    let mut squares = 0.0;
    for name in merged.names() {
        let ours = merged.get(name).unwrap().to_f32().unwrap();
        let before = base.get(name).unwrap().to_f32().unwrap();
        match expected.tensor(&name.to_string()) {
            None => assert_eq!(ours, before, "{name}"),
            Some(theirs) => {
                let theirs = theirs.unwrap().to_f32().unwrap();
                for ((ours, theirs), before) in ours.iter().zip(&theirs).zip(&before) {
                    // One rounding of the sum apart: PEFT sums the ranks in another order.
                    assert!((ours - theirs).abs() <= 1e-6, "{name}: {ours} {theirs}");
                    squares += f64::from(theirs - before).powi(2);
                }
            }
        }
    }
    let change = report.change.unwrap();
    assert!(
        (change.norm - squares.sqrt()).abs() < 1e-4 * change.norm,
        "{change:?}"
    );
    assert!((change.stored_norm - change.norm).abs() < 1e-4 * change.norm);
    let n_adapted = 2 * (64 * 32 + 32 * 32 + 48 * 32 + 32 * 48);
    assert_eq!(change.n_adapted, n_adapted);
    assert!(change.n_changed > n_adapted * 9 / 10);
    // Everything else of the base's own configuration stays.
    let config: Value =
        serde_json::from_slice(&fs::read(target.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["dtype"], "float32");
    assert_eq!(config["initializer_range"], 0.02);
    assert_eq!(merged.config(), base.config());
}

#[test]
fn a_merge_that_changes_nothing_is_refused() {
    let base = Checkpoint::open(&fixture("models/folder")).unwrap();
    let mut adapter = Adapter::read(&fixture("adapter/plain"), base.config()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("merged");
    for pair in adapter.tensors.values_mut() {
        pair.b.fill(1e-7);
    }
    // Too small for bfloat16, and not for float32.
    let error = merge(
        &base,
        &adapter,
        &target,
        ExportOptions::default(),
        &[],
        |_| {},
    )
    .unwrap_err();
    assert!(
        matches!(error, ExportError::Unchanged { norm, .. } if norm > 0.0),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("float32"));
    merge(&base, &adapter, &target, f32_options(), &[], |_| {}).unwrap();
    fs::remove_dir_all(&target).unwrap();
    for pair in adapter.tensors.values_mut() {
        pair.b.fill(0.0);
    }
    let error = merge(&base, &adapter, &target, f32_options(), &[], |_| {}).unwrap_err();
    assert!(error.hint().unwrap().contains("before training"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    adapter.tensors.remove(&(0, Projection::Q));
    if let Some(pair) = adapter.tensors.get_mut(&(0, Projection::V)) {
        pair.b.pop();
    }
    assert!(matches!(
        merge(&base, &adapter, &target, f32_options(), &[], |_| {}),
        Err(ExportError::Adapter(_))
    ));
}

#[test]
fn a_folder_keeps_its_tokenizer_and_its_encoding() {
    let source = tempfile::tempdir().unwrap();
    for item in fs::read_dir(fixture("models/folder")).unwrap() {
        let item = item.unwrap();
        fs::copy(item.path(), source.path().join(item.file_name())).unwrap();
    }
    fs::write(source.path().join("tokenizer.json"), "{\"a\":1}").unwrap();
    fs::write(source.path().join("pytorch_model.bin"), "no").unwrap();
    let base = Checkpoint::open(source.path()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("copy");
    let options = ExportOptions {
        max_shard_bytes: 10_000,
        ..ExportOptions::default()
    };
    let report = convert(&base, &target, options, &[], |_| {}).unwrap();
    assert!(report.has_tokenizer);
    assert_eq!(
        fs::read_to_string(target.join("tokenizer.json")).unwrap(),
        "{\"a\":1}"
    );
    assert!(!target.join("pytorch_model.bin").exists());
    let copy = Checkpoint::open(&target).unwrap();
    assert!(copy.files().len() > 3);
    for name in base.names() {
        assert_eq!(copy.get(name).unwrap().bytes, base.get(name).unwrap().bytes);
    }
    assert_eq!(copy.config(), base.config());
}
