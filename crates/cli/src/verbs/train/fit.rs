//! The training stages: supervised from the model, preference from what was selected.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::Instant,
};

use serde::{Deserialize, Serialize};
use serde_json::json;
use temper_checkpoint::Adapter;
use temper_core::Digest;
use temper_model::Device;
use temper_recipe::{Stage, StageName, StageRecord};
use temper_train::{
    EventSink, Outcome, Pair, PreferenceConfig, Row, Run, RunPlan, SftConfig, Snapshot, TrainError,
    metrics::{jsonl::JsonLines, tensorboard::TensorBoard},
    plan_preference, plan_sft, train_preference, train_sft,
};

use super::{
    session::{Halt, Session, Step, producer},
    trials::{Contender, Weights},
};
use crate::{
    clock, engines::Chosen, error::CliError, exit_code, output, training_view::TrainingView,
    verbs::model::convert::tokenizer_files,
};

/// A finished training run.
pub struct Trained {
    /// Its seed.
    pub seed: u64,
    /// `sft`, or the preference objective's name.
    pub objective: String,
    /// Its folder.
    pub folder: PathBuf,
    /// Its snapshots, oldest first.
    pub snapshots: Vec<Contender>,
    /// The digest of all of them.
    pub digest: Digest,
}

/// What a run minimises, over what.
#[derive(Clone, Copy)]
pub enum Objective<'a> {
    /// Supervised training on rows.
    Sft(&'a SftConfig, &'a [Row]),
    /// Preference training on pairs.
    Preference(&'a PreferenceConfig, &'a [Pair]),
}

/// A snapshot as a stage's record names it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SnapshotRecord {
    update: u64,
    weights: String,
    digest: Digest,
}

impl Objective<'_> {
    fn name(&self) -> &'static str {
        match self {
            Objective::Sft(..) => "sft",
            Objective::Preference(config, _) => config.objective.name(),
        }
    }

    fn seed(&self) -> u64 {
        match self {
            Objective::Sft(config, _) => config.training.seed,
            Objective::Preference(config, _) => config.training.seed,
        }
    }

    /// What a run would take; settings and data are checked.
    pub fn plan<D: Device>(
        &self,
        session: &Session<'_>,
        device: &D,
        start: Option<&Adapter>,
    ) -> Result<RunPlan, CliError> {
        let checkpoint = &session.checkpoint;
        Ok(match self {
            Objective::Sft(config, rows) => plan_sft(device, checkpoint, start, config, rows),
            Objective::Preference(config, pairs) => {
                plan_preference(device, checkpoint, start, config, pairs)
            }
        }?)
    }

    /// The stage that it is.
    pub fn stage(
        &self,
        session: &Session<'_>,
        data: &Digest,
        start: &Contender,
    ) -> Result<Stage, CliError> {
        let (name, config) = match self {
            Objective::Sft(config, _) => (StageName::Train, json!(config)),
            Objective::Preference(config, _) => (StageName::Preference, json!(config)),
        };
        Ok(Stage {
            name,
            part: Some(format!("seed-{}", self.seed())),
            inputs: BTreeMap::from([
                ("data".into(), data.clone()),
                ("model".into(), session.base.clone()),
                ("start".into(), start.digest.clone()),
            ]),
            config: json!({
                "objective": self.name(),
                "settings": config,
                "device": session.device()?.name(),
            }),
        })
    }
}

/// Trains, or goes on, or takes what is there.
pub fn fit(
    session: &Session<'_>,
    objective: Objective<'_>,
    data: &Digest,
    start: &Contender,
) -> Step<Trained> {
    let stage = objective.stage(session, data, start)?;
    let folder = session.stages.folder(&stage);
    let trained = |record: &StageRecord| trained(&objective, &folder, record);
    if let Some(record) = session.done(&stage)? {
        return Ok(trained(&record)?);
    }
    // Trials' weights and caches make room.
    session.engine.replace(None);
    let began = Instant::now();
    let adapter = match &start.weights {
        Weights::Adapter(path) => Some(read_adapter(path, session)?),
        Weights::Base | Weights::Model(_) => None,
    };
    let adapter = adapter.as_ref();
    // Settings that are wrong leave no folder behind.
    match session.device()? {
        Chosen::Gpu(gpu) => objective.plan(session, gpu.as_ref(), adapter),
        Chosen::Processor(cpu) => objective.plan(session, cpu, adapter),
    }?;
    std::fs::create_dir_all(&folder).map_err(CliError::from)?;
    let outcome = match session.device()? {
        Chosen::Gpu(gpu) => run(session, gpu.as_ref(), objective, adapter, &stage, &folder),
        Chosen::Processor(cpu) => run(session, cpu, objective, adapter, &stage, &folder),
    }?;
    if !outcome.is_finished() {
        output::note(&format!(
            "stopped: {} of {} updates of {} are done; run the same command again to go on",
            outcome.update,
            outcome.total_updates,
            stage.label()
        ));
        return Err(Halt::Code(exit_code::INTERRUPTED));
    }
    let snapshots: Vec<SnapshotRecord> = outcome
        .snapshots
        .iter()
        .map(|snapshot| SnapshotRecord {
            update: snapshot.manifest.update,
            weights: below(&folder, &snapshot.weights()),
            digest: weights_digest(snapshot),
        })
        .collect();
    let outputs = BTreeMap::from([("snapshots".to_owned(), Digest::of_value(&snapshots))]);
    let result = json!({
        "objective": objective.name(),
        "n_updates": outcome.update,
        "snapshots": snapshots,
        "metrics": "metrics.jsonl",
    });
    let record = session.finish(&stage, outputs, result, began)?;
    Ok(trained(&record)?)
}

/// Reads a PEFT folder that fits the model.
pub fn read_adapter(path: &Path, session: &Session<'_>) -> Result<Adapter, CliError> {
    Adapter::read(path, session.checkpoint.config()).map_err(|error| {
        let hint = error.hint();
        CliError::new(exit_code::INPUT, error).maybe_hint(hint)
    })
}

fn run<D: Device>(
    session: &Session<'_>,
    device: &D,
    objective: Objective<'_>,
    adapter: Option<&Adapter>,
    stage: &Stage,
    folder: &Path,
) -> Result<Outcome, CliError> {
    let files = tokenizer_files(&session.checkpoint);
    let mut events: Vec<Box<dyn EventSink + '_>> = vec![
        Box::new(JsonLines::open(&folder.join("metrics.jsonl"))?),
        Box::new(TensorBoard::open(&folder.join("tensorboard"))?),
        Box::new(TrainingView::new(&stage.label(), session.places.quiet)),
    ];
    let mut run = Run {
        device,
        checkpoint: &session.checkpoint,
        base: session.base.clone(),
        adapter,
        tokenizer_files: &files,
        folder,
        producer: producer(),
        clock: &clock::unix_time,
        stop: &|| session.cancel.load(Ordering::Relaxed),
        events: &mut events,
    };
    let outcome = match objective {
        Objective::Sft(config, rows) => train_sft(&mut run, config, rows),
        Objective::Preference(config, pairs) => train_preference(&mut run, config, pairs),
    };
    Ok(outcome?)
}

/// A finished run as its record has it.
fn trained(
    objective: &Objective<'_>,
    folder: &Path,
    record: &StageRecord,
) -> Result<Trained, CliError> {
    let snapshots: Vec<SnapshotRecord> = serde_json::from_value(record.result["snapshots"].clone())
        .map_err(|error| {
            CliError::new(
                exit_code::INPUT,
                format!("read {}: {error}", folder.join("stage.json").display()),
            )
        })?;
    let (name, seed) = (objective.name(), objective.seed());
    let contenders = snapshots.iter().map(|snapshot| {
        let path = folder.join(&snapshot.weights);
        Contender {
            name: format!("{name}-seed-{seed}-update-{}", snapshot.update),
            digest: snapshot.digest.clone(),
            weights: if snapshot.weights.ends_with("adapter") {
                Weights::Adapter(path)
            } else {
                Weights::Model(path)
            },
        }
    });
    Ok(Trained {
        seed,
        objective: name.to_owned(),
        folder: folder.to_owned(),
        snapshots: contenders.collect(),
        digest: record.output("snapshots", folder)?,
    })
}

/// The digest of a snapshot's weights, without what only training needs.
fn weights_digest(snapshot: &Snapshot) -> Digest {
    let manifest = &snapshot.manifest;
    let prefix = format!("{}/", manifest.weights);
    let files: BTreeMap<&str, &Digest> = manifest
        .files
        .iter()
        .filter_map(|(name, file)| Some((name.strip_prefix(&prefix)?, &file.digest)))
        .collect();
    Digest::of_value(&files)
}

fn below(folder: &Path, path: &Path) -> String {
    let path = path.strip_prefix(folder).unwrap_or(path);
    path.to_string_lossy().into_owned()
}

impl From<TrainError> for CliError {
    fn from(error: TrainError) -> Self {
        let code = match &error {
            TrainError::Setting(_)
            | TrainError::NoRows
            | TrainError::TooLong { .. }
            | TrainError::OtherRun { .. }
            | TrainError::Learner(temper_train::learner::LearnerError::Setting(_)) => {
                exit_code::INPUT
            }
            TrainError::Learner(temper_train::learner::LearnerError::Memory { .. }) => {
                exit_code::ENVIRONMENT
            }
            _ => exit_code::FAILURE,
        };
        let hint = error.hint();
        CliError::new(code, error).maybe_hint(hint)
    }
}
