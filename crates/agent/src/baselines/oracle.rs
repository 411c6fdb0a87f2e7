//! The task's own fix, delivered through the loop.
//!
//! It is no agent and never an arm of a comparison: it proves that a task can be solved, and that
//! a right answer survives the sandbox, the collection of the patch and the grading.
//!
//! A patch is applied here, against the prepared start, and only the bytes that change are sent,
//! in commands that need a shell and the core utilities and neither git nor Python. A start that
//! lies inside an image is not visible here; there the patch itself is sent and git applies it.

use std::{
    io::Read,
    path::{Component, Path, PathBuf},
};

use base64::Engine;
use temper_core::{Entry, Patch, PreparedTask, TreePath, patch, task::Oracle, tree::Changes};

use super::{quoted, reply, submit};
use crate::model::{Model, ModelError, ModelErrorClass, ModelFactory, ModelReply, ModelRequest};

/// Makes agents that deliver known fixes.
#[derive(Clone, Copy, Debug, Default)]
pub struct OracleFactory;

/// Commands stay well below the 128 KiB that Linux allows for one argument.
const CHUNK_BYTES: usize = 60_000;

/// No source file of a repair is larger.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Files of a solution directory beyond this are not read.
const MAX_SOLUTION_FILES: usize = 1_000;

struct Delivery {
    commands: std::vec::IntoIter<String>,
}

impl Model for Delivery {
    fn query(&mut self, request: &ModelRequest<'_>) -> Result<ModelReply, ModelError> {
        Ok(match self.commands.next() {
            Some(command) => reply(request, "I apply the task's known fix.", &command),
            None => submit(request, "The known fix is in place, so I submit."),
        })
    }
}

impl ModelFactory for OracleFactory {
    fn describe(&self) -> serde_json::Value {
        serde_json::json!({
            "kind": "oracle",
            "language_model": false,
            "description": "applies the fix that the task comes with; not an agent",
        })
    }

    fn is_language_model(&self) -> bool {
        false
    }

    fn open(&self, task: &PreparedTask, _seed: u64) -> Result<Box<dyn Model>, ModelError> {
        let commands = match &task.task.oracle {
            None => return Err(refused("the task has no known fix".into())),
            Some(Oracle::Patch { patch }) => patch_commands(task, patch)?,
            Some(Oracle::ReversePatch { patch }) => {
                let reversed = patch::reverse(patch).map_err(|e| refused(e.to_string()))?;
                patch_commands(task, &reversed)?
            }
            Some(Oracle::Script {
                directory,
                environment,
            }) => script_commands(directory, environment)
                .map_err(|e| refused(format!("read the solution {}: {e}", directory.display())))?,
        };
        Ok(Box::new(Delivery {
            commands: commands.into_iter(),
        }))
    }
}

fn refused(message: String) -> ModelError {
    ModelError {
        class: ModelErrorClass::BadRequest,
        message,
        attempts: Vec::new(),
    }
}

fn patch_commands(task: &PreparedTask, patch: &Patch) -> Result<Vec<String>, ModelError> {
    let Some(start) = &task.start_tree else {
        let file = scratch("patch");
        let mut commands = joined(write(&file, &patch.0));
        commands.push(format!("git apply --whitespace=nowarn {file} && rm {file}"));
        return Ok(commands);
    };
    let mut read = |path: &TreePath| read_entry(start, path);
    let applied = patch::apply(patch, &mut read).map_err(|e| refused(e.to_string()))?;
    Ok(change_commands(&applied.changes, &mut read))
}

/// Reads one entry of a tree on disk without following links, not even in the middle of the path.
fn read_entry(root: &Path, path: &TreePath) -> Option<Entry> {
    let mut place = PathBuf::from(root);
    let mut components = path.as_os_path().components().peekable();
    while let Some(Component::Normal(name)) = components.next() {
        place.push(name);
        let metadata = place.symlink_metadata().ok()?;
        if components.peek().is_some() {
            if !metadata.is_dir() {
                return None;
            }
        } else if metadata.is_symlink() {
            use std::os::unix::ffi::OsStringExt;
            let target = std::fs::read_link(&place).ok()?.into_os_string().into_vec();
            return Some(Entry::Symlink { target });
        } else if metadata.is_file() && metadata.len() <= MAX_FILE_BYTES {
            use std::os::unix::fs::PermissionsExt;
            let mut content = Vec::new();
            let file = std::fs::File::open(&place).ok()?;
            file.take(MAX_FILE_BYTES).read_to_end(&mut content).ok()?;
            return Some(Entry::File {
                content,
                executable: metadata.permissions().mode() & 0o100 != 0,
            });
        }
    }
    None
}

fn change_commands(
    changes: &Changes,
    read: &mut dyn FnMut(&TreePath) -> Option<Entry>,
) -> Vec<String> {
    let mut commands = Vec::new();
    // Removals come first: a file may give way to a directory of the same name.
    let (removed, written): (Vec<_>, Vec<_>) = changes.iter().partition(|(_, e)| e.is_none());
    for (path, after) in removed.into_iter().chain(written) {
        let name = quoted(path.as_bytes());
        match after {
            None => commands.push(format!("rm -f -- {name}")),
            Some(Entry::Symlink { target }) => commands.push(format!(
                "mkdir -p -- \"$(dirname -- {name})\" && ln -sfn -- {} {name}",
                quoted(target)
            )),
            Some(Entry::File {
                content,
                executable,
            }) => {
                match read(path) {
                    Some(Entry::File {
                        content: before, ..
                    }) => commands.extend(splice(&name, &before, content)),
                    before => {
                        // Writing through a link would change what it points at.
                        if before.is_some() {
                            commands.push(format!("rm -f -- {name}"));
                        }
                        commands.push(format!("mkdir -p -- \"$(dirname -- {name})\""));
                        commands.extend(write(&name, content));
                    }
                }
                let mode = if *executable { "+x" } else { "-x" };
                commands.push(format!("chmod {mode} -- {name}"));
            }
        }
    }
    joined(commands)
}

/// Replaces the part of a file that differs. Writing in place keeps the file's mode.
fn splice(name: &str, before: &[u8], after: &[u8]) -> Vec<String> {
    let head = before.iter().zip(after).take_while(|(a, b)| a == b).count();
    let tail = before[head..]
        .iter()
        .rev()
        .zip(after[head..].iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    let middle = &after[head..after.len() - tail];
    let (part, whole) = (scratch("part"), scratch("whole"));
    let mut commands = write(&part, middle);
    let rest = before.len() - tail + 1;
    commands.push(format!(
        "{{ head -c {head} < {name}; cat {part}; tail -c +{rest} < {name}; }} > {whole} \
         && cat {whole} > {name} && rm {part} {whole}"
    ));
    commands
}

/// A file outside the work tree, as a word of the shell.
fn scratch(extension: &str) -> String {
    format!("\"${{TMPDIR:-/tmp}}/known-fix.{extension}\"")
}

/// Writes a whole file, piece by piece.
fn write(name: &str, content: &[u8]) -> Vec<String> {
    let engine = base64::engine::general_purpose::STANDARD;
    let mut commands = vec![format!(": > {name}")];
    for chunk in content.chunks(CHUNK_BYTES / 4 * 3) {
        let mut lines = String::new();
        for line in engine.encode(chunk).as_bytes().chunks(76) {
            lines.push_str(&String::from_utf8_lossy(line));
            lines.push('\n');
        }
        commands.push(format!("base64 -d >> {name} <<'END'\n{lines}END"));
    }
    commands
}

/// Joins small commands into few, each stopping at its first failure.
fn joined(commands: Vec<String>) -> Vec<String> {
    let mut joined: Vec<String> = Vec::new();
    for command in commands {
        match joined.last_mut() {
            Some(last) if last.len() + command.len() < CHUNK_BYTES => {
                last.push('\n');
                last.push_str(&command);
            }
            _ => joined.push(format!("set -e\n{command}")),
        }
    }
    joined
}

fn script_commands(
    directory: &Path,
    environment: &std::collections::BTreeMap<String, String>,
) -> std::io::Result<Vec<String>> {
    use std::os::unix::ffi::OsStrExt;
    let mut files = Vec::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(next) = pending.pop() {
        for entry in std::fs::read_dir(next)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                pending.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
        if files.len() + pending.len() > MAX_SOLUTION_FILES {
            return Err(std::io::Error::other("it holds too many files"));
        }
    }
    files.sort();
    let mut commands = Vec::new();
    for file in &files {
        let relative = file.strip_prefix(directory).unwrap_or(file);
        let mut target = b"/solution/".to_vec();
        target.extend_from_slice(relative.as_os_str().as_bytes());
        let name = quoted(&target);
        let mut content = Vec::new();
        std::fs::File::open(file)?
            .take(MAX_FILE_BYTES)
            .read_to_end(&mut content)?;
        commands.push(format!("mkdir -p -- \"$(dirname -- {name})\""));
        commands.extend(write(&name, &content));
        commands.push(format!("chmod +x -- {name}"));
    }
    let mut run = String::new();
    for (name, value) in environment {
        run.push_str(&quoted(format!("{name}={value}").as_bytes()));
        run.push(' ');
    }
    let mut commands = joined(commands);
    commands.push(format!("env {run}bash /solution/solve.sh"));
    Ok(commands)
}
