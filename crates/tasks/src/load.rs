//! Reading tasks of whatever format, and storing them as a native suite.

use std::path::{Path, PathBuf};

use temper_core::{
    Digest, Task,
    task::{ResolutionRules, TaskFormat},
};

use crate::{
    archive::{self, ArchiveLimits},
    error::{Cause, LoadError},
    harbor,
    isolation::{self, SPLIT_FILE, SplitManifest},
    native::{self, SUITE_FILE, Suite, TASK_FILE},
    records, swebench, swesmith,
    tree_io::{TreeLimits, read_tree},
};

/// How to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// The format; recognized from what is there if it is not given.
    pub format: Option<TaskFormat>,
    /// Which reading of logs decides, for formats that leave it open. Each format has a default.
    pub rules: Option<ResolutionRules>,
    /// Leaves a suite's frozen split (`split.json`) aside, so that tasks are in the split that they
    /// name themselves.
    pub without_split: bool,
}

/// Tasks that were read.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The tasks, in the order of the source. Ids are unique.
    pub tasks: Vec<Task>,
    /// One line each: deprecated fields, a missing test command.
    pub warnings: Vec<String>,
}

/// What an import did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// How many tasks were stored.
    pub n_tasks: usize,
    /// As of [`Loaded`].
    pub warnings: Vec<String>,
}

/// Reads the tasks at `path`: a suite, a directory of one task, or a file of instances.
pub fn load(path: &Path, format: Option<TaskFormat>) -> Result<Loaded, LoadError> {
    load_with(
        path,
        &LoadOptions {
            format,
            ..LoadOptions::default()
        },
    )
}

/// As [`load`], with every option.
pub fn load_with(path: &Path, options: &LoadOptions) -> Result<Loaded, LoadError> {
    let format = match options.format {
        Some(format) => format,
        None => detect(path)?,
    };
    let plain = |tasks| Loaded {
        tasks,
        warnings: Vec::new(),
    };
    match format {
        TaskFormat::Native if path.join(SUITE_FILE).is_file() => {
            let mut loaded = native::read_tasks(path).map(plain)?;
            let split = path.join(SPLIT_FILE);
            if !options.without_split && split.is_file() {
                let manifest = SplitManifest::read(&split)?;
                loaded
                    .warnings
                    .extend(isolation::apply(&manifest, &mut loaded.tasks)?);
            }
            Ok(loaded)
        }
        TaskFormat::Native => native::read_task(path).map(|task| plain(vec![task])),
        TaskFormat::SweBench => {
            let rules = options.rules.unwrap_or(ResolutionRules::SweBench4);
            swebench::read(path, rules)
        }
        TaskFormat::SweSmith => {
            let rules = options.rules.unwrap_or(ResolutionRules::SweSmith009);
            swesmith::read(path, rules)
        }
        TaskFormat::Harbor => harbor::read(path),
    }
}

/// Tells the format by what is there: a manifest's name for directories, the shape of the first id
/// for files of instances.
fn detect(path: &Path) -> Result<TaskFormat, LoadError> {
    let metadata = std::fs::metadata(path).map_err(|error| LoadError::read(path, error))?;
    if path.join(SUITE_FILE).is_file() || path.join(TASK_FILE).is_file() {
        return Ok(TaskFormat::Native);
    }
    if metadata.is_dir() && harbor::is_there(path) {
        return Ok(TaskFormat::Harbor);
    }
    if metadata.is_file() && records::is_record_file(path) {
        let first = records::read(path, "instance_id")?.into_iter().next();
        if let Some(mut record) = first
            && record.has("instance_id")
        {
            // A task keeps its id in whatever format it is written, and SWE-smith has no test patch.
            let has_test_patch = record.has("test_patch");
            let id = record.take_id("instance_id")?;
            return Ok(if swesmith::is_own_id(id.as_str()) && !has_test_patch {
                TaskFormat::SweSmith
            } else {
                TaskFormat::SweBench
            });
        }
    }
    Err(LoadError::read(path, Cause::Unrecognized))
}

/// Reads tasks of any format and stores them as a native suite at `into`, which must not exist.
/// The suite appears whole or not at all. The source may also be a `.tar.gz`, `.tar` or `.zip` with
/// what could be read from a directory.
pub fn import(
    source: &Path,
    into: &Path,
    format: Option<TaskFormat>,
) -> Result<Imported, LoadError> {
    if into.symlink_metadata().is_ok() {
        let cause = Cause::Invalid("something is there already".to_owned());
        return Err(LoadError::write(into, cause));
    }
    let parent = match into.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let failed = |error| LoadError::write(into, Cause::Io(error));
    let work = tempfile::Builder::new()
        .prefix(".importing-")
        .tempdir_in(parent)
        .map_err(failed)?;
    let unpacked = work.path().join("archive");
    let mut loaded = if archive::is_archive(source) {
        archive::extract(source, &unpacked, &ArchiveLimits::default())
            .map_err(|error| LoadError::read(source, error.to_string()))?;
        load(&inside(&unpacked), format)?
    } else {
        load(source, format)?
    };
    if let Some(task) = loaded.tasks.iter().find(|task| harbor::has_steps(task)) {
        let cause = Cause::Unsupported("a task of several steps cannot be stored".to_owned());
        return Err(LoadError::read(source, cause).in_record(task.id.to_string()));
    }
    let n_read = loaded.tasks.len();
    loaded
        .tasks
        .retain(|task| !task.statement.trim().is_empty());
    if loaded.tasks.len() < n_read {
        loaded.warnings.push(format!(
            "left out: {} tasks have no statement, and a native task needs one",
            n_read - loaded.tasks.len()
        ));
    }
    let digest = if source.is_dir() {
        let tree = read_tree(source, &TreeLimits::default())
            .map_err(|error| LoadError::read(source, error))?;
        temper_core::tree::digest(&tree)
    } else {
        Digest::of(&std::fs::read(source).map_err(|error| LoadError::read(source, error))?)
    };
    let name_of = |path: &Path| {
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    let suite_directory = work.path().join("suite");
    let tasks = suite_directory.join("tasks");
    std::fs::create_dir(&suite_directory).map_err(failed)?;
    std::fs::create_dir(&tasks).map_err(failed)?;
    for task in &loaded.tasks {
        native::write_task(task, &tasks.join(task.id.directory_name()))?;
    }
    let suite = Suite {
        name: name_of(into),
        description: format!("Imported from {}.", name_of(source)),
        licences: None,
    };
    native::write_suite(&suite, Some((name_of(source), digest)), &suite_directory)?;
    std::fs::rename(&suite_directory, into).map_err(failed)?;
    Ok(Imported {
        n_tasks: loaded.tasks.len(),
        warnings: loaded.warnings,
    })
}

/// Where the tasks of an unpacked archive are: many archives wrap everything in one directory.
fn inside(unpacked: &Path) -> PathBuf {
    if detect(unpacked).is_ok() {
        return unpacked.to_owned();
    }
    let items: Vec<_> = std::fs::read_dir(unpacked)
        .into_iter()
        .flatten()
        .filter_map(|item| Some(item.ok()?.path()))
        .collect();
    match items.as_slice() {
        [only] => only.clone(),
        _ => unpacked.to_owned(),
    }
}

#[cfg(test)]
mod tests;
