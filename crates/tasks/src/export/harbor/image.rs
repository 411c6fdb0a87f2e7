//! The build context of a task's image.

use serde_json::json;
use temper_core::{
    Task, Tree,
    task::{Archive, Environment, HiddenSource, Start, Verifier},
};

use super::{super::NotExpressible, copy, directory::Sources, put};
use crate::{prepare::WORK_TREE, python::Requirement};

/// Versions of the official image, the best known first.
const PYTHONS: [(u64, u64); 7] = [(3, 12), (3, 11), (3, 13), (3, 10), (3, 14), (3, 9), (3, 8)];

pub(super) fn files(task: &Task, sources: &Sources<'_>) -> Result<Tree, NotExpressible> {
    let Environment::Python {
        requires_python,
        wheels,
        python_path,
    } = &task.environment
    else {
        return Err(NotExpressible::new("its environment is not pinned wheels"));
    };
    let python = python(requires_python)?;
    let mut tree = Tree::new();
    let archive = match &task.start {
        Start::SourceDistribution { archive, patch } => {
            if !patch.is_empty() {
                let mut text = patch.0.0.clone();
                if !text.ends_with(b"\n") {
                    text.push(b'\n');
                }
                put(&mut tree, "environment/start.patch", text);
            }
            Some(archive)
        }
        Start::Directory { path, .. } => {
            copy(path, "environment/start", &mut tree)?;
            None
        }
        _ => None,
    };
    if let Verifier::Pytest {
        hidden_source: HiddenSource::Directory { path },
        ..
    } = &task.verifier
    {
        // Beside the layer of that name, so that the task can be read back as it was.
        copy(path, "tests/files", &mut tree)?;
    }
    if let Some(archive) = archive
        && let Some(content) = sources.local(archive)?
    {
        let name = format!("environment/archives/{}", archive.file_name);
        put(&mut tree, &name, content);
    }
    let mut has_local = false;
    for wheel in wheels {
        if let Some(content) = sources.local(wheel)? {
            has_local = true;
            put(
                &mut tree,
                &format!("environment/wheels/{}", wheel.file_name),
                content,
            );
        }
    }
    put(
        &mut tree,
        "environment/plan.json",
        format!("{:#}\n", json!({ "archive": archive })),
    );
    put(&mut tree, "environment/build.py", include_str!("build.py"));
    let requirements: Vec<String> = wheels
        .iter()
        .map(|wheel| Ok(format!("{} --hash=sha256:{}\n", pin(wheel)?, wheel.sha256)))
        .collect::<Result<_, NotExpressible>>()?;
    put(
        &mut tree,
        "environment/requirements.txt",
        requirements.concat(),
    );
    let search: Vec<String> = python_path
        .iter()
        .map(|entry| match entry.as_str() {
            "." => WORK_TREE.to_owned(),
            entry => format!("{WORK_TREE}/{entry}"),
        })
        .collect();
    let (copy_wheels, find) = if has_local {
        ("COPY wheels /build/wheels\n", " --find-links /build/wheels")
    } else {
        ("", "")
    };
    put(
        &mut tree,
        "environment/Dockerfile",
        format!(
            "# Everything is fetched by name and SHA-256; INDEX may name a mirror.\n\
             FROM python:{python}-slim AS base\n\
             RUN apt-get update && apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/*\n\
             ENV LANG=C.UTF-8 TZ=UTC\n\
             \n\
             # The archive also holds the fix and the hidden tests, so it stays in this stage.\n\
             FROM base AS start\n\
             ARG INDEX=https://pypi.org/simple\n\
             COPY . /build/\n\
             RUN INDEX=$INDEX python /build/build.py {WORK_TREE}\n\
             \n\
             FROM base\n\
             ARG INDEX=https://pypi.org/simple\n\
             COPY requirements.txt /build/requirements.txt\n\
             {copy_wheels}\
             RUN python -m pip install --no-cache-dir --no-deps --require-hashes --index-url $INDEX{find} -r /build/requirements.txt && rm -rf /build\n\
             COPY --from=start {WORK_TREE} {WORK_TREE}\n\
             ENV PYTHONPATH={} PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1\n\
             RUN git config --system --add safe.directory {WORK_TREE}\n\
             WORKDIR {WORK_TREE}\n",
            search.join(":")
        ),
    );
    Ok(tree)
}

fn python(required: &str) -> Result<String, NotExpressible> {
    let required: Requirement = required
        .parse()
        .map_err(|error| NotExpressible(format!("its Python: {error}")))?;
    PYTHONS
        .iter()
        // Which patch release an image has is not known; no project asks for one this late.
        .find(|(major, minor)| required.allows((*major, *minor, 99)))
        .map(|(major, minor)| format!("{major}.{minor}"))
        .ok_or_else(|| NotExpressible::new("no image of Python is known that it works with"))
}

/// `name==version` of a wheel's file name.
fn pin(wheel: &Archive) -> Result<String, NotExpressible> {
    let bad = || NotExpressible(format!("{} is no wheel", wheel.file_name));
    let mut parts = wheel
        .file_name
        .strip_suffix(".whl")
        .ok_or_else(bad)?
        .split('-');
    let (Some(name), Some(version)) = (parts.next(), parts.next()) else {
        return Err(bad());
    };
    let is_plain = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._+!".contains(&byte))
    };
    if is_plain(name) && is_plain(version) {
        Ok(format!("{name}=={version}"))
    } else {
        Err(bad())
    }
}
