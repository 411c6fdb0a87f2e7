//! Laying a task's files ready on this machine, so that a trial needs neither network nor build.
//!
//! Everything is kept in a [`Cache`] by the digest of what determines it: pristine source
//! distributions, starting trees with their one-commit repository, hidden test files, Python
//! environments. Nothing of it is ever written again; a trial works on a copy or an overlay.
//!
//! An environment is laid out as a virtual environment at [`ENVIRONMENT`], so that the host
//! Python's own installed packages are not seen, and `sys.executable`, `python -I` and child
//! processes all mean the same interpreter.

mod environment;
mod start;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use temper_core::{
    Digest, PreparedTask, Task, TreePath,
    patch::PatchError,
    task::{Environment, HiddenSource, PreparedMount, Start, Verifier},
};

use crate::{
    archive::ArchiveError,
    cache::{Cache, CacheError},
    fetch::{FetchError, Fetcher},
    git::{Git, GitError},
    history::{self, HistoryError},
    python::{Interpreter, PythonError, wheel::WheelError},
    tree_io::{TreeIoError, TreeLimits, read_tree},
};

/// Where Temper's own read-only files are seen in a sandbox.
pub const TEMPER: &str = "/opt/temper";
/// Where a Python environment is seen in a sandbox.
pub const ENVIRONMENT: &str = "/opt/temper/env";
/// Where the work tree is seen, unless an image says otherwise.
pub const WORK_TREE: &str = "/testbed";
/// The home directory in a sandbox without an image.
pub const HOME: &str = "/home/agent";

/// What preparation may use of this machine.
#[derive(Debug)]
pub struct Tools {
    fetcher: Fetcher,
    python: Option<PathBuf>,
    search_path: OsString,
    git: Option<Git>,
    /// Asking the interpreter about itself takes longer than all else for a cached task.
    interpreter: Mutex<Option<Interpreter>>,
}

impl Tools {
    /// `python` overrides the search for `python3`; `search_path` is what `PATH` holds.
    pub fn new(fetcher: Fetcher, python: Option<PathBuf>, search_path: OsString) -> Self {
        Tools {
            fetcher,
            python,
            git: Git::find(&search_path),
            search_path,
            interpreter: Mutex::new(None),
        }
    }

    /// Leaves git out even if it is on the machine.
    pub fn without_git(mut self) -> Self {
        self.git = None;
        self
    }

    /// What fetches files.
    pub fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    /// The same tools, with one more directory that is asked for files before any other.
    pub fn with_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.fetcher = self.fetcher.with_directory(directory);
        self
    }

    /// Where programs are looked for.
    pub fn search_path(&self) -> &std::ffi::OsStr {
        &self.search_path
    }

    /// Whether git was found; without it starting trees have no repository.
    pub fn git(&self) -> Option<&Git> {
        self.git.as_ref()
    }

    /// The interpreter, asked once.
    pub fn interpreter(&self) -> Result<Interpreter, PythonError> {
        let mut known = self
            .interpreter
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(interpreter) = &*known {
            return Ok(interpreter.clone());
        }
        let found = Interpreter::find(self.python.as_deref(), &self.search_path)?;
        Ok(known.insert(found).clone())
    }
}

/// A prepared task and what there is to say about its preparation.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The task.
    pub task: PreparedTask,
    /// One line each: a patch that was mended, history that was left out, a missing git.
    pub notes: Vec<String>,
}

/// Why a task could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// A file could not be had.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// An archive is refused.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A wheel is refused.
    #[error(transparent)]
    Wheel(#[from] WheelError),
    /// The start's patch does not apply.
    #[error("apply the start's patch: {0}")]
    Patch(#[from] PatchError),
    /// There is no usable Python.
    #[error(transparent)]
    Python(#[from] PythonError),
    /// Git failed.
    #[error(transparent)]
    Git(#[from] GitError),
    /// History could not be audited.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The start is a commit, and there is no git.
    #[error("read a commit of {repository}: there is no git in the search path")]
    GitMissing {
        /// The repository.
        repository: String,
    },
    /// Files could not be read or written.
    #[error(transparent)]
    Files(#[from] TreeIoError),
    /// The cache could not be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The files are not those the task was read with.
    #[error("use {}: its digest was {expected} when the task was read and is {got} now", .path.display())]
    Changed {
        /// The directory.
        path: PathBuf,
        /// Digest in the task.
        expected: Digest,
        /// Digest now.
        got: Digest,
    },
    /// A hidden test file is not where the task says.
    #[error("find the hidden version of {file} in {place}")]
    NoHiddenFile {
        /// The file.
        file: TreePath,
        /// `the source distribution`, or a directory.
        place: String,
    },
    /// The task asks for something that Temper cannot do.
    #[error("prepare the task: {}", .0.join(", "))]
    Unsupported(Vec<String>),
    /// The task contradicts itself.
    #[error("prepare the task: {0}")]
    Invalid(String),
    /// Another file operation failed.
    #[error("{operation} {}: {source}", .path.display())]
    Io {
        /// `write`, `read`.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl PrepareError {
    /// What the user can do, where there is something.
    pub fn hint(&self) -> Option<String> {
        match self {
            PrepareError::Fetch(error) => error.hint(),
            PrepareError::Python(error) => error.hint(),
            PrepareError::GitMissing { .. } => Some("install git".to_owned()),
            PrepareError::Changed { .. } => Some("read the tasks again".to_owned()),
            _ => None,
        }
    }
}

/// Prepares one task. What is in the cache is used as it is, so a second call is quick and needs no
/// network. Any number of threads and processes may prepare tasks in one cache.
pub fn prepare(task: &Task, cache: &Cache, tools: &Tools) -> Result<Prepared, PrepareError> {
    let unsupported = crate::harbor::unsupported(task);
    if !unsupported.is_empty() {
        return Err(PrepareError::Unsupported(unsupported));
    }
    let mut notes = Vec::new();
    let start = start::prepare(&task.start, cache, tools, &mut notes)?;
    let hidden = hidden_tests(task, cache, tools)?;
    let mut place = Place::default();
    let environment_facts = match &task.environment {
        Environment::Python {
            requires_python,
            wheels,
            python_path,
        } => environment::python(
            requires_python,
            wheels,
            python_path,
            cache,
            tools,
            &mut place,
        )?,
        Environment::Image { image, work_tree } => {
            place.image = Some(image.clone());
            place.work_tree.clone_from(work_tree);
            serde_json::json!({ "image": image })
        }
        Environment::Dockerfile { context, work_tree } => {
            let digest = tree_digest(context)?;
            let image = format!("temper-task:{}", digest.short());
            notes.push(format!(
                "the image {image} must be built first: docker build -t {image} {}",
                context.display()
            ));
            place.image = Some(image);
            place.work_tree = work_tree.clone().unwrap_or_else(|| "/".to_owned());
            serde_json::json!({ "context": digest })
        }
        Environment::Host => {
            place.variables = environment::base_variables(&place.work_tree);
            serde_json::json!({ "host": true })
        }
    };
    let setup = match &task.start {
        // Where neither is said, the image need not hold a repository at all, or its history may be
        // what the task is about.
        Start::Image {
            base_commit,
            checkout,
        } if base_commit.is_some() || checkout.is_some() => {
            image_setup(&place.work_tree, checkout.as_deref())
        }
        _ => Vec::new(),
    };
    let verifier_files = match &task.verifier {
        Verifier::Harbor { tests, .. } => Some(tree_digest(tests)?),
        Verifier::Pytest { .. } | Verifier::Log { .. } => None,
    };
    if let Some(config) = crate::harbor::Config::of(task) {
        // Templates stay: looking up variables is up to the caller.
        place.variables.extend(config.environment.env);
    }
    let environment_digest = Digest::of_value(&serde_json::json!({
        "format": 1,
        "start": start.as_ref().map(|start| &start.facts.digest),
        "commit": start.as_ref().map(|start| &start.facts.commit),
        "image_start": match &task.start {
            start @ Start::Image { .. } => Some(start),
            _ => None,
        },
        "hidden": hidden.as_ref().map(|(_, digest)| digest),
        "verifier_files": verifier_files,
        "environment": environment_facts,
        "variables": place.variables,
        "setup": setup,
        "work_tree": place.work_tree,
    }));
    let task = PreparedTask {
        task: task.clone(),
        start_tree: start.map(|start| start.tree),
        hidden_tests: hidden.map(|(path, _)| path),
        mounts: place.mounts,
        variables: place.variables,
        image: place.image,
        work_tree: place.work_tree,
        setup,
        environment_digest,
    };
    Ok(Prepared { task, notes })
}

/// The unpacked archive in the cache, without the directory that it wraps itself in. Nothing of it
/// may be changed.
pub fn source_tree(
    archive: &temper_core::task::Archive,
    cache: &Cache,
    tools: &Tools,
) -> Result<PathBuf, PrepareError> {
    start::pristine(archive, cache, tools)
}

/// What brings the work tree of an image to the start: a checkout where the task names one, then
/// the removal of every other commit.
fn image_setup(work_tree: &str, checkout: Option<&str>) -> Vec<String> {
    let checkout = checkout.map(|branch| {
        format!(
            "git -C {} checkout --quiet {} --",
            history::quote(work_tree),
            history::quote(branch)
        )
    });
    checkout
        .into_iter()
        .chain([history::scrub_script(work_tree)])
        .collect()
}

/// Where commands run.
struct Place {
    mounts: Vec<PreparedMount>,
    variables: BTreeMap<String, String>,
    image: Option<String>,
    work_tree: String,
}

impl Default for Place {
    fn default() -> Self {
        Place {
            mounts: Vec::new(),
            variables: BTreeMap::new(),
            image: None,
            work_tree: WORK_TREE.to_owned(),
        }
    }
}

/// The hidden test files in a directory of their own, and their digest.
fn hidden_tests(
    task: &Task,
    cache: &Cache,
    tools: &Tools,
) -> Result<Option<(PathBuf, Digest)>, PrepareError> {
    let Verifier::Pytest {
        test_files,
        hidden_source,
        ..
    } = &task.verifier
    else {
        return Ok(None);
    };
    let files: Vec<TreePath> = test_files
        .iter()
        .map(|file| {
            file.parse()
                .map_err(|error| PrepareError::Invalid(format!("a test file: {error}")))
        })
        .collect::<Result<_, _>>()?;
    let (source, place, whole) = match hidden_source {
        HiddenSource::Directory { path } => (path.clone(), path.display().to_string(), true),
        HiddenSource::SourceDistribution => {
            let Start::SourceDistribution { archive, .. } = &task.start else {
                return Err(PrepareError::Invalid(
                    "its hidden tests come from a source distribution, but its start does not"
                        .to_owned(),
                ));
            };
            let pristine = start::pristine(archive, cache, tools)?;
            (pristine, "the source distribution".to_owned(), false)
        }
    };
    // A source distribution holds the fix as well, so only the test files are taken from it. A
    // directory of hidden files may also hold the data that they need.
    let mut tree = read_tree(&source, &TreeLimits::default())?;
    if let Some(file) = files.iter().find(|file| !tree.contains_key(*file)) {
        return Err(PrepareError::NoHiddenFile {
            file: file.clone(),
            place,
        });
    }
    if !whole {
        tree.retain(|path, _| files.contains(path));
    }
    let digest = temper_core::tree::digest(&tree);
    let content = cache.entry::<PrepareError>("hidden", &digest, |content| {
        Ok(crate::tree_io::write_tree(&tree, &content.join("tree"))?)
    })?;
    Ok(Some((content.join("tree"), digest)))
}

fn tree_digest(path: &std::path::Path) -> Result<Digest, PrepareError> {
    let tree = read_tree(path, &TreeLimits::default())?;
    Ok(temper_core::tree::digest(&tree))
}

#[cfg(test)]
mod tests;
