//! `temper tasks sample`: a subset of a suite, drawn by a seed.

use std::{collections::BTreeMap, path::PathBuf};

use clap::{Args as ClapArgs, ValueEnum};
use temper_agent::job::write_atomically;
use temper_core::manifest::Producer;
use temper_report::table::{Align, Table};
use temper_tasks::sample::{Population, Request, Sample, Stratify};

use crate::{
    args::{FormatArgs, SplitArg, SuiteArgs},
    error::CliError,
    exit_code, output,
    places::Places,
    tasks,
};

/// `temper tasks sample`
#[derive(ClapArgs, Debug)]
pub struct SampleArgs {
    /// A suite that ships with Temper, or a file or directory of tasks
    #[arg(default_value = "starter", value_name = "SUITE")]
    pub suite: String,
    /// Tasks to draw
    #[arg(long, short)]
    pub n: usize,
    /// The same seed draws the same tasks
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// At most this many tasks of one repository
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub per_repository: Option<u32>,
    /// What the sample is spread over, in proportion
    #[arg(long, default_value = "repository")]
    pub stratify: StratifyArg,
    /// Draw from the tasks of this split only
    #[arg(long)]
    pub split: Option<SplitArg>,
    /// Draw only tasks that can be prepared here; with --offline, from what lies on this machine
    #[arg(long)]
    pub available: bool,
    /// The list to write, for --tasks-from
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// What a sample is spread over, as typed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum StratifyArg {
    /// Nothing
    None,
    /// The repository
    Repository,
    /// How the bug came to be
    Kind,
    /// Tasks that share code or lineage
    SourceGroup,
}

/// Draws the sample, writes it and says what it can stand for.
pub fn run(args: &SampleArgs, places: &Places) -> Result<u8, CliError> {
    let suite_args = SuiteArgs {
        suite: args.suite.clone(),
        tasks: Vec::new(),
        split: args.split,
        limit: None,
        tasks_from: None,
    };
    let suite = tasks::load(&suite_args, places)?;
    let unavailable = if args.available {
        let prepared = tasks::prepare(&suite_args, places, None)?;
        let failed = prepared.iter().filter_map(|(task, prepared)| {
            let failure = prepared.as_ref().err()?;
            Some((task.id.clone(), failure.message.clone()))
        });
        Some(failed.collect::<BTreeMap<_, _>>())
    } else {
        None
    };
    let sample = Sample::draw(
        &Population {
            suite: suite.name.clone(),
            choice: suite.selection.clone(),
            tasks: &suite.tasks,
            unavailable,
        },
        &Request {
            n: args.n,
            seed: args.seed,
            per_repository: args.per_repository.map(|cap| cap as usize),
            stratify: match args.stratify {
                StratifyArg::None => Stratify::None,
                StratifyArg::Repository => Stratify::Repository,
                StratifyArg::Kind => Stratify::Kind,
                StratifyArg::SourceGroup => Stratify::SourceGroup,
            },
        },
        Producer {
            name: "temper".into(),
            version: env!("CARGO_PKG_VERSION").into(),
        },
    )
    .map_err(|error| CliError::new(exit_code::INPUT, error))?;
    let mut text = serde_json::to_vec_pretty(&sample).expect("a sample is plain data");
    text.push(b'\n');
    write_atomically(&args.output, &text)?;
    output::data(&args.format.format.one(&sample, || table(&sample)));
    output::note(&format!("tasks: {}", args.output.display()));
    Ok(exit_code::SUCCESS)
}

fn table(sample: &Sample) -> String {
    let mut table = Table::new(&[
        ("stratum", Align::Left),
        ("tasks", Align::Right),
        ("available", Align::Right),
        ("drawn", Align::Right),
    ]);
    for (name, stratum) in &sample.strata {
        table.row([
            name.clone(),
            stratum.n_population.to_string(),
            stratum.n_available.to_string(),
            stratum.n_sampled.to_string(),
        ]);
    }
    let lines = |lines: &[String]| -> String {
        lines
            .iter()
            .map(|line| format!("  {}\n", output::printable(line)))
            .collect()
    };
    format!(
        "{table}\n{} of {} tasks, seed {}, digest {}\n\nstands for\n{}does not stand for\n{}",
        sample.n,
        sample.n_population,
        sample.seed,
        sample.digest.short(),
        lines(&sample.stands_for),
        lines(&sample.does_not_stand_for)
    )
}
