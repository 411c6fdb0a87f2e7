//! Whether a task makes sense by itself, for tasks that do not come from a directory whose reader
//! has checked them.

use std::collections::BTreeMap;

use temper_core::{
    Patch, Task, TestId, TreePath,
    task::{Environment, HiddenSource, Oracle, Start, TestLists, Verifier},
};

use super::MAX_TIMEOUT_SECONDS;
use crate::error::Cause;

/// Checks what the reader of native directories checks. The error names the field.
pub(crate) fn check(task: &Task) -> Result<(), (String, Cause)> {
    let at = |field: &str, cause: Cause| Err((field.to_owned(), cause));
    if task.statement.trim().is_empty() {
        return at("statement", Cause::Invalid("it is empty".to_owned()));
    }
    match &task.start {
        Start::SourceDistribution { patch: start, .. } => patch(start, "start.patch")?,
        Start::GitCommit { commit, .. } => {
            let is_full = matches!(commit.len(), 40 | 64)
                && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !is_full {
                return at(
                    "start.commit",
                    Cause::Type {
                        expected: "a full commit id",
                        got: crate::error::shorten(commit),
                    },
                );
            }
        }
        Start::Directory { .. } | Start::Image { .. } => {}
    }
    match &task.environment {
        Environment::Python {
            requires_python,
            python_path,
            ..
        } => {
            requires_python
                .parse::<crate::python::Requirement>()
                .map_err(|error| {
                    let field = "environment.requires_python".to_owned();
                    (field, Cause::Invalid(error.to_string()))
                })?;
            for entry in python_path.iter().filter(|entry| *entry != ".") {
                tree_path(entry, "environment.python_path")?;
            }
        }
        Environment::Image { work_tree, .. } if !work_tree.starts_with('/') => {
            return at(
                "environment.work_tree",
                Cause::Type {
                    expected: "an absolute path",
                    got: crate::error::shorten(work_tree),
                },
            );
        }
        Environment::Image { .. } | Environment::Dockerfile { .. } | Environment::Host => {}
    }
    let timeout_seconds = match &task.verifier {
        Verifier::Pytest {
            public,
            hidden,
            test_files,
            hidden_source,
            timeout_seconds,
            ..
        } => {
            for file in test_files {
                tree_path(file, "verifier.test_files")?;
            }
            lists(&[("public", public), ("hidden", hidden)], test_files)?;
            if *hidden_source == HiddenSource::SourceDistribution
                && !matches!(task.start, Start::SourceDistribution { .. })
            {
                let problem = "the start is no source distribution".to_owned();
                return at("verifier.hidden_source", Cause::Invalid(problem));
            }
            *timeout_seconds
        }
        Verifier::Log {
            test_patch,
            timeout_seconds,
            ..
        } => {
            patch(test_patch, "verifier.test_patch")?;
            *timeout_seconds
        }
        Verifier::Harbor {
            timeout_seconds, ..
        } => *timeout_seconds,
    };
    if !(1..=MAX_TIMEOUT_SECONDS).contains(&timeout_seconds) {
        let problem = format!("expected 1 to {MAX_TIMEOUT_SECONDS} seconds, got {timeout_seconds}");
        return at("verifier.timeout_seconds", Cause::Invalid(problem));
    }
    match &task.oracle {
        Some(Oracle::Patch { patch: fix }) => patch(fix, "oracle.patch"),
        Some(Oracle::ReversePatch { patch: bug }) => patch(bug, "oracle.reverse_patch"),
        Some(Oracle::Script { .. }) | None => Ok(()),
    }
}

/// Each test once, each in one of the test files, and something that must begin to pass.
pub(super) fn lists(
    layers: &[(&str, &TestLists)],
    test_files: &[String],
) -> Result<(), (String, Cause)> {
    let mut seen: BTreeMap<&TestId, String> = BTreeMap::new();
    for (layer, lists) in layers {
        for (name, tests) in [
            ("fail_to_pass", &lists.fail_to_pass),
            ("pass_to_pass", &lists.pass_to_pass),
        ] {
            let field = format!("verifier.{layer}.{name}");
            for test in tests {
                let file = test.as_str().split("::").next().unwrap_or_default();
                if !test_files.iter().any(|known| known == file) {
                    let problem = format!("{test} is in none of the test files");
                    return Err((field, Cause::Invalid(problem)));
                }
                if let Some(first) = seen.insert(test, field.clone()) {
                    let cause = Cause::Duplicate {
                        id: test.to_string(),
                        first,
                    };
                    return Err((field, cause));
                }
            }
        }
    }
    let nothing_fails = layers
        .iter()
        .all(|(_, lists)| lists.fail_to_pass.is_empty());
    if nothing_fails {
        let problem = "no test is listed as fail-to-pass, so nothing could be solved".to_owned();
        return Err(("verifier".to_owned(), Cause::Invalid(problem)));
    }
    Ok(())
}

fn patch(patch: &Patch, field: &str) -> Result<(), (String, Cause)> {
    if patch.is_empty() {
        return Ok(());
    }
    temper_core::patch::paths(patch)
        .map(drop)
        .map_err(|error| (field.to_owned(), error.into()))
}

fn tree_path(text: &str, field: &str) -> Result<(), (String, Cause)> {
    text.parse::<TreePath>()
        .map(drop)
        .map_err(|error| (field.to_owned(), Cause::Invalid(error.to_string())))
}
