//! A directory tree as a value: the state of a repository without its history.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Bytes, Digest, digest::Hasher};

/// A path below the root of a tree, as bytes: relative, `/`-separated, without empty, `.` or `..`
/// components and without NUL. It cannot leave the tree.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Bytes", into = "Bytes")]
pub struct TreePath(Vec<u8>);

/// The bytes are not a path that stays below its root.
#[derive(Debug, thiserror::Error)]
#[error("use {path:?} as a path inside a tree: {problem}")]
pub struct InvalidTreePath {
    path: String,
    problem: &'static str,
}

impl TreePath {
    /// Checks the rules above.
    pub fn new(path: impl Into<Vec<u8>>) -> Result<Self, InvalidTreePath> {
        let path = path.into();
        let problem = if path.is_empty() {
            "it is empty"
        } else if path.len() > 4096 {
            "it is longer than 4096 bytes"
        } else if path.contains(&0) {
            "it contains a NUL byte"
        } else if path[0] == b'/' {
            "it is absolute"
        } else if path.split(|b| *b == b'/').any(|part| part == b"..") {
            "it climbs with `..`"
        } else if path
            .split(|b| *b == b'/')
            .any(|part| part.is_empty() || part == b".")
        {
            "it has an empty or `.` component"
        } else {
            return Ok(TreePath(path));
        };
        Err(InvalidTreePath {
            path: String::from_utf8_lossy(&path).into_owned(),
            problem,
        })
    }

    /// The path's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The path as text for people.
    pub fn to_text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// The last component.
    pub fn file_name(&self) -> &[u8] {
        self.0.rsplit(|b| *b == b'/').next().unwrap_or(&self.0)
    }

    /// The path as the operating system takes it, to be joined to a root.
    #[cfg(unix)]
    pub fn as_os_path(&self) -> &std::path::Path {
        use std::os::unix::ffi::OsStrExt;
        std::path::Path::new(std::ffi::OsStr::from_bytes(&self.0))
    }
}

impl TryFrom<Bytes> for TreePath {
    type Error = InvalidTreePath;
    fn try_from(bytes: Bytes) -> Result<Self, InvalidTreePath> {
        TreePath::new(bytes.0)
    }
}

impl From<TreePath> for Bytes {
    fn from(path: TreePath) -> Bytes {
        Bytes(path.0)
    }
}

impl std::str::FromStr for TreePath {
    type Err = InvalidTreePath;
    fn from_str(text: &str) -> Result<Self, InvalidTreePath> {
        TreePath::new(text)
    }
}

impl std::fmt::Debug for TreePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.to_text())
    }
}

impl std::fmt::Display for TreePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.to_text())
    }
}

/// What a tree holds at a path. Directories exist only through what is in them, as in git.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A regular file.
    File {
        /// Its content.
        content: Vec<u8>,
        /// Whether its owner may execute it; no other mode bit is kept.
        executable: bool,
    },
    /// A symbolic link, never followed.
    Symlink {
        /// Where it points, as bytes.
        target: Vec<u8>,
    },
}

impl Entry {
    /// A regular file that is not executable.
    pub fn file(content: impl Into<Vec<u8>>) -> Self {
        Entry::File {
            content: content.into(),
            executable: false,
        }
    }
}

/// The files of a repository, by path.
pub type Tree = BTreeMap<TreePath, Entry>;

/// What became of each path that differs from a starting tree: `Some` when it was written,
/// `None` when it was removed.
pub type Changes = BTreeMap<TreePath, Option<Entry>>;

/// The digest of a tree: paths, kinds, executable bits and contents, in path order.
pub fn digest(tree: &Tree) -> Digest {
    let mut hasher = Hasher::default();
    for (path, entry) in tree {
        hasher.field(path.as_bytes());
        match entry {
            Entry::File {
                content,
                executable,
            } => {
                hasher.field(if *executable { b"x" } else { b"f" });
                hasher.field(content);
            }
            Entry::Symlink { target } => {
                hasher.field(b"l");
                hasher.field(target);
            }
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_cannot_leave_its_tree() {
        for bad in [
            "", "/a", "../a", "a/../b", "a//b", "./a", "a/", "a/.", "a\0b",
        ] {
            assert!(TreePath::new(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "a/b", "..a/b..", "a b", ".git"] {
            assert!(TreePath::new(good).is_ok(), "{good:?}");
        }
    }
}
