//! Writing tasks in the formats of others, so that reading them back loses nothing.
//!
//! A format that cannot say everything about a task carries the rest in one field of its own,
//! `temper` (`carried`): Harbor's `[metadata]` and unknown fields of a row are free, so other
//! programs pass over it. In the other direction, what a reader here would lose of a record (a list
//! written as text, a null) is kept in the task's metadata and put back (`record`).
//!
//! A task that a format cannot express at all is refused with the reason: a row without tests or
//! without a fix would be a task that nobody can grade.

pub(crate) mod carried;
mod harbor;
pub(crate) mod record;
mod rows;
mod swe_bench;
mod swe_smith;

use std::path::Path;

use temper_core::{Task, TaskId};

pub(crate) use carried::{Carried, FIELD};
pub(crate) use harbor::toml_of;
pub(crate) use rows::{Kind, after_reading, restored};

use crate::{
    error::{Cause, LoadError},
    fetch::Fetcher,
};

/// A format to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// Rows whose patch introduces the bug: `.jsonl` or `.parquet`.
    SweSmith,
    /// Rows whose patch is the known fix: `.jsonl` or `.parquet`.
    SweBench,
    /// A directory of task directories.
    Harbor,
}

/// What exporting may use.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExportOptions<'a> {
    /// Fetches source distributions, whose test files Harbor's directories hold. Rows need none.
    pub fetcher: Option<&'a Fetcher>,
    /// A directory of archives that no package index has. They are copied into Harbor's
    /// directories; all others are fetched by name and hash when the image is built.
    pub archives: Option<&'a Path>,
}

/// What an export did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// How many tasks were written.
    pub n_tasks: usize,
    /// One line each: what the format cannot say and is carried beside it, which images must be
    /// made.
    pub notes: Vec<String>,
}

/// Why a task cannot be written in a format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotExpressible(pub(crate) String);

impl NotExpressible {
    fn new(reason: &str) -> Self {
        NotExpressible(reason.to_owned())
    }
}

/// Writes tasks at `path`, which must not exist; it appears whole or not at all. For rows its
/// extension, `.jsonl` or `.parquet`, chooses the shape.
///
/// # Errors
///
/// A task that the format cannot express, named; two tasks whose names the format cannot tell
/// apart; an archive that cannot be had; the operating system.
pub fn export(
    tasks: &[Task],
    to: ExportFormat,
    path: &Path,
    options: &ExportOptions<'_>,
) -> Result<Exported, LoadError> {
    if path.symlink_metadata().is_ok() {
        let cause = Cause::Invalid("something is there already".to_owned());
        return Err(LoadError::write(path, cause));
    }
    match to {
        ExportFormat::SweSmith => rows::write(tasks, rows::Kind::SweSmith, path),
        ExportFormat::SweBench => rows::write(tasks, rows::Kind::SweBench, path),
        ExportFormat::Harbor => harbor::write(tasks, path, options),
    }
}

fn refused(path: &Path, id: &TaskId, reason: NotExpressible) -> LoadError {
    LoadError::write(path, Cause::Unsupported(reason.0)).in_record(id.to_string())
}

#[cfg(test)]
mod tests;
