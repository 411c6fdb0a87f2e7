//! What a repository is: its code, its tests, the environment that runs them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use temper_core::{TreePath, task::Archive};

/// A Python project of which tasks can be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repository {
    /// The project's name, normalized as in package indexes (`more-itertools`).
    pub project: String,
    /// The released version, where the metadata says one.
    pub version: Option<String>,
    /// SPDX expression, where the metadata says one.
    pub licence: Option<String>,
    /// The project's home.
    pub url: Option<String>,
    /// The commit that the tree was read from, in full.
    pub commit: Option<String>,
    /// The tree as an archive: of the package index, or made here from a directory or a commit.
    pub archive: Archive,
    /// The unpacked archive, on this machine. It is never changed.
    pub tree: PathBuf,
    /// Directories of the tree that are put on `PYTHONPATH`, in order; `.` is its root.
    pub python_path: Vec<String>,
    /// Which versions of Python it works with, such as `>=3.9`; empty allows all.
    pub requires_python: String,
    /// Pinned pure-Python wheels: pytest, what the project needs, what its tests need.
    pub wheels: Vec<Archive>,
    /// Python files with the project's own code, in order of their paths.
    pub source_files: Vec<TreePath>,
    /// Python files that pytest would collect, in order of their paths.
    pub test_files: Vec<TreePath>,
    /// Arguments of pytest beside test ids.
    pub arguments: Vec<String>,
    /// The file of the tree that configures pytest.
    pub configuration: Option<TreePath>,
    /// The git repository with the history before `commit`, where there is one on this machine.
    pub history: Option<PathBuf>,
    /// One line each: what was left out and why, what was assumed.
    pub notes: Vec<String>,
}
