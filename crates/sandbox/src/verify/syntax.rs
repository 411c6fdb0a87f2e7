//! The first layer: every Python file that the submission writes parses.
//!
//! The task's own interpreter parses them in a sandbox; nothing is imported or run, so what the
//! parser prints can be believed.

use std::time::{Duration, Instant};

use serde::Deserialize;
use temper_core::{
    Boundary, Bytes, Entry, Failure,
    task::InjectedFile,
    tree::Changes,
    verdict::{Layer, LayerName, LayerOutcome},
};

use super::{
    GradeRequest, LogSink,
    final_state::{excerpt, shell_quote},
    pytest_runner::FIND_PYTHON,
    random_hex, sandbox_spec,
};
use crate::Command;

const PROGRAM: &str = include_str!("python/syntax.py");

#[derive(Deserialize)]
#[serde(tag = "t", rename_all = "kebab-case")]
enum Line {
    Start { n: usize },
    Done { n: usize, problem: Option<String> },
    End,
}

/// Runs the layer.
pub fn run(
    request: &GradeRequest<'_>,
    changes: &Changes,
    logs: &mut LogSink<'_>,
) -> Result<Layer, Failure> {
    let started = Instant::now();
    let sources: Vec<(String, &[u8])> = changes
        .iter()
        .filter_map(|(path, entry)| match entry {
            Some(Entry::File { content, .. }) if path.as_bytes().ends_with(b".py") => {
                Some((path.to_text().into_owned(), content.as_slice()))
            }
            _ => None,
        })
        .collect();
    let (outcome, detail) = if sources.is_empty() {
        (LayerOutcome::Passed, "no Python file changed".to_owned())
    } else {
        match check(request, &sources, logs)? {
            None => (
                LayerOutcome::Passed,
                format!("{} changed Python files parse", sources.len()),
            ),
            Some(problem) => (LayerOutcome::Failed, problem),
        }
    };
    Ok(Layer {
        name: LayerName::Syntax,
        outcome,
        tests: Default::default(),
        detail,
        wall_seconds: started.elapsed().as_secs_f64(),
    })
}

/// The first file that does not parse, and why.
fn check(
    request: &GradeRequest<'_>,
    sources: &[(String, &[u8])],
    logs: &mut LogSink<'_>,
) -> Result<Option<String>, Failure> {
    let mut sandbox = request
        .backend
        .start(&sandbox_spec(request, "syntax"))
        .map_err(|error| error.failure())?;
    let from = format!("/tmp/temper-syntax-{}", random_hex(8)?);
    let file = |name: &str, content: &[u8]| InjectedFile {
        path: format!("{from}/{name}"),
        content: Bytes(content.to_vec()),
        executable: false,
    };
    let names: Vec<_> = sources.iter().map(|(name, _)| name).collect();
    let names = serde_json::to_vec(&names).expect("strings serialize to JSON");
    let mut files = vec![
        file("syntax.py", PROGRAM.as_bytes()),
        file("files.json", &names),
    ];
    for (number, (_, content)) in sources.iter().enumerate() {
        files.push(file(&format!("source-{number}"), content));
    }
    sandbox
        .write_files(&files)
        .map_err(|error| error.failure())?;
    let mut command = Command::bash(
        format!(
            "{FIND_PYTHON}exec \"$python\" -I -S -B {}",
            shell_quote(&format!("{from}/syntax.py"))
        ),
        Duration::from_secs(120),
    );
    command.directory = Some("/".into());
    let execution = sandbox.exec(&command).map_err(|error| error.failure())?;
    logs("syntax", &execution.output);
    let mut current = None;
    let mut problem = None;
    let mut ended = false;
    for line in execution.output.split(|byte| *byte == b'\n') {
        match serde_json::from_slice(line) {
            Ok(Line::Start { n }) => current = sources.get(n).map(|(name, _)| name),
            Ok(Line::Done { n, problem: found }) => {
                current = None;
                if let (None, Some(found), Some((name, _))) = (&problem, found, sources.get(n)) {
                    problem = Some(format!("{name}: {found}"));
                }
            }
            Ok(Line::End) => ended = true,
            Err(_) => {}
        }
    }
    match (problem, current, ended) {
        (Some(problem), ..) => Ok(Some(problem)),
        (None, Some(name), _) => Ok(Some(format!(
            "{name}: the parser did not survive it ({:?})",
            execution.status
        ))),
        (None, None, true) => Ok(None),
        (None, None, false) => Err(Failure {
            boundary: Boundary::Task,
            class: "PythonMissing".into(),
            message: format!(
                "run the task's Python: {:?}: {}",
                execution.status,
                excerpt(&execution.output)
            ),
            retryable: false,
        }),
    }
}
