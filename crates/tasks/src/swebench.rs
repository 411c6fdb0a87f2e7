//! SWE-bench instances.
//!
//! Parsers and test commands are bound to the repository, as the harness binds them (version
//! 4.1.0). A repository that is not in the table is refused, since a log that is read by the wrong
//! rules gives a wrong verdict and no error. A record may name its own: `log_parser`, `test_cmd`.
//!
//! The split is not part of an instance, so tasks are [`Split::Unassigned`], which counts as held
//! out.

use std::{collections::BTreeMap, path::Path};

use temper_core::{
    Patch, SourceGroup, Split, Task, TaskId,
    task::{Environment, Oracle, Origin, ResolutionRules, Start, TaskFormat, TestLists, Verifier},
};

use crate::{
    error::{Cause, LoadError},
    export::{self, Kind},
    load::Loaded,
    records::{self, Record},
};

/// The work tree in the images of SWE-bench and SWE-smith.
pub(crate) const WORK_TREE: &str = "/testbed";
/// The harness's time limit.
pub(crate) const TIMEOUT_SECONDS: u64 = 1800;

/// Reads a file of instances.
pub fn read(path: &Path, rules: ResolutionRules) -> Result<Loaded, LoadError> {
    let mut ids = Ids::default();
    let mut warnings = Vec::new();
    let mut tasks = Vec::new();
    for mut record in records::read(path, "instance_id")? {
        let mut original = record.fields().clone();
        let id = record.take_id("instance_id")?;
        let read = match export::restored(Kind::SweBench, &original, &mut warnings) {
            Some(read) => read,
            None => {
                record.drop_field(export::FIELD);
                original.shift_remove(export::FIELD);
                ids.add(&record, &id)?;
                let mut read = task(record, id, rules)?;
                export::after_reading(Kind::SweBench, &original, &mut read);
                tasks.push(read);
                continue;
            }
        };
        ids.add(&record, &read.id)?;
        tasks.push(read);
    }
    Ok(Loaded { tasks, warnings })
}

/// The task of a row that does not come from a file; `None` where a file with it would be refused.
pub(crate) fn read_row(row: &serde_json::Map<String, serde_json::Value>) -> Option<Task> {
    let mut record = Record::of(Path::new(""), row.clone());
    let id = record.take_id("instance_id").ok()?;
    task(record, id, ResolutionRules::SweBench4).ok()
}

/// The parser and the commands that the harness binds to a repository.
pub(crate) fn harness(
    repository: &str,
    version: &str,
    test_patch: &Patch,
) -> (Option<&'static str>, Option<String>) {
    match harness_entry(repository) {
        Some((parser, command)) => (
            Some(parser),
            Some(full_command(repository, version, command, test_patch)),
        ),
        None => (None, None),
    }
}

/// The image of an instance, where its record names none.
pub fn default_image(id: &TaskId) -> String {
    format!(
        "swebench/sweb.eval.x86_64.{}:latest",
        id.as_str().to_lowercase().replace("__", "_1776_")
    )
}

fn task(mut record: Record<'_>, id: TaskId, rules: ResolutionRules) -> Result<Task, LoadError> {
    let repository = record.take_text("repo")?;
    let statement = record.take_text("problem_statement")?;
    if statement.trim().is_empty() {
        return Err(record.error("it is empty".to_owned(), "problem_statement"));
    }
    let base_commit = record.take_text("base_commit")?;
    let gold = record.take_patch("patch")?;
    let test_patch = record.take_patch("test_patch")?;
    let tests = TestLists {
        fail_to_pass: record.take_tests("FAIL_TO_PASS")?,
        pass_to_pass: record.take_tests("PASS_TO_PASS")?,
    };
    let image = match record.take_optional_text("image_name")? {
        Some(image) => Some(image),
        None => record.take_optional_text("docker_image")?,
    }
    .filter(|image| !image.is_empty());
    let version = record.take_optional_text("version")?;
    let own_parser = record.take_optional_text("log_parser")?;
    let own_command = record.take_optional_text("test_cmd")?;

    let known = harness_entry(&repository);
    let parser = match (own_parser, known) {
        (Some(parser), _) => parser,
        (None, Some((parser, _))) => parser.to_owned(),
        (None, None) => {
            let cause = Cause::Unsupported(format!(
                "no log parser is bound to {repository}; a field log_parser can name one"
            ));
            return Err(record.error(cause, "repo"));
        }
    };
    let test_command = match (own_command, known) {
        (Some(command), _) => Some(command),
        (None, Some((_, command))) => Some(full_command(
            &repository,
            version.as_deref().unwrap_or_default(),
            command,
            &test_patch,
        )),
        (None, None) => None,
    };
    let source_group = SourceGroup::new(repository.clone())
        .map_err(|error| record.error(error.to_string(), "repo"))?;
    let origin = Origin {
        url: Some(format!("https://github.com/{repository}")),
        version: Some(base_commit.clone()),
        licence: None,
        bug: Some("upstream-fix".to_owned()),
        project: repository,
    };
    let mut metadata = record.into_rest();
    if let Some(version) = version {
        metadata.insert("version".to_owned(), version.into());
    }
    Ok(Task {
        format: TaskFormat::SweBench,
        statement,
        start: Start::Image {
            base_commit: Some(base_commit),
            checkout: None,
        },
        environment: Environment::Image {
            image: image.unwrap_or_else(|| default_image(&id)),
            work_tree: WORK_TREE.to_owned(),
        },
        verifier: Verifier::Log {
            parser,
            test_command,
            test_patch,
            tests,
            rules,
            timeout_seconds: TIMEOUT_SECONDS,
        },
        oracle: (!gold.is_empty()).then_some(Oracle::Patch { patch: gold }),
        origin,
        source_group,
        split: Split::Unassigned,
        metadata,
        construction: None,
        id,
    })
}

/// Finds ids that appear twice. SWE-bench's own tools key instances by id, so one would be lost.
#[derive(Default)]
pub(crate) struct Ids(BTreeMap<TaskId, usize>);

impl Ids {
    pub(crate) fn add(&mut self, record: &Record<'_>, id: &TaskId) -> Result<(), LoadError> {
        let number = self.0.len() + 1;
        match self.0.insert(id.clone(), number) {
            None => Ok(()),
            Some(first) => Err(record.error(
                Cause::Duplicate {
                    id: id.to_string(),
                    first: format!("record {first}"),
                },
                "instance_id",
            )),
        }
    }
}

/// The parser and the test command of a repository.
fn harness_entry(repository: &str) -> Option<(&'static str, &'static str)> {
    const PYTEST: &str = "pytest -rA";
    Some(match repository {
        "astropy/astropy" => ("pytest-v2", PYTEST),
        "django/django" => (
            "django",
            "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1",
        ),
        "marshmallow-code/marshmallow"
        | "pallets/flask"
        | "pvlib/pvlib-python"
        | "pydata/xarray"
        | "pylint-dev/astroid"
        | "pytest-dev/pytest"
        | "pyvista/pyvista"
        | "sqlfluff/sqlfluff" => ("pytest", PYTEST),
        "matplotlib/matplotlib" => ("matplotlib", PYTEST),
        "mwaskom/seaborn" => ("seaborn", "pytest --no-header -rA"),
        "psf/requests" | "pydicom/pydicom" | "pylint-dev/pylint" => ("pytest-options", PYTEST),
        "scikit-learn/scikit-learn" => ("pytest-v2", PYTEST),
        "sphinx-doc/sphinx" => ("pytest-v2", "tox --current-env -epy39 -v --"),
        "sympy/sympy" => (
            "sympy",
            "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose",
        ),
        _ => return None,
    })
}

/// The commands that run the tests: what the harness sets up for them, then the test command with
/// the test files that the test patch touches. A name is quoted where the shell would take it apart;
/// otherwise this is the harness's text.
fn full_command(repository: &str, version: &str, command: &str, test_patch: &Patch) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut command = command;
    match (repository, version) {
        ("django/django", "1.7" | "1.8" | "1.9" | "1.10" | "1.11" | "2.0" | "2.1" | "2.2") => {
            lines.extend([
                "export LANG=en_US.UTF-8",
                "export LC_ALL=en_US.UTF-8",
                "export PYTHONIOENCODING=utf8",
                "export LANGUAGE=en_US:en",
            ]);
            if version == "1.9" {
                command = "./tests/runtests.py --verbosity 2";
            }
        }
        ("django/django", "3.0" | "3.1" | "3.2") => lines.extend([
            "sed -i '/en_US.UTF-8/s/^# //g' /etc/locale.gen && locale-gen",
            "export LANG=en_US.UTF-8",
            "export LANGUAGE=en_US:en",
            "export LC_ALL=en_US.UTF-8",
        ]),
        ("astropy/astropy", "0.1" | "0.2" | "0.3" | "0.4" | "1.1" | "1.2" | "1.3") => {
            command = "pytest -rA -vv -o console_output_style=classic --tb=no";
        }
        _ => {}
    }
    let mut last = command.to_owned();
    for file in test_files(test_patch) {
        last.push(' ');
        last.push_str(&word(&if repository == "django/django" {
            django_label(&file)
        } else {
            file
        }));
    }
    lines.push(&last);
    lines.join("\n")
}

/// The files a test patch touches, without those that are data.
fn test_files(test_patch: &Patch) -> Vec<String> {
    const DATA: [&str; 11] = [
        ".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml",
    ];
    let text = test_patch.0.to_text();
    text.lines()
        .filter_map(|line| line.strip_prefix("diff --git a/")?.rsplit_once(" b/"))
        .map(|(_, file)| file.to_owned())
        .filter(|file| !DATA.iter().any(|end| file.ends_with(end)))
        .collect()
}

/// A test file as Django's runner names it: a module below `tests`.
fn django_label(file: &str) -> String {
    let module = file.strip_suffix(".py").unwrap_or(file);
    module
        .strip_prefix("tests/")
        .unwrap_or(module)
        .replace('/', ".")
}

/// A word of the shell, quoted only where it must be, so that commands stay readable.
pub(crate) fn word(text: &str) -> String {
    let plain = !text.is_empty()
        && !text.starts_with('-')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-./:@%+,=".contains(&byte));
    if plain {
        text.to_owned()
    } else {
        crate::history::quote(text)
    }
}

#[cfg(test)]
mod tests;
