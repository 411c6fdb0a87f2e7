//! Which revision a checkpoint is, by what its place and its files say.

use std::path::{Component, Path};

use serde::Serialize;

use super::{Finding, hash::Role};
use crate::file::read_small;

const MAX_BYTES: u64 = 4096;

/// A revision, or that it is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Revision {
    /// What all claims agree on; `None` is unknown.
    pub value: Option<String>,
    /// Everything that states one.
    pub claims: Vec<Claim>,
}

/// One statement of the revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Claim {
    /// `argument`, `hub-snapshot-path`, `download-metadata`, `revision-file`.
    pub source: &'static str,
    /// The commit or name.
    pub revision: String,
}

/// Looks at the argument, the path of a hub's cache, the metadata that a hub's client leaves beside
/// a download, and a file `REVISION`.
pub(super) fn find(
    path: &Path,
    folder: &Path,
    names: &[(String, Role)],
    argument: Option<&str>,
) -> Revision {
    let mut claims = Vec::new();
    let mut claim = |source, revision: String| {
        let claim = Claim { source, revision };
        if !claims.contains(&claim) {
            claims.push(claim);
        }
    };
    if let Some(argument) = argument {
        claim("argument", argument.to_owned());
    }
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if let Some(commit) = of_snapshot_path(&absolute) {
        claim("hub-snapshot-path", commit);
    }
    let metadata = folder.join(".cache/huggingface/download");
    for (name, _) in names {
        if let Some(commit) = first_line(&metadata.join(format!("{name}.metadata")))
            && is_commit(&commit)
        {
            claim("download-metadata", commit);
        }
    }
    if let Some(revision) = first_line(&folder.join("REVISION"))
        && is_name(&revision)
    {
        claim("revision-file", revision);
    }
    let first = claims.first().map(|claim: &Claim| claim.revision.clone());
    let agree = claims
        .iter()
        .all(|claim| Some(&claim.revision) == first.as_ref());
    Revision {
        value: first.filter(|_| agree),
        claims,
    }
}

impl Revision {
    /// What is to be said of it, if it is not known.
    pub(super) fn finding(&self) -> Option<Finding> {
        if self.value.is_some() {
            return None;
        }
        Some(if self.claims.is_empty() {
            Finding::RevisionUnknown {
                looked_at: "no argument, no hub snapshot in the path, no download metadata, no file REVISION"
                    .to_owned(),
            }
        } else {
            let claims = self.claims.iter();
            Finding::RevisionConflict {
                claims: claims
                    .map(|claim| format!("{}: {}", claim.source, claim.revision))
                    .collect(),
            }
        })
    }
}

/// The commit in `models--ORG--NAME/snapshots/COMMIT`.
fn of_snapshot_path(path: &Path) -> Option<String> {
    let parts: Vec<_> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        })
        .collect();
    parts.windows(3).rev().find_map(|window| {
        let is_cache = window[0].starts_with("models--") && window[1] == "snapshots";
        (is_cache && is_commit(window[2])).then(|| window[2].to_owned())
    })
}

fn first_line(path: &Path) -> Option<String> {
    let bytes = read_small(path, MAX_BYTES).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}

fn is_commit(text: &str) -> bool {
    text.len() == 40
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 200
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte))
}
