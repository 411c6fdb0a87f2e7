//! The frozen division: `split.json`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use temper_core::{
    Digest, SourceGroup, Split, Task, TaskId,
    task::{Environment, HiddenSource, Oracle, Start, Verifier},
};

use super::{groups::Group, links::Link, split::SplitRule};
use crate::{
    error::{Cause, LoadError, read_bounded},
    tree_io::{TreeLimits, read_tree},
};

/// The manifest's name in a suite.
pub const SPLIT_FILE: &str = "split.json";
/// A larger manifest is refused: about a million tasks.
pub const MAX_SPLIT_BYTES: u64 = 1 << 30;
const FORMAT: u32 = 1;

/// A division of a suite that never changes, except that tasks are added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitManifest {
    /// Version of this file's format.
    pub format: u32,
    /// How it was made.
    pub rule: SplitRule,
    /// In order of their ids.
    pub tasks: Vec<FrozenTask>,
    /// In order of their names.
    pub groups: Vec<FrozenGroup>,
    /// The digest of everything above.
    pub digest: Digest,
}

/// Where one task belongs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrozenTask {
    /// The task.
    pub id: TaskId,
    /// [`content_digest`] when it was frozen.
    pub digest: Digest,
    /// Its source group.
    pub group: SourceGroup,
    /// Its split.
    pub split: Split,
}

/// What is in one group, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrozenGroup {
    /// Its name.
    pub name: SourceGroup,
    /// Its split.
    pub split: Split,
    /// Its tasks, in order.
    pub members: Vec<TaskId>,
    /// What connects them. A task that was added may also be linked with another group of the same
    /// split.
    pub links: Vec<Link>,
}

impl FrozenGroup {
    /// Takes what concerns the group from all links. Links of one kind that hold the same tasks
    /// say the same: the first is kept.
    pub(super) fn new(group: &Group, split: Split, links: &[Link]) -> Self {
        let members: BTreeSet<&TaskId> = group.members.iter().collect();
        let mut frozen = FrozenGroup {
            name: group.name.clone(),
            split,
            members: group.members.clone(),
            links: Vec::new(),
        };
        frozen.add_links(
            links
                .iter()
                .filter(|link| members.contains(&link.members[0])),
        );
        frozen
    }

    pub(super) fn add_links<'a>(&mut self, links: impl Iterator<Item = &'a Link>) {
        for link in links {
            let says_the_same = |known: &Link| {
                known.reason.kind() == link.reason.kind() && known.members == link.members
            };
            if !self.links.iter().any(says_the_same) {
                self.links.push(link.clone());
            }
        }
        self.links.sort();
    }
}

impl SplitManifest {
    /// Puts everything in order and computes the digest.
    pub(super) fn freeze(
        rule: SplitRule,
        mut tasks: Vec<FrozenTask>,
        mut groups: Vec<FrozenGroup>,
    ) -> Self {
        tasks.sort_by(|a, b| a.id.cmp(&b.id));
        groups.sort_by(|a, b| a.name.cmp(&b.name));
        let mut manifest = SplitManifest {
            format: FORMAT,
            rule,
            tasks,
            groups,
            digest: Digest::of(b""),
        };
        manifest.digest = manifest.computed_digest();
        manifest
    }

    /// The digest of what the manifest says now.
    pub fn computed_digest(&self) -> Digest {
        Digest::of_value(&(self.format, &self.rule, &self.tasks, &self.groups))
    }

    /// A task's place.
    pub fn task(&self, id: &TaskId) -> Option<&FrozenTask> {
        self.tasks
            .binary_search_by(|task| task.id.cmp(id))
            .ok()
            .map(|at| &self.tasks[at])
    }

    /// Tasks and groups of each split.
    pub fn sizes(&self) -> BTreeMap<String, (usize, usize)> {
        let mut sizes: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for task in &self.tasks {
            sizes.entry(word(task.split)).or_default().0 += 1;
        }
        for group in &self.groups {
            sizes.entry(word(group.split)).or_default().1 += 1;
        }
        sizes
    }

    /// Reads a manifest. Its digest is not checked here: [`verify`](super::verify) does.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let bytes = read_bounded(path, MAX_SPLIT_BYTES)?;
        let syntax =
            |error: serde_json::Error| LoadError::read(path, Cause::Syntax(error.to_string()));
        let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(syntax)?;
        match value.get("format").and_then(serde_json::Value::as_u64) {
            Some(format) if format == u64::from(FORMAT) => {}
            Some(other) => {
                let cause = Cause::Version {
                    got: other.to_string(),
                    known: "1",
                };
                return Err(LoadError::read(path, cause).in_field("format"));
            }
            None => return Err(LoadError::read(path, Cause::Missing).in_field("format")),
        }
        let mut manifest: SplitManifest = serde_json::from_value(value).map_err(syntax)?;
        manifest.tasks.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(manifest)
    }

    /// The file's bytes: JSON with one task and one group a line, so that versions can be compared.
    pub fn to_bytes(&self) -> Vec<u8> {
        fn line<T: Serialize>(value: &T) -> String {
            serde_json::to_string(value).expect("plain data serializes to JSON")
        }
        fn lines<T: Serialize>(values: &[T]) -> String {
            values.iter().map(line).collect::<Vec<_>>().join(",\n")
        }
        format!(
            "{{\n\"format\": {},\n\"rule\": {},\n\"tasks\": [\n{}\n],\n\"groups\": [\n{}\n],\n\"digest\": {}\n}}\n",
            self.format,
            line(&self.rule),
            lines(&self.tasks),
            lines(&self.groups),
            line(&self.digest)
        )
        .into_bytes()
    }

    /// Writes it by rename, so that there is an old one or a new one and never half of one.
    pub fn write(&self, path: &Path) -> Result<(), LoadError> {
        use std::io::Write;
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        tempfile::NamedTempFile::new_in(directory)
            .and_then(|mut file| {
                file.write_all(&self.to_bytes())?;
                crate::cache::set_mode(file.path(), 0o644)?;
                file.persist(path).map_err(|error| error.error)?;
                Ok(())
            })
            .map_err(|error| LoadError::write(path, error))
    }
}

pub(super) fn word(split: Split) -> String {
    format!("{split:?}").to_lowercase()
}

/// Gives tasks the group and the split that are frozen for them. A task that is not in the
/// manifest, or is no longer the one that was frozen, becomes unassigned, which counts as held
/// out; there is one line for each kind of those.
pub fn apply(manifest: &SplitManifest, tasks: &mut [Task]) -> Result<Vec<String>, LoadError> {
    let (mut unknown, mut changed) = (Vec::new(), Vec::new());
    for task in tasks {
        match manifest.task(&task.id) {
            Some(frozen) if frozen.digest == content_digest(task)? => {
                task.split = frozen.split;
                task.source_group = frozen.group.clone();
            }
            known => {
                let list = if known.is_some() {
                    &mut changed
                } else {
                    &mut unknown
                };
                list.push(task.id.clone());
                task.split = Split::Unassigned;
            }
        }
    }
    let line = |ids: &[TaskId], what: &str| {
        ids.first().map(|first| {
            format!(
                "{} tasks {what}, so they are in no split and held out: {first}{}",
                ids.len(),
                if ids.len() > 1 { ", …" } else { "" }
            )
        })
    };
    Ok([
        line(&unknown, "are not in the frozen split"),
        line(&changed, "differ from what was frozen"),
    ]
    .into_iter()
    .flatten()
    .collect())
}

/// The digest of what a task is: everything but its split and its group, with directories by what
/// is in them and not by where they lie.
pub fn content_digest(task: &Task) -> Result<Digest, LoadError> {
    let mut task = task.clone();
    task.split = Split::Unassigned;
    task.source_group = SourceGroup::new("-").expect("a dash is a name");
    let mut trees = Vec::new();
    let mut take = |path: &mut PathBuf| -> Result<(), LoadError> {
        let tree = read_tree(path, &TreeLimits::default())
            .map_err(|error| LoadError::read(path, error))?;
        trees.push(temper_core::tree::digest(&tree));
        *path = PathBuf::new();
        Ok(())
    };
    match &mut task.start {
        // Its digest is in the task.
        Start::Directory { path, .. } => *path = PathBuf::new(),
        Start::SourceDistribution { .. } | Start::GitCommit { .. } | Start::Image { .. } => {}
    }
    if let Environment::Dockerfile { context, .. } = &mut task.environment {
        take(context)?;
    }
    match &mut task.verifier {
        Verifier::Pytest {
            hidden_source: HiddenSource::Directory { path },
            ..
        }
        | Verifier::Harbor { tests: path, .. } => take(path)?,
        Verifier::Pytest { .. } | Verifier::Log { .. } => {}
    }
    if let Some(Oracle::Script { directory, .. }) = &mut task.oracle {
        take(directory)?;
    }
    Ok(Digest::of_value(&(&task, &trees)))
}
