use std::fs;

use super::*;
use crate::{Encoding, names::Projection};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/models")
        .join(name)
}

fn copy_folder(to: &Path) {
    for item in fs::read_dir(fixture("folder")).unwrap() {
        let item = item.unwrap();
        fs::copy(item.path(), to.join(item.file_name())).unwrap();
    }
}

#[test]
fn a_folder_that_transformers_saved() {
    let checkpoint = Checkpoint::open(&fixture("folder")).unwrap();
    assert_eq!(checkpoint.format(), Format::Safetensors);
    assert_eq!(checkpoint.files().len(), 3);
    assert_eq!(checkpoint.findings(), []);
    // generation_config.json names two ends, config.json one.
    assert_eq!(checkpoint.config().eos_token_ids, [2, 3]);
    assert_eq!(checkpoint.names().count(), 2 * 11 + 3);
    let stored: u64 = checkpoint.encodings().values().sum();
    assert_eq!(stored, checkpoint.config().n_parameters());
    let view = checkpoint
        .tensor("model.layers.1.self_attn.k_proj.weight")
        .unwrap();
    assert_eq!(
        (view.shape.as_slice(), view.encoding),
        ([32, 32].as_slice(), Encoding::Bf16)
    );
    for (name, shape) in expected_tensors(checkpoint.config()) {
        assert_eq!(checkpoint.get(name).unwrap().shape, shape, "{name}");
    }
    assert!(matches!(
        checkpoint.tensor("model.layers.2.mlp.up_proj.weight"),
        Err(CheckpointError::NoTensor { .. })
    ));
}

/// Every tensor, quantised and permuted ones included, equals transformers' own reading of the
/// file, bit for bit.
#[test]
fn gguf_tensors_are_what_transformers_reads() {
    for name in ["llama", "qwen2"] {
        let checkpoint = Checkpoint::open(&fixture(&format!("{name}.gguf"))).unwrap();
        let expected = Shards::single(&fixture(&format!("{name}.safetensors"))).unwrap();
        assert_eq!(
            checkpoint.names().count(),
            expected.names().count(),
            "{name}"
        );
        for tensor in checkpoint.names() {
            let ours = checkpoint.get(tensor).unwrap();
            let theirs = expected.tensor(&tensor.to_string()).unwrap().unwrap();
            assert_eq!(ours.shape, theirs.shape, "{name} {tensor}");
            let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            assert_eq!(
                bits(ours.to_f32().unwrap()),
                bits(theirs.to_f32().unwrap()),
                "{name} {tensor}"
            );
        }
    }
}

#[test]
fn names_are_read_as_they_are_written() {
    let checkpoint = Checkpoint::open(&fixture("folder")).unwrap();
    let mut names: Vec<TensorName> = checkpoint.config().tensor_names().collect();
    names.push(TensorName::Bias(17, Projection::V));
    for name in names {
        assert_eq!(name.to_string().parse(), Ok(name));
    }
    for name in [
        "",
        "model.layers.01.mlp.up_proj.weight",
        "model.layers.+1.mlp.up_proj.weight",
        "model.layers.1.mlp.up_proj",
        "model.layers.1.q_proj.weight",
    ] {
        assert!(name.parse::<TensorName>().is_err(), "{name}");
    }
}

#[test]
fn what_is_missing_or_of_another_shape_is_told() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(folder.path());
    let config = folder.path().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    let with = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        fs::write(&config, text.replace(from, to)).unwrap();
        Checkpoint::open(folder.path())
    };
    let error = with("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3").unwrap_err();
    let CheckpointError::Tensors { findings, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(findings.len(), 11);
    assert!(findings.iter().all(|finding| matches!(finding, TensorFinding::Missing { name } if name.starts_with("model.layers.2."))));

    let error = with("\"intermediate_size\": 48", "\"intermediate_size\": 64").unwrap_err();
    let text_of_error = error.to_string();
    assert!(
        text_of_error.contains("has shape [48, 32], expected [64, 32]"),
        "{text_of_error}"
    );
    assert!(
        text_of_error.contains("and 3 more findings"),
        "{text_of_error}"
    );

    // A tied head needs no tensor; one that is there is ignored, as elsewhere.
    let checkpoint = with(
        "\"tie_word_embeddings\": false",
        "\"tie_word_embeddings\": true",
    )
    .unwrap();
    assert_eq!(
        checkpoint.findings(),
        [TensorFinding::Extra {
            name: "lm_head.weight".into(),
            is_used_elsewhere: false
        }]
    );
}

#[test]
fn what_is_no_model_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let reason = |path: &Path| Checkpoint::open(path).unwrap_err().to_string();
    assert!(reason(&folder.path().join("absent")).contains("does not exist"));
    assert!(reason(folder.path()).contains("neither config.json nor a .gguf"));
    fs::write(folder.path().join("a.gguf"), b"GGUF").unwrap();
    assert!(reason(folder.path()).contains("announced"));
    fs::write(folder.path().join("b.gguf"), b"GGUF").unwrap();
    assert!(reason(folder.path()).contains("several"));
    fs::copy(
        fixture("folder/config.json"),
        folder.path().join("config.json"),
    )
    .unwrap();
    assert!(reason(folder.path()).contains("neither model.safetensors nor"));
    fs::create_dir(folder.path().join("config.json.d")).unwrap();
    fs::remove_file(folder.path().join("config.json")).unwrap();
    fs::write(
        folder.path().join("config.json"),
        "{\"model_type\":\"bert\"}",
    )
    .unwrap();
    assert!(reason(folder.path()).contains("its architecture is bert"));
}

#[test]
fn a_truncated_shard_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(folder.path());
    let shard = folder.path().join("model-00002-of-00003.safetensors");
    let bytes = fs::read(&shard).unwrap();
    fs::write(&shard, &bytes[..bytes.len() - 1]).unwrap();
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(error.to_string().contains("truncated"), "{error}");
    assert!(error.hint().is_some());
    fs::remove_file(&shard).unwrap();
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(
        error.to_string().contains("model-00002-of-00003"),
        "{error}"
    );
}
