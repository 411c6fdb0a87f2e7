//! Why a task file could not be read: the file, the record in it, the field, the cause.

use std::{io, path::Path};

/// Why tasks could not be read or stored.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {}{}{}: {cause}", .file.display(), part("record", .record), part("field", .field))]
pub struct LoadError {
    /// What failed.
    pub operation: Operation,
    /// The file or directory.
    pub file: Box<Path>,
    /// The record in the file: its id, or its number counted from 1.
    pub record: Option<String>,
    /// The field of the record.
    pub field: Option<String>,
    /// What is wrong.
    pub cause: Cause,
}

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reading.
    Read,
    /// Writing.
    Write,
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Operation::Read => "read",
            Operation::Write => "write",
        })
    }
}

/// What is wrong with a file, record or field.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The operating system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is not the format it should be.
    #[error("{0}")]
    Syntax(String),
    /// It is needed and not there.
    #[error("it is missing")]
    Missing,
    /// It has another type than it must have.
    #[error("expected {expected}, got {got}")]
    Type {
        /// What it must be.
        expected: &'static str,
        /// What it is, shortened.
        got: String,
    },
    /// Its value is not allowed.
    #[error("{0}")]
    Invalid(String),
    /// It is larger than it may be.
    #[error("more than {limit} {what}")]
    TooLarge {
        /// `bytes`, `records`.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The same id was there before.
    #[error("the id {id} is also that of {first}")]
    Duplicate {
        /// The id.
        id: String,
        /// Where it was first.
        first: String,
    },
    /// A version of the format that this program does not know.
    #[error("its format is {got}, and this version reads format {known}")]
    Version {
        /// What it says.
        got: String,
        /// What is known.
        known: &'static str,
    },
    /// No format fits.
    #[error("no task format is recognized")]
    Unrecognized,
    /// It is understood but cannot be used.
    #[error("{0}")]
    Unsupported(String),
}

impl LoadError {
    /// An error of reading a whole file.
    pub fn read(file: &Path, cause: impl Into<Cause>) -> Self {
        LoadError {
            operation: Operation::Read,
            file: file.into(),
            record: None,
            field: None,
            cause: cause.into(),
        }
    }

    /// An error of writing a file.
    pub fn write(file: &Path, cause: impl Into<Cause>) -> Self {
        LoadError {
            operation: Operation::Write,
            ..LoadError::read(file, cause)
        }
    }

    /// Names the record.
    #[must_use]
    pub fn in_record(mut self, record: impl Into<String>) -> Self {
        self.record = Some(record.into());
        self
    }

    /// Names the field.
    #[must_use]
    pub fn in_field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// What the user can do, where there is something.
    pub fn hint(&self) -> Option<String> {
        match &self.cause {
            Cause::Unrecognized => Some(
                "expected a directory with suite.toml, temper-task.toml or task.toml, or a .json, .jsonl or .parquet file of SWE-bench or SWE-smith instances; the format can also be named"
                    .to_owned(),
            ),
            Cause::Version { .. } => {
                Some("use a newer version of this program, or an older file".to_owned())
            }
            Cause::Duplicate { .. } => Some("rename or remove one of the two".to_owned()),
            Cause::Syntax(text) if text.contains("NaN") || text.contains("Infinity") => Some(
                "JSON has no NaN; write the file with null in its place (`allow_nan=False` in Python finds it)"
                    .to_owned(),
            ),
            Cause::Missing if self.field.as_deref() == Some("instance_id") => {
                Some("every instance needs a unique instance_id".to_owned())
            }
            Cause::Io(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Some("check the file's permissions".to_owned())
            }
            _ => None,
        }
    }
}

impl From<String> for Cause {
    fn from(problem: String) -> Self {
        Cause::Invalid(problem)
    }
}

impl From<temper_core::patch::PatchError> for Cause {
    fn from(error: temper_core::patch::PatchError) -> Self {
        Cause::Invalid(error.to_string())
    }
}

impl From<crate::tree_io::TreeIoError> for Cause {
    fn from(error: crate::tree_io::TreeIoError) -> Self {
        Cause::Invalid(error.to_string())
    }
}

fn part(name: &str, value: &Option<String>) -> String {
    match value {
        Some(value) => format!(", {name} {}", shorten(value)),
        None => String::new(),
    }
}

/// A value for an error message: one line, at most 80 characters, no control characters.
pub(crate) fn shorten(text: &str) -> String {
    let mut characters = text
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c });
    let mut short: String = characters.by_ref().take(80).collect();
    if characters.next().is_some() {
        short.push('…');
    }
    short
}

/// Reads a file of at most `limit` bytes.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> Result<Vec<u8>, LoadError> {
    use io::Read;
    let mut content = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(limit.saturating_add(1)).read_to_end(&mut content))
        .map_err(|error| LoadError::read(path, error))?;
    if content.len() as u64 > limit {
        let cause = Cause::TooLarge {
            what: "bytes",
            limit,
        };
        return Err(LoadError::read(path, cause));
    }
    Ok(content)
}

/// Reads a text file of at most `limit` bytes.
pub(crate) fn read_text(path: &Path, limit: u64) -> Result<String, LoadError> {
    String::from_utf8(read_bounded(path, limit)?)
        .map_err(|_| LoadError::read(path, Cause::Syntax("it is not valid UTF-8".to_owned())))
}
