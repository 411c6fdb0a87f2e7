//! The replay of the filter: commands of a trial in a fresh sandbox of its task.

use std::collections::BTreeMap;

use temper_agent::{collect::replayed_patch, profile::Settings, trial::SandboxPlace};
use temper_core::{Failure, Patch, PreparedTask, TaskId, task::TrainingTask};
use temper_dataset::{episode::Episode, filter::Replay, row::RowOrigin};
use temper_tasks::{cache::Cache, prepare::Tools};

use super::gather::HowReplayed;
use crate::{sandboxes::Sandboxes, tasks};

/// A replay is started over this often after a failure of the sandbox.
const MAX_RETRIES: u32 = 2;

/// Replays trials, those of collections by what was recorded.
pub struct Replays<'a> {
    /// How each is.
    pub how: &'a BTreeMap<RowOrigin, HowReplayed>,
    /// Where; absent where all are recorded.
    pub place: Option<Place>,
    /// Tasks whose files lie ready.
    prepared: BTreeMap<TaskId, Result<PreparedTask, String>>,
    /// Trials that could not be replayed through no fault of theirs.
    pub lost: Vec<(RowOrigin, String)>,
}

/// What sandboxes of tasks are made with.
pub struct Place {
    /// The backend.
    pub sandboxes: Sandboxes,
    /// The cache.
    pub cache: Cache,
    /// What preparation may use.
    pub tools: Tools,
}

impl<'a> Replays<'a> {
    /// Replays as `how` says.
    pub fn new(how: &'a BTreeMap<RowOrigin, HowReplayed>, place: Option<Place>) -> Self {
        Replays {
            how,
            place,
            prepared: BTreeMap::new(),
            lost: Vec::new(),
        }
    }

    fn run(
        &mut self,
        task: &TrainingTask,
        episode: &Episode,
        settings: &Settings,
    ) -> Result<Patch, String> {
        let Some(place) = &self.place else {
            return self.lose(episode, "no sandbox was opened".to_owned());
        };
        let prepared = self
            .prepared
            .entry(task.id.clone())
            .or_insert_with(|| tasks::prepare_one(task, &place.cache, &place.tools));
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(problem) => {
                let problem = format!("its task cannot be prepared: {problem}");
                return self.lose(episode, problem);
            }
        };
        let sandboxes = &place.sandboxes;
        let sandbox_place = SandboxPlace {
            backend: sandboxes.backend.as_ref(),
            limits: sandboxes.limits.clone(),
            demand: sandboxes.demand.clone(),
            network: sandboxes.network,
        };
        let mut n_retries = 0;
        loop {
            let label = format!("replay.{}.{}", task.id, episode.trial().attempt);
            let steps = episode.steps();
            match replayed_patch(&sandbox_place, settings, prepared, steps, label) {
                Ok(patch) => return patch,
                Err(Failure { retryable, .. }) if retryable && n_retries < MAX_RETRIES => {
                    n_retries += 1;
                }
                Err(failure) => return self.lose(episode, failure.message),
            }
        }
    }

    fn lose(&mut self, episode: &Episode, problem: String) -> Result<Patch, String> {
        self.lost.push((episode.origin(), problem.clone()));
        Err(problem)
    }
}

impl Replay for Replays<'_> {
    fn replay(&mut self, task: &TrainingTask, episode: &Episode) -> Result<Patch, String> {
        let how = self.how;
        match how.get(&episode.origin()) {
            Some(HowReplayed::Recorded {
                same_patch: Some(false),
            }) => Err("its replay when it was judged left another one".to_owned()),
            // Where the patch is what was submitted, its judge replayed the commands and compared
            // nothing.
            Some(HowReplayed::Recorded { .. }) => {
                Ok(episode.trial().patch.clone().unwrap_or_default())
            }
            Some(HowReplayed::Run(settings)) => self.run(task, episode, settings),
            None => self.lose(episode, "it is not known how it was run".to_owned()),
        }
    }
}
