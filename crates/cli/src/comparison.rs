//! From finished jobs to a comparison and a report page; shared by three verbs.

use std::path::{Path, PathBuf};

use serde_json::Value;
use temper_agent::{
    job::{JobDirectory, TaskEntry, TrialKey, write_atomically},
    trajectory_file,
};
use temper_core::{
    AgentName, Trial,
    manifest::{Manifest, Producer},
    trajectory::Record,
};
use temper_eval::{Aggregate, Arm, Comparison, MetricLog, Options, training_log};
use temper_report::{ArmInput, Driver, MetricInput, ReportInput, TaskInput, TrainingInput};

use crate::{clock, error::CliError, exit_code};

/// A finished job, read.
pub struct JobRecord {
    /// Its label in the comparison.
    pub name: AgentName,
    directory: JobDirectory,
    manifest: Manifest,
    tasks: Vec<TaskEntry>,
    trials: Vec<Trial>,
    /// What a sandbox of the job said of its protections.
    protections: Value,
}

/// Reads jobs. Two jobs of the same agent are told apart by their directories.
pub fn read_jobs(paths: &[PathBuf]) -> Result<Vec<JobRecord>, CliError> {
    let mut records: Vec<JobRecord> = Vec::new();
    for path in paths {
        let directory = JobDirectory::open(path)?;
        let manifest = directory.manifest()?;
        let trials = directory.trials()?;
        if trials.is_empty() {
            return Err(CliError::new(
                exit_code::INPUT,
                format!("use the job {}: it has no finished trial", path.display()),
            ));
        }
        let name = manifest.config["agent"]["name"]
            .as_str()
            .and_then(|name| AgentName::new(name).ok())
            .unwrap_or_else(|| trials[0].agent.clone());
        let protections = protections(&directory, &trials);
        records.push(JobRecord {
            name,
            tasks: directory.tasks()?,
            directory,
            manifest,
            trials,
            protections,
        });
    }
    let names: Vec<AgentName> = records.iter().map(|record| record.name.clone()).collect();
    for (index, record) in records.iter_mut().enumerate() {
        if names.iter().filter(|name| **name == record.name).count() > 1 {
            let label = format!("{} ({})", record.name, paths[index].display());
            record.name =
                AgentName::new(label).map_err(|error| CliError::new(exit_code::INPUT, error))?;
        }
    }
    Ok(records)
}

/// Compares the jobs; the first is the baseline.
pub fn compare(records: &[JobRecord], options: &Options) -> Result<Comparison, CliError> {
    let arms: Vec<Arm<'_>> = records
        .iter()
        .map(|record| Arm {
            name: record.name.clone(),
            trials: &record.trials,
        })
        .collect();
    temper_eval::compare(&arms, options).map_err(|error| {
        CliError::new(exit_code::INPUT, error)
            .hint("arms can be compared when they ran the same tasks of the same suite")
    })
}

/// Reads a metric log, or the events of a training run as one.
pub fn read_metrics(path: &Path) -> Result<MetricLog, CliError> {
    let wrong = |error: String| {
        CliError::new(
            exit_code::INPUT,
            format!("read {}: {error}", path.display()),
        )
    };
    let bytes = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    if training_log::is_events(&bytes) {
        training_log::of_events(&bytes)
    } else {
        MetricLog::read(&bytes)
    }
    .map_err(|error| wrong(error.to_string()))
}

/// Writes the report page.
pub fn write_report(
    records: &[JobRecord],
    comparison: &Comparison,
    metrics: &[(String, MetricLog)],
    training: Option<TrainingInput>,
    output: &Path,
) -> Result<(), CliError> {
    write_page(records, comparison, None, metrics, training, output)
}

/// Writes the report page of several training seeds.
pub fn write_aggregate_report(
    records: &[JobRecord],
    comparison: &Comparison,
    aggregate: &Aggregate,
    output: &Path,
) -> Result<(), CliError> {
    write_page(records, comparison, Some(aggregate), &[], None, output)
}

fn write_page(
    records: &[JobRecord],
    comparison: &Comparison,
    aggregate: Option<&Aggregate>,
    metrics: &[(String, MetricLog)],
    training: Option<TrainingInput>,
    output: &Path,
) -> Result<(), CliError> {
    let mut tasks: Vec<&TaskEntry> = Vec::new();
    for task in records.iter().flat_map(|record| &record.tasks) {
        if !tasks.iter().any(|known| known.id == task.id) {
            tasks.push(task);
        }
    }
    let names: Vec<&str> = records.iter().map(|record| record.name.as_str()).collect();
    let input = ReportInput {
        title: match names.as_slice() {
            [] => "Training".to_owned(),
            names => names.join(" / "),
        },
        notice: None,
        generated_at: clock::now(),
        producer: Producer {
            name: "temper".into(),
            version: env!("CARGO_PKG_VERSION").into(),
        },
        comparison,
        aggregate,
        arms: records
            .iter()
            .map(|record| ArmInput {
                job: record.directory.path().display().to_string(),
                driver: if record.manifest.config["agent"]["is_language_model"] == true {
                    Driver::LanguageModel
                } else {
                    Driver::Program
                },
                description: &record.manifest.config["agent"]["model"],
                manifest: &record.manifest,
                protections: &record.protections,
                trials: &record.trials,
            })
            .collect(),
        tasks: tasks
            .into_iter()
            .map(|task| TaskInput {
                id: &task.id,
                digest: &task.digest,
                source_group: &task.source_group,
                split: task.split,
                statement: &task.statement,
                origin: &task.origin,
            })
            .collect(),
        metrics: metrics
            .iter()
            .map(|(label, log)| MetricInput {
                label: label.clone(),
                log,
            })
            .collect(),
        training,
    };
    let page = temper_report::render(&input, &mut |arm, trial| {
        let key = TrialKey {
            task_id: trial.task_id.clone(),
            attempt: trial.attempt,
        };
        let path = records[arm]
            .directory
            .trial_directory(&key)
            .join("trajectory.jsonl");
        records_of(&path)
    })
    .map_err(|error| CliError::new(exit_code::FAILURE, error))?;
    write_atomically(output, &page).map_err(|error| {
        CliError::new(
            exit_code::FAILURE,
            format!("write {}: {error}", output.display()),
        )
    })
}

/// A trajectory as its records; what is missing is said in the report.
fn records_of(path: &Path) -> Result<Vec<Record>, String> {
    let trajectory = trajectory_file::read(path).map_err(|error| error.to_string())?;
    let mut records = vec![Record::Header(trajectory.header)];
    records.extend(
        trajectory
            .prompts
            .into_iter()
            .map(|message| Record::Prompt { message }),
    );
    records.extend(
        trajectory
            .steps
            .into_iter()
            .map(|step| Record::Step(Box::new(step))),
    );
    records.extend(trajectory.end.map(Record::End));
    Ok(records)
}

/// The protections as the first trajectory that can be read recorded them.
fn protections(directory: &JobDirectory, trials: &[Trial]) -> Value {
    trials
        .iter()
        .find_map(|trial| {
            let key = TrialKey {
                task_id: trial.task_id.clone(),
                attempt: trial.attempt,
            };
            let path = directory.trial_directory(&key).join("trajectory.jsonl");
            let trajectory = trajectory_file::read(&path).ok()?;
            Some(trajectory.header.sandbox["protections"].clone())
        })
        .unwrap_or(Value::Null)
}
