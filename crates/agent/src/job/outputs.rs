//! What a job leaves for other tools: predictions, a SWE-bench run report, a Harbor result.
//!
//! The formats hold one prediction per task, so with several attempts the first one speaks there;
//! `trials/` holds them all.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Value, json};
use temper_core::{Patch, TaskId, Trial, trajectory::Exit, usage::Usage, verdict::Resolution};

use super::{JobDirectory, JobError};
use crate::export::mini_swe_agent::{self, Prediction};

/// Paths of the files that were written, below the job's directory.
pub fn write(job: &JobDirectory) -> Result<Vec<String>, JobError> {
    let manifest = job.manifest()?;
    let agent = manifest.config["agent"]["name"]
        .as_str()
        .unwrap_or("agent")
        .to_owned();
    let run_id = job
        .path()
        .file_name()
        .map_or("job".into(), |name| name.to_string_lossy().into_owned());
    let n_tasks_all: BTreeSet<String> = job
        .tasks()?
        .into_iter()
        .map(|task| task.id.to_string())
        .collect();

    let mut firsts: Vec<(TaskId, Exit, Option<Patch>)> = Vec::new();
    let mut report = RunReport::new(&n_tasks_all);
    let mut harbor = HarborStats::default();
    job.for_each_trial(|trial| {
        harbor.add(&trial);
        if trial.attempt == 0 {
            report.add(&trial);
            firsts.push((trial.task_id, trial.exit, trial.patch));
        }
    })?;
    let (predictions, _) =
        mini_swe_agent::predictions(firsts.iter().map(|(task, _, patch)| Prediction {
            task,
            model: &agent,
            patch: patch.as_ref(),
        }));
    let exit_statuses =
        mini_swe_agent::exit_statuses(firsts.iter().map(|(task, exit, _)| (task, exit)));

    let report_name = format!("{}.{run_id}.json", agent.replace('/', "__"));
    job.write_json("preds.json", &predictions)?;
    job.write("exit_statuses.yaml", exit_statuses.as_bytes())?;
    job.write_json(&report_name, &report.finish())?;
    job.write_json(
        "result.json",
        &harbor.finish(&run_id, &agent, manifest.config["suite"].as_str()),
    )?;
    Ok(vec![
        "preds.json".into(),
        "exit_statuses.yaml".into(),
        report_name,
        "result.json".into(),
    ])
}

/// SWE-bench's run report, `schema_version` 2, with the infrastructure's failures as their own
/// list: they are neither resolved nor unresolved.
struct RunReport {
    all: BTreeSet<String>,
    submitted: BTreeSet<String>,
    completed: BTreeSet<String>,
    resolved: BTreeSet<String>,
    unresolved: BTreeSet<String>,
    empty_patch: BTreeSet<String>,
    error: BTreeSet<String>,
    infra_failure: BTreeSet<String>,
    reasons: BTreeMap<String, String>,
}

impl RunReport {
    fn new(all: &BTreeSet<String>) -> Self {
        RunReport {
            all: all.clone(),
            submitted: BTreeSet::new(),
            completed: BTreeSet::new(),
            resolved: BTreeSet::new(),
            unresolved: BTreeSet::new(),
            empty_patch: BTreeSet::new(),
            error: BTreeSet::new(),
            infra_failure: BTreeSet::new(),
            reasons: BTreeMap::new(),
        }
    }

    fn add(&mut self, trial: &Trial) {
        let id = trial.task_id.to_string();
        self.submitted.insert(id.clone());
        if let Some(failure) = &trial.failure {
            self.infra_failure.insert(id.clone());
            self.reasons
                .insert(id, format!("{}: {}", failure.class, failure.message));
            return;
        }
        match trial.verdict.resolution {
            Resolution::Resolved => {
                self.completed.insert(id.clone());
                self.resolved.insert(id);
            }
            Resolution::Unresolved | Resolution::Partial => {
                self.completed.insert(id.clone());
                self.unresolved.insert(id);
            }
            Resolution::EmptyPatch => {
                self.empty_patch.insert(id);
            }
            Resolution::InvalidPatch => {
                self.reasons
                    .insert(id.clone(), trial.verdict.detail.clone());
                self.error.insert(id);
            }
            Resolution::Lost => {
                self.reasons
                    .insert(id.clone(), trial.verdict.detail.clone());
                self.infra_failure.insert(id);
            }
        }
    }

    fn finish(self) -> Value {
        let incomplete: BTreeSet<_> = self.all.difference(&self.submitted).collect();
        json!({
            "total_instances": self.all.len(),
            "submitted_instances": self.submitted.len(),
            "completed_instances": self.completed.len(),
            "resolved_instances": self.resolved.len(),
            "unresolved_instances": self.unresolved.len(),
            "empty_patch_instances": self.empty_patch.len(),
            "error_instances": self.error.len(),
            "infra_failure_instances": self.infra_failure.len(),
            "completed_ids": self.completed,
            "incomplete_ids": incomplete,
            "empty_patch_ids": self.empty_patch,
            "submitted_ids": self.submitted,
            "resolved_ids": self.resolved,
            "unresolved_ids": self.unresolved,
            "error_ids": self.error,
            "infra_failure_ids": self.infra_failure,
            "failure_reasons": self.reasons,
            "schema_version": 2,
        })
    }
}

/// Harbor's job result, `schema_version` 1.
#[derive(Default)]
struct HarborStats {
    trials: Vec<Value>,
    n_errors: usize,
    usage: Usage,
    cost_usd: Option<f64>,
    n_retries: u64,
    started_at: Option<String>,
    finished_at: Option<String>,
    rewards: BTreeMap<String, BTreeMap<String, Vec<String>>>,
    exceptions: BTreeMap<String, Vec<String>>,
}

#[derive(Serialize)]
struct Phase<'a> {
    started_at: Option<&'a str>,
    finished_at: Option<&'a str>,
}

impl HarborStats {
    fn add(&mut self, trial: &Trial) {
        let name = format!("{}__{}", trial.task_id, trial.attempt);
        // The reward exists only where the verifier said something.
        let mut rewards = trial.verdict.rewards.clone();
        if let Some(solved) = trial.solved() {
            rewards
                .entry("reward".into())
                .or_insert(if solved { 1.0 } else { 0.0 });
        }
        for (key, value) in &rewards {
            self.rewards
                .entry(key.clone())
                .or_default()
                .entry(value.to_string())
                .or_default()
                .push(name.clone());
        }
        let failure = trial.failure.as_ref().or(match &trial.exit {
            Exit::Failed { failure } => Some(failure),
            _ => None,
        });
        if let Some(failure) = failure {
            self.n_errors += 1;
            self.exceptions
                .entry(failure.class.clone())
                .or_default()
                .push(name.clone());
        }
        self.usage.add(trial.usage);
        if let Some(cost) = trial.cost {
            *self.cost_usd.get_or_insert(0.0) += cost.dollars();
        }
        self.n_retries += u64::from(trial.n_retries);
        let earlier = |a: &Option<String>| a.as_ref().is_none_or(|a| *a > trial.started_at);
        if earlier(&self.started_at) {
            self.started_at = Some(trial.started_at.clone());
        }
        let later = |a: &Option<String>| a.as_ref().is_none_or(|a| *a < trial.finished_at);
        if later(&self.finished_at) {
            self.finished_at = Some(trial.finished_at.clone());
        }
        let whole = Phase {
            started_at: Some(&trial.started_at),
            finished_at: Some(&trial.finished_at),
        };
        self.trials.push(json!({
            "schema_version": 1,
            "id": name,
            "task_name": trial.task_id,
            "trial_name": name,
            "trial_uri": format!("trials/{}/{}", trial.task_id.directory_name(), trial.attempt),
            "task_checksum": trial.task_digest,
            "source": Value::Null,
            "agent_info": { "name": trial.agent, "version": env!("CARGO_PKG_VERSION"), "model_info": Value::Null },
            "agent_result": {
                "n_input_tokens": trial.usage.prompt_tokens,
                "n_cache_tokens": trial.usage.cached_tokens,
                "n_output_tokens": trial.usage.completion_tokens,
                "cost_usd": trial.cost.map(|cost| cost.dollars()),
            },
            "verifier_result": (!rewards.is_empty()).then(|| json!({ "rewards": rewards })),
            "exception_info": failure.map(|failure| json!({
                "exception_type": failure.class,
                "exception_message": failure.message,
                "exception_traceback": "",
                "occurred_at": trial.finished_at,
            })),
            "started_at": whole.started_at,
            "finished_at": whole.finished_at,
            "reward_valid": trial.solved().is_some(),
        }));
    }

    fn finish(self, run_id: &str, agent: &str, suite: Option<&str>) -> Value {
        let key = format!("{agent}__{}", suite.unwrap_or("adhoc"));
        json!({
            "schema_version": 1,
            "id": run_id,
            "started_at": self.started_at,
            "updated_at": self.finished_at,
            "finished_at": self.finished_at,
            "n_total_trials": self.trials.len(),
            "stats": {
                "n_completed_trials": self.trials.len(),
                "n_errored_trials": self.n_errors,
                "n_running_trials": 0,
                "n_pending_trials": 0,
                "n_cancelled_trials": 0,
                "n_retries": self.n_retries,
                "n_input_tokens": self.usage.prompt_tokens,
                "n_cache_tokens": self.usage.cached_tokens,
                "n_output_tokens": self.usage.completion_tokens,
                "cost_usd": self.cost_usd,
                "evals": { key: {
                    "n_trials": self.trials.len(),
                    "n_errors": self.n_errors,
                    "metrics": [],
                    "pass_at_k": {},
                    "reward_stats": self.rewards,
                    "exception_stats": self.exceptions,
                } },
            },
            "trial_results": self.trials,
        })
    }
}
