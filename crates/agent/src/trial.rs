//! One trial from an empty directory to its record: sandbox, loop, patch, verdict.
//!
//! Whatever breaks becomes part of the record. A fault of the infrastructure makes the trial lost;
//! it is never a result, and never a reward of zero.

mod place;
mod work_tree;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use temper_core::{
    AgentName, Boundary, Failure, Patch, PreparedTask, TaskId, Trial, Verdict, patch,
    task::{Oracle, TaskFormat},
    trajectory::{End, Exit, Header, Limit, Record, Step},
    trial::{PatchSource, Timing},
    usage::Usage,
    verdict::Resolution,
};
use temper_sandbox::{
    Backend, Demand, Limits, Network, Sandbox, SandboxError,
    verify::{self, GradeRequest, Submission},
};

use crate::{
    job::{Cancelled, TrialKey, TrialRunner},
    model::{Model, ModelError, ModelErrorClass, ModelFactory, ModelReply, ModelRequest},
    profile::ResolvedProfile,
    rollout::{self, RecordError, Recorder, Rollout},
    states::{BranchStart, StateKeeper},
    trajectory_file::TrajectoryWriter,
};

pub use place::SandboxPlace;
pub(crate) use work_tree::work_tree_patch;

/// Everything the trials of a job share.
pub struct TrialContext<'a> {
    /// The arm.
    pub agent: AgentName,
    /// Its texts and settings.
    pub profile: &'a ResolvedProfile,
    /// What drives it.
    pub models: &'a dyn ModelFactory,
    /// The tasks, ready, or why one is not.
    pub tasks: BTreeMap<TaskId, Result<PreparedTask, (temper_core::Task, Failure)>>,
    /// Where commands run.
    pub backend: &'a dyn Backend,
    /// Limits of every sandbox.
    pub limits: Limits,
    /// Protections of every sandbox.
    pub demand: Demand,
    /// What the agent sees of the network.
    pub network: Network,
    /// Wall-clock limit of one trial's loop.
    pub wall_limit: Duration,
    /// When the job's own wall time ends; a trial is cut off there in the middle of a command.
    pub deadline: Option<Instant>,
    /// The job's seed.
    pub seed: u64,
    /// Stops everything.
    pub cancel: &'a AtomicBool,
    /// Whether reaching this limit means that the job's budget is spent. Such a trial was cut off
    /// from outside and is no result.
    pub is_job_limit: &'a (dyn Fn(Limit) -> bool + Sync),
    /// The time now as RFC 3339.
    pub now: &'a (dyn Fn() -> String + Sync),
}

impl TrialRunner for TrialContext<'_> {
    fn run(&self, key: &TrialKey, directory: &Path, n_retries: u32) -> Result<Trial, Cancelled> {
        let started = Instant::now();
        let started_at = (self.now)();
        let attempt = Attempt {
            context: self,
            key,
            directory,
        };
        let mut outcome = match self.tasks.get(&key.task_id) {
            Some(Ok(prepared)) => attempt.run(prepared)?,
            Some(Err((_, failure))) => Outcome::lost(failure.clone()),
            None => Outcome::lost(Failure {
                boundary: Boundary::Task,
                class: "UnknownTask".into(),
                message: format!("the job has no task {}", key.task_id),
                retryable: false,
            }),
        };
        outcome.timing.total_seconds = started.elapsed().as_secs_f64();
        let task = match self.tasks.get(&key.task_id) {
            Some(Ok(prepared)) => Some(&prepared.task),
            Some(Err((task, _))) => Some(task),
            None => None,
        };
        Ok(Trial {
            format: Trial::FORMAT,
            task_id: key.task_id.clone(),
            task_digest: task
                .map_or_else(|| temper_core::Digest::of(b""), temper_core::Task::digest),
            source_group: task.map_or_else(
                || temper_core::SourceGroup::new("unknown").expect("a plain word is a name"),
                |task| task.source_group.clone(),
            ),
            agent: self.agent.clone(),
            attempt: key.attempt,
            seed: key.seed(self.seed),
            exit: outcome.exit,
            patch: outcome.patch,
            patch_source: self.profile.settings().patch_source,
            verdict: outcome.verdict,
            failure: outcome.failure,
            n_model_calls: outcome.n_model_calls,
            n_steps: outcome.n_steps,
            usage: outcome.usage,
            cost: outcome.cost,
            timing: outcome.timing,
            n_retries,
            started_at,
            finished_at: (self.now)(),
        })
    }
}

impl TrialContext<'_> {
    /// Runs one trial up to its patch and judges nothing. Its trajectory and patch lie in
    /// `directory`. `from` starts it in a state of another trial; `keep` takes the states that it
    /// passes through.
    pub fn sample(
        &self,
        prepared: &PreparedTask,
        key: &TrialKey,
        directory: &Path,
        from: Option<&BranchStart>,
        keep: Option<&mut StateKeeper>,
    ) -> Result<Outcome, Cancelled> {
        let started = Instant::now();
        let attempt = Attempt {
            context: self,
            key,
            directory,
        };
        let mut outcome = attempt.sample(prepared, from, keep)?;
        outcome.timing.total_seconds = started.elapsed().as_secs_f64();
        Ok(outcome)
    }

    /// Judges the patch of a trial in fresh sandboxes. The layers' logs lie in `directory`.
    pub fn grade(
        &self,
        prepared: &PreparedTask,
        key: &TrialKey,
        directory: &Path,
        patch: &Patch,
    ) -> (Verdict, Option<Failure>) {
        let attempt = Attempt {
            context: self,
            key,
            directory,
        };
        let mut outcome = Outcome::lost(record_failure("nothing was judged"));
        attempt.grade(prepared, patch, &mut outcome);
        (outcome.verdict, outcome.failure)
    }
}

/// The parts of a record that a trial decides.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How the loop ended.
    pub exit: Exit,
    /// The final patch, where there is one.
    pub patch: Option<Patch>,
    /// The judgement: lost until somebody judges, or that the patch cannot be read back.
    pub verdict: Verdict,
    /// Why nothing is known, when the infrastructure failed.
    pub failure: Option<Failure>,
    /// Model calls that returned a reply.
    pub n_model_calls: u32,
    /// Agent turns.
    pub n_steps: u32,
    /// Tokens.
    pub usage: Usage,
    /// Price, where known.
    pub cost: Option<temper_core::usage::MicroDollars>,
    /// Where the time went.
    pub timing: Timing,
}

impl Outcome {
    fn lost(failure: Failure) -> Self {
        Outcome {
            exit: Exit::Failed {
                failure: failure.clone(),
            },
            patch: None,
            verdict: Verdict::lost("none", failure.message.clone()),
            failure: Some(failure),
            n_model_calls: 0,
            n_steps: 0,
            usage: Usage::default(),
            cost: None,
            timing: Timing::default(),
        }
    }
}

struct Attempt<'a> {
    context: &'a TrialContext<'a>,
    key: &'a TrialKey,
    directory: &'a Path,
}

impl Attempt<'_> {
    fn run(&self, prepared: &PreparedTask) -> Result<Outcome, Cancelled> {
        let mut outcome = self.sample(prepared, None, None)?;
        if outcome.failure.is_none()
            && let Some(patch) = outcome.patch.take()
        {
            self.grade(prepared, &patch, &mut outcome);
            outcome.patch = Some(patch);
        }
        if self.context.cancel.load(Ordering::Relaxed) {
            return Err(Cancelled);
        }
        Ok(outcome)
    }

    /// Everything up to the patch.
    fn sample(
        &self,
        prepared: &PreparedTask,
        from: Option<&BranchStart>,
        keep: Option<&mut StateKeeper>,
    ) -> Result<Outcome, Cancelled> {
        let context = self.context;
        let started = Instant::now();
        let begun = match from {
            None => self.start_sandbox(prepared),
            Some(from) => {
                let label = format!("{}.{}", self.key.task_id, self.key.attempt);
                let forked = context.backend.fork(&from.state, &label);
                forked.map_err(|error| error.failure())
            }
        };
        let mut sandbox = match begun {
            Ok(sandbox) => sandbox,
            Err(failure) => return Ok(Outcome::lost(failure)),
        };
        let setup_seconds = started.elapsed().as_secs_f64();

        let mut recorder = match self.open_trajectory(prepared, from) {
            Ok(recorder) => recorder,
            Err(failure) => return Ok(Outcome::lost(failure)),
        };
        let (end, refused) = match context.models.open(prepared, self.key.seed(context.seed)) {
            Ok(model) => {
                let sandbox = sandbox.as_mut();
                self.roll_out(prepared, model, sandbox, &mut recorder, from, keep)
            }
            Err(error) => return Ok(Outcome::lost(rollout::model_failure(error))),
        };
        // Work that was cut off from outside is no attempt at the task: the job does it again.
        let limit = match end.exit {
            Exit::LimitReached { limit } => Some(limit),
            _ => refused,
        };
        let is_cut_off = limit.is_some_and(|limit| (context.is_job_limit)(limit));
        if is_cut_off || context.cancel.load(Ordering::Relaxed) {
            return Err(Cancelled);
        }
        let mut outcome = Outcome {
            exit: end.exit.clone(),
            patch: None,
            verdict: Verdict::lost("none", ""),
            failure: None,
            n_model_calls: end.n_model_calls,
            n_steps: recorder.n_steps,
            usage: end.usage,
            cost: end.cost,
            timing: Timing {
                setup_seconds,
                model_seconds: recorder.model_seconds,
                action_seconds: recorder.action_seconds,
                ..Timing::default()
            },
        };
        if let Err(failure) = recorder.finish() {
            outcome.fail(failure);
            return Ok(outcome);
        }
        if let Exit::Failed { failure } = &end.exit {
            outcome.fail(failure.clone());
        }
        // What a failed trial left is kept for people, though nothing is concluded from it.
        match self.final_patch(prepared, &end, sandbox.as_mut()) {
            Ok(patch) => outcome.patch = Some(patch),
            // What the agent made of its work tree cannot be read back. That is no fault of the
            // infrastructure, and must not be a way around the verdict.
            Err(SandboxError::File {
                operation: "collect",
                reason,
                ..
            }) if outcome.failure.is_none() => {
                outcome.verdict = Verdict {
                    detail: format!("the final work tree cannot be collected: {reason}"),
                    ..Verdict::bare(Resolution::InvalidPatch, "none")
                };
            }
            Err(error) if outcome.failure.is_none() => outcome.fail(error.failure()),
            Err(_) => {}
        }
        if let Err(error) = sandbox.stop()
            && outcome.failure.is_none()
        {
            outcome.fail(error.failure());
        }
        if let Some(patch) = &outcome.patch
            && let Err(failure) = self.keep("patch.diff", &patch.0)
        {
            outcome.fail(failure);
        }
        if context.cancel.load(Ordering::Relaxed) {
            return Err(Cancelled);
        }
        Ok(outcome)
    }

    fn start_sandbox(&self, prepared: &PreparedTask) -> Result<Box<dyn Sandbox>, Failure> {
        let label = format!("{}.{}", self.key.task_id, self.key.attempt);
        self.context.place().start(prepared, label)
    }

    fn open_trajectory(
        &self,
        prepared: &PreparedTask,
        from: Option<&BranchStart>,
    ) -> Result<TrialRecorder, Failure> {
        let context = self.context;
        let header = Header {
            format: Header::FORMAT,
            task_id: self.key.task_id.clone(),
            agent: context.agent.clone(),
            attempt: self.key.attempt,
            seed: self.key.seed(context.seed),
            profile: context.profile.name(),
            profile_digest: context.profile.digest(),
            config: context.profile.config(),
            model: context.models.describe(),
            sandbox: describe_sandbox(context.backend, prepared),
            started_at: (context.now)(),
            branch: from.map(|from| from.branch.clone()),
        };
        let path = self.directory.join("trajectory.jsonl");
        let writer = TrajectoryWriter::create(&path, &header)
            .map_err(|error| record_failure(&error.to_string()))?;
        Ok(TrialRecorder {
            writer,
            n_steps: 0,
            model_seconds: 0.0,
            action_seconds: 0.0,
        })
    }

    fn roll_out(
        &self,
        prepared: &PreparedTask,
        model: Box<dyn Model>,
        sandbox: &mut dyn Sandbox,
        recorder: &mut TrialRecorder,
        from: Option<&BranchStart>,
        keep: Option<&mut StateKeeper>,
    ) -> (End, Option<Limit>) {
        let context = self.context;
        let mut model = Watched {
            inner: model,
            refused: None,
        };
        let mut after_step = keep
            .map(|keep| move |number: u32, sandbox: &mut dyn Sandbox| keep.keep(number, sandbox));
        let end = rollout::run(Rollout {
            profile: context.profile,
            variables: rollout::task_variables(&prepared.task.statement, &prepared.work_tree),
            directory: Some(&prepared.work_tree),
            seed: self.key.seed(context.seed),
            deadline: [
                Instant::now().checked_add(context.wall_limit),
                context.deadline,
            ]
            .into_iter()
            .flatten()
            .min(),
            cancel: context.cancel,
            now: &|| (context.now)(),
            count_tokens: None,
            model: &mut model,
            sandbox,
            recorder,
            prefix: from.map(|from| rollout::Prefix {
                prompts: &from.prompts,
                steps: &from.steps,
            }),
            after_step: after_step.as_mut().map(|after_step| after_step as _),
        });
        (end, model.refused)
    }

    /// The patch that stands for the trial: as the profile says, what the agent submitted or what
    /// it left in the work tree.
    fn final_patch(
        &self,
        prepared: &PreparedTask,
        end: &End,
        sandbox: &mut dyn Sandbox,
    ) -> Result<Patch, SandboxError> {
        match self.context.profile.settings().patch_source {
            PatchSource::Submission | PatchSource::Predictions => {
                Ok(Patch(end.submission.clone().unwrap_or_default()))
            }
            PatchSource::WorkTree => work_tree_patch(prepared, sandbox),
        }
    }

    fn grade(&self, prepared: &PreparedTask, patch: &Patch, outcome: &mut Outcome) {
        let started = Instant::now();
        let mut log_failure = None;
        let graded = verify::grade(
            &GradeRequest {
                task: prepared,
                submission: Submission::Patch(patch),
                backend: self.context.backend,
                limits: self.context.limits.clone(),
                demand: self.context.demand.clone(),
                label: format!("grade.{}.{}", self.key.task_id, self.key.attempt),
                proven: prepared.task.format == TaskFormat::Native,
            },
            &mut |name, log| {
                if let Err(failure) = self.keep(&format!("grading-{name}.log"), log) {
                    log_failure.get_or_insert(failure);
                }
            },
        );
        outcome.timing.grading_seconds = started.elapsed().as_secs_f64();
        outcome.verdict = graded.verdict;
        outcome.failure = graded.failure.or(log_failure);
    }

    fn keep(&self, name: &str, content: &[u8]) -> Result<(), Failure> {
        std::fs::write(self.directory.join(name), content)
            .map_err(|error| record_failure(&format!("write {name}: {error}")))
    }
}

impl TrialContext<'_> {
    pub(crate) fn place(&self) -> SandboxPlace<'_> {
        SandboxPlace {
            backend: self.backend,
            limits: self.limits.clone(),
            demand: self.demand.clone(),
            network: self.network,
        }
    }
}

impl Outcome {
    fn fail(&mut self, failure: Failure) {
        self.verdict = Verdict::lost("none", failure.message.clone());
        self.failure = Some(failure);
    }
}

/// A model that remembers which limit of the budget refused a call: a trial that never got a reply
/// ends as an empty trajectory and does not say.
struct Watched {
    inner: Box<dyn Model>,
    refused: Option<Limit>,
}

impl Model for Watched {
    fn query(&mut self, request: &ModelRequest<'_>) -> Result<ModelReply, ModelError> {
        let result = self.inner.query(request);
        if let Err(ModelError {
            class: ModelErrorClass::Budget(limit),
            ..
        }) = &result
        {
            self.refused = Some(*limit);
        }
        result
    }
}

/// Writes the trajectory and keeps count on the way.
struct TrialRecorder {
    writer: TrajectoryWriter,
    n_steps: u32,
    model_seconds: f64,
    action_seconds: f64,
}

impl TrialRecorder {
    fn finish(self) -> Result<(), Failure> {
        self.writer
            .finish()
            .map_err(|error| record_failure(&error.to_string()))
    }
}

impl Recorder for TrialRecorder {
    fn record(&mut self, record: &Record) -> Result<(), RecordError> {
        if let Record::Step(step) = record {
            let step: &Step = step;
            self.n_steps += 1;
            self.model_seconds += step.model_seconds;
            self.action_seconds += step.action_seconds;
        }
        self.writer.record(record)
    }
}

/// The known fix as a patch against the start; `None` where the task has none that is a patch.
pub fn known_fix(task: &temper_core::Task) -> Result<Option<Patch>, patch::PatchError> {
    match &task.oracle {
        Some(Oracle::Patch { patch }) => Ok(Some(patch.clone())),
        Some(Oracle::ReversePatch { patch }) => patch::reverse(patch).map(Some),
        Some(Oracle::Script { .. }) | None => Ok(None),
    }
}

fn describe_sandbox(backend: &dyn Backend, prepared: &PreparedTask) -> Value {
    json!({
        "backend": backend.name(),
        "image": prepared.image,
        "environment_digest": prepared.environment_digest,
        // A backend that cannot say has none in force that we may claim.
        "protections": backend.protections().ok(),
    })
}

fn record_failure(message: &str) -> Failure {
    Failure {
        boundary: Boundary::Agent,
        class: "Recording".into(),
        message: message.to_owned(),
        retryable: true,
    }
}
