use std::fs;

use serde_json::json;

use super::*;

/// A safetensors file with the given header text and number of data bytes.
fn weights(path: &Path, header: &str, n_data: usize) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + n_data, 7);
    fs::write(path, bytes).unwrap();
}

/// A file with these tensors of two bf16 elements each.
fn shard(path: &Path, names: &[&str]) {
    let entries: serde_json::Map<_, _> = names
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let entry =
                json!({"dtype": "BF16", "shape": [2], "data_offsets": [4 * at, 4 * at + 4]});
            ((*name).to_owned(), entry)
        })
        .collect();
    weights(
        path,
        &serde_json::Value::Object(entries).to_string(),
        4 * names.len(),
    );
}

fn index(folder: &Path, total: u64, map: serde_json::Value) {
    let text = json!({"metadata": {"total_size": total}, "weight_map": map}).to_string();
    fs::write(folder.join("model.safetensors.index.json"), text).unwrap();
}

fn kinds(folder: &Path) -> Vec<String> {
    let audit = audit(
        folder,
        &AuditOptions {
            revision: Some("r".into()),
            n_threads: 2,
        },
    )
    .unwrap();
    let kind = |finding: &Finding| serde_json::to_value(finding).unwrap()["kind"].to_string();
    let mut kinds: Vec<_> = audit
        .findings
        .iter()
        .filter(|finding| !matches!(finding, Finding::Words { .. }))
        .map(|finding| kind(finding).trim_matches('"').to_owned())
        .collect();
    kinds.sort();
    kinds
}

#[test]
fn an_index_that_lies_in_four_ways_gives_four_findings() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    shard(&folder.join("a.safetensors"), &["one", "extra"]);
    shard(&folder.join("b.safetensors"), &["two"]);
    index(
        folder,
        99,
        json!({"one": "a.safetensors", "two": "a.safetensors", "three": "c.safetensors"}),
    );
    // The tensor that the other shard has is one finding, not also one that the index lacks it.
    assert_eq!(
        kinds(folder),
        [
            "shard-missing",
            "shard-not-in-index",
            "tensor-missing",
            "tensor-not-in-index",
            "total-size"
        ]
    );
    // As above with every present file in the index.
    index(
        folder,
        99,
        json!({"one": "a.safetensors", "two": "a.safetensors", "three": "c.safetensors", "four": "b.safetensors"}),
    );
    shard(&folder.join("b.safetensors"), &["two", "four"]);
    assert_eq!(
        kinds(folder),
        [
            "shard-missing",
            "tensor-missing",
            "tensor-not-in-index",
            "total-size"
        ]
    );
}

#[test]
fn a_clean_folder_has_no_finding_and_a_digest_that_follows_each_file() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    shard(&folder.join("a.safetensors"), &["one"]);
    shard(&folder.join("b.safetensors"), &["two", "three"]);
    index(
        folder,
        12,
        json!({"one": "a.safetensors", "two": "b.safetensors", "three": "b.safetensors"}),
    );
    assert_eq!(kinds(folder), [""; 0]);
    let options = |n_threads| AuditOptions {
        revision: None,
        n_threads,
    };
    let first = audit(folder, &options(1)).unwrap();
    assert_eq!(first.digest, audit(folder, &options(8)).unwrap().digest);
    assert_eq!(first.weights.n_tensors, 3);
    assert_eq!(first.weights.n_elements, 6);
    assert_eq!(first.weights.dtypes, BTreeMap::from([("BF16".into(), 6)]));
    for file in &first.files {
        let bytes = fs::read(folder.join(&file.name)).unwrap();
        assert_eq!(file.sha256, Digest::of(&bytes));
        assert_eq!(file.n_bytes, bytes.len() as u64);
    }
    fs::write(folder.join("chat_template.jinja"), "x").unwrap();
    assert_ne!(first.digest, audit(folder, &options(1)).unwrap().digest);
}

#[test]
fn impossible_headers_are_findings_and_cost_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    let entry = |dtype: &str, shape: &str, from: u64, to: u64| {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    let cases: Vec<(String, usize, &[&str])> = vec![
        ("{}".into(), 0, &[]),
        ("{}".into(), 5, &["header"]),
        ("[]".into(), 0, &["header"]),
        (format!(r#"{{"a":{}}}"#, entry("F32", "[1]", 0, 4)), 4, &[]),
        (
            format!(r#"{{"a":{}}}"#, entry("F32", "[2]", 0, 4)),
            4,
            &["range"],
        ),
        (
            format!(r#"{{"a":{}}}"#, entry("F32", "[1]", 0, 8)),
            4,
            &["header", "range"],
        ),
        (
            format!(r#"{{"a":{}}}"#, entry("F32", "[1]", 4, 0)),
            4,
            &["header", "range"],
        ),
        (
            format!(
                r#"{{"a":{}}}"#,
                entry("F32", "[18446744073709551615,9]", 0, 4)
            ),
            4,
            &["range"],
        ),
        (
            format!(r#"{{"a":{}}}"#, entry("Q9", "[1]", 0, 4)),
            4,
            &["range"],
        ),
        (
            format!(
                r#"{{"a":{},"b":{}}}"#,
                entry("F32", "[1]", 0, 4),
                entry("F32", "[1]", 2, 6)
            ),
            6,
            &["range"],
        ),
        (
            format!(
                r#"{{"a":{},"a":{}}}"#,
                entry("F32", "[1]", 0, 4),
                entry("F32", "[1]", 4, 8)
            ),
            8,
            &["header", "range"],
        ),
        (
            format!(
                r#"{{"a":{},"b":{}}}"#,
                entry("F32", "[1]", 0, 4),
                entry("F32", "[1]", 8, 12)
            ),
            12,
            &["range"],
        ),
        (r#"{"a":{"dtype":"F32"}}"#.into(), 0, &["range"]),
    ];
    for (header, n_data, expected) in cases {
        weights(&file, &header, n_data);
        assert_eq!(kinds(folder.path()), expected, "{header}");
    }
    let mut bytes = u64::MAX.to_le_bytes().to_vec();
    bytes.extend(b"{}");
    fs::write(&file, bytes).unwrap();
    assert_eq!(kinds(folder.path()), ["header"]);
    fs::write(&file, b"abc").unwrap();
    assert_eq!(kinds(folder.path()), ["header"]);
}

#[test]
fn a_declared_data_type_is_held_against_the_headers() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    shard(&folder.join("model.safetensors"), &["one", "two"]);
    let kinds_for = |key: &str, dtype: &str| {
        let config = json!({key: dtype, "model_type": "none"});
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
        kinds(folder)
    };
    for same in ["bfloat16", "torch.bfloat16", "a type of its own"] {
        assert_eq!(kinds_for("torch_dtype", same), [""; 0], "{same}");
    }
    for other in ["float32", "float16"] {
        assert_eq!(kinds_for("dtype", other), ["dtype-differs"], "{other}");
    }
    // Half of the elements may be of another type.
    let entry = |dtype: &str, from: u64, to: u64| json!({"dtype": dtype, "shape": [2], "data_offsets": [from, to]});
    let header = json!({"a": entry("BF16", 0, 4), "b": entry("F32", 4, 12)});
    weights(&folder.join("model.safetensors"), &header.to_string(), 12);
    assert_eq!(kinds_for("dtype", "float32"), [""; 0]);
    assert_eq!(kinds_for("dtype", "float16"), ["dtype-differs"]);
}

/// What is long is refused by its length and not repeated in the finding: as a tree of JSON values
/// a header of this kind would take more than thirty times its own length.
#[test]
fn long_headers_and_indices_are_not_taken_apart() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let reasons = || -> Vec<String> {
        let options = AuditOptions {
            revision: Some("r".into()),
            n_threads: 1,
        };
        let findings = audit(folder, &options).unwrap().findings.into_iter();
        findings
            .filter(|finding| !matches!(finding, Finding::Words { .. }))
            .map(|finding| finding.to_string())
            .collect()
    };
    let zeros = format!("[0{}]", ",0".repeat(4 << 20));
    let file = folder.join("model.safetensors");
    for (header, words) in [
        (format!(r#"{{"a":{zeros}}}"#), "its description has"),
        (
            format!(r#"{{"a":{{"dtype":"F32","shape":{zeros},"data_offsets":[0,0]}}}}"#),
            "its description has",
        ),
        (
            format!(r#"{{"{}":0}}"#, "n".repeat(1 << 20)),
            "a name in it has 1048576 bytes",
        ),
        (
            format!("{{{}\"\":0}}", "\"\":0,".repeat(1_000_000)),
            "more than 1000000 entries",
        ),
    ] {
        weights(&file, &header, 0);
        let reasons = reasons();
        assert!(
            reasons.len() == 1 && reasons[0].contains(words) && reasons[0].len() < 300,
            "{words}: {reasons:.300?}"
        );
    }
    // The format's own remarks may be long.
    weights(&file, &format!(r#"{{"__metadata__":{zeros}}}"#), 0);
    assert_eq!(reasons(), [""; 0]);
    std::fs::remove_file(&file).unwrap();
    shard(&folder.join("a.safetensors"), &["one"]);
    let map = format!(r#"{{"weight_map":{{"one":"a.safetensors","two":{zeros}}}}}"#);
    fs::write(folder.join("model.safetensors.index.json"), map).unwrap();
    let reasons = reasons();
    assert!(
        reasons.len() == 1 && reasons[0].contains("no file's name") && reasons[0].len() < 300,
        "{reasons:.300?}"
    );
}

#[test]
fn a_revision_is_taken_from_who_states_it_and_never_guessed() {
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let other = "fedcba9876543210fedcba9876543210fedcba98";
    let root = tempfile::tempdir().unwrap();
    let of = |folder: &Path, argument: Option<&str>| {
        fs::create_dir_all(folder).unwrap();
        shard(&folder.join("model.safetensors"), &["one"]);
        let options = AuditOptions {
            revision: argument.map(str::to_owned),
            n_threads: 1,
        };
        let audit = audit(folder, &options).unwrap();
        let said = audit.findings.iter().find_map(|finding| match finding {
            Finding::RevisionUnknown { .. } => Some("unknown"),
            Finding::RevisionConflict { .. } => Some("conflict"),
            _ => None,
        });
        (audit.revision.value, said)
    };
    let plain = root.path().join("plain");
    assert_eq!(of(&plain, None), (None, Some("unknown")));
    assert_eq!(of(&plain, Some("v1")), (Some("v1".into()), None));
    // A folder that is merely called by a commit is no snapshot.
    assert_eq!(of(&root.path().join(commit), None), (None, Some("unknown")));
    let snapshot = root.path().join("models--a--b/snapshots").join(commit);
    assert_eq!(of(&snapshot, None), (Some(commit.into()), None));
    assert_eq!(of(&snapshot, Some(other)), (None, Some("conflict")));
    let downloaded = root.path().join("downloaded");
    let metadata = downloaded.join(".cache/huggingface/download");
    fs::create_dir_all(&metadata).unwrap();
    fs::write(
        metadata.join("model.safetensors.metadata"),
        format!("{commit}\netag\n1.0\n"),
    )
    .unwrap();
    assert_eq!(of(&downloaded, None), (Some(commit.into()), None));
    fs::write(downloaded.join("REVISION"), format!("{other}\n")).unwrap();
    assert_eq!(of(&downloaded, None), (None, Some("conflict")));
    fs::write(downloaded.join("REVISION"), "not a name\u{7}").unwrap();
    assert_eq!(of(&downloaded, None), (Some(commit.into()), None));
}
