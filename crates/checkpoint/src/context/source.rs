//! Where a plan's facts come from: the configuration of a checkpoint, the size of its weights, and
//! what a trainer or a server says of its rotary embedding.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::{RopeIdentity, rope_identity, rotary_settings};
use crate::{
    config::{ConfigError, ModelConfig},
    file::{FileError, read_small},
    safetensors::{INDEX_NAME, SINGLE_NAME},
    weights::{Checkpoint, CheckpointError},
};

const MAX_FILE_BYTES: u64 = 32 << 20;

/// How the size of the weights is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WeightSource {
    /// The files' lengths.
    Files,
    /// `total_size` of the index; the shards are not here.
    Index,
    /// The shapes of the configuration, two bytes an element.
    Configuration,
    /// The user.
    Stated,
}

/// Why a plan's facts cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The model cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A GGUF file's configuration has no words in a `config.json`.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file is no JSON object.
    #[error("read {}: it is no JSON object: {reason}", .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file says nothing of a rotary embedding.
    #[error("read {}: {reason}", .path.display())]
    NoRope {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl SourceError {
    /// What the user can do.
    pub fn hint(&self) -> Option<String> {
        match self {
            SourceError::Checkpoint(error) => error.hint(),
            SourceError::NoRope { .. } => Some(
                "give a config.json, a `rope_identity` as `temper context plan --format json` prints it, or that whole output"
                    .into(),
            ),
            _ => None,
        }
    }
}

/// The `config.json` of a folder, of a file of that kind, or what a GGUF file's metadata would be as
/// one. No weights are needed for a folder.
pub fn read_config(path: &Path) -> Result<Value, SourceError> {
    let in_folder = path.join("config.json");
    if in_folder.is_file() {
        return json(&in_folder);
    }
    if path
        .extension()
        .is_some_and(|extension| extension == "json")
    {
        return json(path);
    }
    let checkpoint = Checkpoint::inspect(path)?;
    Ok(checkpoint.config().to_json("bfloat16")?)
}

/// The bytes of a model's weights as they are stored, or as they would be: by the files, else by the
/// index, else by the configuration's shapes. `None` when none of these says it.
pub fn weight_bytes(path: &Path, config: &Value) -> Option<(u64, WeightSource)> {
    if let Ok(checkpoint) = Checkpoint::inspect(path) {
        let files = checkpoint.files();
        return Some((files.iter().map(|(_, n)| n).sum(), WeightSource::Files));
    }
    let folder = if path.is_dir() { path } else { path.parent()? };
    if let Ok(metadata) = folder.join(SINGLE_NAME).metadata() {
        return Some((metadata.len(), WeightSource::Files));
    }
    if let Ok(index) = json(&folder.join(INDEX_NAME))
        && let Some(total) = index
            .pointer("/metadata/total_size")
            .and_then(Value::as_u64)
    {
        return Some((total, WeightSource::Index));
    }
    let config = ModelConfig::from_json(config.to_string().as_bytes()).ok()?;
    Some((config.n_parameters() * 2, WeightSource::Configuration))
}

/// What a trainer or a server says of its rotary embedding: a `config.json`, a [`RopeIdentity`], or
/// an object that holds one as `rope_identity`.
pub fn read_identity(path: &Path) -> Result<RopeIdentity, SourceError> {
    let no_rope = |reason: String| SourceError::NoRope {
        path: path.to_owned(),
        reason,
    };
    let value = match path.is_dir() {
        true => read_config(path)?,
        false => json(path)?,
    };
    let identity = value.get("rope_identity").or_else(|| {
        let is_identity = value.get("rope_type").is_some();
        is_identity.then_some(&value)
    });
    if let Some(identity) = identity {
        return serde_json::from_value(identity.clone())
            .map_err(|error| no_rope(error.to_string()));
    }
    let is_config = [
        "max_position_embeddings",
        "rope_theta",
        "text_config",
        "model_type",
    ]
    .iter()
    .any(|key| value.get(key).is_some())
        || rotary_settings(&value).is_some();
    if !is_config {
        return Err(no_rope(
            "it is neither a model's configuration nor an identity of a rotary embedding".into(),
        ));
    }
    Ok(rope_identity(&value))
}

fn json(path: &Path) -> Result<Value, SourceError> {
    let syntax = |reason: String| SourceError::Syntax {
        path: path.to_owned(),
        reason,
    };
    let bytes = read_small(path, MAX_FILE_BYTES)?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| syntax(error.to_string()))?;
    match value.is_object() {
        true => Ok(value),
        false => Err(syntax("it is another kind of value".into())),
    }
}
