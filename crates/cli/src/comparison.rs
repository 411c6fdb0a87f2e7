//! From finished jobs to a comparison and a report page; shared by three verbs.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use temper_agent::{
    job::{JobDirectory, TaskEntry, TrialKey, write_atomically},
    trajectory_file,
};
use temper_core::{
    AgentName, Digest, Trial,
    manifest::{Manifest, Producer},
    run_profile::RunOperation,
    trajectory::Record,
};
use temper_eval::{
    Aggregate, Arm, Comparison, MetricLog, Options,
    claims::{self, Claims, JobFacts, Ledger},
    mixing::{self, ArmProfile, MixedProfiles},
    record::{Continuity, Counts, RecordInput, ResultRecord},
    training_log,
};
use temper_report::{ArmInput, Driver, MetricInput, ReportInput, TaskInput, TrainingInput};

use crate::{agents::PROGRAMS, clock, error::CliError, exit_code};

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

impl JobRecord {
    /// The profile that the job ran under.
    fn profile(&self) -> ArmProfile {
        let config = &self.manifest.config;
        let profile = &config["profile"];
        let name = profile["name"].as_str();
        let driver = config["agent"]["model"]["kind"].as_str();
        ArmProfile {
            arm: self.name.clone(),
            kind: name.map(|name| name.trim_end_matches("+overrides").to_owned()),
            name: name.unwrap_or("no known profile").to_owned(),
            digest: name.map(|_| {
                Digest::of_value(&json!({
                    "text": profile["text_digest"],
                    "overrides": profile["overrides"],
                }))
            }),
            is_own_program: driver.is_some_and(|driver| PROGRAMS.contains(&driver)),
        }
    }

    /// Trials that the job is to have.
    fn n_planned(&self) -> u64 {
        let attempts = self.manifest.config["attempts"].as_u64().unwrap_or(1);
        self.tasks.len() as u64 * attempts
    }

    /// The job as the rule of claims sees it.
    fn facts(&self, is_mixed: bool) -> Result<JobFacts, CliError> {
        let identity = self.directory.identity()?;
        let counts = Counts::of(self.n_planned(), &self.trials);
        Ok(JobFacts {
            job: self.directory.path().display().to_string(),
            facts: identity.as_ref().map(claims::of_job).unwrap_or_default(),
            is_language_model: self.manifest.config["agent"]["is_language_model"] == true,
            n_planned: counts.n_planned,
            n_trials: counts.n_there,
            n_lost: counts.n_lost,
            n_sessions: Continuity::of(&self.operations()?).n_sessions(),
            context_mismatch_allowed: identity
                .is_some_and(|identity| identity.context.mismatch_allowed),
            is_mixed,
        })
    }

    fn operations(&self) -> Result<Vec<RunOperation>, CliError> {
        let sessions = self.directory.sessions()?;
        Ok(sessions
            .into_iter()
            .map(|session| session.operation)
            .collect())
    }
}

/// Refuses jobs of different profiles; where they are allowed, says what the stamp must say.
pub fn check_mixing(
    records: &[JobRecord],
    allow_mixed: bool,
) -> Result<Option<MixedProfiles>, CliError> {
    let profiles: Vec<ArmProfile> = records.iter().map(JobRecord::profile).collect();
    allowed(mixing::check(&profiles), allow_mixed)
}

/// Turns a refusal into an error, or into a stamp where mixing is allowed.
pub fn allowed(
    checked: Result<(), MixedProfiles>,
    allow_mixed: bool,
) -> Result<Option<MixedProfiles>, CliError> {
    match checked {
        Ok(()) => Ok(None),
        Err(mixed) if allow_mixed => Ok(Some(mixed)),
        Err(mixed) => Err(CliError::new(exit_code::INPUT, mixed).hint(
            "run all arms under one profile; --allow-mixed compares them all the same and stamps the output",
        )),
    }
}

/// What the jobs may be called.
pub fn claims(ledger: &Ledger, records: &[JobRecord], is_mixed: bool) -> Result<Claims, CliError> {
    let facts: Vec<JobFacts> = records
        .iter()
        .map(|record| record.facts(is_mixed))
        .collect::<Result<_, _>>()?;
    Ok(claims::decide(ledger, &facts))
}

/// The record of each job's result, under the ledger that ships.
pub fn result_records(
    records: &[JobRecord],
    comparison: &Comparison,
    claims: &Claims,
) -> Result<Vec<ResultRecord>, CliError> {
    let made_at = clock::now();
    let each = records.iter().zip(&comparison.arms).zip(&claims.jobs);
    each.map(|((record, summary), claims_of_job)| {
        Ok(ResultRecord::make(RecordInput {
            producer: producer(),
            made_at: made_at.clone(),
            job: record.directory.path().display().to_string(),
            manifest: record.manifest.clone(),
            identity: record.directory.identity()?,
            sessions: record.operations()?,
            n_planned: record.n_planned(),
            trials: &record.trials,
            summary,
            ledger: claims.ledger.clone(),
            claims: claims_of_job.clone(),
            files: record.directory.digests()?,
        }))
    })
    .collect()
}

/// A note for each job that several runs of the command made, so that none is read as one.
pub fn continuity_notes(records: &[JobRecord]) -> Result<Vec<String>, CliError> {
    let mut notes = Vec::new();
    for record in records {
        let continuity = Continuity::of(&record.operations()?);
        if matches!(continuity, Continuity::Composite { .. }) {
            notes.push(format!("{} is {}", record.name, continuity.words()));
        }
    }
    Ok(notes)
}

fn producer() -> Producer {
    Producer {
        name: "temper".into(),
        version: env!("CARGO_PKG_VERSION").into(),
    }
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
    let mixed = comparison.notes.first();
    let mixed = mixed.filter(|_| !comparison.mixed_profiles.is_empty());
    let claims = claims(&Ledger::shipped(), records, mixed.is_some())?;
    let result_records = result_records(records, comparison, &claims)?;
    let composite: Vec<String> = result_records
        .iter()
        .filter(|record| record.continuity != Continuity::CleanRun)
        .map(|record| format!("{}: {}", record.job, record.continuity.words()))
        .collect();
    let mut notice: Vec<String> = mixed.into_iter().cloned().collect();
    if !composite.is_empty() {
        notice.push(format!(
            "Not every job is one clean run. {}.",
            composite.join("; ")
        ));
    }
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
        notice: (!notice.is_empty()).then(|| notice.join(" ")),
        generated_at: clock::now(),
        producer: producer(),
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
        claims: (!records.is_empty()).then_some(&claims),
        records: &result_records,
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
