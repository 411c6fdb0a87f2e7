//! Starting trees.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use temper_core::{
    Digest, Patch, Tree,
    task::{Archive, Start},
};

use super::{PrepareError, Tools};
use crate::{
    archive::{ArchiveLimits, extract_single_top},
    cache::Cache,
    history,
    tree_io::{TreeLimits, read_tree, write_tree},
};

/// A starting tree in the cache.
pub(super) struct PreparedStart {
    pub(super) tree: PathBuf,
    pub(super) facts: Facts,
}

/// What is known of a tree, kept beside it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Facts {
    /// The tree's digest.
    pub(super) digest: Digest,
    /// Its only commit, where there is a repository.
    pub(super) commit: Option<String>,
    /// What there was to say when it was made.
    pub(super) notes: Vec<String>,
}

/// Changes when the same inputs would give another tree.
const LAYOUT: &str = "start-1";

pub(super) fn prepare(
    start: &Start,
    cache: &Cache,
    tools: &Tools,
    notes: &mut Vec<String>,
) -> Result<Option<PreparedStart>, PrepareError> {
    let key = Digest::of_value(&serde_json::json!({
        "layout": LAYOUT,
        "git": tools.git.is_some(),
        "start": match start {
            Start::SourceDistribution { archive, patch } => {
                serde_json::json!([archive.sha256, patch.digest()])
            }
            Start::Directory { digest, .. } => serde_json::json!([digest]),
            Start::GitCommit { repository, commit } => serde_json::json!([repository, commit]),
            Start::Image { .. } => return Ok(None),
        },
    }));
    if let Start::Directory { path, digest } = start {
        // The cached tree is right whatever became of the directory, but the user should know.
        let got = super::tree_digest(path)?;
        if got != *digest {
            return Err(PrepareError::Changed {
                path: path.clone(),
                expected: digest.clone(),
                got,
            });
        }
    }
    let content = cache.entry("starts", &key, |content| make(start, cache, tools, content))?;
    let path = content.join("facts.json");
    let facts: Facts = std::fs::read(&path)
        .and_then(|bytes| serde_json::from_slice(&bytes).map_err(std::io::Error::other))
        .map_err(|source| PrepareError::Io {
            operation: "read",
            path,
            source,
        })?;
    notes.extend(facts.notes.iter().cloned());
    if facts.commit.is_none() {
        notes.push("the work tree has no repository, because there is no git here".to_owned());
    }
    Ok(Some(PreparedStart {
        tree: content.join("tree"),
        facts,
    }))
}

/// The unpacked source distribution, without the directory that it wraps itself in.
pub(super) fn pristine(
    archive: &Archive,
    cache: &Cache,
    tools: &Tools,
) -> Result<PathBuf, PrepareError> {
    let content = cache.entry::<PrepareError>("sdists", &archive.sha256, |content| {
        let file = tools.fetcher.fetch(archive)?;
        extract_single_top(&file, &content.join("tree"), &ArchiveLimits::default())?;
        Ok(())
    })?;
    Ok(content.join("tree"))
}

fn make(start: &Start, cache: &Cache, tools: &Tools, content: &Path) -> Result<(), PrepareError> {
    let mut notes = Vec::new();
    let tree = match start {
        Start::SourceDistribution { archive, patch } => {
            let tree = read_tree(&pristine(archive, cache, tools)?, &TreeLimits::default())?;
            patched(tree, patch, &mut notes)?
        }
        Start::Directory { path, .. } => read_tree(path, &TreeLimits::default())?,
        Start::GitCommit { repository, commit } => {
            let git = tools.git.as_ref().ok_or_else(|| PrepareError::GitMissing {
                repository: repository.clone(),
            })?;
            let files = git.read_commit(repository, commit, &TreeLimits::default())?;
            if Path::new(repository).is_dir() {
                let audit = history::audit(git, repository, commit)?;
                notes.push(format!("left out of the repository: {}", audit.summary()));
                write_json(&content.join("audit.json"), &audit)?;
            }
            for path in files.submodules {
                notes.push(format!("the submodule {path} is left out"));
            }
            files.tree
        }
        Start::Image { .. } => return Ok(()),
    };
    let root = content.join("tree");
    write_tree(&tree, &root)?;
    let commit = match &tools.git {
        Some(git) => Some(git.single_commit(&root)?),
        None => None,
    };
    write_json(
        &content.join("facts.json"),
        &Facts {
            digest: temper_core::tree::digest(&tree),
            commit,
            notes,
        },
    )
}

fn patched(mut tree: Tree, patch: &Patch, notes: &mut Vec<String>) -> Result<Tree, PrepareError> {
    if patch.is_empty() {
        return Ok(tree);
    }
    let applied = temper_core::patch::apply(patch, &mut |path| tree.get(path).cloned())?;
    notes.extend(applied.notes);
    for (path, entry) in applied.changes {
        match entry {
            Some(entry) => tree.insert(path, entry),
            None => tree.remove(&path),
        };
    }
    Ok(tree)
}

fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), PrepareError> {
    serde_json::to_vec_pretty(value)
        .map_err(std::io::Error::other)
        .and_then(|bytes| std::fs::write(path, bytes))
        .map_err(|source| PrepareError::Io {
            operation: "write",
            path: path.to_owned(),
            source,
        })
}
