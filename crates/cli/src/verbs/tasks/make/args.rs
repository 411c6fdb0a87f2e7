//! Flags of `temper tasks make`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use temper_factory::{repository::Overrides, statement};

use crate::{
    args::{FormatArgs, ModelArgs, SandboxArgs},
    engines::EngineArgs,
    verbs::model::args::HubArgs,
};

/// `temper tasks make`
#[derive(ClapArgs, Debug)]
pub struct MakeArgs {
    /// Repositories: a directory, the address of a git repository, a source distribution, or
    /// NAME==VERSION of the package index; @REVISION may follow a directory or an address
    #[arg(required = true, value_name = "SOURCE")]
    pub sources: Vec<String>,
    /// The suite to make [default: PROJECT-tasks]
    #[arg(long, short, alias = "out", value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Decides everything that is drawn
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// At most this many tasks of each repository
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// At most this many candidate bugs of each repository are run against its tests
    #[arg(long, default_value_t = 2000, value_name = "N")]
    pub max_candidates: usize,
    /// At most this many tests of a task that pass before and after its fix
    #[arg(long, default_value_t = 40, value_name = "N")]
    pub max_pass_to_pass: usize,
    /// An earlier release of the repository, as SOURCE: what changed since is undone piece by piece
    #[arg(long, value_name = "SOURCE")]
    pub earlier: Option<String>,
    /// A model that writes bugs too [default: none is asked]
    #[arg(long, value_name = "MODEL", requires = "model_calls")]
    pub model: Option<String>,
    /// How often the model is asked for a bug of each repository, at most
    #[arg(long, value_name = "N", requires = "model")]
    pub model_calls: Option<usize>,
    /// Only these kinds of bugs, divided by commas [default: all]
    #[arg(long, value_delimiter = ',', value_name = "KIND")]
    pub kinds: Vec<String>,
    /// None of these kinds, divided by commas. `combine_module` changes several files at once, and
    /// tasks that share a file are of one source group
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "KIND",
        conflicts_with = "kinds"
    )]
    pub without_kinds: Vec<String>,
    /// Where statements come from, the first that has something to say [default: commit-message,
    /// test-output, template]
    #[arg(long, value_delimiter = ',', value_name = "SOURCE")]
    pub statements: Vec<StatementArg>,
    /// Directories with the code, from the repository's root [default: found by layout]
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "DIR",
        help_heading = "Repository"
    )]
    pub python_path: Vec<String>,
    /// Test files or directories of them [default: as pytest finds them]
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "PATH",
        help_heading = "Repository"
    )]
    pub tests: Vec<String>,
    /// One more requirement of the tests. May be given more than once
    #[arg(long, value_name = "REQUIREMENT", help_heading = "Repository")]
    pub with: Vec<String>,
    /// A project that is not installed although it is asked for. May be given more than once
    #[arg(long, value_name = "NAME", help_heading = "Repository")]
    pub leave_out: Vec<String>,
    /// Arguments of pytest, as one word [default: from its configuration]
    #[arg(
        long,
        value_name = "ARGUMENTS",
        allow_hyphen_values = true,
        help_heading = "Repository"
    )]
    pub arguments: Option<String>,
    /// How it is called.
    #[command(flatten)]
    pub call: ModelArgs,
    /// The embedded engine.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Where models come from.
    #[command(flatten)]
    pub hub: HubArgs,
    /// Sandboxes at a time [default: the number of cores]
    #[arg(long, short = 'j')]
    pub workers: Option<usize>,
    /// Where they run.
    #[command(flatten)]
    pub sandbox: SandboxArgs,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// A source of statements that needs no model.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatementArg {
    /// Which behaviour is wrong, what its documentation says
    Template,
    /// What the failing public tests print
    TestOutput,
    /// The message of the commit that the bug undoes
    CommitMessage,
}

impl MakeArgs {
    /// What the user says of the repositories.
    pub fn overrides(&self) -> Overrides {
        Overrides {
            python_path: self.python_path.clone(),
            tests: self.tests.clone(),
            with: self.with.clone(),
            without: self.leave_out.clone(),
            arguments: self
                .arguments
                .iter()
                .flat_map(|text| text.split_whitespace().map(str::to_owned))
                .collect(),
        }
    }

    /// The sources of statements, in order.
    pub fn statements(&self) -> Vec<statement::Source> {
        if self.statements.is_empty() {
            return vec![
                statement::Source::CommitMessage,
                statement::Source::TestOutput,
                statement::Source::Template,
            ];
        }
        self.statements
            .iter()
            .map(|source| match source {
                StatementArg::Template => statement::Source::Template,
                StatementArg::TestOutput => statement::Source::TestOutput,
                StatementArg::CommitMessage => statement::Source::CommitMessage,
            })
            .collect()
    }
}
