//! A model with what is trained of it, the memory of its passes, and its optimizer.
//!
//! Gradients grow from pass to pass until [`Learner::update`], which clears them.

use std::{ops::Range, path::Path};

use temper_checkpoint::{
    Adapter as AdapterFile, AdapterError, Checkpoint, CheckpointError, ModelConfig, TensorName,
    export::{self, ExportError, ExportOptions},
    save::SaveDtype,
};
use temper_model::{
    DType, Device,
    device::{DeviceError, WeightFormat},
    transformer::{
        Adapter, AdapterConfig, FullTuning, LoadOptions, MemoryPlan, Model, ModelError,
        PackedBatch, Parameters, PlanRequest, Policy, ScoreOptions, Scored, Scores, TrainingPass,
        parameter_bytes,
    },
};

use crate::{
    config::{Activations, SettingError},
    loss::WindowTokens,
    method::{Base, Method},
    optimizer::{Optimizer, OptimizerConfig, OptimizerError, OptimizerState, UpdateReport},
};

/// What a learner is made of.
#[derive(Clone, Debug)]
pub struct LearnerSpec<'a> {
    /// The model at the start.
    pub checkpoint: &'a Checkpoint,
    /// The adapter at the start, where training goes on from one.
    pub adapter: Option<&'a AdapterFile>,
    /// What is trained.
    pub method: &'a Method,
    /// What a fresh adapter is drawn from.
    pub seed: u64,
    /// Tokens of the largest pass.
    pub max_tokens: usize,
    /// Tokens of the longest sequence.
    pub max_positions: usize,
    /// Which activations are kept.
    pub activations: Activations,
    /// How weights change.
    pub optimizer: OptimizerConfig,
}

/// A model that learns.
#[derive(Debug)]
pub struct Learner<D: Device> {
    device: D,
    model: Model<D>,
    trained: Trained<D>,
    pass: TrainingPass<D>,
    optimizer: Optimizer<D>,
    base_name: Option<String>,
}

#[derive(Debug)]
enum Trained<D: Device> {
    Adapter(Adapter<D>),
    Full(FullTuning<D>),
}

/// Why a learner could not be made or could not do its part.
#[derive(Debug, thiserror::Error)]
pub enum LearnerError {
    /// A setting does not fit.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The model could not be made or run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The optimizer failed.
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    /// An adapter cannot be read or written.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// A checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A model cannot be written.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The plan does not fit into what is free.
    #[error("start training: {needed} bytes are needed and {free} are free on {device}\n{plan}")]
    Memory {
        /// Bytes of everything.
        needed: usize,
        /// Bytes that are free.
        free: usize,
        /// The device.
        device: String,
        /// The plan as a table.
        plan: String,
    },
}

impl From<DeviceError> for LearnerError {
    fn from(error: DeviceError) -> Self {
        LearnerError::Model(error.into())
    }
}

/// Logits of at most this many bytes exist at once.
const LOGIT_BYTES: usize = 128 << 20;

/// Bytes that a learner's weights, gradients, optimizer states and passes take: laid out before
/// any of them is taken.
///
/// The weights' bytes are an estimate, which blocks that do not come out even exceed a little.
///
/// # Errors
/// When a setting is wrong, or the activations' memory is too small even with all layers run
/// twice.
pub fn plan_memory<D: Device>(
    device: &D,
    spec: &LearnerSpec<'_>,
) -> Result<MemoryPlan, LearnerError> {
    let config = spec.checkpoint.config();
    let adapter = adapter_config(spec)?;
    let entries = match &adapter {
        Some(adapter) => adapter.parameters(config),
        None => FullTuning::<D>::parameters_of(config),
    };
    // Masters and gradients, with the gaps that align arrays.
    let n_trained = parameter_bytes(&entries, DType::F32) / 8;
    let rotary = 4 * spec.max_positions * config.head_dim;
    let weights = match adapter {
        Some(_) => weight_bytes::<D>(spec.checkpoint, spec.method.base()),
        None => 0,
    };
    let request = PlanRequest {
        max_tokens: spec.max_tokens,
        head_rows: (LOGIT_BYTES / (4 * config.vocab_size)).clamp(16, 4096),
        adapter,
        backward: true,
        keep: spec.activations.keep(),
        format: spec.method.base().weight_format(),
        held: vec![
            ("frozen weights".into(), weights + rotary),
            (
                "trained arrays and gradients".into(),
                parameter_bytes(&entries, D::ACTIVATION),
            ),
            (
                "optimizer states".into(),
                spec.optimizer.moments.n_bytes(n_trained),
            ),
        ],
    };
    Ok(MemoryPlan::new(device, config, &request)?)
}

impl<D: Device> Learner<D> {
    /// Takes weights and memory. Nothing is taken when the plan does not fit into what is free.
    ///
    /// # Errors
    /// When a setting is wrong, the files cannot be read, or memory is short.
    pub fn new(device: &D, spec: &LearnerSpec<'_>) -> Result<Self, LearnerError> {
        let plan = plan_memory(device, spec)?;
        if let Some(free) = device.memory_free()
            && plan.bytes_to_take() > free
        {
            return Err(LearnerError::Memory {
                needed: plan.bytes_to_take(),
                free,
                device: device.name(),
                plan: plan.to_string(),
            });
        }
        let config = spec.checkpoint.config();
        let (model, trained) = match adapter_config(spec)? {
            Some(adapter) => {
                let options = LoadOptions {
                    format: spec.method.base().weight_format(),
                    max_positions: spec.max_positions,
                };
                let model = Model::load(device.clone(), spec.checkpoint, &options)?;
                let adapter = match spec.adapter {
                    Some(file) => {
                        let made = Adapter::zeros(device, config, &adapter)?;
                        made.refill(device, config, file)?;
                        made
                    }
                    None => Adapter::new(device, config, &adapter, spec.seed)?,
                };
                (model, Trained::Adapter(adapter))
            }
            None => {
                let (model, full) =
                    FullTuning::load(device.clone(), spec.checkpoint, spec.max_positions)?;
                (model, Trained::Full(full))
            }
        };
        let optimizer = Optimizer::new(device, &[trained.parameters()], spec.optimizer)?;
        Ok(Learner {
            device: device.clone(),
            model,
            trained,
            pass: TrainingPass::new(device, plan)?,
            optimizer,
            base_name: spec.adapter.and_then(|file| file.base_model.clone()),
        })
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.model.config
    }

    /// The memory of the passes.
    pub fn plan(&self) -> &MemoryPlan {
        self.pass.plan()
    }

    /// Trained parameters.
    pub fn n_trained(&self) -> usize {
        self.trained.parameters().n_elements()
    }

    /// Updates done.
    pub fn n_updates(&self) -> u64 {
        self.optimizer.n_updates()
    }

    /// Runs a batch forward and backward for its share of a window's negative log-likelihood;
    /// gradients grow.
    pub fn supervised(
        &mut self,
        batch: &PackedBatch,
        window: WindowTokens,
    ) -> Result<Scores, LearnerError> {
        let policy = self.trained.policy(&self.model);
        Ok(self.pass.supervised(policy, batch, window.get() as f64)?)
    }

    /// Runs a batch forward; [`Scored::backward`] lets gradients grow.
    pub fn score(&mut self, batch: &PackedBatch) -> Result<Scored<'_, D>, LearnerError> {
        let policy = self.trained.policy(&self.model);
        Ok(self.pass.score(policy, batch, ScoreOptions::default())?)
    }

    /// All gradients as they have grown, f32.
    pub fn gradients(&self) -> Result<Vec<f32>, LearnerError> {
        let gradients = self.trained.parameters().gradients();
        Ok(self.device.download_f32(gradients)?)
    }

    /// Sets all gradients to zero.
    pub fn clear_gradients(&self) -> Result<(), LearnerError> {
        Ok(self.trained.parameters().clear_gradients(&self.device)?)
    }

    /// Changes the weights by their gradients, which are cleared.
    pub fn update(&mut self) -> Result<UpdateReport, LearnerError> {
        Ok(self.optimizer.update(&[self.trained.parameters()])?)
    }

    /// What the optimizer carries on.
    pub fn optimizer_state(&self) -> Result<OptimizerState, LearnerError> {
        Ok(self.optimizer.export()?)
    }

    /// The masters' bytes, which tell whether two learners are the same.
    pub fn masters(&self) -> Result<Vec<u8>, LearnerError> {
        Ok(self.trained.parameters().export(&self.device)?)
    }

    /// Writes what is trained into `folder` under [`Learner::weights_name`], exactly: an adapter
    /// as PEFT has it, or a whole model as transformers has it, in f32.
    pub fn write_weights(
        &self,
        checkpoint: &Checkpoint,
        tokenizer_files: &[(&str, String)],
        folder: &Path,
    ) -> Result<(), LearnerError> {
        let target = folder.join(self.weights_name());
        match &self.trained {
            Trained::Adapter(adapter) => {
                let file = adapter.to_file(&self.device, self.base_name.clone())?;
                file.write(&target, &self.model.config)?;
            }
            Trained::Full(full) => {
                let options = ExportOptions {
                    dtype: SaveDtype::F32,
                    ..ExportOptions::default()
                };
                let rows = |name: TensorName, rows: Range<usize>, out: &mut [f32]| {
                    self.read_rows(full, name, rows, out)
                };
                export::rewrite(checkpoint, &target, options, tokenizer_files, rows, |_| {})?;
            }
        }
        Ok(())
    }

    /// The folder of a snapshot that holds the weights.
    pub fn weights_name(&self) -> &'static str {
        match self.trained {
            Trained::Adapter(_) => "adapter",
            Trained::Full(_) => "model",
        }
    }

    /// Takes back what [`Learner::write_weights`] wrote into `folder`, and the optimizer's state.
    ///
    /// # Errors
    /// When it does not fit; the learner is then of no use.
    pub fn restore(&mut self, folder: &Path, state: &OptimizerState) -> Result<(), LearnerError> {
        let source = folder.join(self.weights_name());
        match &self.trained {
            Trained::Adapter(adapter) => {
                let file = AdapterFile::read(&source, &self.model.config)?;
                adapter.refill(&self.device, &self.model.config, &file)?;
            }
            Trained::Full(full) => {
                let checkpoint = Checkpoint::open(&source)?;
                for (index, entry) in full.parameters.entries().iter().enumerate() {
                    let mut values = Vec::with_capacity(entry.n_elements());
                    for (name, _) in &entry.parts {
                        let view = checkpoint.tensor(name)?;
                        values.extend(view.to_f32().map_err(ModelError::from)?);
                    }
                    if values.len() != entry.n_elements() {
                        return Err(LearnerError::Model(ModelError::Input {
                            operation: "restore a model",
                            reason: format!(
                                "{} elements of {} where {} are trained",
                                values.len(),
                                entry.parts[0].0,
                                entry.n_elements()
                            ),
                        }));
                    }
                    full.parameters.set(&self.device, index, &values)?;
                }
            }
        }
        Ok(self.optimizer.import(state)?)
    }

    /// Some rows of a trained tensor, from the masters.
    fn read_rows(
        &self,
        full: &FullTuning<D>,
        name: TensorName,
        rows: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), LearnerError> {
        let name = name.to_string();
        for entry in full.parameters.entries() {
            let mut start = entry.range().start;
            for (part, shape) in &entry.parts {
                if *part == name {
                    let columns = shape.last().copied().unwrap_or(1);
                    let range = start + rows.start * columns..start + rows.end * columns;
                    let masters = full.parameters.masters().slice(range);
                    out.copy_from_slice(&self.device.download_f32(&masters)?);
                    return Ok(());
                }
                start += shape.iter().product::<usize>();
            }
        }
        Err(LearnerError::Model(ModelError::Input {
            operation: "write a model",
            reason: format!("{name} is not trained"),
        }))
    }
}

impl<D: Device> Trained<D> {
    fn parameters(&self) -> &Parameters<D::Storage> {
        match self {
            Trained::Adapter(adapter) => &adapter.parameters,
            Trained::Full(full) => &full.parameters,
        }
    }

    fn policy<'a>(&'a self, model: &'a Model<D>) -> Policy<'a, D> {
        match self {
            Trained::Adapter(adapter) => Policy::adapted(model, adapter),
            Trained::Full(full) => Policy::full(model, full),
        }
    }
}

/// The adapter that is trained, checked against the one that training starts from.
fn adapter_config(spec: &LearnerSpec<'_>) -> Result<Option<AdapterConfig>, LearnerError> {
    let config = spec
        .method
        .adapter()
        .map_err(|(setting, reason)| SettingError::new(setting, reason))?;
    let Some(file) = spec.adapter else {
        return Ok(config);
    };
    let started = AdapterConfig::of_file(file);
    match config {
        None => {
            let reason = "training starts from an adapter, which has no place in a model that is \
                          trained whole: merge it first";
            Err(SettingError::new("method", reason).into())
        }
        Some(config) if config != started => {
            let reason = format!("{config:?} is set, and training starts from {started:?}");
            Err(SettingError::new("method", reason).into())
        }
        same => Ok(same),
    }
}

/// What the frozen weights take on the device, nearly.
fn weight_bytes<D: Device>(checkpoint: &Checkpoint, base: Base) -> usize {
    let config = checkpoint.config();
    let dense = D::ACTIVATION.size() as f64;
    let bytes_of = |format: WeightFormat| match format {
        WeightFormat::Dense => dense,
        WeightFormat::Int8 => 1.0 + 2.0 / 32.0,
        WeightFormat::Nf4 {
            double_quantised: false,
        } => 0.5 + 4.0 / 64.0,
        WeightFormat::Nf4 {
            double_quantised: true,
        } => 0.5 + 1.0 / 64.0 + 4.0 / (64.0 * 256.0),
        WeightFormat::AsStored => 0.0,
    };
    let of_matrices = |name: TensorName, format: WeightFormat| match format {
        // What is stored in f32 becomes dense.
        WeightFormat::AsStored => checkpoint
            .get(name)
            .map_or(0.0, |view| view.bytes.len() as f64),
        format => elements(config, name) * bytes_of(format),
    };
    let format = base.weight_format();
    let outer = match format {
        WeightFormat::Nf4 { .. } => WeightFormat::Dense,
        format => format,
    };
    let total: f64 = config
        .tensor_names()
        .map(|name| match name {
            TensorName::Weight(..) => of_matrices(name, format),
            TensorName::Embedding | TensorName::Head => of_matrices(name, outer),
            _ => elements(config, name) * dense,
        })
        .sum();
    total.ceil() as usize
}

fn elements(config: &ModelConfig, name: TensorName) -> f64 {
    let shape = config.shape_of(name).unwrap_or_default();
    shape.iter().product::<usize>() as f64
}

/// The type of a device's activations.
pub(crate) fn activation<D: Device>() -> DType {
    D::ACTIVATION
}
