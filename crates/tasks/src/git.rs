//! The `git` program, run so that neither the user's configuration nor a repository's can change
//! what it does.

mod log;

use std::{
    ffi::{OsStr, OsString},
    io::{self, BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use temper_core::{Entry, Tree, TreePath};

use crate::tree_io::TreeLimits;
pub use log::{CommitChanges, FileChange, LogLimits};

/// A `git` on this machine.
#[derive(Clone, Debug)]
pub struct Git {
    program: PathBuf,
    search_path: OsString,
}

/// Why git did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The program cannot be run.
    #[error("run git {what}: {source}")]
    Run {
        /// The subcommand.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// It ran and failed.
    #[error("run git {what}: {message}")]
    Failed {
        /// The subcommand.
        what: &'static str,
        /// What it printed, shortened.
        message: String,
    },
    /// The commit is not named in full.
    #[error("use {0:?} as a commit: expected all 40 or 64 hexadecimal digits")]
    NotACommit(String),
    /// The repository's name could be taken for an option or runs a program.
    #[error("use {0:?} as a repository: expected a directory or an http(s), ssh or git address")]
    NotARepository(String),
    /// The repository lacks the commit.
    #[error("find commit {commit} in {repository}")]
    NoCommit {
        /// The repository.
        repository: String,
        /// The commit.
        commit: String,
    },
    /// A path in a commit is none that a tree may hold.
    #[error("read commit {commit}: {source}")]
    BadPath {
        /// The commit.
        commit: String,
        /// Why.
        source: temper_core::tree::InvalidTreePath,
    },
    /// The commit's files are larger than they may be.
    #[error("read commit {commit}: more than {limit} {what}")]
    TooLarge {
        /// The commit.
        commit: String,
        /// `files`, `bytes`.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
}

/// The files of one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitFiles {
    /// The files.
    pub tree: Tree,
    /// Submodules, whose files are not in the repository.
    pub submodules: Vec<TreePath>,
}

impl Git {
    /// Finds `git` in the directories of a search path such as `PATH` holds.
    pub fn find(search_path: &OsStr) -> Option<Git> {
        crate::python::find_program("git", search_path).map(|program| Git {
            program,
            search_path: search_path.to_owned(),
        })
    }

    /// A command in `directory` with no configuration but the repository's own, no prompts, no
    /// hooks, no replaced objects and no fetching on demand.
    pub(crate) fn command(&self, directory: &Path) -> Command {
        let mut command = Command::new(&self.program);
        self.isolate(&mut command, directory);
        for setting in [
            "safe.directory=*",
            "core.hooksPath=/dev/null",
            "core.fsmonitor=false",
            "core.protectNTFS=false",
            "core.protectHFS=false",
            "gc.auto=0",
            "maintenance.auto=false",
            "advice.detachedHead=false",
        ] {
            command.arg("-c").arg(setting);
        }
        command
    }

    /// The environment of [`Git::command`] for another program that runs git.
    pub(crate) fn isolate(&self, command: &mut Command, directory: &Path) {
        command
            .current_dir(directory)
            .env_clear()
            .env("PATH", &self.search_path)
            .env("HOME", "/nonexistent")
            .env("LC_ALL", "C")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            .env("GIT_OPTIONAL_LOCKS", "0")
            .stdin(Stdio::null());
    }

    /// Runs to the end and returns what was printed.
    pub(crate) fn run(
        &self,
        what: &'static str,
        command: &mut Command,
    ) -> Result<Vec<u8>, GitError> {
        let output = command
            .output()
            .map_err(|source| GitError::Run { what, source })?;
        if output.status.success() {
            Ok(output.stdout)
        } else {
            Err(GitError::Failed {
                what,
                message: last_words(&output.stderr),
            })
        }
    }

    /// Turns a directory into a repository of one commit that holds every file in it, ignored ones
    /// included, byte for byte. Author and date are fixed, so equal files give an equal commit id,
    /// which is returned. The directory must not be a repository yet.
    pub fn single_commit(&self, directory: &Path) -> Result<String, GitError> {
        let git = || self.command(directory);
        self.run(
            "init",
            git().args([
                "init",
                "--quiet",
                "--template=",
                "--initial-branch=main",
                "--object-format=sha1",
            ]),
        )?;
        let write = |name: &str, content: &str| -> Result<(), GitError> {
            let path = directory.join(".git").join(name);
            path.parent()
                .map_or(Ok(()), std::fs::create_dir_all)
                .and_then(|()| std::fs::write(path, content))
                .map_err(|source| GitError::Run {
                    what: "init",
                    source,
                })
        };
        // Attributes of the repository itself must not rewrite line ends or expand keywords: what
        // is committed is what lies there, or the start would differ from its own commit.
        write(
            "info/attributes",
            "* -text -filter -ident -working-tree-encoding\n",
        )?;
        for (name, value) in [
            ("user.name", "agent"),
            ("user.email", "agent@localhost"),
            ("gc.auto", "0"),
        ] {
            self.run("config", git().args(["config", name, value]))?;
        }
        self.run("add", git().args(["add", "--all", "--force", "."]))?;
        self.run(
            "commit",
            git()
                .args(["-c", "core.logAllRefUpdates=false"])
                .args(["commit", "--quiet", "--allow-empty", "--no-verify"])
                .args(["--no-gpg-sign", "--cleanup=verbatim", "--message=start"])
                .envs(FIXED_IDENTITY),
        )?;
        self.run("repack", git().args(["repack", "-a", "-d", "--quiet"]))?;
        let _ = std::fs::remove_file(directory.join(".git/COMMIT_EDITMSG"));
        let id = self.run("rev-parse", git().args(["rev-parse", "HEAD"]))?;
        Ok(String::from_utf8_lossy(&id).trim().to_owned())
    }

    /// Reads the files of one commit. `repository` is a directory on this machine or an address,
    /// from which that commit alone is fetched.
    pub fn read_commit(
        &self,
        repository: &str,
        commit: &str,
        limits: &TreeLimits,
    ) -> Result<CommitFiles, GitError> {
        if !matches!(commit.len(), 40 | 64) || !commit.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(GitError::NotACommit(commit.to_owned()));
        }
        if repository.starts_with('-') {
            return Err(GitError::NotARepository(repository.to_owned()));
        }
        if Path::new(repository).is_dir() {
            return self.read_local_commit(Path::new(repository), commit, limits);
        }
        let allowed = ["https://", "http://", "ssh://", "git://"];
        if !allowed.iter().any(|scheme| repository.starts_with(scheme)) {
            return Err(GitError::NotARepository(repository.to_owned()));
        }
        let folder = tempfile::tempdir().map_err(|source| GitError::Run {
            what: "fetch",
            source,
        })?;
        self.run(
            "init",
            self.command(folder.path())
                .args(["init", "--quiet", "--bare", "--template="]),
        )?;
        // Certificates, proxies and credentials of the user are needed here, so this one command
        // keeps the user's environment and configuration. The address is the task's, and the
        // protocols that run programs are off.
        let mut fetch = Command::new(&self.program);
        fetch
            .current_dir(folder.path())
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ALLOW_PROTOCOL", "https:http:ssh:git")
            .env("GIT_DIR", folder.path())
            .env_remove("GIT_WORK_TREE")
            .env_remove("GIT_INDEX_FILE")
            .env_remove("GIT_OBJECT_DIRECTORY")
            .env_remove("GIT_ALTERNATE_OBJECT_DIRECTORIES")
            .args(["fetch", "--quiet", "--depth=1", "--no-tags", "--"])
            .args([repository, commit])
            .stdin(Stdio::null());
        self.run("fetch", &mut fetch)?;
        self.read_local_commit(folder.path(), commit, limits)
    }

    /// The full id of the commit that `revision` (a branch, a tag, an abbreviated id, `HEAD`) names
    /// in a repository on this machine; `None` when there is none, or no repository.
    pub fn resolve(&self, repository: &Path, revision: &str) -> Option<String> {
        if revision.starts_with('-') {
            return None;
        }
        let id = self
            .run(
                "rev-parse",
                self.command(repository)
                    .args(["rev-parse", "--verify", "--quiet"])
                    .arg(format!("{revision}^{{commit}}")),
            )
            .ok()?;
        Some(String::from_utf8_lossy(&id).trim().to_owned())
    }

    /// The files of a work tree that are tracked or would be: not the ignored ones. `None` when
    /// `directory` is not the top of a repository.
    pub fn work_files(&self, directory: &Path) -> Result<Option<Vec<TreePath>>, GitError> {
        if directory.join(".git").symlink_metadata().is_err() {
            return Ok(None);
        }
        let listing = self.run(
            "ls-files",
            self.command(directory).args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ]),
        )?;
        let mut files: Vec<TreePath> = listing
            .split(|byte| *byte == 0)
            .filter(|path| !path.is_empty())
            .filter_map(|path| TreePath::new(path).ok())
            .collect();
        files.sort();
        files.dedup();
        Ok(Some(files))
    }

    /// Copies the history of the repository at an address (or of a directory) into the bare
    /// repository `into`, which must not exist.
    pub fn clone_bare(&self, repository: &str, into: &Path) -> Result<(), GitError> {
        let local = Path::new(repository).is_dir();
        let allowed = ["https://", "http://", "ssh://", "git://"];
        if repository.starts_with('-')
            || !(local || allowed.iter().any(|scheme| repository.starts_with(scheme)))
        {
            return Err(GitError::NotARepository(repository.to_owned()));
        }
        let mut clone = self.asking(local);
        clone
            .args(["clone", "--quiet", "--bare", "--template="])
            .args(["-c", "core.hooksPath=/dev/null", "--", repository])
            .arg(into);
        self.run("clone", &mut clone).map(drop)
    }

    /// Brings the branches and tags of a bare repository that [`Git::clone_bare`] made up to those
    /// of where it was made from. What is gone there is gone here.
    pub fn renew(&self, bare: &Path, repository: &str) -> Result<(), GitError> {
        let mut fetch = self.asking(Path::new(repository).is_dir());
        fetch
            .arg("--git-dir")
            .arg(bare)
            .args(["-c", "gc.auto=0", "-c", "maintenance.auto=false"])
            .args(["-c", "core.hooksPath=/dev/null"])
            .args(["fetch", "--quiet", "--prune", "--force"])
            .args(["--", repository])
            .args(["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]);
        self.run("fetch", &mut fetch).map(drop)
    }

    /// A command that asks another repository. As in [`Git::read_commit`] certificates, proxies and
    /// credentials of the user are needed, and protocols that run programs are off.
    fn asking(&self, local: bool) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("GIT_TERMINAL_PROMPT", "0")
            .env(
                "GIT_ALLOW_PROTOCOL",
                if local { "file" } else { "https:http:ssh:git" },
            )
            .env_remove("GIT_DIR")
            .env_remove("GIT_WORK_TREE")
            .env_remove("GIT_INDEX_FILE")
            .env_remove("GIT_OBJECT_DIRECTORY")
            .env_remove("GIT_ALTERNATE_OBJECT_DIRECTORIES")
            .stdin(Stdio::null());
        command
    }

    fn read_local_commit(
        &self,
        repository: &Path,
        commit: &str,
        limits: &TreeLimits,
    ) -> Result<CommitFiles, GitError> {
        let found = self.run(
            "rev-parse",
            self.command(repository)
                .args(["rev-parse", "--verify", "--quiet"])
                .arg(format!("{commit}^{{commit}}")),
        );
        if !found.is_ok_and(|id| id.trim_ascii().eq_ignore_ascii_case(commit.as_bytes())) {
            return Err(GitError::NoCommit {
                repository: repository.display().to_string(),
                commit: commit.to_owned(),
            });
        }
        let listing = self.run(
            "ls-tree",
            self.command(repository)
                .args(["ls-tree", "-r", "-z", "-l", "--full-tree", commit]),
        )?;
        let mut submodules = Vec::new();
        let mut blobs = Vec::new();
        let mut total = 0u64;
        for record in listing.split(|byte| *byte == 0).filter(|r| !r.is_empty()) {
            let unreadable = || GitError::Failed {
                what: "ls-tree",
                message: format!("unexpected line {:?}", String::from_utf8_lossy(record)),
            };
            let tab = record
                .iter()
                .position(|byte| *byte == b'\t')
                .ok_or_else(unreadable)?;
            let path = TreePath::new(&record[tab + 1..]).map_err(|source| GitError::BadPath {
                commit: commit.to_owned(),
                source,
            })?;
            let head = std::str::from_utf8(&record[..tab]).map_err(|_| unreadable())?;
            let fields: Vec<_> = head.split_ascii_whitespace().collect();
            match fields.as_slice() {
                ["160000", ..] => submodules.push(path),
                [mode, "blob", id, size] => {
                    total += size.parse::<u64>().map_err(|_| unreadable())?;
                    blobs.push((path, (*mode).to_owned(), (*id).to_owned()));
                }
                _ => return Err(unreadable()),
            }
        }
        let too_large = |what, limit| GitError::TooLarge {
            commit: commit.to_owned(),
            what,
            limit,
        };
        if blobs.len() > limits.max_entries {
            return Err(too_large("files", limits.max_entries as u64));
        }
        if total > limits.max_total_bytes {
            return Err(too_large("bytes", limits.max_total_bytes));
        }
        let ids: Vec<_> = blobs.iter().map(|(_, _, id)| id.as_str()).collect();
        let contents = self.read_blobs(repository, &ids)?;
        let tree = blobs
            .into_iter()
            .zip(contents)
            .map(|((path, mode, _), content)| {
                let entry = if mode == "120000" {
                    Entry::Symlink { target: content }
                } else {
                    Entry::File {
                        content,
                        executable: mode == "100755",
                    }
                };
                (path, entry)
            })
            .collect();
        Ok(CommitFiles { tree, submodules })
    }

    fn read_blobs(&self, repository: &Path, ids: &[&str]) -> Result<Vec<Vec<u8>>, GitError> {
        let what = "cat-file";
        let run = |source| GitError::Run { what, source };
        let mut child = self
            .command(repository)
            .args(["cat-file", "--batch"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(run)?;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(run(io::ErrorKind::BrokenPipe.into()));
        };
        let result = std::thread::scope(|scope| {
            // Questions and answers go through two pipes, so one side must not wait for the other.
            scope.spawn(move || {
                for id in ids {
                    if writeln!(input, "{id}").is_err() {
                        return;
                    }
                }
            });
            read_batch(BufReader::new(output), ids)
        });
        let status = child.wait().map_err(run)?;
        match result {
            Ok(contents) if status.success() => Ok(contents),
            Ok(_) => Err(GitError::Failed {
                what,
                message: status.to_string(),
            }),
            Err(source) => Err(run(source)),
        }
    }
}

/// Who made the commits that Temper makes, and when: always the same, so that ids are, too.
pub(crate) const FIXED_IDENTITY: [(&str, &str); 6] = [
    ("GIT_AUTHOR_NAME", "temper"),
    ("GIT_AUTHOR_EMAIL", "temper@localhost"),
    ("GIT_AUTHOR_DATE", "946684800 +0000"),
    ("GIT_COMMITTER_NAME", "temper"),
    ("GIT_COMMITTER_EMAIL", "temper@localhost"),
    ("GIT_COMMITTER_DATE", "946684800 +0000"),
];

fn read_batch(mut output: impl BufRead, ids: &[&str]) -> io::Result<Vec<Vec<u8>>> {
    ids.iter()
        .map(|id| {
            let mut head = String::new();
            output.read_line(&mut head)?;
            let size = match head.split_ascii_whitespace().collect::<Vec<_>>().as_slice() {
                [_, "blob", size] => size.parse::<u64>().ok(),
                _ => None,
            };
            let size = size.ok_or_else(|| io::Error::other(format!("object {id} is not there")))?;
            let mut content = Vec::new();
            output.by_ref().take(size).read_to_end(&mut content)?;
            let mut newline = [0];
            output.read_exact(&mut newline)?;
            Ok(content)
        })
        .collect()
}

/// The end of what a program complained, on one line.
pub(crate) fn last_words(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let text = text.trim().replace('\n', "; ");
    let start = text
        .char_indices()
        .rev()
        .nth(499)
        .map_or(0, |(index, _)| index);
    text[start..].to_owned()
}
