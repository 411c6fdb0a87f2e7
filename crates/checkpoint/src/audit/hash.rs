//! Which files belong to a checkpoint, and their hashes.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde::Serialize;
use temper_core::Digest;

use super::AuditError;
use crate::{file::FileError, packaged::sha256, safetensors::INDEX_NAME};

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// `config.json`
    Config,
    /// `generation_config.json`
    GenerationConfig,
    /// The vocabulary and how text is split.
    Tokenizer,
    /// `chat_template.jinja`, `chat_template.json`
    ChatTemplate,
    /// The index of the shards.
    WeightIndex,
    /// Weights.
    Weights,
    /// An adapter's configuration.
    Adapter,
    /// Code that a loader may run.
    Code,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileRecord {
    /// Path below the folder.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Length in bytes.
    pub n_bytes: u64,
    /// SHA-256.
    pub sha256: Digest,
}

/// The folder of a checkpoint and the names in it that can change a result, sorted.
pub(super) fn files_of(path: &Path) -> Result<(PathBuf, Vec<(String, Role)>), AuditError> {
    let no_model = |reason: &str| AuditError::NoModel {
        path: path.to_owned(),
        reason: reason.to_owned(),
    };
    if path.is_file() {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| no_model("its name is no text"))?;
        if !name.ends_with(".gguf") {
            return Err(no_model("a file must be .gguf; name the folder"));
        }
        let folder = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_owned();
        return Ok((folder, vec![(name.to_owned(), Role::Weights)]));
    }
    if !path.is_dir() {
        return Err(no_model("there is no such file or folder"));
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(FileError::on("read", path))? {
        let entry = entry.map_err(FileError::on("read", path))?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        // Links count as what they lead to: a hub's cache consists of them.
        if let Some(role) = role(&name)
            && entry.path().is_file()
        {
            names.push((name, role));
        }
    }
    if names.is_empty() {
        return Err(no_model(
            "it holds neither configuration, tokenizer nor weights",
        ));
    }
    names.sort();
    Ok((path.to_owned(), names))
}

fn role(name: &str) -> Option<Role> {
    const TOKENIZER: [&str; 10] = [
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "spiece.model",
        "sentencepiece.bpe.model",
    ];
    Some(match name {
        "config.json" => Role::Config,
        "generation_config.json" => Role::GenerationConfig,
        "chat_template.jinja" | "chat_template.json" => Role::ChatTemplate,
        "adapter_config.json" => Role::Adapter,
        INDEX_NAME | "pytorch_model.bin.index.json" => Role::WeightIndex,
        _ if TOKENIZER.contains(&name) => Role::Tokenizer,
        _ if name.ends_with(".safetensors") || name.ends_with(".gguf") => Role::Weights,
        _ if name.starts_with("pytorch_model") && name.ends_with(".bin") => Role::Weights,
        _ if name.ends_with(".py") => Role::Code,
        _ => return None,
    })
}

/// Hashes files, the largest first, each by one thread.
pub(super) fn hash_all(
    folder: &Path,
    names: &[(String, Role)],
    n_threads: usize,
) -> Result<Vec<FileRecord>, AuditError> {
    let mut order = Vec::with_capacity(names.len());
    for (index, (name, _)) in names.iter().enumerate() {
        let path = folder.join(name);
        let metadata = fs::metadata(&path).map_err(FileError::on("read", &path))?;
        order.push((metadata.len(), index));
    }
    order.sort_by_key(|(n_bytes, index)| (std::cmp::Reverse(*n_bytes), *index));
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(names.len()));
    std::thread::scope(|scope| {
        for _ in 0..n_threads.clamp(1, names.len().max(1)) {
            scope.spawn(|| {
                while let Some((n_bytes, index)) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (name, role) = &names[*index];
                    let record = sha256(&folder.join(name)).map(|sha256| FileRecord {
                        name: name.clone(),
                        role: *role,
                        n_bytes: *n_bytes,
                        sha256,
                    });
                    done.lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .push(record);
                }
            });
        }
    });
    let done = done
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut records = done.into_iter().collect::<Result<Vec<_>, _>>()?;
    records.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(records)
}
