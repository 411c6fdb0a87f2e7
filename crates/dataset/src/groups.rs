//! Groups for group-relative objectives: the trials of one task under one policy, from the task's
//! start or from one state within a trial.
//!
//! The trial that a state is of is no member of the state's group: the state was chosen because
//! that trial failed, so its reward is no draw.
//!
//! A member whose verdict was lost has no reward, which is not a reward of 0; one whose ids were
//! not recorded when they were sampled is refused.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use temper_core::{AgentName, Digest, TaskId};

use crate::{
    advantages::are_equal,
    episode::Episode,
    filter::{Label, label},
    row::{RowOrigin, TrainingRow},
    sampled::{self, OnBreak},
};

/// Trials of one task under one policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The task.
    pub task_id: TaskId,
    /// The digest of what was sampled from: agent, model and profile.
    pub policy: Digest,
    /// The digest of the prompts and steps that all of them begin with and that none of them
    /// learns; absent where they begin at the task's start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<Digest>,
    /// The trials, in the order of their origins.
    pub members: Vec<Member>,
}

/// One trial of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// The trial.
    pub origin: RowOrigin,
    /// 1 if solved, 0 if not, absent where the verdict was lost.
    pub reward: Option<f64>,
    /// Its rows of sampled ids with log-probabilities.
    pub rows: Vec<TrainingRow>,
}

/// Why there is no group, or no member of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum NoMember {
    /// No policy gradient may be taken at it.
    NoPolicyGradient {
        /// Why.
        detail: String,
    },
    /// It is alone: there is nothing to compare it with.
    Alone,
}

impl Group {
    /// Members with a reward.
    pub fn n_scored(&self) -> usize {
        self.members.iter().filter(|m| m.reward.is_some()).count()
    }

    /// Whether rewards differ; without that every advantage is 0.
    pub fn has_signal(&self) -> bool {
        let rewards: Vec<f64> = self.members.iter().filter_map(|m| m.reward).collect();
        rewards.len() > 1 && !are_equal(&rewards)
    }
}

/// Groups by task, policy and shared beginning, and the trials that are in none. `policy_of` names what a trial was
/// sampled from; trials of different names are never in one group.
pub fn groups(
    episodes: &[Episode],
    policy_of: &dyn Fn(&Episode) -> Digest,
    on_break: OnBreak,
) -> (Vec<Group>, Vec<(RowOrigin, NoMember)>) {
    let mut members: BTreeMap<(TaskId, AgentName, Digest, Option<Digest>), Vec<Member>> =
        BTreeMap::new();
    let mut without = Vec::new();
    for episode in episodes {
        match member(episode, on_break) {
            Ok(member) => {
                let key = (
                    episode.task().id.clone(),
                    episode.trial().agent.clone(),
                    policy_of(episode),
                    episode.branch().map(|branch| branch.prefix.clone()),
                );
                members.entry(key).or_default().push(member);
            }
            Err(detail) => {
                let reason = NoMember::NoPolicyGradient { detail };
                without.push((episode.origin(), reason));
            }
        }
    }
    let mut groups = Vec::new();
    for ((task_id, _, policy, prefix), mut members) in members {
        members.sort_by(|a, b| a.origin.cmp(&b.origin));
        if members.len() < 2 {
            without.extend(members.into_iter().map(|m| (m.origin, NoMember::Alone)));
            continue;
        }
        groups.push(Group {
            task_id,
            policy,
            prefix,
            members,
        });
    }
    without.sort_by(|a, b| a.0.cmp(&b.0));
    (groups, without)
}

fn member(episode: &Episode, on_break: OnBreak) -> Result<Member, String> {
    let rows = sampled::rows(episode, on_break).map_err(|error| error.to_string())?;
    for row in &rows {
        row.for_policy_gradient()
            .map_err(|error| error.to_string())?;
    }
    Ok(Member {
        origin: episode.origin(),
        reward: match label(episode) {
            Ok(Label::Solved) => Some(1.0),
            Ok(Label::Failed) => Some(0.0),
            Err(_) => None,
        },
        rows,
    })
}
