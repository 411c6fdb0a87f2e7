//! What selection data and the final test, or training rows and either, have in common.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use temper_core::{
    Digest, SourceGroup, Task, TaskId,
    task::{FinalTestTask, SelectionTask},
};
use temper_dataset::row::RowOrigin;
use temper_tasks::{LoadError, isolation::content_digest};

/// Something that two sets share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "by", rename_all = "kebab-case")]
pub enum Shared {
    /// A source group.
    Group {
        /// The group.
        group: SourceGroup,
        /// A task of the first set in it.
        first: TaskId,
        /// A task of the second.
        second: TaskId,
    },
    /// The content of a task, whatever it is called.
    Content {
        /// The task of the first set.
        first: TaskId,
        /// The task of the second.
        second: TaskId,
    },
    /// The words of a statement.
    Statement {
        /// The task of the first set.
        first: TaskId,
        /// The task of the second.
        second: TaskId,
    },
}

impl std::fmt::Display for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Shared::Group {
                group,
                first,
                second,
            } => write!(f, "{first} and {second} are of the source group {group}"),
            Shared::Content { first, second } => write!(f, "{first} and {second} are one task"),
            Shared::Statement { first, second } => {
                write!(f, "{first} and {second} have one statement")
            }
        }
    }
}

/// What dev tasks that select and test tasks share. The first kind that is found of group,
/// content and statement stands for a pair.
///
/// # Errors
/// When a file of a task cannot be read.
pub fn selection_and_test(
    selection: &[SelectionTask],
    test: &[FinalTestTask],
) -> Result<Vec<Shared>, LoadError> {
    let first: Vec<&Task> = selection.iter().map(|task| &**task).collect();
    let second: Vec<&Task> = test.iter().map(|task| &**task).collect();
    between(&first, &second)
}

fn between(first: &[&Task], second: &[&Task]) -> Result<Vec<Shared>, LoadError> {
    let mut groups = BTreeMap::new();
    let mut contents = BTreeMap::new();
    let mut statements = BTreeMap::new();
    for task in second {
        groups.entry(&task.source_group).or_insert(&task.id);
        contents.entry(nameless(task)?).or_insert(&task.id);
        statements.entry(words(&task.statement)).or_insert(&task.id);
    }
    let mut shared = Vec::new();
    for task in first {
        let id = || task.id.clone();
        if let Some(other) = groups.get(&task.source_group) {
            shared.push(Shared::Group {
                group: task.source_group.clone(),
                first: id(),
                second: (*other).clone(),
            });
        } else if let Some(other) = contents.get(&nameless(task)?) {
            shared.push(Shared::Content {
                first: id(),
                second: (*other).clone(),
            });
        } else if let Some(other) = statements.get(&words(&task.statement)) {
            shared.push(Shared::Statement {
                first: id(),
                second: (*other).clone(),
            });
        }
    }
    Ok(shared)
}

/// Origins of training rows that are of a held-out task or of its source group, with that task.
pub fn rows_and_held_out<'a>(
    rows: impl IntoIterator<Item = &'a RowOrigin>,
    held_out: &[&Task],
) -> Vec<(RowOrigin, TaskId)> {
    let ids: BTreeSet<&TaskId> = held_out.iter().map(|task| &task.id).collect();
    let mut groups = BTreeMap::new();
    for task in held_out {
        groups.entry(&task.source_group).or_insert(&task.id);
    }
    let mut found = BTreeSet::new();
    for row in rows {
        let task = ids.get(&row.task_id).or(groups.get(&row.source_group));
        if let Some(task) = task {
            found.insert((row.clone(), (*task).clone()));
        }
    }
    found.into_iter().collect()
}

/// The digest of a set of tasks: their ids and contents, in any order.
///
/// # Errors
/// When a file of a task cannot be read.
pub fn set_digest(tasks: &[&Task]) -> Result<Digest, LoadError> {
    let mut digests = tasks
        .iter()
        .map(|task| content_digest(task))
        .collect::<Result<Vec<_>, _>>()?;
    digests.sort();
    Ok(Digest::of_value(&digests))
}

/// The content of a task without its name.
fn nameless(task: &Task) -> Result<Digest, LoadError> {
    let mut task = task.clone();
    task.id = TaskId::new("-").expect("a dash is a name");
    content_digest(&task)
}

fn words(statement: &str) -> String {
    let words: Vec<&str> = statement.split_whitespace().collect();
    words.join(" ").to_lowercase()
}
