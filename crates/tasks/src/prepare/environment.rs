//! Python environments: the host's interpreter, pinned wheels, nothing else.

use std::{
    collections::BTreeMap,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
};

use temper_core::{
    Digest, TreePath,
    task::{Archive, PreparedMount},
};

use super::{ENVIRONMENT, HOME, Place, PrepareError, TEMPER, Tools};
use crate::{
    cache::Cache,
    python::{Interpreter, PythonError, wheel},
    tree_io::{write_new, write_tree},
};

/// Changes when the same inputs would give other files.
const LAYOUT: &str = "environment-1";

pub(super) fn python(
    requires_python: &str,
    wheels: &[Archive],
    python_path: &[String],
    cache: &Cache,
    tools: &Tools,
    place: &mut Place,
) -> Result<serde_json::Value, PrepareError> {
    let interpreter = tools.interpreter()?;
    interpreter.check(requires_python)?;
    let key = Digest::of_value(&serde_json::json!({
        "layout": LAYOUT,
        "interpreter": interpreter,
        "wheels": wheels,
    }));
    let content = cache.entry("environments", &key, |content| {
        make(&interpreter, wheels, tools, content)
    })?;

    let mut search = Vec::new();
    for entry in python_path {
        search.push(match entry.as_str() {
            "." => place.work_tree.clone(),
            entry => {
                let path: TreePath = entry.parse().map_err(|error| {
                    PrepareError::Invalid(format!("an entry of python_path: {error}"))
                })?;
                format!("{}/{path}", place.work_tree)
            }
        });
    }
    search.push(format!("{ENVIRONMENT}/site-packages"));

    place.variables = base_variables(&place.work_tree);
    for (name, value) in [
        (
            "PATH",
            format!("{TEMPER}/bin:{ENVIRONMENT}/bin:/usr/local/bin:/usr/bin:/bin"),
        ),
        ("PYTHONPATH", search.join(":")),
        // Compiled files in the work tree would be changes, and could outlive their source.
        ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
        // The order of sets and dictionaries of strings must not vary between trials.
        ("PYTHONHASHSEED", "0".to_owned()),
        ("PYTHONNOUSERSITE", "1".to_owned()),
        ("VIRTUAL_ENV", ENVIRONMENT.to_owned()),
    ] {
        place.variables.insert(name.to_owned(), value);
    }
    place.mounts.push(PreparedMount {
        source: content,
        target: ENVIRONMENT.to_owned(),
    });
    for path in interpreter.mounts()? {
        place.mounts.push(PreparedMount {
            target: path.to_string_lossy().into_owned(),
            source: path,
        });
    }
    Ok(serde_json::json!({
        "layout": LAYOUT,
        "python": interpreter.version_text(),
        "implementation": interpreter.implementation,
        "wheels": wheels,
        "python_path": python_path,
    }))
}

/// What every command sees, with or without Python.
pub(super) fn base_variables(work_tree: &str) -> BTreeMap<String, String> {
    [
        ("PATH", format!("{TEMPER}/bin:/usr/local/bin:/usr/bin:/bin")),
        ("HOME", HOME.to_owned()),
        ("TMPDIR", "/tmp".to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("TZ", "UTC".to_owned()),
        ("TERM", "dumb".to_owned()),
        // Git refuses a repository of another user, and the tree on disk is Temper's.
        ("GIT_CONFIG_COUNT", "1".to_owned()),
        ("GIT_CONFIG_KEY_0", "safe.directory".to_owned()),
        ("GIT_CONFIG_VALUE_0", work_tree.to_owned()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

fn make(
    interpreter: &Interpreter,
    wheels: &[Archive],
    tools: &Tools,
    content: &Path,
) -> Result<(), PrepareError> {
    let files = wheels
        .iter()
        .map(|wheel| tools.fetcher.fetch(wheel))
        .collect::<Result<Vec<_>, _>>()?;
    let site = wheel::install(&files)?;
    let packages = content.join("site-packages");
    write_tree(&site, &packages)?;

    let write = |path: &Path, result: std::io::Result<()>| {
        result.map_err(|source| PrepareError::Io {
            operation: "write",
            path: path.to_owned(),
            source,
        })
    };
    let bin = content.join("bin");
    write(&bin, std::fs::create_dir(&bin))?;
    let (major, minor, _) = interpreter.version;
    write(&bin, symlink(&interpreter.executable, bin.join("python")))?;
    for name in ["python3".to_owned(), format!("python{major}.{minor}")] {
        write(&bin, symlink("python", bin.join(name)))?;
    }
    let python = format!("{ENVIRONMENT}/bin/python");
    for (name, script) in wheel::console_scripts(&site, &python) {
        let path = bin.join(name);
        write(&path, write_new(&path, script.as_bytes(), true))?;
    }

    let library = content.join(format!("lib/python{major}.{minor}"));
    write(&library, std::fs::create_dir_all(&library))?;
    write(
        &library,
        symlink("../../site-packages", library.join("site-packages")),
    )?;
    let home = interpreter.executable.parent().unwrap_or(Path::new("/"));
    let configuration = content.join("pyvenv.cfg");
    let text = format!(
        "home = {}\ninclude-system-site-packages = false\nversion = {}\n",
        home.display(),
        interpreter.version_text()
    );
    write(
        &configuration,
        write_new(&configuration, text.as_bytes(), false),
    )?;
    compile(interpreter, &packages)
}

/// Compiles ahead of time, since what is mounted read-only cannot be compiled later. The compiled
/// files are not checked against their sources' times, which a mount may change. A source that does
/// not compile (a template, Python 2) is no error, as in any installation.
fn compile(interpreter: &Interpreter, packages: &Path) -> Result<(), PrepareError> {
    let mut command = Command::new(&interpreter.executable);
    command
        .args(["-I", "-m", "compileall", "-q", "-q", "-f"])
        .args(["--invalidation-mode", "unchecked-hash"]);
    if interpreter.version >= (3, 9, 0) {
        command
            .arg("-s")
            .arg(packages)
            .args(["-p", &format!("{ENVIRONMENT}/site-packages")]);
    }
    command
        .arg(packages)
        .stdin(Stdio::null())
        .output()
        .map(drop)
        .map_err(|error| {
            PythonError::Broken {
                program: interpreter.executable.clone(),
                reason: error.to_string(),
            }
            .into()
        })
}
