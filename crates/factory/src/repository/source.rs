//! Where a repository comes from, and its tree as an archive.

use std::{
    fs,
    path::{Path, PathBuf},
};

use temper_core::{Digest, Entry, Tree, task::Archive};
use temper_tasks::{
    archive::{ArchiveLimits, extract_single_top},
    cache::Cache,
    git::GitError,
    prepare::{Tools, source_tree},
    tree_io::{TreeLimits, read_tree},
};

use super::{RepositoryError, pack, requirements::normalize};

/// Where to take a repository from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory, or a commit of the git repository in it.
    Directory {
        /// The directory.
        path: PathBuf,
        /// A branch, tag or commit; the files as they lie there if it is not given, or the main
        /// branch of a bare repository.
        revision: Option<String>,
    },
    /// A git repository at an address.
    Git {
        /// `https://…`, `ssh://…`, `git://…`.
        address: String,
        /// A branch, tag or commit; the main branch if it is not given.
        revision: Option<String>,
    },
    /// A source distribution on this machine.
    File(PathBuf),
    /// A source distribution of the package index.
    Index {
        /// The project.
        project: String,
        /// The version; the newest release if it is not given.
        version: Option<String>,
    },
}

impl Source {
    /// Reads a source as typed: a directory or a file that is there, also as `file://…`, an address,
    /// `NAME==VERSION` or `NAME`. `@REVISION` may follow an address, and a directory too.
    pub fn parse(text: &str) -> Result<Source, RepositoryError> {
        let text = text.strip_prefix("file://").unwrap_or(text);
        let path = Path::new(text);
        if path.is_dir() {
            return Ok(Source::Directory {
                path: path.to_owned(),
                revision: None,
            });
        }
        if path.is_file() {
            return Ok(Source::File(path.to_owned()));
        }
        let divided = text
            .rsplit_once('@')
            .filter(|(_, revision)| !revision.is_empty());
        if let Some((_, rest)) = text.split_once("://") {
            let path = text.len() - rest.len() + rest.find('/').unwrap_or(rest.len());
            // `USER@HOST` is no revision, and no name of a repository is empty.
            let (address, revision) = match divided {
                Some((address, revision)) if address.len() > path && !address.ends_with('/') => {
                    (address, Some(revision.to_owned()))
                }
                _ => (text, None),
            };
            return Ok(Source::Git {
                address: address.to_owned(),
                revision,
            });
        }
        if let Some((directory, revision)) = divided
            && Path::new(directory).is_dir()
        {
            return Ok(Source::Directory {
                path: directory.into(),
                revision: Some(revision.to_owned()),
            });
        }
        let (project, version) = match text.split_once("==") {
            Some((project, version)) => (project, Some(version.to_owned())),
            None => (text, None),
        };
        let is_name = |text: &str| {
            !text.is_empty()
                && text
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"-_.+!".contains(&b))
        };
        let starts = project.starts_with(|c: char| c.is_ascii_alphanumeric());
        if starts && is_name(project) && version.as_deref().is_none_or(is_name) {
            return Ok(Source::Index {
                project: project.to_owned(),
                version,
            });
        }
        Err(RepositoryError::NoSource(text.to_owned()))
    }
}

/// A tree with what is known of where it comes from.
pub(super) struct Found {
    pub(super) tree: Tree,
    pub(super) commit: Option<String>,
    pub(super) history: Option<PathBuf>,
    /// The archive, when it exists already; otherwise one is to be made.
    pub(super) archive: Option<(Archive, PathBuf)>,
    /// A name to use when the metadata has none.
    pub(super) name: String,
    /// An address to use when the metadata has none.
    pub(super) url: Option<String>,
    pub(super) notes: Vec<String>,
}

/// Gets the tree. A file that only this machine has is copied to `archives`.
pub(super) fn find(
    source: &Source,
    archives: &Path,
    cache: &Cache,
    tools: &Tools,
) -> Result<Found, RepositoryError> {
    match source {
        Source::Directory { path, revision } => directory(path, revision.as_deref(), tools),
        Source::Git { address, revision } => git(address, revision.as_deref(), cache, tools),
        Source::File(path) => file(path, archives, cache, tools),
        Source::Index { project, version } => {
            let archive = listed(project, version.as_deref(), tools)?;
            unpacked(archive, cache, tools)
        }
    }
}

/// Caches and environments that lie in a work tree without belonging to it.
const LEFT_OUT: [&str; 13] = [
    "__pycache__",
    ".git",
    ".hg",
    ".venv",
    "venv",
    "node_modules",
    ".tox",
    ".nox",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".eggs",
    ".hypothesis",
];

fn directory(path: &Path, revision: Option<&str>, tools: &Tools) -> Result<Found, RepositoryError> {
    let path = fs::canonicalize(path).map_err(|source| RepositoryError::Io {
        operation: "find",
        path: path.to_owned(),
        source,
    })?;
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let mut found = Found {
        tree: Tree::new(),
        commit: None,
        history: None,
        archive: None,
        name,
        url: None,
        notes: Vec::new(),
    };
    let is_repository = path.join(".git").symlink_metadata().is_ok();
    let is_bare = !is_repository
        && path.join("HEAD").is_file()
        && ["objects", "refs"]
            .iter()
            .all(|name| path.join(name).is_dir());
    if let Some(revision) = revision.or(is_bare.then_some("HEAD")) {
        let git = tools.git().ok_or(RepositoryError::GitMissing)?;
        let commit = git
            .resolve(&path, revision)
            .ok_or_else(|| RepositoryError::NoRevision {
                repository: path.display().to_string(),
                revision: revision.to_owned(),
            })?;
        found.tree = read_commit(
            &path.display().to_string(),
            &commit,
            tools,
            &mut found.notes,
        )?;
        found.commit = Some(commit);
        found.history = Some(path);
        return Ok(found);
    }
    let mut tree = read_tree(&path, &TreeLimits::default())?;
    if let Some(git) = tools.git()
        && is_repository
    {
        if let Some(files) = git.work_files(&path)? {
            let files: std::collections::BTreeSet<_> = files.into_iter().collect();
            tree.retain(|path, _| files.contains(path));
        }
        if let Some(commit) = git.resolve(&path, "HEAD") {
            // Compared by content rather than by asking git, which would run the filters that the
            // repository's own configuration names.
            let committed =
                git.read_commit(&path.display().to_string(), &commit, &TreeLimits::default())?;
            if committed.tree == tree {
                found.commit = Some(commit);
                found.history = Some(path.clone());
            } else {
                found.notes.push(format!(
                    "{} differs from its last commit; its files are taken as they lie there",
                    path.display()
                ));
            }
        }
    }
    tree.retain(|path, _| {
        let text = path.to_text();
        !text
            .split('/')
            .any(|part| LEFT_OUT.contains(&part) || part.ends_with(".pyc"))
    });
    found.tree = tree;
    Ok(found)
}

fn git(
    address: &str,
    revision: Option<&str>,
    cache: &Cache,
    tools: &Tools,
) -> Result<Found, RepositoryError> {
    let git = tools.git().ok_or(RepositoryError::GitMissing)?;
    let key = Digest::of_value(&("repository-1", address));
    let no_revision = || RepositoryError::NoRevision {
        repository: without_user(address),
        revision: revision.unwrap_or("HEAD").to_owned(),
    };
    let (mut notes, mut is_new) = (Vec::new(), false);
    let is_offline = tools.fetcher().options().index.is_none();
    let content = cache.entry::<RepositoryError>("repositories", &key, |content| {
        if is_offline {
            return Err(RepositoryError::CloneOffline(without_user(address)));
        }
        is_new = true;
        git.clone_bare(address, &content.join("repository.git"))
            .map_err(|error| match error {
                GitError::Run { .. } | GitError::Failed { .. } => RepositoryError::Clone {
                    address: without_user(address),
                    source: error,
                },
                error => error.into(),
            })
    })?;
    let history = content.join("repository.git");
    // A commit that is named in full is the same everywhere; a branch may have moved.
    let is_there = |commit: &str| git.resolve(&history, commit).as_deref() == Some(commit);
    if !is_new
        && !is_offline
        && !revision.is_some_and(is_there)
        && let Err(error) = git.renew(&history, address)
    {
        notes.push(format!(
            "{} is taken as an earlier run copied it: failed to {error}",
            without_user(address)
        ));
    }
    let commit = git
        .resolve(&history, revision.unwrap_or("HEAD"))
        .ok_or_else(no_revision)?;
    let tree = read_commit(&history.display().to_string(), &commit, tools, &mut notes)?;
    let name = address
        .trim_end_matches('/')
        .trim_end_matches(".git")
        .rsplit(['/', ':'])
        .next()
        .unwrap_or_default();
    Ok(Found {
        tree,
        commit: Some(commit),
        history: Some(history),
        archive: None,
        name: name.to_owned(),
        url: address.starts_with("http").then(|| without_user(address)),
        notes,
    })
}

/// The address without user name and password, which must not get into a suite.
fn without_user(address: &str) -> String {
    match address.split_once("://") {
        Some((scheme, rest)) => {
            let host = rest.split('/').next().unwrap_or_default();
            match host.rfind('@') {
                Some(at) => format!("{scheme}://{}", &rest[at + 1..]),
                None => address.to_owned(),
            }
        }
        None => address.to_owned(),
    }
}

fn read_commit(
    repository: &str,
    commit: &str,
    tools: &Tools,
    notes: &mut Vec<String>,
) -> Result<Tree, RepositoryError> {
    let git = tools.git().ok_or(RepositoryError::GitMissing)?;
    let files = git.read_commit(repository, commit, &TreeLimits::default())?;
    notes.extend(
        files
            .submodules
            .iter()
            .map(|path| format!("the submodule {path} is left out")),
    );
    Ok(files.tree)
}

fn file(
    path: &Path,
    archives: &Path,
    cache: &Cache,
    tools: &Tools,
) -> Result<Found, RepositoryError> {
    let io = |operation, path: &Path| {
        let path = path.to_owned();
        move |source| RepositoryError::Io {
            operation,
            path,
            source,
        }
    };
    let file_name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    if !(file_name.ends_with(".tar.gz")
        || file_name.ends_with(".zip")
        || file_name.ends_with(".tgz"))
        || file_name.ends_with(".whl")
    {
        return Err(RepositoryError::NotADistribution(path.to_owned()));
    }
    let bytes = fs::read(path).map_err(io("read", path))?;
    fs::create_dir_all(archives).map_err(io("make", archives))?;
    let copy = archives.join(&file_name);
    if fs::read(&copy).ok().as_ref() != Some(&bytes) {
        fs::write(&copy, &bytes).map_err(io("write", &copy))?;
    }
    let stem = file_name
        .trim_end_matches(".gz")
        .trim_end_matches(".tar")
        .trim_end_matches(".zip")
        .trim_end_matches(".tgz");
    let project = stem.rsplit_once('-').map_or(stem, |(name, _)| name);
    let archive = Archive {
        project: normalize(project),
        file_name,
        sha256: Digest::of(&bytes),
    };
    unpacked(archive, cache, tools)
}

fn unpacked(archive: Archive, cache: &Cache, tools: &Tools) -> Result<Found, RepositoryError> {
    let path = source_tree(&archive, cache, tools)?;
    Ok(Found {
        tree: read_tree(&path, &TreeLimits::default())?,
        commit: None,
        history: None,
        name: archive.project.clone(),
        url: None,
        archive: Some((archive, path)),
        notes: Vec::new(),
    })
}

/// The source distribution of a version, or of the newest release.
fn listed(project: &str, version: Option<&str>, tools: &Tools) -> Result<Archive, RepositoryError> {
    let mut files: Vec<(String, Option<Digest>)> = tools
        .fetcher()
        .list(project)?
        .into_iter()
        .map(|file| (file.file_name, file.sha256))
        .collect();
    for directory in &tools.fetcher().options().directories {
        for item in fs::read_dir(directory).into_iter().flatten().flatten() {
            let name = item.file_name().to_string_lossy().into_owned();
            // Hashed only when it is chosen.
            files.push((name, None));
        }
    }
    let normal = normalize(project);
    let version_of = |name: &str| -> Option<String> {
        let stem = name
            .strip_suffix(".tar.gz")
            .or_else(|| name.strip_suffix(".zip"))?;
        let (name, version) = stem.rsplit_once('-')?;
        (normalize(name) == normal).then(|| version.to_owned())
    };
    let versions: Vec<(String, String, Option<Digest>)> = files
        .into_iter()
        .filter_map(|(name, hash)| Some((version_of(&name)?, name, hash)))
        .collect();
    let chosen = match version {
        Some(version) => versions.iter().find(|(known, ..)| known == version),
        None => versions
            .iter()
            .filter_map(|item| {
                let parts: Vec<u64> = item
                    .0
                    .split('.')
                    .map(|part| part.parse().ok())
                    .collect::<Option<_>>()?;
                Some((parts, item))
            })
            .max_by(|a, b| a.0.cmp(&b.0))
            .map(|(_, item)| item),
    };
    let Some((_, file_name, hash)) = chosen else {
        return Err(RepositoryError::NoDistribution {
            project: project.to_owned(),
            version: version.map(str::to_owned),
            n_known: versions.len(),
        });
    };
    let local = || {
        tools
            .fetcher()
            .options()
            .directories
            .iter()
            .find_map(|directory| Some(Digest::of(&fs::read(directory.join(file_name)).ok()?)))
    };
    let sha256 = hash
        .clone()
        .or_else(local)
        .ok_or_else(|| RepositoryError::NoHash(file_name.clone()))?;
    Ok(Archive {
        project: normal,
        file_name: file_name.clone(),
        sha256,
    })
}

/// Packs a tree into `archives`, unpacks it into the cache, and returns both places.
pub(super) fn archive(
    tree: &Tree,
    project: &str,
    label: &str,
    archives: &Path,
    cache: &Cache,
    tools: &Tools,
) -> Result<(Archive, PathBuf), RepositoryError> {
    let io = |operation, path: &Path| {
        let path = path.to_owned();
        move |source| RepositoryError::Io {
            operation,
            path,
            source,
        }
    };
    let label: String = label
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || ".+!_".contains(c) {
                c
            } else {
                '.'
            }
        })
        .collect();
    let top = format!("{project}-{label}");
    let bytes = pack::tar_gz(tree, &top).map_err(io("pack", Path::new(&top)))?;
    let archive = Archive {
        project: project.to_owned(),
        file_name: format!("{top}.tar.gz"),
        sha256: Digest::of(&bytes),
    };
    fs::create_dir_all(archives).map_err(io("make", archives))?;
    let path = archives.join(&archive.file_name);
    let temporary = archives.join(format!(".{}.{}", archive.file_name, std::process::id()));
    fs::write(&temporary, &bytes).map_err(io("write", &temporary))?;
    fs::rename(&temporary, &path).map_err(io("write", &path))?;
    let content = cache.entry::<RepositoryError>("sdists", &archive.sha256, |content| {
        Ok(
            extract_single_top(&path, &content.join("tree"), &ArchiveLimits::default())
                .map_err(temper_tasks::prepare::PrepareError::from)?,
        )
    })?;
    // What the archive cannot hold (a link out of the tree) must not be noticed later.
    let _ = tools;
    Ok((archive, content.join("tree")))
}

/// Files that a build with `setuptools-scm` or `hatch-vcs` would write, which a commit lacks but the
/// code imports: they get a version that claims nothing.
pub(super) fn add_version_files(tree: &mut Tree, version: Option<&str>, notes: &mut Vec<String>) {
    let Some(table) = super::metadata::toml(tree, "pyproject.toml") else {
        return;
    };
    let at = |path: &[&str]| -> Option<String> {
        let (first, rest) = path.split_first()?;
        let value = rest
            .iter()
            .try_fold(table.get(*first)?, |value, key| value.as_table()?.get(*key))?;
        Some(value.as_str()?.to_owned())
    };
    let files = [
        at(&["tool", "setuptools_scm", "write_to"]),
        at(&["tool", "setuptools_scm", "version_file"]),
        at(&["tool", "hatch", "build", "hooks", "vcs", "version-file"]),
    ];
    for file in files.into_iter().flatten() {
        let Ok(path) = file.parse::<temper_core::TreePath>() else {
            continue;
        };
        if !file.ends_with(".py") || tree.contains_key(&path) {
            continue;
        }
        let version = version.unwrap_or("0.0.0");
        let numbers: Vec<&str> = version
            .split('.')
            .take_while(|part| part.parse::<u64>().is_ok())
            .collect();
        let content = format!(
            "__version__ = version = {version:?}\n__version_tuple__ = version_tuple = ({},)\n__commit_id__ = commit_id = None\n",
            numbers.join(", ")
        );
        tree.insert(path, Entry::file(content));
        notes.push(format!(
            "{file}, which a build would write, is added with version {version}"
        ));
    }
}

impl From<GitError> for RepositoryError {
    fn from(error: GitError) -> Self {
        RepositoryError::Prepare(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_told_apart_by_how_they_are_typed() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().to_str().unwrap();
        let parse = |text: &str| Source::parse(text).unwrap();
        assert_eq!(
            parse(directory),
            Source::Directory {
                path: directory.into(),
                revision: None
            }
        );
        assert_eq!(
            parse(&format!("{directory}@v1.0")),
            Source::Directory {
                path: directory.into(),
                revision: Some("v1.0".into())
            }
        );
        assert_eq!(
            parse("https://user@host/a/b.git"),
            Source::Git {
                address: "https://user@host/a/b.git".into(),
                revision: None
            }
        );
        assert_eq!(
            parse("https://host/a/b@1a2b"),
            Source::Git {
                address: "https://host/a/b".into(),
                revision: Some("1a2b".into())
            }
        );
        assert_eq!(
            parse("more-itertools==10.5.0"),
            Source::Index {
                project: "more-itertools".into(),
                version: Some("10.5.0".into())
            }
        );
        assert_eq!(
            parse("six"),
            Source::Index {
                project: "six".into(),
                version: None
            }
        );
        for (text, address, revision) in [
            (
                "https://host/a/b@feature/x",
                "https://host/a/b",
                Some("feature/x"),
            ),
            (
                "ssh://git@host/a/b.git@v1",
                "ssh://git@host/a/b.git",
                Some("v1"),
            ),
            ("https://host/@scope/b", "https://host/@scope/b", None),
            ("https://user:a@b@host", "https://user:a@b@host", None),
        ] {
            let expected = Source::Git {
                address: address.into(),
                revision: revision.map(str::to_owned),
            };
            assert_eq!(parse(text), expected, "{text}");
        }
        assert_eq!(
            parse(&format!("file://{directory}@feature/x")),
            Source::Directory {
                path: directory.into(),
                revision: Some("feature/x".into())
            }
        );
        for bad in ["./missing/dir", "--option", "a b", ""] {
            assert!(
                matches!(Source::parse(bad), Err(RepositoryError::NoSource(_))),
                "{bad}"
            );
        }
        assert_eq!(without_user("https://me:secret@host/x"), "https://host/x");
    }
}
