//! The history of a repository on this machine: what each commit changed.
//!
//! Only plumbing is used (`rev-list`, `diff-tree` without patches, `cat-file`), which runs no
//! program that a repository's configuration or attributes could name; `git log` would.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    path::Path,
    process::Stdio,
};

use temper_core::TreePath;

use super::{Git, GitError};

/// The names of all files of a commit may have this many bytes; a larger commit is no fix.
const MAX_LISTING_BYTES: u64 = 256 << 20;
const MAX_MESSAGE_BYTES: u64 = 64 << 10;

/// How much of a history is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLimits {
    /// Commits, the newest first.
    pub max_commits: usize,
    /// A commit that changes more files is left out.
    pub max_files: usize,
    /// A commit that changes a file of more bytes is left out.
    pub max_file_bytes: u64,
}

impl Default for LogLimits {
    fn default() -> Self {
        LogLimits {
            max_commits: 2000,
            max_files: 20,
            max_file_bytes: 512 << 10,
        }
    }
}

/// What one commit changed, relative to its only parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitChanges {
    /// The commit.
    pub commit: String,
    /// Its whole message. Bytes that are no text are shown as U+FFFD.
    pub message: String,
    /// Its regular files that were changed, added or removed, in order of their paths.
    pub files: Vec<FileChange>,
}

/// One file of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileChange {
    /// The file.
    pub path: TreePath,
    /// Its content before; `None` if it was added.
    pub before: Option<Vec<u8>>,
    /// Its content after; `None` if it was removed.
    pub after: Option<Vec<u8>>,
}

struct Listed {
    commit: String,
    files: Vec<(TreePath, Option<String>, Option<String>)>,
}

impl Git {
    /// What the commits that lead to `head` (a full commit id) changed, the newest first. Merges,
    /// commits without a parent, and commits beyond the limits or with a submodule, a link or an
    /// unusable path are left out.
    pub fn changes(
        &self,
        repository: &Path,
        head: &str,
        limits: &LogLimits,
    ) -> Result<Vec<CommitChanges>, GitError> {
        if !matches!(head.len(), 40 | 64) || !head.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(GitError::NotACommit(head.to_owned()));
        }
        let count = format!("--max-count={}", limits.max_commits);
        let commits = self.run(
            "rev-list",
            self.command(repository)
                .args(["rev-list", "--topo-order", "--no-merges", "--min-parents=1"])
                .args([count.as_str(), head, "--"]),
        )?;
        let listing = self.feed(
            "diff-tree",
            repository,
            &[
                "diff-tree",
                "--stdin",
                "-r",
                "-z",
                "--raw",
                "--no-renames",
                "--no-abbrev",
            ],
            &commits,
        )?;
        let listed = parse(&listing, limits.max_files);
        let ids: Vec<&str> = listed
            .iter()
            .flat_map(|commit| {
                let files = commit.files.iter();
                files.flat_map(|(_, old, new)| [old.as_deref(), new.as_deref()])
            })
            .flatten()
            .collect();
        let mut contents = self
            .objects(repository, &ids, "blob", limits.max_file_bytes)?
            .into_iter();
        let names: Vec<&str> = listed.iter().map(|commit| commit.commit.as_str()).collect();
        let messages = self.objects(repository, &names, "commit", MAX_MESSAGE_BYTES)?;
        let mut found = Vec::new();
        for (commit, message) in listed.iter().zip(messages) {
            let mut is_whole = true;
            let mut files = Vec::new();
            for (path, old, new) in &commit.files {
                let mut take = |id: &Option<String>| {
                    let content = id.as_ref().map(|_| contents.next().flatten());
                    is_whole &= content != Some(None);
                    content.flatten()
                };
                files.push(FileChange {
                    path: path.clone(),
                    before: take(old),
                    after: take(new),
                });
            }
            if let (true, Some(message)) = (is_whole, message) {
                let text = String::from_utf8_lossy(&message);
                let message = text.split_once("\n\n").map_or("", |(_, message)| message);
                found.push(CommitChanges {
                    commit: commit.commit.clone(),
                    message: message.to_owned(),
                    files,
                });
            }
        }
        Ok(found)
    }

    /// Runs with an input, and reads a bounded output.
    fn feed(
        &self,
        what: &'static str,
        repository: &Path,
        arguments: &[&str],
        input: &[u8],
    ) -> Result<Vec<u8>, GitError> {
        self.talk(what, repository, arguments, input, |output| {
            let mut bytes = Vec::new();
            output.take(MAX_LISTING_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        })
    }

    /// The content of objects; `None` for one that is of another kind or larger than `max_bytes`.
    fn objects(
        &self,
        repository: &Path,
        ids: &[&str],
        kind: &str,
        max_bytes: u64,
    ) -> Result<Vec<Option<Vec<u8>>>, GitError> {
        let input: String = ids.iter().map(|id| format!("{id}\n")).collect();
        self.talk(
            "cat-file",
            repository,
            &["cat-file", "--batch"],
            input.as_bytes(),
            |mut output| {
                let mut read = |_: &&str| -> io::Result<Option<Vec<u8>>> {
                    let mut head = String::new();
                    output.by_ref().take(4096).read_line(&mut head)?;
                    let words: Vec<&str> = head.split_ascii_whitespace().collect();
                    let &[_, got, size] = words.as_slice() else {
                        return match words.last() {
                            Some(&"missing") => Ok(None),
                            _ => Err(io::Error::other("an object is not there")),
                        };
                    };
                    let size: u64 = size.parse().map_err(io::Error::other)?;
                    let mut body = output.by_ref().take(size);
                    let content = if got == kind && size <= max_bytes {
                        let mut content = Vec::new();
                        body.read_to_end(&mut content)?;
                        Some(content)
                    } else {
                        io::copy(&mut body, &mut io::sink())?;
                        None
                    };
                    output.read_exact(&mut [0])?;
                    Ok(content)
                };
                ids.iter().map(&mut read).collect()
            },
        )
    }

    fn talk<T>(
        &self,
        what: &'static str,
        repository: &Path,
        arguments: &[&str],
        input: &[u8],
        read: impl FnOnce(BufReader<std::process::ChildStdout>) -> io::Result<T>,
    ) -> Result<T, GitError> {
        let failed = |source| GitError::Run { what, source };
        let mut child = self
            .command(repository)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let (Some(mut questions), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        let result = std::thread::scope(|scope| {
            // Questions and answers go through two pipes, so one side must not wait for the other.
            scope.spawn(move || {
                let _ = questions.write_all(input);
            });
            read(BufReader::new(output))
        });
        let status = child.wait().map_err(failed)?;
        match result {
            Ok(answer) if status.success() => Ok(answer),
            Ok(_) => Err(GitError::Failed {
                what,
                message: status.to_string(),
            }),
            Err(source) => Err(failed(source)),
        }
    }
}

/// Reads `COMMIT\0:MODE MODE ID ID STATUS\0PATH\0…COMMIT\0…`.
fn parse(listing: &[u8], max_files: usize) -> Vec<Listed> {
    let mut found: Vec<Listed> = Vec::new();
    // Whether the commit at the end is one that is left out.
    let mut is_refused = false;
    let mut parts = listing.split(|byte| *byte == 0);
    while let Some(part) = parts.next() {
        let Some(raw) = part.strip_prefix(b":") else {
            if is_refused {
                found.pop();
            }
            is_refused = false;
            let commit = String::from_utf8_lossy(part).trim().to_owned();
            if !commit.is_empty() {
                found.push(Listed {
                    commit,
                    files: Vec::new(),
                });
            }
            continue;
        };
        let path = parts.next().unwrap_or_default();
        let text = String::from_utf8_lossy(raw);
        let fields: Vec<&str> = text.split(' ').collect();
        let (&[old_mode, new_mode, old, new, _], Some(commit)) =
            (fields.as_slice(), found.last_mut())
        else {
            is_refused = true;
            continue;
        };
        let is_file = |mode: &str| matches!(mode, "000000" | "100644" | "100755" | "100664");
        match TreePath::new(path) {
            Ok(path)
                if is_file(old_mode) && is_file(new_mode) && commit.files.len() < max_files =>
            {
                let id = |mode: &str, id: &str| (mode != "000000").then(|| id.to_owned());
                let entry = (path, id(old_mode, old), id(new_mode, new));
                commit.files.push(entry);
            }
            _ => is_refused = true,
        }
    }
    if is_refused {
        found.pop();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(directory: &Path, arguments: &[&str]) -> String {
        let output = std::process::Command::new("git")
            .args(["-c", "user.name=t", "-c", "user.email=t@t"])
            .args(arguments)
            .current_dir(directory)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("HOME", directory)
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    #[test]
    fn a_history_is_read_and_runs_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let put = |name: &str, text: &str| std::fs::write(root.join(name), text).unwrap();
        git(root, &["init", "-q", "-b", "main"]);
        put("a.py", "one\n");
        git(root, &["add", "-A"]);
        git(root, &["commit", "-qm", "first"]);
        put("a.py", "two\r\n");
        put("new é.py", "new\n");
        git(root, &["add", "-A"]);
        git(root, &["commit", "-qm", "second\n\nwith a body"]);
        std::os::unix::fs::symlink("a.py", root.join("link")).unwrap();
        git(root, &["add", "-A"]);
        git(root, &["commit", "-qm", "a link"]);
        git(root, &["rm", "-q", "new é.py"]);
        git(root, &["commit", "-qm", "fourth"]);
        // Whatever the configuration asks for is not done.
        let planted = root.join("planted");
        let program = root.join("program");
        std::fs::write(
            &program,
            format!("#!/bin/sh\ntouch {}\n", planted.display()),
        )
        .unwrap();
        {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        for name in [
            "diff.external",
            "core.pager",
            "core.fsmonitor",
            "gpg.program",
            "core.sshCommand",
            "diff.x.textconv",
            "core.alternateRefsCommand",
            "filter.x.smudge",
        ] {
            git(root, &["config", name, program.to_str().unwrap()]);
        }
        git(root, &["config", "log.showSignature", "true"]);
        std::fs::write(root.join(".git/info/attributes"), "* diff=x filter=x\n").unwrap();
        let head = git(root, &["rev-parse", "HEAD"]);
        let found = Git::find(&std::env::var_os("PATH").unwrap()).unwrap();
        let changes = found.changes(root, &head, &LogLimits::default()).unwrap();
        let messages: Vec<_> = changes
            .iter()
            .map(|change| change.message.as_str())
            .collect();
        assert_eq!(messages, ["fourth\n", "second\n\nwith a body\n"]);
        assert_eq!(
            changes[1].files,
            [
                FileChange {
                    path: "a.py".parse().unwrap(),
                    before: Some(b"one\n".to_vec()),
                    after: Some(b"two\r\n".to_vec()),
                },
                FileChange {
                    path: "new é.py".parse().unwrap(),
                    before: None,
                    after: Some(b"new\n".to_vec()),
                },
            ]
        );
        assert_eq!(changes[0].files[0].after, None);
        assert!(!planted.exists());
        let few = LogLimits {
            max_files: 1,
            ..LogLimits::default()
        };
        assert_eq!(found.changes(root, &head, &few).unwrap().len(), 1);
        let small = LogLimits {
            max_file_bytes: 3,
            ..LogLimits::default()
        };
        assert_eq!(found.changes(root, &head, &small).unwrap(), []);
        assert!(found.changes(root, "HEAD", &few).is_err());
        assert!(found.changes(root, &"0".repeat(40), &few).is_err());
    }
}
