//! `temper grade`: judges predictions that something else made, as a job without an agent.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    time::Instant,
};

use clap::Args;
use serde_json::json;
use temper_agent::{
    job::{self, Cancelled, Options, Plan, TaskEntry, TrialKey, TrialRunner, outputs},
    trial::known_fix,
};
use temper_core::{
    AgentName, Boundary, Digest, Failure, Patch, PreparedTask, Task, TaskId, Trial, Verdict,
    manifest::{Manifest, Producer},
    trajectory::Exit,
    trial::{PatchSource, Timing},
    usage::Usage,
};
use temper_sandbox::verify::{
    self, GradeRequest, Graded, Submission, log_verifier,
    predictions::{GOLD, Predictions},
};

use crate::{
    args::{FormatArgs, SandboxArgs, SuiteArgs},
    clock, comparison,
    error::CliError,
    exit_code, output,
    places::{Places, workers},
    progress::Progress,
    sandboxes::Sandboxes,
    tasks::{self, PreparedSuite},
};

/// `temper grade`
#[derive(Args, Debug)]
pub struct GradeArgs {
    /// Tasks.
    #[command(flatten)]
    pub suite: SuiteArgs,
    /// Predictions: .json or .jsonl as of SWE-bench or mini-swe-agent, or `gold` for the known fixes
    #[arg(long, short, value_name = "FILE")]
    pub predictions: String,
    /// The job directory to make
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,
    /// Judge these logs, DIR/ID.log, instead of running tests
    #[arg(long, value_name = "DIR")]
    pub logs: Option<PathBuf>,
    /// Predictions at a time [default: the number of cores]
    #[arg(long, short = 'j')]
    pub workers: Option<usize>,
    /// Sandbox.
    #[command(flatten)]
    pub sandbox: SandboxArgs,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Grades, writes a job, and prints its summary.
pub fn run(args: &GradeArgs, places: &Places) -> Result<u8, CliError> {
    let judge = match &args.logs {
        Some(logs) => Judge::Logs(logs.clone()),
        None => {
            let sandboxes = Sandboxes::open_for_untrusted(&args.sandbox)?;
            output::note(&sandboxes.summary());
            Judge::Tests(sandboxes)
        }
    };
    let mut suite = match judge {
        Judge::Tests(_) => tasks::prepare(&args.suite, places, args.workers)?,
        Judge::Logs(_) => PreparedSuite::unprepared(tasks::load(&args.suite, places)?),
    };
    let (model, patches) = read_predictions(&args.predictions, &suite)?;
    suite.retain(|id| patches.contains_key(id));

    let runner = Runner {
        agent: AgentName::new(model).map_err(|error| CliError::new(exit_code::INPUT, error))?,
        tasks: suite.by_id(),
        patches: &patches,
        judge: &judge,
    };
    let plan = plan(args, &suite, &runner);
    let progress = Progress::new("grade", places.quiet, None);
    let (job, _) = job::run(
        &plan,
        &Options {
            workers: workers(args.workers),
            shard: None,
            max_retries: 2,
            redo_lost: false,
        },
        &runner,
        &|event| progress.on_event(event),
        &AtomicBool::new(false),
    )?;
    outputs::write(&job)?;
    let records = comparison::read_jobs(&[job.path().to_owned()])?;
    let comparison = comparison::compare(&records, &temper_eval::Options::default())?;
    let arm = &comparison.arms[0];
    output::data(
        &args
            .format
            .format
            .one(arm, || temper_report::terminal::summary(arm)),
    );
    output::note(&format!("job: {}", job.path().display()));
    Ok(if arm.trials_solved.n_scored == 0 {
        exit_code::ALL_LOST
    } else {
        exit_code::SUCCESS
    })
}

/// What judges.
enum Judge {
    /// The tasks' own verifiers, in sandboxes.
    Tests(Sandboxes),
    /// Logs of test runs that happened elsewhere, `DIR/ID.log`.
    Logs(PathBuf),
}

/// The model's name and the patches by task.
fn read_predictions(
    name: &str,
    suite: &PreparedSuite,
) -> Result<(String, BTreeMap<TaskId, Patch>), CliError> {
    let predictions = if name == GOLD {
        Predictions::Gold
    } else {
        let content = std::fs::read(name)
            .map_err(|error| CliError::new(exit_code::INPUT, format!("read {name}: {error}")))?;
        Predictions::read(&content)
            .map_err(|error| CliError::new(exit_code::INPUT, format!("{error} (in {name})")))?
    };
    let listed = match predictions {
        Predictions::Gold => {
            let mut patches = BTreeMap::new();
            for (task, _) in suite.iter() {
                let fix =
                    known_fix(task).map_err(|error| CliError::new(exit_code::INPUT, error))?;
                if let Some(fix) = fix {
                    patches.insert(task.id.clone(), fix);
                }
            }
            return Ok((GOLD.to_owned(), patches));
        }
        Predictions::Listed(listed) => listed,
    };
    let mut models: Vec<String> = listed.iter().filter_map(|p| p.model.clone()).collect();
    models.sort();
    models.dedup();
    let model = match models.as_slice() {
        [] => "predictions".to_owned(),
        [one] => one.clone(),
        several => {
            return Err(CliError::new(
                exit_code::INPUT,
                format!(
                    "read {name}: it holds predictions of {} models",
                    several.len()
                ),
            )
            .hint("grade one model at a time: a mixed file has no arm to compare"));
        }
    };
    let known: Vec<&TaskId> = suite.iter().map(|(task, _)| &task.id).collect();
    let (mine, foreign): (Vec<_>, Vec<_>) = listed
        .into_iter()
        .partition(|prediction| known.contains(&&prediction.task_id));
    if mine.is_empty() {
        return Err(CliError::new(
            exit_code::INPUT,
            format!(
                "read {name}: none of its {} predictions is for a chosen task",
                foreign.len()
            ),
        )
        .hint("`temper tasks list` shows the ids"));
    }
    if let Some(first) = foreign.first() {
        output::note(&format!(
            "note: {} predictions are for tasks that were not chosen, {} among them",
            foreign.len(),
            first.task_id
        ));
    }
    let patches = mine
        .into_iter()
        .map(|prediction| (prediction.task_id, prediction.patch))
        .collect();
    Ok((model, patches))
}

fn plan(args: &GradeArgs, suite: &PreparedSuite, runner: &Runner<'_>) -> Plan {
    let tasks: Vec<TaskEntry> = suite.entries();
    let judge = match runner.judge {
        Judge::Tests(sandboxes) => json!({
            "backend": sandboxes.backend.name(),
            "limits": sandboxes.limits,
            "demand": sandboxes.demand,
        }),
        Judge::Logs(_) => json!("logs"),
    };
    let inputs = tasks
        .iter()
        .map(|task| {
            let digest = Digest::of_value(&(
                &task.digest,
                &task.environment_digest,
                runner.patches.get(&task.id),
            ));
            (task.id.to_string(), digest)
        })
        .collect();
    Plan {
        directory: args.output.clone(),
        manifest: Manifest {
            format: Manifest::FORMAT,
            kind: "job".into(),
            producer: Producer {
                name: "temper".into(),
                version: env!("CARGO_PKG_VERSION").into(),
            },
            inputs,
            config: json!({
                "suite": suite.name,
                "agent": { "name": runner.agent, "is_language_model": null, "model": "predictions" },
                "sandbox": judge,
            }),
            seed: 0,
        },
        tasks,
        attempts: 1,
    }
}

struct Runner<'a> {
    agent: AgentName,
    tasks: BTreeMap<TaskId, Result<PreparedTask, (Task, Failure)>>,
    patches: &'a BTreeMap<TaskId, Patch>,
    judge: &'a Judge,
}

impl Runner<'_> {
    fn grade(&self, id: &TaskId, patch: &Patch, directory: &Path) -> Graded {
        let lost = |failure: Failure| Graded {
            verdict: Verdict::lost("none", failure.message.clone()),
            failure: Some(failure),
        };
        let (task, prepared) = match &self.tasks[id] {
            Ok(prepared) => (&prepared.task, Some(prepared)),
            Err((task, failure)) => match self.judge {
                Judge::Tests(_) => return lost(failure.clone()),
                Judge::Logs(_) => (task, None),
            },
        };
        match (self.judge, prepared) {
            (Judge::Tests(sandboxes), Some(prepared)) => verify::grade(
                &GradeRequest {
                    task: prepared,
                    submission: Submission::Patch(patch),
                    backend: sandboxes.backend.as_ref(),
                    limits: sandboxes.limits.clone(),
                    demand: sandboxes.demand.clone(),
                    label: format!("grade.{id}"),
                    proven: false,
                },
                &mut |name, log| {
                    // A log that cannot be kept does not change the verdict.
                    let _ = std::fs::write(directory.join(format!("grading-{name}.log")), log);
                },
            ),
            (Judge::Logs(logs), _) => {
                let path = logs.join(format!("{}.log", id.directory_name()));
                match std::fs::read(&path) {
                    Ok(log) => log_verifier::grade_log(&log, task),
                    Err(error) => lost(Failure {
                        boundary: Boundary::Verifier,
                        class: "LogMissing".into(),
                        message: format!("read {}: {error}", path.display()),
                        retryable: false,
                    }),
                }
            }
            (Judge::Tests(_), None) => unreachable!("an unprepared task was returned above"),
        }
    }
}

impl TrialRunner for Runner<'_> {
    fn run(&self, key: &TrialKey, directory: &Path, n_retries: u32) -> Result<Trial, Cancelled> {
        let started_at = clock::now();
        let started = Instant::now();
        let patch = &self.patches[&key.task_id];
        let graded = self.grade(&key.task_id, patch, directory);
        let _ = std::fs::write(directory.join("patch.diff"), &*patch.0);
        let task = match &self.tasks[&key.task_id] {
            Ok(prepared) => &prepared.task,
            Err((task, _)) => task,
        };
        let seconds = started.elapsed().as_secs_f64();
        Ok(Trial {
            format: Trial::FORMAT,
            task_id: key.task_id.clone(),
            task_digest: task.digest(),
            source_group: task.source_group.clone(),
            agent: self.agent.clone(),
            attempt: key.attempt,
            seed: key.seed(0),
            exit: Exit::Submitted,
            patch: Some(patch.clone()),
            patch_source: PatchSource::Predictions,
            verdict: graded.verdict,
            failure: graded.failure,
            n_model_calls: 0,
            n_steps: 0,
            usage: Usage::default(),
            cost: None,
            timing: Timing {
                grading_seconds: seconds,
                total_seconds: seconds,
                ..Timing::default()
            },
            n_retries,
            started_at,
            finished_at: clock::now(),
        })
    }
}
