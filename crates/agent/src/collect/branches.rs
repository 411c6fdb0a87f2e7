//! Continuations of candidates that failed.

use serde::{Deserialize, Serialize};
use temper_core::{Digest, Failure, trajectory::Step};
use temper_sandbox::Snapshot;

use super::{CollectTask, Store, store::CandidateKey};
use crate::{
    collect::replay::replay_steps,
    states::{BranchStart, StateKeeper},
    trajectory_file::Trajectory,
    trial::TrialContext,
};

/// How failed candidates are taken up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Branches {
    /// Continuations of one state.
    pub n_continuations: u32,
    /// How many steps before its end a candidate is taken up; 1 is the state in which its last
    /// step was chosen.
    pub steps_back: u32,
    /// Contents that a state may hold.
    pub max_state_bytes: u64,
}

impl Default for Branches {
    fn default() -> Self {
        Branches {
            n_continuations: 4,
            steps_back: 2,
            max_state_bytes: 64 << 20,
        }
    }
}

impl Branches {
    /// Keeps the states that may be needed while a candidate is sampled.
    pub(super) fn keeper(&self) -> StateKeeper {
        StateKeeper::new(self.steps_back as usize + 1, self.max_state_bytes)
    }

    /// The step after which a trajectory is taken up.
    pub(super) fn step(&self, trajectory: &Trajectory) -> Option<u32> {
        let n_steps = trajectory.steps.len() as u32;
        n_steps
            .checked_sub(self.steps_back)
            .filter(|step| *step > 0)
    }

    /// Where continuations start: in the state that was kept, or in one that the commands make
    /// again. `None` if the trajectory is too short, or its commands do not end as they did.
    pub(super) fn start(
        &self,
        context: &TrialContext<'_>,
        task: &CollectTask,
        trajectory: &Trajectory,
        kept: Option<&StateKeeper>,
        label: String,
    ) -> Result<Option<BranchStart>, Failure> {
        let Some(n_steps) = self.step(trajectory) else {
            return Ok(None);
        };
        let kept = kept.and_then(|kept| {
            let mut states = kept.states();
            states.find(|(number, _)| *number == n_steps)
        });
        let state = match kept {
            Some((_, state)) => state.clone(),
            None => {
                let steps = &trajectory.steps[..n_steps as usize];
                match self.again(context, task, steps, label)? {
                    Some(state) => state,
                    None => return Ok(None),
                }
            }
        };
        Ok(BranchStart::new(trajectory, n_steps, state))
    }

    fn again(
        &self,
        context: &TrialContext<'_>,
        task: &CollectTask,
        steps: &[Step],
        label: String,
    ) -> Result<Option<Snapshot>, Failure> {
        let settings = context.profile.settings();
        let place = context.place();
        let mut replayed = replay_steps(&place, settings, task.prepared(), steps, label)?;
        if replayed.replay.n_same_exit != replayed.replay.n_actions {
            return Ok(None);
        }
        let state = replayed.sandbox.snapshot(self.max_state_bytes);
        let state = state.map_err(|error| error.failure())?;
        replayed.sandbox.stop().map_err(|error| error.failure())?;
        Ok(Some(state))
    }

    /// The keys of the continuations of a candidate.
    pub(super) fn keys(&self, parent: &CandidateKey, n_steps: u32) -> Vec<CandidateKey> {
        let of = |number| CandidateKey {
            name: format!("{}-{n_steps}-{number}", parent.name),
            ..parent.clone()
        };
        (0..self.n_continuations).map(of).collect()
    }

    /// Whether all continuations of a candidate are there.
    pub(super) fn are_complete(&self, store: &Store, parent: &CandidateKey, n_steps: u32) -> bool {
        let keys = self.keys(parent, n_steps);
        let there = |key: &CandidateKey| matches!(store.candidate(key), Ok(Some(_)));
        keys.iter().all(there)
    }
}

/// A number for a candidate's name, which its seed is made from. Plain candidates have their own
/// numbers, which stay below those of continuations.
pub fn attempt(name: &str) -> u32 {
    name.parse().unwrap_or_else(|_| {
        let digest = Digest::of(name.as_bytes());
        let number = u32::from_str_radix(&digest.as_str()[..8], 16);
        number.expect("eight hexadecimal digits") | 1 << 31
    })
}
