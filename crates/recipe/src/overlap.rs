//! What selection data and the final test, or training rows and either, have in common.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use temper_core::{
    Digest, SourceGroup, Task, TaskId,
    task::{FinalTestTask, SelectionTask},
};
use temper_dataset::row::RowOrigin;
use temper_tasks::{
    LoadError,
    isolation::{content_digest, statement_words},
};

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
/// content and statement stands for a pair. Nothing is found in a division that
/// `temper_tasks::isolation` makes: it keeps equal statements, and so equal contents, in one group.
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
        statements
            .entry(statement_words(&task.statement))
            .or_insert(&task.id);
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
        } else if let Some(other) = statements.get(&statement_words(&task.statement)) {
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

#[cfg(test)]
mod tests {
    use temper_core::{
        Patch,
        task::{
            Archive, Environment, HiddenSource, Oracle, Origin, Start, TaskFormat, TestLists,
            Verifier,
        },
    };
    use temper_tasks::isolation::{Collector, SplitRule, apply, no_sources, split};

    use super::*;

    /// A task about a file of its own.
    fn task(number: usize, statement: &str) -> Task {
        let file = format!("p{number}/m.py");
        let code: String = (0..9)
            .map(|line| format!(" a_{number}_{line} = f_{number}(b_{line})\n"))
            .collect();
        let fix = format!("--- a/{file}\n+++ b/{file}\n@@ -1,9 +1,10 @@\n+x = {number}\n{code}");
        Task {
            id: TaskId::new(format!("t{number:03}")).unwrap(),
            format: TaskFormat::Native,
            statement: statement.to_owned(),
            start: Start::SourceDistribution {
                archive: Archive {
                    project: format!("p{number}"),
                    file_name: format!("p{number}-1.tar.gz"),
                    sha256: Digest::of(format!("p{number}").as_bytes()),
                },
                patch: Patch::default(),
            },
            environment: Environment::Host,
            verifier: Verifier::Pytest {
                public: TestLists::default(),
                hidden: TestLists::default(),
                test_files: Vec::new(),
                hidden_source: HiddenSource::SourceDistribution,
                arguments: Vec::new(),
                timeout_seconds: 60,
            },
            oracle: Some(Oracle::Patch {
                patch: Patch(fix.into_bytes().into()),
            }),
            origin: Origin {
                project: format!("p{number}"),
                ..Origin::default()
            },
            source_group: SourceGroup::new(format!("p{number}")).unwrap(),
            split: temper_core::Split::Unassigned,
            metadata: serde_json::Map::new(),
            construction: None,
        }
    }

    /// Statements repeat here across projects, in other letters and with other spaces.
    #[test]
    fn a_division_made_by_source_group_shares_nothing_between_splits() {
        let mut tasks: Vec<Task> = (0..120)
            .map(|number| {
                let statement = match number % 3 {
                    0 => format!("# Wrong   result {}\n", number % 7),
                    1 => format!("# WRONG result\n{}", number % 7),
                    _ => format!("# another {number}"),
                };
                task(number, &statement)
            })
            .collect();
        // One task under two names.
        let mut copy = tasks[5].clone();
        copy.id = TaskId::new("copy").unwrap();
        tasks.push(copy);
        let evidence = Collector::default().all(&tasks, &mut no_sources).unwrap();
        let manifest = split(&evidence, &SplitRule::default()).unwrap();
        assert!(manifest.groups.len() > 40, "{}", manifest.groups.len());
        assert_eq!(apply(&manifest, &mut tasks).unwrap(), Vec::<String>::new());
        let of = |split| -> Vec<&Task> { tasks.iter().filter(|t| t.split == split).collect() };
        let (train, dev, test) = (
            of(temper_core::Split::Train),
            of(temper_core::Split::Dev),
            of(temper_core::Split::Test),
        );
        assert!(!train.is_empty() && !dev.is_empty() && !test.is_empty());
        for (first, second) in [(&dev, &test), (&train, &test), (&train, &dev)] {
            assert_eq!(between(first, second).unwrap(), []);
        }
        // The check itself sees what the division keeps together.
        let (first, second) = ([&tasks[0]], [&tasks[7]]);
        assert_ne!(tasks[0].statement, tasks[7].statement);
        assert!(matches!(
            between(&first, &second).unwrap()[..],
            [Shared::Group { .. }]
        ));
        let mut apart = tasks[7].clone();
        apart.source_group = SourceGroup::new("apart").unwrap();
        assert!(matches!(
            between(&first, &[&apart]).unwrap()[..],
            [Shared::Statement { .. }]
        ));
    }
}
