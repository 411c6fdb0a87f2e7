//! The fields of a SWE-smith instance. Its patch introduces the bug.

use serde_json::{Map, Value, json};
use temper_core::{
    Digest, Task,
    task::{Environment, Oracle},
};

use super::{NotExpressible, carried::all_tests, rows};

pub(super) fn fields(task: &Task) -> Result<Map<String, Value>, NotExpressible> {
    let tests = all_tests(&task.verifier)
        .filter(|tests| !tests.fail_to_pass.is_empty())
        .ok_or_else(|| NotExpressible::new("its verifier has no test lists"))?;
    let bug = match &task.oracle {
        Some(Oracle::ReversePatch { patch }) => patch.clone(),
        Some(Oracle::Patch { patch }) => temper_core::patch::reverse(patch)
            .map_err(|error| NotExpressible(format!("its fix cannot be undone: {error}")))?,
        Some(Oracle::Script { .. }) => {
            return Err(NotExpressible::new(
                "its known fix is a script, not a patch",
            ));
        }
        None => {
            return Err(NotExpressible::new(
                "it has no known fix, so no patch that introduces the bug",
            ));
        }
    };
    let (id, name) = if crate::swesmith::is_own_id(task.id.as_str()) {
        let id = task.id.as_str();
        let name = id.rsplit_once('.').map_or(id, |(name, _)| name);
        (id.to_owned(), name.to_owned())
    } else {
        let (owner, repository) = rows::repository(task);
        let name = format!("{owner}__{repository}.{}", rows::state(task));
        let hash = Digest::of(task.id.as_str().as_bytes());
        (
            format!("{name}.{}__{}", kind(task), &hash.as_str()[..8]),
            name,
        )
    };
    let repo = match task.metadata.get("repo") {
        Some(Value::String(repo)) => repo.clone(),
        _ => format!("swesmith/{name}"),
    };
    let image = match &task.environment {
        Environment::Image { image, .. } => image.clone(),
        _ => format!(
            "swebench/swesmith.x86_64.{}",
            name.replacen("__", "_1776_", 1).to_lowercase()
        ),
    };
    let Value::Object(fields) = json!({
        "instance_id": id,
        "repo": repo,
        "patch": rows::text(&bug)?,
        "FAIL_TO_PASS": tests.fail_to_pass,
        "PASS_TO_PASS": tests.pass_to_pass,
        "image_name": image,
        "problem_statement": task.statement,
    }) else {
        unreachable!("it is an object");
    };
    Ok(fields)
}

/// The bug's kind as it stands in an id: letters, digits and underscores.
fn kind(task: &Task) -> String {
    let kind = match (&task.construction, task.origin.bug.as_deref()) {
        (Some(construction), _) => construction.kind.as_str(),
        (None, Some(bug)) => bug.split_once(':').map_or(bug, |(_, kind)| kind),
        (None, None) => "unknown",
    };
    kind.chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect()
}
