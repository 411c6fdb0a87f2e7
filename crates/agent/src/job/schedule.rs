//! Runs the missing trials of a job on several threads.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use temper_core::Trial;

use super::{JobDirectory, JobError, Plan, TrialKey, directory::Unfinished, write_atomically};

/// Part `index` of `count`, counted from 1: the trials whose position in the plan leaves the
/// remainder `index - 1`. It depends on the plan alone, so an array of processes covers a job
/// without talking to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: usize,
    count: usize,
}

impl Shard {
    /// `None` unless `1 <= index <= count`.
    pub fn new(index: usize, count: usize) -> Option<Self> {
        (1..=count)
            .contains(&index)
            .then_some(Shard { index, count })
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl std::str::FromStr for Shard {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        text.split_once('/')
            .and_then(|(index, count)| Shard::new(index.parse().ok()?, count.parse().ok()?))
            .ok_or_else(|| format!("expected INDEX/COUNT with 1 <= INDEX <= COUNT, got {text:?}"))
    }
}

/// How a job is run. Nothing in here changes a result.
#[derive(Clone, Debug)]
pub struct Options {
    /// Trials at a time.
    pub workers: usize,
    /// Run only a part of the trials.
    pub shard: Option<Shard>,
    /// How often a trial is started over after a retryable failure of the infrastructure.
    pub max_retries: u32,
    /// Run finished trials again that were lost to the infrastructure.
    pub redo_lost: bool,
}

/// The trial was stopped because the job is being stopped. It leaves nothing behind.
#[derive(Debug)]
pub struct Cancelled;

/// Runs single trials.
pub trait TrialRunner: Sync {
    /// Runs one trial, writing its files into `directory`, and returns its record.
    fn run(&self, key: &TrialKey, directory: &Path, n_retries: u32) -> Result<Trial, Cancelled>;
}

/// What happens while a job runs.
#[derive(Debug)]
pub enum Event<'a> {
    /// The work is known.
    Started {
        /// Trials of this run's part of the job.
        n_trials: usize,
        /// Of these, finished by earlier runs.
        n_finished: usize,
    },
    /// A trial begins.
    TrialStarted {
        /// Which.
        key: &'a TrialKey,
    },
    /// A trial failed for reasons outside of the agent and is started over.
    TrialRetried {
        /// Which.
        key: &'a TrialKey,
        /// What came of it.
        trial: &'a Trial,
    },
    /// A trial is on disk.
    TrialFinished {
        /// Its record.
        trial: &'a Trial,
    },
}

/// How a run of a job ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Trials of this run's part of the job.
    pub n_trials: usize,
    /// Finished before this run.
    pub n_resumed: usize,
    /// Finished by this run.
    pub n_run: usize,
    /// Left undone because the run was stopped.
    pub n_left: usize,
}

/// Runs what is missing of `plan`. Stops starting trials when `cancel` is set; the job can then be
/// taken up again.
pub fn run(
    plan: &Plan,
    options: &Options,
    runner: &dyn TrialRunner,
    on_event: &(dyn Fn(Event<'_>) + Sync),
    cancel: &AtomicBool,
) -> Result<(JobDirectory, Summary), JobError> {
    let mut seen = BTreeSet::new();
    for task in &plan.tasks {
        if !seen.insert(&task.id) {
            return Err(JobError::DuplicateTask(task.id.clone()));
        }
    }
    let job = JobDirectory::create_or_resume(plan)?;
    job.clean_up()?;

    let keys = plan.tasks.iter().flat_map(|task| {
        (0..plan.attempts).map(|attempt| TrialKey {
            task_id: task.id.clone(),
            attempt,
        })
    });
    let mut missing = Vec::new();
    let mut summary = Summary::default();
    for (position, key) in keys.enumerate() {
        if let Some(shard) = options.shard
            && position % shard.count != shard.index - 1
        {
            continue;
        }
        summary.n_trials += 1;
        match job.trial(&key)? {
            Some(trial) if options.redo_lost && trial.failure.is_some() => {
                job.discard(&key)?;
                missing.push(key);
            }
            Some(_) => summary.n_resumed += 1,
            None => missing.push(key),
        }
    }
    on_event(Event::Started {
        n_trials: summary.n_trials,
        n_finished: summary.n_resumed,
    });

    let next = AtomicUsize::new(0);
    let finished = AtomicUsize::new(0);
    let error: Mutex<Option<JobError>> = Mutex::new(None);
    let stop = || cancel.load(Ordering::Relaxed) || error.lock().is_ok_and(|error| error.is_some());
    std::thread::scope(|scope| {
        for _ in 0..options.workers.clamp(1, missing.len().max(1)) {
            scope.spawn(|| {
                while !stop() {
                    let Some(key) = missing.get(next.fetch_add(1, Ordering::Relaxed)) else {
                        break;
                    };
                    match run_trial(&job, key, options.max_retries, runner, on_event) {
                        Ok(true) => {
                            finished.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(false) => break,
                        Err(cause) => {
                            if let Ok(mut error) = error.lock() {
                                error.get_or_insert(cause);
                            }
                        }
                    }
                }
            });
        }
    });
    if let Ok(Some(error)) = error.into_inner() {
        return Err(error);
    }
    summary.n_run = finished.into_inner();
    summary.n_left = missing.len() - summary.n_run;
    Ok((job, summary))
}

/// Runs one trial to its place on disk; `false` when it was cancelled.
fn run_trial(
    job: &JobDirectory,
    key: &TrialKey,
    max_retries: u32,
    runner: &dyn TrialRunner,
    on_event: &(dyn Fn(Event<'_>) + Sync),
) -> Result<bool, JobError> {
    on_event(Event::TrialStarted { key });
    let mut n_retries = 0;
    loop {
        let place: Unfinished = job.begin(key)?;
        let Ok(trial) = runner.run(key, &place.path, n_retries) else {
            return Ok(false);
        };
        if n_retries < max_retries
            && trial
                .failure
                .as_ref()
                .is_some_and(|failure| failure.retryable)
        {
            on_event(Event::TrialRetried { key, trial: &trial });
            n_retries += 1;
            continue;
        }
        let path = place.path.join("trial.json");
        let mut text = serde_json::to_vec_pretty(&trial).expect("a trial is plain data");
        text.push(b'\n');
        write_atomically(&path, &text).map_err(|source| JobError::File {
            operation: "write",
            path,
            source,
        })?;
        job.finish(key, place)?;
        on_event(Event::TrialFinished { trial: &trial });
        return Ok(true);
    }
}
