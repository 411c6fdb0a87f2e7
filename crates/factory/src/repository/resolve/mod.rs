//! Which wheels: pip's own resolver, restricted to pure-Python wheels, run dry.
//!
//! Nothing is built and nothing is installed, so no code of a package runs. What comes out is a
//! list of files with hashes.

mod pip;

use std::{collections::BTreeSet, fs, path::Path};

use serde::Deserialize;
use temper_core::{Digest, task::Archive};
use temper_tasks::{cache::Cache, prepare::Tools};

use self::pip::Pip;
use super::{
    RepositoryError,
    requirements::{Optional, is_tool, name_of, normalize},
};

/// Changes when the same inputs would give another list.
const LAYOUT: &str = "resolution-3";
/// How often pip is run at most for one project.
const MAX_RUNS: usize = 40;

/// Wheels, and what was left out.
#[derive(Clone, Debug, PartialEq, serde::Serialize, Deserialize)]
pub(super) struct Resolution {
    pub(super) wheels: Vec<Archive>,
    pub(super) notes: Vec<String>,
}

/// Resolves what must be there together with as much as possible of what may be left out. The
/// result is kept in the cache: by the index that was asked, and the first one for work offline.
pub(super) fn resolve(
    required: &[String],
    optional: &[Optional],
    cache: &Cache,
    tools: &Tools,
) -> Result<Resolution, RepositoryError> {
    let interpreter = tools.interpreter()?;
    let options = tools.fetcher().options();
    let known = |index: Option<&str>, make: &dyn Fn() -> Result<Resolution, RepositoryError>| {
        let key = Digest::of_value(&serde_json::json!({
            "layout": LAYOUT,
            "python": interpreter.version,
            "implementation": interpreter.implementation,
            "required": required,
            "optional": optional.iter().map(|o| &o.text).collect::<Vec<_>>(),
            "index": index,
        }));
        kept(cache, &key, make)
    };
    let found = known(options.index.as_deref(), &|| {
        let mut pip = Pip::find(tools)?;
        let mut found = choose(&mut pip, required, optional)?;
        leave_backports_out(&mut found, &interpreter.standard_modules);
        Ok(found)
    })?;
    if options.index.is_some() {
        known(None, &|| Ok(found.clone()))?;
    }
    Ok(found)
}

/// A resolution of the cache, which is made where it is not there.
fn kept(
    cache: &Cache,
    key: &Digest,
    make: &dyn Fn() -> Result<Resolution, RepositoryError>,
) -> Result<Resolution, RepositoryError> {
    let io = |operation, path: &Path| {
        let path = path.to_owned();
        move |source| RepositoryError::Io {
            operation,
            path,
            source,
        }
    };
    let name = "resolution.json";
    let content = cache.entry::<RepositoryError>("resolutions", key, |content| {
        let bytes = serde_json::to_vec_pretty(&make()?).expect("a resolution is plain data");
        let path = content.join(name);
        fs::write(&path, bytes).map_err(io("write", &path))
    })?;
    let path = content.join(name);
    fs::read(&path)
        .and_then(|bytes| serde_json::from_slice(&bytes).map_err(std::io::Error::other))
        .map_err(io("read", &path))
}

/// A backport of a module that this Python has would hide it, and mostly does not work there.
fn leave_backports_out(found: &mut Resolution, standard_modules: &BTreeSet<String>) {
    let Resolution { wheels, notes } = found;
    wheels.retain(|wheel| {
        let module = normalize(&wheel.project).replace('-', "_");
        let is_standard = standard_modules.contains(&module);
        if is_standard {
            notes.push(format!(
                "{} is left out: Python has a module of this name",
                wheel.file_name
            ));
        }
        !is_standard
    });
}

fn choose(
    pip: &mut Pip,
    required: &[String],
    optional: &[Optional],
) -> Result<Resolution, RepositoryError> {
    let mut wanted: Vec<&Optional> = optional.iter().collect();
    let mut notes = Vec::new();
    loop {
        let all: Vec<&str> = required
            .iter()
            .map(String::as_str)
            .chain(wanted.iter().map(|o| o.text.as_str()))
            .collect();
        let problem = match pip.run(&all)? {
            Ok(wheels) => return Ok(Resolution { wheels, notes }),
            Err(problem) => problem,
        };
        if wanted.is_empty() {
            return Err(pip.failed(problem));
        }
        let named = problem.names();
        let before = wanted.len();
        wanted.retain(|option| {
            let keep = !named.contains(&name_of(&option.text));
            if !keep {
                notes.push(format!(
                    "{} of {} is left out: {}",
                    option.text,
                    option.from,
                    problem.reason()
                ));
            }
            keep
        });
        if wanted.len() == before || pip.n_runs + wanted.len() > MAX_RUNS {
            break;
        }
    }
    // The trouble is not one requirement's alone, so each has to show that it fits.
    let mut list: Vec<&str> = required.iter().map(String::as_str).collect();
    let mut wheels = match pip.run(&list)? {
        Ok(wheels) => wheels,
        Err(problem) => return Err(pip.failed(problem)),
    };
    for option in wanted {
        if pip.n_runs >= MAX_RUNS {
            notes.push(format!(
                "{} of {} is left out: too many requirements do not fit together",
                option.text, option.from
            ));
            continue;
        }
        list.push(&option.text);
        match pip.run(&list)? {
            Ok(more) => wheels = more,
            Err(problem) => {
                list.pop();
                notes.push(format!(
                    "{} of {} is left out: {}",
                    option.text,
                    option.from,
                    problem.reason()
                ));
            }
        }
    }
    Ok(Resolution { wheels, notes })
}

/// Modules of pytest plugins that wheels declare: the runner loads only what is named. Tools that
/// only another package asked for are not among them.
pub(super) fn pytest_plugins(
    wheels: &[Archive],
    tools: &Tools,
) -> Result<Vec<String>, RepositoryError> {
    let mut modules = Vec::new();
    for wheel in wheels.iter().filter(|wheel| !is_tool(&wheel.project)) {
        let path = tools.fetcher().fetch(wheel)?;
        let mut inside = false;
        for line in entry_points(&path).lines().map(str::trim) {
            if line.starts_with('[') {
                inside = line == "[pytest11]";
            } else if inside && let Some((_, module)) = line.split_once('=') {
                let module = module
                    .trim()
                    .split(['[', ':', ' '])
                    .next()
                    .unwrap_or_default();
                if !module.is_empty()
                    && module
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b"._".contains(&b))
                {
                    modules.push(module.to_owned());
                }
            }
        }
    }
    modules.sort();
    modules.dedup();
    Ok(modules)
}

/// The wheel's `entry_points.txt`, empty if there is none.
fn entry_points(wheel: &Path) -> String {
    use std::io::Read;
    let Some(mut archive) = fs::File::open(wheel)
        .ok()
        .and_then(|file| zip::ZipArchive::new(file).ok())
    else {
        return String::new();
    };
    let name = archive.file_names().flatten().find(|name| {
        name.ends_with(".dist-info/entry_points.txt") && name.matches('/').count() == 1
    });
    let name = name.map(|name| name.into_owned());
    let mut text = String::new();
    if let Some(name) = name
        && let Ok(file) = archive.by_name(&name)
    {
        // What is longer or is no text declares nothing.
        let _ = file.take(1 << 20).read_to_string(&mut text);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backports_of_standard_modules_are_left_out() {
        let wheel = |project: &str| Archive {
            project: project.into(),
            file_name: format!("{project}-1.0-py3-none-any.whl"),
            sha256: Digest::of(project.as_bytes()),
        };
        let mut found = Resolution {
            wheels: ["dataclasses", "pytest", "typing-extensions"]
                .map(wheel)
                .into(),
            notes: Vec::new(),
        };
        let standard = ["dataclasses", "typing"].map(str::to_owned).into();
        leave_backports_out(&mut found, &standard);
        assert_eq!(found.wheels, ["pytest", "typing-extensions"].map(wheel));
        assert_eq!(found.notes.len(), 1);
    }
}
