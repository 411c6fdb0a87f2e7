//! The stages before training: candidates from teachers, and a data set of them.

use std::{collections::BTreeMap, path::PathBuf, time::Instant};

use serde_json::{Value, json};
use temper_agent::collect::{Branches, Run, TeacherKind};
use temper_core::Digest;
use temper_dataset::build::BuildConfig;
use temper_recipe::{Stage, StageName, config::CollectSettings};

use super::{
    data::TrainingData,
    plan::Line,
    session::{Halt, Session, Step, task_set},
    trials::{self, file_name},
};
use crate::{
    agents::{self, Agent},
    args::{FormatArgs, SplitArg, TrialArgs},
    engines::REPLY_KEY,
    error::CliError,
    exit_code, output,
    verbs::{collect, dataset},
};

/// The model that is trained, as a teacher.
const POLICY: &str = "policy";

/// A teacher's stage, and where its candidates are.
struct Teaching<'a> {
    settings: &'a CollectSettings,
    stage: Stage,
    /// Not in the stage's folder: a suite that is extended takes the candidates over.
    store: PathBuf,
}

impl<'a> Teaching<'a> {
    fn new(
        session: &Session<'_>,
        index: usize,
        settings: &'a CollectSettings,
    ) -> Result<Self, CliError> {
        let mut config = session.trial_config(settings.attempts, settings.seed)?;
        let agent = session.recipe.agent.clone().unwrap_or_default();
        config["settings"] = json!(settings);
        // What only the trained model has is nothing to another teacher.
        if settings.teacher != POLICY {
            for of_model in ["context", "weights", "device"] {
                config[of_model] = Value::Null;
            }
            config["agent"] = json!({
                "profile": agent.profile,
                "set": agent.set,
                "reply_tokens": agent.reply_tokens,
                "trial_timeout_seconds": agent.trial_timeout_seconds,
                "max_retries": agent.max_retries,
            });
        }
        let tasks = session.taught(settings)?;
        let mut inputs = BTreeMap::from([("tasks".to_owned(), task_set(&tasks)?)]);
        let mut of_store = json!({ "config": config });
        if settings.teacher == POLICY {
            let start = session.start()?;
            of_store["policy"] = json!([&session.base, &start.digest]);
            inputs.insert("model".into(), session.base.clone());
            inputs.insert("start".into(), start.digest);
        }
        let part = format!("{index}-{}", file_name(&settings.teacher));
        let store = Digest::of_value(&of_store);
        Ok(Teaching {
            settings,
            store: session
                .at(StageName::Collect.as_str())
                .join(&part)
                .join(format!("candidates-{}", store.short())),
            stage: Stage {
                name: StageName::Collect,
                part: Some(part),
                inputs,
                config,
            },
        })
    }

    fn trials(&self, session: &Session<'_>) -> TrialArgs {
        let settings = self.settings;
        let mut trials = session.trial_args(settings.attempts, settings.seed);
        trials.redo_lost = false;
        trials.budget = session.args.budget.clone();
        // The prompt says how long a reply may be. What another one shows is learned under the
        // prompt of the trained model, and is compared with its trials.
        if settings.teacher != POLICY
            && let Some(n_tokens) = trials.sampling.embedded_reply_tokens
        {
            trials.overrides.push(format!("{REPLY_KEY}={n_tokens}"));
        }
        if settings.temperature.is_some() {
            trials.sampling.embedded_temperature = settings.temperature;
        }
        trials
    }

    /// Collects what is missing; the digest says which candidates there are, and which of them are
    /// verified.
    fn collect(&self, session: &Session<'_>) -> Step<Digest> {
        if let Some(record) = session.done(&self.stage)? {
            let folder = session.stages.folder(&self.stage);
            return Ok(record.output("candidates", &folder)?);
        }
        let began = Instant::now();
        let trials = self.trials(session);
        let profile = agents::profile(&trials)?;
        let (agent, kind) = if self.settings.teacher == POLICY {
            let agent = trials::agent(session, &session.start()?, &profile, &trials.sampling)?;
            (agent, TeacherKind::Policy)
        } else {
            let teacher = &self.settings.teacher;
            Agent::resolve_teacher(teacher, false, &trials, &profile, session.places)?
        };
        let profile = agent.profile(&profile)?;
        trials::check_context(session, &agent, &profile, &trials)?;
        let branches = self.settings.branches.map(|n_continuations| Branches {
            n_continuations,
            steps_back: self
                .settings
                .steps_back
                .unwrap_or(Branches::default().steps_back),
            ..Branches::default()
        });
        let suite = session.prepared(SplitArg::Train, &self.settings.tasks, self.settings.limit)?;
        let done = collect::collect_into(&collect::Request {
            agent: &agent,
            kind,
            profile: &profile,
            sandboxes: session.sandboxes()?,
            suite: &suite,
            trials: &trials,
            branches,
            output: &self.store,
            places: session.places,
        })?;
        if done.code != exit_code::SUCCESS {
            return Err(Halt::Code(done.code));
        }
        let run = done.run;
        let candidates = candidates(&run);
        session.note(&format!(
            "{}: {} of {} tasks have a verified candidate",
            self.stage.label(),
            run.n_tasks_verified(),
            run.tasks.len()
        ));
        if !run.lost.is_empty() {
            // Without a record the next run tries them again.
            output::note(&format!(
                "{}: {} trials are lost to the infrastructure; the same command tries them again",
                self.stage.label(),
                run.lost.len()
            ));
            return Ok(candidates);
        }
        session.finish(
            &self.stage,
            BTreeMap::from([("candidates".to_owned(), candidates.clone())]),
            json!({
                "teacher": run.teacher.name,
                "kind": run.teacher.kind,
                "store": session.relative(&self.store),
                "n_tasks": run.tasks.len(),
                "n_tasks_verified": run.n_tasks_verified(),
                "n_candidates": run.total.n_candidates,
            }),
            began,
        )?;
        Ok(candidates)
    }
}

/// Which candidates there are, by content.
fn candidates(run: &Run) -> Digest {
    let of_tasks: BTreeMap<_, _> = run
        .tasks
        .iter()
        .map(|task| (&task.content, &task.candidates))
        .collect();
    Digest::of_value(&(&run.request, of_tasks))
}

/// Collects and builds as far as `--until` says; the data set's directory, where that is reached.
pub fn provide(session: &Session<'_>) -> Step<Option<PathBuf>> {
    let mut candidates = Vec::new();
    let mut stores = Vec::new();
    for (index, settings) in session.recipe.collect.iter().enumerate() {
        let teaching = Teaching::new(session, index, settings)?;
        candidates.push(teaching.collect(session)?);
        stores.push(teaching.store);
        if session.is_stopped() {
            return Err(Halt::Code(exit_code::INTERRUPTED));
        }
    }
    if !session.reaches(StageName::Build) {
        return Ok(None);
    }
    let stage = build_stage(session, &candidates)?;
    let directory = session.stages.folder(&stage).join("dataset");
    if session.done(&stage)?.is_some() {
        return Ok(Some(directory));
    }
    let began = Instant::now();
    // One that is there was whole when it got its name; only its record is missing.
    if !directory.exists() {
        let report = dataset::build::make(
            &dataset::args::BuildArgs {
                inputs: stores,
                suite: suite(session)?,
                against: Vec::new(),
                model: session.recipe.model.source.clone(),
                output: Some(directory.clone()),
                config: None,
                print_config: false,
                learned_tokens: None,
                equal_budget: Vec::new(),
                seed: None,
                no_replay: false,
                sandbox: session.args.sandbox.clone(),
                hub: session.args.hub.clone(),
                format: FormatArgs {
                    format: session.args.format.format,
                },
            },
            &config(session),
            &directory,
            session.places,
        )?;
        session.note(&dataset::build::text(&report));
    }
    let data = TrainingData::read(&directory)?;
    let (n_rows, n_pairs) = (data.rows.len(), data.pairs.len());
    session.finish(
        &stage,
        BTreeMap::from([
            ("rows".to_owned(), data.rows_digest),
            ("pairs".to_owned(), data.pairs_digest),
        ]),
        json!({ "dataset": "dataset", "n_rows": n_rows, "n_pairs": n_pairs }),
        began,
    )?;
    Ok(Some(directory))
}

fn suite(session: &Session<'_>) -> Result<String, CliError> {
    let suite = session.recipe.suite.as_ref();
    suite
        .map(|suite| suite.name.clone())
        .ok_or_else(|| CliError::new(exit_code::INPUT, "find tasks: the recipe has no [suite]"))
}

/// The recipe's settings, with rows no longer than the model takes.
fn config(session: &Session<'_>) -> BuildConfig {
    let mut config = session.recipe.build.clone().unwrap_or_default();
    let most = session.checkpoint.config().max_position_embeddings;
    config.max_tokens = Some(config.max_tokens.map_or(most, |limit| limit.min(most)));
    config
}

fn build_stage(session: &Session<'_>, candidates: &[Digest]) -> Result<Stage, CliError> {
    let tasks = |split| -> Result<Digest, CliError> {
        // A suite may have no dev or test tasks; then there is nothing to be like.
        session
            .tasks(split, &[], None)
            .map_or_else(|_| Ok(Digest::of(b"")), |tasks| task_set(&tasks))
    };
    let mut inputs = BTreeMap::from([
        ("model".to_owned(), session.base.clone()),
        ("train-tasks".to_owned(), tasks(SplitArg::Train)?),
        ("dev-tasks".to_owned(), tasks(SplitArg::Dev)?),
        ("test-tasks".to_owned(), tasks(SplitArg::Test)?),
    ]);
    for (index, digest) in candidates.iter().enumerate() {
        inputs.insert(format!("candidates-{index}"), digest.clone());
    }
    Ok(Stage {
        name: StageName::Build,
        part: None,
        inputs,
        config: json!(config(session)),
    })
}

/// The candidates' digests, where every teacher is done.
fn known(session: &Session<'_>) -> Result<Vec<Option<Digest>>, CliError> {
    let teachers = session.recipe.collect.iter().enumerate();
    teachers
        .map(|(index, settings)| {
            let stage = Teaching::new(session, index, settings)?.stage;
            let record = session.stages.record(&stage)?;
            Ok(record.and_then(|record| record.outputs.get("candidates").cloned()))
        })
        .collect()
}

/// The data set's directory, where it is built.
pub fn existing(session: &Session<'_>) -> Result<Option<PathBuf>, CliError> {
    let Some(candidates) = known(session)?.into_iter().collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let stage = build_stage(session, &candidates)?;
    let is_done = session.stages.record(&stage)?.is_some();
    Ok(is_done.then(|| session.stages.folder(&stage).join("dataset")))
}

/// What collecting and building would do.
pub fn plan(session: &Session<'_>) -> Result<Vec<Line>, CliError> {
    let mut lines = Vec::new();
    for (settings, known) in session.recipe.collect.iter().zip(known(session)?) {
        let n_tasks = session.taught(settings)?.len();
        lines.push(Line::of(
            StageName::Collect,
            Some(settings.teacher.clone()),
            known.is_some(),
            format!(
                "{} candidates of each of {n_tasks} training tasks",
                settings.attempts
            ),
        ));
    }
    if session.recipe.build.is_some() {
        lines.push(Line::of(
            StageName::Build,
            None,
            existing(session)?.is_some(),
            "rows and pairs of what is verified".to_owned(),
        ));
    }
    Ok(lines)
}
