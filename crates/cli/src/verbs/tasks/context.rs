//! `temper tasks context`: what a solver may be shown of a task.

use clap::Args;
use serde_json::json;
use temper_core::{
    Patch, TestId, Tree,
    task::{Environment, Oracle, Verifier},
};
use temper_factory::{
    context::{self, Hidden, Request},
    statement::HiddenTest,
};
use temper_tasks::tree_io::{TreeLimits, read_tree};

use crate::{
    args::{FormatArgs, SuiteArgs},
    error::CliError,
    exit_code, output,
    places::Places,
    tasks,
};

/// Bytes of a token, where no tokenizer is at hand: less than that of code in common vocabularies,
/// so that a budget is rather not reached.
const BYTES_PER_TOKEN: usize = 3;

/// Which task, and how much of it.
#[derive(Args, Debug)]
pub struct ContextArgs {
    /// The task's id
    pub id: String,
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
    chosen.tasks = vec![args.id.clone()];
    let prepared = tasks::prepare(&chosen, places, None)?;
    let mut all = prepared.iter();
    let (Some((task, Ok(files))), None) = (all.next(), all.next()) else {
        return Err(CliError::new(
            exit_code::INPUT,
            format!(
                "show the context of {}: it is not one task whose files can be had",
                args.id
            ),
        ));
    };
    let failed =
        |error: temper_tasks::tree_io::TreeIoError| CliError::new(exit_code::FAILURE, error);
    let read = |path: &Option<std::path::PathBuf>| -> Result<Tree, CliError> {
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
        budget: args.budget,
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
    let text = context.text();
    let secrets = Hidden {
        fix: &fix,
        tests: &tests,
    };
    let findings = context::audit(&text, &start, &secrets);
    let value = json!({ "task": task.id, "context": context, "findings": findings });
    output::data(&args.format.format.one(&value, || output::printable(&text)));
    output::note(&format!(
        "{} tokens in {} parts; {} files left out; {} findings of {} hidden tests and the fix",
        context.n_tokens,
        context.sections.len(),
        context.left_out.len(),
        findings.len(),
        tests.len()
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
