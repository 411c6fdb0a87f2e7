//! Proving a frozen division again, from the tasks and not from what the manifest says of them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use temper_core::{Digest, SourceGroup, Split, TaskId};

use super::{
    evidence::Evidence,
    links::{Reason, links},
    manifest::{SplitManifest, word},
    split::{SplitError, is_of},
};

/// Something that is wrong with a division.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Finding {
    /// Linked tasks are in different splits.
    Crossing {
        /// One task.
        first: TaskId,
        /// Its split.
        first_split: Split,
        /// A task that is linked with it.
        second: TaskId,
        /// Its split.
        second_split: Split,
        /// Why they belong together.
        reason: Reason,
    },
    /// The task is not what was frozen.
    Changed {
        /// The task.
        id: TaskId,
        /// The frozen digest.
        expected: Digest,
        /// Today's.
        got: Digest,
    },
    /// A frozen task is not in the suite.
    Missing {
        /// The task.
        id: TaskId,
    },
    /// A task of the suite is not frozen.
    Extra {
        /// The task.
        id: TaskId,
    },
    /// An id appears twice, in the suite or in the manifest.
    Duplicate {
        /// The id.
        id: TaskId,
    },
    /// The task names another split itself.
    SplitDiffers {
        /// The task.
        id: TaskId,
        /// What is frozen.
        frozen: Split,
        /// What the task says.
        task: Split,
    },
    /// A group's own account contradicts the tasks'.
    GroupContradicts {
        /// The group.
        group: SourceGroup,
        /// How.
        how: String,
    },
    /// A task of a project that is held out as a whole is in another split.
    NotHeldOut {
        /// The task.
        id: TaskId,
        /// The project.
        project: String,
        /// Where it must be.
        expected: Split,
        /// Where it is.
        got: Split,
    },
    /// The manifest was edited: its digest is not that of its content.
    Edited {
        /// The digest it names.
        expected: Digest,
        /// The digest of its content.
        got: Digest,
    },
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Finding::Crossing {
                first,
                first_split,
                second,
                second_split,
                reason,
            } => write!(
                f,
                "{first} ({}) and {second} ({}) belong together: {reason}",
                word(*first_split),
                word(*second_split)
            ),
            Finding::Changed { id, expected, got } => {
                write!(
                    f,
                    "{id} changed: frozen as {}, now {}",
                    expected.short(),
                    got.short()
                )
            }
            Finding::Missing { id } => write!(f, "{id} is frozen but not in the suite"),
            Finding::Extra { id } => write!(f, "{id} is in the suite but not frozen"),
            Finding::Duplicate { id } => write!(f, "{id} appears twice"),
            Finding::SplitDiffers { id, frozen, task } => {
                write!(
                    f,
                    "{id} is frozen as {} but says {}",
                    word(*frozen),
                    word(*task)
                )
            }
            Finding::GroupContradicts { group, how } => write!(f, "the group {group} {how}"),
            Finding::NotHeldOut {
                id,
                project,
                expected,
                got,
            } => write!(
                f,
                "{id} is in {}, but the project {project} is held out into {}",
                word(*got),
                word(*expected)
            ),
            Finding::Edited { expected, got } => write!(
                f,
                "the manifest was edited: it names the digest {}, its content has {}",
                expected.short(),
                got.short()
            ),
        }
    }
}

/// Checks a division against the tasks of the suite; no finding means that it holds. Links are
/// made anew from the evidence.
pub fn verify(manifest: &SplitManifest, evidence: &[Evidence]) -> Result<Vec<Finding>, SplitError> {
    manifest.rule.check_version()?;
    let mut findings = Vec::new();
    let got = manifest.computed_digest();
    if got != manifest.digest {
        findings.push(Finding::Edited {
            expected: manifest.digest.clone(),
            got,
        });
    }
    let mut frozen = BTreeMap::new();
    for task in &manifest.tasks {
        if frozen.insert(&task.id, task).is_some() {
            findings.push(Finding::Duplicate {
                id: task.id.clone(),
            });
        }
    }
    let mut present = BTreeSet::new();
    for task in evidence {
        let id = task.id.clone();
        if !present.insert(&task.id) {
            findings.push(Finding::Duplicate { id });
            continue;
        }
        let Some(known) = frozen.get(&task.id) else {
            findings.push(Finding::Extra { id });
            continue;
        };
        if known.digest != task.digest {
            findings.push(Finding::Changed {
                id: id.clone(),
                expected: known.digest.clone(),
                got: task.digest.clone(),
            });
        }
        if task.split != Split::Unassigned && task.split != known.split {
            findings.push(Finding::SplitDiffers {
                id: id.clone(),
                frozen: known.split,
                task: task.split,
            });
        }
        for (project, expected) in &manifest.rule.hold_out {
            if is_of(task, project) && known.split != *expected {
                findings.push(Finding::NotHeldOut {
                    id: id.clone(),
                    project: project.clone(),
                    expected: *expected,
                    got: known.split,
                });
            }
        }
    }
    let missing = manifest
        .tasks
        .iter()
        .filter(|task| !present.contains(&task.id));
    findings.extend(missing.map(|task| Finding::Missing {
        id: task.id.clone(),
    }));
    contradictions(manifest, &mut findings);
    // One pair for each two splits that a link joins: the rest says the same again.
    for link in links(evidence, &manifest.rule.links) {
        let mut first_of: BTreeMap<Split, &TaskId> = BTreeMap::new();
        for member in &link.members {
            if let Some(task) = frozen.get(member) {
                first_of.entry(task.split).or_insert(member);
            }
        }
        let mut rest = first_of.iter();
        if let Some((first_split, first)) = rest.next() {
            findings.extend(rest.map(|(second_split, second)| Finding::Crossing {
                first: (*first).clone(),
                first_split: *first_split,
                second: (*second).clone(),
                second_split: *second_split,
                reason: link.reason.clone(),
            }));
        }
    }
    Ok(findings)
}

/// What the manifest says of groups must be what it says of tasks.
fn contradictions(manifest: &SplitManifest, findings: &mut Vec<Finding>) {
    let mut members: BTreeMap<&SourceGroup, BTreeSet<&TaskId>> = BTreeMap::new();
    let mut splits: BTreeMap<&SourceGroup, BTreeSet<Split>> = BTreeMap::new();
    for task in &manifest.tasks {
        members.entry(&task.group).or_default().insert(&task.id);
        splits.entry(&task.group).or_default().insert(task.split);
    }
    let mut add = |group: &SourceGroup, how: &str| {
        findings.push(Finding::GroupContradicts {
            group: group.clone(),
            how: how.to_owned(),
        });
    };
    let mut listed = BTreeSet::new();
    for group in &manifest.groups {
        if !listed.insert(&group.name) {
            add(&group.name, "is listed twice");
        }
        let own: BTreeSet<&TaskId> = group.members.iter().collect();
        if members.get(&group.name) != Some(&own) {
            add(&group.name, "lists other members than the tasks do");
        }
    }
    for (name, splits) in splits {
        let own = manifest.groups.iter().find(|group| group.name == *name);
        if splits.len() > 1 {
            add(name, "has tasks in several splits");
        } else if own.is_none_or(|own| !splits.contains(&own.split)) {
            add(name, "is not listed with the split of its tasks");
        }
        if splits.contains(&Split::Unassigned) {
            add(name, "has tasks in no split");
        }
    }
}
