//! The fields of a SWE-bench instance. Its patch is the known fix, and its test patch puts the
//! hidden tests back.

use serde_json::{Map, Value};
use temper_core::{
    Patch, Task, TestId,
    task::{Environment, HiddenSource, Oracle, Start, Verifier},
};

use super::{NotExpressible, carried::all_tests, rows};

/// What stands for the start's commit where the start is none: in an image, the commit that the
/// work tree is at.
const HEAD: &str = "HEAD";

pub(super) fn fields(task: &Task) -> Result<Map<String, Value>, NotExpressible> {
    let tests = all_tests(&task.verifier)
        .ok_or_else(|| NotExpressible::new("its verifier has no test lists"))?;
    if task.statement.trim().is_empty() {
        return Err(NotExpressible::new("it has no statement"));
    }
    let fix = match &task.oracle {
        Some(Oracle::Patch { patch }) => patch.clone(),
        Some(Oracle::ReversePatch { patch }) => temper_core::patch::reverse(patch)
            .map_err(|error| NotExpressible(format!("its bug cannot be undone: {error}")))?,
        Some(Oracle::Script { .. }) => {
            return Err(NotExpressible::new(
                "its known fix is a script, not a patch",
            ));
        }
        None => Patch::default(),
    };
    let base_commit = match &task.start {
        Start::Image {
            base_commit: Some(commit),
            ..
        }
        | Start::GitCommit { commit, .. } => commit.as_str(),
        _ => HEAD,
    };
    let is_native = matches!(task.verifier, Verifier::Pytest { .. });
    let (owner, name) = rows::repository(task);
    let repository = if is_native {
        format!("{owner}/{name}")
    } else {
        task.origin.project.clone()
    };
    let mut fields = Map::new();
    let mut put = |field: &str, value: Value| {
        fields.insert(field.to_owned(), value);
    };
    put("repo", repository.clone().into());
    put("instance_id", task.id.as_str().replace('/', "__").into());
    put("base_commit", base_commit.into());
    put("patch", rows::text(&fix)?);
    put("test_patch", rows::text(&test_patch(task)?)?);
    put("problem_statement", task.statement.clone().into());
    let version = match task.metadata.get("version") {
        Some(Value::String(version)) => version.clone(),
        _ => String::new(),
    };
    if is_native {
        put("hints_text", "".into());
        put("created_at", "".into());
        let version = task.origin.version.clone().unwrap_or_default();
        put("version", version.into());
    }
    put("FAIL_TO_PASS", python_list(&tests.fail_to_pass).into());
    put("PASS_TO_PASS", python_list(&tests.pass_to_pass).into());
    if is_native {
        put("environment_setup_commit", base_commit.into());
    }
    match &task.environment {
        Environment::Image { image, .. } if *image == crate::swebench::default_image(&task.id) => {}
        Environment::Image { image, .. } => put("image_name", image.clone().into()),
        _ => {
            let image = format!(
                "temper/{}_1776_{}.{}",
                owner.to_lowercase(),
                name.to_lowercase(),
                rows::state(task)
            );
            put("image_name", image.into());
        }
    }
    match &task.verifier {
        Verifier::Log {
            parser,
            test_command,
            test_patch,
            ..
        } => {
            let (known_parser, known_command) =
                crate::swebench::harness(&repository, &version, test_patch);
            if known_parser != Some(parser.as_str()) {
                put("log_parser", parser.clone().into());
            }
            if known_command != *test_command
                && let Some(command) = test_command
            {
                put("test_cmd", command.clone().into());
            }
        }
        Verifier::Pytest {
            test_files,
            arguments,
            ..
        } => {
            put("log_parser", "pytest-v2".into());
            let words: Vec<String> = arguments
                .iter()
                .chain(test_files)
                .map(|text| crate::swebench::word(text))
                .collect();
            put(
                "test_cmd",
                format!("python -m pytest -rA {}", words.join(" ")).into(),
            );
        }
        Verifier::Harbor { .. } => {}
    }
    Ok(fields)
}

/// What puts the hidden tests back: the part of the start's patch that touches test files, undone.
fn test_patch(task: &Task) -> Result<Patch, NotExpressible> {
    match (&task.verifier, &task.start) {
        (Verifier::Log { test_patch, .. }, _) => Ok(test_patch.clone()),
        (
            Verifier::Pytest {
                test_files,
                hidden_source: HiddenSource::SourceDistribution,
                ..
            },
            Start::SourceDistribution { patch, .. },
        ) => {
            if patch.is_empty() {
                return Ok(Patch::default());
            }
            let undone = temper_core::patch::reverse(patch).map_err(|error| {
                NotExpressible(format!("its start's patch cannot be undone: {error}"))
            })?;
            Ok(only(&undone, test_files))
        }
        _ => Ok(Patch::default()),
    }
}

/// The parts of a patch in git's format that touch one of `files`.
fn only(patch: &Patch, files: &[String]) -> Patch {
    const HEADER: &[u8] = b"diff --git ";
    let mut kept = Vec::new();
    let mut part: Vec<u8> = Vec::new();
    let mut flush = |part: &mut Vec<u8>| {
        let section = Patch(std::mem::take(part).into());
        let paths = temper_core::patch::paths(&section).unwrap_or_default();
        if paths
            .iter()
            .any(|path| files.iter().any(|file| file.as_bytes() == path.as_bytes()))
        {
            kept.extend_from_slice(&section.0);
        }
    };
    for line in patch.0.split_inclusive(|byte| *byte == b'\n') {
        // Within a part every line begins with a sign, a space or a letter of base 85, which has
        // no space in it, so this can only be a header.
        if line.starts_with(HEADER) && !part.is_empty() {
            flush(&mut part);
        }
        part.extend_from_slice(line);
    }
    flush(&mut part);
    Patch(kept.into())
}

/// A JSON list as Python writes it, which is how the published sets hold their lists.
fn python_list(tests: &[TestId]) -> String {
    use std::fmt::Write;
    let mut text = String::from("[");
    for (index, test) in tests.iter().enumerate() {
        if index > 0 {
            text.push_str(", ");
        }
        let quoted = Value::from(test.as_str()).to_string();
        for c in quoted.chars() {
            if c.is_ascii() && c != '\u{7f}' {
                text.push(c);
            } else {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(text, "\\u{unit:04x}").expect("writing to a string succeeds");
                }
            }
        }
    }
    text.push(']');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_written_as_python_writes_them() {
        let ids = ["a::b", "c[é-\u{1f600}\"\\\n\t\u{7f}\u{1}]"].map(TestId::from);
        // json.dumps of CPython 3.11.
        assert_eq!(
            python_list(&ids),
            r#"["a::b", "c[\u00e9-\ud83d\ude00\"\\\n\t\u007f\u0001]"]"#
        );
        assert_eq!(python_list(&[]), "[]");
    }
}
