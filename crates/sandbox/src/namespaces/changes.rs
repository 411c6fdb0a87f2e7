//! What differs in a work tree from its start.
//!
//! With an overlay only what its upper layer holds is looked at, and whether something was hidden
//! is read from the difference between what is seen and the start: the overlay's own marks are not
//! needed, and untrusted code cannot forge them. A file that was touched or rewritten with the same
//! content is no change. Directories count only through what is in them, as in git.

use std::{
    collections::BTreeMap,
    ffi::{CStr, CString, OsStr},
    fs,
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::Path,
};

use temper_core::Bytes;

use super::{
    files, sys,
    wire::WireChange,
    work_tree::{Kind, WorkTree, list},
};

/// The longest path that is looked at; deeper ones cannot be named in a tree and are left out.
const MAX_PATH_BYTES: usize = 4096;

/// One changed path; `size` is that of a file's content.
pub struct Change {
    pub path: Vec<u8>,
    pub what: WireChange,
    pub size: u64,
}

/// A file could not be looked at, or there is too much.
pub struct Refusal {
    pub path: Vec<u8>,
    pub error: io::Error,
}

/// A directory still to be looked at.
struct Pending {
    path: Vec<u8>,
    in_lower: bool,
    /// Whether it may differ from the start at all; false never occurs without an upper layer.
    in_upper: bool,
}

/// Finds the changes; their contents have at most `max_bytes` together.
pub fn find(tree: &WorkTree, max_bytes: u64) -> Result<Vec<Change>, Refusal> {
    let mut walk = Walk {
        tree,
        changes: vec![],
        bytes_left: max_bytes,
        pending: vec![Pending {
            path: vec![],
            in_lower: tree.lower.is_some(),
            in_upper: tree.upper.is_some(),
        }],
    };
    while let Some(directory) = walk.pending.pop() {
        walk.directory(&directory).map_err(|error| Refusal {
            path: directory.path.clone(),
            error,
        })?;
    }
    walk.changes.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(walk.changes)
}

/// Opens the content of a changed file.
pub fn content(tree: &WorkTree, change: &Change) -> io::Result<fs::File> {
    files::open_regular(tree.merged.as_fd(), as_path(&change.path))?
        .ok_or_else(|| io::Error::other("it is no longer a regular file"))
}

struct Walk<'a> {
    tree: &'a WorkTree,
    changes: Vec<Change>,
    bytes_left: u64,
    pending: Vec<Pending>,
}

impl Walk<'_> {
    fn directory(&mut self, directory: &Pending) -> io::Result<()> {
        let tree = self.tree;
        let seen = entries(&tree.merged, &directory.path)?;
        let start = match (&tree.lower, directory.in_lower) {
            (Some(lower), true) => entries(lower, &directory.path)?,
            _ => BTreeMap::new(),
        };
        // Without an upper layer, or below a directory that is new, everything counts as written.
        let written = match (&tree.upper, directory.in_upper) {
            (Some(upper), true) => Some(entries(upper, &directory.path)?),
            _ => None,
        };
        for (name, kind) in &seen {
            let path = join(&directory.path, name);
            if path == b".git" || path.len() > MAX_PATH_BYTES {
                continue;
            }
            if written
                .as_ref()
                .is_some_and(|written| !written.contains_key(name))
            {
                continue;
            }
            let before = start.get(name).copied();
            match kind {
                Kind::Directory => {
                    let both = before == Some(Kind::Directory);
                    if !both {
                        self.removed(&path, before)?;
                    }
                    self.pending.push(Pending {
                        path,
                        in_lower: both,
                        in_upper: both && directory.in_upper,
                    });
                }
                Kind::File => self.file(path, before)?,
                Kind::Link => self.link(path, before)?,
                // Not something a tree can hold.
                Kind::Other => self.removed(&path, before)?,
            }
        }
        for (name, kind) in &start {
            let path = join(&directory.path, name);
            if !seen.contains_key(name) && path != b".git" && path.len() <= MAX_PATH_BYTES {
                self.removed(&path, Some(*kind))?;
            }
        }
        Ok(())
    }

    fn file(&mut self, path: Vec<u8>, before: Option<Kind>) -> io::Result<()> {
        let Some(file) = files::open_regular(self.tree.merged.as_fd(), as_path(&path))? else {
            return Ok(());
        };
        let metadata = file.metadata()?;
        let executable = metadata.mode() & 0o100 != 0;
        if let (Some(Kind::File), Some(lower)) = (before, &self.tree.lower) {
            if let Some(start) = files::open_regular(lower.as_fd(), as_path(&path))? {
                let start_metadata = start.metadata()?;
                if (start_metadata.mode() & 0o100 != 0) == executable
                    && start_metadata.size() == metadata.size()
                    && same_content(file, start)?
                {
                    return Ok(());
                }
            }
        } else {
            self.removed(&path, before.filter(|kind| *kind == Kind::Directory))?;
        }
        self.bytes_left = self
            .bytes_left
            .checked_sub(metadata.size())
            .ok_or_else(|| {
                io::Error::other(format!(
                    "the changed files hold more than the disk limit (at {})",
                    String::from_utf8_lossy(&path)
                ))
            })?;
        self.changes.push(Change {
            path,
            what: WireChange::File { executable },
            size: metadata.size(),
        });
        Ok(())
    }

    fn link(&mut self, path: Vec<u8>, before: Option<Kind>) -> io::Result<()> {
        let target = read_link(&self.tree.merged, &path)?;
        if let (Some(Kind::Link), Some(lower)) = (before, &self.tree.lower) {
            if read_link(lower, &path)? == target {
                return Ok(());
            }
        } else {
            self.removed(&path, before.filter(|kind| *kind == Kind::Directory))?;
        }
        self.changes.push(Change {
            path,
            what: WireChange::Link(Bytes(target)),
            size: 0,
        });
        Ok(())
    }

    /// Everything that the start holds at the path is gone.
    fn removed(&mut self, path: &[u8], before: Option<Kind>) -> io::Result<()> {
        let (Some(kind), Some(lower)) = (before, &self.tree.lower) else {
            return Ok(());
        };
        let mut waiting = vec![(path.to_vec(), kind)];
        while let Some((path, kind)) = waiting.pop() {
            match kind {
                Kind::Directory => {
                    for (name, kind) in entries(lower, &path)? {
                        waiting.push((join(&path, &name), kind));
                    }
                }
                Kind::File | Kind::Link => self.changes.push(Change {
                    path,
                    what: WireChange::Removed,
                    size: 0,
                }),
                Kind::Other => {}
            }
        }
        Ok(())
    }
}

pub(super) fn entries(root: &OwnedFd, path: &[u8]) -> io::Result<BTreeMap<CString, Kind>> {
    let directory = open_directory(root.as_fd(), path)?;
    Ok(list(directory.as_fd())?.into_iter().collect())
}

pub(super) fn open_directory(root: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    sys::open_under(root, &sys::c_bytes(path)?, flags, 0, sys::BENEATH)
}

pub(super) fn read_link(root: &OwnedFd, path: &[u8]) -> io::Result<Vec<u8>> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    // The last component is the link itself, so only its directory is resolved strictly.
    let (directory, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&b""[..], path),
    };
    let directory = open_directory(root.as_fd(), directory)?;
    let name = sys::c_bytes(name)?;
    let link = sys::open_under(directory.as_fd(), &name, flags, 0, libc::RESOLVE_BENEATH)?;
    let target = nix::fcntl::readlinkat(&link, c"")?;
    Ok(target.as_bytes().to_vec())
}

pub(super) fn same_content(one: fs::File, other: fs::File) -> io::Result<bool> {
    let (mut one, mut other) = (one, other);
    let (mut a, mut b) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        let n = one.read(&mut a)?;
        if n == 0 {
            return Ok(true);
        }
        if other.read_exact(&mut b[..n]).is_err() || a[..n] != b[..n] {
            return Ok(false);
        }
    }
}

pub(super) fn join(directory: &[u8], name: &CStr) -> Vec<u8> {
    let mut path = directory.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name.to_bytes());
    path
}

pub(super) fn as_path(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)], links: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        for (path, target) in links {
            std::os::unix::fs::symlink(target, root.path().join(path)).unwrap();
        }
        root
    }

    fn compare(before: &tempfile::TempDir, after: &tempfile::TempDir, max: u64) -> Vec<String> {
        let open = |root: &tempfile::TempDir| OwnedFd::from(fs::File::open(root.path()).unwrap());
        let tree = WorkTree {
            merged: open(after),
            lower: Some(open(before)),
            upper: None,
        };
        match find(&tree, max) {
            Ok(changes) => changes
                .iter()
                .map(|change| {
                    let path = String::from_utf8_lossy(&change.path).into_owned();
                    match &change.what {
                        WireChange::Removed => format!("- {path}"),
                        WireChange::File { .. } => format!("+ {path} {}", change.size),
                        WireChange::Link(target) => format!("> {path} {}", target.to_text()),
                    }
                })
                .collect(),
            Err(refusal) => vec![refusal.error.to_string()],
        }
    }

    #[test]
    fn kinds_may_change_in_every_way() {
        let before = tree(
            &[
                ("same", "1"),
                ("file", "1"),
                ("dir/a", "1"),
                ("dir/b/c", "1"),
                ("gone/x", "1"),
                ("to-dir", "1"),
                (".git/HEAD", "1"),
                ("sub/.git", "1"),
            ],
            &[("link", "same"), ("link2", "same")],
        );
        let after = tree(
            &[
                ("same", "1"),
                ("file", "22"),
                ("to-dir/x", "1"),
                (".git/HEAD", "2"),
                (".git/new", "2"),
                ("sub/.git", "2"),
            ],
            &[
                ("link", "/etc/passwd"),
                ("dir", "elsewhere"),
                ("link2", "f"),
            ],
        );
        nix::unistd::mkfifo(&after.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(
            compare(&before, &after, 100),
            [
                "> dir elsewhere",
                "- dir/a",
                "- dir/b/c",
                "+ file 2",
                "- gone/x",
                "> link /etc/passwd",
                "> link2 f",
                "+ sub/.git 1",
                "- to-dir",
                "+ to-dir/x 1",
            ]
        );
        assert_eq!(compare(&before, &before, 0), [""; 0]);
    }

    #[test]
    fn too_much_is_refused() {
        let (before, after) = (tree(&[], &[]), tree(&[("a", "123"), ("b", "123")], &[]));
        assert_eq!(compare(&before, &after, 6).len(), 2);
        let refusal = compare(&before, &after, 5);
        assert!(
            refusal[0].contains("more than the disk limit"),
            "{refusal:?}"
        );
    }
}
