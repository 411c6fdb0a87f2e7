//! One run: what is missing is sampled, what is not judged is judged, and what is there is taken.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use serde::{Deserialize, Serialize};
use serde_json::json;
use temper_core::{
    Digest, Failure, Patch, SourceGroup, Split, TaskId,
    usage::{MicroDollars, Usage},
};

use super::{
    Branches, Candidate, CandidateKey, CollectTask, Graded, Store, StoreError, Teacher,
    TeacherKind, branches, content_id, fingerprint, fingerprint::fix, replay::replay, store,
};
use crate::{
    baselines::demonstrator::GaveUp,
    job::{Cancelled, TrialKey},
    states::{BranchStart, StateKeeper},
    trajectory_file::{self, Trajectory},
    trial::{Outcome, TrialContext},
};

/// What a run asks for.
pub struct Collection<'a> {
    /// How trials run, by whom and with what. Its own list of tasks is not looked at.
    pub context: &'a TrialContext<'a>,
    /// Whose candidates they are.
    pub kind: TeacherKind,
    /// Candidates per task.
    pub n_candidates: u32,
    /// Continuations of failed candidates.
    pub branches: Option<Branches>,
    /// Trials at a time.
    pub workers: usize,
    /// How often a trial is started over after a failure that starting over may cure. What is
    /// lost even so is tried again by the next run.
    pub max_retries: u32,
}

/// How candidates are asked for: the digest of everything but the task that can change one.
pub fn request(collection: &Collection<'_>) -> Digest {
    let context = collection.context;
    Digest::of_value(&json!({
        "format": 1,
        "teacher": collection.kind,
        "model": context.models.describe(),
        "profile": context.profile.config(),
        "limits": context.limits,
        "backend": context.backend.name(),
        "network": format!("{:?}", context.network),
        "wall_limit_seconds": context.wall_limit.as_secs_f64(),
        "seed": context.seed,
    }))
}

/// Where a candidate came from in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Taken {
    /// It was there, judged.
    Reused,
    /// It was there and has been judged now.
    Judged,
    /// It was sampled and judged.
    Sampled,
}

/// What something took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Candidates.
    pub n_candidates: u64,
    /// Tokens.
    pub usage: Usage,
    /// Money that is known.
    pub money: MicroDollars,
    /// Wall time of sampling and judging, one candidate after the other.
    pub seconds: f64,
}

impl Cost {
    fn add(&mut self, candidate: &Candidate, graded: Option<&Graded>) {
        self.n_candidates += 1;
        self.usage.add(candidate.usage);
        let money = candidate.cost.unwrap_or_default().0;
        self.money = MicroDollars(self.money.0.saturating_add(money));
        self.seconds += candidate.timing.total_seconds;
        self.seconds += graded.map_or(0.0, |graded| graded.seconds);
    }
}

/// What one run asked for and got. It names the candidates; their files are in the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Version of this format.
    pub format: u32,
    /// Who taught.
    pub teacher: Teacher,
    /// Digest of how candidates were asked for.
    pub request: Digest,
    /// Candidates per task.
    pub n_candidates: u32,
    /// Continuations.
    pub branches: Option<Branches>,
    /// The tasks, and what each got.
    pub tasks: Vec<RunTask>,
    /// Candidates of all tasks, whenever they were made.
    pub total: Cost,
    /// Those of them that earlier runs had made, and that were saved by that.
    pub reused: Cost,
    /// Trials that the infrastructure lost, to be tried again by the next run.
    pub lost: Vec<(TaskId, Failure)>,
    /// Trials that the run was stopped before.
    pub n_left: u64,
}

/// A task of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunTask {
    /// The task, as it was called in this run.
    pub id: TaskId,
    /// Digest of the task.
    pub digest: Digest,
    /// Its fingerprint.
    pub content: Digest,
    /// Its split; a training one.
    pub split: Split,
    /// Its source group.
    pub source_group: SourceGroup,
    /// Its candidates by name, and whether each is verified; absent where it was not judged.
    pub candidates: BTreeMap<String, Option<bool>>,
}

impl Run {
    /// The format that this code writes.
    pub const FORMAT: u32 = 1;

    /// The share of trials, tokens, money and time that did not have to be spent again. `None`
    /// where nothing of the kind was spent at all.
    pub fn saved(&self) -> [Option<f64>; 4] {
        let tokens = |cost: &Cost| {
            let Usage {
                prompt_tokens,
                completion_tokens,
                ..
            } = cost.usage;
            (prompt_tokens.unwrap_or(0) + completion_tokens.unwrap_or(0)) as f64
        };
        let share = |of: &dyn Fn(&Cost) -> f64| {
            let whole = of(&self.total);
            (whole > 0.0).then(|| of(&self.reused) / whole)
        };
        [
            share(&|cost| cost.n_candidates as f64),
            share(&tokens),
            share(&|cost| cost.money.0 as f64),
            share(&|cost| cost.seconds),
        ]
    }

    /// Tasks with a verified candidate.
    pub fn n_tasks_verified(&self) -> usize {
        let verified = |task: &&RunTask| task.candidates.values().any(|v| *v == Some(true));
        self.tasks.iter().filter(verified).count()
    }
}

/// What happens during a run.
#[derive(Debug)]
pub enum Progress<'a> {
    /// A candidate is there, judged if it left something to judge.
    Candidate {
        /// The task.
        task: &'a TaskId,
        /// The candidate.
        candidate: &'a Candidate,
        /// Its judgement.
        graded: Option<&'a Graded>,
        /// Whether it was there before.
        taken: Taken,
    },
    /// A trial was lost.
    Lost {
        /// The task.
        task: &'a TaskId,
        /// Why.
        failure: &'a Failure,
    },
}

/// A run cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// The collection's files.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Runs what is missing and writes the run's record, which is also returned.
pub fn collect(
    collection: &Collection<'_>,
    tasks: &[CollectTask],
    store: &Store,
    on_progress: &(dyn Fn(Progress<'_>) + Sync),
) -> Result<Run, CollectError> {
    let request = request(collection);
    let context = collection.context;
    let teacher = Teacher {
        kind: collection.kind,
        name: context.agent.clone(),
        description: context.models.describe(),
    };
    let mut run = Run {
        format: Run::FORMAT,
        teacher,
        request,
        n_candidates: collection.n_candidates,
        branches: collection.branches,
        tasks: Vec::new(),
        total: Cost::default(),
        reused: Cost::default(),
        lost: Vec::new(),
        n_left: 0,
    };
    // One content under several names is worked on once.
    let mut items: BTreeMap<Digest, &CollectTask> = BTreeMap::new();
    for task in tasks {
        let content = fingerprint(task.prepared());
        items.entry(content.clone()).or_insert(task);
        run.tasks.push(RunTask {
            id: task.task().id.clone(),
            digest: task.task().digest(),
            content,
            split: task.task().split,
            source_group: task.task().source_group.clone(),
            candidates: BTreeMap::new(),
        });
    }
    let work: Vec<(&Digest, &CollectTask, u32)> = items
        .iter()
        .flat_map(|(content, task)| {
            (0..collection.n_candidates).map(move |number| (content, *task, number))
        })
        .collect();
    let next = AtomicUsize::new(0);
    let shared = Mutex::new((&mut run, None::<CollectError>, 0usize));
    let cancelled = || context.cancel.load(Ordering::Relaxed);
    let worker = Worker {
        collection,
        store,
        request: &request_of(&shared),
        teacher: &teacher_of(&shared),
        shared: &shared,
        on_progress,
    };
    std::thread::scope(|scope| {
        for _ in 0..collection.workers.clamp(1, work.len().max(1)) {
            scope.spawn(|| {
                while !cancelled() && !worker.is_broken() {
                    let Some((content, task, number)) =
                        work.get(next.fetch_add(1, Ordering::Relaxed))
                    else {
                        break;
                    };
                    if !worker.item(content, task, *number) {
                        break;
                    }
                }
            });
        }
    });
    let (_, broken, n_done) = shared
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(error) = broken {
        return Err(error);
    }
    run.n_left = (work.len() - n_done) as u64;
    run.lost.sort_by(|(a, _), (b, _)| a.cmp(b));
    store.add_run(&run)?;
    Ok(run)
}

type Shared<'a> = Mutex<(&'a mut Run, Option<CollectError>, usize)>;

fn request_of(shared: &Shared<'_>) -> Digest {
    with(shared, |(run, ..)| run.request.clone())
}

fn teacher_of(shared: &Shared<'_>) -> Teacher {
    with(shared, |(run, ..)| run.teacher.clone())
}

fn with<T>(
    shared: &Shared<'_>,
    change: impl FnOnce(&mut (&mut Run, Option<CollectError>, usize)) -> T,
) -> T {
    // A panic elsewhere leaves whole records: every change is a few assignments.
    let mut shared = shared
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    change(&mut shared)
}

struct Worker<'a, 'b> {
    collection: &'a Collection<'a>,
    store: &'a Store,
    request: &'a Digest,
    teacher: &'a Teacher,
    shared: &'a Shared<'b>,
    on_progress: &'a (dyn Fn(Progress<'_>) + Sync),
}

/// Why one candidate is not there.
enum Missing {
    Cancelled,
    Lost(Failure),
    Broken(CollectError),
}

impl From<StoreError> for Missing {
    fn from(error: StoreError) -> Self {
        Missing::Broken(error.into())
    }
}

impl From<Failure> for Missing {
    fn from(failure: Failure) -> Self {
        Missing::Lost(failure)
    }
}

/// A candidate with what continuations of it need.
struct Got {
    candidate: Candidate,
    graded: Option<Graded>,
    taken: Taken,
    states: Option<StateKeeper>,
}

impl Worker<'_, '_> {
    fn is_broken(&self) -> bool {
        with(self.shared, |(_, broken, _)| broken.is_some())
    }

    /// One candidate and its continuations. Returns whether to go on.
    fn item(&self, content: &Digest, task: &CollectTask, number: u32) -> bool {
        // A teacher that has the fix teaches something else when the fix is another one.
        let request = match self.collection.kind {
            TeacherKind::Demonstrator => Digest::of_value(&(self.request, fix(task.prepared()))),
            _ => self.request.clone(),
        };
        let key = CandidateKey {
            content: content.clone(),
            request,
            name: number.to_string(),
        };
        let done = self
            .candidate(task, &key, None)
            .and_then(|got| self.continuations(task, &key, &got));
        match done {
            Ok(()) => {
                with(self.shared, |(_, _, n_done)| *n_done += 1);
                true
            }
            Err(Missing::Lost(failure)) => {
                self.lost(task, failure);
                with(self.shared, |(_, _, n_done)| *n_done += 1);
                true
            }
            Err(Missing::Cancelled) => false,
            Err(Missing::Broken(error)) => {
                with(self.shared, |(_, broken, _)| {
                    broken.get_or_insert(error);
                });
                false
            }
        }
    }

    fn lost(&self, task: &CollectTask, failure: Failure) {
        let id = &task.task().id;
        (self.on_progress)(Progress::Lost {
            task: id,
            failure: &failure,
        });
        with(self.shared, |(run, ..)| {
            run.lost.push((id.clone(), failure))
        });
    }

    fn candidate(
        &self,
        task: &CollectTask,
        key: &CandidateKey,
        from: Option<&BranchStart>,
    ) -> Result<Got, Missing> {
        let mut got = match self.store.candidate(key)? {
            Some(candidate) => Got {
                candidate,
                graded: None,
                taken: Taken::Reused,
                states: None,
            },
            None => self.sample(task, key, from)?,
        };
        got.graded = self.store.graded(key)?;
        if got.graded.is_none() && got.candidate.patch.is_some() {
            got.graded = Some(self.judge(task, &got.candidate)?);
            got.taken = got.taken.max(Taken::Judged);
        }
        let (graded, taken) = (got.graded.as_ref(), got.taken);
        with(self.shared, |(run, ..)| {
            run.total.add(&got.candidate, graded);
            if taken == Taken::Reused {
                run.reused.add(&got.candidate, graded);
            }
            let verified = graded.map(Graded::verified);
            for task in run.tasks.iter_mut().filter(|t| t.content == key.content) {
                task.candidates.insert(key.name.clone(), verified);
            }
        });
        (self.on_progress)(Progress::Candidate {
            task: &task.task().id,
            candidate: &got.candidate,
            graded,
            taken,
        });
        Ok(got)
    }

    fn sample(
        &self,
        task: &CollectTask,
        key: &CandidateKey,
        from: Option<&BranchStart>,
    ) -> Result<Got, Missing> {
        let context = self.collection.context;
        let trial = TrialKey {
            task_id: content_id(&key.content),
            attempt: branches::attempt(&key.name),
        };
        let branching = self.collection.branches.filter(|_| from.is_none());
        let mut n_retries = 0;
        let (place, states, outcome) = loop {
            let place = self.store.begin()?;
            let mut states = branching.map(|branches| branches.keeper());
            let outcome = context
                .sample(task.prepared(), &trial, &place, from, states.as_mut())
                .map_err(|Cancelled| Missing::Cancelled)?;
            match &outcome.failure {
                Some(failure) if failure.retryable => {
                    if n_retries >= self.collection.max_retries {
                        return Err(Missing::Lost(failure.clone()));
                    }
                    n_retries += 1;
                }
                _ => break (place, states, outcome),
            }
        };
        let candidate = self.describe(key, trial.seed(context.seed), &place, outcome, from);
        self.store.add_candidate(&place, &candidate)?;
        Ok(Got {
            candidate,
            graded: None,
            taken: Taken::Sampled,
            states,
        })
    }

    fn describe(
        &self,
        key: &CandidateKey,
        seed: u64,
        place: &Path,
        outcome: Outcome,
        from: Option<&BranchStart>,
    ) -> Candidate {
        let path = place.join("trajectory.jsonl");
        let trajectory = trajectory_file::read(&path).ok();
        let last = trajectory.as_ref().and_then(|read| read.steps.last());
        let gave_up = match self.collection.kind {
            TeacherKind::Demonstrator => last.and_then(|step| GaveUp::read(&step.reply)),
            _ => None,
        };
        let branch = from.map(|from| from.branch.clone());
        let shared = branch.as_ref();
        let n_shared = shared.map_or(0, |branch| branch.n_steps);
        Candidate {
            format: Candidate::FORMAT,
            key: key.clone(),
            teacher: self.teacher.clone(),
            seed,
            exit: outcome.exit,
            patch: outcome.patch.as_ref().map(Patch::digest),
            trajectory: std::fs::read(&path).ok().map(|text| Digest::of(&text)),
            failure: outcome.failure,
            gave_up,
            n_model_calls: outcome.n_model_calls.saturating_sub(n_shared),
            n_steps: outcome.n_steps,
            usage: without(outcome.usage, shared.map(|branch| branch.usage)),
            cost: outcome.cost.map(|cost| {
                let before = shared.and_then(|branch| branch.cost).unwrap_or_default();
                MicroDollars(cost.0.saturating_sub(before.0))
            }),
            timing: outcome.timing,
            branch,
        }
    }

    fn judge(&self, task: &CollectTask, candidate: &Candidate) -> Result<Graded, Missing> {
        let began = Instant::now();
        let context = self.collection.context;
        let key = &candidate.key;
        let raw = self.store.raw_directory(key);
        let patch = store::read(&raw.join("patch.diff"))?;
        let patch = Patch(patch.into());
        let trajectory = self.trajectory(key)?;
        let place = self.store.begin()?;
        let trial = TrialKey {
            task_id: content_id(&key.content),
            attempt: branches::attempt(&key.name),
        };
        let label = format!("replay.{}.{}", trial.task_id, key.name);
        let prepared = task.prepared();
        let settings = context.profile.settings();
        let steps = &trajectory.steps;
        let replay = replay(&context.place(), settings, prepared, steps, &patch, label)?;
        let (verdict, failure) = context.grade(prepared, &trial, &place, &patch);
        if context.cancel.load(Ordering::Relaxed) {
            return Err(Missing::Cancelled);
        }
        if let Some(failure) = failure {
            return Err(Missing::Lost(failure));
        }
        let graded = Graded {
            format: Graded::FORMAT,
            key: key.clone(),
            patch: patch.digest(),
            trajectory: candidate
                .trajectory
                .clone()
                .unwrap_or_else(|| Digest::of(b"")),
            verdict,
            replay,
            seconds: began.elapsed().as_secs_f64(),
        };
        self.store.add_graded(&place, &graded)?;
        Ok(graded)
    }

    fn trajectory(&self, key: &CandidateKey) -> Result<Trajectory, Missing> {
        let path = self.store.raw_directory(key).join("trajectory.jsonl");
        trajectory_file::read(&path).map_err(|error| {
            Missing::Broken(CollectError::Store(StoreError::Corrupt {
                path,
                reason: error.to_string(),
            }))
        })
    }

    fn continuations(
        &self,
        task: &CollectTask,
        key: &CandidateKey,
        got: &Got,
    ) -> Result<(), Missing> {
        let (Some(branches), Some(graded)) = (self.collection.branches, &got.graded) else {
            return Ok(());
        };
        if graded.verdict.resolution.solved() != Some(false) {
            return Ok(());
        }
        let trajectory = self.trajectory(key)?;
        let Some(n_steps) = branches.step(&trajectory) else {
            return Ok(());
        };
        let context = self.collection.context;
        let start = if branches.are_complete(self.store, key, n_steps) {
            None
        } else {
            let label = format!("branch.{}.{}", content_id(&key.content), key.name);
            let states = got.states.as_ref();
            let start = branches.start(context, task, &trajectory, states, label)?;
            if start.is_none() {
                return Ok(());
            }
            start
        };
        for key in branches.keys(key, n_steps) {
            match self.candidate(task, &key, start.as_ref()) {
                Ok(_) => {}
                Err(Missing::Lost(failure)) => self.lost(task, failure),
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }
}

/// What is left of a usage without that of a prefix.
fn without(usage: Usage, prefix: Option<Usage>) -> Usage {
    let Some(prefix) = prefix else {
        return usage;
    };
    let less = |a: Option<u64>, b: Option<u64>| a.map(|a| a.saturating_sub(b.unwrap_or(0)));
    Usage {
        prompt_tokens: less(usage.prompt_tokens, prefix.prompt_tokens),
        cached_tokens: less(usage.cached_tokens, prefix.cached_tokens),
        completion_tokens: less(usage.completion_tokens, prefix.completion_tokens),
    }
}
