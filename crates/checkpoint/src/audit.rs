//! What a checkpoint is, exactly: the SHA-256 of every file that can change a result, and what in
//! them contradicts itself.
//!
//! An audit reads headers and configuration and hashes files; it lays out no tensor and runs
//! nothing. It does not say that a checkpoint is the one that somebody meant: it says which bytes
//! these are, so that two people can know whether they speak of the same. A revision that no file
//! states stays unknown.

mod hash;
mod revision;
mod shards;
#[cfg(test)]
mod tests;
mod words;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::Serialize;
use serde_json::Value;
use temper_core::Digest;

use crate::{
    context::{RopeIdentity, rope_identity},
    file::{FileError, read_small},
    gguf::{Gguf, GgufError},
    weights::{Checkpoint, TensorFinding},
};

pub use hash::{FileRecord, Role};
pub use revision::{Claim, Revision};
pub use words::Words;

/// The version of [`Audit`]'s written form.
pub const SCHEMA_VERSION: u32 = 1;

const MAX_SIDE_FILE_BYTES: u64 = 32 << 20;
/// Configurations become a tree of JSON values, which takes many times their length.
const MAX_CONFIG_BYTES: u64 = 4 << 20;

/// How an audit is made.
#[derive(Clone, Debug)]
pub struct AuditOptions {
    /// The revision as the user states it.
    pub revision: Option<String>,
    /// Threads that hash; one file is hashed by one thread.
    pub n_threads: usize,
}

/// The record of one checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Audit {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Where it lies.
    pub path: PathBuf,
    /// Over the names, lengths and hashes of all files below, so that equal digests mean equal
    /// checkpoints wherever they lie.
    pub digest: Digest,
    /// Which revision it is, and who says so.
    pub revision: Revision,
    /// Every file that can change a result, in order of names.
    pub files: Vec<FileRecord>,
    /// The weights.
    pub weights: WeightsSummary,
    /// `model_type` of the configuration, where there is one.
    pub architecture: Option<String>,
    /// `dtype` or `torch_dtype` of the configuration.
    pub declared_dtype: Option<String>,
    /// `max_position_embeddings` of the configuration.
    pub max_position_embeddings: Option<u64>,
    /// What the configuration says of the rotary embedding, as it stands there.
    pub rope: BTreeMap<String, Value>,
    /// What that computes; `None` without a configuration.
    pub rope_identity: Option<RopeIdentity>,
    /// Tokens and template.
    pub words: Words,
    /// What is wrong or worth knowing, errors first.
    pub findings: Vec<Finding>,
}

/// What the headers of the weights say.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WeightsSummary {
    /// `safetensors`, `gguf`, or `none`.
    pub format: String,
    /// Files with weights that are there.
    pub n_files: usize,
    /// Tensors in them.
    pub n_tensors: usize,
    /// Elements of all tensors; a tied head that is stored counts.
    pub n_elements: u64,
    /// Bytes of all tensors.
    pub n_bytes: u64,
    /// Elements by data type.
    pub dtypes: BTreeMap<String, u64>,
}

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The checkpoint cannot be used as it stands, or means different things to different tools.
    Error,
    /// It can be used by who knows.
    Warning,
}

/// One thing that is wrong or worth knowing.
#[derive(Clone, Debug, PartialEq, Serialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Finding {
    /// The folder holds no weights.
    #[error("there are no weights: {looked_for}")]
    NoWeights {
        /// What was looked for.
        looked_for: String,
    },
    /// A file that must be there cannot be read.
    #[error("{file} cannot be read: {reason}")]
    Unreadable {
        /// The file.
        file: String,
        /// Why.
        reason: String,
    },
    /// A weight file's header is impossible.
    #[error("the header of {file} is impossible: {reason}")]
    Header {
        /// The file.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// A tensor's bytes are not where or as long as its header says.
    #[error("{tensor} in {file}: {reason}")]
    Range {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// What is wrong.
        reason: String,
    },
    /// The index names a file that is not there.
    #[error("{file} is not there; the index maps {n_tensors} tensors to it, {tensors:?}")]
    ShardMissing {
        /// The file.
        file: String,
        /// Tensors that the index maps to it, the first few.
        tensors: Vec<String>,
        /// How many.
        n_tensors: usize,
    },
    /// The index maps a tensor to a file that does not have it.
    #[error("{tensor} is not in {file}, where the index has it; it is in {found_in:?}")]
    TensorMissing {
        /// The tensor.
        tensor: String,
        /// The file of the index.
        file: String,
        /// Files that do have it.
        found_in: Vec<String>,
    },
    /// A file holds a tensor that the index does not list.
    #[error("{tensor} is in {file} and not in the index")]
    TensorNotInIndex {
        /// The tensor.
        tensor: String,
        /// The file.
        file: String,
    },
    /// A tensor is in several files.
    #[error("{tensor} is in several files: {files:?}")]
    TensorTwice {
        /// The tensor.
        tensor: String,
        /// The files.
        files: Vec<String>,
    },
    /// A file looks like a shard and the index does not name it.
    #[error("{file} is there and not in the index")]
    ShardNotInIndex {
        /// The file.
        file: String,
    },
    /// The index declares another size than the tensors have.
    #[error(
        "the index declares {declared} bytes of tensors, the files hold {found} (all files there: {complete})"
    )]
    TotalSize {
        /// In the index, in bytes.
        declared: u64,
        /// Of the tensors that are there, in bytes.
        found: u64,
        /// Whether every file of the index is there.
        complete: bool,
    },
    /// A tensor that the configuration asks for is not there, or has another shape.
    #[error("{reason}")]
    ModelTensor {
        /// What is wrong.
        reason: String,
    },
    /// Most elements have another type than the configuration declares, as after a conversion that
    /// left the configuration as it was, or in a quantised checkpoint.
    #[error(
        "the configuration declares {declared}, and {n_other} of {n_elements} elements have another type"
    )]
    DtypeDiffers {
        /// In the configuration.
        declared: String,
        /// Elements of other types.
        n_other: u64,
        /// All elements.
        n_elements: u64,
    },
    /// Sources of the revision contradict each other.
    #[error("the revision is stated differently: {claims:?}")]
    RevisionConflict {
        /// Every claim as `source: revision`.
        claims: Vec<String>,
    },
    /// Nothing says which revision this is.
    #[error("the revision is unknown: {looked_at}")]
    RevisionUnknown {
        /// What was looked at.
        looked_at: String,
    },
    /// Files name different tokens for one role.
    #[error("the {role} token differs between files: {ids:?}")]
    SpecialToken {
        /// `bos`, `eos`, `pad`.
        role: String,
        /// Ids by file.
        ids: BTreeMap<String, Vec<u32>>,
    },
    /// A role names a token that the vocabulary does not have.
    #[error("{file} names {token:?} as {role} token, which the vocabulary does not have")]
    UnknownToken {
        /// The file.
        file: String,
        /// The role.
        role: String,
        /// The token.
        token: String,
    },
    /// What the template writes behind a reply does not end generation.
    #[error(
        "a reply ends with {token:?} ({id}), which is none of the ids that end generation, {ends:?}"
    )]
    EndOfTurn {
        /// The token behind a reply.
        token: String,
        /// Its id.
        id: u32,
        /// Ids that end generation.
        ends: Vec<u32>,
    },
    /// The template writes nothing behind a reply that a model could learn to end with.
    #[error("no control token follows a reply in the chat template, but {follows:?}")]
    NoEndOfTurn {
        /// What follows the reply.
        follows: String,
    },
    /// The tokenizer has ids for which the model has no row.
    #[error("the tokenizer's ids go up to {highest_id} and the model has {vocab_size} rows")]
    TokenOutsideVocabulary {
        /// Highest id of the tokenizer.
        highest_id: u32,
        /// Rows of the embedding.
        vocab_size: u64,
    },
    /// There is no chat template.
    #[error("there is no chat template: {looked_at}")]
    NoTemplate {
        /// What was looked at.
        looked_at: String,
    },
    /// Two files hold different chat templates.
    #[error("the chat template differs between {files:?}")]
    TemplateDiffers {
        /// The files.
        files: Vec<String>,
    },
    /// The template leaves out the thinking of earlier turns.
    #[error(
        "the chat template leaves the thinking of earlier turns out, so training on a whole conversation is not what the model sees: {reason}"
    )]
    DropsThinking {
        /// What changes.
        reason: String,
    },
    /// A longer conversation does not begin with the shorter one's tokens.
    #[error("the chat template rewrites earlier turns: {reason}")]
    PrefixProperty {
        /// Where.
        reason: String,
    },
    /// The tokenizer or the template cannot be used here.
    #[error("the tokenizer or template could not be checked: {reason}")]
    Words {
        /// Why.
        reason: String,
    },
}

impl Finding {
    /// How grave it is.
    pub fn severity(&self) -> Severity {
        match self {
            Finding::DtypeDiffers { .. }
            | Finding::RevisionUnknown { .. }
            | Finding::NoEndOfTurn { .. }
            | Finding::NoTemplate { .. }
            | Finding::DropsThinking { .. }
            | Finding::PrefixProperty { .. }
            | Finding::Words { .. } => Severity::Warning,
            _ => Severity::Error,
        }
    }
}

/// Why there is no audit.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// There is nothing at the path.
    #[error("audit {}: it holds no model: {reason}", .path.display())]
    NoModel {
        /// The path.
        path: PathBuf,
        /// What was looked for.
        reason: String,
    },
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A GGUF file cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
}

/// Audits a folder or a GGUF file. What is wrong with the checkpoint is a finding; an error is only
/// that there is none, or that its files cannot be read at all.
pub fn audit(path: &Path, options: &AuditOptions) -> Result<Audit, AuditError> {
    let mut findings = Vec::new();
    let (folder, names) = hash::files_of(path)?;
    let files = hash::hash_all(&folder, &names, options.n_threads)?;
    let (config, weights) = if path.is_file() {
        let gguf = Gguf::open(path)?;
        (gguf_config(&gguf), gguf_summary(&gguf))
    } else {
        let config = json(&folder, "config.json", &mut findings);
        (config, shards::check(&folder, &mut findings))
    };
    if findings.is_empty()
        && let Ok(checkpoint) = Checkpoint::inspect(path)
    {
        let fatal = checkpoint
            .findings()
            .into_iter()
            .filter(TensorFinding::is_fatal);
        findings.extend(fatal.map(|finding| Finding::ModelTensor {
            reason: finding.to_string(),
        }));
    }
    let text = |key: &str| config.get(key).and_then(Value::as_str).map(str::to_owned);
    let declared_dtype = text("dtype").or_else(|| text("torch_dtype"));
    findings.extend(
        declared_dtype
            .as_deref()
            .and_then(|declared| dtype_differs(declared, &weights)),
    );
    let revision = revision::find(path, &folder, &names, options.revision.as_deref());
    findings.extend(revision.finding());
    let words = words::check(path, &config, &mut findings);
    findings.sort_by_key(Finding::severity);
    let digest = Digest::of_value(
        &files
            .iter()
            .map(|file| (&file.name, file.n_bytes, &file.sha256))
            .collect::<Vec<_>>(),
    );
    Ok(Audit {
        schema_version: SCHEMA_VERSION,
        path: path.to_owned(),
        digest,
        revision,
        files,
        weights,
        architecture: text("model_type"),
        declared_dtype,
        max_position_embeddings: config
            .get("max_position_embeddings")
            .and_then(Value::as_u64),
        rope: ["rope_theta", "rope_scaling", "rope_parameters"]
            .into_iter()
            .filter_map(|key| Some((key.to_owned(), config.get(key)?.clone())))
            .collect(),
        rope_identity: (!config.is_null()).then(|| rope_identity(&config)),
        words,
        findings,
    })
}

impl Audit {
    /// Whether something is wrong.
    pub fn has_errors(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.severity() == Severity::Error)
    }
}

/// Holds a declared data type against the headers. A type that no header has a name for says
/// nothing, and a few tensors of another one, such as norms, are usual.
fn dtype_differs(declared: &str, weights: &WeightsSummary) -> Option<Finding> {
    let name = match declared.trim_start_matches("torch.") {
        "bfloat16" => "BF16",
        "float16" => "F16",
        "float32" => "F32",
        "float64" => "F64",
        _ => return None,
    };
    let n_elements = weights.n_elements;
    let n_other = n_elements.saturating_sub(weights.dtypes.get(name).copied().unwrap_or(0));
    (n_other > n_elements / 2).then(|| Finding::DtypeDiffers {
        declared: declared.to_owned(),
        n_other,
        n_elements,
    })
}

/// What a GGUF file's metadata would be as a `config.json`; null for an architecture that the engine
/// does not have. Its data types are those of its tensors, so it declares none.
fn gguf_config(gguf: &Gguf) -> Value {
    let config = gguf
        .config()
        .ok()
        .and_then(|config| config.to_json("").ok());
    let mut config = config.unwrap_or_default();
    if let Some(map) = config.as_object_mut() {
        map.retain(|key, _| key != "dtype" && key != "torch_dtype");
    }
    config
}

fn gguf_summary(gguf: &Gguf) -> WeightsSummary {
    let mut summary = WeightsSummary {
        format: "gguf".into(),
        n_files: 1,
        ..WeightsSummary::default()
    };
    for (dtype, n) in gguf.encodings() {
        summary.n_elements += n;
        summary.dtypes.insert(dtype.to_owned(), n);
    }
    summary.n_tensors = gguf.tensor_names().count();
    summary
}

/// A JSON object of the folder; null where there is no such file.
fn json(folder: &Path, name: &str, findings: &mut Vec<Finding>) -> Value {
    let path = folder.join(name);
    if !path.is_file() {
        return Value::Null;
    }
    let parsed = read_small(&path, MAX_CONFIG_BYTES)
        .map_err(|error| error.to_string())
        .and_then(|bytes| {
            serde_json::from_slice(&bytes).map_err(|error: serde_json::Error| error.to_string())
        });
    parsed.unwrap_or_else(|reason| {
        findings.push(Finding::Unreadable {
            file: name.to_owned(),
            reason,
        });
        Value::Null
    })
}
