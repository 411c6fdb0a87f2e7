//! Taking away what lies after a task's starting commit.
//!
//! A fix is often a later commit of the same repository. It is not enough to remove the branch it
//! is on: tags, remote branches, the reflog, stashes, notes and unreachable objects keep it
//! readable. So Temper never cleans a repository in place. Where it has the files, it makes a new
//! repository of one commit ([`Git::single_commit`]); where the work tree is inside an image,
//! [`scrub_script`] does the same there, moving only the objects of the start's tree. Both are
//! preceded by an audit that says what is left behind.
//!
//! Not covered: copies of the project elsewhere in an image (an installed release, a package
//! cache), and nested repositories, which are reported but kept.

use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::git::{Git, GitError};

/// What a repository held besides the starting commit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Audit {
    /// Everything that could have led to other commits.
    pub removed: Vec<Removed>,
    /// The new commit, once the repository was replaced.
    pub commit: Option<String>,
}

/// One thing that is not there any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Removed {
    /// What it was.
    pub kind: RemovedKind,
    /// Its name: a ref, a file below `.git`, an object's type.
    pub name: String,
    /// The object it named, or how many entries it had.
    pub detail: String,
}

/// What can keep a commit readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RemovedKind {
    /// `refs/heads/…`
    Branch,
    /// `refs/remotes/…`
    RemoteBranch,
    /// `refs/tags/…`
    Tag,
    /// `refs/notes/…`
    Note,
    /// `refs/stash`
    Stash,
    /// `refs/replace/…`
    Replacement,
    /// Any other ref.
    OtherRef,
    /// `ORIG_HEAD`, `FETCH_HEAD` and their like.
    PseudoRef,
    /// A reflog, with the number of its entries.
    Reflog,
    /// `packed-refs`, with the number of its lines.
    PackedRefs,
    /// A commit that no ref reaches.
    UnreachableCommit,
    /// Objects of another type that no ref reaches, with their number.
    UnreachableObjects,
    /// Commits before the start, with their number.
    Ancestors,
    /// Another work tree of the repository.
    WorkTree,
    /// A store of objects elsewhere.
    Alternate,
    /// The repository of a submodule.
    Submodule,
    /// A repository inside the work tree. It is not removed.
    NestedRepository,
    /// A remote, of which only the name is reported, since its address may hold credentials.
    Remote,
}

/// Why history could not be audited or removed.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// Git failed.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The script's output is not what it prints.
    #[error("read the history audit: {0}")]
    Output(String),
    /// Removing `.git` would not remove the history.
    #[error("remove the history: it is also readable at {0}")]
    Elsewhere(String),
}

impl Audit {
    /// One line for people: how many things of each kind.
    pub fn summary(&self) -> String {
        let mut counts = std::collections::BTreeMap::new();
        for removed in &self.removed {
            let n = match removed.kind {
                RemovedKind::Ancestors | RemovedKind::UnreachableObjects => {
                    removed.detail.parse().unwrap_or(1)
                }
                _ => 1u64,
            };
            *counts.entry(removed.kind).or_insert(0) += n;
        }
        let parts: Vec<_> = counts
            .into_iter()
            .map(|(kind, n)| format!("{n} {}", kind.plural()))
            .collect();
        if parts.is_empty() {
            "no other history".to_owned()
        } else {
            parts.join(", ")
        }
    }
}

impl RemovedKind {
    fn plural(self) -> &'static str {
        match self {
            RemovedKind::Branch => "branches",
            RemovedKind::RemoteBranch => "remote branches",
            RemovedKind::Tag => "tags",
            RemovedKind::Note => "notes",
            RemovedKind::Stash => "stashes",
            RemovedKind::Replacement => "replacements",
            RemovedKind::OtherRef => "other refs",
            RemovedKind::PseudoRef => "pseudo-refs",
            RemovedKind::Reflog => "reflogs",
            RemovedKind::PackedRefs => "packed ref files",
            RemovedKind::UnreachableCommit => "unreachable commits",
            RemovedKind::UnreachableObjects => "other unreachable objects",
            RemovedKind::Ancestors => "earlier commits",
            RemovedKind::WorkTree => "other work trees",
            RemovedKind::Alternate => "alternate object stores",
            RemovedKind::Submodule => "submodule repositories",
            RemovedKind::NestedRepository => "nested repositories (kept)",
            RemovedKind::Remote => "remotes",
        }
    }
}

const AUDIT: &str = include_str!("audit.sh");
const SCRUB: &str = include_str!("scrub.sh");

/// A POSIX shell script that replaces the repository at `work_tree` by one that holds the files of
/// `HEAD` as a single commit, leaves the work tree's files as they are, and prints an audit for
/// [`read_audit`]. It needs only `sh`, `git` and the usual small tools. It exits with 3, having
/// changed nothing, when the history would stay readable elsewhere.
pub fn scrub_script(work_tree: &str) -> String {
    format!("cd {} || exit 1\n{AUDIT}\n{SCRUB}", quote(work_tree))
}

/// Reads what [`scrub_script`] printed; other lines are skipped. `status` is its exit code.
pub fn read_audit(output: &[u8], status: i32) -> Result<Audit, HistoryError> {
    let mut audit = Audit::default();
    let text = String::from_utf8_lossy(output);
    for line in text.lines() {
        let Some(line) = line.strip_prefix("temper-history\t") else {
            continue;
        };
        let unknown = || HistoryError::Output(format!("unexpected line {line:?}"));
        let mut fields = line.splitn(3, '\t');
        let (Some(kind), Some(name), Some(detail)) = (fields.next(), fields.next(), fields.next())
        else {
            return Err(unknown());
        };
        match kind {
            "elsewhere" => return Err(HistoryError::Elsewhere(name.to_owned())),
            "done" => audit.commit = Some(name.to_owned()),
            _ => audit.removed.push(Removed {
                kind: serde_json::from_value(kind.into()).map_err(|_| unknown())?,
                name: name.to_owned(),
                detail: detail.to_owned(),
            }),
        }
    }
    if status != 0 {
        return Err(HistoryError::Output(format!(
            "the script ended with exit code {status}"
        )));
    }
    Ok(audit)
}

/// Says what a repository on this machine holds besides one commit. Nothing is changed.
pub fn audit(git: &Git, repository: &str, commit: &str) -> Result<Audit, HistoryError> {
    let mut shell = Command::new("/bin/sh");
    git.isolate(&mut shell, std::path::Path::new(repository));
    shell
        .arg("-c")
        .arg(format!("start={}\n{AUDIT}", quote(commit)));
    let output = git.run("history audit", &mut shell)?;
    read_audit(&output, 0)
}

/// A word of the shell.
pub(crate) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests;
