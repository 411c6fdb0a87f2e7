//! Trees between memory and disk: reading a directory into a [`Tree`], writing a [`Tree`] out.
//!
//! Links are kept as links and never followed. Anything named `.git` is left out when reading,
//! because a task's state is its files and not their history. Permissions other than the owner's
//! executable bit, owners and times are not kept.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use temper_core::{Entry, Tree, TreePath};

/// How large a tree may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeLimits {
    /// Files and links together.
    pub max_entries: usize,
    /// Content of all files together.
    pub max_total_bytes: u64,
    /// Directories inside one another.
    pub max_depth: usize,
}

impl Default for TreeLimits {
    fn default() -> Self {
        TreeLimits {
            max_entries: 200_000,
            max_total_bytes: 2 << 30,
            max_depth: 100,
        }
    }
}

/// Why a tree could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TreeIoError {
    /// The operating system refused.
    #[error("{operation} {}: {source}", .path.display())]
    Io {
        /// `read`, `write`, `list`, `make`.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
    /// A device, socket or pipe, which a repository cannot hold.
    #[error("read {}: it is neither a file, a directory nor a link", .0.display())]
    Special(PathBuf),
    /// One of the limits.
    #[error("read the tree at {}: more than {limit} {what}", .root.display())]
    TooLarge {
        /// The directory.
        root: PathBuf,
        /// `files`, `bytes`, `levels of directories`.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// A path of a tree lies below another path that is a file or a link.
    #[error("write {path}: {parent} is not a directory in the same tree")]
    UnderFile {
        /// The lower path.
        path: TreePath,
        /// The file or link.
        parent: TreePath,
    },
}

/// Reads the files below `root`. An empty directory gives an empty tree.
pub fn read_tree(root: &Path, limits: &TreeLimits) -> Result<Tree, TreeIoError> {
    let mut tree = Tree::new();
    let mut total = 0;
    let mut pending = vec![(Vec::new(), 0)];
    while let Some((prefix, depth)) = pending.pop() {
        if depth > limits.max_depth {
            return Err(too_large(
                root,
                "levels of directories",
                limits.max_depth as u64,
            ));
        }
        let directory = join(root, &prefix);
        let failed = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| TreeIoError::Io {
                operation,
                path,
                source,
            }
        };
        for item in fs::read_dir(&directory).map_err(failed("list", &directory))? {
            let item = item.map_err(failed("list", &directory))?;
            let name = item.file_name().into_vec();
            if name == b".git" {
                continue;
            }
            let mut path = prefix.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(name);
            let on_disk = join(root, &path);
            let metadata = fs::symlink_metadata(&on_disk).map_err(failed("read", &on_disk))?;
            let kind = metadata.file_type();
            if kind.is_dir() {
                pending.push((path, depth + 1));
                continue;
            }
            let entry = if kind.is_symlink() {
                let target = fs::read_link(&on_disk).map_err(failed("read", &on_disk))?;
                Entry::Symlink {
                    target: target.into_os_string().into_vec(),
                }
            } else if kind.is_file() {
                let content = read_file(&on_disk, limits.max_total_bytes.saturating_sub(total))
                    .map_err(failed("read", &on_disk))?
                    .ok_or_else(|| too_large(root, "bytes", limits.max_total_bytes))?;
                total += content.len() as u64;
                Entry::File {
                    content,
                    executable: metadata.permissions().mode() & 0o100 != 0,
                }
            } else {
                return Err(TreeIoError::Special(on_disk));
            };
            if tree.len() >= limits.max_entries {
                return Err(too_large(root, "files", limits.max_entries as u64));
            }
            let path = TreePath::new(path).map_err(|invalid| TreeIoError::Io {
                operation: "read",
                path: on_disk,
                source: io::Error::other(invalid),
            })?;
            tree.insert(path, entry);
        }
    }
    Ok(tree)
}

/// Writes a tree below `root`, which is made if it is missing and must hold none of the paths yet.
/// No link is followed: a path below a link of the same tree is an error.
pub fn write_tree(tree: &Tree, root: &Path) -> Result<(), TreeIoError> {
    let failed = |operation, path: &Path| {
        let path = path.to_owned();
        move |source| TreeIoError::Io {
            operation,
            path,
            source,
        }
    };
    fs::create_dir_all(root).map_err(failed("make", root))?;
    for (path, entry) in tree {
        if let Some(parent) = file_above(tree, path) {
            return Err(TreeIoError::UnderFile {
                path: path.clone(),
                parent,
            });
        }
        let on_disk = root.join(path.as_os_path());
        if let Some(parent) = on_disk.parent() {
            fs::create_dir_all(parent).map_err(failed("make", parent))?;
        }
        match entry {
            Entry::File {
                content,
                executable,
            } => write_new(&on_disk, content, *executable),
            Entry::Symlink { target } => {
                std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(target), &on_disk)
            }
        }
        .map_err(failed("write", &on_disk))?;
    }
    Ok(())
}

/// Writes a file that must not exist yet, readable by all.
pub(crate) fn write_new(path: &Path, content: &[u8], executable: bool) -> io::Result<()> {
    let mode = if executable { 0o755 } else { 0o644 };
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    file.write_all(content)?;
    // The process's umask may have taken bits away; the tree must not depend on it.
    file.set_permissions(fs::Permissions::from_mode(mode))
}

/// The nearest path above `path` that is itself an entry of the tree.
fn file_above(tree: &Tree, path: &TreePath) -> Option<TreePath> {
    let bytes = path.as_bytes();
    bytes
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'/')
        .filter_map(|(index, _)| TreePath::new(&bytes[..index]).ok())
        .find(|parent| tree.contains_key(parent))
}

/// Reads a regular file without following a link; `None` if it holds more than `max_bytes`.
fn read_file(path: &Path, max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    let mut content = Vec::new();
    file.take(max_bytes.saturating_add(1))
        .read_to_end(&mut content)?;
    Ok((content.len() as u64 <= max_bytes).then_some(content))
}

fn join(root: &Path, path: &[u8]) -> PathBuf {
    root.join(std::ffi::OsStr::from_bytes(path))
}

fn too_large(root: &Path, what: &'static str, limit: u64) -> TreeIoError {
    TreeIoError::TooLarge {
        root: root.to_owned(),
        what,
        limit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> TreePath {
        TreePath::new(text).unwrap()
    }

    #[test]
    fn a_tree_survives_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let mut tree = Tree::new();
        tree.insert(path("a/b.txt"), Entry::file("one\r\n"));
        tree.insert(
            path("run"),
            Entry::File {
                content: vec![0, 0xff],
                executable: true,
            },
        );
        tree.insert(
            path("a/link"),
            Entry::Symlink {
                target: b"../../outside".to_vec(),
            },
        );
        tree.insert(
            TreePath::new(vec![b'x', 0xfe]).unwrap(),
            Entry::file("name is not text"),
        );
        let root = folder.path().join("tree");
        write_tree(&tree, &root).unwrap();
        fs::create_dir_all(root.join(".git/objects")).unwrap();
        fs::write(root.join(".git/HEAD"), "x").unwrap();
        assert_eq!(read_tree(&root, &TreeLimits::default()).unwrap(), tree);
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("outside");
        fs::create_dir(&outside).unwrap();
        let mut tree = Tree::new();
        tree.insert(
            path("l"),
            Entry::Symlink {
                target: outside.as_os_str().as_bytes().to_vec(),
            },
        );
        tree.insert(path("l/planted"), Entry::file("x"));
        let error = write_tree(&tree, &folder.path().join("tree")).unwrap_err();
        assert!(matches!(error, TreeIoError::UnderFile { .. }), "{error}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn limits_hold() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            fs::write(folder.path().join(name), [0; 10]).unwrap();
        }
        let limits = |max_entries, max_total_bytes| TreeLimits {
            max_entries,
            max_total_bytes,
            max_depth: 1,
        };
        assert!(read_tree(folder.path(), &limits(3, 30)).is_ok());
        assert!(read_tree(folder.path(), &limits(2, 30)).is_err());
        assert!(read_tree(folder.path(), &limits(3, 29)).is_err());
        fs::create_dir_all(folder.path().join("d/e")).unwrap();
        assert!(read_tree(folder.path(), &limits(3, 30)).is_err());
    }
}
