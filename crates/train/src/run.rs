//! The loop that all objectives share: windows of rows, updates, snapshots, events.
//!
//! A run is a function of its inputs. It may be killed at any moment and started again with the
//! same inputs: it goes on from the newest whole snapshot, on the processor with the same bits as
//! if nothing had happened.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
};

use temper_checkpoint::{Adapter as AdapterFile, Checkpoint};
use temper_core::{Digest, manifest::Producer, metric::MetricValue};
use temper_model::{
    Device,
    transformer::{MemoryPlan, ModelError},
};

use crate::{
    config::{SettingError, TrainingConfig},
    events::{Begun, Event, EventSink, UpdateRecord},
    learner::{Learner, LearnerError, LearnerSpec, activation, plan_memory},
    metrics::{Metric, Metrics},
    order::Windows,
    sft::SelfTest,
    snapshot::{
        FORMAT, Found, OptimizerLayout, Snapshot, SnapshotError, SnapshotManifest, Snapshots,
    },
};

/// What a training run works with.
pub struct Run<'a, D: Device> {
    /// Where it computes.
    pub device: &'a D,
    /// The model at the start.
    pub checkpoint: &'a Checkpoint,
    /// The digest of the model's files.
    pub base: Digest,
    /// The adapter at the start, where training goes on from one.
    pub adapter: Option<&'a AdapterFile>,
    /// Tokenizer files that a model trained whole is saved with, where its folder has none.
    pub tokenizer_files: &'a [(&'a str, String)],
    /// Where snapshots are kept, in a folder `snapshots`; made if need be.
    pub folder: &'a Path,
    /// The program, for manifests.
    pub producer: Producer,
    /// Seconds since 1970.
    pub clock: &'a dyn Fn() -> f64,
    /// Asked after every update; where it says yes, a snapshot is written and the run ends.
    pub stop: &'a dyn Fn() -> bool,
    /// What happens is told here.
    pub events: &'a mut dyn EventSink,
}

impl<D: Device> fmt::Debug for Run<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("device", &self.device.name())
            .field("base", &self.base)
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Updates done.
    pub update: u64,
    /// Updates that the settings ask for.
    pub total_updates: u64,
    /// All whole snapshots, oldest first.
    pub snapshots: Vec<Snapshot>,
}

impl Outcome {
    /// Whether the run was not asked to stop early.
    pub fn is_finished(&self) -> bool {
        self.update == self.total_updates
    }
}

/// Why training failed. Snapshots stay.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A setting is wrong or has no effect.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The learner could not be made or could not do its part.
    #[error(transparent)]
    Learner(#[from] LearnerError),
    /// Snapshots could not be read or written.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// There is nothing to train on.
    #[error("start training: there are no rows")]
    NoRows,
    /// A row is longer than the model takes.
    #[error("start training: row {row} has {n_tokens} tokens, and {limit}")]
    TooLong {
        /// Its number, from 0.
        row: usize,
        /// Its tokens.
        n_tokens: usize,
        /// What says how many it may have.
        limit: String,
    },
    /// The folder holds snapshots of something else.
    #[error(
        "go on in {}: its snapshot {} was made with other {}",
        .folder.display(), .snapshot.display(), .differences.join(", ")
    )]
    OtherRun {
        /// The folder.
        folder: PathBuf,
        /// The newest whole snapshot.
        snapshot: PathBuf,
        /// The inputs that differ.
        differences: Vec<String>,
    },
    /// A batch gives other gradients when it is split otherwise.
    #[error("{0}")]
    SelfTest(Box<SelfTest>),
    /// A loss or a gradient is no number.
    #[error(
        "train: the {what} of update {update} is {value}; weights are as update {} left them{}",
        .update - 1,
        describe(.last_snapshot)
    )]
    NotFinite {
        /// The update.
        update: u64,
        /// `loss` or `gradient norm`.
        what: &'static str,
        /// The value.
        value: f64,
        /// The rows of its window.
        rows: Vec<usize>,
        /// The newest whole snapshot.
        last_snapshot: Option<PathBuf>,
    },
    /// Events could not be recorded.
    #[error("record the run: {0}")]
    Events(io::Error),
    /// Log-probabilities of the reference could not be kept.
    #[error("keep the reference's log-probabilities in {}: {source}", .path.display())]
    Reference {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
}

fn describe(path: &Option<PathBuf>) -> String {
    path.as_ref().map_or_else(
        || ", and no snapshot was written yet".into(),
        |path| format!(", and {} is the last snapshot", path.display()),
    )
}

impl From<ModelError> for TrainError {
    fn from(error: ModelError) -> Self {
        TrainError::Learner(error.into())
    }
}

impl TrainError {
    /// What the user can do, where there is something.
    pub fn hint(&self) -> Option<String> {
        match self {
            TrainError::NotFinite { rows, .. } => Some(format!(
                "look at rows {rows:?} of the data, and try a lower learning rate or a warm-up"
            )),
            TrainError::OtherRun { .. } => Some(
                "name another folder, or give the inputs that its snapshots were made with".into(),
            ),
            TrainError::TooLong { .. } => {
                Some("leave out long rows when the data set is built".into())
            }
            TrainError::Learner(LearnerError::Memory { .. }) => Some(
                "shorten the longest rows, recompute activations, hold the base in NF4, or hold \
                 moments in 8 bits"
                    .into(),
            ),
            _ => None,
        }
    }
}

/// What an objective adds to the loop.
pub(crate) trait Objective<D: Device> {
    /// Its name.
    fn name(&self) -> &'static str;
    /// The settings of the loop.
    fn training(&self) -> &TrainingConfig;
    /// All settings.
    fn config(&self) -> serde_json::Value;
    /// What of all settings changes results.
    fn decisive(&self) -> serde_json::Value;
    /// The digest of the data.
    fn data(&self) -> Digest;
    /// Tokens and supervised tokens of each row or pair.
    fn sizes(&self) -> Vec<(usize, usize)>;
    /// Tokens of the longest sequence of each row or pair.
    fn longest(&self) -> Vec<usize>;
    /// Tokens of the largest pass, or a setting that is wrong.
    fn max_tokens(&self) -> Result<usize, SettingError>;
    /// Looks at the learner as it is at the start, before anything is restored.
    fn prepare(
        &mut self,
        learner: &mut Learner<D>,
        tell: &mut dyn FnMut(Event) -> Result<(), TrainError>,
    ) -> Result<(), TrainError>;
    /// Lets gradients grow by those of a window; returns its loss and what else it measured.
    fn accumulate(
        &mut self,
        learner: &mut Learner<D>,
        window: &[usize],
    ) -> Result<(f64, Metrics), TrainError>;
    /// What the numbers so far mean, by name and in words.
    fn diagnose(&mut self, update: &UpdateRecord) -> Vec<(&'static str, String)>;
}

/// Trains until the settings' last update, or until it is asked to stop.
pub(crate) fn train<D: Device>(
    run: &mut Run<'_, D>,
    objective: &mut dyn Objective<D>,
) -> Result<Outcome, TrainError> {
    let config = objective.training().clone();
    let sizes = objective.sizes();
    let spec = spec(run.checkpoint, run.adapter, objective, &config, &sizes)?;
    let total = config.total_updates(sizes.len());
    let plan = plan_memory(run.device, &spec)?;
    let inputs = inputs(run, objective);
    let identity = Digest::of_value(&inputs);
    let snapshots = Snapshots::open(&run.folder.join("snapshots"))?;
    let Found {
        snapshot,
        passed_over,
    } = snapshots.newest()?;
    for (snapshot, reason) in passed_over {
        run.tell(&Event::PassedOver { snapshot, reason })?;
    }
    if let Some(snapshot) = &snapshot {
        same_run(run.folder, snapshot, &identity, &inputs)?;
    }
    let lengths = sizes.iter().map(|size| size.0).collect();
    let mut windows = Windows::new(config.order, config.seed, config.rows_per_update, lengths);
    let mut state = State {
        update: snapshot.as_ref().map_or(0, |it| it.manifest.update),
        n_tokens: snapshot.as_ref().map_or(0, |it| it.manifest.n_tokens),
        n_supervised: snapshot.as_ref().map_or(0, |it| it.manifest.n_supervised),
        last_snapshot: snapshot.as_ref().map(|it| it.path.clone()),
    };
    let sum = |of: fn(&(usize, usize)) -> usize| sizes.iter().map(|it| of(it) as u64).sum();
    run.tell(&Event::Begun(Begun {
        objective: objective.name(),
        from_update: state.update,
        from_snapshot: state.last_snapshot.clone(),
        n_rows: sizes.len(),
        n_tokens: sum(|size| size.0),
        n_supervised: sum(|size| size.1),
        updates_per_epoch: windows.per_epoch(),
        total_updates: total,
        identity: identity.to_string(),
        memory_bytes: plan.total_bytes(),
        memory: plan.to_string(),
    }))?;
    if state.update < total {
        let mut learner = Learner::new(run.device, &spec)?;
        objective.prepare(&mut learner, &mut |event| run.tell(&event))?;
        if let Some(snapshot) = &snapshot {
            learner.restore(&snapshot.path, &snapshot.optimizer()?)?;
        }
        let manifest = SnapshotManifest {
            format: FORMAT,
            producer: run.producer.clone(),
            objective: objective.name().into(),
            update: 0,
            total_updates: total,
            position: windows.position(0),
            n_tokens: 0,
            n_supervised: 0,
            seed: config.seed,
            identity,
            inputs,
            config: objective.config(),
            weights: learner.weights_name().into(),
            optimizer: OptimizerLayout {
                update: 0,
                moments: config.optimizer.moments,
                lengths: Vec::new(),
            },
            files: BTreeMap::new(),
        };
        while state.update < total {
            let window = windows.window(state.update).to_vec();
            let record = update(
                run,
                objective,
                &mut learner,
                &mut state,
                &window,
                &sizes,
                (total, &windows),
            )?;
            for (name, text) in objective.diagnose(&record) {
                let update = record.update;
                run.tell(&Event::Diagnosis { update, name, text })?;
            }
            let stops = (run.stop)();
            if stops || config.is_due(state.update, total, windows.per_epoch()) {
                let manifest = SnapshotManifest {
                    update: state.update,
                    position: windows.position(state.update),
                    n_tokens: state.n_tokens,
                    n_supervised: state.n_supervised,
                    ..manifest.clone()
                };
                let path = write_snapshot(run, &learner, &snapshots, manifest)?;
                state.last_snapshot = Some(path.clone());
                run.tell(&Event::Snapshot {
                    update: state.update,
                    snapshot: path,
                })?;
            }
            if stops && state.update < total {
                run.tell(&Event::Stopped {
                    update: state.update,
                    reason: "asked to stop".into(),
                })?;
                break;
            }
        }
    }
    if state.update == total {
        run.tell(&Event::Finished { update: total })?;
    }
    Ok(Outcome {
        update: state.update,
        total_updates: total,
        snapshots: snapshots.all()?,
    })
}

/// Where a run stands.
struct State {
    update: u64,
    n_tokens: u64,
    n_supervised: u64,
    last_snapshot: Option<PathBuf>,
}

impl<D: Device> Run<'_, D> {
    fn tell(&mut self, event: &Event) -> Result<(), TrainError> {
        let at = (self.clock)();
        self.events.record(at, event).map_err(TrainError::Events)
    }
}

impl TrainingConfig {
    /// Whether a snapshot is written after an update.
    fn is_due(&self, update: u64, total: u64, per_epoch: u64) -> bool {
        update == total
            || self.snapshots.every_epoch && update.is_multiple_of(per_epoch)
            || self
                .snapshots
                .every_updates
                .is_some_and(|every| update.is_multiple_of(every))
    }
}

/// One update: a window's gradients, then the weights.
fn update<D: Device>(
    run: &mut Run<'_, D>,
    objective: &mut dyn Objective<D>,
    learner: &mut Learner<D>,
    state: &mut State,
    window: &[usize],
    sizes: &[(usize, usize)],
    (total, windows): (u64, &Windows),
) -> Result<UpdateRecord, TrainError> {
    let began = (run.clock)();
    let number = state.update + 1;
    let (loss, others) = objective.accumulate(learner, window)?;
    let n_tokens: u64 = window.iter().map(|&row| sizes[row].0 as u64).sum();
    let n_supervised: u64 = window.iter().map(|&row| sizes[row].1 as u64).sum();
    let mut record = UpdateRecord {
        update: number,
        total_updates: total,
        position: windows.position(state.update),
        applied: false,
        metrics: Metrics::default(),
    };
    let metrics = &mut record.metrics;
    metrics.set(Metric::Loss, loss);
    let mut failed = (!loss.is_finite()).then_some(("loss", loss));
    if failed.is_none() {
        let report = learner.update()?;
        metrics.set(Metric::GradientNorm, report.gradient_norm);
        metrics.set(Metric::LearningRate, f64::from(report.learning_rate));
        record.applied = report.applied;
        failed = (!report.applied).then_some(("gradient norm", report.gradient_norm));
    } else {
        metrics.set(Metric::GradientNorm, MetricValue::NotRecorded);
        metrics.set(Metric::LearningRate, MetricValue::NotRecorded);
    }
    metrics.set(Metric::Rows, window.len() as f64);
    metrics.set(Metric::Tokens, n_tokens as f64);
    metrics.set(Metric::SupervisedTokens, n_supervised as f64);
    for (metric, value) in others.iter() {
        metrics.set(metric, value);
    }
    let seconds = (run.clock)() - began;
    metrics.set(Metric::Seconds, seconds);
    let rate = (seconds > 0.0).then(|| n_tokens as f64 / seconds);
    metrics.set(Metric::TokensPerSecond, rate);
    metrics.set(Metric::MemoryPeak, run.device.memory_used().1 as f64);
    run.tell(&Event::Update(record.clone()))?;
    if let Some((what, value)) = failed {
        let error = TrainError::NotFinite {
            update: number,
            what,
            value,
            rows: window.to_vec(),
            last_snapshot: state.last_snapshot.clone(),
        };
        run.tell(&Event::Stopped {
            update: state.update,
            reason: error.to_string(),
        })?;
        return Err(error);
    }
    state.update = number;
    state.n_tokens += n_tokens;
    state.n_supervised += n_supervised;
    Ok(record)
}

fn write_snapshot<D: Device>(
    run: &Run<'_, D>,
    learner: &Learner<D>,
    snapshots: &Snapshots,
    manifest: SnapshotManifest,
) -> Result<PathBuf, TrainError> {
    let optimizer = learner.optimizer_state()?;
    let manifest = SnapshotManifest {
        optimizer: OptimizerLayout {
            update: optimizer.update,
            moments: optimizer.moments,
            lengths: optimizer.tensors.iter().map(|it| it.len() as u64).collect(),
        },
        ..manifest
    };
    snapshots.write(manifest, &optimizer, |folder| {
        Ok(learner.write_weights(run.checkpoint, run.tokenizer_files, folder)?)
    })
}

/// What a run is going to take, before it takes anything.
#[derive(Debug)]
pub struct RunPlan {
    /// Updates in all.
    pub total_updates: u64,
    /// Updates after which a snapshot is written.
    pub snapshots: Vec<u64>,
    /// Tokens that go through the model in training, nearly: all windows are taken as equal.
    pub n_tokens: u64,
    /// Memory on the device.
    pub memory: MemoryPlan,
}

/// Plans a run and checks its settings and data as the run would.
pub(crate) fn plan<D: Device>(
    device: &D,
    checkpoint: &Checkpoint,
    adapter: Option<&AdapterFile>,
    objective: &dyn Objective<D>,
) -> Result<RunPlan, TrainError> {
    let config = objective.training();
    let sizes = objective.sizes();
    let spec = spec(checkpoint, adapter, objective, config, &sizes)?;
    let total_updates = config.total_updates(sizes.len());
    let per_epoch = sizes.len().div_ceil(config.rows_per_update) as u64;
    let of_epoch: u64 = sizes.iter().map(|size| size.0 as u64).sum();
    Ok(RunPlan {
        total_updates,
        snapshots: (1..=total_updates)
            .filter(|&update| config.is_due(update, total_updates, per_epoch))
            .collect(),
        n_tokens: (of_epoch as f64 / per_epoch as f64 * total_updates as f64) as u64,
        memory: plan_memory(device, &spec)?,
    })
}

/// The learner of a run whose settings and data are checked.
fn spec<'a, D: Device>(
    checkpoint: &'a Checkpoint,
    adapter: Option<&'a AdapterFile>,
    objective: &dyn Objective<D>,
    config: &'a TrainingConfig,
    sizes: &[(usize, usize)],
) -> Result<LearnerSpec<'a>, TrainError> {
    Ok(LearnerSpec {
        checkpoint,
        adapter,
        method: &config.method,
        seed: config.seed,
        max_positions: check(checkpoint, objective, config, sizes)?,
        max_tokens: objective.max_tokens()?,
        activations: config.activations,
        optimizer: config.optimizer.resolve(config.total_updates(sizes.len())),
    })
}

/// Checks settings and data; returns the tokens of the longest sequence.
fn check<D: Device>(
    checkpoint: &Checkpoint,
    objective: &dyn Objective<D>,
    config: &TrainingConfig,
    sizes: &[(usize, usize)],
) -> Result<usize, TrainError> {
    if sizes.is_empty() {
        return Err(TrainError::NoRows);
    }
    let model = checkpoint.config();
    config.check(sizes.len(), model.n_layers, activation::<D>())?;
    let longest = objective.longest();
    let limit = model.max_position_embeddings;
    if let Some(row) = longest.iter().position(|&n_tokens| n_tokens > limit) {
        return Err(TrainError::TooLong {
            row,
            n_tokens: longest[row],
            limit: format!("the model declares {limit} positions"),
        });
    }
    Ok(longest.into_iter().max().unwrap_or(0))
}

/// What results depend on, by name.
fn inputs<D: Device>(run: &Run<'_, D>, objective: &dyn Objective<D>) -> BTreeMap<String, Digest> {
    let mut inputs = BTreeMap::from([
        (
            "settings".to_owned(),
            Digest::of_value(&objective.decisive()),
        ),
        ("data".to_owned(), objective.data()),
        ("base model".to_owned(), run.base.clone()),
    ]);
    if let Some(adapter) = run.adapter {
        inputs.insert("starting adapter".to_owned(), adapter_digest(adapter));
    }
    inputs
}

/// The digest of an adapter's numbers.
pub fn adapter_digest(adapter: &AdapterFile) -> Digest {
    let mut hasher = temper_core::digest::Hasher::default();
    hasher.field(&adapter.scale().to_le_bytes());
    for ((layer, projection), pair) in &adapter.tensors {
        hasher.field(format!("{layer} {projection}").as_bytes());
        for values in [&pair.a, &pair.b] {
            let bytes: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
            hasher.field(&bytes);
        }
    }
    hasher.finish()
}

fn same_run(
    folder: &Path,
    snapshot: &Snapshot,
    identity: &Digest,
    inputs: &BTreeMap<String, Digest>,
) -> Result<(), TrainError> {
    let manifest = &snapshot.manifest;
    if manifest.identity == *identity {
        return Ok(());
    }
    let names = inputs.keys().chain(manifest.inputs.keys());
    let mut differences: Vec<String> = names
        .filter(|name| inputs.get(*name) != manifest.inputs.get(*name))
        .cloned()
        .collect();
    differences.sort();
    differences.dedup();
    Err(TrainError::OtherRun {
        folder: folder.to_owned(),
        snapshot: snapshot.path.clone(),
        differences,
    })
}
