//! Dividing groups among train, dev and test.
//!
//! Iterative stratification (Sechidis, Tsoumakas, Vlahavas 2011) with groups in place of examples:
//! the largest group first, each to the split that lacks most of what the group has — tasks
//! altogether, tasks of its projects, tasks of its kinds of bug.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use temper_core::{Digest, Split, TaskId};

use super::{
    evidence::{Evidence, project_name},
    groups::{Group, groups},
    links::{LinkRule, links},
    manifest::{FrozenGroup, FrozenTask, SplitManifest},
};

/// How large the splits shall be, as parts of a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fractions {
    /// Parts for training.
    pub train: u32,
    /// Parts for choosing between snapshots.
    pub dev: u32,
    /// Parts for the final measurement.
    pub test: u32,
}

impl Default for Fractions {
    fn default() -> Self {
        Fractions {
            train: 70,
            dev: 10,
            test: 20,
        }
    }
}

/// How a suite is divided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitRule {
    /// Decides between what is equally good.
    pub seed: u64,
    /// The sizes.
    pub fractions: Fractions,
    /// Projects that go into one split as a whole, by normalised name.
    pub hold_out: BTreeMap<String, Split>,
    /// What is never divided.
    pub links: LinkRule,
}

/// Why a suite cannot be divided.
#[derive(Debug, thiserror::Error)]
pub enum SplitError {
    /// Nothing to divide.
    #[error("split a suite: it has no tasks")]
    Empty,
    /// An id is not unique.
    #[error("split a suite: the id {0} appears twice")]
    Duplicate(TaskId),
    /// All parts are zero, or the text is none.
    #[error(
        "read the sizes of the splits {0:?}: expected TRAIN:DEV:TEST in whole parts, not all zero"
    )]
    Fractions(String),
    /// No task is of the project.
    #[error("hold out the project {0}: no task is of it")]
    UnknownProject(String),
    /// A project can only be held out into one of the three splits.
    #[error("hold out the project {0}: unassigned is no split")]
    Unassigned(String),
    /// Two projects that share code are to be held out differently.
    #[error(
        "hold out projects: {first} and {second} share the source group {group}, but shall go into different splits"
    )]
    HeldApart {
        /// One project.
        first: String,
        /// The other.
        second: String,
        /// What they share.
        group: String,
    },
    /// Made by other rules than this program knows.
    #[error("use the split: its links are of version {got}, and this program knows 1 to {known}")]
    LinksVersion {
        /// What the manifest says.
        got: u32,
        /// The newest that is known.
        known: u32,
    },
    /// What is frozen is no longer there as it was.
    #[error("extend the split: {n} frozen tasks are missing or changed, the first is {first}")]
    Moved {
        /// How many.
        n: usize,
        /// The first.
        first: TaskId,
    },
}

impl SplitError {
    /// What the user can do.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            SplitError::UnknownProject(_) => {
                Some("`temper tasks list` shows the tasks and their projects")
            }
            SplitError::HeldApart { .. } => Some("hold both out into the same split"),
            SplitError::LinksVersion { .. } => Some(
                "use the version of this program that made it, or make a new split for a new suite",
            ),
            SplitError::Moved { .. } => Some(
                "`temper split verify` lists them; a frozen task is never edited, an edited one needs another id",
            ),
            _ => None,
        }
    }
}

impl std::str::FromStr for Fractions {
    type Err = SplitError;
    fn from_str(text: &str) -> Result<Self, SplitError> {
        let parts: Option<Vec<u32>> = text
            .split(':')
            .map(|part| part.trim().parse().ok())
            .collect();
        match parts.as_deref() {
            Some(&[train, dev, test]) if train > 0 || dev > 0 || test > 0 => {
                Ok(Fractions { train, dev, test })
            }
            _ => Err(SplitError::Fractions(text.to_owned())),
        }
    }
}

impl SplitRule {
    /// Checks the rule against the tasks, and gives it with project names normalised.
    fn checked(&self, evidence: &[Evidence]) -> Result<SplitRule, SplitError> {
        self.check_version()?;
        if evidence.is_empty() {
            return Err(SplitError::Empty);
        }
        let Fractions { train, dev, test } = self.fractions;
        if train == 0 && dev == 0 && test == 0 {
            return Err(SplitError::Fractions("0:0:0".to_owned()));
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = evidence.iter().find(|task| !seen.insert(&task.id)) {
            return Err(SplitError::Duplicate(twice.id.clone()));
        }
        let mut rule = self.clone();
        rule.hold_out.clear();
        for (project, split) in &self.hold_out {
            let name = project_name(project);
            if *split == Split::Unassigned {
                return Err(SplitError::Unassigned(project.clone()));
            }
            if !evidence.iter().any(|task| is_of(task, &name)) {
                return Err(SplitError::UnknownProject(project.clone()));
            }
            rule.hold_out.insert(name, *split);
        }
        Ok(rule)
    }

    pub(super) fn check_version(&self) -> Result<(), SplitError> {
        let known = LinkRule::default().version;
        if !(1..=known).contains(&self.links.version) {
            return Err(SplitError::LinksVersion {
                got: self.links.version,
                known,
            });
        }
        Ok(())
    }

    /// The project and the split that a group of tasks must go into.
    pub(super) fn held_out(
        &self,
        members: &[&Evidence],
        group: &str,
    ) -> Result<Option<Split>, SplitError> {
        let mut found: Option<(&String, Split)> = None;
        for (project, split) in &self.hold_out {
            if members.iter().any(|task| is_of(task, project)) {
                match found {
                    Some((first, other)) if other != *split => {
                        return Err(SplitError::HeldApart {
                            first: first.clone(),
                            second: project.clone(),
                            group: group.to_owned(),
                        });
                    }
                    _ => found = Some((project, *split)),
                }
            }
        }
        Ok(found.map(|(_, split)| split))
    }
}

pub(super) fn is_of(task: &Evidence, project: &str) -> bool {
    task.project == project || task.identities.contains(&format!("name:{project}"))
}

/// Divides the tasks of a suite. The result depends on the evidence and the rule, not on the order
/// of the evidence.
pub fn split(evidence: &[Evidence], rule: &SplitRule) -> Result<SplitManifest, SplitError> {
    let rule = rule.checked(evidence)?;
    let links = links(evidence, &rule.links);
    let groups = groups(evidence, &links);
    let by_id: BTreeMap<&TaskId, &Evidence> =
        evidence.iter().map(|task| (&task.id, task)).collect();
    let splits = Balance::new(evidence).divide(&groups, &by_id, &rule)?;
    let frozen_groups: Vec<FrozenGroup> = groups
        .iter()
        .zip(&splits)
        .map(|(group, split)| FrozenGroup::new(group, *split, &links))
        .collect();
    let tasks = groups.iter().zip(&splits).flat_map(|(group, split)| {
        group.members.iter().map(|id| FrozenTask {
            id: id.clone(),
            digest: by_id[id].digest.clone(),
            group: group.name.clone(),
            split: *split,
        })
    });
    Ok(SplitManifest::freeze(
        rule.clone(),
        tasks.collect(),
        frozen_groups,
    ))
}

/// How much of everything there is, and in which split.
#[derive(Default)]
pub(super) struct Balance {
    totals: BTreeMap<String, f64>,
    counts: BTreeMap<String, [f64; 3]>,
}

const SPLITS: [Split; 3] = [Split::Train, Split::Dev, Split::Test];
/// The whole counts as much as project and kind together, and a little more.
const WHOLE_WEIGHT: f64 = 3.0;

fn strata(task: &Evidence) -> [String; 3] {
    [
        String::new(),
        format!("project:{}", task.project),
        format!("kind:{}", task.kind),
    ]
}

impl Balance {
    pub(super) fn new(evidence: &[Evidence]) -> Self {
        let mut balance = Balance::default();
        for task in evidence {
            for stratum in strata(task) {
                *balance.totals.entry(stratum).or_default() += 1.0;
            }
        }
        balance
    }

    pub(super) fn count(&mut self, task: &Evidence, split: Split) {
        if let Some(at) = SPLITS.iter().position(|known| *known == split) {
            for stratum in strata(task) {
                self.counts.entry(stratum).or_default()[at] += 1.0;
            }
        }
    }

    /// A split for each group, in the order of the groups.
    pub(super) fn divide(
        mut self,
        groups: &[Group],
        by_id: &BTreeMap<&TaskId, &Evidence>,
        rule: &SplitRule,
    ) -> Result<Vec<Split>, SplitError> {
        let members = |group: &Group| -> Vec<&Evidence> {
            group
                .members
                .iter()
                .filter_map(|id| by_id.get(id).copied())
                .collect()
        };
        let mut splits = vec![Split::Unassigned; groups.len()];
        for (group, split) in groups.iter().zip(&mut splits) {
            let members = members(group);
            if let Some(held) = rule.held_out(&members, group.name.as_str())? {
                *split = held;
                members.iter().for_each(|task| self.count(task, held));
            }
        }
        let mut order: Vec<usize> = (0..groups.len())
            .filter(|at| splits[*at] == Split::Unassigned)
            .collect();
        order.sort_by_cached_key(|at| {
            let group = &groups[*at];
            (
                std::cmp::Reverse(group.members.len()),
                Digest::of_value(&(rule.seed, &group.name)),
            )
        });
        for at in order {
            let members = members(&groups[at]);
            let split = self.neediest(&members, rule);
            splits[at] = split;
            members.iter().for_each(|task| self.count(task, split));
        }
        Ok(splits)
    }

    fn neediest(&self, members: &[&Evidence], rule: &SplitRule) -> Split {
        let Fractions { train, dev, test } = rule.fractions;
        let parts = [train, dev, test].map(f64::from);
        let whole: f64 = parts.iter().sum();
        let mut has: BTreeMap<String, f64> = BTreeMap::new();
        for stratum in members.iter().flat_map(|task| strata(task)) {
            *has.entry(stratum).or_default() += 1.0;
        }
        let mut best = (f64::NEG_INFINITY, Split::Train);
        for (at, split) in SPLITS
            .into_iter()
            .enumerate()
            .filter(|(at, _)| parts[*at] > 0.0)
        {
            let mut need = 0.0;
            for (stratum, n) in &has {
                let total = self.totals.get(stratum).copied().unwrap_or(*n);
                let there = self.counts.get(stratum).map_or(0.0, |counts| counts[at]);
                let weight = if stratum.is_empty() {
                    WHOLE_WEIGHT
                } else {
                    1.0
                };
                need += weight * n * (parts[at] / whole - there / total);
            }
            if need > best.0 {
                best = (need, split);
            }
        }
        best.1
    }
}
