//! Finds what differs in a work tree from its start, given both as archives or directories.
//!
//! The archive of the work tree is made by the engine from files that untrusted code has written.
//! It is read as a stream and never unpacked: links are values, special files are skipped, `.git`
//! at the top is left out, and the memory that is taken is bounded.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use temper_core::{
    Digest, TreePath,
    digest::Hasher,
    tree::{Changes, Entry},
};

use super::pack;

/// The most files and directories that are looked at.
const MAX_ENTRIES: usize = 4_000_000;
/// What archives add to the content of files, at the most.
const MAX_OVERHEAD_BYTES: u64 = 8 << 30;

/// A file or link of a tree, without a file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// A regular file.
    File {
        /// Whether its owner may execute it.
        executable: bool,
        /// Of its content.
        digest: Digest,
    },
    /// A symbolic link and its target.
    Link(Vec<u8>),
}

/// A whole tree without the contents.
#[derive(Debug, Default)]
pub struct Index {
    entries: BTreeMap<TreePath, Known>,
    /// Sizes of all files, those that are left out as well.
    bytes: u64,
}

impl Index {
    /// The index of a directory on this machine.
    pub fn of_directory(root: &Path) -> io::Result<Index> {
        let mut index = Index::default();
        let mut waiting = vec![PathBuf::new()];
        while let Some(inner) = waiting.pop() {
            for entry in fs::read_dir(root.join(&inner))? {
                let entry = entry?;
                let kind = entry.file_type()?;
                let inner = inner.join(entry.file_name());
                if kind.is_dir() {
                    waiting.push(inner);
                    continue;
                }
                let size = entry.metadata()?.len();
                index.bytes = index.bytes.saturating_add(size);
                let Some(path) = tree_path(inner.as_os_str().as_bytes()) else {
                    continue;
                };
                if kind.is_symlink() {
                    let target = fs::read_link(entry.path())?;
                    let target = target.as_os_str().as_bytes().to_vec();
                    index.entries.insert(path, Known::Link(target));
                } else if kind.is_file() {
                    let mut file = pack::open(&entry.path())?;
                    let executable = file.metadata()?.mode() & 0o100 != 0;
                    let digest = digest_of(&mut file, None)?;
                    index
                        .entries
                        .insert(path, Known::File { executable, digest });
                }
            }
        }
        Ok(index)
    }

    /// The index of an archive of a directory, with at most `max_bytes` in its files.
    pub fn of_archive(archive: &mut dyn Read, max_bytes: u64) -> io::Result<Index> {
        let mut index = Index::default();
        let mut walk = Walk::new(max_bytes);
        walk.each(archive, &mut |path, found, _| {
            match found {
                Found::File {
                    executable, digest, ..
                } => {
                    index
                        .entries
                        .insert(path, Known::File { executable, digest });
                }
                Found::Link(target) => {
                    index.entries.insert(path, Known::Link(target));
                }
                Found::SameAs(other) => {
                    if let Some(known) = index.entries.get(&other).cloned() {
                        index.entries.insert(path, known);
                    }
                }
            }
            Ok(())
        })?;
        index.bytes = walk.n_bytes;
        Ok(index)
    }
}

/// Compares an archive with the start. The changed files have at most `max_bytes` together;
/// `fetch` reads an unchanged file again where a changed path is another name of it.
pub fn changes(
    start: &Index,
    archive: &mut dyn Read,
    max_bytes: u64,
    fetch: &mut dyn FnMut(&TreePath) -> io::Result<Option<Vec<u8>>>,
) -> io::Result<Changes> {
    let mut changes = Changes::new();
    let mut seen: BTreeMap<TreePath, Known> = BTreeMap::new();
    let mut aliases = vec![];
    let mut left = max_bytes;
    let mut walk = Walk::new(start.bytes.saturating_add(max_bytes));
    walk.wanted = max_bytes;
    walk.each(archive, &mut |path, found, wanted| {
        let (known, entry) = match found {
            Found::SameAs(other) => {
                aliases.push((path, other));
                return Ok(());
            }
            Found::Link(target) => (Known::Link(target.clone()), Some(Entry::Symlink { target })),
            Found::File {
                executable,
                digest,
                content,
            } => (
                Known::File { executable, digest },
                content.map(|content| Entry::File {
                    content,
                    executable,
                }),
            ),
        };
        if start.entries.get(&path) != Some(&known) {
            let entry = entry.ok_or_else(|| too_much(&path))?;
            left = left
                .checked_sub(size_of(&entry))
                .ok_or_else(|| too_much(&path))?;
            *wanted = left;
            changes.insert(path.clone(), Some(entry));
        }
        seen.insert(path, known);
        Ok(())
    })?;
    for (path, other) in aliases {
        // A name whose first name is left out, or lies outside the tree, has no content here.
        let Some(known) = seen.get(&other).cloned() else {
            if let Some(content) = fetch(&path)? {
                let digest = Digest::of(&content);
                let found = Known::File {
                    executable: false,
                    digest,
                };
                if start.entries.get(&path) != Some(&found) {
                    left = left
                        .checked_sub(content.len() as u64)
                        .ok_or_else(|| too_much(&path))?;
                    changes.insert(path.clone(), Some(Entry::file(content)));
                }
                seen.insert(path, found);
            }
            continue;
        };
        if start.entries.get(&path) != Some(&known) {
            let entry = match (changes.get(&other), &known) {
                (Some(Some(entry)), _) => entry.clone(),
                (_, Known::Link(target)) => Entry::Symlink {
                    target: target.clone(),
                },
                (_, Known::File { executable, .. }) => match fetch(&other)? {
                    Some(content) => Entry::File {
                        content,
                        executable: *executable,
                    },
                    None => continue,
                },
            };
            left = left
                .checked_sub(size_of(&entry))
                .ok_or_else(|| too_much(&path))?;
            changes.insert(path.clone(), Some(entry));
        }
        seen.insert(path, known);
    }
    for path in start.entries.keys() {
        if !seen.contains_key(path) {
            changes.insert(path.clone(), None);
        }
    }
    Ok(changes)
}

/// What an archive holds at a path.
enum Found {
    File {
        executable: bool,
        digest: Digest,
        /// `None` if it is more than was wanted.
        content: Option<Vec<u8>>,
    },
    Link(Vec<u8>),
    /// Another name of a file that came before.
    SameAs(TreePath),
}

struct Walk {
    max_bytes: u64,
    n_bytes: u64,
    /// How much of a file's content is kept.
    wanted: u64,
}

type Visit<'a> = &'a mut dyn FnMut(TreePath, Found, &mut u64) -> io::Result<()>;

impl Walk {
    fn new(max_bytes: u64) -> Self {
        Walk {
            max_bytes,
            n_bytes: 0,
            wanted: 0,
        }
    }

    fn each(&mut self, archive: &mut dyn Read, visit: Visit<'_>) -> io::Result<()> {
        let mut archive =
            tar::Archive::new(archive.take(self.max_bytes.saturating_add(MAX_OVERHEAD_BYTES)));
        for (number, entry) in archive.entries()?.enumerate() {
            let mut entry = entry?;
            if number >= MAX_ENTRIES {
                return Err(io::Error::other(format!(
                    "the work tree holds more than {MAX_ENTRIES} files and directories"
                )));
            }
            self.n_bytes = self.n_bytes.saturating_add(entry.size());
            if self.n_bytes > self.max_bytes {
                return Err(io::Error::other(format!(
                    "the work tree has grown by more than the disk limit (at {})",
                    String::from_utf8_lossy(&entry.path_bytes())
                )));
            }
            let Some(path) = tree_path(below_top(&entry.path_bytes())) else {
                continue;
            };
            let found = match entry.header().entry_type() {
                tar::EntryType::Regular
                | tar::EntryType::Continuous
                | tar::EntryType::GNUSparse => {
                    let executable = entry.header().mode()? & 0o100 != 0;
                    let mut content = (entry.size() <= self.wanted).then(Vec::new);
                    let digest = digest_of(&mut entry, content.as_mut())?;
                    Found::File {
                        executable,
                        digest,
                        content,
                    }
                }
                tar::EntryType::Symlink => {
                    Found::Link(entry.link_name_bytes().unwrap_or_default().into_owned())
                }
                tar::EntryType::Link => {
                    let target = entry.link_name_bytes().unwrap_or_default();
                    match TreePath::new(below_top(&target)) {
                        Ok(other) => Found::SameAs(other),
                        Err(_) => continue,
                    }
                }
                _ => continue,
            };
            visit(path, found, &mut self.wanted)?;
        }
        Ok(())
    }
}

/// Engines name what they pack with the directory's own name in front.
fn below_top(path: &[u8]) -> &[u8] {
    let path = path.strip_prefix(b"./").unwrap_or(path);
    let path = path.strip_prefix(b"/").unwrap_or(path);
    match path.iter().position(|byte| *byte == b'/') {
        Some(slash) => &path[slash + 1..],
        None => b"",
    }
}

/// The path if it belongs to a tree and is not that of git's own files.
fn tree_path(path: &[u8]) -> Option<TreePath> {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let is_git = path == b".git" || path.starts_with(b".git/");
    (!is_git).then(|| TreePath::new(path).ok()).flatten()
}

fn digest_of(file: &mut dyn Read, mut content: Option<&mut Vec<u8>>) -> io::Result<Digest> {
    let mut hasher = Hasher::default();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok(hasher.finish());
        }
        hasher.update(&buffer[..n]);
        if let Some(content) = content.as_mut() {
            content.extend_from_slice(&buffer[..n]);
        }
    }
}

fn size_of(entry: &Entry) -> u64 {
    match entry {
        Entry::File { content, .. } => content.len() as u64,
        Entry::Symlink { target } => target.len() as u64,
    }
}

fn too_much(path: &TreePath) -> io::Error {
    io::Error::other(format!(
        "the changed files hold more than the disk limit (at {path})"
    ))
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
