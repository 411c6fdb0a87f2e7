//! From a suite as typed to tasks, and from tasks to prepared ones.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use temper_agent::job::TaskEntry;
use temper_core::{Boundary, Digest, Failure, PreparedTask, Split, Task, TaskId};
use temper_tasks::{
    cache::Cache,
    fetch::{FetchOptions, Fetcher},
    prepare::{Tools, prepare as prepare_task},
};

use crate::{
    args::{SourceFormat, SplitArg, SuiteArgs},
    error::CliError,
    exit_code, output,
    places::{Places, workers},
    suites,
};

/// The chosen tasks of a suite.
pub struct Suite {
    /// Its name or path, as the job records it.
    pub name: String,
    /// By id.
    pub tasks: Vec<Task>,
}

/// The tasks with their files ready, or why a task's are not.
pub struct PreparedSuite {
    /// The suite's name.
    pub name: String,
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
            tasks: suite
                .tasks
                .into_iter()
                .map(|task| (task, Err(failure.clone())))
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
    tasks.retain(|task| {
        (args.tasks.is_empty()
            || args
                .tasks
                .iter()
                .any(|glob| matches(glob, task.id.as_str())))
            && args.split.is_none_or(|split| task.split == split_of(split))
    });
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

/// Whether `text` fits the pattern, where `*` is any text and `?` any character.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where the last star stood and how much of the text it has taken.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some('?') => (p, t) = (p + 1, t + 1),
            Some(c) if *c == text[t] => (p, t) = (p + 1, t + 1),
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    (p, t) = (at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
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

/// Reads the chosen tasks and lays their files ready. A task that cannot be prepared is reported
/// and stays in the suite as one that is lost; if none can be, that is an error.
pub fn prepare(
    args: &SuiteArgs,
    places: &Places,
    n_workers: Option<usize>,
) -> Result<PreparedSuite, CliError> {
    let suite = load(args, places)?;
    let (cache, tools) = tools(places)?;
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
                Ok(prepared) => Ok(prepared.task),
                Err(error) => {
                    n_failed += 1;
                    output::note(&format!("warning: failed to prepare {}: {error}", task.id));
                    let failure = Failure {
                        boundary: Boundary::Task,
                        class: "Preparation".into(),
                        message: error.to_string(),
                        retryable: false,
                    };
                    first_error.get_or_insert((error.to_string(), error.hint()));
                    Err(failure)
                }
            };
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
        tasks,
    })
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn globs_match_whole_ids() {
        for (pattern, text, expected) in [
            ("*", "anything", true),
            ("toolz-*", "toolz-1.0-x", true),
            ("toolz-*", "atoolz-1", false),
            ("*-x", "toolz-1.0-x", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a*b*", "xxayyb", true),
            ("*a*b*", "xxbyya", false),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
