//! Merging an adapter into the very weights that it was trained against, checked by logits.
//!
//! An adapter trained over a quantised base corrects that base's rounding, too, so it is merged
//! into the dequantised weights and not into those of the checkpoint. Then merged model and
//! adapted base are compared on prompts: a merge whose logits are farther from the adapted model's
//! than half of the way that the adapter moved them has lost the adapter, and is removed.

use std::{
    collections::BTreeMap,
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
};

use temper_checkpoint::{
    Adapter as AdapterFile, Checkpoint, CheckpointError, Projection, TensorName,
    export::{self, ExportError, ExportOptions, ExportProgress, ExportReport},
};
use temper_model::{
    Device,
    device::{DeviceError, WeightFormat},
    transformer::{
        Adapter, AdapterConfig, Group, Keep, LoadOptions, MemoryPlan, Model, ModelError,
        PackedBatch, PlanRequest, Policy, ScoreOptions, TrainingPass,
    },
};

use crate::method::Base;

/// What a merge is made of.
#[derive(Clone, Debug)]
pub struct Merge<'a> {
    /// The model.
    pub checkpoint: &'a Checkpoint,
    /// How the adapter's training held it.
    pub base: Base,
    /// The adapter.
    pub adapter: &'a AdapterFile,
    /// The folder to be, which must not exist.
    pub target: &'a Path,
    /// How it is written.
    pub options: ExportOptions,
    /// Tokenizer files that are written beside the weights, by name.
    pub tokenizer_files: &'a [(&'a str, String)],
    /// Token ids that logits are compared on; at least two in each.
    pub prompts: &'a [Vec<u32>],
}

/// How near a merged model is to its base with the adapter.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct MergeCheck {
    /// Tokens whose logits were compared.
    pub n_tokens: usize,
    /// The largest difference of a logit, merged against adapted.
    pub largest_difference: f64,
    /// Root mean square of these differences.
    pub difference: f64,
    /// Root mean square of the differences, adapted against the base alone: the adapter's work.
    pub movement: f64,
    /// Tokens after which both have the same likeliest next token.
    pub n_same_greedy: usize,
}

impl MergeCheck {
    /// Whether the merge has kept what the adapter does.
    pub fn is_passed(&self) -> bool {
        self.movement > 0.0 && self.difference <= 0.5 * self.movement
    }
}

/// Why a merge failed. Nothing remains of it then.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// The model could not be written.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The model could not be run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// What was written cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// No prompt has two tokens.
    #[error("merge the adapter: {0} prompts, and none that says two tokens or more")]
    NoPrompts(usize),
    /// The merged model is not the adapted one.
    #[error(
        "merge the adapter: logits of {} tokens differ by {:.3e} from those with the adapter, \
         which moved them by {:.3e}", .0.n_tokens, .0.difference, .0.movement
    )]
    Lost(MergeCheck),
    /// A failed merge could not be removed.
    #[error("remove {}: {source}", .path.display())]
    Remove {
        /// The folder.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
}

impl From<DeviceError> for MergeError {
    fn from(error: DeviceError) -> Self {
        MergeError::Model(error.into())
    }
}

impl MergeError {
    /// What the user can do, where there is something.
    pub fn hint(&self) -> Option<String> {
        match self {
            MergeError::Export(error) => error.hint(),
            MergeError::Checkpoint(error) => error.hint(),
            MergeError::Lost(_) => Some(
                "write float32, or serve the adapter beside its base; with another base format \
                 than in training the same happens"
                    .into(),
            ),
            _ => None,
        }
    }
}

/// Merges, and compares logits.
///
/// # Errors
/// When the merge would change nothing or has lost the adapter, and as [`export::merge`].
pub fn merge<D: Device>(
    device: &D,
    merge: &Merge<'_>,
    on_progress: impl FnMut(ExportProgress),
) -> Result<(ExportReport, MergeCheck), MergeError> {
    let batch = batch_of(merge.prompts)?;
    let longest = merge.prompts.iter().map(Vec::len).max().unwrap_or(0);
    let options = LoadOptions {
        format: merge.base.weight_format(),
        max_positions: longest,
    };
    let model = Model::load(device.clone(), merge.checkpoint, &options)?;
    let adapter = Adapter::load(device, &model.config, merge.adapter)?;
    let base = logits(Policy::frozen(&model), None, &batch)?;
    let policy = Policy::adapted(&model, &adapter);
    let adapted = logits(policy, Some(&adapter.config), &batch)?;
    let report = match merge.base {
        Base::Dense | Base::AsStored => export::merge(
            merge.checkpoint,
            merge.adapter,
            merge.target,
            merge.options,
            merge.tokenizer_files,
            on_progress,
        )?,
        Base::Int8 | Base::Nf4 { .. } => export::merge_over(
            merge.checkpoint,
            merge.adapter,
            merge.target,
            merge.options,
            merge.tokenizer_files,
            |name, rows, values| held_rows(&model, merge.checkpoint, name, rows, values),
            on_progress,
        )?,
    };
    drop((model, adapter));
    let merged = Checkpoint::open(merge.target)?;
    let options = LoadOptions {
        format: WeightFormat::Dense,
        max_positions: longest,
    };
    let model = Model::load(device.clone(), &merged, &options)?;
    let merged = logits(Policy::frozen(&model), None, &batch)?;
    let check = compare(&merged, &adapted, &base, model.config.vocab_size);
    if !check.is_passed() {
        fs::remove_dir_all(merge.target).map_err(|source| MergeError::Remove {
            path: merge.target.to_owned(),
            source,
        })?;
        return Err(MergeError::Lost(check));
    }
    Ok((report, check))
}

/// The prompts, every token but the first of each to be predicted.
fn batch_of(prompts: &[Vec<u32>]) -> Result<PackedBatch, MergeError> {
    let mut batch = PackedBatch::new();
    for ids in prompts.iter().filter(|ids| ids.len() > 1) {
        batch.push(ids, &vec![1.0; ids.len()]);
    }
    if batch.n_tokens() == 0 {
        return Err(MergeError::NoPrompts(prompts.len()));
    }
    Ok(batch)
}

/// Logits of every predicted token, `[tokens, vocab_size]`.
fn logits<D: Device>(
    policy: Policy<'_, D>,
    adapter: Option<&AdapterConfig>,
    batch: &PackedBatch,
) -> Result<Vec<f32>, ModelError> {
    let model = policy.model;
    let n_rows = batch.supervised_rows().len();
    let request = PlanRequest {
        max_tokens: batch.n_tokens(),
        head_rows: n_rows,
        adapter: adapter.cloned(),
        backward: false,
        keep: Keep::All,
        format: WeightFormat::Dense,
        held: Vec::new(),
    };
    let plan = MemoryPlan::new(&model.device, &model.config, &request)?;
    let mut pass = TrainingPass::new(&model.device, plan)?;
    pass.score(policy, batch, ScoreOptions::default())?
        .logits(0..n_rows)
}

/// Rows of a tensor as the model holds them, dequantised.
fn held_rows<D: Device>(
    model: &Model<D>,
    checkpoint: &Checkpoint,
    name: TensorName,
    rows: Range<usize>,
    out: &mut [f32],
) -> Result<(), MergeError> {
    let device = &model.device;
    let (matrix, start) = match name {
        TensorName::Embedding => (&model.embed, 0),
        TensorName::Head => (model.head_matrix(), 0),
        TensorName::Weight(layer, projection) => {
            let (group, start) = place(model, projection);
            let layer = &model.layers[layer];
            let matrix = match group {
                Group::Qkv => &layer.qkv,
                Group::O => &layer.o,
                Group::GateUp => &layer.gate_up,
                Group::Down => &layer.down,
            };
            (matrix, start)
        }
        // Norms and biases are not quantised.
        _ => {
            let view = checkpoint.get(name)?;
            let decoded = view.to_f32_into(rows, out);
            return Ok(decoded.map_err(ModelError::from)?);
        }
    };
    let rows = start + rows.start..start + rows.end;
    out.copy_from_slice(&device.matrix_rows(matrix, rows)?);
    Ok(())
}

/// The stacked matrix that holds a projection, and its first row there.
fn place<D: Device>(model: &Model<D>, projection: Projection) -> (Group, usize) {
    let mut places = BTreeMap::new();
    for group in Group::ALL {
        let mut start = 0;
        for &it in group.projections() {
            places.insert(it, (group, start));
            start += model.config.projection_shape(it)[0];
        }
    }
    places[&projection]
}

fn compare(merged: &[f32], adapted: &[f32], base: &[f32], vocab_size: usize) -> MergeCheck {
    let differences = |a: &[f32], b: &[f32]| -> Vec<f64> {
        let pairs = a.iter().zip(b);
        pairs
            .map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs())
            .collect()
    };
    let root_mean_square = |values: &[f64]| {
        (values.iter().map(|x| x * x).sum::<f64>() / values.len().max(1) as f64).sqrt()
    };
    let greedy = |row: &[f32]| {
        let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        best.map(|(id, _)| id)
    };
    let of_merge = differences(merged, adapted);
    let rows = || merged.chunks(vocab_size).zip(adapted.chunks(vocab_size));
    MergeCheck {
        n_tokens: rows().count(),
        largest_difference: of_merge.iter().copied().fold(0.0, f64::max),
        difference: root_mean_square(&of_merge),
        movement: root_mean_square(&differences(adapted, base)),
        n_same_greedy: rows().filter(|(a, b)| greedy(a) == greedy(b)).count(),
    }
}
