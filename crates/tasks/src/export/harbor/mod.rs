//! Harbor task directories.
//!
//! A task that was one of Harbor's is written as it was, from its own files and what its reader
//! kept. A task with our pytest verifier becomes an image that is built from pinned archives, a
//! script that runs the two layers and writes the reward, and a script that applies the known fix.
//!
//! The image's last stage holds the start and nothing else: archives, which contain the fix and the
//! hidden tests, are unpacked in a stage of their own. What Temper's own verifier does beyond the
//! script (fresh sandboxes, an authenticated channel, canaries) is lost, because Harbor runs a
//! verifier in the agent's container.

mod directory;
mod image;

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::{Map, Value, json};
use temper_core::{
    Digest, Entry, Task, Tree, TreePath,
    task::{Environment, Oracle, Verifier},
};

use super::{
    ExportOptions, Exported, NotExpressible,
    carried::{self, Carried},
    refused,
};
use crate::{
    error::{Cause, LoadError},
    harbor::{self, Config, INSTRUCTION_FILE, TASK_FILE},
    prepare::WORK_TREE,
    tree_io::{TreeLimits, read_tree, write_tree},
};
use directory::Sources;

/// Writes one directory per task below `path`.
pub(super) fn write(
    tasks: &[Task],
    path: &Path,
    options: &ExportOptions<'_>,
) -> Result<Exported, LoadError> {
    let failed = |error| LoadError::write(path, Cause::Io(error));
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let work = tempfile::Builder::new()
        .prefix(".exporting-")
        .tempdir_in(parent)
        .map_err(failed)?;
    let root = work.path().join("tasks");
    fs::create_dir(&root).map_err(failed)?;
    let mut sources = Sources::new(options, work.path());
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut n_carried = 0;
    for task in tasks {
        let name = directory_name(task);
        if let Some(first) = names.insert(name.clone(), task.id.to_string()) {
            let cause = Cause::Duplicate { id: name, first };
            return Err(LoadError::write(path, cause).in_record(task.id.to_string()));
        }
        let tree = files(task, &mut sources).map_err(|reason| refused(path, &task.id, reason))?;
        let directory = root.join(name);
        write_tree(&tree, &directory).map_err(|error| LoadError::write(&directory, error))?;
        if !reads_as(&directory, task) {
            carry(task, tree, &directory)?;
            n_carried += 1;
        }
    }
    fs::rename(&root, path).map_err(failed)?;
    let mut notes = Vec::new();
    if n_carried > 0 {
        notes.push(format!(
            "{n_carried} tasks carry in metadata.{} what the format cannot say: where the start comes from, which tests are public, split and source group",
            carried::FIELD
        ));
    }
    Ok(Exported {
        n_tasks: tasks.len(),
        notes,
    })
}

/// A name that is good on every file system and as the second part of Harbor's `org/name`.
fn directory_name(task: &Task) -> String {
    let id = task.id.as_str();
    let plain: String = id
        .rsplit('/')
        .next()
        .unwrap_or(id)
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') {
                c
            } else {
                '-'
            }
        })
        .collect();
    let is_plain = plain == id && plain.starts_with(|c: char| c.is_ascii_alphanumeric());
    let is_own = matches!(task.verifier, Verifier::Harbor { .. });
    if is_plain || (is_own && plain.starts_with(|c: char| c.is_ascii_alphanumeric())) {
        plain
    } else {
        let hash = Digest::of(id.as_bytes());
        format!("task{plain}-{}", &hash.as_str()[..8])
    }
}

/// Every file of a task's directory.
fn files(task: &Task, sources: &mut Sources<'_>) -> Result<Tree, NotExpressible> {
    match &task.verifier {
        Verifier::Harbor { .. } => own(task),
        Verifier::Pytest { .. } => made(task, sources),
        Verifier::Log { .. } => Err(NotExpressible::new(
            "its verifier reads a log, and a Harbor task must bring its own verifier",
        )),
    }
}

/// A task that is Harbor's own.
fn own(task: &Task) -> Result<Tree, NotExpressible> {
    if harbor::has_steps(task) {
        return Err(NotExpressible::new("it has several steps"));
    }
    let mut tree = harbor::kept_files(task);
    let mut add = |name: &str, from: &Path| copy(from, name, &mut tree);
    if let Environment::Dockerfile { context, .. } = &task.environment {
        add("environment", context)?;
    }
    if let Verifier::Harbor { tests, .. } = &task.verifier {
        add("tests", tests)?;
    }
    if let Some(Oracle::Script { directory, .. }) = &task.oracle {
        add("solution", directory)?;
    }
    // The task's own words and settings win over what was kept, where they were changed.
    let instruction = path(INSTRUCTION_FILE);
    let is_kept = matches!(tree.get(&instruction), Some(Entry::File { content, .. })
        if harbor::statement_of(&String::from_utf8_lossy(content)) == task.statement);
    if !is_kept {
        tree.insert(instruction, Entry::file(task.statement.as_bytes()));
    }
    let manifest = path(TASK_FILE);
    let config = Config::of(task)
        .ok_or_else(|| NotExpressible::new("its Harbor settings are not in its metadata"))?;
    let is_kept = matches!(tree.get(&manifest), Some(Entry::File { content, .. })
        if harbor::parse_config(&String::from_utf8_lossy(content)).is_ok_and(|(kept, _)| kept == config));
    if !is_kept {
        tree.insert(manifest, Entry::file(toml_of(&config)?));
    }
    Ok(tree)
}

/// A task with our own verifier.
fn made(task: &Task, sources: &mut Sources<'_>) -> Result<Tree, NotExpressible> {
    let Verifier::Pytest {
        public,
        hidden,
        test_files,
        arguments,
        timeout_seconds,
        ..
    } = &task.verifier
    else {
        return Err(NotExpressible::new("its verifier is not pytest"));
    };
    let Environment::Python { python_path, .. } = &task.environment else {
        return Err(NotExpressible::new(
            "its environment is not pinned wheels, so no image can be built for its tests",
        ));
    };
    let start = sources.start(task)?;
    let hidden_files = sources.hidden(task)?;
    let mut tree = image::files(task, sources)?;
    let mut layers = Vec::new();
    let (mut public_files, mut steering) = (Tree::new(), Tree::new());
    for (name, entry) in &start {
        if test_files
            .iter()
            .any(|file| file.as_bytes() == name.as_bytes())
        {
            public_files.insert(name.clone(), entry.clone());
        }
        if steers(name) {
            steering.insert(name.clone(), entry.clone());
        }
    }
    for (name, lists, files) in [
        ("public", public, public_files),
        ("hidden", hidden, hidden_files),
    ] {
        let tests: Vec<_> = lists
            .fail_to_pass
            .iter()
            .chain(&lists.pass_to_pass)
            .collect();
        if !tests.is_empty() {
            layers.push(json!({ "name": name, "files": name, "tests": tests }));
        }
        below(&format!("tests/{name}"), files, &mut tree);
    }
    below("tests/steering", steering, &mut tree);
    let n_layers = layers.len() as u64;
    let plan = json!({
        "work_tree": WORK_TREE,
        "python_path": python_path,
        "arguments": arguments,
        "timeout_seconds": timeout_seconds,
        "layers": layers,
    });
    put(&mut tree, "tests/plan.json", format!("{plan:#}\n"));
    put(&mut tree, "tests/verify.py", include_str!("verify.py"));
    put(&mut tree, "tests/session.py", include_str!("session.py"));
    // The exit code is ignored; what counts is whether the reward was written.
    script(
        &mut tree,
        "tests/test.sh",
        "exec python -s -B /tests/verify.py\n",
    );
    match &task.oracle {
        Some(Oracle::Patch { patch }) => solve(&mut tree, patch, ""),
        Some(Oracle::ReversePatch { patch }) => solve(&mut tree, patch, " --reverse"),
        Some(Oracle::Script { .. }) => {
            return Err(NotExpressible::new(
                "its known fix is a script for another container",
            ));
        }
        None => {}
    }
    put(&mut tree, INSTRUCTION_FILE, task.statement.as_bytes());
    let config = config(task, n_layers * timeout_seconds + 60);
    put(&mut tree, TASK_FILE, toml_of(&config)?);
    Ok(tree)
}

/// Whether pytest or the interpreter reads a file before any test.
fn steers(name: &TreePath) -> bool {
    let name = name.as_bytes();
    let base = name.rsplit(|byte| *byte == b'/').next().unwrap_or(name);
    let anywhere: [&[u8]; 5] = [
        b"conftest.py",
        b"pytest.ini",
        b".pytest.ini",
        b"sitecustomize.py",
        b"usercustomize.py",
    ];
    let at_root: [&[u8]; 3] = [b"tox.ini", b"setup.cfg", b"pyproject.toml"];
    anywhere.contains(&base) || at_root.contains(&name)
}

fn solve(tree: &mut Tree, patch: &temper_core::Patch, reverse: &str) {
    let mut text = patch.0.0.clone();
    // git refuses a patch without its last newline; the task keeps its own bytes.
    if !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    put(tree, "solution/fix.patch", text);
    script(
        tree,
        "solution/solve.sh",
        &format!(
            "set -eu\ncd {WORK_TREE}\ngit apply --whitespace=nowarn -p1{reverse} /solution/fix.patch\n"
        ),
    );
}

fn config(task: &Task, timeout_seconds: u64) -> Config {
    let org: String = task
        .origin
        .project
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') {
                c
            } else {
                '-'
            }
        })
        .collect();
    let org = org.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    let org = if org.is_empty() { "temper" } else { org };
    let mut metadata = Map::new();
    for (key, value) in [
        ("licence", &task.origin.licence),
        ("project_version", &task.origin.version),
        ("project_url", &task.origin.url),
        ("bug", &task.origin.bug),
    ] {
        if let Some(value) = value {
            metadata.insert(key.to_owned(), value.as_str().into());
        }
    }
    Config {
        schema_version: Some("1.4".to_owned()),
        task: Some(harbor::config::Package {
            name: format!("{org}/{}", directory_name(task)),
            version: None,
            description: task
                .statement
                .lines()
                .next()
                .unwrap_or_default()
                .trim_start_matches('#')
                .trim()
                .to_owned(),
            authors: Vec::new(),
            keywords: vec!["python".to_owned(), "code-repair".to_owned()],
        }),
        metadata,
        verifier: harbor::config::Verifier {
            timeout_sec: timeout_seconds as f64,
            ..harbor::config::Verifier::default()
        },
        environment: harbor::config::Environment {
            workdir: Some(WORK_TREE.to_owned()),
            ..harbor::config::Environment::default()
        },
        ..Config::default()
    }
}

/// The settings as `task.toml`, without what is not said.
pub(crate) fn toml_of(config: &Config) -> Result<String, NotExpressible> {
    let mut value = serde_json::to_value(config).expect("settings are plain data");
    let default = serde_json::to_value(Config::default()).expect("settings are plain data");
    without_defaults(&mut value, &default);
    toml::to_string_pretty(&value)
        .map_err(|error| NotExpressible(format!("its settings are no TOML: {error}")))
}

/// Takes away what equals the default, and every null, which TOML does not have.
fn without_defaults(value: &mut Value, default: &Value) {
    let Value::Object(fields) = value else {
        return;
    };
    fields.retain(|field, value| {
        let default = default.get(field).unwrap_or(&Value::Null);
        if value.is_null() || value == default {
            return false;
        }
        without_defaults(value, default);
        true
    });
}

/// Whether reading the directory gives the task as it is.
fn reads_as(directory: &Path, task: &Task) -> bool {
    let Ok(loaded) = harbor::read(directory) else {
        return false;
    };
    let [read] = loaded.tasks.as_slice() else {
        return false;
    };
    let (mut read, mut task) = (read.clone(), task.clone());
    read.format = task.format;
    for task in [&mut read, &mut task] {
        for (_, path) in carried::directories(task) {
            *path = Default::default();
        }
    }
    read == task
}

/// Writes the task itself into the metadata of its `task.toml`.
fn carry(task: &Task, mut tree: Tree, directory: &Path) -> Result<(), LoadError> {
    let manifest = path(TASK_FILE);
    let failed = |problem: String| LoadError::write(&directory.join(TASK_FILE), problem);
    let text = match tree.get(&manifest) {
        Some(Entry::File { content, .. }) => String::from_utf8_lossy(content).into_owned(),
        _ => String::new(),
    };
    let (mut config, _) = harbor::parse_config(&text).map_err(failed)?;
    config.metadata.shift_remove(carried::FIELD);
    let mut task = task.clone();
    for (name, path) in carried::directories(&mut task) {
        *path = name.into();
    }
    let carried = Carried::of(&task, harbor::agreement(&tree, &config), false, false);
    config
        .metadata
        .insert(carried::FIELD.to_owned(), carried.to_text().into());
    let text = toml_of(&config).map_err(|reason| failed(reason.0))?;
    tree.insert(manifest, Entry::file(text.into_bytes()));
    fs::remove_dir_all(directory).map_err(|error| LoadError::write(directory, Cause::Io(error)))?;
    write_tree(&tree, directory).map_err(|error| LoadError::write(directory, error))
}

fn path(name: &str) -> TreePath {
    name.parse().expect("it is a plain path")
}

fn put(tree: &mut Tree, name: &str, content: impl Into<Vec<u8>>) {
    tree.insert(path(name), Entry::file(content));
}

fn script(tree: &mut Tree, name: &str, body: &str) {
    tree.insert(
        path(name),
        Entry::File {
            content: format!("#!/bin/bash\n{body}").into_bytes(),
            executable: true,
        },
    );
}

fn copy(from: &Path, name: &str, tree: &mut Tree) -> Result<(), NotExpressible> {
    let found = read_tree(from, &TreeLimits::default())
        .map_err(|error| NotExpressible(error.to_string()))?;
    below(name, found, tree);
    Ok(())
}

fn below(name: &str, files: Tree, tree: &mut Tree) {
    for (file, entry) in files {
        let mut whole = name.as_bytes().to_vec();
        whole.push(b'/');
        whole.extend_from_slice(file.as_bytes());
        if let Ok(whole) = TreePath::new(whole) {
            tree.insert(whole, entry);
        }
    }
}
