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
        ("rank_pattern", json!({ ".*_proj": 8 })),
        ("rank_pattern", json!({ "q_proj": 0 })),
        ("rank_pattern", json!(["q_proj"])),
        ("alpha_pattern", json!({ "^model": 8 })),
        ("alpha_pattern", json!({ "q_proj": "8" })),
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

/// A folder with one pair of ones in bfloat16 for each projection of a layer, of rank 4 or as
/// named.
fn ones(config: Value, ranks: &[(Projection, usize)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(CONFIG_NAME), config.to_string()).unwrap();
    let mut plan = Vec::new();
    for &(projection, rank) in ranks {
        let [out, input] = model().projection_shape(projection);
        for (is_b, shape) in [(false, [rank, input]), (true, [out, rank])] {
            plan.push(TensorPlan {
                name: tensor_name(0, projection, is_b),
                shape: shape.to_vec(),
            });
        }
    }
    write_file::<SaveError>(
        &folder.path().join(WEIGHTS_NAME),
        &plan,
        SaveDtype::Bf16,
        &BTreeMap::new(),
        |at, sink| sink.write(&vec![1.0; plan[at].shape.iter().product()]),
    )
    .unwrap();
    folder
}

/// `scale * B A` of a pair of ones is its scale times its rank, everywhere.
fn changes(config: Value, ranks: &[(Projection, usize)]) -> Vec<f64> {
    let folder = ones(config, ranks);
    let adapter = Adapter::read(folder.path(), &model()).unwrap();
    adapter.check(&model()).unwrap();
    adapter
        .tensors
        .values()
        .map(|pair| {
            let columns = pair.a.len() / adapter.rank;
            let product: f64 = (0..adapter.rank)
                .map(|at| f64::from(pair.b[at]) * f64::from(pair.a[at * columns]))
                .sum();
            adapter.scale() * product
        })
        .collect()
}

#[test]
fn ranks_and_alphas_by_pattern_change_their_modules_only() {
    use Projection::{K, Q, V};
    let config = |stabilised: bool, more: Value| {
        let mut config = json!({
            "peft_type": "LORA", "r": 4, "lora_alpha": 4, "use_rslora": stabilised,
            "target_modules": ["q_proj", "k_proj", "v_proj"],
        });
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    };
    let four = [(Q, 4), (K, 4)];
    let alpha = json!({ "alpha_pattern": { "k_proj": 8 } });
    // alpha / sqrt(4) * 4 and alpha / 4 * 4.
    assert_eq!(changes(config(true, alpha.clone()), &four), [8.0, 16.0]);
    assert_eq!(changes(config(false, alpha), &four), [4.0, 8.0]);
    let longer = json!({ "alpha_pattern": { "layers.1.self_attn.k_proj": 8, "attn.k_proj": 9,
        "layers.0.self_attn.q_proj": 2, "q_proj": 3 } });
    assert_eq!(changes(config(false, longer), &four), [2.0, 4.0]);
    let ranks = [(Q, 2), (K, 4), (V, 8)];
    let rank =
        json!({ "rank_pattern": { "q_proj": 2, "v_proj": 8 }, "alpha_pattern": { "v_proj": 16 } });
    assert_eq!(
        changes(config(false, rank.clone()), &ranks),
        [4.0, 4.0, 16.0]
    );
    let stabilised: Vec<f64> = [(4.0, 2.0), (4.0, 4.0), (16.0, 8.0)]
        .map(|(alpha, rank): (f64, f64)| alpha / rank.sqrt() * rank)
        .to_vec();
    for (got, expected) in changes(config(true, rank), &ranks).iter().zip(stabilised) {
        assert!((got - expected).abs() < 1e-5, "{got} {expected}");
    }
    // A rank that its pattern does not say.
    let folder = ones(
        config(false, json!({ "rank_pattern": { "q_proj": 2 } })),
        &four,
    );
    assert!(Adapter::read(folder.path(), &model()).is_err());
}

/// An adapter that trains the output head, of tied embeddings or not, has no place in the engine.
#[test]
fn a_trained_head_or_embedding_is_refused_by_name() {
    let config = json!({ "peft_type": "LORA", "r": 4, "lora_alpha": 4 });
    let folder = ones(config.clone(), &[(Projection::Q, 4)]);
    for name in ["lm_head", "model.embed_tokens"] {
        for tensor in [
            format!("base_model.model.{name}.lora_A.weight"),
            format!("base_model.model.{name}.weight"),
        ] {
            let plan = [TensorPlan {
                name: tensor.clone(),
                shape: vec![4, 32],
            }];
            write_file::<SaveError>(
                &folder.path().join(WEIGHTS_NAME),
                &plan,
                SaveDtype::F32,
                &BTreeMap::new(),
                |_, sink| sink.write(&[1.0; 128]),
            )
            .unwrap();
            let error = Adapter::read(folder.path(), &model()).unwrap_err();
            assert!(error.to_string().contains(&tensor), "{error}");
        }
    }
}
