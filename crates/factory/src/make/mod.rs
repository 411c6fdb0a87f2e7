//! The pipeline: from a repository to proven tasks.
//!
//! measure -> synthesize -> screen -> choose -> divide the tests -> state -> prove.
//!
//! What a stage that runs code found out is kept in the cache by the hash of what determines it, so
//! a run that was interrupted goes on, and one that is repeated only reads. Which tasks come out
//! depends on the repository, the options and the wheels, and not on the number of workers: tasks
//! are tried in a fixed order, and a limit takes the first that are proven.

mod assemble;
mod choose;
mod journal;
mod screening;
mod sources;
mod tries;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use temper_core::{
    Digest, Entry, PreparedTask, SourceGroup, Split, Task, TaskId, TreePath,
    task::{Environment, HiddenSource, Origin, Start, TaskFormat, TestLists, Verifier},
};
use temper_tasks::{
    cache::{Cache, CacheError},
    git::GitError,
    prepare::{PrepareError, Tools, prepare},
    tree_io::{TreeIoError, TreeLimits, read_tree},
};

use crate::{
    Candidate, Repository,
    chat::ChatError,
    measure::{self, MeasureError, MeasureOptions, Measurement, coverage::Index},
    pool::{Cost, PoolError, Subject, Workshop},
    prove::{Kills, ListOptions, ScreenOptions, Screened, Status},
    statement,
    synth::{self, OptionsError},
};
use assemble::Assembler;
use screening::{Screening, combined};
pub use sources::{AskedModel, Extra};
use tries::Tries;

/// Changes when the same inputs would give other results of a stage.
const LAYOUT: &str = "factory-1";

/// What to make.
#[derive(Clone, Debug)]
pub struct MakeOptions {
    /// Decides everything that is drawn.
    pub seed: u64,
    /// At most this many tasks of one repository; `None` takes all that are proven. No more
    /// candidates are screened than these tasks and their audits need.
    pub limit: Option<usize>,
    /// Kinds of bugs by name; `None` uses all.
    pub kinds: Option<BTreeSet<String>>,
    /// At most this many candidates are screened.
    pub max_candidates: usize,
    /// Where statements come from, in order.
    pub statements: Vec<statement::Source>,
    /// How the suite is measured.
    pub measure: MeasureOptions,
    /// How candidates are screened.
    pub screen: ScreenOptions,
    /// How long test lists may be.
    pub lists: ListOptions,
    /// Hidden tests that are added to a task at most, because they alone notice wrong versions of
    /// its fix.
    pub max_added_tests: usize,
    /// How often each side of a task is run to prove it.
    pub repeat: u32,
}

impl Default for MakeOptions {
    fn default() -> Self {
        MakeOptions {
            seed: 0,
            limit: None,
            kinds: None,
            max_candidates: 2000,
            statements: statement::Source::ALL.to_vec(),
            measure: MeasureOptions::default(),
            screen: ScreenOptions::default(),
            lists: ListOptions::default(),
            max_added_tests: 10,
            repeat: 1,
        }
    }
}

/// A part of the pipeline that takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The tests are run, traced and repeated.
    Measure,
    /// Candidates are written.
    Synthesize,
    /// Candidates are run against the tests that they can affect.
    Screen,
    /// Tasks are proven in fresh sandboxes.
    Prove,
}

/// How much of a stage an earlier run had done. Times of a stage that was resumed say nothing of
/// what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resumed {
    /// It did everything now.
    Nothing,
    /// Some of it was known.
    Part,
    /// It only read.
    All,
}

impl Resumed {
    fn of(n_known: usize, n_new: usize) -> Self {
        match (n_known, n_new) {
            (0, _) => Resumed::Nothing,
            (_, 0) => Resumed::All,
            _ => Resumed::Part,
        }
    }
}

/// What happens while tasks are made.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A stage begins.
    Started {
        /// Which.
        stage: Stage,
        /// How many things it has to do; zero where that is not known.
        n_total: usize,
    },
    /// A stage has done something.
    Advanced {
        /// Which.
        stage: Stage,
        /// How many things are done.
        n_done: usize,
        /// Of how many.
        n_total: usize,
    },
    /// A stage is over.
    Finished {
        /// Which.
        stage: Stage,
        /// What came of it, in words.
        summary: String,
        /// How much of it an earlier run had done.
        resumed: Resumed,
    },
    /// Something worth knowing.
    Note(String),
}

/// How many candidates of one kind reached which stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindCounts {
    /// Written.
    pub candidates: usize,
    /// No trusted test executes the change.
    pub uncovered: usize,
    /// Compiles to the code without a bug.
    pub equivalent: usize,
    /// All affected tests pass.
    pub survived: usize,
    /// A test came to no end.
    pub timed_out: usize,
    /// The module does not import, the interpreter ended, memory ran out, runs differed.
    pub excluded: usize,
    /// Some affected tests fail.
    pub killed: usize,
    /// Killed, but no failing test could be hidden, or no statement could be written.
    pub unusable: usize,
    /// Tried and not proven.
    pub unproven: usize,
    /// Tasks.
    pub proven: usize,
}

impl KindCounts {
    /// Adds another kind's.
    pub fn add(&mut self, other: KindCounts) {
        self.candidates += other.candidates;
        self.uncovered += other.uncovered;
        self.equivalent += other.equivalent;
        self.survived += other.survived;
        self.timed_out += other.timed_out;
        self.excluded += other.excluded;
        self.killed += other.killed;
        self.unusable += other.unusable;
        self.unproven += other.unproven;
        self.proven += other.proven;
    }
}

/// A task that was tried and is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rejected {
    /// The id it would have had.
    pub id: TaskId,
    /// Why it is none.
    pub reason: String,
}

/// What was made of one repository.
#[derive(Clone, Debug)]
pub struct Made {
    /// Proven tasks, in order of their ids.
    pub tasks: Vec<Task>,
    /// By kind.
    pub counts: BTreeMap<String, KindCounts>,
    /// Tried and not proven.
    pub rejected: Vec<Rejected>,
    /// Trusted tests.
    pub n_tests: usize,
    /// Excluded tests by reason.
    pub excluded_tests: BTreeMap<String, usize>,
    /// What the sandboxes of measuring and screening consumed in this run.
    pub cost: Cost,
    /// Whether an interruption ended it before its time.
    pub interrupted: bool,
}

/// Why no tasks were made of a repository.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// Its tests cannot be measured.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// Candidates could not be run.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The model that writes bugs did not answer.
    #[error(transparent)]
    Model(#[from] ChatError),
    /// The history cannot be read.
    #[error(transparent)]
    History(#[from] GitError),
    /// The options make no sense.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// Its environment cannot be prepared.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// Its files cannot be read.
    #[error(transparent)]
    Files(#[from] TreeIoError),
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A file of an earlier stage cannot be used.
    #[error("{operation} {}: {source}", .path.display())]
    Stage {
        /// `read`, `write`.
        operation: &'static str,
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl MakeError {
    /// What the user can do, where there is something.
    pub fn hint(&self) -> Option<String> {
        match self {
            MakeError::Measure(error) => error.hint(),
            MakeError::Pool(error) => error.hint(),
            MakeError::Options(error) => error.hint(),
            MakeError::Prepare(error) => error.hint(),
            _ => None,
        }
    }
}

/// What the pipeline works with.
pub struct Factory<'a> {
    /// Where code runs, and how many workers there are.
    pub workshop: Workshop<'a>,
    /// Holds files and the results of stages.
    pub cache: &'a Cache,
    /// What prepares environments; it must find the repository's archive.
    pub tools: &'a Tools,
    /// Says to stop as soon as what is running has ended.
    pub stopped: &'a (dyn Fn() -> bool + Sync),
}

/// Makes tasks of a repository. Beside the operators' bugs, its history gives some where there is
/// one, and `extra` may.
pub fn make(
    repository: &Repository,
    options: &MakeOptions,
    factory: &Factory<'_>,
    extra: Extra<'_>,
    on_event: &mut dyn FnMut(Event),
) -> Result<Made, MakeError> {
    let environment = environment(repository, factory)?;
    let subject = Subject::new(repository, &environment);
    let python = factory
        .tools
        .interpreter()
        .map_err(PrepareError::from)?
        .build;
    let base = Digest::of_value(&(LAYOUT, &python, facts(repository)));
    let mut cost = Cost::default();

    on_event(Event::Started {
        stage: Stage::Measure,
        n_total: 0,
    });
    let measure_options = MeasureOptions {
        seed: options.seed,
        ..options.measure.clone()
    };
    let key = Digest::of_value(&("measure", &base, &measure_options));
    let (measurement, resumed): (Measurement, bool) = journal::stage(factory.cache, &key, || {
        let (measurement, spent) = measure::measure(&subject, &factory.workshop, &measure_options)?;
        cost.add(spent);
        Ok::<_, MakeError>(measurement)
    })?;
    let measured = Digest::of_value(&(&base, &key, &measurement));
    on_event(Event::Finished {
        stage: Stage::Measure,
        summary: format!(
            "{} tests trusted, {} excluded",
            measurement.tests.len(),
            measurement.excluded.len()
        ),
        resumed: Resumed::of(usize::from(resumed), usize::from(!resumed)),
    });
    let broken: Vec<&str> = measurement
        .files
        .iter()
        .filter(|file| file.broken)
        .map(|file| file.name.as_str())
        .collect();
    if let Some(first) = broken.first() {
        on_event(Event::Note(format!(
            "{} of {} test files cannot be collected, the first of them {first}; --with REQUIREMENT adds what they import",
            broken.len(),
            measurement.files.len()
        )));
    }
    let index = Index::new(&measurement);

    on_event(Event::Started {
        stage: Stage::Synthesize,
        n_total: 0,
    });
    let tree = read_tree(&repository.tree, &TreeLimits::default())?;
    let files: BTreeMap<TreePath, Entry> = repository
        .source_files
        .iter()
        .filter(|path| synth::is_source_path(path))
        .filter_map(|path| Some((path.clone(), tree.get(path)?.clone())))
        .collect();
    let candidates = sources::candidates(
        &sources::Read {
            repository,
            tree: &tree,
            files: &files,
            index: &index,
            base: &base,
        },
        extra,
        options,
        factory,
        on_event,
    )?;
    on_event(Event::Finished {
        stage: Stage::Synthesize,
        summary: format!("{} candidates", candidates.len()),
        resumed: Resumed::Nothing,
    });

    let screening = Screening {
        subject: &subject,
        index: &index,
        measured: &measured,
        options,
        factory,
    };
    let mut screened: Vec<Screened> = Vec::new();
    let mut n_wanted = screening::n_wanted(options);
    let (tasks, rejected, counts) = loop {
        let n_missing = n_wanted.saturating_sub(screening::n_killed(&screened));
        let next = &candidates[screened.len()..];
        screened.extend(screening.run(next, n_missing, &mut cost, on_event)?);
        let is_all = screened.len() == candidates.len() || (factory.stopped)();

        let mut candidates = candidates[..screened.len()].to_vec();
        let mut screened = screened.clone();
        let combined = combined(&files, &candidates, &screened, &measurement, options);
        if !combined.is_empty() {
            screened.extend(screening.run(&combined, usize::MAX, &mut cost, on_event)?);
            candidates.extend(combined);
            // An interruption leaves the last ones without a result.
            candidates.truncate(screened.len());
        }
        let equivalent = screening.equivalents(&candidates, &screened, &mut cost)?;
        let kills = Kills::new(&index, &candidates, &screened, &equivalent);

        let mut counts = count(&candidates, &screened, &equivalent);
        let order = choose::to_try(&candidates, &screened, options.seed);
        let assembler = Assembler::new(
            repository,
            &tree,
            &measurement,
            (&candidates, &screened),
            &kills,
            options,
        );
        let tries = Tries {
            assembler: &assembler,
            order: &order,
            candidates: &candidates,
            measured: &measured,
            subject: &subject,
            index: &index,
            options,
            factory,
        };
        let (tasks, rejected) = tries.prove(&mut counts, &mut cost, on_event)?;
        if is_all || options.limit.is_none_or(|limit| tasks.len() >= limit) {
            break (tasks, rejected, counts);
        }
        n_wanted = n_wanted.saturating_mul(2);
    };
    Ok(Made {
        tasks,
        counts,
        rejected,
        n_tests: measurement.tests.len(),
        excluded_tests: excluded_tests(&measurement),
        cost,
        interrupted: (factory.stopped)(),
    })
}

/// What of a repository bears on results: not where it lies, nor what is said about it.
fn facts(repository: &Repository) -> impl Serialize + '_ {
    (
        &repository.archive.sha256,
        &repository.python_path,
        &repository.wheels,
        &repository.source_files,
        &repository.test_files,
        &repository.arguments,
    )
}

/// The environment that all tasks of the repository share.
fn environment(repository: &Repository, factory: &Factory<'_>) -> Result<PreparedTask, MakeError> {
    let task = environment_task(repository);
    Ok(prepare(&task, factory.cache, factory.tools)?.task)
}

/// A task without a statement or tests, of which no file lies ready: what a model is opened for
/// that writes bugs of the repository.
pub fn unprepared(repository: &Repository) -> PreparedTask {
    let task = environment_task(repository);
    PreparedTask {
        environment_digest: task.digest(),
        task,
        start_tree: None,
        hidden_tests: None,
        mounts: Vec::new(),
        variables: BTreeMap::new(),
        image: None,
        work_tree: String::new(),
        setup: Vec::new(),
    }
}

fn environment_task(repository: &Repository) -> Task {
    Task {
        id: TaskId::new("environment").expect("a plain name"),
        format: TaskFormat::Native,
        statement: String::new(),
        start: Start::SourceDistribution {
            archive: repository.archive.clone(),
            patch: Default::default(),
        },
        environment: environment_of(repository),
        verifier: Verifier::Pytest {
            public: TestLists::default(),
            hidden: TestLists::default(),
            test_files: Vec::new(),
            hidden_source: HiddenSource::SourceDistribution,
            arguments: repository.arguments.clone(),
            timeout_seconds: 60,
        },
        oracle: None,
        origin: Origin::default(),
        source_group: SourceGroup::new("environment").expect("a plain name"),
        split: Split::Unassigned,
        metadata: serde_json::Map::new(),
        construction: None,
    }
}

fn environment_of(repository: &Repository) -> Environment {
    Environment::Python {
        requires_python: repository.requires_python.clone(),
        wheels: repository.wheels.clone(),
        python_path: repository.python_path.clone(),
    }
}

fn count(
    candidates: &[Candidate],
    screened: &[Screened],
    equivalent: &BTreeSet<usize>,
) -> BTreeMap<String, KindCounts> {
    let mut counts: BTreeMap<String, KindCounts> = BTreeMap::new();
    for (number, (candidate, screened)) in candidates.iter().zip(screened).enumerate() {
        let count = counts.entry(candidate.kind.clone()).or_default();
        count.candidates += 1;
        *match screened.status {
            Status::Killed => &mut count.killed,
            Status::Survived if equivalent.contains(&number) => &mut count.equivalent,
            Status::Survived => &mut count.survived,
            Status::Uncovered => &mut count.uncovered,
            Status::TimedOut => &mut count.timed_out,
            _ => &mut count.excluded,
        } += 1;
    }
    counts
}

fn excluded_tests(measurement: &Measurement) -> BTreeMap<String, usize> {
    measure::reasons(measurement.excluded.iter().map(|test| &test.reason))
        .into_iter()
        .map(|(reason, n)| (reason.to_owned(), n))
        .collect()
}

#[cfg(test)]
mod tests;
