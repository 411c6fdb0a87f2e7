//! The trials of one arm, checked and gathered by task.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use temper_core::{AgentName, Digest, SourceGroup, TaskId, Trial};

/// One arm of an evaluation: a label that is unique within the comparison, and its trials.
#[derive(Clone, Debug)]
pub struct Arm<'a> {
    /// The label. Two jobs of the same agent need different ones.
    pub name: AgentName,
    /// Its trials, in any order.
    pub trials: &'a [Trial],
}

/// One trial within an arm.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialKey {
    /// The task.
    pub task: TaskId,
    /// Counted from 0.
    pub attempt: u32,
}

impl TrialKey {
    /// The key of a trial.
    pub fn of(trial: &Trial) -> Self {
        TrialKey {
            task: trial.task_id.clone(),
            attempt: trial.attempt,
        }
    }
}

impl std::fmt::Display for TrialKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} attempt {}", self.task, self.attempt)
    }
}

/// The trials cannot be compared as they stand.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ArmError {
    /// There is nothing to evaluate.
    #[error("compare arms: there are none")]
    NoArms,
    /// A label is used twice.
    #[error("compare arms: two of them are named {0}")]
    SameName(AgentName),
    /// One arm holds trials of two agents.
    #[error("read arm {arm}: it mixes trials of the agents {first} and {second}")]
    MixedAgents {
        /// The arm.
        arm: AgentName,
        /// One agent.
        first: AgentName,
        /// Another.
        second: AgentName,
    },
    /// The same attempt is there twice, so one of the two results would be counted double.
    #[error("read arm {arm}: {trial} is there twice")]
    Duplicate {
        /// The arm.
        arm: AgentName,
        /// The attempt.
        trial: TrialKey,
    },
    /// One id names two different tasks.
    #[error(
        "compare task {task}: it is not the same task everywhere: {first_arm} has digest {first}, {second_arm} has {second}"
    )]
    DifferentTasks {
        /// The id.
        task: TaskId,
        /// One arm.
        first_arm: AgentName,
        /// Its digest, shortened.
        first: String,
        /// Another arm, or the same.
        second_arm: AgentName,
        /// Its digest, shortened.
        second: String,
    },
    /// One task is in two source groups.
    #[error("compare task {task}: it is in source group {first} and in {second}")]
    DifferentGroups {
        /// The id.
        task: TaskId,
        /// One group.
        first: SourceGroup,
        /// Another.
        second: SourceGroup,
    },
}

/// The attempts of one arm at one task, counted.
///
/// With one attempt a task is solved, unsolved or lost as its trial is. With several, a task
/// counts as solved when more than half of its attempts solved it (an even split is not solved);
/// where lost attempts could decide that, the task is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskTally {
    /// All attempts.
    pub n_attempts: u64,
    /// Solved ones.
    pub n_solved: u64,
    /// Lost ones.
    pub n_lost: u64,
}

impl TaskTally {
    /// Whether the task counts as solved by majority, or `None` where lost attempts could decide.
    pub fn solved(self) -> Option<bool> {
        let (worst, best) = (self.solved_if_lost(false), self.solved_if_lost(true));
        (self.n_attempts > 0 && worst == best).then_some(worst)
    }

    /// Whether the task counts as solved by majority when every lost attempt is taken as solved,
    /// or as unsolved.
    pub fn solved_if_lost(self, lost_is_solved: bool) -> bool {
        let lost = if lost_is_solved { self.n_lost } else { 0 };
        2 * (self.n_solved + lost) > self.n_attempts
    }

    /// The share of scored attempts that solved it; `None` if none was scored.
    pub fn mean(self) -> Option<f64> {
        let n_scored = self.n_attempts - self.n_lost;
        (n_scored > 0).then(|| self.n_solved as f64 / n_scored as f64)
    }

    /// The share of all attempts that solved it when every lost attempt is taken as solved, or as
    /// unsolved. 0 without attempts.
    pub fn mean_if_lost(self, lost_is_solved: bool) -> f64 {
        let lost = if lost_is_solved { self.n_lost } else { 0 };
        if self.n_attempts == 0 {
            return 0.0;
        }
        (self.n_solved + lost) as f64 / self.n_attempts as f64
    }
}

/// An arm whose trials were checked, by task and attempt.
#[derive(Clone, Debug)]
pub(crate) struct Gathered<'a> {
    pub name: &'a AgentName,
    pub agent: Option<&'a AgentName>,
    pub tasks: BTreeMap<&'a TaskId, BTreeMap<u32, &'a Trial>>,
}

impl Gathered<'_> {
    pub fn tally(&self, task: &TaskId) -> TaskTally {
        let mut tally = TaskTally::default();
        for trial in self.tasks.get(task).into_iter().flat_map(BTreeMap::values) {
            tally.n_attempts += 1;
            match trial.solved() {
                Some(true) => tally.n_solved += 1,
                Some(false) => {}
                None => tally.n_lost += 1,
            }
        }
        tally
    }

    pub fn trials(&self) -> impl Iterator<Item = &Trial> {
        self.tasks.values().flat_map(BTreeMap::values).copied()
    }
}

/// Checks all arms: labels and attempts are unique, and an id means one task.
pub(crate) fn gather<'a>(arms: &'a [Arm<'a>]) -> Result<Vec<Gathered<'a>>, ArmError> {
    if arms.is_empty() {
        return Err(ArmError::NoArms);
    }
    let mut seen: BTreeMap<&TaskId, (&AgentName, &Digest, &SourceGroup)> = BTreeMap::new();
    let mut gathered: Vec<Gathered<'a>> = Vec::with_capacity(arms.len());
    for arm in arms {
        if gathered.iter().any(|other| other.name == &arm.name) {
            return Err(ArmError::SameName(arm.name.clone()));
        }
        let mut result = Gathered {
            name: &arm.name,
            agent: None,
            tasks: BTreeMap::new(),
        };
        for trial in arm.trials {
            let agent = *result.agent.get_or_insert(&trial.agent);
            if agent != &trial.agent {
                return Err(ArmError::MixedAgents {
                    arm: arm.name.clone(),
                    first: agent.clone(),
                    second: trial.agent.clone(),
                });
            }
            let (first_arm, first, group) = *seen.entry(&trial.task_id).or_insert((
                &arm.name,
                &trial.task_digest,
                &trial.source_group,
            ));
            if first != &trial.task_digest {
                return Err(ArmError::DifferentTasks {
                    task: trial.task_id.clone(),
                    first_arm: first_arm.clone(),
                    first: first.short().to_owned(),
                    second_arm: arm.name.clone(),
                    second: trial.task_digest.short().to_owned(),
                });
            }
            if group != &trial.source_group {
                return Err(ArmError::DifferentGroups {
                    task: trial.task_id.clone(),
                    first: group.clone(),
                    second: trial.source_group.clone(),
                });
            }
            let attempts = result.tasks.entry(&trial.task_id).or_default();
            if attempts.insert(trial.attempt, trial).is_some() {
                return Err(ArmError::Duplicate {
                    arm: arm.name.clone(),
                    trial: TrialKey::of(trial),
                });
            }
        }
        gathered.push(result);
    }
    Ok(gathered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(n_attempts: u64, n_solved: u64, n_lost: u64) -> TaskTally {
        TaskTally {
            n_attempts,
            n_solved,
            n_lost,
        }
    }

    #[test]
    fn the_majority_decides_and_lost_attempts_can_leave_it_open() {
        for (counts, solved) in [
            ((0, 0, 0), None),
            ((1, 1, 0), Some(true)),
            ((1, 0, 0), Some(false)),
            ((1, 0, 1), None),
            ((2, 1, 0), Some(false)),
            ((2, 1, 1), None),
            ((3, 2, 1), Some(true)),
            ((3, 1, 1), None),
            ((5, 1, 1), Some(false)),
        ] {
            assert_eq!(
                tally(counts.0, counts.1, counts.2).solved(),
                solved,
                "{counts:?}"
            );
        }
        assert_eq!(tally(4, 1, 2).mean(), Some(0.5));
        assert_eq!(tally(2, 0, 2).mean(), None);
        assert_eq!(tally(4, 1, 2).mean_if_lost(true), 0.75);
        assert_eq!(tally(4, 1, 2).mean_if_lost(false), 0.25);
    }
}
