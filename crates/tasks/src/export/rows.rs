//! Rows of SWE-smith and SWE-bench, from any task, and what their readers need to get it back.

use std::{collections::BTreeMap, io::Write, path::Path};

use serde_json::{Map, Value};
use temper_core::{
    Digest, Patch, Task, TaskId,
    task::{Environment, Oracle, Start, TestLists},
};

use super::{
    Exported, NotExpressible,
    carried::{self, Carried},
    record, refused, swe_bench, swe_smith,
};
use crate::{
    error::{Cause, LoadError},
    records,
};

/// Which rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    SweSmith,
    SweBench,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::SweSmith => "swe-smith",
            Kind::SweBench => "swe-bench",
        }
    }

    /// The fields of the format.
    fn fields(self, task: &Task) -> Result<Map<String, Value>, NotExpressible> {
        match self {
            Kind::SweSmith => swe_smith::fields(task),
            Kind::SweBench => swe_bench::fields(task),
        }
    }

    /// The task that the format's own reader makes of a row.
    fn read(self, row: &Map<String, Value>) -> Option<Task> {
        match self {
            Kind::SweSmith => crate::swesmith::read_row(row),
            Kind::SweBench => crate::swebench::read_row(row),
        }
    }

    /// What a carried task must agree with.
    fn agreement(self, row: &Map<String, Value>) -> Digest {
        let list = |field: &str| records::tests_of(row.get(field)).unwrap_or_default();
        let lists = (list("FAIL_TO_PASS"), list("PASS_TO_PASS"));
        let text = |field: &str| row.get(field).and_then(Value::as_str).unwrap_or_default();
        match self {
            Kind::SweSmith => Digest::of_value(&(text("patch"), lists)),
            Kind::SweBench => Digest::of_value(&(text("patch"), text("test_patch"), lists)),
        }
    }

    /// The known fix as a row's patch gives it; `None` where it is empty or does not say how to
    /// undo itself.
    fn oracle(self, row: &Map<String, Value>) -> Option<Oracle> {
        let text = row.get("patch").and_then(Value::as_str).unwrap_or_default();
        let patch = Patch(text.into());
        if patch.is_empty() {
            return None;
        }
        match self {
            Kind::SweSmith => temper_core::patch::reverse(&patch)
                .ok()
                .map(|patch| Oracle::Patch { patch }),
            Kind::SweBench => Some(Oracle::Patch { patch }),
        }
    }
}

/// The row of a task, and whether it carries what the format cannot say.
fn row(task: &Task, kind: Kind) -> Result<(Map<String, Value>, bool), NotExpressible> {
    let fields = kind.fields(task)?;
    let mut plain = fields.clone();
    for (field, value) in &task.metadata {
        if field != record::KEY && field != carried::FIELD && field != records::FIELDS {
            plain.insert(field.clone(), value.clone());
        }
    }
    record::put_back(kind.name(), &task.metadata, &mut plain);
    if kind.read(&plain).is_some_and(|read| is_same(read, task)) {
        return Ok((plain, false));
    }
    if let Some((name, _)) = carried::directories(&mut task.clone()).first() {
        return Err(NotExpressible(format!(
            "a row cannot hold its directory ({name}); a Harbor directory can"
        )));
    }
    if let Start::GitCommit { repository, .. } = &task.start
        && !repository.contains("://")
    {
        return Err(NotExpressible::new(
            "its start is a repository on this machine",
        ));
    }
    let mut row = fields;
    let has_oracle = task.oracle.is_some() && kind.oracle(&row) == task.oracle;
    let carried = Carried::of(task, kind.agreement(&row), true, has_oracle);
    row.insert(carried::FIELD.to_owned(), carried.to_text().into());
    record::put_back(kind.name(), &task.metadata, &mut row);
    Ok((row, true))
}

/// Whether two tasks are the same but for the format that they were read from and the shape of
/// their records.
fn is_same(mut read: Task, task: &Task) -> bool {
    let mut task = task.clone();
    read.format = task.format;
    for metadata in [&mut read.metadata, &mut task.metadata] {
        metadata.shift_remove(record::KEY);
    }
    read == task
}

/// The task that a row carries, if it carries one that belongs to it. Where it does not, a warning
/// says so, and the row is to be read without the field.
pub(crate) fn restored(
    kind: Kind,
    original: &Map<String, Value>,
    warnings: &mut Vec<String>,
) -> Option<Task> {
    let field = original
        .get(carried::FIELD)
        .filter(|field| !field.is_null())?;
    let read = || -> Result<Task, String> {
        let carried = Carried::read(field)?;
        if !carried.agrees(&kind.agreement(original)) {
            return Err("patch or test lists were changed since it was written".to_owned());
        }
        let statement = original
            .get("problem_statement")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let lists = TestLists {
            fail_to_pass: records::tests_of(original.get("FAIL_TO_PASS")).unwrap_or_default(),
            pass_to_pass: records::tests_of(original.get("PASS_TO_PASS")).unwrap_or_default(),
        };
        let mut task = carried.into_task(statement, Some(lists), kind.oracle(original), None)?;
        task.format = match kind {
            Kind::SweSmith => temper_core::task::TaskFormat::SweSmith,
            Kind::SweBench => temper_core::task::TaskFormat::SweBench,
        };
        after_reading(kind, original, &mut task);
        Ok(task)
    };
    match read() {
        Ok(task) => Some(task),
        Err(problem) => {
            let id = original
                .get("instance_id")
                .and_then(Value::as_str)
                .unwrap_or_default();
            warnings.push(format!(
                "{}: the field {} is not used: {problem}",
                crate::error::shorten(id),
                carried::FIELD
            ));
            None
        }
    }
}

/// Keeps in the task's metadata what the row that would be written for it lacks of `original`.
pub(crate) fn after_reading(kind: Kind, original: &Map<String, Value>, task: &mut Task) {
    task.metadata.shift_remove(record::KEY);
    if let Ok((written, _)) = row(task, kind) {
        record::keep(kind.name(), original, &written, &mut task.metadata);
    }
}

/// Writes rows as JSON lines or Parquet.
pub(super) fn write(tasks: &[Task], kind: Kind, path: &Path) -> Result<Exported, LoadError> {
    let is_parquet = match path.extension().and_then(|extension| extension.to_str()) {
        Some("jsonl") => false,
        Some("parquet") => true,
        _ => {
            let cause =
                Cause::Invalid("expected a name that ends in .jsonl or .parquet".to_owned());
            return Err(LoadError::write(path, cause));
        }
    };
    let mut rows = Vec::new();
    let mut seen: BTreeMap<String, &TaskId> = BTreeMap::new();
    let mut n_carried = 0;
    let mut images: BTreeMap<String, usize> = BTreeMap::new();
    for task in tasks {
        let (row, is_carried) =
            row(task, kind).map_err(|reason| refused(path, &task.id, reason))?;
        let id = row
            .get("instance_id")
            .map(Value::to_string)
            .unwrap_or_default();
        if let Some(first) = seen.insert(id.clone(), &task.id) {
            let cause = Cause::Duplicate {
                id,
                first: first.to_string(),
            };
            return Err(LoadError::write(path, cause).in_record(task.id.to_string()));
        }
        n_carried += usize::from(is_carried);
        if !matches!(task.environment, Environment::Image { .. })
            && let Some(image) = row.get("image_name").and_then(Value::as_str)
        {
            *images.entry(image.to_owned()).or_default() += 1;
        }
        rows.push(row);
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let failed = |error| LoadError::write(path, Cause::Io(error));
    let mut file = tempfile::NamedTempFile::new_in(parent).map_err(failed)?;
    if is_parquet {
        records::write_parquet(&rows, file.as_file_mut())
            .map_err(|problem| LoadError::write(path, problem))?;
    } else {
        let mut out = std::io::BufWriter::new(file.as_file_mut());
        for row in &rows {
            serde_json::to_writer(&mut out, row)
                .map_err(|error| failed(error.into()))
                .and_then(|()| out.write_all(b"\n").map_err(failed))?;
        }
        out.flush().map_err(failed)?;
    }
    // Temporary files are for their owner alone; an export is a file like any other.
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(0o644);
        file.as_file().set_permissions(mode).map_err(failed)?;
    }
    file.persist_noclobber(path)
        .map_err(|error| failed(error.error))?;
    let mut notes = Vec::new();
    if n_carried > 0 {
        notes.push(format!(
            "{n_carried} rows carry in the field {} what the format cannot say: where the start comes from, the environment, which tests are public",
            carried::FIELD
        ));
    }
    if !images.is_empty() {
        let (first, _) = images.iter().next().expect("it is not empty");
        notes.push(format!(
            "{} images are named that nobody has made (the first is {first})",
            images.len()
        ));
    }
    Ok(Exported {
        n_tasks: rows.len(),
        notes,
    })
}

/// `owner` and `name` of the project's repository, as far as they are known.
pub(super) fn repository(task: &Task) -> (String, String) {
    let plain = |text: &str| -> String {
        let kept: String = text
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') {
                    c
                } else {
                    '-'
                }
            })
            .collect();
        if kept.is_empty() {
            "unknown".to_owned()
        } else {
            kept
        }
    };
    let on_github = task.origin.url.as_deref().and_then(|url| {
        let path = url.split_once("://github.com/")?.1;
        let mut parts = path
            .trim_end_matches('/')
            .trim_end_matches(".git")
            .split('/');
        Some((parts.next()?, parts.next()?))
    });
    let (owner, name) = on_github
        .or_else(|| task.origin.project.split_once('/'))
        .unwrap_or((&task.origin.project, &task.origin.project));
    (plain(owner), plain(name))
}

/// A digest's first eight digits that stand for the state without the bug.
pub(super) fn state(task: &Task) -> String {
    let digits = match &task.start {
        Start::SourceDistribution { archive, .. } => archive.sha256.as_str().to_owned(),
        Start::GitCommit { commit, .. } => commit.clone(),
        Start::Directory { digest, .. } => digest.as_str().to_owned(),
        Start::Image {
            base_commit: Some(commit),
            ..
        } => commit.clone(),
        Start::Image { .. } => Digest::of_value(&task.environment).as_str().to_owned(),
    };
    let hex: String = digits
        .chars()
        .filter(char::is_ascii_hexdigit)
        .take(8)
        .collect();
    format!("{hex:0<8}")
}

/// A patch as the text that rows hold.
pub(super) fn text(patch: &Patch) -> Result<Value, NotExpressible> {
    match std::str::from_utf8(&patch.0) {
        Ok(text) => Ok(text.into()),
        Err(_) => Err(NotExpressible::new("its patch is not valid UTF-8")),
    }
}
