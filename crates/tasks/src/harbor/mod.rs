//! Harbor task directories, and directories of them.
//!
//! The whole configuration is kept in the task's metadata ([`Config::of`]), since it says more than
//! a [`Task`] has fields for: limits, users, the network. Variables keep their templates
//! (`${VAR:-default}`): only the caller may look at the environment, and [`expand`] is for it.
//!
//! What Temper cannot do yet is read all the same and named by [`unsupported`]; preparing such a
//! task is refused with those reasons.

mod check;
pub mod config;
mod kept;

use std::path::{Path, PathBuf};

use serde_json::Value;
use temper_core::{
    Digest, SourceGroup, Split, Task, TaskId, Tree,
    task::{Environment, Oracle, Origin, Start, TaskFormat, Verifier},
};

use crate::{
    error::{Cause, LoadError, read_bounded, read_text},
    export::{self, Carried},
    load::Loaded,
    tree_io::{TreeLimits, read_tree},
};
pub use config::Config;
use config::{EnvironmentMode, NetworkMode, Os};
pub(crate) use kept::kept_files;

/// The manifest's name.
pub const TASK_FILE: &str = "task.toml";
/// The statement's name.
pub(crate) const INSTRUCTION_FILE: &str = "instruction.md";
/// The key of the configuration in a task's metadata.
const CONFIG: &str = "harbor";
/// The key of the steps' instructions in a task's metadata.
const STEPS: &str = "harbor_steps";
/// The key of the reasons why a task cannot be run.
const UNSUPPORTED: &str = "unsupported";

const MAX_CONFIG_BYTES: u64 = 4 << 20;
const MAX_INSTRUCTION_BYTES: u64 = 4 << 20;

impl Config {
    /// The configuration that a task was read with, if it is one of Harbor's.
    pub fn of(task: &Task) -> Option<Config> {
        serde_json::from_value(task.metadata.get(CONFIG)?.clone()).ok()
    }
}

/// Why a task cannot be run here; empty if it can.
pub fn unsupported(task: &Task) -> Vec<String> {
    task.metadata
        .get(UNSUPPORTED)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|reason| reason.as_str().map(str::to_owned))
        .collect()
}

/// Whether a task has several steps, whose files are in directories of their own.
pub(crate) fn has_steps(task: &Task) -> bool {
    task.metadata.contains_key(STEPS)
}

/// Replaces `${VAR}` and `${VAR:-default}` by what `look_up` gives. A variable without a value and
/// without a default is an error that names it.
pub fn expand(
    text: &str,
    look_up: &mut dyn FnMut(&str) -> Option<String>,
) -> Result<String, String> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let Some(length) = rest[start..].find('}') else {
            break;
        };
        let inner = &rest[start + 2..start + length];
        let (name, default) = match inner.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inner, None),
        };
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        expanded.push_str(&rest[..start]);
        if is_name {
            match look_up(name).or_else(|| default.map(str::to_owned)) {
                Some(value) => expanded.push_str(&value),
                None => return Err(name.to_owned()),
            }
        } else {
            expanded.push_str(&rest[start..=start + length]);
        }
        rest = &rest[start + length + 1..];
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// Whether a directory holds one of Harbor's tasks, or several.
pub(crate) fn is_there(directory: &Path) -> bool {
    directory.join(TASK_FILE).is_file() || !children(directory).is_empty()
}

/// Reads a task directory, or every task directory in a directory, in order of their names.
pub fn read(directory: &Path) -> Result<Loaded, LoadError> {
    let directories = if directory.join(TASK_FILE).is_file() {
        vec![directory.to_owned()]
    } else {
        children(directory)
    };
    if directories.is_empty() {
        return Err(LoadError::read(&directory.join(TASK_FILE), Cause::Missing));
    }
    let mut loaded = Loaded {
        tasks: Vec::new(),
        warnings: Vec::new(),
    };
    let mut seen = std::collections::BTreeMap::new();
    for directory in directories {
        let task = read_task(&directory, &mut loaded.warnings)?;
        if let Some(first) = seen.insert(task.id.clone(), directory.clone()) {
            let cause = Cause::Duplicate {
                id: task.id.to_string(),
                first: first.display().to_string(),
            };
            return Err(LoadError::read(&directory.join(TASK_FILE), cause));
        }
        loaded.tasks.push(task);
    }
    Ok(loaded)
}

fn children(directory: &Path) -> Vec<PathBuf> {
    let Ok(items) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut found: Vec<_> = items
        .filter_map(|item| Some(item.ok()?.path()))
        .filter(|path| path.join(TASK_FILE).is_file())
        .collect();
    found.sort();
    found
}

fn read_task(directory: &Path, warnings: &mut Vec<String>) -> Result<Task, LoadError> {
    let directory =
        std::fs::canonicalize(directory).map_err(|error| LoadError::read(directory, error))?;
    let file = directory.join(TASK_FILE);
    let text = read_text(&file, MAX_CONFIG_BYTES)?;
    let mut config: Config = toml::from_str(&text).map_err(|error| {
        LoadError::read(
            &file,
            Cause::Syntax(error.to_string().trim_end().to_owned()),
        )
    })?;
    let notes = check::check(&mut config)
        .map_err(|(field, text)| LoadError::read(&file, text).in_field(field))?;
    let carried = config.metadata.shift_remove(export::FIELD);
    if let Some(carried) = &carried {
        match restored(carried, &config, &directory) {
            Ok(task) => return Ok(task),
            Err(problem) => warnings.push(format!(
                "{}: metadata.{} is not used: {problem}",
                directory.display(),
                export::FIELD
            )),
        }
    }

    let name = match &config.task {
        Some(task) => task.name.clone(),
        None => directory
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default(),
    };
    warnings.extend(notes.iter().map(|note| format!("{name}: {note}")));
    let invalid = |error: temper_core::ids::InvalidName| {
        LoadError::read(&file, error.to_string()).in_field("task.name")
    };
    let id = TaskId::new(name.clone()).map_err(invalid)?;
    let source_group = SourceGroup::new(name.clone()).map_err(invalid)?;

    let steps = config
        .steps
        .iter()
        .map(|step| {
            let path = directory
                .join("steps")
                .join(&step.name)
                .join("instruction.md");
            read_instruction(&directory, &path).map(Value::String)
        })
        .collect::<Result<Vec<_>, _>>()?;
    let statement = match steps.first() {
        // What the agent would be asked first; the other steps' instructions are in the metadata.
        Some(Value::String(first)) => first.clone(),
        _ => read_instruction(&directory, &directory.join(INSTRUCTION_FILE))?,
    };

    let tests = directory.join("tests");
    if steps.is_empty() && !tests.join("test.sh").is_file() {
        if !tests.join("test.bat").is_file() {
            return Err(LoadError::read(&tests.join("test.sh"), Cause::Missing));
        }
        config.environment.os = Os::Windows;
    }
    let solution = directory.join("solution");
    let oracle = solution.join("solve.sh").is_file().then(|| Oracle::Script {
        directory: solution,
        environment: config.solution.env.clone(),
    });

    let unsupported = reasons(&config, &directory);
    let environment = environment(&config, &directory)?;
    let timeout_seconds = config.verifier.timeout_sec.ceil() as u64;
    let verifier = Verifier::Harbor {
        tests,
        environment: config.verifier.env.clone(),
        timeout_seconds,
    };
    let origin = Origin {
        project: name,
        version: config.task.as_ref().and_then(|task| task.version.clone()),
        ..Origin::default()
    };
    let mut metadata = serde_json::Map::new();
    let value =
        serde_json::to_value(&config).map_err(|error| LoadError::read(&file, error.to_string()))?;
    metadata.insert(CONFIG.to_owned(), value);
    if steps.is_empty() {
        // A carried task that does not fit has been named in a warning and is not kept.
        let manifest = carried.is_none().then_some(text.as_str());
        let kept = kept::keep(
            &directory,
            manifest,
            &config,
            &statement,
            matches!(environment, Environment::Dockerfile { .. }),
            oracle.is_some(),
        );
        match kept {
            Ok(Some(kept)) => {
                metadata.insert(kept::KEY.to_owned(), kept);
            }
            Ok(None) => {}
            Err(problem) => warnings.push(format!("{}: {problem}", directory.display())),
        }
    }
    if !steps.is_empty() {
        metadata.insert(STEPS.to_owned(), Value::Array(steps));
    }
    if !unsupported.is_empty() {
        metadata.insert(UNSUPPORTED.to_owned(), unsupported.into());
    }
    Ok(Task {
        id,
        format: TaskFormat::Harbor,
        statement,
        start: Start::Image {
            base_commit: None,
            checkout: None,
        },
        environment,
        verifier,
        oracle,
        origin,
        source_group,
        split: Split::Unassigned,
        metadata,
        construction: None,
    })
}

/// The task that an export put into the metadata, if it belongs to these files.
fn restored(carried: &Value, config: &Config, directory: &Path) -> Result<Task, String> {
    let carried = Carried::read(carried)?;
    let tree = read_tree(directory, &TreeLimits::default()).map_err(|error| error.to_string())?;
    if !carried.agrees(&agreement(&tree, config)) {
        return Err("files or settings were changed since it was written".to_owned());
    }
    let statement = read_instruction(directory, &directory.join(INSTRUCTION_FILE))
        .map_err(|error| error.to_string())?;
    let mut task = carried.into_task(statement, None, None, Some(directory))?;
    task.format = TaskFormat::Harbor;
    Ok(task)
}

/// What a carried task must agree with: the settings, and every file but the statement.
pub(crate) fn agreement(tree: &Tree, config: &Config) -> Digest {
    let files: Tree = tree
        .iter()
        .filter(|(path, _)| {
            ![TASK_FILE, INSTRUCTION_FILE]
                .iter()
                .any(|name| name.as_bytes() == path.as_bytes())
        })
        .map(|(path, entry)| (path.clone(), entry.clone()))
        .collect();
    Digest::of_value(&(temper_core::tree::digest(&files), config))
}

/// Reads and checks the text of a `task.toml`; with what there is to say about it.
pub(crate) fn parse_config(text: &str) -> Result<(Config, Vec<String>), String> {
    let mut config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
    let notes =
        check::check(&mut config).map_err(|(field, problem)| format!("{field}: {problem}"))?;
    Ok((config, notes))
}

/// What an agent is shown of an instruction.
pub(crate) fn statement_of(instruction: &str) -> &str {
    without_canary(instruction)
}

fn environment(config: &Config, directory: &Path) -> Result<Environment, LoadError> {
    let context = directory.join("environment");
    let dockerfile = context.join("Dockerfile");
    let work_tree = match &config.environment.workdir {
        Some(workdir) => Some(workdir.clone()),
        None if dockerfile.is_file() => last_workdir(&String::from_utf8_lossy(&read_bounded(
            &dockerfile,
            1 << 20,
        )?)),
        None => None,
    };
    match &config.environment.docker_image {
        Some(image) => Ok(Environment::Image {
            image: image.clone(),
            work_tree: work_tree.unwrap_or_else(|| "/".to_owned()),
        }),
        None if context.is_dir() => Ok(Environment::Dockerfile { context, work_tree }),
        None => Err(LoadError::read(&dockerfile, Cause::Missing)),
    }
}

/// Where a container starts, as far as its Dockerfile says it with plain words. A name with a
/// variable in it is not known before the build.
fn last_workdir(dockerfile: &str) -> Option<String> {
    let mut workdir = String::new();
    for line in dockerfile.lines() {
        let mut words = line.split_whitespace();
        let instruction = words.next().unwrap_or_default();
        if instruction.eq_ignore_ascii_case("FROM") {
            workdir.clear();
        } else if instruction.eq_ignore_ascii_case("WORKDIR") {
            let path = words.next().unwrap_or_default().trim_matches(['"', '\'']);
            if path.contains('$') {
                return None;
            } else if path.starts_with('/') {
                workdir = path.to_owned();
            } else {
                workdir = format!("{}/{path}", workdir.trim_end_matches('/'));
            }
        }
    }
    (!workdir.is_empty()).then_some(workdir)
}

fn read_instruction(directory: &Path, path: &Path) -> Result<String, LoadError> {
    let real = std::fs::canonicalize(path).map_err(|error| LoadError::read(path, error))?;
    if !real.starts_with(directory) {
        let cause = Cause::Invalid("it is a link out of the task's directory".to_owned());
        return Err(LoadError::read(path, cause));
    }
    let text = read_text(&real, MAX_INSTRUCTION_BYTES)?;
    let text = without_canary(&text);
    if text.trim().is_empty() {
        return Err(LoadError::read(
            path,
            Cause::Invalid("it is empty".to_owned()),
        ));
    }
    Ok(text.to_owned())
}

/// The text without the comments at its top that mark benchmark data. They are for those who
/// collect training data, and an agent must not see them.
fn without_canary(text: &str) -> &str {
    let mut rest = text;
    loop {
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        let lower = line.trim().to_lowercase();
        let is_comment =
            (lower.starts_with("<!--") && lower.ends_with("-->")) || lower.starts_with('#');
        if !(is_comment && lower.contains("canary")) {
            break;
        }
        rest = after;
        if after.is_empty() {
            break;
        }
    }
    while let Some((line, after)) = rest.split_once('\n') {
        if !line.trim().is_empty() {
            break;
        }
        rest = after;
    }
    rest
}

/// What a task asks for that Temper cannot do.
fn reasons(config: &Config, directory: &Path) -> Vec<String> {
    let environment = &config.environment;
    let mut reasons = Vec::new();
    let mut add = |condition: bool, reason: &str| {
        if condition {
            reasons.push(reason.to_owned());
        }
    };
    add(!config.steps.is_empty(), "it has several steps");
    add(environment.os == Os::Windows, "it needs Windows containers");
    add(
        config.verifier.environment_mode == Some(EnvironmentMode::Separate)
            || config.verifier.environment.is_some(),
        "its verifier runs in a container of its own",
    );
    add(
        !config.verifier.collect.is_empty(),
        "it collects state from services",
    );
    add(
        [
            environment.network_mode,
            config.agent.network_mode,
            config.verifier.network_mode,
        ]
        .contains(&Some(NetworkMode::Allowlist)),
        "it allows some network hosts only",
    );
    add(
        environment.gpus.is_some_and(|n| n > 0) || environment.tpu.is_some(),
        "it needs an accelerator",
    );
    add(
        !environment.mcp_servers.is_empty(),
        "it gives the agent tool servers",
    );
    add(environment.healthcheck.is_some(), "it has a health check");
    add(
        environment.skills_dir.is_some(),
        "it gives the agent skills",
    );
    add(
        ["yaml", "yml"].iter().any(|end| {
            directory
                .join(format!("environment/docker-compose.{end}"))
                .is_file()
        }),
        "its environment is made of several services",
    );
    reasons
}

#[cfg(test)]
mod tests;
