//! Many pytest runs in few sandboxes: jobs, and what became of each.
//!
//! `python/pool.py` is the trusted parent of a run in a sandbox, `python/worker.py` forks a child
//! for each job after pytest and the third-party packages were imported. A job changes the work
//! tree, runs chosen tests and is undone. Jobs are handed to the sandboxes in batches; a batch that
//! ends early goes on in a fresh sandbox. What a job gives does not depend on its neighbours.
//!
//! What this does not cover: code under test shares a process with pytest and can forge its own
//! job's results, though not another's. Nothing here is a proof; see [`crate::prove::proof`].

mod job;
mod metered;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use temper_core::{
    Bytes, Failure, PreparedTask, TestOutcome, TreePath,
    task::{InjectedFile, PreparedMount},
};
use temper_sandbox::{
    Backend, Command, Demand, Execution, ExitStatus, Limits, Network, Protection, Root, Sandbox,
    SandboxError, SandboxSpec, WorkTree,
    verify::{
        channel::{self, Key, Line},
        excerpt,
        pytest_runner::FIND_PYTHON,
        random_hex, shell_quote,
    },
};

pub use job::{Budgets, Job};
pub use metered::{Cost, Metered};

const POOL: &str = include_str!("../python/pool.py");
const WORKER: &str = include_str!("../python/worker.py");

/// Records of one batch; more is dropped and the jobs without a result are run again.
const OUTPUT_BYTES: u64 = 512 << 20;

/// A repository as its tests are run: nothing of it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The pristine files on this machine.
    pub tree: std::path::PathBuf,
    /// Read-only directories of the environment.
    pub mounts: Vec<PreparedMount>,
    /// Variables of every command, `PYTHONPATH` among them.
    pub variables: std::collections::BTreeMap<String, String>,
    /// Where the files are seen.
    pub work_tree: String,
    /// The test files, below the work tree, in the order in which they are run.
    pub test_files: Vec<String>,
    /// The repository's own source files, in which bugs are made and executed lines are counted.
    pub sources: Vec<TreePath>,
    /// Arguments of pytest that are not files.
    pub arguments: Vec<String>,
}

impl Subject {
    /// A repository in the environment that was prepared for its tasks (any of them: mounts,
    /// variables and the work tree's place are the same for all).
    pub fn new(repository: &crate::Repository, environment: &PreparedTask) -> Self {
        Subject {
            tree: repository.tree.clone(),
            mounts: environment.mounts.clone(),
            variables: environment.variables.clone(),
            work_tree: environment.work_tree.clone(),
            test_files: repository
                .test_files
                .iter()
                .map(|path| path.to_text().into_owned())
                .collect(),
            sources: repository.source_files.clone(),
            arguments: repository.arguments.clone(),
        }
    }
}

/// Where jobs run, and how many at once.
#[derive(Clone)]
pub struct Workshop<'a> {
    /// The kind of sandbox.
    pub backend: &'a dyn Backend,
    /// Limits of each sandbox.
    pub limits: Limits,
    /// Protections of each sandbox; that processes are isolated is always demanded.
    pub demand: Demand,
    /// Sandboxes at once, at least one.
    pub n_workers: usize,
    /// A name for people and for finding what was left behind.
    pub label: String,
}

/// What became of one test of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TestRun {
    /// Position in [`Report::tests`].
    pub index: usize,
    /// Its outcome.
    pub outcome: TestOutcome,
    /// Wall time of its phases.
    pub seconds: f64,
}

/// Something that a test did besides passing or failing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flag {
    /// It used the network.
    Network,
    /// It wrote outside the work tree and the temporary directories.
    Outside,
    /// It changed a file of the work tree that was there before.
    Inside,
    /// It ran out of memory.
    Memory,
}

/// How something ended the interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Break {
    /// It used up its processor or wall time.
    Time,
    /// A signal ended it: a fault of the interpreter, or memory.
    Signal,
    /// It exited.
    Exit,
}

/// Code of one function or body, and the lines of it that ran.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Block {
    /// The file.
    pub file: String,
    /// First and last line of the code with everything inside it; `None` for the body of a module
    /// or class.
    pub span: Option<(u32, u32)>,
    /// Whether it is a function that has a name: no lambda, comprehension, class body or module.
    pub function: bool,
    /// Lines that ran, as first and last of each stretch.
    pub lines: Vec<(u32, u32)>,
}

/// What came of a job.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The tests, as asked for or as found.
    pub tests: Vec<String>,
    /// Results in the order in which they came.
    pub runs: Vec<TestRun>,
    /// Positions of tests that were asked for and are not there.
    pub missing: Vec<usize>,
    /// What tests did besides.
    pub flags: Vec<(usize, Flag)>,
    /// What pytest says of failing tests: the lines that fail, the errors and the places.
    pub outputs: Vec<(usize, String)>,
    /// Files or classes that could not be collected.
    pub errors: Vec<String>,
    /// What ended the interpreter, and in which test; `None` outside any.
    pub broken: Vec<(Option<usize>, Break)>,
    /// pytest's own exit status, when it came to its end.
    pub exit: Option<i32>,
    /// Executed code.
    pub blocks: Vec<Block>,
    /// What each test executed, as positions in `blocks`; without a test: what counts for all.
    pub covers: Vec<(Option<usize>, Vec<usize>)>,
    /// Source files of the repository that were imported.
    pub imports: Vec<String>,
    /// Third-party modules that collecting imported.
    pub modules: Vec<String>,
    /// The end of pytest's output.
    pub log: String,
    /// Processor seconds of the job's children.
    pub cpu_seconds: f64,
}

/// A job's end.
#[derive(Clone, Debug)]
pub enum Ended {
    /// It was reported.
    Reported(Box<Report>),
    /// It ended the pool itself, twice.
    BrokePool(String),
}

/// Why jobs could not be run; never a fault of the code under test.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The sandbox failed.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// pytest could not be started in the repository's environment.
    #[error("start pytest in the repository's environment: {0}")]
    NoPytest(String),
    /// The machine has no random bytes.
    #[error("{}", .0.message)]
    Randomness(Failure),
}

impl PoolError {
    /// What the user can do, where there is something.
    pub fn hint(&self) -> Option<String> {
        match self {
            PoolError::NoPytest(_) => {
                Some("name pytest and what the tests import as wheels of the environment".into())
            }
            _ => None,
        }
    }
}

#[derive(Deserialize)]
#[serde(tag = "t", rename_all = "kebab-case")]
enum Record {
    Hello {},
    Ready {},
    Ids {
        ids: Vec<String>,
    },
    Block {
        id: usize,
        #[serde(flatten)]
        block: Block,
    },
    Cover {
        i: Option<usize>,
        blocks: Vec<usize>,
    },
    Imports {
        files: Vec<String>,
    },
    Output {
        i: usize,
        text: String,
    },
    /// Block numbers begin anew.
    Again {},
    Done {
        job: usize,
        results: Vec<(usize, char, f64)>,
        missing: Vec<usize>,
        flags: Vec<(usize, Vec<Flag>)>,
        errors: Vec<String>,
        broken: Vec<(Option<usize>, String)>,
        exit: Option<i32>,
        modules: Vec<String>,
        cpu_seconds: f64,
        #[serde(default)]
        log: String,
    },
    End {
        why: String,
        log: String,
    },
}

fn outcome(letter: char) -> TestOutcome {
    match letter {
        'p' => TestOutcome::Passed,
        'f' => TestOutcome::Failed,
        's' => TestOutcome::Skipped,
        'x' => TestOutcome::ExpectedFailure,
        'X' => TestOutcome::UnexpectedPass,
        _ => TestOutcome::Error,
    }
}

fn break_of(text: &str) -> Break {
    match text {
        // SIGXCPU and SIGPROF: the job's and the test's processor time.
        "wall" | "signal:24" | "signal:27" => Break::Time,
        _ if text.starts_with("signal:") => Break::Signal,
        _ => Break::Exit,
    }
}

/// Runs `n_jobs` jobs, which `make` makes when their turn comes, and gives what `take` takes from
/// their ends, in the same order: there may be more of them than fit into memory at once. `imports`
/// are third-party modules that are imported before anything is forked; `batch` is how many jobs
/// one sandbox takes.
pub fn run<T: Send>(
    subject: &Subject,
    workshop: &Workshop<'_>,
    imports: &[String],
    batch: usize,
    n_jobs: usize,
    make: &(dyn Fn(usize) -> Job + Sync),
    take: &(dyn Fn(usize, Ended) -> T + Sync),
) -> Result<(Vec<T>, Cost), PoolError> {
    struct Shared<T> {
        queue: VecDeque<Vec<usize>>,
        taken: Vec<Option<T>>,
        broke: BTreeSet<usize>,
        cost: Cost,
        error: Option<PoolError>,
    }
    let numbers: Vec<usize> = (0..n_jobs).collect();
    let shared = Mutex::new(Shared {
        queue: numbers.chunks(batch.max(1)).map(<[_]>::to_vec).collect(),
        taken: (0..n_jobs).map(|_| None).collect(),
        broke: BTreeSet::new(),
        cost: Cost::default(),
        error: None,
    });
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || {
        loop {
            let numbers = {
                let mut shared = lock();
                match shared.queue.pop_front() {
                    Some(numbers) if shared.error.is_none() => numbers,
                    _ => return,
                }
            };
            let jobs: Vec<Job> = numbers.iter().map(|number| make(*number)).collect();
            let batch = match run_batch(subject, workshop, imports, &jobs) {
                Ok(batch) => batch,
                Err(error) => {
                    lock().error.get_or_insert(error);
                    return;
                }
            };
            let n_done = batch.reports.len();
            let taken: Vec<T> = numbers
                .iter()
                .zip(batch.reports)
                .map(|(number, report)| take(*number, Ended::Reported(Box::new(report))))
                .collect();
            let mut left = numbers[n_done..].to_vec();
            let mut shared = lock();
            shared.cost.add(batch.cost);
            for (number, taken) in numbers.iter().zip(taken) {
                shared.taken[*number] = Some(taken);
            }
            let went_on = batch.orderly && n_done > 0;
            if !went_on && !left.is_empty() {
                // The first one without a report is what ended the pool. It gets a second chance,
                // alone, because the machine may be to blame.
                let number = left.remove(0);
                if shared.broke.insert(number) {
                    shared.queue.push_front(vec![number]);
                } else {
                    shared.taken[number] = Some(take(number, Ended::BrokePool(batch.why)));
                }
            }
            if !left.is_empty() {
                shared.queue.push_front(left);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..workshop.n_workers.max(1) {
            scope.spawn(work);
        }
        work();
    });
    let shared = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    match shared.error {
        Some(error) => Err(error),
        None => Ok((shared.taken.into_iter().flatten().collect(), shared.cost)),
    }
}

struct Batch {
    reports: Vec<Report>,
    /// Whether the pool itself came to its end, after the last report.
    orderly: bool,
    why: String,
    cost: Cost,
}

/// Starts a sandbox with the subject's pristine files.
pub(crate) fn start(
    subject: &Subject,
    workshop: &Workshop<'_>,
    backend: &dyn Backend,
) -> Result<Box<dyn Sandbox>, SandboxError> {
    let mut demand = workshop.demand.clone();
    // The pool kills whatever it finds running.
    demand.0.insert(Protection::ProcessesIsolated);
    backend.start(&SandboxSpec {
        root: Root::Host,
        work_tree: WorkTree {
            start: Some(subject.tree.clone()),
            path: subject.work_tree.clone(),
        },
        mounts: subject
            .mounts
            .iter()
            .map(|mount| temper_sandbox::Mount {
                source: mount.source.clone(),
                target: mount.target.clone(),
            })
            .collect(),
        files: Vec::new(),
        environment: subject.variables.clone(),
        limits: workshop.limits.clone(),
        network: Network::None,
        demand,
        label: workshop.label.clone(),
    })
}

/// Runs one of Temper's own programs in a sandbox with the subject's pristine files.
pub(crate) fn execute(
    subject: &Subject,
    workshop: &Workshop<'_>,
    files: &[(&str, String)],
    command: impl FnOnce(&str) -> String,
    timeout: Duration,
) -> Result<(Execution, Cost), PoolError> {
    let mut sandbox = start(subject, workshop, workshop.backend)?;
    let from = format!(
        "/tmp/temper-{}",
        random_hex(8).map_err(PoolError::Randomness)?
    );
    let injected: Vec<_> = files
        .iter()
        .map(|(name, content)| InjectedFile {
            path: format!("{from}/{name}"),
            content: Bytes(content.clone().into_bytes()),
            executable: false,
        })
        .collect();
    sandbox.write_files(&injected)?;
    let mut command = Command::bash(format!("{FIND_PYTHON}{}", command(&from)), timeout);
    command.directory = Some("/".into());
    command.output_bytes = Some(OUTPUT_BYTES);
    let execution = sandbox.exec(&command)?;
    let usage = sandbox.stop()?;
    let cost = Cost {
        core_seconds: usage.cpu_seconds.unwrap_or(usage.wall_seconds),
        n_sandboxes: 1,
    };
    Ok((execution, cost))
}

fn run_batch(
    subject: &Subject,
    workshop: &Workshop<'_>,
    imports: &[String],
    jobs: &[Job],
) -> Result<Batch, PoolError> {
    let key = Key::new().map_err(PoolError::Randomness)?;
    let plan = serde_json::json!({
        "key": key.to_hex(),
        "work_tree": subject.work_tree,
        "arguments": subject.arguments,
        "imports": imports,
        "sources": subject.sources.iter().map(|path| path.to_text()).collect::<Vec<_>>(),
    });
    let mut lines = String::new();
    for job in jobs {
        lines += &job.to_json();
        lines.push('\n');
    }
    let limit: f64 = jobs.iter().map(|job| job.wall_limit()).sum();
    let (execution, cost) = execute(
        subject,
        workshop,
        &[
            ("pool.py", POOL.to_owned()),
            ("worker.py", WORKER.to_owned()),
            ("plan.json", plan.to_string()),
            ("jobs.jsonl", lines),
        ],
        |from| {
            format!(
                "exec \"$python\" -I -S -B {}",
                shell_quote(&format!("{from}/pool.py"))
            )
        },
        Duration::from_secs_f64(limit.min(1e7) + 300.0),
    )?;
    let mut reports = Vec::new();
    let mut report = Report::default();
    let mut first_block = 0;
    let mut ready = false;
    let mut end = None;
    for line in channel::read::<Record>(&execution.output, &key) {
        let Line::Record(record) = line else { continue };
        match record {
            Record::Hello {} => {}
            Record::Ready {} => ready = true,
            Record::Ids { ids } => report.tests.extend(ids),
            Record::Block { id, block } => {
                if first_block + id == report.blocks.len() {
                    report.blocks.push(block);
                }
            }
            Record::Cover { i, blocks } => report.covers.push((
                i,
                blocks
                    .into_iter()
                    .map(|block| first_block + block)
                    .filter(|block| *block < report.blocks.len())
                    .collect(),
            )),
            Record::Imports { files } => report.imports = files,
            Record::Output { i, text } => report.outputs.push((i, text)),
            Record::Again {} => first_block = report.blocks.len(),
            Record::Done {
                job,
                results,
                missing,
                flags,
                errors,
                broken,
                exit,
                modules,
                cpu_seconds,
                log,
            } => {
                let mut done = std::mem::take(&mut report);
                first_block = 0;
                if job != reports.len() || job >= jobs.len() {
                    break;
                }
                if let Some(tests) = &jobs[job].tests {
                    done.tests = tests.clone();
                }
                let known = 0..done.tests.len();
                done.runs = results
                    .into_iter()
                    .filter(|(index, ..)| known.contains(index))
                    .map(|(index, letter, seconds)| TestRun {
                        index,
                        outcome: outcome(letter),
                        seconds,
                    })
                    .collect();
                done.outputs.retain(|(index, _)| known.contains(index));
                done.missing = missing;
                done.missing.retain(|index| known.contains(index));
                done.flags = flags
                    .into_iter()
                    .flat_map(|(index, flags)| flags.into_iter().map(move |flag| (index, flag)))
                    .collect();
                done.errors = errors;
                done.broken = broken
                    .into_iter()
                    .map(|(index, how)| (index, break_of(&how)))
                    .collect();
                (done.exit, done.modules) = (exit, modules);
                (done.cpu_seconds, done.log) = (cpu_seconds, log);
                reports.push(done);
            }
            Record::End { why, log } => end = Some((why, log)),
        }
    }
    if !ready {
        let log = match &end {
            Some((_, log)) => excerpt(log.as_bytes()),
            None => excerpt(&execution.output),
        };
        return Err(PoolError::NoPytest(format!(
            "{:?}: {log}",
            execution.status
        )));
    }
    let (orderly, why) = match end {
        Some((why, _)) if why != "worker" => (true, why),
        Some((_, log)) => (
            false,
            format!("the worker was ended: {}", excerpt(log.as_bytes())),
        ),
        None if execution.status == ExitStatus::TimedOut => (false, "the time limit passed".into()),
        None => (false, format!("the pool was ended: {:?}", execution.status)),
    };
    Ok(Batch {
        reports,
        orderly,
        why,
        cost,
    })
}
