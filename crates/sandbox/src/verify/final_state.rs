//! The state that is graded: the task's start, plus the submission, minus what it may not change.

use std::{
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use temper_core::{
    Bytes, Entry, Failure, Patch, TreePath, patch, task::InjectedFile, tree::Changes,
};

use super::{
    GradeRequest, Submission,
    protected::{Filtered, Protected},
    random_hex, sandbox_spec, verifier_failure,
};
use crate::{Command, ExitStatus, Sandbox, backend::Execution};

/// Why there is no state to grade.
#[derive(Debug)]
pub enum NoState {
    /// The submission changes nothing.
    Empty,
    /// It cannot be applied, with the place.
    Invalid(String),
    /// The infrastructure broke.
    Broken(Failure),
}

/// Applies the submission to the start and takes out the protected paths.
pub fn resolve(request: &GradeRequest<'_>, protected: &Protected<'_>) -> Result<Filtered, NoState> {
    let mut start = Start::open(request)?;
    let (changes, notes) = match request.submission {
        Submission::Start => return Ok(Filtered::default()),
        Submission::Changes(changes) => (changes.clone(), Vec::new()),
        Submission::Patch(patch) => start.apply(patch)?,
    };
    if changes.is_empty() {
        return Err(NoState::Empty);
    }
    let mut filtered = protected.filter(&changes, &mut |path| start.read(path));
    start.check()?;
    filtered.notes.splice(0..0, notes);
    Ok(filtered)
}

/// Applies a patch to the task's start; also says what had to be mended.
pub fn apply(request: &GradeRequest<'_>, patch: &Patch) -> Result<(Changes, Vec<String>), NoState> {
    Start::open(request)?.apply(patch)
}

/// Where the start's files are read.
enum Start {
    Directory(PathBuf),
    Image {
        sandbox: Box<dyn Sandbox>,
        work_tree: String,
        failure: Option<Failure>,
    },
}

/// No source file is larger; a larger one cannot be patched.
const MAX_FILE_BYTES: u64 = 256 << 20;

impl Start {
    fn open(request: &GradeRequest<'_>) -> Result<Self, NoState> {
        if let Some(root) = &request.task.start_tree {
            return Ok(Start::Directory(root.clone()));
        }
        let mut sandbox = request
            .backend
            .start(&sandbox_spec(request, "start"))
            .map_err(|error| NoState::Broken(error.failure()))?;
        set_up(request, sandbox.as_mut()).map_err(NoState::Broken)?;
        Ok(Start::Image {
            sandbox,
            work_tree: request.task.work_tree.clone(),
            failure: None,
        })
    }

    fn apply(&mut self, patch: &Patch) -> Result<(Changes, Vec<String>), NoState> {
        if patch.is_empty() {
            return Err(NoState::Empty);
        }
        let applied = patch::apply(patch, &mut |path| self.read(path));
        self.check()?;
        let applied = applied.map_err(|error| NoState::Invalid(error.to_string()))?;
        Ok((applied.changes, applied.notes))
    }

    fn read(&mut self, path: &TreePath) -> Option<Entry> {
        match self {
            Start::Directory(root) => read_entry(root, path),
            Start::Image {
                sandbox,
                work_tree,
                failure,
            } => match read_in_sandbox(sandbox.as_mut(), work_tree, path) {
                Ok(entry) => entry,
                Err(error) => {
                    failure.get_or_insert(error);
                    None
                }
            },
        }
    }

    fn check(&mut self) -> Result<(), NoState> {
        match self {
            Start::Image { failure, .. } => failure
                .take()
                .map_or(Ok(()), |failure| Err(NoState::Broken(failure))),
            Start::Directory(_) => Ok(()),
        }
    }
}

/// What a directory on this machine holds at a path. No link is followed, at no component.
pub fn read_entry(root: &Path, path: &TreePath) -> Option<Entry> {
    let mut place = root.to_owned();
    let mut parts = path.as_bytes().split(|byte| *byte == b'/').peekable();
    while let Some(part) = parts.next() {
        place.push(std::ffi::OsStr::from_bytes(part));
        let metadata = std::fs::symlink_metadata(&place).ok()?;
        if parts.peek().is_some() {
            if !metadata.is_dir() {
                return None;
            }
        } else if metadata.is_symlink() {
            let target = std::fs::read_link(&place).ok()?;
            return Some(Entry::Symlink {
                target: target.as_os_str().as_bytes().to_vec(),
            });
        } else if metadata.is_file() && metadata.len() <= MAX_FILE_BYTES {
            return Some(Entry::File {
                content: std::fs::read(&place).ok()?,
                executable: metadata.permissions().mode() & 0o100 != 0,
            });
        }
    }
    None
}

const DESCRIBE: &str = r#"set -e
for part in "${ancestors[@]}"; do if [ -L "$part" ] || ! [ -d "$part" ]; then exit 0; fi; done
if [ -L "$path" ]; then printf l; readlink -n -- "$path"
elif [ -x "$path" ] && [ -f "$path" ]; then printf x
elif [ -f "$path" ]; then printf f; fi"#;

fn read_in_sandbox(
    sandbox: &mut dyn Sandbox,
    work_tree: &str,
    path: &TreePath,
) -> Result<Option<Entry>, Failure> {
    let Ok(text) = std::str::from_utf8(path.as_bytes()) else {
        return Ok(None);
    };
    let ancestors: Vec<_> = text
        .match_indices('/')
        .map(|(end, _)| shell_quote(&format!("./{}", &text[..end])))
        .collect();
    let command = format!(
        "cd -- {} || exit 1\nancestors=({})\npath={}\n{DESCRIBE}",
        shell_quote(work_tree),
        ancestors.join(" "),
        shell_quote(&format!("./{text}")),
    );
    let execution = run(sandbox, command)?;
    let Some((kind, target)) = execution.output.split_first() else {
        return Ok(None);
    };
    if *kind == b'l' {
        return Ok(Some(Entry::Symlink {
            target: target.to_vec(),
        }));
    }
    let content = sandbox
        .read_file(&format!("{work_tree}/{text}"), MAX_FILE_BYTES)
        .map_err(|error| error.failure())?;
    Ok(content.map(|content| Entry::File {
        content,
        executable: *kind == b'x',
    }))
}

/// Runs the commands that the prepared task brings for a fresh sandbox.
pub fn set_up(request: &GradeRequest<'_>, sandbox: &mut dyn Sandbox) -> Result<(), Failure> {
    for command in &request.task.setup {
        run(sandbox, command.clone())?;
    }
    Ok(())
}

/// Runs one of our own commands, which must succeed.
fn run(sandbox: &mut dyn Sandbox, command: String) -> Result<Execution, Failure> {
    let execution = sandbox
        .exec(&Command::bash(command, Duration::from_secs(120)))
        .map_err(|error| error.failure())?;
    match execution.status {
        ExitStatus::Exited(0) => Ok(execution),
        status => Err(verifier_failure(
            "PrepareState",
            format!(
                "prepare the graded state: {status:?}: {}",
                excerpt(&execution.output)
            ),
            true,
        )),
    }
}

/// Paths may hold any byte and links must stay links, so the content travels in numbered files and
/// a script copies it into place. It refuses to go through a link or over a directory. Every verdict
/// pays for the programs it starts, so it starts none that has nothing to do: a file that is new has
/// the mode of the one it is copied from.
const LAY: &str = r#"set -e -o pipefail
umask 022
fail() { printf '%s: %s\n' "$1" "$2"; exit 65; }
check_parents() {
  local rest=$1 parent=.
  while [ "$rest" != "${rest#*/}" ]; do
    parent=$parent/${rest%%/*}; rest=${rest#*/}
    if [ -L "$parent" ]; then fail "$1" 'a parent is a symbolic link'; fi
    if [ -e "$parent" ] && ! [ -d "$parent" ]; then fail "$1" 'a parent is not a directory'; fi
  done
}
while IFS= read -r -d '' path; do
  check_parents "$path"
  if [ -d "$path" ] && ! [ -L "$path" ]; then continue; fi
  if [ -e "./$path" ] || [ -L "./$path" ]; then rm -f -- "./$path"; fi
  case $path in */*) rmdir -p --ignore-fail-on-non-empty -- "${path%/*}" 2>/dev/null || : ;; esac
done < "$from/removed"
while IFS= read -r -d '' kind && IFS= read -r -d '' path && IFS= read -r -d '' source; do
  check_parents "$path"
  while [ -d "$path" ] && ! [ -L "$path" ] && rmdir -- "./$path" 2>/dev/null; do :; done
  if [ -d "$path" ] && ! [ -L "$path" ]; then fail "$path" 'it is a directory'; fi
  if [ -e "./$path" ] || [ -L "./$path" ]; then rm -f -- "./$path"; fi
  case $path in */*) [ -d "${path%/*}" ] || mkdir -p -- "./${path%/*}" ;; esac
  case $kind in
    link) ln -s -- "$source" "./$path" ;;
    *) cp -- "$from/$source" "./$path" ;;
  esac
done < "$from/written"
"#;

/// Lays changes into a sandbox's work tree.
pub fn lay(sandbox: &mut dyn Sandbox, work_tree: &str, changes: &Changes) -> Result<(), NoState> {
    if changes.is_empty() {
        return Ok(());
    }
    let from = format!(
        "/tmp/temper-state-{}",
        random_hex(8).map_err(NoState::Broken)?
    );
    let mut files = Vec::new();
    let (mut removed, mut written) = (Vec::new(), Vec::new());
    // Children come before their directories in this order, so that emptied ones can go.
    for (path, entry) in changes.iter().rev() {
        if entry.is_none() {
            removed.extend_from_slice(path.as_bytes());
            removed.push(0);
        }
    }
    for (number, (path, entry)) in changes.iter().enumerate() {
        let (kind, source): (&[u8], Vec<u8>) = match entry {
            None => continue,
            Some(Entry::Symlink { target }) => (b"link", target.clone()),
            Some(Entry::File {
                content,
                executable,
            }) => {
                files.push(InjectedFile {
                    path: format!("{from}/{number}"),
                    content: Bytes(content.clone()),
                    executable: *executable,
                });
                (b"file", number.to_string().into_bytes())
            }
        };
        for field in [kind, path.as_bytes(), &source] {
            written.extend_from_slice(field);
            written.push(0);
        }
    }
    for (name, content) in [("removed", removed), ("written", written)] {
        files.push(InjectedFile {
            path: format!("{from}/{name}"),
            content: Bytes(content),
            executable: false,
        });
    }
    sandbox
        .write_files(&files)
        .map_err(|error| NoState::Broken(error.failure()))?;
    let command = format!(
        "cd -- {} || exit 1\nfrom={}\n{LAY}rm -rf -- \"$from\" 2>/dev/null || :\n",
        shell_quote(work_tree),
        shell_quote(&from),
    );
    let execution = sandbox
        .exec(&Command::bash(command, Duration::from_secs(300)))
        .map_err(|error| NoState::Broken(error.failure()))?;
    match execution.status {
        ExitStatus::Exited(0) => Ok(()),
        ExitStatus::Exited(65) => Err(NoState::Invalid(excerpt(&execution.output))),
        status => Err(NoState::Broken(verifier_failure(
            "PrepareState",
            format!(
                "lay out the graded state: {status:?}: {}",
                excerpt(&execution.output)
            ),
            true,
        ))),
    }
}

/// A word of a POSIX shell.
pub fn shell_quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The end of an output, in one line, for a message.
pub fn excerpt(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(&output[output.len().saturating_sub(400)..]);
    let lines: Vec<_> = text
        .lines()
        .map(|line| line.trim().replace(char::is_control, ""))
        .filter(|line| !line.is_empty())
        .collect();
    lines.join(" | ")
}
