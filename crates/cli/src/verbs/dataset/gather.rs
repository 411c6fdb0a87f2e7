//! Reads the trials of jobs and collections as training episodes, each with how it is replayed. A
//! trial that cannot be one is kept with its reason.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use temper_agent::{
    collect::{Candidate, RunTask, Store, as_trial, attempt_number},
    job::{JobDirectory, TrialKey},
    profile::Settings,
    trajectory_file::{self, Trajectory},
};
use temper_core::{
    AgentName, Digest, SourceGroup, Split, Task, TaskId, Trial, task::TrainingTask,
    trial::TeacherKind,
};
use temper_dataset::{
    episode::Episode,
    filter::{DropReason, Dropped},
    row::RowOrigin,
};

use super::super::collect::store_error;
use crate::{error::CliError, exit_code};

/// What inputs hold.
#[derive(Default)]
pub struct Gathered {
    /// Trials of training tasks with their trajectories.
    pub episodes: Vec<Episode>,
    /// The others.
    pub refused: Vec<Dropped>,
    /// How each episode is replayed.
    pub replays: BTreeMap<RowOrigin, HowReplayed>,
    /// Contents of a collection that were taken, so that two names of one are taken once.
    contents: BTreeSet<(PathBuf, Digest)>,
}

/// How a trial is replayed.
pub enum HowReplayed {
    /// It was, when it was judged; whether the patch was the same, where that can be said.
    Recorded {
        /// What came of it.
        same_patch: Option<bool>,
    },
    /// Its commands are run under these settings.
    Run(Box<Settings>),
}

/// The suite's tasks by id.
pub type Tasks = BTreeMap<TaskId, Task>;

impl Gathered {
    /// Adds what an input holds: a job or a collection.
    pub fn add(&mut self, input: &Path, tasks: &Tasks) -> Result<(), CliError> {
        // The same input named twice holds the same trials.
        let input = input.canonicalize().map_err(|error| {
            CliError::new(
                exit_code::INPUT,
                format!("read {}: {error}", input.display()),
            )
        })?;
        if input.join("manifest.json").is_file() {
            self.job(&input, tasks)
        } else if input.join("runs").is_dir() {
            self.collection(&input, tasks)
        } else {
            Err(CliError::new(
                exit_code::INPUT,
                format!(
                    "read {}: it is neither a job nor a collection",
                    input.display()
                ),
            )
            .hint("`temper run` makes jobs, `temper collect` collections"))
        }
    }

    fn job(&mut self, path: &Path, tasks: &Tasks) -> Result<(), CliError> {
        let job = JobDirectory::open(path)?;
        let manifest = job.manifest()?;
        if manifest.kind != "job" {
            return Err(CliError::new(
                exit_code::INPUT,
                format!("read {}: it is a {}, no job", path.display(), manifest.kind),
            ));
        }
        let mut trials = Vec::new();
        job.for_each_trial(|trial| trials.push(trial))?;
        for trial in trials {
            let key = TrialKey {
                task_id: trial.task_id.clone(),
                attempt: trial.attempt,
            };
            let origin = origin(&trial, None);
            let digest = trial.task_digest.clone();
            let task = match training_task(tasks, &trial.task_id, &digest) {
                Ok(task) => task,
                Err(reason) => {
                    self.refused.push(Dropped { origin, reason });
                    continue;
                }
            };
            let path = job.trial_directory(&key).join("trajectory.jsonl");
            if !path.exists() {
                // A trial that was lost early has none, and a graded prediction never has.
                let detail = "it has no trajectory".to_owned();
                let reason = DropReason::NoTrajectory { detail };
                self.refused.push(Dropped { origin, reason });
                continue;
            }
            let trajectory = trajectory_file::read(&path)
                .map_err(|error| CliError::new(exit_code::INPUT, error))?;
            self.episode(task, trial, trajectory, None, None);
        }
        Ok(())
    }

    fn collection(&mut self, path: &Path, tasks: &Tasks) -> Result<(), CliError> {
        let store = Store::read_only(path).map_err(store_error)?;
        let mut of_content: BTreeMap<Digest, Vec<RunTask>> = BTreeMap::new();
        for run in store.runs().map_err(store_error)? {
            for task in run.tasks {
                let named = of_content.entry(task.content.clone()).or_default();
                if !named.iter().any(|other| other.digest == task.digest) {
                    named.push(task);
                }
            }
        }
        for (content, named) in of_content {
            if !self.contents.insert((path.to_owned(), content.clone())) {
                continue;
            }
            // What a content is called today; a run under an older name does not count.
            let found: Vec<_> = named
                .iter()
                .map(|task| (task, training_task(tasks, &task.id, &task.digest)))
                .collect();
            let chosen = found.iter().position(|(_, task)| task.is_ok()).unwrap_or(0);
            let Some((run_task, task)) = found.into_iter().nth(chosen) else {
                continue;
            };
            for candidate in store.candidates(&content).map_err(store_error)? {
                match &task {
                    Ok(task) => self.candidate(&store, &candidate, task)?,
                    Err(reason) => {
                        let (id, group) = (&run_task.id, &run_task.source_group);
                        self.refused.push(Dropped {
                            origin: candidate_origin(&candidate, id, group),
                            reason: reason.clone(),
                        });
                    }
                }
            }
        }
        Ok(())
    }

    fn candidate(
        &mut self,
        store: &Store,
        candidate: &Candidate,
        task: &TrainingTask,
    ) -> Result<(), CliError> {
        let Some(read) = as_trial(store, candidate, task).map_err(store_error)? else {
            let detail = "it has no trajectory".to_owned();
            self.refused.push(Dropped {
                origin: candidate_origin(candidate, &task.id, &task.source_group),
                reason: DropReason::NoTrajectory { detail },
            });
            return Ok(());
        };
        let same_patch = read.replay.and_then(|replay| replay.same_patch);
        self.episode(
            task.clone(),
            read.trial,
            read.trajectory,
            Some(read.teacher.kind),
            Some(HowReplayed::Recorded { same_patch }),
        );
        Ok(())
    }

    fn episode(
        &mut self,
        task: TrainingTask,
        trial: Trial,
        trajectory: Trajectory,
        teacher: Option<TeacherKind>,
        replayed: Option<HowReplayed>,
    ) {
        let origin = origin(&trial, teacher);
        let mut refuse = |detail: String| {
            self.refused.push(Dropped {
                origin: origin.clone(),
                reason: DropReason::NoTrajectory { detail },
            });
        };
        if self.replays.contains_key(&origin) {
            refuse("a trial of this agent, attempt and seed was read already".to_owned());
            return;
        }
        let settings = match Settings::of_config(&trajectory.header.config) {
            Ok(settings) => settings,
            Err(problem) => {
                refuse(format!(
                    "the configuration in its trajectory cannot be read: {problem}"
                ));
                return;
            }
        };
        let records = trajectory.into_records();
        match Episode::new(task, trial, records, settings.tools()) {
            Ok(episode) => {
                let episode = match teacher {
                    Some(teacher) => episode.of_teacher(teacher),
                    None => episode,
                };
                let how = replayed.unwrap_or(HowReplayed::Run(Box::new(settings)));
                self.replays.insert(origin, how);
                self.episodes.push(episode);
            }
            Err(error) => refuse(error.to_string()),
        }
    }
}

/// The suite's training task of this id, if it is as it was.
fn training_task(tasks: &Tasks, id: &TaskId, digest: &Digest) -> Result<TrainingTask, DropReason> {
    let Some(task) = tasks.get(id) else {
        return Err(DropReason::OtherTask {
            detail: "the suite has no task of its name".to_owned(),
        });
    };
    // Before the digest, which holds the split too: that a task is held out is the better reason.
    if task.split != Split::Train {
        return Err(DropReason::HeldOutTask { split: task.split });
    }
    if task.digest() != *digest {
        return Err(DropReason::OtherTask {
            detail: "its task has changed in the suite since".to_owned(),
        });
    }
    TrainingTask::try_from(task.clone())
        .map_err(|error| DropReason::HeldOutTask { split: error.split })
}

fn origin(trial: &Trial, teacher: Option<TeacherKind>) -> RowOrigin {
    RowOrigin {
        task_id: trial.task_id.clone(),
        source_group: trial.source_group.clone(),
        agent: trial.agent.clone(),
        attempt: trial.attempt,
        seed: trial.seed,
        teacher,
    }
}

fn candidate_origin(candidate: &Candidate, id: &TaskId, group: &SourceGroup) -> RowOrigin {
    let agent: &AgentName = &candidate.teacher.name;
    RowOrigin {
        task_id: id.clone(),
        source_group: group.clone(),
        agent: agent.clone(),
        attempt: attempt_number(&candidate.key.name),
        seed: candidate.seed,
        teacher: Some(candidate.teacher.kind),
    }
}
