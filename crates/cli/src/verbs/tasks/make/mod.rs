//! `temper tasks make`: from repositories to a suite of proven tasks.

pub mod args;
mod model;
mod progress;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{atomic::Ordering, mpsc::sync_channel},
    time::Instant,
};

use serde::Serialize;
use temper_core::{Task, task::Archive};
use temper_factory::{
    Repository,
    make::{
        self, AskedModel, Event, Extra, Factory, KindCounts, Made, MakeError, MakeOptions,
        Rejected, Resumed,
    },
    measure::MeasureError,
    pool::Workshop,
    prove::{ListOptions, ScreenOptions},
    repository::{self, RepositoryError, Source},
    synth::{self, OptionsError},
};
use temper_report::table::{Align, Table};
use temper_tasks::{
    isolation::{self, Archives, Collector, LinkRule},
    native::{Suite, packed},
};

use self::{args::MakeArgs, model::Writer, progress::Progress};
use crate::{
    error::CliError,
    exit_code, jobs, output,
    places::{Places, workers},
    sandboxes::Sandboxes,
    tasks,
};

/// What was made of one source, as it stands in the suite's `made.json` too. It holds nothing that
/// differs between two runs.
#[derive(Serialize)]
struct SourceReport {
    source: String,
    project: String,
    version: Option<String>,
    licence: Option<String>,
    url: Option<String>,
    commit: Option<String>,
    archive: Archive,
    python_path: Vec<String>,
    arguments: Vec<String>,
    wheels: Vec<Archive>,
    n_source_files: usize,
    n_test_files: usize,
    n_tests: usize,
    excluded_tests: BTreeMap<String, usize>,
    n_tasks: usize,
    counts: BTreeMap<String, KindCounts>,
    rejected: Vec<Rejected>,
    notes: Vec<String>,
}

/// The whole of a run.
#[derive(Serialize)]
struct Report<'a> {
    suite: &'a Path,
    n_tasks: usize,
    n_source_groups: usize,
    core_seconds: f64,
    wall_seconds: f64,
    /// `None` where an earlier run had done part of the work, which this run's time does not show.
    tasks_per_core_minute: Option<f64>,
    counts: BTreeMap<String, KindCounts>,
    sources: &'a [SourceReport],
    failed: &'a [Failed],
}

/// A source that gave no tasks.
#[derive(Serialize)]
struct Failed {
    source: String,
    error: String,
    hint: Option<String>,
    #[serde(skip)]
    code: u8,
}

/// The file of a suite that says how it was made.
const MADE_FILE: &str = "made.json";

/// Makes a suite, and prints its path at the end.
pub fn run(args: &MakeArgs, places: &Places) -> Result<u8, CliError> {
    let started = Instant::now();
    let cpu_before = core_seconds();
    let mut is_resumed = false;
    let sources = args
        .sources
        .iter()
        .map(|text| {
            Ok((
                text.as_str(),
                Source::parse(text).map_err(repository_error)?,
            ))
        })
        .collect::<Result<Vec<_>, CliError>>()?;
    let directory = directory(args, &sources)?;
    refuse_other(&directory)?;
    let sandboxes = Sandboxes::open_for_untrusted(&args.sandbox)?;
    output::note(&sandboxes.summary());
    let archives = directory.join(packed::ARCHIVES);
    let (cache, tools) = tasks::tools(places)?;
    let tools = tools.with_directory(&archives);
    let stop = jobs::stop_flag()?;
    let stopped = || stop.load(Ordering::Relaxed);
    let factory = Factory {
        workshop: Workshop {
            backend: sandboxes.backend.as_ref(),
            limits: sandboxes.limits.clone(),
            demand: sandboxes.demand.clone(),
            n_workers: workers(args.workers),
            label: "make".to_owned(),
        },
        cache: &cache,
        tools: &tools,
        stopped: &stopped,
    };
    let options = MakeOptions {
        seed: args.seed,
        limit: args.limit,
        kinds: kinds(args)?,
        max_candidates: args.max_candidates,
        statements: args.statements(),
        screen: ScreenOptions::default(),
        lists: ListOptions {
            max_pass_to_pass: args.max_pass_to_pass,
            ..ListOptions::default()
        },
        ..MakeOptions::default()
    };
    let earlier = match &args.earlier {
        None => None,
        Some(_) if sources.len() > 1 => {
            return Err(CliError::new(
                exit_code::USAGE,
                "undo what changed since an earlier release: there are several repositories",
            )
            .hint("make a suite of each"));
        }
        Some(text) => {
            let source = Source::parse(text).map_err(repository_error)?;
            // Nothing of it belongs to the suite.
            let elsewhere = cache.root().join("earlier");
            Some(repository::files(&source, &elsewhere, &cache, &tools).map_err(repository_error)?)
        }
    };
    let writer = Writer::open(args, places)?;
    let mut all: Vec<Task> = Vec::new();
    let mut reports = Vec::new();
    let mut failed = Vec::new();
    std::thread::scope(|scope| {
        // Reading a repository waits for the index more than it computes, so the next one is read
        // while tasks are made of this one.
        let (send, opened) = sync_channel(1);
        let (sources, archives, cache, tools, stopped) =
            (&sources, &archives, &cache, &tools, &stopped);
        let overrides = args.overrides();
        scope.spawn(move || {
            for (_, source) in sources {
                let repository = repository::open(source, &overrides, archives, cache, tools)
                    .map_err(repository_error);
                if stopped() || send.send(repository).is_err() {
                    return;
                }
            }
        });
        for (text, _) in sources {
            let mut progress = Progress::new(text, places.quiet);
            progress.line("reading the repository");
            let Ok(repository) = opened.recv() else {
                break;
            };
            if stopped() {
                break;
            }
            let result = repository.and_then(|repository| {
                for note in &repository.notes {
                    progress.line(note);
                }
                let mut chat = writer
                    .as_ref()
                    .map(|writer| writer.ask(&repository))
                    .transpose()?;
                let extra = Extra {
                    earlier: earlier.as_ref(),
                    model: chat
                        .as_mut()
                        .zip(writer.as_ref())
                        .map(|(chat, writer)| AskedModel {
                            model: chat,
                            name: writer.name(),
                            n_calls: writer.n_calls,
                        }),
                };
                let made = make::make(&repository, &options, &factory, extra, &mut |event| {
                    if let Event::Finished { resumed, .. } = &event {
                        is_resumed |= *resumed != Resumed::Nothing;
                    }
                    progress.on(&event)
                })
                .map_err(make_error)?;
                Ok((repository, made))
            });
            match result {
                Ok((repository, made)) => {
                    all.extend(made.tasks.iter().cloned());
                    reports.push(report(text, repository, made));
                }
                Err(error) if sources.len() == 1 => return Err(error),
                Err(error) => {
                    output::note(&format!("{text}: failed to {}", error.message));
                    failed.push(Failed {
                        source: (*text).to_owned(),
                        error: error.message,
                        hint: error.hint,
                        code: error.code,
                    });
                }
            }
        }
        Ok(())
    })?;
    if stopped() {
        output::note("stopped: what was found out is kept; run the same command again to go on");
        return Ok(exit_code::INTERRUPTED);
    }
    group(&mut all, &cache, &tools)?;
    write(&directory, &all, &reports, args.seed)?;
    let core = core_seconds() - cpu_before;
    let mut counts: BTreeMap<String, KindCounts> = BTreeMap::new();
    for (kind, count) in reports.iter().flat_map(|report| &report.counts) {
        counts.entry(kind.clone()).or_default().add(*count);
    }
    let mut groups: Vec<&str> = all.iter().map(|task| task.source_group.as_str()).collect();
    groups.sort_unstable();
    groups.dedup();
    let whole = Report {
        suite: &directory,
        n_tasks: all.len(),
        n_source_groups: groups.len(),
        core_seconds: core,
        wall_seconds: started.elapsed().as_secs_f64(),
        tasks_per_core_minute: (!is_resumed && core > 0.0)
            .then(|| all.len() as f64 / (core / 60.0)),
        counts,
        sources: &reports,
        failed: &failed,
    };
    output::data(&args.format.format.one(&whole, || table(&whole)));
    Ok(match failed.first() {
        Some(first) => first.code,
        None => exit_code::SUCCESS,
    })
}

/// The kinds that are asked for; `None` is all.
fn kinds(args: &MakeArgs) -> Result<Option<BTreeSet<String>>, CliError> {
    if args.without_kinds.is_empty() {
        return Ok((!args.kinds.is_empty()).then(|| args.kinds.iter().cloned().collect()));
    }
    let mut kinds: BTreeSet<String> = synth::all_kinds().map(str::to_owned).collect();
    for name in &args.without_kinds {
        if !kinds.remove(name) {
            let error = OptionsError::UnknownKind { name: name.clone() };
            let hint = error.hint();
            return Err(CliError::new(exit_code::USAGE, error).maybe_hint(hint));
        }
    }
    Ok(Some(kinds))
}

/// Where the suite goes.
fn directory(args: &MakeArgs, sources: &[(&str, Source)]) -> Result<PathBuf, CliError> {
    let path = match (&args.output, sources) {
        (Some(path), _) => path.clone(),
        (None, [(_, source)]) => {
            let name = match source {
                Source::Directory { path, .. } => std::path::absolute(path)?
                    .file_name()
                    .map(|name| name.to_string_lossy().into_owned()),
                Source::Git { address, .. } => address
                    .trim_end_matches('/')
                    .rsplit('/')
                    .next()
                    .map(|name| name.trim_end_matches(".git").to_owned()),
                Source::File(path) => path
                    .file_name()
                    .map(|name| name.to_string_lossy().into_owned()),
                Source::Index { project, .. } => Some(project.clone()),
            };
            PathBuf::from(format!("{}-tasks", name.unwrap_or_default()))
        }
        (None, _) => {
            return Err(CliError::new(
                exit_code::USAGE,
                "make one suite of several repositories: it has no name",
            )
            .hint("name its directory with --output DIR"));
        }
    };
    Ok(std::path::absolute(path)?)
}

/// A suite that was made before is made anew; whatever else lies there is not touched.
fn refuse_other(directory: &Path) -> Result<(), CliError> {
    let taken = |what: &str| {
        CliError::new(
            exit_code::INPUT,
            format!("make a suite at {}: {what}", directory.display()),
        )
        .hint("name another directory with --output DIR")
    };
    let Ok(mut items) = std::fs::read_dir(directory) else {
        return match directory.symlink_metadata() {
            Ok(_) => Err(taken("something else is there")),
            Err(_) => Ok(()),
        };
    };
    if directory.join(isolation::SPLIT_FILE).exists() {
        return Err(taken("the suite there is frozen"));
    }
    let ours = |name: &std::ffi::OsStr| {
        [
            packed::ARCHIVES,
            packed::TASKS_FILE,
            MADE_FILE,
            "suite.toml",
        ]
        .iter()
        .any(|known| name == *known)
    };
    if items.any(|item| item.is_ok_and(|item| !ours(&item.file_name()))) {
        return Err(taken("something else is there"));
    }
    Ok(())
}

/// Joins tasks that share code.
fn group(
    all: &mut [Task],
    cache: &temper_tasks::cache::Cache,
    tools: &temper_tasks::prepare::Tools,
) -> Result<(), CliError> {
    let mut archives = Archives::new(cache, tools);
    let evidence = Collector::default()
        .all(all, &mut archives)
        .map_err(tasks::input_error)?;
    let links = isolation::links(&evidence, &LinkRule::default());
    let groups = isolation::groups(&evidence, &links);
    let mut of: BTreeMap<_, _> = BTreeMap::new();
    for group in groups {
        for member in group.members {
            of.insert(member, group.name.clone());
        }
    }
    for task in all {
        if let Some(name) = of.remove(&task.id) {
            task.source_group = name;
        }
    }
    Ok(())
}

fn write(
    directory: &Path,
    all: &[Task],
    reports: &[SourceReport],
    seed: u64,
) -> Result<(), CliError> {
    let name = directory
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let projects: Vec<String> = reports
        .iter()
        .map(|report| match &report.version {
            Some(version) => format!("{} {version}", report.project),
            None => report.project.clone(),
        })
        .collect();
    let suite = Suite {
        name,
        description: format!("Made from {}.", projects.join(", ")),
        licences: None,
    };
    packed::write(&suite, all, directory).map_err(tasks::input_error)?;
    // Archives of an earlier run that no task names any more.
    if let Some(archives) = packed::archives(directory) {
        for item in std::fs::read_dir(&archives)?.flatten() {
            let name = item.file_name();
            if !reports
                .iter()
                .any(|report| name == report.archive.file_name.as_str())
            {
                std::fs::remove_file(item.path())?;
            }
        }
    }
    let made = serde_json::json!({
        "format": 1,
        "temper": env!("CARGO_PKG_VERSION"),
        "seed": seed,
        "sources": reports,
    });
    let text = serde_json::to_string_pretty(&made).expect("a report is plain data");
    std::fs::write(directory.join(MADE_FILE), format!("{text}\n"))?;
    Ok(())
}

fn report(source: &str, repository: Repository, made: Made) -> SourceReport {
    SourceReport {
        source: source.to_owned(),
        project: repository.project,
        version: repository.version,
        licence: repository.licence,
        url: repository.url,
        commit: repository.commit,
        archive: repository.archive,
        python_path: repository.python_path,
        arguments: repository.arguments,
        wheels: repository.wheels,
        n_source_files: repository.source_files.len(),
        n_test_files: repository.test_files.len(),
        n_tests: made.n_tests,
        excluded_tests: made.excluded_tests,
        n_tasks: made.tasks.len(),
        counts: made.counts,
        rejected: made.rejected,
        notes: repository.notes,
    }
}

fn repository_error(error: RepositoryError) -> CliError {
    let code = match &error {
        RepositoryError::Fetch(_)
        | RepositoryError::Pip(_)
        | RepositoryError::Python(_)
        | RepositoryError::Clone { .. }
        | RepositoryError::CloneOffline(_)
        | RepositoryError::GitMissing => exit_code::ENVIRONMENT,
        RepositoryError::Cache(_) | RepositoryError::Io { .. } => exit_code::FAILURE,
        RepositoryError::Override { .. } => exit_code::USAGE,
        _ => exit_code::INPUT,
    };
    let hint = error.hint();
    CliError::new(code, error).maybe_hint(hint)
}

fn make_error(error: MakeError) -> CliError {
    let code = match &error {
        MakeError::Measure(MeasureError::NoRun { .. } | MeasureError::NoTests { .. }) => {
            exit_code::INPUT
        }
        MakeError::Options(_) => exit_code::USAGE,
        MakeError::Prepare(_) => exit_code::ENVIRONMENT,
        _ => exit_code::FAILURE,
    };
    let hint = error.hint();
    CliError::new(code, error).maybe_hint(hint)
}

/// Processor time of this process and of every process that it waited for.
fn core_seconds() -> f64 {
    // Linux counts these in hundredths of a second for every architecture's user space.
    const TICKS_PER_SECOND: f64 = 100.0;
    std::fs::read_to_string("/proc/self/stat")
        .ok()
        .and_then(|text| {
            // The second field is the program's name, which may hold anything.
            let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
            (11..15)
                .map(|index| fields.get(index)?.parse::<f64>().ok())
                .sum::<Option<f64>>()
        })
        .map_or(0.0, |ticks| ticks / TICKS_PER_SECOND)
}

fn table(report: &Report<'_>) -> String {
    let mut text = String::new();
    let mut by_source = Table::new(&[
        ("repository", Align::Left),
        ("licence", Align::Left),
        ("tests", Align::Right),
        ("excluded", Align::Right),
        ("candidates", Align::Right),
        ("killed", Align::Right),
        ("tasks", Align::Right),
    ]);
    for source in report.sources {
        let mut total = KindCounts::default();
        source.counts.values().for_each(|count| total.add(*count));
        by_source.row([
            format!(
                "{} {}",
                source.project,
                source.version.as_deref().unwrap_or("")
            ),
            source
                .licence
                .clone()
                .unwrap_or_else(|| "unknown".to_owned()),
            source.n_tests.to_string(),
            source.excluded_tests.values().sum::<usize>().to_string(),
            total.candidates.to_string(),
            total.killed.to_string(),
            source.n_tasks.to_string(),
        ]);
    }
    text.push_str(&format!("{by_source}\n"));
    let mut by_kind = Table::new(&[
        ("kind", Align::Left),
        ("candidates", Align::Right),
        ("uncovered", Align::Right),
        ("equivalent", Align::Right),
        ("survived", Align::Right),
        ("timed out", Align::Right),
        ("excluded", Align::Right),
        ("killed", Align::Right),
        ("unusable", Align::Right),
        ("unproven", Align::Right),
        ("tasks", Align::Right),
    ]);
    let mut total = KindCounts::default();
    let rows = report
        .counts
        .iter()
        .map(|(kind, count)| (kind.as_str(), *count));
    for (kind, count) in rows {
        total.add(count);
        by_kind.row(cells(kind, &count));
    }
    by_kind.row(cells("all", &total));
    text.push_str(&format!("{by_kind}\n"));
    for failed in report.failed {
        text.push_str(&format!("{}: failed to {}\n", failed.source, failed.error));
        if let Some(hint) = &failed.hint {
            text.push_str(&format!("hint: {hint}\n"));
        }
    }
    let rate = match report.tasks_per_core_minute {
        Some(rate) => format!("{rate:.1} tasks per core-minute"),
        None => "no rate, since an earlier run had done part of it".to_owned(),
    };
    text.push_str(&format!(
        "{} proven tasks in {} source groups; {:.0} core-seconds, {:.0} s by the clock; {rate}\n{}\n",
        report.n_tasks,
        report.n_source_groups,
        report.core_seconds,
        report.wall_seconds,
        report.suite.display()
    ));
    text
}

fn cells(kind: &str, count: &KindCounts) -> [String; 11] {
    [
        kind.to_owned(),
        count.candidates.to_string(),
        count.uncovered.to_string(),
        count.equivalent.to_string(),
        count.survived.to_string(),
        count.timed_out.to_string(),
        count.excluded.to_string(),
        count.killed.to_string(),
        count.unusable.to_string(),
        count.unproven.to_string(),
        count.proven.to_string(),
    ]
}
