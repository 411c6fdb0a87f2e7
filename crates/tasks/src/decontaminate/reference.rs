//! Streaming references past a suite.

use std::path::{Path, PathBuf};

use super::Suite;
use crate::{
    error::{Cause, LoadError, read_bounded},
    records,
};

/// A larger file of text is no source file; larger sets are files of records.
const MAX_TEXT_BYTES: u64 = 256 << 20;
/// Directories below the one that is given.
const MAX_DEPTH: usize = 64;

/// Compares with a file or with all files below a directory: records in `.json`, `.jsonl` and
/// `.parquet` (JSON also in gzip), anything else as text. In a directory, links are not followed
/// and hidden entries are passed over. Fails at the first file that cannot be read.
pub fn check(suite: &mut Suite, path: &Path) -> Result<(), LoadError> {
    let metadata = std::fs::metadata(path).map_err(|error| LoadError::read(path, error))?;
    if metadata.is_dir() {
        return walk(suite, path, path, 0);
    }
    let name = path
        .file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned();
    check_file(suite, path, &name)
}

fn walk(suite: &mut Suite, root: &Path, directory: &Path, depth: usize) -> Result<(), LoadError> {
    if depth > MAX_DEPTH {
        let cause = Cause::TooLarge {
            what: "levels of directories",
            limit: MAX_DEPTH as u64,
        };
        return Err(LoadError::read(directory, cause));
    }
    let failed = |error| LoadError::read(directory, Cause::Io(error));
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        entries.push(entry.map_err(failed)?.path());
    }
    entries.sort();
    for path in entries {
        let hidden = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let metadata =
            std::fs::symlink_metadata(&path).map_err(|error| LoadError::read(&path, error))?;
        if hidden || metadata.is_symlink() {
            continue;
        }
        if metadata.is_dir() {
            walk(suite, root, &path, depth + 1)?;
        } else if metadata.is_file() {
            let name = path
                .strip_prefix(root)
                .unwrap_or(&path)
                .to_string_lossy()
                .into_owned();
            check_file(suite, &path, &name)?;
        }
    }
    Ok(())
}

fn check_file(suite: &mut Suite, path: &Path, name: &str) -> Result<(), LoadError> {
    let inner = path
        .extension()
        .filter(|extension| *extension == "gz")
        .map(|_| path.with_extension(""));
    if records::is_record_file(inner.as_deref().unwrap_or(path)) {
        let mut number = 0;
        return records::for_each(path, &mut |fields| {
            number += 1;
            suite.check_record(&fields, name, number);
        });
    }
    suite.check_file(&read_bounded(path, MAX_TEXT_BYTES)?, name);
    Ok(())
}
