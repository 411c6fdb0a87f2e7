//! The files of a task directory that a [`temper_core::Task`] has no place for, so that the
//! directory can be written again: a README, an instruction with its canary, a `task.toml` with
//! comments, a build context beside a ready image.

use std::{fs, path::Path};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use temper_core::{Bytes, Entry, Task, Tree, TreePath};

use super::{Config, INSTRUCTION_FILE, TASK_FILE};
use crate::tree_io::{TreeLimits, read_tree};

/// The key in a task's metadata.
pub(super) const KEY: &str = "harbor_files";

/// Of all kept files together; metadata is no place for data sets.
const MAX_BYTES: u64 = 4 << 20;
const MAX_FILES: usize = 1000;

/// One file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    path: TreePath,
    /// A file's content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content: Option<Bytes>,
    #[serde(default, skip_serializing_if = "is_false")]
    executable: bool,
    /// A link's target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    link: Option<Bytes>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_false(value: &bool) -> bool {
    !*value
}

/// What is to be kept of a directory; `None` when there is nothing. `manifest` is the text of
/// `task.toml`, if that may be kept. An error says why the files are not kept.
pub(super) fn keep(
    directory: &Path,
    manifest: Option<&str>,
    config: &Config,
    statement: &str,
    has_context: bool,
    has_solution: bool,
) -> Result<Option<Value>, String> {
    let mut tree = Tree::new();
    let items = fs::read_dir(directory).map_err(|error| error.to_string())?;
    let limits = TreeLimits {
        max_entries: MAX_FILES,
        max_total_bytes: MAX_BYTES,
        ..TreeLimits::default()
    };
    let too_large = |error: String| format!("its other files are not kept for export: {error}");
    for item in items {
        let item = item.map_err(|error| error.to_string())?;
        let name = item.file_name();
        let covered = match name.to_str() {
            Some("tests" | ".git" | TASK_FILE | INSTRUCTION_FILE) => true,
            Some("environment") => has_context,
            Some("solution") => has_solution,
            _ => false,
        };
        if covered {
            continue;
        }
        let prefix = std::os::unix::ffi::OsStrExt::as_bytes(name.as_os_str());
        if item.file_type().is_ok_and(|kind| kind.is_dir()) {
            let below = read_tree(&item.path(), &limits).map_err(|e| too_large(e.to_string()))?;
            for (path, entry) in below {
                let whole = [prefix, b"/", path.as_bytes()].concat();
                insert(&mut tree, &whole, entry)?;
            }
        } else {
            insert(&mut tree, prefix, entry(&item.path()).map_err(too_large)?)?;
        }
    }
    let instruction = fs::read(directory.join(INSTRUCTION_FILE)).unwrap_or_default();
    if instruction != statement.as_bytes() {
        insert(
            &mut tree,
            INSTRUCTION_FILE.as_bytes(),
            Entry::file(instruction),
        )?;
    }
    if let Some(text) = manifest
        && crate::export::toml_of(config).ok().as_deref() != Some(text)
    {
        insert(&mut tree, TASK_FILE.as_bytes(), Entry::file(text))?;
    }
    let n_bytes: usize = tree
        .values()
        .map(|entry| match entry {
            Entry::File { content, .. } => content.len(),
            Entry::Symlink { target } => target.len(),
        })
        .sum();
    if n_bytes as u64 > MAX_BYTES || tree.len() > MAX_FILES {
        return Err(too_large(format!("more than {MAX_BYTES} bytes")));
    }
    if tree.is_empty() {
        return Ok(None);
    }
    let kept: Vec<Kept> = tree
        .into_iter()
        .map(|(path, entry)| match entry {
            Entry::File {
                content,
                executable,
            } => Kept {
                path,
                content: Some(content.into()),
                executable,
                link: None,
            },
            Entry::Symlink { target } => Kept {
                path,
                content: None,
                executable: false,
                link: Some(target.into()),
            },
        })
        .collect();
    Ok(Some(
        serde_json::to_value(kept).expect("files are plain data"),
    ))
}

fn insert(tree: &mut Tree, path: &[u8], entry: Entry) -> Result<(), String> {
    let path = TreePath::new(path).map_err(|error| error.to_string())?;
    tree.insert(path, entry);
    Ok(())
}

fn entry(path: &Path) -> Result<Entry, String> {
    use std::os::unix::{ffi::OsStringExt, fs::PermissionsExt};
    let failed = |error: std::io::Error| error.to_string();
    let metadata = path.symlink_metadata().map_err(failed)?;
    if metadata.is_symlink() {
        let target = fs::read_link(path).map_err(failed)?;
        return Ok(Entry::Symlink {
            target: target.into_os_string().into_vec(),
        });
    }
    if !metadata.is_file() {
        return Err(format!("{} is no file", path.display()));
    }
    if metadata.len() > MAX_BYTES {
        return Err(format!("more than {MAX_BYTES} bytes"));
    }
    Ok(Entry::File {
        content: fs::read(path).map_err(failed)?,
        executable: metadata.permissions().mode() & 0o100 != 0,
    })
}

/// The files that were kept when a task was read.
pub(crate) fn kept_files(task: &Task) -> Tree {
    let Some(Ok(kept)) = task
        .metadata
        .get(KEY)
        .map(|value| serde_json::from_value::<Vec<Kept>>(value.clone()))
    else {
        return Tree::new();
    };
    kept.into_iter()
        .filter_map(|kept| {
            let entry = match (kept.content, kept.link) {
                (Some(content), None) => Entry::File {
                    content: content.0,
                    executable: kept.executable,
                },
                (None, Some(target)) => Entry::Symlink { target: target.0 },
                _ => return None,
            };
            Some((kept.path, entry))
        })
        .collect()
}
