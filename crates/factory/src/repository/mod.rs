//! What a repository is: its code, its tests, the environment that runs them.
//!
//! A directory, a commit or a source distribution becomes a [`Repository`] by reading alone: names,
//! versions, requirements and pytest's configuration come from files, a dynamic `setup.py` is
//! parsed and never run, and wheels are chosen by pip's resolver without building anything.

mod ini;
mod layout;
mod licence;
mod metadata;
mod pack;
mod poetry;
mod requirements;
mod resolve;
mod setup_py;
mod source;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use temper_core::{Tree, TreePath, task::Archive};
use temper_tasks::{
    cache::{Cache, CacheError},
    fetch::FetchError,
    git::GitError,
    prepare::{PrepareError, Tools},
    python::PythonError,
    tree_io::TreeIoError,
};

use metadata::Metadata;
use requirements::{Optional, name_of, normalize};
pub use source::Source;

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
    /// Arguments of pytest beside test ids, for a runner that loads only the plugins it names.
    pub arguments: Vec<String>,
    /// Modules of the pytest plugins that the wheels declare, which a plain pytest loads by itself.
    pub pytest_plugins: Vec<String>,
    /// The file of the tree that configures pytest.
    pub configuration: Option<TreePath>,
    /// The git repository with the history before `commit`, where there is one on this machine.
    pub history: Option<PathBuf>,
    /// One line each: what was left out and why, what was assumed.
    pub notes: Vec<String>,
}

/// What the user says instead of what would be found. Empty lists leave it to the files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overrides {
    /// Directories with the code.
    pub python_path: Vec<String>,
    /// Test files, or directories of them.
    pub tests: Vec<String>,
    /// Requirements beside those found.
    pub with: Vec<String>,
    /// Names of projects that are not to be installed although they are asked for.
    pub without: Vec<String>,
    /// Arguments of pytest instead of those found.
    pub arguments: Vec<String>,
}

/// Why no tasks can be made of a repository.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// It is neither there nor an address nor a name.
    #[error(
        "find the repository {0:?}: it is no directory, no file, no address and no project's name"
    )]
    NoSource(String),
    /// A wheel, or something else that is no source distribution.
    #[error("read {}: expected a source distribution (.tar.gz or .zip)", .0.display())]
    NotADistribution(PathBuf),
    /// The index has no such source distribution.
    #[error("find a source distribution of {project}{}: the index has {n_known}{}", .version.as_ref().map(|v| format!(" {v}")).unwrap_or_default(), if .version.is_some() { " of other versions" } else { "" })]
    NoDistribution {
        /// The project.
        project: String,
        /// The version that was asked for.
        version: Option<String>,
        /// How many source distributions of the project there are.
        n_known: usize,
    },
    /// The index does not say the hash of the file.
    #[error("pin {0}: the index gives no SHA-256 for it")]
    NoHash(String),
    /// The repository at an address cannot be copied.
    #[error("copy the repository {address}: {source}")]
    Clone {
        /// Without credentials.
        address: String,
        /// Why.
        source: GitError,
    },
    /// The repository at an address is not in the cache, and nothing may be asked.
    #[error("copy the repository {0} offline: no earlier run has copied it")]
    CloneOffline(String),
    /// There is no git on this machine.
    #[error("read a git repository: there is no git in the search path")]
    GitMissing,
    /// The repository lacks the revision.
    #[error("find {revision} in {repository}")]
    NoRevision {
        /// The repository.
        repository: String,
        /// What was asked for.
        revision: String,
    },
    /// There is no Python code, or not where libraries have it.
    #[error("find the project's Python code in {place}: {reason}")]
    NoCode {
        /// The project.
        place: String,
        /// `there is no Python file`, …
        reason: String,
    },
    /// There are no tests.
    #[error("find tests of {place}: {reason}")]
    NoTests {
        /// The project.
        place: String,
        /// What was looked for.
        reason: String,
        /// Whether it is a source distribution, which often lacks its tests.
        distribution: bool,
        /// The project's home.
        url: Option<String>,
    },
    /// The tests are for another runner.
    #[error("run the tests of {place} with pytest: they are run with {runner}")]
    NotPytest {
        /// The project.
        place: String,
        /// Its runner.
        runner: String,
    },
    /// The code needs a compiler.
    #[error("use {place} without building it: {reason}")]
    Compiled {
        /// The project.
        place: String,
        /// What has to be compiled.
        reason: String,
    },
    /// A requirement has no wheel that every machine can use.
    #[error("find a pure-Python wheel of {requirement}{}", .from.as_ref().map(|from| format!(", which {from} needs")).unwrap_or_default())]
    NoPureWheel {
        /// The requirement.
        requirement: String,
        /// What asks for it.
        from: Option<String>,
    },
    /// The requirements contradict each other or cannot be read.
    #[error("resolve the requirements: {0}")]
    Resolve(String),
    /// The project's requirements are computed by its `setup.py`.
    #[error("read the requirements of {0}: its setup.py computes them, and it is not run")]
    Computed(String),
    /// pip did not work.
    #[error("run pip: {0}")]
    Pip(String),
    /// An override that cannot be used.
    #[error("use {flag}: {problem}")]
    Override {
        /// The flag.
        flag: &'static str,
        /// Why.
        problem: String,
    },
    /// The files could not be had.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The archive could not be unpacked, or git failed.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// There is no usable Python.
    #[error(transparent)]
    Python(#[from] PythonError),
    /// The files could not be read.
    #[error(transparent)]
    Files(#[from] TreeIoError),
    /// The cache could not be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// Another file operation failed.
    #[error("{operation} {}: {source}", .path.display())]
    Io {
        /// `read`, `write`, `make`, `find`, `pack`.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl RepositoryError {
    /// What the user can do, where there is something.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            RepositoryError::NoSource(_) => {
                "give a directory, a source distribution, the address of a git repository (https://…), or NAME==VERSION of the package index".to_owned()
            }
            RepositoryError::NotADistribution(_) => "a wheel holds no tests; give the source distribution or the repository".to_owned(),
            RepositoryError::NoDistribution { .. } => {
                "check the name and the version, or give the address of its git repository".to_owned()
            }
            RepositoryError::NoHash(_) => "use an index that gives hashes, such as https://pypi.org/simple, or give the file itself".to_owned(),
            RepositoryError::Clone { .. } => "check the address, the network and the proxy; git must get in without asking for a password".to_owned(),
            RepositoryError::CloneOffline(_) => "leave --offline out, or clone it elsewhere and give the directory".to_owned(),
            RepositoryError::GitMissing => "install git, or give a source distribution".to_owned(),
            RepositoryError::NoRevision { .. } => "name a branch, a tag or a commit that the repository has".to_owned(),
            RepositoryError::NoCode { .. } => "name the directory that holds the package with --python-path DIR; tasks are made of Python projects only".to_owned(),
            RepositoryError::NoTests { distribution: true, url, .. } => match url {
                Some(url) => format!("its source distribution leaves the tests out; give its git repository instead ({url})"),
                None => "its source distribution leaves the tests out; give its git repository instead".to_owned(),
            },
            RepositoryError::NoTests { .. } => {
                "name test files or directories with --tests PATH; tasks need tests that notice their bugs".to_owned()
            }
            RepositoryError::NotPytest { .. } => {
                "tests that pytest can collect anyway can be named with --tests PATH".to_owned()
            }
            RepositoryError::Compiled { .. } => {
                "tasks run from the source tree with pure-Python wheels, so that they are the same on every machine; choose a project, or an older version of it, without compiled extensions".to_owned()
            }
            RepositoryError::NoPureWheel { requirement, .. } => format!(
                "leave it out with --leave-out {} if the tests can do without it, or ask for a version that has a pure-Python wheel with --with '{}==VERSION'",
                name_of(requirement),
                name_of(requirement)
            ),
            RepositoryError::Resolve(_) => "--with REQUIREMENT adds one, --leave-out NAME leaves one out".to_owned(),
            RepositoryError::Computed(_) => "name what it needs with --with REQUIREMENT, or say --with '' if that is nothing".to_owned(),
            RepositoryError::Pip(_) => "check the network, the proxy and --index-url".to_owned(),
            RepositoryError::Fetch(error) => return error.hint(),
            RepositoryError::Prepare(error) => return error.hint(),
            RepositoryError::Python(error) => return error.hint(),
            _ => return None,
        })
    }
}

/// Finds out what a repository is. Archives that no index has are written into `archives`, which
/// must be one of the directories that `tools` fetches from.
pub fn open(
    source: &Source,
    overrides: &Overrides,
    archives: &Path,
    cache: &Cache,
    tools: &Tools,
) -> Result<Repository, RepositoryError> {
    let mut found = source::find(source, archives, cache, tools)?;
    let mut notes = std::mem::take(&mut found.notes);
    let mut metadata = Metadata::read(&found.tree);
    let project = normalize(metadata.name.as_deref().unwrap_or(&found.name));
    let place = match &metadata.version {
        Some(version) => format!("{project} {version}"),
        None => project.clone(),
    };
    refuse_compiled(&found.tree, &metadata, &place, &mut notes)?;
    let python_path = python_path(&found.tree, &project, overrides, &place)?;
    if metadata.version.is_none() {
        metadata.version = version_in_code(&found.tree, &python_path);
    }
    if found.archive.is_none() {
        source::add_version_files(&mut found.tree, metadata.version.as_deref(), &mut notes);
    }
    let tree = &found.tree;
    let configuration = layout::pytest_configuration(tree);
    for chosen in &overrides.tests {
        let path = chosen.trim_end_matches('/');
        let there = path == "."
            || tree.keys().any(|known| {
                let known = known.to_text();
                known == path
                    || known
                        .strip_prefix(path)
                        .is_some_and(|rest| rest.starts_with('/'))
            });
        if !there {
            return Err(RepositoryError::Override {
                flag: "--tests",
                problem: format!("{place} has no {chosen}"),
            });
        }
    }
    let test_files = layout::test_files(tree, &configuration, &overrides.tests);
    if test_files.is_empty() {
        return Err(no_tests(tree, &found, &metadata, &place, &configuration));
    }
    let source_files = layout::source_files(tree, &python_path, &test_files);
    if source_files.is_empty() {
        return Err(RepositoryError::NoCode {
            place,
            reason: format!("there is none in {} beside tests", python_path.join(", ")),
        });
    }

    let without: Vec<String> = overrides
        .without
        .iter()
        .map(|name| normalize(name))
        .collect();
    let wanted = |requirement: &String| !without.contains(&name_of(requirement));
    let mut required = vec!["pytest".to_owned()];
    match &metadata.dependencies {
        Some(dependencies) => required.extend(
            dependencies
                .iter()
                .filter(|r| name_of(r) != project)
                .cloned(),
        ),
        None if !overrides.with.is_empty() => {}
        None if metadata
            .computed
            .iter()
            .any(|name| name == "install_requires" || name == "**") =>
        {
            return Err(RepositoryError::Computed(place));
        }
        None => notes.push(
            "no file states what the project needs; nothing but pytest is assumed".to_owned(),
        ),
    }
    required.extend(
        overrides
            .with
            .iter()
            .map(|text| requirements::typed(text))
            .filter(|text| !text.is_empty()),
    );
    required.retain(wanted);
    let optional: Vec<Optional> = requirements::optional(tree, &metadata, &project, &test_files)
        .into_iter()
        .filter(|option| wanted(&option.text))
        .collect();
    let resolution = resolve::resolve(&required, &optional, cache, tools)?;
    notes.extend(resolution.notes);

    let pytest_plugins = resolve::pytest_plugins(&resolution.wheels, tools)?;
    let arguments = if overrides.arguments.is_empty() {
        arguments(&configuration, &pytest_plugins)
    } else {
        overrides.arguments.clone()
    };
    let (archive, tree_path) = match found.archive {
        Some(archive) => archive,
        None => {
            let label = match (&metadata.version, &found.commit) {
                (Some(version), None) => version.clone(),
                (None, None) => "0".to_owned(),
                (_, Some(commit)) => commit[..12].to_owned(),
            };
            source::archive(tree, &project, &label, archives, cache, tools)?
        }
    };
    Ok(Repository {
        project,
        version: metadata.version,
        licence: metadata.licence.or_else(|| licence::in_tree(&found.tree)),
        url: metadata.url.or(found.url),
        commit: found.commit,
        archive,
        tree: tree_path,
        python_path,
        requires_python: usable_requirement(metadata.requires_python, &mut notes),
        wheels: resolution.wheels,
        source_files,
        test_files,
        arguments,
        pytest_plugins,
        configuration: configuration.file,
        history: found.history,
        notes,
    })
}

/// The files of a source alone, as of an earlier release. A file that only this machine has is
/// copied to `archives`.
pub fn files(
    source: &Source,
    archives: &Path,
    cache: &Cache,
    tools: &Tools,
) -> Result<Tree, RepositoryError> {
    Ok(source::find(source, archives, cache, tools)?.tree)
}

/// The requirement as far as Temper reads such requirements.
fn usable_requirement(stated: Option<String>, notes: &mut Vec<String>) -> String {
    let stated = stated.unwrap_or_default().replace(' ', "");
    match stated.parse::<temper_tasks::python::Requirement>() {
        Ok(_) => stated,
        Err(_) => {
            notes.push(format!(
                "its requirement of Python, {stated:?}, cannot be read and is left out"
            ));
            String::new()
        }
    }
}

fn python_path(
    tree: &Tree,
    project: &str,
    overrides: &Overrides,
    place: &str,
) -> Result<Vec<String>, RepositoryError> {
    if !tree.keys().any(|path| path.as_bytes().ends_with(b".py")) {
        return Err(RepositoryError::NoCode {
            place: place.to_owned(),
            reason: "there is no Python file".to_owned(),
        });
    }
    if overrides.python_path.is_empty() {
        return layout::python_path(tree, project).ok_or_else(|| RepositoryError::NoCode {
            place: place.to_owned(),
            reason: "there is no package or module at its top or in src".to_owned(),
        });
    }
    let mut clean = Vec::new();
    for typed in &overrides.python_path {
        let path = typed.trim_start_matches("./").trim_end_matches('/');
        let path = if path.is_empty() { "." } else { path };
        let there = path == "."
            || tree.keys().any(|known| {
                known
                    .to_text()
                    .strip_prefix(path)
                    .is_some_and(|rest| rest.starts_with('/'))
            });
        if !there {
            return Err(RepositoryError::Override {
                flag: "--python-path",
                problem: format!("{place} has no directory {typed}"),
            });
        }
        clean.push(path.to_owned());
    }
    Ok(clean)
}

/// Refuses what runs only after a build; an extension that may be optional is a note.
fn refuse_compiled(
    tree: &Tree,
    metadata: &Metadata,
    place: &str,
    notes: &mut Vec<String>,
) -> Result<(), RepositoryError> {
    let compiled = |reason: String| RepositoryError::Compiled {
        place: place.to_owned(),
        reason,
    };
    if let Some(backend) = &metadata.build_backend {
        let builders = [
            "maturin",
            "scikit_build_core",
            "mesonpy",
            "pyo3",
            "setuptools_rust",
            "sipbuild",
        ];
        if builders.iter().any(|builder| backend.starts_with(builder)) {
            return Err(compiled(format!("{backend} compiles an extension")));
        }
    }
    for path in tree.keys() {
        let text = path.to_text();
        if let Some(stem) = text.strip_suffix(".pyx")
            && tree
                .get(&format!("{stem}.py").parse().expect("a path of the tree"))
                .is_none()
            && !text.split('/').any(|part| {
                part.starts_with("test")
                    || part == "docs"
                    || part == "examples"
                    || part == "benchmarks"
            })
        {
            return Err(compiled(format!("{text} is Cython")));
        }
    }
    if metadata.computed.iter().any(|name| name == "ext_modules")
        || metadata::text(tree, "setup.py").is_some_and(|text| text.contains("ext_modules"))
    {
        notes.push("its setup.py names compiled extensions; the tests run without them".to_owned());
    }
    Ok(())
}

fn no_tests(
    tree: &Tree,
    found: &source::Found,
    metadata: &Metadata,
    place: &str,
    configuration: &layout::PytestConfiguration,
) -> RepositoryError {
    let runner = [
        ("Makefile", "stestr"),
        (".stestr.conf", "stestr"),
        ("tox.ini", "trial "),
        ("tox.ini", "zope-testrunner"),
    ]
    .into_iter()
    .find(|(file, word)| {
        metadata::text(tree, file).is_some_and(|text| text.contains(word))
            || *file == ".stestr.conf"
                && tree.contains_key(&".stestr.conf".parse().expect("a path"))
    });
    if let Some((_, runner)) = runner {
        return RepositoryError::NotPytest {
            place: place.to_owned(),
            runner: runner.trim().to_owned(),
        };
    }
    let patterns = if configuration.python_files.is_empty() {
        "test_*.py or *_test.py".to_owned()
    } else {
        configuration.python_files.join(" or ")
    };
    RepositoryError::NoTests {
        place: place.to_owned(),
        reason: format!("there is no file {patterns}"),
        distribution: found.archive.is_some(),
        url: metadata.url.clone(),
    }
}

/// `__version__ = "1.2"` in the package itself.
fn version_in_code(tree: &Tree, python_path: &[String]) -> Option<String> {
    let names = [
        "__init__.py",
        "_version.py",
        "version.py",
        "__about__.py",
        "__version__.py",
        "_about.py",
    ];
    let mut candidates: Vec<&TreePath> = tree
        .keys()
        .filter(|path| {
            let text = path.to_text();
            python_path.iter().any(|root| {
                let rest = if root == "." {
                    Some(text.as_ref())
                } else {
                    text.strip_prefix(&format!("{root}/"))
                };
                rest.is_some_and(|rest| match rest.split_once('/') {
                    Some((top, file)) => names.contains(&file) && !top.starts_with("test"),
                    None => rest.ends_with(".py") && rest != "setup.py",
                })
            })
        })
        .collect();
    candidates.sort_by_key(|path| std::cmp::Reverse(path.to_text().contains("version")));
    candidates.into_iter().find_map(|path| {
        metadata::text(tree, &path.to_text())?
            .lines()
            .find_map(|line| {
                let (name, value) = line.split_once('=')?;
                let name = name.split(':').next()?.trim();
                if !matches!(name, "__version__" | "VERSION" | "version") {
                    return None;
                }
                let value = value.trim().split(['#', ';']).next()?.trim();
                let version = value
                    .strip_prefix('"')
                    .and_then(|v| v.strip_suffix('"'))
                    .or_else(|| value.strip_prefix('\'')?.strip_suffix('\''))?;
                let plain = version.starts_with(|c: char| c.is_ascii_digit())
                    && version.len() < 40
                    && version
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b".+-!_".contains(&b));
                plain.then(|| version.to_owned())
            })
    })
}

/// pytest's arguments: what the project's own options say about which tests there are, and the
/// plugins that its tests need, which the runner loads only when they are named.
fn arguments(configuration: &layout::PytestConfiguration, plugins: &[String]) -> Vec<String> {
    let mut arguments = Vec::new();
    let kept = layout::kept_options(&configuration.addopts);
    if kept != configuration.addopts {
        // The others would be read from the file all the same.
        arguments.extend(["-o".to_owned(), "addopts=".to_owned()]);
        arguments.extend(kept);
    }
    for module in plugins {
        let hypothesis = module == "_hypothesis_pytestplugin";
        arguments.extend(["-p".to_owned(), module.clone()]);
        if hypothesis {
            // Examples are drawn from a seed; without one each run would be another test.
            arguments.push("--hypothesis-seed=0".to_owned());
        }
    }
    arguments
}

#[cfg(test)]
mod tests;
