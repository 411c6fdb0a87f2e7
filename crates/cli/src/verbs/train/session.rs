//! What the stages of a run share: the recipe, the model, the device, prepared tasks.

use std::{
    cell::{Cell, OnceCell, RefCell},
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    rc::Rc,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use clap::ValueEnum;
use serde_json::{Value, json};
use temper_checkpoint::Checkpoint;
use temper_core::{Digest, Task, manifest::Producer};
use temper_recipe::{
    Recipe, Stage, StageName, StageRecord, Stages,
    config::{CollectSettings, SelectSettings},
    overlap,
};

use super::{args::TrainArgs, trials::OpenEngine};
use crate::{
    args::{ProfileArg, SplitArg, SuiteArgs, TrialArgs},
    clock,
    engines::{Chosen, CpuMathArg, WeightsArg, model_digest},
    error::CliError,
    exit_code, jobs, output,
    places::Places,
    sandboxes::Sandboxes,
    tasks::{self, PreparedSuite},
    verbs::model::locate::{Located, locate},
};

/// Why a run ends before its end.
pub enum Halt {
    /// Something failed.
    Error(CliError),
    /// It was stopped, or a stage gave no result; what was to be said has been said.
    Code(u8),
}

impl<E> From<E> for Halt
where
    CliError: From<E>,
{
    fn from(error: E) -> Self {
        Halt::Error(error.into())
    }
}

/// A result of a stage.
pub type Step<T> = Result<T, Halt>;

/// Prepared tasks by split, patterns and limit.
type Prepared = BTreeMap<(u8, Vec<String>, Option<usize>), Rc<PreparedSuite>>;

/// A run.
pub struct Session<'a> {
    /// The flags.
    pub args: &'a TrainArgs,
    /// Places.
    pub places: &'a Places,
    /// What is to be done.
    pub recipe: Recipe,
    /// What was done.
    pub stages: Stages,
    /// Where the model's files are.
    pub located: Located,
    /// The model.
    pub checkpoint: Checkpoint,
    /// The digest of its files.
    pub base: Digest,
    /// The profile of trials.
    profile: ProfileArg,
    /// Tokens of the longest row that is trained on; 0 until the data are there.
    pub longest_row: Cell<usize>,
    /// Set by Ctrl-C.
    pub cancel: &'static AtomicBool,
    /// The engine of the latest trials.
    pub engine: RefCell<Option<OpenEngine>>,
    device: OnceCell<Chosen>,
    sandboxes: OnceCell<Sandboxes>,
    suites: RefCell<Prepared>,
}

impl<'a> Session<'a> {
    /// Reads the recipe and finds the model.
    pub fn open(args: &'a TrainArgs, places: &'a Places) -> Result<Self, CliError> {
        let path = args.recipe.clone().unwrap_or_default();
        let text = fs::read_to_string(&path).map_err(|error| {
            CliError::new(
                exit_code::INPUT,
                format!("read {}: {error}", path.display()),
            )
        })?;
        let mut recipe = Recipe::parse(&text).map_err(|error| {
            CliError::new(exit_code::INPUT, error).hint(format!("the recipe is {}", path.display()))
        })?;
        if let Some(directory) = &args.output {
            recipe.output.directory = directory.clone();
        }
        let agent = recipe.agent.clone().unwrap_or_default();
        let profile = ProfileArg::from_str(&agent.profile, false).map_err(|_| {
            let names: Vec<String> = ProfileArg::value_variants()
                .iter()
                .filter_map(|it| Some(it.to_possible_value()?.get_name().to_owned()))
                .collect();
            CliError::new(
                exit_code::INPUT,
                format!(
                    "follow the recipe: agent.profile: there is no profile {:?}",
                    agent.profile
                ),
            )
            .hint(format!("there are {}", names.join(", ")))
        })?;
        let located = locate(&recipe.model.source, &args.hub, places)?;
        let checkpoint = Checkpoint::open(&located.path)?;
        let base = model_digest(&located, &checkpoint)?;
        Ok(Session {
            stages: Stages::open(&recipe.output.directory, producer())?,
            profile,
            longest_row: Cell::new(0),
            cancel: jobs::stop_flag()?,
            engine: RefCell::new(None),
            device: OnceCell::new(),
            sandboxes: OnceCell::new(),
            suites: RefCell::new(BTreeMap::new()),
            args,
            places,
            recipe,
            located,
            checkpoint,
            base,
        })
    }

    /// Where training and the trials of the trained model run.
    pub fn device(&self) -> Result<&Chosen, CliError> {
        if let Some(device) = self.device.get() {
            return Ok(device);
        }
        let device = self.args.device.open(CpuMathArg::Exact, self.places)?;
        Ok(self.device.get_or_init(|| device))
    }

    /// Where commands run.
    pub fn sandboxes(&self) -> Result<&Sandboxes, CliError> {
        if let Some(sandboxes) = self.sandboxes.get() {
            return Ok(sandboxes);
        }
        let sandboxes = Sandboxes::open_for_untrusted(&self.args.sandbox)?;
        output::note(&sandboxes.summary());
        Ok(self.sandboxes.get_or_init(|| sandboxes))
    }

    /// The form of the weights in trials: that which training holds them in.
    pub fn weights(&self) -> WeightsArg {
        use temper_train::Base;
        match self.recipe.train.sft.training.method.base() {
            Base::Dense => WeightsArg::Dense,
            Base::AsStored => WeightsArg::AsStored,
            Base::Int8 => WeightsArg::Int8,
            // Blocks of one size whichever way their maxima are kept; trials hold them as QLoRA.
            Base::Nf4 { .. } => WeightsArg::Nf4,
        }
    }

    /// How trials run that have a model of this run behind them.
    pub fn trial_args(&self, attempts: u32, seed: u64) -> TrialArgs {
        let agent = self.recipe.agent.clone().unwrap_or_default();
        let mut trials = TrialArgs {
            attempts,
            seed,
            workers: self.args.workers,
            max_retries: agent.max_retries,
            redo_lost: true,
            trial_timeout: agent.trial_timeout_seconds,
            profile: self.profile,
            sandbox: self.args.sandbox.clone(),
            hub: self.args.hub.clone(),
            overrides: agent
                .set
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect(),
            ..TrialArgs::default()
        };
        trials.sampling.embedded_temperature = Some(agent.temperature);
        trials.sampling.embedded_reply_tokens = agent.reply_tokens;
        trials.sampling.embedded_steps = agent.steps;
        trials.engine.device = self.args.device.clone();
        trials.engine.weights = self.weights();
        trials.engine.context = self.recipe.model.context;
        trials.engine.max_sequences = self.args.workers;
        trials.engine.kv_cache_mib = self.args.kv_cache_mib;
        trials
    }

    /// Everything of trials that can change their results.
    pub fn trial_config(&self, attempts: u32, seed: u64) -> Result<Value, CliError> {
        let sandbox = &self.args.sandbox;
        Ok(json!({
            "attempts": attempts,
            "seed": seed,
            "agent": self.recipe.agent.clone().unwrap_or_default(),
            "context": self.recipe.model.context,
            "weights": format!("{:?}", self.weights()),
            "device": self.device()?.name(),
            "sandbox": {
                "kind": format!("{:?}", sandbox.sandbox),
                "memory_mib": sandbox.memory_mib,
                "disk_mib": sandbox.disk_mib,
                "processes": sandbox.processes,
                "demand": sandbox.demand,
                "without": sandbox.without,
                "host_network": sandbox.host_network,
            },
        }))
    }

    fn suite_args(
        &self,
        split: SplitArg,
        patterns: &[String],
        limit: Option<usize>,
    ) -> Result<SuiteArgs, CliError> {
        let suite = self.recipe.suite.as_ref().ok_or_else(|| {
            CliError::new(exit_code::INPUT, "find tasks: the recipe has no [suite]")
        })?;
        Ok(SuiteArgs {
            suite: suite.name.clone(),
            tasks: patterns.to_vec(),
            split: Some(split),
            limit,
            tasks_from: None,
        })
    }

    /// The tasks of a split whose ids fit, without their files.
    pub fn tasks(
        &self,
        split: SplitArg,
        patterns: &[String],
        limit: Option<usize>,
    ) -> Result<Vec<Task>, CliError> {
        let args = self.suite_args(split, patterns, limit)?;
        Ok(tasks::load(&args, self.places)?.tasks)
    }

    /// The training tasks of a teacher, without their files.
    pub fn taught(&self, settings: &CollectSettings) -> Result<Vec<Task>, CliError> {
        self.tasks(SplitArg::Train, &settings.tasks, settings.limit)
    }

    /// The dev tasks that select, without their files.
    pub fn selecting(&self, settings: &SelectSettings) -> Result<Vec<Task>, CliError> {
        self.tasks(SplitArg::Dev, &settings.tasks, settings.limit)
    }

    /// The tasks of a split whose ids fit with their files; they are prepared once.
    pub fn prepared(
        &self,
        split: SplitArg,
        patterns: &[String],
        limit: Option<usize>,
    ) -> Result<Rc<PreparedSuite>, CliError> {
        let key = (split as u8, patterns.to_vec(), limit);
        if let Some(suite) = self.suites.borrow().get(&key) {
            return Ok(Rc::clone(suite));
        }
        let args = self.suite_args(split, patterns, limit)?;
        let suite = Rc::new(tasks::prepare(&args, self.places, self.args.workers)?);
        self.suites.borrow_mut().insert(key, Rc::clone(&suite));
        Ok(suite)
    }

    /// The record of a stage that is done, which is then skipped. One that `--from` leaves out and
    /// that is not done is an error.
    pub fn done(&self, stage: &Stage) -> Step<Option<StageRecord>> {
        if let Some(record) = self.stages.record(stage)? {
            self.note(&format!("{}: done before, skipped", stage.label()));
            return Ok(Some(record));
        }
        let from = self.args.from.map(StageName::from);
        if let Some(from) = from.filter(|from| stage.name < *from) {
            let begun = if self.stages.is_begun(stage) {
                "is not finished"
            } else {
                "has not been run with these inputs and settings"
            };
            return Err(CliError::new(
                exit_code::INPUT,
                format!("begin with {from}: {} {begun}", stage.label()),
            )
            .hint("leave --from out, and what is missing is done")
            .into());
        }
        Ok(None)
    }

    /// Marks a stage as done.
    pub fn finish(
        &self,
        stage: &Stage,
        outputs: BTreeMap<String, Digest>,
        result: Value,
        began: Instant,
    ) -> Step<StageRecord> {
        let seconds = began.elapsed().as_secs_f64();
        let record = self
            .stages
            .finish(stage, outputs, result, clock::now(), seconds)?;
        Ok(record)
    }

    /// Whether a stage comes within `--until`.
    pub fn reaches(&self, stage: StageName) -> bool {
        self.args
            .until
            .is_none_or(|until| stage <= StageName::from(until))
    }

    /// Whether Ctrl-C was pressed.
    pub fn is_stopped(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    /// Tells the user something, unless it should be quiet.
    pub fn note(&self, text: &str) {
        if !self.places.quiet {
            output::note(text);
        }
    }

    /// A path below the run's directory.
    pub fn at(&self, name: &str) -> PathBuf {
        self.stages.root().join(name)
    }

    /// A path as records have it: below the run's directory.
    pub fn relative(&self, path: &Path) -> String {
        let path = path.strip_prefix(self.stages.root()).unwrap_or(path);
        path.display().to_string()
    }
}

/// The digest of tasks by content.
pub fn task_set(tasks: &[Task]) -> Result<Digest, CliError> {
    let tasks: Vec<&Task> = tasks.iter().collect();
    overlap::set_digest(&tasks).map_err(tasks::input_error)
}

/// This program.
pub fn producer() -> Producer {
    Producer {
        name: "temper".into(),
        version: env!("CARGO_PKG_VERSION").into(),
    }
}

impl From<temper_recipe::StageError> for CliError {
    fn from(error: temper_recipe::StageError) -> Self {
        let code = match &error {
            temper_recipe::StageError::File { .. } => exit_code::FAILURE,
            temper_recipe::StageError::Busy(_) | temper_recipe::StageError::Corrupt { .. } => {
                exit_code::INPUT
            }
        };
        let is_busy = matches!(error, temper_recipe::StageError::Busy(_));
        let error = CliError::new(code, error);
        if is_busy {
            error.hint("wait for it, end it, or name another directory with -o")
        } else {
            error
        }
    }
}
