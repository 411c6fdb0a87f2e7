//! A suite in three files: `suite.toml`, `tasks.jsonl` with one task a line, and `archives/` with
//! the source archives that no package index has.
//!
//! Thousands of tasks would be thousands of directories otherwise. A line is the task itself, so it
//! holds everything but archives and wheels, which are named by hash. It names no place on a
//! machine: what would (a directory, a script, a build context) cannot be packed and is refused when
//! read, since a suite that came from elsewhere must not read this machine's files.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
};

use temper_core::{
    Digest, Task,
    digest::Hasher,
    task::{Archive, Environment, HiddenSource, Oracle, Start, TaskFormat, Verifier},
};

use super::{
    FORMAT, MAX_PATCH_BYTES, MAX_STATEMENT_BYTES, SUITE_FILE, Suite, SuiteManifest,
    manifest::Packed, parse,
};
use crate::{
    error::{Cause, LoadError},
    fetch::is_plain,
};

/// The file with the tasks.
pub const TASKS_FILE: &str = "tasks.jsonl";
/// The directory with source archives.
pub const ARCHIVES: &str = "archives";

const MAX_LINE_BYTES: u64 = 64 << 20;
const MAX_FILE_BYTES: u64 = 1 << 30;
const MAX_TASKS: usize = 1_000_000;
const MAX_TEST_FILES: u64 = 10_000;

/// Whether the directory is a packed suite rather than one of task directories.
pub fn is_packed(suite: &Path) -> bool {
    suite.join(TASKS_FILE).is_file()
}

/// Reads a packed suite. The tasks come in the order of the file, and every one is checked.
pub fn read(directory: &Path) -> Result<(Suite, Vec<Task>), LoadError> {
    let manifest: SuiteManifest = parse(&directory.join(SUITE_FILE))?;
    let file = directory.join(TASKS_FILE);
    if directory.join("tasks").is_dir() {
        let problem = "a suite has either this file or the directory tasks, not both";
        return Err(LoadError::read(&file, Cause::Invalid(problem.to_owned())));
    }
    let Some(packed) = manifest.packed else {
        let error = LoadError::read(&directory.join(SUITE_FILE), Cause::Missing);
        return Err(error.in_field("packed"));
    };
    let (tasks, sha256) = read_lines(&file)?;
    if sha256 != packed.sha256 || tasks.len() != packed.n_tasks {
        let problem = format!(
            "the suite was written with {} tasks and SHA-256 {}, and this file has {} tasks and {sha256}",
            packed.n_tasks,
            packed.sha256,
            tasks.len()
        );
        return Err(LoadError::read(&file, Cause::Invalid(problem)));
    }
    let suite = Suite {
        name: manifest.name,
        description: manifest.description,
        licences: manifest.licences,
    };
    Ok((suite, tasks))
}

/// Writes a packed suite into `directory`, which is made if it is missing; what else lies there
/// stays. Equal suites give equal bytes: the tasks are put in order of their ids. A reader sees the
/// old suite, the new one, or an error, because the manifest comes last and holds the digest of the
/// tasks.
pub fn write(suite: &Suite, tasks: &[Task], directory: &Path) -> Result<(), LoadError> {
    fs::create_dir_all(directory).map_err(|error| LoadError::write(directory, error))?;
    let file = directory.join(TASKS_FILE);
    let mut sorted: Vec<&Task> = tasks.iter().collect();
    sorted.sort_by(|a, b| a.id.cmp(&b.id));
    let mut lines = Vec::new();
    for (index, task) in sorted.iter().enumerate() {
        let refuse = |(field, cause)| {
            LoadError::write(&file, cause)
                .in_record(task.id.to_string())
                .in_field(field)
        };
        if index > 0 && sorted[index - 1].id == task.id {
            let cause = Cause::Duplicate {
                id: task.id.to_string(),
                first: format!("line {index}"),
            };
            return Err(LoadError::write(&file, cause));
        }
        let stored = Task {
            format: TaskFormat::Native,
            ..(*task).clone()
        };
        check(&stored).map_err(refuse)?;
        serde_json::to_writer(&mut lines, &stored)
            .map_err(|error| LoadError::write(&file, error.to_string()))?;
        lines.push(b'\n');
    }
    let manifest = SuiteManifest {
        format: FORMAT,
        name: suite.name.clone(),
        description: suite.description.clone(),
        licences: suite.licences.clone(),
        imported: None,
        packed: Some(Packed {
            n_tasks: tasks.len(),
            sha256: Digest::of(&lines),
        }),
    };
    let text = toml::to_string_pretty(&manifest)
        .map_err(|error| LoadError::write(&directory.join(SUITE_FILE), error.to_string()))?;
    replace(&file, &lines)?;
    replace(&directory.join(SUITE_FILE), text.as_bytes())
}

/// The directory with archives of a suite, where it has one.
pub fn archives(suite: &Path) -> Option<PathBuf> {
    let path = suite.join(ARCHIVES);
    path.is_dir().then_some(path)
}

fn replace(path: &Path, content: &[u8]) -> Result<(), LoadError> {
    let failed = |error| LoadError::write(path, Cause::Io(error));
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(directory).map_err(failed)?;
    file.write_all(content).map_err(failed)?;
    crate::cache::set_mode(file.path(), 0o644).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

fn read_lines(file: &Path) -> Result<(Vec<Task>, Digest), LoadError> {
    let failed = |error| LoadError::read(file, Cause::Io(error));
    let opened = fs::File::open(file).map_err(failed)?;
    if opened.metadata().map_err(failed)?.len() > MAX_FILE_BYTES {
        let cause = Cause::TooLarge {
            what: "bytes",
            limit: MAX_FILE_BYTES,
        };
        return Err(LoadError::read(file, cause));
    }
    let mut reader = BufReader::new(opened);
    let mut hasher = Hasher::default();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut tasks = Vec::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        (&mut reader)
            .take(MAX_LINE_BYTES + 1)
            .read_until(b'\n', &mut line)
            .map_err(failed)?;
        if line.is_empty() {
            return Ok((tasks, hasher.finish()));
        }
        hasher.update(&line);
        let number = tasks.len() + 1;
        let wrong = |cause: Cause| LoadError::read(file, cause).in_record(number.to_string());
        for (what, limit, is) in [
            ("bytes", MAX_LINE_BYTES, line.len() as u64),
            ("records", MAX_TASKS as u64, number as u64),
        ] {
            if is > limit {
                return Err(wrong(Cause::TooLarge { what, limit }));
            }
        }
        let task: Task = serde_json::from_slice(&line)
            .map_err(|error| wrong(Cause::Syntax(error.to_string())))?;
        check(&task).map_err(|(field, cause)| {
            LoadError::read(file, cause)
                .in_record(task.id.to_string())
                .in_field(field)
        })?;
        if let Some(first) = seen.insert(task.id.to_string(), number) {
            return Err(wrong(Cause::Duplicate {
                id: task.id.to_string(),
                first: format!("line {first}"),
            }));
        }
        tasks.push(task);
    }
}

/// What a task directory's reader checks file by file, and that no place on a machine is named.
fn check(task: &Task) -> Result<(), (String, Cause)> {
    let placed = |what: &str, field: &str| {
        let problem = format!("{what} cannot be part of a packed suite");
        Err((field.to_owned(), Cause::Unsupported(problem)))
    };
    if task.format != TaskFormat::Native {
        return placed("a task of another format", "format");
    }
    check_size(
        task.statement.len(),
        MAX_STATEMENT_BYTES,
        "bytes",
        "statement",
    )?;
    match &task.start {
        Start::SourceDistribution { archive, patch } => {
            check_archive(archive, "start.archive")?;
            check_size(patch.0.len(), MAX_PATCH_BYTES, "bytes", "start.patch")?;
        }
        Start::GitCommit { repository, .. } if !repository.contains("://") => {
            return placed("a repository on this machine", "start.repository");
        }
        Start::GitCommit { .. } | Start::Image { .. } => {}
        Start::Directory { .. } => return placed("a start that is a directory", "start"),
    }
    match &task.environment {
        Environment::Python { wheels, .. } => {
            for wheel in wheels {
                check_archive(wheel, "environment.wheels")?;
            }
        }
        Environment::Image { .. } | Environment::Host => {}
        Environment::Dockerfile { .. } => return placed("a build context", "environment"),
    }
    match &task.verifier {
        Verifier::Pytest {
            test_files,
            hidden_source,
            ..
        } => {
            check_size(
                test_files.len(),
                MAX_TEST_FILES,
                "files",
                "verifier.test_files",
            )?;
            if let HiddenSource::Directory { .. } = hidden_source {
                return placed("a directory of tests", "verifier.hidden_source");
            }
        }
        Verifier::Log { test_patch, .. } => check_size(
            test_patch.0.len(),
            MAX_PATCH_BYTES,
            "bytes",
            "verifier.test_patch",
        )?,
        Verifier::Harbor { .. } => return placed("a directory of tests", "verifier"),
    }
    match &task.oracle {
        Some(Oracle::Patch { patch } | Oracle::ReversePatch { patch }) => {
            check_size(patch.0.len(), MAX_PATCH_BYTES, "bytes", "oracle.patch")?;
        }
        Some(Oracle::Script { .. }) => return placed("a script", "oracle"),
        None => {}
    }
    super::check::check(task)
}

fn check_size(
    size: usize,
    limit: u64,
    what: &'static str,
    field: &str,
) -> Result<(), (String, Cause)> {
    if size as u64 <= limit {
        return Ok(());
    }
    Err((field.to_owned(), Cause::TooLarge { what, limit }))
}

fn check_archive(archive: &Archive, field: &str) -> Result<(), (String, Cause)> {
    if is_plain(&archive.file_name) && is_plain(&archive.project) {
        return Ok(());
    }
    let problem = format!(
        "{:?} of {:?} is not a plain file name",
        archive.file_name, archive.project
    );
    Err((field.to_owned(), Cause::Invalid(problem)))
}

#[cfg(test)]
mod tests;
