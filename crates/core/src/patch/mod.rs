//! Patches: bytes in git's unified format, made from trees, read, and applied to trees.
//!
//! The rules are those of `git apply -p1`: context must match exactly, a hunk may have moved, and
//! nothing is applied unless everything can be. Two things differ on purpose. A patch whose last
//! line lacks its newline is mended, and the result says so. And every refusal names file, hunk and
//! line, because "this patch is invalid" is a different finding from "this fix is wrong".

mod apply;
mod base85;
mod diff;
mod parse;

use serde::{Deserialize, Serialize};

use crate::{Bytes, Digest, Entry, TreePath, tree::Changes};

/// A patch, byte for byte as it was made or received.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Patch(pub Bytes);

impl Patch {
    /// Whether it changes nothing: no bytes, or white space only.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(u8::is_ascii_whitespace)
    }

    /// The digest of its bytes.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.0)
    }
}

/// What a patch does to a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The files it writes and removes.
    pub changes: Changes,
    /// What had to be mended to read it.
    pub notes: Vec<String>,
}

/// A patch that cannot be read or does not fit, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("apply a patch: {}{}line {line}: {reason}", place("", .file.as_deref()), place("hunk ", .hunk.map(|h| h.to_string()).as_deref()))]
pub struct PatchError {
    /// The file the patch names, if it got that far.
    pub file: Option<String>,
    /// The hunk within the file, counted from 1.
    pub hunk: Option<usize>,
    /// The line of the patch, counted from 1.
    pub line: usize,
    /// What is wrong.
    pub reason: String,
}

fn place(prefix: &str, value: Option<&str>) -> String {
    value.map_or(String::new(), |value| format!("{prefix}{value}, "))
}

/// Looks a path up in the tree that a patch is applied to.
pub type Reader<'a> = dyn FnMut(&TreePath) -> Option<Entry> + 'a;

/// Applies `patch` to the tree behind `read` and returns what changes. An empty patch changes
/// nothing. The tree itself is not touched, so a refused patch leaves nothing half done.
pub fn apply(patch: &Patch, read: &mut Reader<'_>) -> Result<Applied, PatchError> {
    let parsed = parse::parse(patch)?;
    let mut changes = Changes::new();
    for file in &parsed.files {
        apply::apply_file(file, read, &mut changes)?;
    }
    Ok(Applied {
        changes,
        notes: parsed.notes,
    })
}

/// The patch that turns the tree behind `read` into the same tree with `changes` made. Paths are
/// in order, and a path whose entry does not differ is left out, so equal states give equal bytes.
pub fn diff(read: &mut Reader<'_>, changes: &Changes) -> Patch {
    let mut out = Vec::new();
    for (path, after) in changes {
        diff::write_file(path, read(path).as_ref(), after.as_ref(), &mut out);
    }
    Patch(Bytes(out))
}

/// The patch that undoes `patch`.
pub fn reverse(patch: &Patch) -> Result<Patch, PatchError> {
    let mut parsed = parse::parse(patch)?;
    let mut out = Vec::new();
    parsed.files.reverse();
    for file in parsed.files {
        file.reversed()?.write(&mut out);
    }
    Ok(Patch(Bytes(out)))
}

/// The paths a patch touches, old and new names, in order of appearance.
pub fn paths(patch: &Patch) -> Result<Vec<TreePath>, PatchError> {
    let mut paths = Vec::new();
    for file in parse::parse(patch)?.files {
        for path in [file.old, file.new].into_iter().flatten() {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
    }
    Ok(paths)
}

/// One file's part of a patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilePatch {
    /// Line of the patch where it begins.
    line: usize,
    /// The name before; `None` for a new file.
    old: Option<TreePath>,
    /// The name after; `None` for a removed file.
    new: Option<TreePath>,
    /// Whether the old name stays in place (a copy).
    copied: bool,
    old_mode: Option<Mode>,
    new_mode: Option<Mode>,
    content: Content,
}

/// What a mode says of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Regular,
    Executable,
    Symlink,
}

impl Mode {
    fn as_str(self) -> &'static str {
        match self {
            Mode::Regular => "100644",
            Mode::Executable => "100755",
            Mode::Symlink => "120000",
        }
    }

    fn of(entry: &Entry) -> Mode {
        match entry {
            Entry::File {
                executable: true, ..
            } => Mode::Executable,
            Entry::File { .. } => Mode::Regular,
            Entry::Symlink { .. } => Mode::Symlink,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Hunks of lines; none for a pure rename or mode change.
    Text(Vec<Hunk>),
    /// Whole contents: after, and before where the patch carries it.
    Binary {
        forward: BinaryHunk,
        backward: Option<BinaryHunk>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BinaryHunk {
    /// The new content itself.
    Literal(Vec<u8>),
    /// Instructions that make it from the old content.
    Delta(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hunk {
    /// Line of the patch with its header.
    line: usize,
    old_start: usize,
    new_start: usize,
    lines: Vec<HunkLine>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HunkLine {
    kind: LineKind,
    /// With its newline, if it has one.
    text: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineKind {
    Context,
    Removed,
    Added,
}

#[cfg(test)]
mod tests;
