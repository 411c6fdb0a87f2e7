//! Trials of the base model and of snapshots in the agent loop, with executed verdicts.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Instant};

use serde_json::{Value, json};
use temper_agent::{job::JobDirectory, profile::ResolvedProfile};
use temper_core::{Digest, Trial};
use temper_model::{policy::EmbeddedPolicy, sample::Engine};
use temper_recipe::{Stage, StageName};

use super::{
    fit::read_adapter,
    session::{Halt, Session, Step},
};
use crate::{
    agents::{self, Agent, CONTEXT_KEY},
    args::{SplitArg, TrialArgs},
    engines::SamplingArgs,
    error::CliError,
    exit_code,
    jobs::{self, Request},
    run_profile,
    verbs::model::locate::{Located, Origin},
};

/// Something that solves tasks: the base model, or a snapshot.
#[derive(Clone, Debug)]
pub struct Contender {
    /// What it is called.
    pub name: String,
    /// What is put on the model.
    pub weights: Weights,
    /// The digest of that.
    pub digest: Digest,
}

/// What makes a contender different from the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Nothing.
    Base,
    /// A PEFT folder.
    Adapter(PathBuf),
    /// A model trained whole.
    Model(PathBuf),
}

/// Trials that are wanted.
pub struct TrialRun<'a> {
    /// The stage that they belong to.
    pub stage: StageName,
    /// Who.
    pub contender: &'a Contender,
    /// On the tasks of this split.
    pub split: SplitArg,
    /// Those whose ids fit; all where there is no pattern.
    pub patterns: &'a [String],
    /// At most so many of them.
    pub limit: Option<usize>,
    /// The digest of these tasks.
    pub tasks: &'a Digest,
    /// Trials of each.
    pub attempts: u32,
    /// What they are drawn from.
    pub seed: u64,
    /// Which time it is, where that is counted.
    pub number: Option<u32>,
}

/// Trials that are done.
pub struct TrialsDone {
    /// The job's directory.
    pub job: PathBuf,
    /// The digest of what came of each.
    pub digest: Digest,
}

/// An engine with the model in it, under which adapters are loaded.
pub struct OpenEngine {
    /// The folder of a model trained whole; none for the base.
    model: Option<PathBuf>,
    policy: Arc<EmbeddedPolicy>,
    engine: Arc<Engine>,
}

impl Session<'_> {
    /// The model that training starts from as a contender.
    pub fn start(&self) -> Result<Contender, CliError> {
        let name = self.located.name();
        match &self.recipe.model.adapter {
            None => Ok(Contender {
                name,
                weights: Weights::Base,
                digest: self.base.clone(),
            }),
            Some(path) => {
                let adapter = read_adapter(path, self)?;
                Ok(Contender {
                    name: format!("{name}-start"),
                    weights: Weights::Adapter(path.clone()),
                    digest: temper_train::adapter_digest(&adapter),
                })
            }
        }
    }
}

impl TrialRun<'_> {
    /// The piece of a stage that it is.
    pub fn stage(&self, session: &Session<'_>) -> Result<Stage, CliError> {
        let mut config = session.trial_config(self.attempts, self.seed)?;
        if let Some(number) = self.number {
            config["number"] = number.into();
        }
        Ok(Stage {
            name: self.stage,
            part: Some(format!("trials-{}", file_name(&self.contender.name))),
            inputs: BTreeMap::from([
                ("model".into(), session.base.clone()),
                ("contender".into(), self.contender.digest.clone()),
                ("tasks".into(), self.tasks.clone()),
            ]),
            config,
        })
    }
}

/// Runs what is missing of the trials.
pub fn run(session: &Session<'_>, wanted: &TrialRun<'_>) -> Step<TrialsDone> {
    let stage = wanted.stage(session)?;
    let folder = session.stages.folder(&stage);
    let job = folder.join("job");
    if let Some(record) = session.done(&stage)? {
        return Ok(TrialsDone {
            digest: record.output("verdicts", &folder)?,
            job,
        });
    }
    let began = Instant::now();
    let trials = session.trial_args(wanted.attempts, wanted.seed);
    let profile = agents::profile(&trials)?;
    let agent = agent(session, wanted.contender, &profile, &trials.sampling)?;
    let profile = agent.profile(&profile)?;
    check_context(session, &agent, &profile, &trials)?;
    let n_before = JobDirectory::open(&job)
        .ok()
        .and_then(|job| job.trials().ok())
        .map_or(0, |trials| trials.len());
    let suite = session.prepared(wanted.split, wanted.patterns, wanted.limit)?;
    let done = jobs::run(&Request {
        directory: job.clone(),
        agent: &agent,
        profile: &profile,
        suite: &suite,
        sandboxes: session.sandboxes()?,
        trials: &trials,
        shard: None,
        workers: None,
        places: session.places,
    })?;
    if done.code != exit_code::SUCCESS {
        return Err(Halt::Code(done.code));
    }
    let trials = done.job.trials()?;
    let scored = trials.iter().filter_map(Trial::solved);
    let (n_scored, n_solved) =
        scored.fold((0, 0), |(n, solved), it| (n + 1, solved + u64::from(it)));
    if n_scored == 0 {
        return Err(CliError::new(
            exit_code::ALL_LOST,
            format!(
                "judge {}: the infrastructure lost all of its {} trials",
                wanted.contender.name,
                trials.len()
            ),
        )
        .into());
    }
    close(session, wanted.contender)?;
    let record = session.finish(
        &stage,
        BTreeMap::from([("verdicts".to_owned(), verdicts(&trials))]),
        json!({
            "contender": wanted.contender.name,
            "n_trials": trials.len(),
            "n_scored": n_scored,
            "n_solved": n_solved,
            "n_run_last": trials.len() - n_before,
        }),
        began,
    )?;
    Ok(TrialsDone {
        digest: record.output("verdicts", &folder)?,
        job,
    })
}

/// The gate of `temper run` for trials of a recipe: profile, server or engine, and what was trained
/// on must agree. Training has no one length here, but a row that is longer than the window is one
/// that no trial can ever see.
pub fn check_context(
    session: &Session<'_>,
    agent: &Agent,
    profile: &ResolvedProfile,
    trials: &TrialArgs,
) -> Result<(), CliError> {
    run_profile::check_context(agent, profile, trials).map_err(|error| {
        error.hint(format!(
            "give context of [model] and \"{CONTEXT_KEY}\" of [agent.set] the same length, or leave \
             both out; a server has to have the window of the profile"
        ))
    })?;
    let longest = session.longest_row.get() as u64;
    match agent.server_context.filter(|_| agent.engine.is_some()) {
        Some(window) if longest > window => Err(CliError::new(
            exit_code::GATE_CLOSED,
            format!(
                "agree on the context: the longest row that is trained on has {longest} tokens, \
                 trials have {window}"
            ),
        )
        .hint("raise context of [model], or build the data with max_tokens")),
        _ => Ok(()),
    }
}

/// A contender as an agent; the engine that it needs stays open for the next.
pub fn agent(
    session: &Session<'_>,
    contender: &Contender,
    profile: &ResolvedProfile,
    sampling: &SamplingArgs,
) -> Result<Agent, CliError> {
    let wanted = profile.settings().context_tokens.map(|n| n as usize);
    let adapter = open(session, contender, wanted)?;
    let engine = session.engine.borrow();
    let Some(open) = engine.as_ref() else {
        return Err(CliError::new(exit_code::FAILURE, "keep an engine open"));
    };
    let agent = Agent::of_policy(
        &contender.name,
        Arc::clone(&open.policy),
        Arc::clone(&open.engine),
        adapter,
        sampling,
    )?;
    Ok(agent.following_engine(profile))
}

/// Unloads the contender's adapter.
fn close(session: &Session<'_>, contender: &Contender) -> Result<(), CliError> {
    if let Weights::Adapter(_) = contender.weights
        && let Some(open) = session.engine.borrow().as_ref()
    {
        open.engine
            .unload_adapter(&adapter_name(contender))
            .map_err(|error| CliError::new(exit_code::FAILURE, error))?;
    }
    Ok(())
}

/// Says which weights the adapter has, since it is what a job knows of it.
fn adapter_name(contender: &Contender) -> String {
    format!("adapter-{}", contender.digest.short())
}

/// Opens the engine that the contender needs, and loads its adapter, whose name is given back.
fn open(
    session: &Session<'_>,
    contender: &Contender,
    wanted_context: Option<usize>,
) -> Result<Option<String>, CliError> {
    let model = match &contender.weights {
        Weights::Model(path) => Some(path.clone()),
        Weights::Base | Weights::Adapter(_) => None,
    };
    let is_open = session
        .engine
        .borrow()
        .as_ref()
        .is_some_and(|open| open.model == model);
    if !is_open {
        // The old one's memory is free before the new one asks for it.
        session.engine.replace(None);
        let located = match &model {
            None => session.located.clone(),
            Some(path) => Located {
                path: path.clone(),
                origin: Origin::Local,
            },
        };
        let trials = session.trial_args(1, 0);
        let sequences = Agent::embedded_workers(trials.workers);
        let embedded =
            trials
                .engine
                .open_on(session.device()?, &located, sequences, wanted_context)?;
        let engine = Arc::clone(&embedded.engine);
        session.engine.replace(Some(OpenEngine {
            model,
            engine,
            policy: Arc::new(embedded.into_policy()?),
        }));
    }
    let Weights::Adapter(path) = &contender.weights else {
        return Ok(None);
    };
    let name = adapter_name(contender);
    let adapter = read_adapter(path, session)?;
    if let Some(open) = session.engine.borrow().as_ref() {
        open.engine
            .load_adapter(&name, adapter)
            .map_err(|error| CliError::new(exit_code::FAILURE, error))?;
    }
    Ok(Some(name))
}

/// What came of each trial, by content.
fn verdicts(trials: &[Trial]) -> Digest {
    let mut of: Vec<(String, u32, Value)> = trials
        .iter()
        .map(|trial| {
            let verdict = json!(trial.verdict.resolution);
            (trial.task_id.to_string(), trial.attempt, verdict)
        })
        .collect();
    of.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    Digest::of_value(&of)
}

/// A name without what has a meaning in paths.
pub fn file_name(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    name.chars()
        .map(|c| if plain(c) { c } else { '-' })
        .collect()
}
