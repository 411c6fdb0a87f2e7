//! `temper model …`

use std::{fs, path::PathBuf};

use serde_json::{Value, json};

use crate::support::Workspace;

fn fixture(name: &str) -> String {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../checkpoint/tests/fixtures")
        .join(name)
        .display()
        .to_string()
}

#[test]
fn a_model_is_shown_converted_and_shown_again() {
    let workspace = Workspace::new(0);
    let gguf = fixture("models/llama.gguf");
    let shown = workspace.run(&["model", "show", &gguf]).expect(0);
    for words in [
        "llama, gguf",
        "Q8_0 ",
        "1 layers, width 64, 4 heads of 16",
        "theta 500000",
    ] {
        assert!(shown.stdout.contains(words), "{words}: {}", shown.stdout);
    }
    // The fixture's vocabulary is none that text can be split into; the rest is written all the same.
    let converted = workspace
        .run(&[
            "model", "convert", &gguf, "--output", "out", "--dtype", "float32",
        ])
        .expect(0);
    assert_eq!(converted.stdout, "out\n");
    assert!(
        converted.stderr.contains("tokenizer"),
        "{}",
        converted.stderr
    );
    let before = workspace
        .run(&["model", "show", &gguf, "--format", "json"])
        .json();
    let after = workspace
        .run(&["model", "show", "out", "--format", "json", "--sha256"])
        .expect(0)
        .json();
    for key in [
        "architecture",
        "n_parameters",
        "n_layers",
        "vocab_size",
        "eos_token_ids",
    ] {
        assert_eq!(before[key], after[key], "{key}");
    }
    assert_eq!(after["rope_identity"]["rope_type"], "llama3");
    assert_eq!(after["encodings"]["F32"], after["n_parameters"]);
    assert_eq!(after["files"][0]["sha256"].as_str().unwrap().len(), 64);
    // Nothing is written over what is there.
    let again = workspace
        .run(&["model", "convert", &gguf, "--output", "out"])
        .expect(1);
    assert!(
        again.stderr.contains("it exists already"),
        "{}",
        again.stderr
    );
}

#[test]
fn an_adapter_is_merged_and_must_change_something() {
    let workspace = Workspace::new(0);
    let base = fixture("models/folder");
    let merged = workspace
        .run(&[
            "model",
            "merge",
            &base,
            "--adapter",
            &fixture("adapter/plain"),
            "--output",
            "merged",
            "--format",
            "json",
        ])
        .expect(0)
        .json();
    assert!(merged["change"]["stored_norm"].as_f64().unwrap() > 1.0);
    let of = |merged: &serde_json::Value, name: &str| merged["logits"][name].as_f64().unwrap();
    assert!(of(&merged, "difference") < 0.02 * of(&merged, "movement"));
    workspace.run(&["model", "show", "merged"]).expect(0);
    // Over another form of the base it is another model, and still the adapter's.
    let over = |base_format: &str, output: &str| {
        let adapter = fixture("adapter/plain");
        let arguments = [
            "model",
            "merge",
            &base,
            "--adapter",
            &adapter,
            "--output",
            output,
            "--base-format",
            base_format,
            "--dtype",
            "float32",
            "--format",
            "json",
        ];
        let merged = workspace.run(&arguments).expect(0).json();
        assert!(of(&merged, "difference") < 1e-3 * of(&merged, "movement"));
        fs::read(workspace.path(output).join("model.safetensors")).unwrap()
    };
    assert_ne!(over("dense", "over-dense"), over("nf4-double", "over-nf4"));
    let other = workspace
        .run(&[
            "model",
            "merge",
            &fixture("models/llama.gguf"),
            "--adapter",
            &fixture("adapter/plain"),
            "--output",
            "other",
        ])
        .expect(3);
    assert!(
        other.stderr.contains("hint: use the base model"),
        "{}",
        other.stderr
    );
    assert!(!workspace.path("other").exists());
}

#[test]
fn models_that_cannot_be_had_or_used_are_named() {
    let workspace = Workspace::new(0);
    fs::write(
        workspace.path("bad.gguf"),
        b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0",
    )
    .unwrap();
    fs::create_dir(workspace.path("short")).unwrap();
    for name in ["config.json", "model-00001-of-00003.safetensors"] {
        fs::copy(
            fixture(&format!("models/folder/{name}")),
            workspace.path(&format!("short/{}", name.replace("-00001-of-00003", ""))),
        )
        .unwrap();
    }
    for (arguments, code, words) in [
        (["model", "show", "nowhere"], 3, "no such file or folder"),
        (["model", "show", "bad.gguf"], 3, "tensors are announced"),
        (["model", "fetch", "org/name"], 4, "offline"),
        (["model", "fetch", "default"], 4, "offline"),
        (["model", "fetch", "short"], 3, "is missing"),
        (["model", "show", "short"], 7, "is missing"),
    ] {
        let mut arguments = arguments.to_vec();
        arguments.push("--offline");
        let ran = workspace.run(&arguments).expect(code);
        let text = format!("{}{}", ran.stdout, ran.stderr);
        assert!(text.contains(words), "{arguments:?}: {text}");
        assert!(
            code == 7
                || ran.stderr.contains("hint: ")
                || words.contains("announced")
                || words.contains("missing"),
            "{text}"
        );
    }
}

/// A safetensors file with these tensors of two bf16 elements each.
fn shard(path: &std::path::Path, names: &[&str]) {
    let entries: serde_json::Map<_, _> = names
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let range = [4 * at, 4 * at + 4];
            let entry = json!({"dtype": "BF16", "shape": [2], "data_offsets": range});
            ((*name).to_owned(), entry)
        })
        .collect();
    let header = Value::Object(entries).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + 4 * names.len(), 7);
    fs::write(path, bytes).unwrap();
}

fn index(folder: &std::path::Path, total_size: u64, map: Value) {
    let index = json!({"metadata": {"total_size": total_size}, "weight_map": map});
    fs::write(
        folder.join("model.safetensors.index.json"),
        index.to_string(),
    )
    .unwrap();
}

/// The kinds of an audit's findings by gravity.
fn findings(audit: &Value, gravity: &str) -> Vec<String> {
    const WARNINGS: [&str; 7] = [
        "dtype-differs",
        "revision-unknown",
        "no-end-of-turn",
        "no-template",
        "drops-thinking",
        "prefix-property",
        "words",
    ];
    let kinds = audit["findings"].as_array().unwrap().iter();
    let mut kinds: Vec<_> = kinds
        .map(|finding| finding["kind"].as_str().unwrap().to_owned())
        .filter(|kind| WARNINGS.contains(&kind.as_str()) == (gravity == "warning"))
        .collect();
    kinds.sort();
    kinds
}

#[test]
fn an_index_that_lies_is_told_from_a_true_one() {
    let workspace = Workspace::new(0);
    let folder = workspace.path("model");
    fs::create_dir(&folder).unwrap();
    let (a, b) = (
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    );
    shard(&folder.join(a), &["one", "extra"]);
    shard(&folder.join(b), &["two", "four"]);
    let run = |code| {
        workspace
            .run(&["model", "audit", "model", "--format", "json"])
            .expect(code)
            .json()
    };
    let absent = "model-00003-of-00002.safetensors";
    index(
        &folder,
        99,
        json!({"one": a, "two": a, "three": absent, "four": b}),
    );
    let lies = run(7);
    assert_eq!(
        findings(&lies, "error"),
        [
            "shard-missing",
            "tensor-missing",
            "tensor-not-in-index",
            "total-size"
        ]
    );
    let all = lies["findings"].to_string();
    for words in [
        "\"tensor\":\"two\"",
        "\"tensor\":\"extra\"",
        "\"file\":\"model-00003-of-00002.safetensors\"",
    ] {
        assert!(all.contains(words), "{words}: {all}");
    }
    index(
        &folder,
        16,
        json!({"one": a, "extra": a, "two": b, "four": b}),
    );
    let clean = run(0);
    assert_eq!(findings(&clean, "error"), [""; 0]);
    assert_eq!(clean["weights"]["n_tensors"], 4);
    assert_eq!(clean["revision"]["value"], Value::Null);
    let table = workspace.run(&["model", "audit", "model", "--revision", "v1"]);
    assert!(table.expect(0).stdout.contains("v1 (by argument)"));
}

#[test]
fn a_folder_without_weights_is_audited_for_what_is_there() {
    let workspace = Workspace::new(0);
    let folder = workspace.path("qwen3");
    fs::create_dir(&folder).unwrap();
    let chat = PathBuf::from(fixture("chat"));
    fs::copy(
        chat.join("words/tokenizer.json"),
        folder.join("tokenizer.json"),
    )
    .unwrap();
    fs::copy(
        chat.join("templates/qwen3.jinja"),
        folder.join("chat_template.jinja"),
    )
    .unwrap();
    let words = temper_checkpoint::tokenizer::Tokenizer::from_folder(&folder).unwrap();
    let end = words.token_id("<|im_end|>").unwrap();
    fs::write(
        folder.join("tokenizer_config.json"),
        json!({"eos_token": "<|im_end|>"}).to_string(),
    )
    .unwrap();
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096,
        "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rope_theta": 1000000,
        "max_position_embeddings": 65536, "tie_word_embeddings": false, "rope_scaling": null,
        "torch_dtype": "bfloat16", "eos_token_id": end,
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let audit = workspace
        .run(&["model", "audit", "qwen3", "--format", "json"])
        .expect(7)
        .json();
    assert_eq!(findings(&audit, "error"), ["no-weights"]);
    assert_eq!(
        findings(&audit, "warning"),
        ["drops-thinking", "prefix-property", "revision-unknown"]
    );
    assert_eq!(audit["architecture"], "qwen3");
    assert_eq!(audit["declared_dtype"], "bfloat16");
    assert_eq!(audit["max_position_embeddings"], 65536);
    assert_eq!(audit["rope_identity"]["rope_type"], "default");
    assert_eq!(audit["words"]["end_of_turn"], "<|im_end|>");
    assert_eq!(audit["files"].as_array().unwrap().len(), 4);
}

#[test]
fn a_gguf_file_is_audited_by_its_metadata() {
    let workspace = Workspace::new(0);
    let gguf = fixture("models/llama.gguf");
    let audit = workspace
        .run(&["model", "audit", &gguf, "--format", "json"])
        .expect(0)
        .json();
    assert_eq!(audit["architecture"], "llama");
    assert_eq!(audit["rope_identity"]["rope_type"], "llama3");
    assert_eq!(audit["rope_identity"]["rope_theta"], 500000.0);
    assert!(audit["max_position_embeddings"].is_u64());
    assert_eq!(audit["declared_dtype"], Value::Null);
}
