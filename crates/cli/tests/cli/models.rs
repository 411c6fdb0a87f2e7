//! `temper model …`

use std::{fs, path::PathBuf};

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
    workspace.run(&["model", "show", "merged"]).expect(0);
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
