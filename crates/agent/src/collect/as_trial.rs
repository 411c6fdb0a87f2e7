//! A candidate as a trial of the task that has its content today.

use temper_core::{Patch, Task, Trial, Verdict, trial::PatchSource};

use super::{Candidate, Replay, Store, StoreError, Teacher, branches, store};
use crate::{
    profile::Settings,
    trajectory_file::{self, Trajectory},
};

/// A candidate with what was found out about it.
#[derive(Clone, Debug)]
pub struct CandidateTrial {
    /// The trial. Its verdict is lost where nothing was judged.
    pub trial: Trial,
    /// What was said and done in it.
    pub trajectory: Trajectory,
    /// What running it again gave; absent where it was not judged.
    pub replay: Option<Replay>,
    /// Whose it is.
    pub teacher: Teacher,
}

/// Reads a candidate as a trial of `task`, which has its content. `None` if it has no trajectory.
///
/// # Errors
/// When a file is not what was written.
pub fn as_trial(
    store: &Store,
    candidate: &Candidate,
    task: &Task,
) -> Result<Option<CandidateTrial>, StoreError> {
    let key = &candidate.key;
    if candidate.trajectory.is_none() {
        return Ok(None);
    }
    let directory = store.raw_directory(key);
    let path = directory.join("trajectory.jsonl");
    let mut trajectory = trajectory_file::read(&path).map_err(|error| StoreError::Corrupt {
        path: path.clone(),
        reason: error.to_string(),
    })?;
    // Candidates belong to a content; the name is today's.
    trajectory.header.task_id = task.id.clone();
    let patch = match &candidate.patch {
        None => None,
        Some(digest) => {
            let path = directory.join("patch.diff");
            let patch = Patch(store::read(&path)?.into());
            if patch.digest() != *digest {
                return Err(StoreError::Corrupt {
                    path,
                    reason: "it is not the patch that was written".into(),
                });
            }
            Some(patch)
        }
    };
    let graded = store.graded(key)?;
    let (verdict, replay) = match graded {
        Some(graded) => (graded.verdict, Some(graded.replay)),
        None => (Verdict::lost("none", "nothing was judged"), None),
    };
    let trial = trial(candidate, task, patch, verdict, &trajectory);
    Ok(Some(CandidateTrial {
        trial,
        trajectory,
        replay,
        teacher: candidate.teacher.clone(),
    }))
}

fn trial(
    candidate: &Candidate,
    task: &Task,
    patch: Option<Patch>,
    verdict: Verdict,
    trajectory: &Trajectory,
) -> Trial {
    let header = &trajectory.header;
    let settings = Settings::of_config(&header.config);
    let end = trajectory.end.as_ref();
    Trial {
        format: Trial::FORMAT,
        task_id: task.id.clone(),
        task_digest: task.digest(),
        source_group: task.source_group.clone(),
        agent: candidate.teacher.name.clone(),
        attempt: branches::attempt(&candidate.key.name),
        seed: candidate.seed,
        exit: candidate.exit.clone(),
        patch,
        patch_source: settings.map_or(PatchSource::WorkTree, |settings| settings.patch_source),
        verdict,
        failure: candidate.failure.clone(),
        n_model_calls: candidate.n_model_calls,
        n_steps: candidate.n_steps,
        usage: candidate.usage,
        cost: candidate.cost,
        timing: candidate.timing,
        n_retries: 0,
        started_at: header.started_at.clone(),
        finished_at: end.map_or_else(String::new, |end| end.finished_at.clone()),
    }
}
