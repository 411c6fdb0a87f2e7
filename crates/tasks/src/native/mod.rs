//! Temper's own format: a directory with `temper-task.toml`, and a suite of them with
//! `suite.toml`.
//!
//! Files that a manifest names must lie in the task's directory, links included, so that a task
//! that came from elsewhere cannot read this machine's files into a statement or a patch.

mod check;
mod manifest;
pub mod packed;
mod write;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use temper_core::{
    Patch, Task, TreePath,
    task::{Environment, HiddenSource, Oracle, Start, TaskFormat, TestLists, Verifier},
};

use crate::{
    error::{Cause, LoadError, read_bounded, read_text},
    tree_io::{TreeLimits, read_tree},
};
use manifest::{
    EnvironmentTable, FORMAT, HiddenSourceTable, Manifest, OracleTable, StartTable, SuiteManifest,
    TestListsTable, VerifierTable,
};

pub(crate) use check::check;
pub use write::{write_suite, write_task};

/// The manifest's name.
pub const TASK_FILE: &str = "temper-task.toml";
/// The name of a suite's manifest.
pub const SUITE_FILE: &str = "suite.toml";

const MAX_MANIFEST_BYTES: u64 = 8 << 20;
const MAX_STATEMENT_BYTES: u64 = 1 << 20;
const MAX_PATCH_BYTES: u64 = 64 << 20;
const MAX_METADATA_BYTES: u64 = 16 << 20;
const MAX_TIMEOUT_SECONDS: u64 = 24 * 60 * 60;

/// A suite's name and words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suite {
    /// Its name.
    pub name: String,
    /// What is in it.
    pub description: String,
    /// What there is to say about licences.
    pub licences: Option<String>,
}

/// Reads one task directory and checks that the task makes sense by itself.
pub fn read_task(directory: &Path) -> Result<Task, LoadError> {
    // Tasks hold absolute paths, so that they do not depend on the working directory.
    let directory =
        std::fs::canonicalize(directory).map_err(|error| LoadError::read(directory, error))?;
    let file = directory.join(TASK_FILE);
    let manifest: Manifest = parse(&file)?;
    let reader = Reader {
        directory: &directory,
        file: &file,
        id: manifest.id.to_string(),
    };
    reader.task(manifest)
}

/// Reads a suite's manifest.
pub fn read_suite(directory: &Path) -> Result<Suite, LoadError> {
    let manifest: SuiteManifest = parse(&directory.join(SUITE_FILE))?;
    Ok(Suite {
        name: manifest.name,
        description: manifest.description,
        licences: manifest.licences,
    })
}

/// The task directories of a suite, in order of their names: those of `tasks/` that hold a
/// manifest. Another directory there is an error, since it would be left out silently.
pub fn task_directories(suite: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let tasks = suite.join("tasks");
    let failed = |error| LoadError::read(&tasks, Cause::Io(error));
    let mut found = Vec::new();
    for item in std::fs::read_dir(&tasks).map_err(failed)? {
        let item = item.map_err(failed)?;
        let path = item.path();
        if path.join(TASK_FILE).is_file() {
            found.push(path);
        } else if path.is_dir() && !item.file_name().to_string_lossy().starts_with('.') {
            return Err(LoadError::read(&path.join(TASK_FILE), Cause::Missing));
        }
    }
    found.sort();
    Ok(found)
}

/// Reads every task of a suite, in order of the directories' names, or of the lines of a packed
/// suite.
pub fn read_tasks(suite: &Path) -> Result<Vec<Task>, LoadError> {
    if packed::is_packed(suite) {
        return packed::read(suite).map(|(_, tasks)| tasks);
    }
    read_suite(suite)?;
    let mut seen: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut tasks = Vec::new();
    for directory in task_directories(suite)? {
        let task = read_task(&directory)?;
        if let Some(first) = seen.insert(task.id.to_string(), directory.clone()) {
            let cause = Cause::Duplicate {
                id: task.id.to_string(),
                first: first.display().to_string(),
            };
            return Err(LoadError::read(&directory.join(TASK_FILE), cause));
        }
        tasks.push(task);
    }
    Ok(tasks)
}

/// Reads a manifest, its version first, so that a newer format is named as such and not by the
/// first key that is unknown here.
fn parse<T: serde::de::DeserializeOwned>(file: &Path) -> Result<T, LoadError> {
    let text = read_text(file, MAX_MANIFEST_BYTES)?;
    let syntax = |error: toml::de::Error| {
        LoadError::read(file, Cause::Syntax(error.to_string().trim_end().to_owned()))
    };
    let table: toml::Table = text.parse().map_err(syntax)?;
    let format_error = |cause| LoadError::read(file, cause).in_field("format");
    match table.get("format") {
        None => return Err(format_error(Cause::Missing)),
        Some(toml::Value::Integer(format)) if *format == i64::from(FORMAT) => {}
        Some(other) => {
            return Err(format_error(Cause::Version {
                got: other.to_string(),
                known: "1",
            }));
        }
    }
    toml::from_str(&text).map_err(syntax)
}

struct Reader<'a> {
    directory: &'a Path,
    file: &'a Path,
    id: String,
}

impl Reader<'_> {
    fn task(&self, manifest: Manifest) -> Result<Task, LoadError> {
        let statement_file = self.below(&manifest.statement, "statement")?;
        let statement = read_text(&statement_file, MAX_STATEMENT_BYTES)?;
        if statement.trim().is_empty() {
            return Err(LoadError::read(
                &statement_file,
                Cause::Invalid("it is empty".to_owned()),
            ));
        }
        let metadata = match &manifest.metadata {
            Some(name) => self.json(name, "metadata")?,
            None => serde_json::Map::new(),
        };
        let start = self.start(manifest.start)?;
        let verifier = self.verifier(manifest.verifier, &start)?;
        Ok(Task {
            id: manifest.id,
            format: TaskFormat::Native,
            statement,
            start,
            environment: self.environment(manifest.environment)?,
            verifier,
            oracle: manifest
                .oracle
                .map(|oracle| self.oracle(oracle))
                .transpose()?,
            origin: manifest.origin.into(),
            source_group: manifest.source_group,
            split: manifest.split,
            metadata,
            construction: manifest
                .construction
                .map(|name| self.json(&name, "construction"))
                .transpose()?,
        })
    }

    fn start(&self, table: StartTable) -> Result<Start, LoadError> {
        Ok(match table {
            StartTable::SourceDistribution { archive, patch } => Start::SourceDistribution {
                archive,
                patch: match patch {
                    Some(name) => self.patch(&name, "start.patch")?,
                    None => Patch::default(),
                },
            },
            StartTable::Directory { path } => {
                let path = self.directory_below(&path, "start.path")?;
                let tree = read_tree(&path, &TreeLimits::default())
                    .map_err(|error| LoadError::read(&path, error))?;
                Start::Directory {
                    digest: temper_core::tree::digest(&tree),
                    path,
                }
            }
            StartTable::GitCommit { repository, commit } => {
                if !matches!(commit.len(), 40 | 64)
                    || !commit.bytes().all(|byte| byte.is_ascii_hexdigit())
                {
                    let cause = Cause::Type {
                        expected: "a full commit id",
                        got: crate::error::shorten(&commit),
                    };
                    return Err(self.error(cause, "start.commit"));
                }
                // A repository beside the manifest is meant relative to it.
                let local = self.directory.join(&repository);
                let repository = if !repository.contains("://") && local.is_dir() {
                    local.display().to_string()
                } else {
                    repository
                };
                Start::GitCommit { repository, commit }
            }
            StartTable::Image {
                base_commit,
                checkout,
            } => Start::Image {
                base_commit,
                checkout,
            },
        })
    }

    fn environment(&self, table: EnvironmentTable) -> Result<Environment, LoadError> {
        Ok(match table {
            EnvironmentTable::Python {
                requires_python,
                python_path,
                wheels,
            } => {
                requires_python
                    .parse::<crate::python::Requirement>()
                    .map_err(|error| {
                        self.error(error.to_string(), "environment.requires_python")
                    })?;
                for entry in python_path.iter().filter(|entry| *entry != ".") {
                    self.tree_path(entry, "environment.python_path")?;
                }
                Environment::Python {
                    requires_python,
                    wheels,
                    python_path,
                }
            }
            EnvironmentTable::Image { image, work_tree } => {
                if !work_tree.starts_with('/') {
                    let cause = Cause::Type {
                        expected: "an absolute path",
                        got: crate::error::shorten(&work_tree),
                    };
                    return Err(self.error(cause, "environment.work_tree"));
                }
                Environment::Image { image, work_tree }
            }
            EnvironmentTable::Dockerfile { context, work_tree } => Environment::Dockerfile {
                context: self.directory_below(&context, "environment.context")?,
                work_tree,
            },
            EnvironmentTable::Host {} => Environment::Host,
        })
    }

    fn verifier(&self, table: VerifierTable, start: &Start) -> Result<Verifier, LoadError> {
        Ok(match table {
            VerifierTable::Pytest {
                test_files,
                hidden_source,
                arguments,
                timeout_seconds,
                public,
                hidden,
            } => {
                for file in &test_files {
                    self.tree_path(file, "verifier.test_files")?;
                }
                let (public, hidden) = (lists(public), lists(hidden));
                check::lists(&[("public", &public), ("hidden", &hidden)], &test_files)
                    .map_err(|(field, cause)| self.error(cause, &field))?;
                let hidden_source = match hidden_source {
                    HiddenSourceTable::SourceDistribution {} => {
                        if !matches!(start, Start::SourceDistribution { .. }) {
                            return Err(self.error(
                                "the start is no source distribution".to_owned(),
                                "verifier.hidden_source",
                            ));
                        }
                        HiddenSource::SourceDistribution
                    }
                    HiddenSourceTable::Directory { path } => HiddenSource::Directory {
                        path: self.directory_below(&path, "verifier.hidden_source.path")?,
                    },
                };
                Verifier::Pytest {
                    public,
                    hidden,
                    test_files,
                    hidden_source,
                    arguments,
                    timeout_seconds: self.timeout(timeout_seconds)?,
                }
            }
            VerifierTable::Log {
                parser,
                test_command,
                test_patch,
                rules,
                timeout_seconds,
                tests,
            } => Verifier::Log {
                parser,
                test_command,
                test_patch: match test_patch {
                    Some(name) => self.patch(&name, "verifier.test_patch")?,
                    None => Patch::default(),
                },
                tests: lists(tests),
                rules,
                timeout_seconds: self.timeout(timeout_seconds)?,
            },
            VerifierTable::Harbor {
                tests,
                timeout_seconds,
                environment,
            } => Verifier::Harbor {
                tests: self.directory_below(&tests, "verifier.tests")?,
                environment,
                timeout_seconds: self.timeout(timeout_seconds)?,
            },
        })
    }

    fn oracle(&self, table: OracleTable) -> Result<Oracle, LoadError> {
        match table {
            OracleTable {
                patch: Some(name),
                reverse_patch: None,
                script: None,
                environment,
            } if environment.is_empty() => Ok(Oracle::Patch {
                patch: self.patch(&name, "oracle.patch")?,
            }),
            OracleTable {
                patch: None,
                reverse_patch: Some(name),
                script: None,
                environment,
            } if environment.is_empty() => Ok(Oracle::ReversePatch {
                patch: self.patch(&name, "oracle.reverse_patch")?,
            }),
            OracleTable {
                patch: None,
                reverse_patch: None,
                script: Some(name),
                environment,
            } => Ok(Oracle::Script {
                directory: self.directory_below(&name, "oracle.script")?,
                environment,
            }),
            _ => Err(self.error(
                "expected exactly one of patch, reverse_patch and script, and environment only with script"
                    .to_owned(),
                "oracle",
            )),
        }
    }

    fn json<T: serde::de::DeserializeOwned>(
        &self,
        name: &str,
        field: &str,
    ) -> Result<T, LoadError> {
        let path = self.below(name, field)?;
        let bytes = read_bounded(&path, MAX_METADATA_BYTES)?;
        serde_json::from_slice(&bytes)
            .map_err(|error| LoadError::read(&path, Cause::Syntax(error.to_string())))
    }

    /// Reads a patch and checks that it is one, so that a damaged file is found before a trial.
    fn patch(&self, name: &str, field: &str) -> Result<Patch, LoadError> {
        let path = self.below(name, field)?;
        let patch = Patch(read_bounded(&path, MAX_PATCH_BYTES)?.into());
        if !patch.is_empty() {
            temper_core::patch::paths(&patch).map_err(|error| LoadError::read(&path, error))?;
        }
        Ok(patch)
    }

    fn timeout(&self, seconds: u64) -> Result<u64, LoadError> {
        if (1..=MAX_TIMEOUT_SECONDS).contains(&seconds) {
            Ok(seconds)
        } else {
            Err(self.error(
                format!("expected 1 to {MAX_TIMEOUT_SECONDS} seconds, got {seconds}"),
                "verifier.timeout_seconds",
            ))
        }
    }

    fn tree_path(&self, text: &str, field: &str) -> Result<TreePath, LoadError> {
        text.parse()
            .map_err(|error: temper_core::tree::InvalidTreePath| {
                self.error(error.to_string(), field)
            })
    }

    /// The real path of something in the task's directory.
    fn below(&self, name: &str, field: &str) -> Result<PathBuf, LoadError> {
        let path = self
            .directory
            .join(self.tree_path(name, field)?.as_os_path());
        let real = std::fs::canonicalize(&path).map_err(|error| LoadError::read(&path, error))?;
        if !real.starts_with(self.directory) {
            return Err(self.error(
                format!("{name} is a link out of the task's directory"),
                field,
            ));
        }
        Ok(real)
    }

    fn directory_below(&self, name: &str, field: &str) -> Result<PathBuf, LoadError> {
        let path = self.below(name, field)?;
        if path.is_dir() {
            Ok(path)
        } else {
            Err(self.error(format!("{name} is not a directory"), field))
        }
    }

    fn error(&self, cause: impl Into<Cause>, field: &str) -> LoadError {
        LoadError::read(self.file, cause)
            .in_record(self.id.clone())
            .in_field(field)
    }
}

fn lists(table: TestListsTable) -> TestLists {
    TestLists {
        fail_to_pass: table.fail_to_pass,
        pass_to_pass: table.pass_to_pass,
    }
}

#[cfg(test)]
mod tests;
