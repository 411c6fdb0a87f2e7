//! SWE-smith instances, whose `patch` introduces the bug.
//!
//! The start is the image's branch of the instance's name; the known fix is the patch in reverse.
//! One image serves all instances of a repository commit.
//!
//! An instance whose listed tests are not pytest's, or whose repository has a log format of its
//! own, is left out with a warning: the published set is for training, mixes languages, and a log
//! that is read by the wrong rules would give a wrong verdict. The absent-test rule differs between
//! versions and is chosen by the caller ([`ResolutionRules::SweSmith009`] by default).

use std::path::Path;

use temper_core::{
    Patch, SourceGroup, Split, Task, TaskId,
    task::{Environment, Oracle, Origin, ResolutionRules, Start, TaskFormat, TestLists, Verifier},
};

use crate::{
    error::{Cause, LoadError},
    export::{self, Kind},
    load::Loaded,
    records::{self, Record},
    swebench::{Ids, TIMEOUT_SECONDS, WORK_TREE},
};

/// The command of most of SWE-smith's Python repositories.
const TEST_COMMAND: &str = "pytest --disable-warnings --color=no --tb=no --verbose";

/// Repositories that are tested by another command.
const TEST_COMMANDS: [(&str, &str); 5] = [
    (
        "tkrajina__gpxpy",
        "pytest test.py --verbose --color=no --tb=no --disable-warnings",
    ),
    (
        "jax-ml__jax",
        "pytest --disable-warnings --color=no --tb=no --verbose -n auto",
    ),
    (
        "mido__mido",
        "pytest --disable-warnings --color=no --tb=no --verbose -rs -c /dev/null",
    ),
    (
        "paramiko__paramiko",
        "pytest -rA --color=no --disable-warnings",
    ),
    (
        "pydantic__pydantic",
        "/root/.local/bin/uv run pytest --disable-warnings --color=no --tb=no --verbose",
    ),
];

/// Repositories whose logs have a format of their own.
const OWN_FORMAT: [&str; 3] = ["python__mypy", "tornadoweb__tornado", "HIPS__autograd"];

/// Reads a file of instances.
pub fn read(path: &Path, rules: ResolutionRules) -> Result<Loaded, LoadError> {
    let mut ids = Ids::default();
    let mut tasks = Vec::new();
    let mut left_out = Vec::new();
    let mut n_without_statement = 0;
    let mut warnings = Vec::new();
    for mut record in records::read(path, "instance_id")? {
        let mut original = record.fields().clone();
        let id = record.take_id("instance_id")?;
        if let Some(task) = export::restored(Kind::SweSmith, &original, &mut warnings) {
            ids.add(&record, &task.id)?;
            tasks.push(task);
            continue;
        }
        record.drop_field(export::FIELD);
        original.shift_remove(export::FIELD);
        ids.add(&record, &id)?;
        match task(record, id.clone(), rules)? {
            Some(mut task) => {
                export::after_reading(Kind::SweSmith, &original, &mut task);
                n_without_statement += usize::from(task.statement.trim().is_empty());
                tasks.push(task);
            }
            None => left_out.push(id),
        }
    }
    if let Some(first) = left_out.first() {
        let problem = format!(
            "{} instances have tests that no log parser here reads (the first is {first})",
            left_out.len()
        );
        if tasks.is_empty() {
            return Err(LoadError::read(path, Cause::Unsupported(problem)));
        }
        warnings.push(format!("left out: {problem}"));
    }
    if n_without_statement > 0 {
        warnings.push(format!(
            "{n_without_statement} instances have no problem statement; an agent gets nothing to go by"
        ));
    }
    Ok(Loaded { tasks, warnings })
}

/// The task of a row that does not come from a file; `None` where it would be left out or refused.
pub(crate) fn read_row(row: &serde_json::Map<String, serde_json::Value>) -> Option<Task> {
    let mut record = Record::of(Path::new(""), row.clone());
    let id = record.take_id("instance_id").ok()?;
    task(record, id, ResolutionRules::SweSmith009).ok()?
}

fn task(
    mut record: Record<'_>,
    id: TaskId,
    rules: ResolutionRules,
) -> Result<Option<Task>, LoadError> {
    let mirror = record.take_text("repo")?;
    let name = parse_id(&id).ok_or_else(|| {
        let cause = Cause::Type {
            expected: "OWNER__REPO.COMMIT.BUG",
            got: crate::error::shorten(id.as_str()),
        };
        record.error(cause, "instance_id")
    })?;
    let statement = record
        .take_optional_text("problem_statement")?
        .unwrap_or_default();
    let patch = record.take_patch("patch")?;
    if patch.is_empty() {
        return Err(record.error(
            "it is empty, so the instance has no bug".to_owned(),
            "patch",
        ));
    }
    let image = record.take_text("image_name")?;
    let tests = TestLists {
        fail_to_pass: record.take_tests("FAIL_TO_PASS")?,
        pass_to_pass: record.take_tests("PASS_TO_PASS")?,
    };
    if tests.fail_to_pass.is_empty() {
        return Err(record.error("it is empty".to_owned(), "FAIL_TO_PASS"));
    }
    let is_pytest = tests
        .fail_to_pass
        .iter()
        .chain(&tests.pass_to_pass)
        .all(|test| test.as_str().contains(".py::"));
    if !is_pytest || OWN_FORMAT.contains(&name.repository) {
        return Ok(None);
    }
    let command = TEST_COMMANDS
        .iter()
        .find(|(repository, _)| *repository == name.repository)
        .map_or(TEST_COMMAND, |(_, command)| command);
    let project = name.repository.replacen("__", "/", 1);
    let source_group = SourceGroup::new(project.clone())
        .map_err(|error| record.error(error.to_string(), "instance_id"))?;
    let origin = Origin {
        url: Some(format!("https://github.com/{project}")),
        version: Some(name.commit.to_owned()),
        licence: None,
        bug: Some(match name.bug.strip_prefix("pr_") {
            Some(_) => "upstream-fix".to_owned(),
            None => format!("mutation:{}", name.bug),
        }),
        project,
    };
    let mut metadata = record.into_rest();
    metadata.insert("repo".to_owned(), mirror.into());
    Ok(Some(Task {
        format: TaskFormat::SweSmith,
        statement,
        start: Start::Image {
            base_commit: None,
            checkout: Some(id.to_string()),
        },
        environment: Environment::Image {
            image,
            work_tree: WORK_TREE.to_owned(),
        },
        verifier: Verifier::Log {
            parser: "pytest-v2".to_owned(),
            test_command: Some(command.to_owned()),
            test_patch: Patch::default(),
            tests,
            rules,
            timeout_seconds: TIMEOUT_SECONDS,
        },
        oracle: Some(Oracle::ReversePatch { patch }),
        origin,
        source_group,
        split: Split::Unassigned,
        metadata,
        construction: None,
        id,
    }))
}

/// The parts of `OWNER__REPO.COMMIT8.BUGTYPE__HASH` or `OWNER__REPO.COMMIT8.pr_NUMBER`.
struct Name<'a> {
    repository: &'a str,
    commit: &'a str,
    bug: &'a str,
}

/// A repository's name may hold dots, so the id is read from its end.
fn parse_id(id: &TaskId) -> Option<Name<'_>> {
    let (rest, bug) = id.as_str().rsplit_once('.')?;
    let (repository, commit) = rest.rsplit_once('.')?;
    let bug = bug.rsplit_once("__").map_or(bug, |(kind, _)| kind);
    let is_commit = commit.len() >= 7 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_commit && repository.contains("__") && !bug.is_empty()).then_some(Name {
        repository,
        commit,
        bug,
    })
}

/// Whether an id is one of SWE-smith's, which tells its records from SWE-bench's.
pub(crate) fn is_own_id(id: &str) -> bool {
    TaskId::new(id).is_ok_and(|id| parse_id(&id).is_some())
}

#[cfg(test)]
mod tests;
