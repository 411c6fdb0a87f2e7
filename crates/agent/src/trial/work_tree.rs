//! What a trial changed in its work tree, as a patch.

use std::time::Duration;

use temper_core::{Bytes, Patch, PreparedTask, TreePath, patch, tree::Changes};
use temper_sandbox::{Command, ExitStatus, Sandbox, SandboxError, verify};

/// What differs in the final work tree from the start. Files that running the code leaves behind
/// are not part of a fix.
pub(crate) fn work_tree_patch(
    prepared: &PreparedTask,
    sandbox: &mut dyn Sandbox,
) -> Result<Patch, SandboxError> {
    let Some(start) = &prepared.start_tree else {
        return image_patch(sandbox);
    };
    let changes: Changes = sandbox
        .changes()?
        .into_iter()
        .filter(|(path, _)| !is_by_product(path))
        .collect();
    Ok(patch::diff(
        &mut |path| verify::read_entry(start, path),
        &changes,
    ))
}

/// Inside an image the start is known only to its own git.
fn image_patch(sandbox: &mut dyn Sandbox) -> Result<Patch, SandboxError> {
    let path = "/tmp/temper-work-tree.patch";
    let execution = sandbox.exec(&Command::bash(
        format!("git add -A && git -c core.quotepath=on diff --cached --binary > {path}"),
        Duration::from_secs(120),
    ))?;
    if execution.status != ExitStatus::Exited(0) {
        return Err(SandboxError::File {
            operation: "collect",
            path: "the work tree".into(),
            reason: format!(
                "git ended with {:?}: {}",
                execution.status,
                String::from_utf8_lossy(&execution.output).trim()
            ),
        });
    }
    let content = sandbox.read_file(path, 64 << 20)?.unwrap_or_default();
    Ok(Patch(Bytes(content)))
}

/// Whether a path is what Python, its test runners and editors leave behind.
fn is_by_product(path: &TreePath) -> bool {
    let mut parts = path.as_bytes().split(|byte| *byte == b'/');
    parts.any(|part| {
        matches!(
            part,
            b"__pycache__" | b".pytest_cache" | b".hypothesis" | b".mypy_cache" | b".ruff_cache"
        )
    }) || path.file_name().ends_with(b".pyc")
        || path.file_name() == b".coverage"
}
