//! Adding tasks to a frozen division without moving any.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use temper_core::{SourceGroup, Split, TaskId};

use super::{
    evidence::Evidence,
    groups::{Group, groups},
    links::{Link, Reason, links},
    manifest::{FrozenGroup, FrozenTask, SplitManifest},
    split::{Balance, SplitError, is_of},
};

/// A larger division, and what is not in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Extension {
    /// Everything frozen before, and what was added.
    pub manifest: SplitManifest,
    /// What was added.
    pub added: Vec<TaskId>,
    /// What could not be, since it would have joined splits.
    pub refused: Vec<Refused>,
}

/// A new task that belongs to several splits, and to none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refused {
    /// The task.
    pub id: TaskId,
    /// One link into each of the splits: to which task, and why. A project that is held out links
    /// with its split without a task.
    pub because: Vec<RefusedLink>,
}

/// A link of a refused task into one split.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RefusedLink {
    /// The split.
    pub split: Split,
    /// The task there.
    pub task: Option<TaskId>,
    /// Why they are linked.
    pub reason: Option<Reason>,
}

/// Adds the tasks that are not in the manifest. A new task goes where the tasks are that it is
/// linked with, or with its own new group where the rule puts it. One that is linked into several
/// splits is refused. Frozen tasks keep group and split. Fails when a frozen task is missing or
/// changed.
///
/// Tasks linked with frozen ones are taken before those that are linked with new ones only, and in
/// order of their ids: what is refused depends on what is added together, but not on its order.
pub fn extend(manifest: &SplitManifest, evidence: &[Evidence]) -> Result<Extension, SplitError> {
    manifest.rule.check_version()?;
    let by_id: BTreeMap<&TaskId, &Evidence> =
        evidence.iter().map(|task| (&task.id, task)).collect();
    if by_id.len() < evidence.len() {
        let mut seen = BTreeSet::new();
        if let Some(twice) = evidence.iter().find(|task| !seen.insert(&task.id)) {
            return Err(SplitError::Duplicate(twice.id.clone()));
        }
    }
    let moved: Vec<&TaskId> = manifest
        .tasks
        .iter()
        .filter(|frozen| {
            by_id
                .get(&frozen.id)
                .is_none_or(|task| task.digest != frozen.digest)
        })
        .map(|frozen| &frozen.id)
        .collect();
    if let Some(first) = moved.first() {
        return Err(SplitError::Moved {
            n: moved.len(),
            first: (*first).clone(),
        });
    }
    let links = links(evidence, &manifest.rule.links);
    let mut of: BTreeMap<&TaskId, Vec<&Link>> = BTreeMap::new();
    for link in &links {
        for member in &link.members {
            of.entry(member).or_default().push(link);
        }
    }
    let mut placed: BTreeMap<TaskId, (SourceGroup, Split)> = manifest
        .tasks
        .iter()
        .map(|task| (task.id.clone(), (task.group.clone(), task.split)))
        .collect();
    let mut waiting: BTreeSet<&TaskId> = by_id
        .keys()
        .copied()
        .filter(|id| !placed.contains_key(id))
        .collect();
    let added_from = waiting.clone();
    let mut refused: Vec<Refused> = Vec::new();
    // One task at a time, so that every decision sees all earlier ones.
    let neighbours = |id: &TaskId| {
        of.get(id)
            .into_iter()
            .flatten()
            .flat_map(|link| &link.members)
    };
    let mut ready: BTreeSet<&TaskId> = waiting
        .iter()
        .copied()
        .filter(|id| neighbours(id).any(|other| placed.contains_key(other)))
        .collect();
    while let Some(id) = ready.pop_first() {
        let mut into = BTreeMap::new();
        for link in of.get(id).into_iter().flatten() {
            for other in &link.members {
                if let Some((group, split)) = placed.get(other) {
                    into.entry(*split)
                        .or_insert_with(|| (other.clone(), link.reason.clone(), BTreeSet::new()))
                        .2
                        .insert(group.clone());
                }
            }
        }
        waiting.remove(id);
        let mut because: Vec<RefusedLink> = into
            .iter()
            .map(|(split, (task, reason, _))| RefusedLink {
                split: *split,
                task: Some(task.clone()),
                reason: Some(reason.clone()),
            })
            .collect();
        for (project, split) in &manifest.rule.hold_out {
            if is_of(by_id[id], project) && !into.contains_key(split) {
                because.push(RefusedLink {
                    split: *split,
                    task: None,
                    reason: Some(Reason::SameProject {
                        project: format!("name:{project}"),
                    }),
                });
            }
        }
        let place = into
            .first_key_value()
            .and_then(|(split, (_, _, groups))| Some((groups.first()?.clone(), *split)));
        match place {
            Some(place) if because.len() == 1 => {
                placed.insert(id.clone(), place);
                ready.extend(neighbours(id).filter_map(|other| waiting.get(other)));
            }
            _ => refused.push(Refused {
                id: id.clone(),
                because,
            }),
        }
    }
    let mut balance_of: Vec<Evidence> = Vec::new();
    let mut fresh: Vec<Evidence> = waiting.iter().map(|id| by_id[*id].clone()).collect();
    let fresh_links: Vec<Link> = links
        .iter()
        .filter_map(|link| {
            let members: Vec<TaskId> = link
                .members
                .iter()
                .filter(|id| waiting.contains(id))
                .cloned()
                .collect();
            (members.len() > 1).then(|| Link {
                reason: link.reason.clone(),
                members,
            })
        })
        .collect();
    let mut new_groups = groups(&fresh, &fresh_links);
    let taken: BTreeSet<&SourceGroup> = manifest.groups.iter().map(|group| &group.name).collect();
    for group in &mut new_groups {
        if taken.contains(&group.name) {
            let members: Vec<&Evidence> = group.members.iter().map(|id| by_id[id]).collect();
            group.name = super::groups::name(&members, true);
        }
    }
    // A group that is held out into two splits would stop everything; its tasks are refused.
    new_groups.retain(|group| {
        let members: Vec<&Evidence> = group.members.iter().map(|id| by_id[id]).collect();
        let apart = manifest
            .rule
            .held_out(&members, group.name.as_str())
            .is_err();
        if apart {
            fresh.retain(|task| !group.members.contains(&task.id));
            refused.extend(
                group
                    .members
                    .iter()
                    .map(|id| refused_by_hold_out(id, &members, manifest)),
            );
        }
        !apart
    });
    balance_of.extend(placed.keys().map(|id| by_id[id].clone()));
    balance_of.extend(fresh);
    let mut balance = Balance::new(&balance_of);
    for (id, (_, split)) in &placed {
        balance.count(by_id[id], *split);
    }
    let splits = balance.divide(&new_groups, &by_id, &manifest.rule)?;
    for (group, split) in new_groups.iter().zip(&splits) {
        for id in &group.members {
            placed.insert(id.clone(), (group.name.clone(), *split));
        }
    }
    let added: Vec<TaskId> = added_from
        .into_iter()
        .filter(|id| placed.contains_key(*id))
        .cloned()
        .collect();
    refused.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(Extension {
        manifest: freeze(manifest, &placed, &by_id, &links, &added),
        added,
        refused,
    })
}

fn refused_by_hold_out(id: &TaskId, members: &[&Evidence], manifest: &SplitManifest) -> Refused {
    let held = manifest
        .rule
        .hold_out
        .iter()
        .filter(|(project, _)| members.iter().any(|task| is_of(task, project)));
    Refused {
        id: id.clone(),
        because: held
            .map(|(project, split)| RefusedLink {
                split: *split,
                task: members
                    .iter()
                    .find(|task| is_of(task, project))
                    .map(|task| task.id.clone()),
                reason: Some(Reason::SameProject {
                    project: format!("name:{project}"),
                }),
            })
            .collect(),
    }
}

fn freeze(
    old: &SplitManifest,
    placed: &BTreeMap<TaskId, (SourceGroup, Split)>,
    by_id: &BTreeMap<&TaskId, &Evidence>,
    links: &[Link],
    added: &[TaskId],
) -> SplitManifest {
    let tasks = placed
        .iter()
        .map(|(id, (group, split))| FrozenTask {
            id: id.clone(),
            digest: by_id[id].digest.clone(),
            group: group.clone(),
            split: *split,
        })
        .collect();
    let added: BTreeSet<&TaskId> = added.iter().collect();
    let mut groups: BTreeMap<SourceGroup, FrozenGroup> = old
        .groups
        .iter()
        .map(|group| (group.name.clone(), group.clone()))
        .collect();
    for id in &added {
        let Some((name, split)) = placed.get(*id) else {
            continue;
        };
        let group = groups.entry(name.clone()).or_insert_with(|| {
            let empty = Group {
                name: name.clone(),
                members: Vec::new(),
            };
            FrozenGroup::new(&empty, *split, &[])
        });
        group.members.push((*id).clone());
        group.members.sort();
    }
    for link in links {
        let members: Vec<TaskId> = link
            .members
            .iter()
            .filter(|id| placed.contains_key(*id))
            .cloned()
            .collect();
        let Some(new) = members.iter().find(|id| added.contains(id)) else {
            continue;
        };
        if let Some(group) = placed.get(new).and_then(|(name, _)| groups.get_mut(name))
            && members.len() > 1
        {
            let link = Link {
                reason: link.reason.clone(),
                members,
            };
            // What the new tasks join is said once, with them in it.
            group.links.retain(|known| known.reason != link.reason);
            group.add_links(std::iter::once(&link));
        }
    }
    SplitManifest::freeze(old.rule.clone(), tasks, groups.into_values().collect())
}
