//! `temper model show [MODEL]`: says what a model is and whether it can be used.

use serde_json::{Value, json};
use temper_checkpoint::{
    Checkpoint, Format, TensorFinding, context::RopeIdentity, packaged::sha256,
};

use super::{args::ShowArgs, locate::locate};
use crate::{error::CliError, exit_code, output, places::Places};

/// Prints the model; findings that keep it from being used are an exit code of their own.
pub fn run(args: &ShowArgs, places: &Places) -> Result<u8, CliError> {
    let located = locate(&args.source.model, &args.source.hub, places)?;
    let checkpoint = Checkpoint::inspect(&located.path)?;
    let findings = checkpoint.findings();
    let mut files = Vec::new();
    for (path, n_bytes) in checkpoint.files() {
        let mut file = json!({ "path": path, "n_bytes": n_bytes });
        if args.sha256 {
            let digest = sha256(path).map_err(|error| CliError::new(exit_code::FAILURE, error))?;
            file["sha256"] = json!(digest);
        }
        files.push(file);
    }
    let config = checkpoint.config();
    let rope = RopeIdentity::of(&config.rope, config.head_dim);
    let value = json!({
        "path": located.path,
        "origin": located.origin,
        "format": match checkpoint.format() {
            Format::Safetensors => "safetensors",
            Format::Gguf => "gguf",
        },
        "architecture": config.architecture.name(),
        "n_parameters": config.n_parameters(),
        "encodings": checkpoint.encodings(),
        "files": files,
        "hidden_size": config.hidden_size,
        "n_layers": config.n_layers,
        "n_heads": config.n_heads,
        "n_kv_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_word_embeddings,
        "max_position_embeddings": config.max_position_embeddings,
        "rope_identity": rope,
        "bos_token_id": config.bos_token_id,
        "eos_token_ids": config.eos_token_ids,
        "tokenizer": tokenizer(&checkpoint),
        "findings": findings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "is_usable": !findings.iter().any(TensorFinding::is_fatal),
    });
    output::data(&args.format.format.one(&value, || table(&value, &rope)));
    Ok(if findings.iter().any(TensorFinding::is_fatal) {
        exit_code::FINDINGS
    } else {
        exit_code::SUCCESS
    })
}

fn tokenizer(checkpoint: &Checkpoint) -> Value {
    match checkpoint.tokenizer() {
        Ok(tokenizer) => json!({
            "n_tokens": tokenizer.n_tokens(),
            "has_chat_template": !tokenizer.chat_templates().is_empty(),
        }),
        Err(error) => json!({ "error": error.to_string() }),
    }
}

fn table(value: &Value, rope: &RopeIdentity) -> String {
    let mut text = String::new();
    let mut field = |name: &str, value: String| {
        text.push_str(&format!("{name:<14} {}\n", output::printable(&value)));
    };
    let string = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = |key: &str| value[key].as_u64().unwrap_or_default();
    field("model", string(&value["path"]));
    field(
        "architecture",
        format!(
            "{}, {}",
            string(&value["architecture"]),
            string(&value["format"])
        ),
    );
    field("parameters", thousands(number("n_parameters")));
    field("encodings", encodings(&value["encodings"]));
    let mut n_bytes = 0;
    for file in value["files"].as_array().into_iter().flatten() {
        n_bytes += file["n_bytes"].as_u64().unwrap_or_default();
    }
    field("size", format!("{:.1} MB", n_bytes as f64 / 1e6));
    field(
        "shape",
        format!(
            "{} layers, width {}, {} heads of {}, {} key-value heads, feed-forward {}",
            number("n_layers"),
            number("hidden_size"),
            number("n_heads"),
            number("head_dim"),
            number("n_kv_heads"),
            number("intermediate_size")
        ),
    );
    field(
        "vocabulary",
        format!(
            "{} rows, output head {}",
            thousands(number("vocab_size")),
            if value["tie_word_embeddings"] == true {
                "tied to the embedding"
            } else {
                "of its own"
            }
        ),
    );
    field(
        "context",
        format!("{} tokens", thousands(number("max_position_embeddings"))),
    );
    field("rope", rope.to_string());
    field(
        "ends",
        format!(
            "{} (begin {})",
            value["eos_token_ids"], value["bos_token_id"]
        ),
    );
    field(
        "tokenizer",
        match value["tokenizer"]["error"].as_str() {
            Some(error) => format!("cannot be used: failed to {error}"),
            None => format!(
                "{} tokens, {} chat template",
                thousands(value["tokenizer"]["n_tokens"].as_u64().unwrap_or_default()),
                if value["tokenizer"]["has_chat_template"] == true {
                    "with a"
                } else {
                    "without a"
                }
            ),
        },
    );
    for file in value["files"].as_array().into_iter().flatten() {
        if let Some(digest) = file["sha256"].as_str() {
            field("sha256", format!("{digest}  {}", string(&file["path"])));
        }
    }
    for finding in value["findings"].as_array().into_iter().flatten() {
        field("finding", string(finding));
    }
    text
}

/// Encodings by their share of all elements, the largest first.
fn encodings(value: &Value) -> String {
    let mut parts: Vec<(&String, u64)> = value
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, n)| (name, n.as_u64().unwrap_or_default()))
        .collect();
    parts.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let total: u64 = parts.iter().map(|(_, n)| n).sum();
    let parts: Vec<String> = parts
        .into_iter()
        .map(|(name, n)| format!("{name} {:.1}%", 100.0 * n as f64 / total.max(1) as f64))
        .collect();
    parts.join(", ")
}

fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
