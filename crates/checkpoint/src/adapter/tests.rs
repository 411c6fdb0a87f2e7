use std::fs;

use super::*;
use crate::Checkpoint;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn model() -> ModelConfig {
    Checkpoint::open(&fixture("models/folder"))
        .unwrap()
        .config()
        .clone()
}

fn config_of(folder: &Path) -> Map<String, Value> {
    serde_json::from_slice(&fs::read(folder.join(CONFIG_NAME)).unwrap()).unwrap()
}

#[test]
fn adapters_that_peft_saved() {
    let plain = Adapter::read(&fixture("adapter/plain"), &model()).unwrap();
    assert_eq!(
        (plain.rank, plain.alpha, plain.rank_stabilised),
        (4, 6.0, false)
    );
    assert_eq!(plain.scale(), 1.5);
    assert_eq!(plain.base_model.as_deref(), Some("tiny/base"));
    assert_eq!(
        Vec::from_iter(plain.targets()),
        [
            Projection::Q,
            Projection::V,
            Projection::Gate,
            Projection::Down
        ]
    );
    assert_eq!(plain.tensors.len(), 2 * 4);
    let pair = &plain.tensors[&(1, Projection::Down)];
    assert_eq!((pair.a.len(), pair.b.len()), (4 * 48, 32 * 4));
    let stabilised = Adapter::read(&fixture("adapter/stabilised"), &model()).unwrap();
    assert_eq!(stabilised.tensors.len(), 2 * 7);
    assert!((stabilised.scale() - 3.0 / 2f64.sqrt()).abs() < 1e-12);
}

/// What is written says the same to PEFT as what PEFT wrote: the same tensors byte for byte and
/// the same settings under the same keys.
#[test]
fn what_is_written_is_what_peft_writes() {
    for name in ["plain", "stabilised"] {
        let original = fixture("adapter").join(name);
        let adapter = Adapter::read(&original, &model()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("adapter");
        adapter.write(&target, &model()).unwrap();
        assert_eq!(Adapter::read(&target, &model()).unwrap(), adapter);
        let ours = SafetensorsFile::open(&target.join(WEIGHTS_NAME)).unwrap();
        let theirs = SafetensorsFile::open(&original.join(WEIGHTS_NAME)).unwrap();
        assert_eq!(Vec::from_iter(ours.names()), Vec::from_iter(theirs.names()));
        assert_eq!(ours.metadata(), theirs.metadata());
        for name in ours.names() {
            let (ours, theirs) = (ours.tensor(name), theirs.tensor(name));
            let (ours, theirs) = (ours.unwrap().unwrap(), theirs.unwrap().unwrap());
            assert_eq!(ours.shape, theirs.shape);
            assert_eq!(ours.encoding, theirs.encoding);
            assert_eq!(ours.bytes, theirs.bytes);
        }
        let (ours, theirs) = (config_of(&target), config_of(&original));
        for (key, value) in &ours {
            if key == "target_modules" {
                let sorted = |value: &Value| {
                    let mut names: Vec<String> = serde_json::from_value(value.clone()).unwrap();
                    names.sort();
                    names
                };
                assert_eq!(sorted(value), sorted(&theirs[key]));
            } else {
                assert_eq!(value, &theirs[key], "{name} {key}");
            }
        }
    }
}

/// `check.py` beside the fixture loads it into PEFT and compares logits; this says that it is still
/// what would be written.
#[test]
fn what_is_written_is_what_was_loaded_into_peft() {
    let adapter = Adapter::read(&fixture("adapter/plain"), &model()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("adapter");
    adapter.write(&target, &model()).unwrap();
    for name in [CONFIG_NAME, WEIGHTS_NAME] {
        let ours = fs::read(target.join(name)).unwrap();
        assert_eq!(
            ours,
            fs::read(fixture("adapter/written").join(name)).unwrap(),
            "{name}"
        );
    }
}

#[test]
fn what_would_change_results_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(
        fixture("adapter/plain").join(WEIGHTS_NAME),
        folder.path().join(WEIGHTS_NAME),
    )
    .unwrap();
    let original = config_of(&fixture("adapter/plain"));
    let error = |key: &str, value: Value| {
        let mut config = original.clone();
        config.insert(key.into(), value);
        let bytes = serde_json::to_vec(&config).unwrap();
        fs::write(folder.path().join(CONFIG_NAME), bytes).unwrap();
        Adapter::read(folder.path(), &model())
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    error("lora_dropout", json!(0.1)).unwrap();
    error("lora_alpha", json!(6.5)).unwrap();
    for (key, value) in [
        ("peft_type", json!("IA3")),
        ("bias", json!("all")),
        ("use_dora", json!(true)),
        ("fan_in_fan_out", json!(true)),
        ("rank_pattern", json!({ "q_proj": 8 })),
        ("alpha_pattern", json!({ "q_proj": 8 })),
        ("modules_to_save", json!(["lm_head"])),
        ("trainable_token_indices", json!([1])),
        ("init_lora_weights", json!("pissa_niter_4")),
        ("r", json!(0)),
        ("r", json!(1u64 << 40)),
        ("r", json!("4")),
        ("lora_alpha", json!("x")),
        ("use_rslora", json!(1)),
    ] {
        let error = error(key, value).unwrap_err();
        assert!(error.contains(key), "{error}");
    }
    // Another rank than the tensors have.
    let error = error("r", json!(8)).unwrap_err();
    assert!(
        error.contains("expected [8,") || error.contains(", 8]"),
        "{error}"
    );
}

#[test]
fn an_adapter_of_another_model_is_refused() {
    let mut other = model();
    other.n_layers = 1;
    let error = Adapter::read(&fixture("adapter/plain"), &other).unwrap_err();
    assert!(
        error.to_string().contains("layer 1, and the model has 1"),
        "{error}"
    );
    assert!(error.hint().is_some());
    let mut other = model();
    other.intermediate_size = 64;
    let error = Adapter::read(&fixture("adapter/plain"), &other).unwrap_err();
    assert!(error.to_string().contains("expected"), "{error}");
    let mut adapter = Adapter::read(&fixture("adapter/plain"), &model()).unwrap();
    if let Some(pair) = adapter.tensors.get_mut(&(0, Projection::Q)) {
        pair.a.pop();
    }
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("adapter");
    assert!(adapter.write(&target, &model()).is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn half_an_adapter_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(
        fixture("adapter/plain").join(CONFIG_NAME),
        folder.path().join(CONFIG_NAME),
    )
    .unwrap();
    let write = |plan: &[(&str, &[usize], f32)]| {
        let tensors: Vec<TensorPlan> = plan
            .iter()
            .map(|(name, shape, _)| TensorPlan {
                name: format!("base_model.model.model.{name}"),
                shape: shape.to_vec(),
            })
            .collect();
        let path = folder.path().join(WEIGHTS_NAME);
        write_file::<SaveError>(
            &path,
            &tensors,
            SaveDtype::F32,
            &BTreeMap::new(),
            |at, sink| {
                let n = plan[at].1.iter().product();
                sink.write(&vec![plan[at].2; n])
            },
        )
        .unwrap();
        Adapter::read(folder.path(), &model())
            .unwrap_err()
            .to_string()
    };
    let a = (
        "layers.0.self_attn.q_proj.lora_A.weight",
        [4, 32].as_slice(),
        0.0,
    );
    assert!(write(&[a]).contains("without the other"));
    assert!(write(&[]).contains("no tensors"));
    assert!(write(&[("embed_tokens.lora_embedding_A", &[4, 4], 0.0)]).contains("no LoRA factor"));
    assert!(write(&[(a.0, a.1, f32::NAN)]).contains("holds NaN"));
}
