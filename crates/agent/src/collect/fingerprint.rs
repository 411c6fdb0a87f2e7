//! What a task is, as far as a candidate for it is concerned.

use serde_json::json;
use temper_core::{
    Digest, PreparedTask, TaskId,
    task::{Oracle, Verifier},
};

/// The digest of everything that can change what comes of an attempt: the statement, the start, the
/// environment and the verifier. Not its id, split, group, origin or suite, so that a task that is
/// renamed, re-split or copied into another suite keeps its candidates.
pub fn fingerprint(task: &PreparedTask) -> Digest {
    // Files are in the environment's digest by their content, so paths are left out here.
    let verifier = match &task.task.verifier {
        Verifier::Pytest {
            public,
            hidden,
            test_files,
            hidden_source: _,
            arguments,
            timeout_seconds,
        } => json!({
            "kind": "pytest",
            "public": public,
            "hidden": hidden,
            "test_files": test_files,
            "arguments": arguments,
            "timeout_seconds": timeout_seconds,
        }),
        log @ Verifier::Log { .. } => json!(log),
        Verifier::Harbor {
            tests: _,
            environment,
            timeout_seconds,
        } => json!({
            "kind": "harbor",
            "environment": environment,
            "timeout_seconds": timeout_seconds,
        }),
    };
    Digest::of_value(&json!({
        "format": 1,
        "statement": task.task.statement,
        "environment": task.environment_digest,
        "verifier": verifier,
    }))
}

/// The name that candidates of a content carry in the place of a task's id.
pub fn content_id(fingerprint: &Digest) -> TaskId {
    let text = format!("content-{}", &fingerprint.as_str()[..16]);
    TaskId::new(text).expect("a digest's beginning is a name")
}

/// The digest of a task's known fix, for teachers that have it.
pub(super) fn fix(task: &PreparedTask) -> Digest {
    let oracle = match &task.task.oracle {
        Some(Oracle::Script { environment, .. }) => json!({ "script": environment }),
        other => json!(other),
    };
    Digest::of_value(&oracle)
}
