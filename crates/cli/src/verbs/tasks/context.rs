//! `temper tasks context`: what a solver may be shown of a task.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use temper_core::{
    Patch, PreparedTask, Task, TestId, Tree,
    task::{Environment, Oracle, Verifier},
};
use temper_factory::{
    context::{self, Hidden, Request},
    statement::HiddenTest,
};
use temper_report::table::{Align, Table};
use temper_tasks::{
    native::{Suite, packed},
    tree_io::{TreeLimits, read_tree},
};

use crate::{
    args::{FormatArgs, SuiteArgs},
    error::CliError,
    exit_code, output,
    places::Places,
    tasks::{self, PreparedSuite},
};

/// Bytes of a token, where no tokenizer is at hand: less than that of code in common vocabularies,
/// so that a budget is rather not reached.
const BYTES_PER_TOKEN: usize = 3;

/// Which task, and how much of it.
#[derive(Args, Debug)]
pub struct ContextArgs {
    /// The task's id
    #[arg(required_unless_present = "write", conflicts_with = "write")]
    pub id: Option<String>,
    /// Write the chosen tasks as a packed suite whose statements are followed by their context. A
    /// task whose context cannot be had, or shows something hidden, keeps its statement
    #[arg(long, value_name = "DIR")]
    pub write: Option<PathBuf>,
    /// Where.
    #[command(flatten)]
    pub suite: SuiteArgs,
    /// Tokens of everything together, at three bytes each
    #[arg(long, default_value_t = 16_000)]
    pub budget: usize,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Prints the context; something hidden in it is a failure.
pub fn run(args: &ContextArgs, places: &Places) -> Result<u8, CliError> {
    let mut chosen = args.suite.clone();
    if let Some(directory) = &args.write {
        let prepared = tasks::prepare(&chosen, places, None)?;
        return write(&prepared, args, directory);
    }
    let id = args.id.clone().unwrap_or_default();
    chosen.tasks = vec![id.clone()];
    let prepared = tasks::prepare(&chosen, places, None)?;
    let mut all = prepared.iter();
    let (Some((task, Ok(files))), None) = (all.next(), all.next()) else {
        return Err(CliError::new(
            exit_code::INPUT,
            format!("show the context of {id}: it is not one task whose files can be had"),
        ));
    };
    let shown = show(task, files, args.budget)?;
    let Shown {
        context,
        findings,
        n_tests,
    } = &shown;
    let value = json!({ "task": task.id, "context": context, "findings": findings });
    let text = context.text();
    output::data(&args.format.format.one(&value, || output::printable(&text)));
    output::note(&format!(
        "{} tokens in {} parts; {} files left out; {} findings of {n_tests} hidden tests and the fix",
        context.n_tokens,
        context.sections.len(),
        context.left_out.len(),
        findings.len(),
    ));
    if findings.is_empty() {
        Ok(exit_code::SUCCESS)
    } else {
        Err(CliError::new(
            exit_code::FAILURE,
            format!(
                "prove the context of {}: {}",
                task.id,
                serde_json::to_string(&findings).expect("findings are plain data")
            ),
        ))
    }
}

/// Writes the suite with contexts; a table says what each task got.
fn write(suite: &PreparedSuite, args: &ContextArgs, directory: &Path) -> Result<u8, CliError> {
    if directory.exists() {
        return Err(CliError::new(
            exit_code::INPUT,
            format!("write {}: it is there already", directory.display()),
        ));
    }
    let mut told = Vec::new();
    let mut rows = Vec::new();
    for (task, files) in suite.iter() {
        let mut task = task.clone();
        let shown = match files {
            Ok(files) => show(&task, files, args.budget).map_err(|error| error.message),
            Err(failure) => Err(failure.message.clone()),
        };
        let (n_tokens, problem) = match shown {
            Ok(shown) if shown.findings.is_empty() => {
                task.statement = shown.context.text();
                (Some(shown.context.n_tokens), None)
            }
            Ok(_) => (None, Some("it would show something hidden".to_owned())),
            Err(problem) => (None, Some(problem)),
        };
        rows.push(json!({ "task": task.id, "n_tokens": n_tokens, "problem": problem }));
        told.push(task);
    }
    let packed = Suite {
        name: format!(
            "{}-context",
            suite.name.rsplit('/').next().unwrap_or("suite")
        ),
        description: format!(
            "{} with public context of at most {} tokens in its statements",
            suite.name, args.budget
        ),
        licences: None,
    };
    packed::write(&packed, &told, directory)
        .map_err(|error| CliError::new(exit_code::FAILURE, error))?;
    output::data(&args.format.format.list(&rows, || {
        let mut table = Table::new(&[
            ("task", Align::Left),
            ("tokens", Align::Right),
            ("", Align::Left),
        ]);
        for row in &rows {
            table.row([
                row["task"].as_str().unwrap_or_default().to_owned(),
                row["n_tokens"]
                    .as_u64()
                    .map_or("-".to_owned(), |n| n.to_string()),
                row["problem"].as_str().unwrap_or_default().to_owned(),
            ]);
        }
        table.to_string()
    }));
    output::note(&format!("suite: {}", directory.display()));
    Ok(exit_code::SUCCESS)
}

/// A task's context with what in it should be hidden.
struct Shown {
    context: context::Context,
    findings: Vec<context::Finding>,
    n_tests: usize,
}

fn show(task: &Task, files: &PreparedTask, budget: usize) -> Result<Shown, CliError> {
    let failed =
        |error: temper_tasks::tree_io::TreeIoError| CliError::new(exit_code::FAILURE, error);
    let read = |path: &Option<PathBuf>| -> Result<Tree, CliError> {
        match path {
            Some(path) => read_tree(path, &TreeLimits::default()).map_err(failed),
            None => Ok(Tree::new()),
        }
    };
    let Verifier::Pytest { public, hidden, .. } = &task.verifier else {
        return Err(CliError::new(
            exit_code::INPUT,
            format!(
                "show the context of {}: its tests are not pytest's",
                task.id
            ),
        ));
    };
    let start = read(&files.start_tree)?;
    let hidden_tree = read(&files.hidden_tests)?;
    let python_path = match &task.environment {
        Environment::Python { python_path, .. } => python_path.clone(),
        _ => vec![".".to_owned()],
    };
    let public: Vec<TestId> = public
        .fail_to_pass
        .iter()
        .chain(&public.pass_to_pass)
        .cloned()
        .collect();
    let context = context::build(&Request {
        statement: &task.statement,
        start: &start,
        python_path: &python_path,
        public_tests: &public,
        outputs: &[],
        budget,
        count: &|text| text.len().div_ceil(BYTES_PER_TOKEN),
    })
    .map_err(|error| CliError::new(exit_code::USAGE, error).hint("raise --budget"))?;
    let sources: Vec<(&TestId, String)> = hidden
        .fail_to_pass
        .iter()
        .chain(&hidden.pass_to_pass)
        .map(|id| (id, context::test_source(&hidden_tree, id)))
        .collect();
    let tests: Vec<HiddenTest<'_>> = sources
        .iter()
        .map(|(id, source)| HiddenTest { id, source })
        .collect();
    let fix = match &task.oracle {
        Some(Oracle::Patch { patch }) => patch.clone(),
        Some(Oracle::ReversePatch { patch }) => temper_core::patch::reverse(patch)
            .map_err(|error| CliError::new(exit_code::INPUT, error))?,
        Some(Oracle::Script { .. }) | None => Patch::default(),
    };
    let secrets = Hidden {
        fix: &fix,
        tests: &tests,
    };
    let findings = context::audit(&context.text(), &start, &secrets);
    Ok(Shown {
        context,
        findings,
        n_tests: tests.len(),
    })
}
