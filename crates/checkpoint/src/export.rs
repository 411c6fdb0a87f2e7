//! Checkpoints written anew as Hugging Face folders: converted from GGUF, or with an adapter
//! merged in.
//!
//! Tensors stream: the largest thing in memory is some rows of one of them. Merging computes
//! `W + scale * (B A)` in f32 from the weights as they decode, which are those the adapter was
//! trained against, and rounds once at the end.

#[cfg(test)]
mod tests;

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use half::bf16;
use serde_json::{Map, Value, json};

use crate::{
    adapter::{Adapter, AdapterError, LoraPair},
    config::ConfigError,
    file::{FileError, read_small},
    names::TensorName,
    save::{NewFolder, SaveDtype, SaveError, TensorPlan, write_weights},
    tensor::DecodeError,
    weights::{Checkpoint, CheckpointError, Format},
};

/// Files that are taken over from a Hugging Face folder as they are.
const TOKENIZER_FILES: [&str; 8] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
];
const GENERATION_NAME: &str = "generation_config.json";
const MAX_SMALL_FILE_BYTES: u64 = 64 << 20;
/// Elements of the rows that are in memory at a time, as f32.
const PIECE_ELEMENTS: usize = 1 << 20;

/// How a folder is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportOptions {
    /// The elements.
    pub dtype: SaveDtype,
    /// Larger weights are sharded.
    pub max_shard_bytes: u64,
}

impl Default for ExportOptions {
    /// bfloat16 in shards of five gigabytes, as transformers saves by default.
    fn default() -> Self {
        ExportOptions {
            dtype: SaveDtype::Bf16,
            max_shard_bytes: 5_000_000_000,
        }
    }
}

/// Progress of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportProgress {
    /// Tensors that are written.
    pub n_done: usize,
    /// Tensors in all.
    pub n_tensors: usize,
}

/// What was written.
#[derive(Clone, Debug, PartialEq)]
pub struct ExportReport {
    /// The folder.
    pub folder: PathBuf,
    /// Number of tensors.
    pub n_tensors: usize,
    /// Parameters of the model.
    pub n_parameters: u64,
    /// Whether tokenizer files are among what was written.
    pub has_tokenizer: bool,
    /// How far the weights moved, when an adapter was merged.
    pub change: Option<Change>,
}

/// How a merge changed the weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Euclidean norm of `scale * B A` over all projections.
    pub norm: f64,
    /// The same after rounding: the distance between what is stored and the base stored alike. A
    /// small update can vanish in the rounding.
    pub stored_norm: f64,
    /// Elements whose stored value differs from the base's.
    pub n_changed: u64,
    /// Elements of the adapted projections.
    pub n_adapted: u64,
}

/// Why an export failed. Nothing remains of it then.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The base cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A tensor does not fit its bytes.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The adapter does not fit the model.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// The result cannot be written.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// A file beside the weights cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The format has no words for the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// `config.json` of the base is not what it was when it was opened.
    #[error("read {}: {reason}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The adapter leaves every stored element as it was.
    #[error(
        "merge the adapter: its change has norm {norm:.3e}, and no element of {n_adapted} differs after rounding to {dtype}"
    )]
    Unchanged {
        /// Norm of the change before rounding.
        norm: f64,
        /// Elements of the adapted projections.
        n_adapted: u64,
        /// The stored type.
        dtype: &'static str,
    },
}

impl ExportError {
    /// What the user can do, where there is something.
    pub fn hint(&self) -> Option<String> {
        match self {
            ExportError::Checkpoint(error) => error.hint(),
            ExportError::Unchanged { norm, dtype, .. } if *norm > 0.0 && *dtype == "bfloat16" => {
                Some("the update is too small for bfloat16; write float32, or serve the adapter beside its base".to_owned())
            }
            ExportError::Unchanged { .. } => {
                Some("the adapter is as it was before training: its B factors are zero".to_owned())
            }
            ExportError::Save(SaveError::Exists { .. }) => {
                Some("name a folder that does not exist yet".to_owned())
            }
            _ => None,
        }
    }
}

/// Writes a checkpoint as a Hugging Face folder at `target`, which must not exist.
///
/// `tokenizer_files` are written beside the weights, by name; a folder's own tokenizer files are
/// taken over without being named. `on_progress` is called after each tensor.
pub fn convert(
    checkpoint: &Checkpoint,
    target: &Path,
    options: ExportOptions,
    tokenizer_files: &[(&str, String)],
    on_progress: impl FnMut(ExportProgress),
) -> Result<ExportReport, ExportError> {
    rewrite(
        checkpoint,
        target,
        options,
        tokenizer_files,
        |name, rows, values| decoded(checkpoint, name, rows, values),
        on_progress,
    )
}

/// As [`convert`], with an adapter merged into the weights.
///
/// # Errors
/// [`ExportError::Unchanged`] when no stored element would differ from the base: such a folder
/// would pass for a trained model and is not one.
pub fn merge(
    checkpoint: &Checkpoint,
    adapter: &Adapter,
    target: &Path,
    options: ExportOptions,
    tokenizer_files: &[(&str, String)],
    on_progress: impl FnMut(ExportProgress),
) -> Result<ExportReport, ExportError> {
    merge_over(
        checkpoint,
        adapter,
        target,
        options,
        tokenizer_files,
        |name, rows, values| decoded(checkpoint, name, rows, values),
        on_progress,
    )
}

/// As [`merge`], over a base that `base` writes as [`rewrite`]'s `rows` does: what an adapter was
/// trained against, where that is not what the checkpoint holds.
///
/// # Errors
/// Those of `base`, and as [`merge`].
pub fn merge_over<E: From<ExportError>>(
    checkpoint: &Checkpoint,
    adapter: &Adapter,
    target: &Path,
    options: ExportOptions,
    tokenizer_files: &[(&str, String)],
    mut base: impl FnMut(TensorName, Range<usize>, &mut [f32]) -> Result<(), E>,
    on_progress: impl FnMut(ExportProgress),
) -> Result<ExportReport, E> {
    adapter
        .check(checkpoint.config())
        .map_err(ExportError::from)?;
    let mut change = Change {
        norm: 0.0,
        stored_norm: 0.0,
        n_changed: 0,
        n_adapted: 0,
    };
    let mut squares = [0.0; 2];
    let mut delta = Vec::new();
    let scale = adapter.scale() as f32;
    let rows = |name: TensorName, rows: Range<usize>, values: &mut [f32]| {
        base(name, rows.clone(), values)?;
        let TensorName::Weight(layer, projection) = name else {
            return Ok(());
        };
        let Some(pair) = adapter.tensors.get(&(layer, projection)) else {
            return Ok(());
        };
        let columns = values.len() / rows.len().max(1);
        delta.resize(columns, 0.0);
        for (row, values) in rows.zip(values.chunks_mut(columns.max(1))) {
            row_change(pair, adapter.rank, row, &mut delta);
            for (value, delta) in values.iter_mut().zip(&delta) {
                let merged = *value + scale * delta;
                let moved = f64::from(scale * delta);
                let stored = f64::from(stored(merged, options.dtype))
                    - f64::from(stored(*value, options.dtype));
                squares[0] += moved * moved;
                squares[1] += stored * stored;
                change.n_changed += u64::from(stored != 0.0);
                *value = merged;
            }
            change.n_adapted += columns as u64;
        }
        Ok::<_, E>(())
    };
    let begun = begin(checkpoint, target, options)?;
    let n_tensors = write_tensors(checkpoint, &begun.0, options, rows, on_progress)?;
    [change.norm, change.stored_norm] = squares.map(f64::sqrt);
    if change.n_changed == 0 {
        return Err(ExportError::Unchanged {
            norm: change.norm,
            n_adapted: change.n_adapted,
            dtype: options.dtype.config_name(),
        }
        .into());
    }
    let report = finish(checkpoint, begun, target, tokenizer_files, n_tensors)?;
    Ok(ExportReport {
        change: Some(change),
        ..report
    })
}

/// Writes a folder as [`convert`] does, with other weights: `rows` writes rows of a tensor, f32
/// `[rows.len(), columns]`, and is asked for each row once, in order.
///
/// Configuration and tokenizer are the checkpoint's, so the tensors are its tensors in name and
/// shape.
///
/// # Errors
/// Those of `rows`, and as [`convert`].
pub fn rewrite<E: From<ExportError>>(
    checkpoint: &Checkpoint,
    target: &Path,
    options: ExportOptions,
    tokenizer_files: &[(&str, String)],
    rows: impl FnMut(TensorName, Range<usize>, &mut [f32]) -> Result<(), E>,
    on_progress: impl FnMut(ExportProgress),
) -> Result<ExportReport, E> {
    let begun = begin(checkpoint, target, options)?;
    let n_tensors = write_tensors(checkpoint, &begun.0, options, rows, on_progress)?;
    Ok(finish(
        checkpoint,
        begun,
        target,
        tokenizer_files,
        n_tensors,
    )?)
}

/// Rows of a tensor as the checkpoint decodes them.
fn decoded(
    checkpoint: &Checkpoint,
    name: TensorName,
    rows: Range<usize>,
    values: &mut [f32],
) -> Result<(), ExportError> {
    Ok(checkpoint.get(name)?.to_f32_into(rows, values)?)
}

/// The folder in the making and its configuration, which is made first because it may not be
/// possible.
fn begin(
    checkpoint: &Checkpoint,
    target: &Path,
    options: ExportOptions,
) -> Result<(NewFolder, Value), ExportError> {
    let config = config_json(checkpoint, options.dtype)?;
    Ok((NewFolder::create(target)?, config))
}

/// Writes all tensors, some rows at a time; returns how many there are.
fn write_tensors<E: From<ExportError>>(
    checkpoint: &Checkpoint,
    folder: &NewFolder,
    options: ExportOptions,
    mut rows: impl FnMut(TensorName, Range<usize>, &mut [f32]) -> Result<(), E>,
    mut on_progress: impl FnMut(ExportProgress),
) -> Result<usize, E> {
    let config = checkpoint.config();
    let names: Vec<TensorName> = config.tensor_names().collect();
    let plan: Vec<TensorPlan> = names
        .iter()
        .map(|name| TensorPlan {
            name: name.to_string(),
            shape: config.shape_of(*name).unwrap_or_default(),
        })
        .collect();
    write_weights(
        folder.path(),
        &plan,
        options.dtype,
        options.max_shard_bytes,
        |number, sink| -> Result<(), Stop<E>> {
            // The last dimension is a row, as in a view of the tensor.
            let shape = &plan[number].shape;
            let columns = shape.last().copied().unwrap_or(1);
            let n_rows: usize = shape.iter().rev().skip(1).product();
            let rows_at_once = (PIECE_ELEMENTS / columns.max(1)).max(1);
            let mut values = vec![0.0; rows_at_once.min(n_rows) * columns];
            for start in (0..n_rows).step_by(rows_at_once) {
                let range = start..(start + rows_at_once).min(n_rows);
                let values = &mut values[..range.len() * columns];
                rows(names[number], range, values).map_err(Stop)?;
                sink.write(values)?;
            }
            on_progress(ExportProgress {
                n_done: number + 1,
                n_tensors: names.len(),
            });
            Ok(())
        },
    )
    .map_err(|Stop(error)| error)?;
    Ok(names.len())
}

/// Carries the caller's error through the writing of files.
struct Stop<E>(E);

impl<E: From<ExportError>> From<SaveError> for Stop<E> {
    fn from(error: SaveError) -> Self {
        Stop(ExportError::from(error).into())
    }
}

/// Adds what stands beside the weights and gives the folder its name.
fn finish(
    checkpoint: &Checkpoint,
    (folder, config): (NewFolder, Value),
    target: &Path,
    tokenizer_files: &[(&str, String)],
    n_tensors: usize,
) -> Result<ExportReport, ExportError> {
    let mut has_tokenizer = false;
    if checkpoint.format() == Format::Safetensors {
        for name in TOKENIZER_FILES {
            let path = checkpoint.path().join(name);
            if path.is_file() {
                folder.file(name, &read_small(&path, MAX_SMALL_FILE_BYTES)?)?;
                has_tokenizer |= name == "tokenizer.json";
            }
        }
    }
    for (name, text) in tokenizer_files {
        folder.file(name, text.as_bytes())?;
        has_tokenizer |= *name == "tokenizer.json";
    }
    if !tokenizer_files
        .iter()
        .any(|(name, _)| *name == GENERATION_NAME)
    {
        folder.file(GENERATION_NAME, &pretty(&generation_config(checkpoint)?))?;
    }
    folder.file("config.json", &pretty(&config))?;
    folder.finish()?;
    Ok(ExportReport {
        folder: target.to_owned(),
        n_tensors,
        n_parameters: checkpoint.config().n_parameters(),
        has_tokenizer,
        change: None,
    })
}

/// Row `row` of `B A`.
fn row_change(pair: &LoraPair, rank: usize, row: usize, delta: &mut [f32]) {
    delta.fill(0.0);
    let weights = &pair.b[row * rank..(row + 1) * rank];
    for (weight, a) in weights.iter().zip(pair.a.chunks(delta.len())) {
        for (delta, a) in delta.iter_mut().zip(a) {
            *delta += weight * a;
        }
    }
}

fn stored(value: f32, dtype: SaveDtype) -> f32 {
    match dtype {
        SaveDtype::F32 => value,
        SaveDtype::Bf16 => bf16::from_f32(value).to_f32(),
    }
}

/// The base's own `config.json` with another data type, so that what Temper has no use for is kept;
/// made from the configuration where there is none.
fn config_json(checkpoint: &Checkpoint, dtype: SaveDtype) -> Result<Value, ExportError> {
    if checkpoint.format() == Format::Gguf {
        return Ok(checkpoint.config().to_json(dtype.config_name())?);
    }
    let mut map = object(&checkpoint.path().join("config.json"))?;
    let dtype = json!(dtype.config_name());
    let mut is_set = false;
    for key in ["torch_dtype", "dtype"] {
        if let Some(value) = map.get_mut(key) {
            *value = dtype.clone();
            is_set = true;
        }
    }
    if !is_set {
        map.insert("torch_dtype".into(), dtype);
    }
    Ok(Value::Object(map))
}

fn generation_config(checkpoint: &Checkpoint) -> Result<Value, ExportError> {
    let path = checkpoint.path().join(GENERATION_NAME);
    if checkpoint.format() == Format::Safetensors && path.is_file() {
        return Ok(Value::Object(object(&path)?));
    }
    let config = checkpoint.config();
    let mut map = Map::new();
    if let Some(id) = config.bos_token_id {
        map.insert("bos_token_id".into(), json!(id));
    }
    if !config.eos_token_ids.is_empty() {
        map.insert("eos_token_id".into(), json!(config.eos_token_ids));
    }
    if let Some(id) = config.pad_token_id {
        map.insert("pad_token_id".into(), json!(id));
    }
    Ok(Value::Object(map))
}

fn object(path: &Path) -> Result<Map<String, Value>, ExportError> {
    serde_json::from_slice(&read_small(path, MAX_SMALL_FILE_BYTES)?).map_err(|error| {
        ExportError::Malformed {
            path: path.to_owned(),
            reason: error.to_string(),
        }
    })
}

fn pretty(value: &Value) -> Vec<u8> {
    let mut text = format!("{value:#}");
    text.push('\n');
    text.into_bytes()
}
