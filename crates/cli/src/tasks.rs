//! From a suite as typed to tasks, and from tasks to prepared ones.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use temper_agent::job::TaskEntry;
use temper_core::{Boundary, Digest, Failure, PreparedTask, Split, Task, TaskId, task::TaskFormat};
use temper_tasks::{
    cache::Cache,
    fetch::{FetchOptions, Fetcher},
    harbor,
    native::packed,
    prepare::{Tools, prepare as prepare_task},
    sample::TaskList,
    select::Selection,
};

use crate::{
    args::{SplitArg, SuiteArgs},
    error::CliError,
    exit_code, output,
    places::{Places, workers},
    suites,
    verbs::tasks::args::SourceFormat,
};

/// The chosen tasks of a suite.
pub struct Suite {
    /// Its name or path, as the job records it.
    pub name: String,
    /// By id.
    pub tasks: Vec<Task>,
    /// How they were chosen.
    pub selection: String,
}

/// The tasks with their files ready, or why a task's are not.
pub struct PreparedSuite {
    /// The suite's name.
    pub name: String,
    /// How the tasks were chosen.
    pub selection: String,
    tasks: Vec<(Task, Result<PreparedTask, Failure>)>,
}

impl PreparedSuite {
    /// The tasks as a job's trials look them up.
    pub fn by_id(&self) -> BTreeMap<TaskId, Result<PreparedTask, (Task, Failure)>> {
        self.tasks
            .iter()
            .map(|(task, prepared)| {
                let prepared = prepared.clone().map_err(|failure| (task.clone(), failure));
                (task.id.clone(), prepared)
            })
            .collect()
    }

    /// The tasks as a job lists them.
    pub fn entries(&self) -> Vec<TaskEntry> {
        self.tasks
            .iter()
            .map(|(task, prepared)| {
                let digest: Option<Digest> = prepared
                    .as_ref()
                    .ok()
                    .map(|prepared| prepared.environment_digest.clone());
                TaskEntry::new(task, digest)
            })
            .collect()
    }

    /// A suite whose files are not needed.
    pub fn unprepared(suite: Suite) -> Self {
        let failure = Failure {
            boundary: Boundary::Task,
            class: "NotPrepared".into(),
            message: "the task's files were not asked for".into(),
            retryable: false,
        };
        PreparedSuite {
            name: suite.name,
            selection: suite.selection,
            tasks: suite
                .tasks
                .into_iter()
                .map(|task| (task, Err(failure.clone())))
                .collect(),
        }
    }

    /// The same suite with only these tasks.
    pub fn only(&self, ids: &[TaskId]) -> Self {
        PreparedSuite {
            name: self.name.clone(),
            selection: self.selection.clone(),
            tasks: self
                .tasks
                .iter()
                .filter(|(task, _)| ids.contains(&task.id))
                .cloned()
                .collect(),
        }
    }

    /// Keeps the tasks whose ids fit.
    pub fn retain(&mut self, keep: impl Fn(&TaskId) -> bool) {
        self.tasks.retain(|(task, _)| keep(&task.id));
    }

    /// Tasks and their preparation, by id.
    pub fn iter(&self) -> impl Iterator<Item = &(Task, Result<PreparedTask, Failure>)> {
        self.tasks.iter()
    }
}

/// Reads the tasks that the flags choose.
pub fn load(args: &SuiteArgs, places: &Places) -> Result<Suite, CliError> {
    let path = suites::locate(&args.suite, &places.cache)?;
    let loaded = temper_tasks::load(&path, None).map_err(input_error)?;
    for warning in &loaded.warnings {
        output::note(&format!("warning: {warning}"));
    }
    let mut tasks = loaded.tasks;
    tasks.sort_by(|a, b| a.id.cmp(&b.id));
    let selection = Selection {
        ids: args
            .tasks
            .iter()
            .map(|pattern| pattern.parse())
            .collect::<Result<_, _>>()
            .map_err(|error| CliError::new(exit_code::USAGE, error))?,
        splits: args.split.map(split_of).into_iter().collect(),
        ..Selection::default()
    };
    tasks.retain(|task| selection.contains(task));
    let mut chosen_by = Vec::new();
    if let Some(path) = &args.tasks_from {
        let list = TaskList::read(path)
            .map_err(|error| CliError::new(exit_code::INPUT, &error).hint(error.hint()))?;
        tasks = list
            .choose(tasks)
            .map_err(|error| CliError::new(exit_code::INPUT, &error).hint(error.hint()))?;
        chosen_by.push(format!("list {}", list.digest().short()));
    }
    chosen_by.extend(args.tasks.iter().map(|pattern| format!("task {pattern}")));
    chosen_by.extend(
        args.split
            .map(|split| format!("split {split:?}").to_lowercase()),
    );
    chosen_by.extend(args.limit.map(|limit| format!("limit {limit}")));
    if let Some(limit) = args.limit {
        tasks.truncate(limit);
    }
    if tasks.is_empty() {
        return Err(CliError::new(
            exit_code::INPUT,
            format!("choose tasks of {}: none matches", args.suite),
        )
        .hint("`temper tasks list` shows what there is"));
    }
    Ok(Suite {
        name: args.suite.clone(),
        tasks,
        selection: if chosen_by.is_empty() {
            "all".into()
        } else {
            chosen_by.join(", ")
        },
    })
}

/// Turns an error of the task crate into one for the user.
pub fn input_error(error: temper_tasks::LoadError) -> CliError {
    let hint = error.hint();
    CliError::new(exit_code::INPUT, error).maybe_hint(hint)
}

/// The format as the task crate names it.
pub fn format_of(format: SourceFormat) -> temper_core::task::TaskFormat {
    use temper_core::task::TaskFormat;
    match format {
        SourceFormat::Native => TaskFormat::Native,
        SourceFormat::SweBench => TaskFormat::SweBench,
        SourceFormat::SweSmith => TaskFormat::SweSmith,
        SourceFormat::Harbor => TaskFormat::Harbor,
    }
}

fn split_of(split: SplitArg) -> Split {
    match split {
        SplitArg::Train => Split::Train,
        SplitArg::Dev => Split::Dev,
        SplitArg::Test => Split::Test,
        SplitArg::Unassigned => Split::Unassigned,
    }
}

/// What preparation may use.
pub fn tools(places: &Places) -> Result<(Cache, Tools), CliError> {
    let cache =
        Cache::open(&places.cache).map_err(|error| CliError::new(exit_code::FAILURE, error))?;
    let fetcher = Fetcher::new(
        cache.clone(),
        FetchOptions {
            directories: places.files.iter().cloned().collect(),
            index: (!places.offline).then(|| places.index_url.clone()),
            ..FetchOptions::default()
        },
    )
    .map_err(|error| CliError::new(exit_code::USAGE, &error).maybe_hint(error.hint()))?;
    let tools = Tools::new(fetcher, places.python.clone(), places.path.clone());
    Ok((cache, tools))
}

/// As [`tools`], for the tasks of a suite: archives that lie in it are found there.
pub fn tools_of(suite: &Path, places: &Places) -> Result<(Cache, Tools), CliError> {
    let (cache, tools) = tools(places)?;
    let tools = match packed::archives(suite) {
        Some(archives) => tools.with_directory(archives),
        None => tools,
    };
    Ok((cache, tools))
}

/// Reads the chosen tasks and lays their files ready. A task that cannot be prepared is reported
/// and stays in the suite as one that is lost; if none can be, that is an error.
pub fn prepare(
    args: &SuiteArgs,
    places: &Places,
    n_workers: Option<usize>,
) -> Result<PreparedSuite, CliError> {
    let suite = load(args, places)?;
    let path = suites::locate(&args.suite, &places.cache)?;
    let (cache, tools) = tools_of(&path, places)?;
    if !places.quiet {
        output::note(&format!(
            "preparing {} tasks of {}",
            suite.tasks.len(),
            suite.name
        ));
    }
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..workers(n_workers).min(suite.tasks.len()) {
            scope.spawn(|| {
                while let Some(task) = suite.tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = prepare_task(task, &cache, &tools);
                    if let Ok(mut results) = results.lock() {
                        results.push((task, result));
                    }
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_default();
    results.sort_by(|(a, _), (b, _)| a.id.cmp(&b.id));

    let mut first_error = None;
    let mut n_failed = 0;
    let tasks: Vec<_> = results
        .into_iter()
        .map(|(task, result)| {
            let prepared = match result {
                Ok(prepared) => usable(prepared.task),
                Err(error) => Err((error.to_string(), error.hint())),
            }
            .map_err(|(message, hint)| {
                n_failed += 1;
                output::note(&format!(
                    "warning: failed to prepare {}: {message}",
                    task.id
                ));
                first_error.get_or_insert((message.clone(), hint));
                Failure {
                    boundary: Boundary::Task,
                    class: "Preparation".into(),
                    message,
                    retryable: false,
                }
            });
            (task.clone(), prepared)
        })
        .collect();
    if n_failed == tasks.len()
        && let Some((message, hint)) = first_error
    {
        return Err(CliError::new(exit_code::ENVIRONMENT, message).maybe_hint(hint));
    }
    Ok(PreparedSuite {
        name: suite.name,
        selection: suite.selection,
        tasks,
    })
}

/// Lays the files of one task ready, or says why they are not.
pub fn prepare_one(task: &Task, cache: &Cache, tools: &Tools) -> Result<PreparedTask, String> {
    let prepared = prepare_task(task, cache, tools).map_err(|error| error.to_string())?;
    usable(prepared.task).map_err(|(message, _)| message)
}

/// Takes in what only a Harbor task asks for. Variables of this machine do not reach a sandbox, so
/// `${VAR}` means its default, and without one the task cannot be run.
fn usable(mut prepared: PreparedTask) -> Result<PreparedTask, (String, Option<String>)> {
    if let Some(reason) = harbor::unsupported(&prepared.task).into_iter().next() {
        return Err((reason, None));
    }
    if prepared.task.format == TaskFormat::Harbor {
        for value in prepared.variables.values_mut() {
            *value = harbor::expand(value, &mut |_| None).map_err(|error| {
                let hint = "give the variable a default in task.toml: ${VAR:-default}";
                (error, Some(hint.to_owned()))
            })?;
        }
    }
    Ok(prepared)
}
