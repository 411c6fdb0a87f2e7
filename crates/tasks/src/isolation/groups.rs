//! Source groups: what links connect, directly or through others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use temper_core::{Digest, SourceGroup, TaskId};

use super::{evidence::Evidence, links::Link};

/// Tasks that are connected by links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Unique; made from the members alone.
    pub name: SourceGroup,
    /// In order.
    pub members: Vec<TaskId>,
}

/// Joins what links connect; groups come in order of their names.
pub fn groups(evidence: &[Evidence], links: &[Link]) -> Vec<Group> {
    let ids: BTreeMap<&TaskId, usize> = evidence
        .iter()
        .enumerate()
        .map(|(index, task)| (&task.id, index))
        .collect();
    let mut parent: Vec<usize> = (0..evidence.len()).collect();
    for link in links {
        let mut members = link.members.iter().filter_map(|id| ids.get(id).copied());
        if let Some(first) = members.next() {
            for other in members {
                let (a, b) = (root(&mut parent, first), root(&mut parent, other));
                parent[a.max(b)] = a.min(b);
            }
        }
    }
    let mut members: BTreeMap<usize, Vec<&Evidence>> = BTreeMap::new();
    for (index, task) in evidence.iter().enumerate() {
        members
            .entry(root(&mut parent, index))
            .or_default()
            .push(task);
    }
    let mut named: BTreeMap<SourceGroup, Vec<Vec<&Evidence>>> = BTreeMap::new();
    for members in members.into_values() {
        named
            .entry(name(&members, false))
            .or_default()
            .push(members);
    }
    let mut groups: Vec<Group> = Vec::new();
    for (plain, several) in named {
        let clash = several.len() > 1;
        for members in several {
            let mut ids: Vec<TaskId> = members.iter().map(|task| task.id.clone()).collect();
            ids.sort();
            groups.push(Group {
                name: if clash {
                    name(&members, true)
                } else {
                    plain.clone()
                },
                members: ids,
            });
        }
    }
    groups.sort_by(|a, b| a.name.cmp(&b.name));
    groups
}

/// The smallest place of the members, or the smallest member where none has one.
pub(super) fn name(members: &[&Evidence], with_digest: bool) -> SourceGroup {
    let place = members.iter().filter_map(|task| {
        let file = task.files.first()?;
        Some(format!("{}/{file}", task.project))
    });
    let smallest = members.iter().map(|task| &task.id).min();
    let text = place.min().unwrap_or_else(|| {
        let id = smallest.map_or("", |id| id.as_str());
        members
            .first()
            .map_or(id.to_owned(), |task| format!("{}/{id}", task.project))
    });
    let mut text: String = text
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect();
    // A name has at most 200 bytes.
    if with_digest || text.len() > 160 {
        let digest = Digest::of_value(&smallest);
        while text.len() > 160 {
            text.pop();
        }
        text = format!("{text}#{}", digest.short());
    }
    SourceGroup::new(text).expect("the name is short, not empty and free of control characters")
}

fn root(parent: &mut [usize], mut at: usize) -> usize {
    while parent[at] != at {
        parent[at] = parent[parent[at]];
        at = parent[at];
    }
    at
}

/// The shortest chain of links from one task to another, each with the task it leads to; empty
/// when they are not connected, or the same.
pub fn why<'a>(links: &'a [Link], from: &TaskId, to: &TaskId) -> Vec<(&'a Link, &'a TaskId)> {
    let mut of: BTreeMap<&TaskId, Vec<usize>> = BTreeMap::new();
    for (index, link) in links.iter().enumerate() {
        for member in &link.members {
            of.entry(member).or_default().push(index);
        }
    }
    let mut came: BTreeMap<&TaskId, (usize, &TaskId)> = BTreeMap::new();
    let mut used = BTreeSet::new();
    let mut queue = VecDeque::from([from]);
    while let Some(task) = queue.pop_front() {
        if task == to {
            break;
        }
        for index in of.get(task).into_iter().flatten() {
            if !used.insert(*index) {
                continue;
            }
            for member in &links[*index].members {
                if member != from && !came.contains_key(member) {
                    came.insert(member, (*index, task));
                    queue.push_back(member);
                }
            }
        }
    }
    let mut chain = Vec::new();
    let mut at = to;
    while let Some((to, (index, before))) = came.get_key_value(at) {
        chain.push((&links[*index], *to));
        at = before;
    }
    chain.reverse();
    chain
}
