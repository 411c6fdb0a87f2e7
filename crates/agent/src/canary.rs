//! The canary ladder: a few tasks before many, and what each rung must show before the next.
//!
//! A rung is a job of its own. Its gates ask whether the machinery worked, not whether the agent
//! is good: a rung on which nothing was solved passes.

use serde::{Deserialize, Serialize};
use temper_core::{
    Message, Trial,
    run_profile::{RunIdentity, differences},
    trajectory::{Exit, StepOutcome},
};

use crate::{
    job::{JobDirectory, JobError, TrialKey},
    trajectory_file,
};

/// One rung, before it is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rung {
    /// Tasks, the first of the ladder's order.
    pub n_tasks: usize,
    /// Trials at a time.
    pub concurrency: usize,
}

/// The rungs for `n_tasks` tasks: one, ten, all of them, with a concurrency that rises from one to
/// `workers`. A rung that would repeat the one below is left out; without tasks there is none.
pub fn rungs(n_tasks: usize, workers: usize) -> Vec<Rung> {
    let mut sizes = vec![1, 10, n_tasks];
    sizes.retain(|size| *size <= n_tasks && *size > 0);
    sizes.sort_unstable();
    sizes.dedup();
    let n_rungs = sizes.len();
    sizes
        .into_iter()
        .enumerate()
        .map(|(index, n_tasks)| Rung {
            n_tasks,
            concurrency: if index == 0 {
                1
            } else {
                (workers * index / (n_rungs - 1).max(1)).clamp(1, n_tasks)
            },
        })
        .collect()
}

/// What a rung must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gate {
    /// Nothing broke outside of the agent: no trial was lost, none was started over, no call had
    /// to be repeated.
    Infrastructure,
    /// The model answered in every trial, and not only with empty replies.
    AssistantTurns,
    /// Every action has its observation, and no observation is without an action.
    Observations,
    /// Every planned trial has a reward; 0 is one.
    Rewards,
    /// The server refused no prompt as too long.
    Context,
    /// Every trial ran as what the ladder is.
    Identity,
}

impl Gate {
    /// All gates, in the order in which they are tested.
    pub const ALL: [Gate; 6] = [
        Gate::Infrastructure,
        Gate::AssistantTurns,
        Gate::Observations,
        Gate::Rewards,
        Gate::Context,
        Gate::Identity,
    ];

    /// What it asks, in words.
    pub fn words(self) -> &'static str {
        match self {
            Gate::Infrastructure => "no failure of the infrastructure",
            Gate::AssistantTurns => "the model answered in every trial",
            Gate::Observations => "as many observations as actions",
            Gate::Rewards => "a reward for every trial",
            Gate::Context => "no prompt refused as too long",
            Gate::Identity => "the same runtime identity everywhere",
        }
    }
}

/// What a gate found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateResult {
    /// The gate.
    pub gate: Gate,
    /// Whether it holds.
    pub passed: bool,
    /// What was counted.
    pub counted: String,
    /// The first few places where it does not hold.
    pub problems: Vec<String>,
}

/// How many problems are named.
const MAX_PROBLEMS: usize = 10;

/// Tests every gate on a finished rung. `expected` is what the ladder is; the tasks may differ from
/// rung to rung, nothing else.
pub fn check(job: &JobDirectory, expected: &RunIdentity) -> Result<Vec<GateResult>, JobError> {
    let manifest = job.manifest()?;
    let attempts = manifest.config["attempts"].as_u64().unwrap_or(1);
    let n_planned = job.tasks()?.len() as u64 * attempts;
    let mut seen = Seen::default();
    let mut trials = Vec::new();
    job.for_each_trial(|trial| trials.push(trial))?;
    for trial in &trials {
        let key = TrialKey {
            task_id: trial.task_id.clone(),
            attempt: trial.attempt,
        };
        let directory = job.trial_directory(&key);
        seen.trial(trial);
        match trajectory_file::read(&directory.join("trajectory.jsonl")) {
            Ok(trajectory) => seen.trajectory(trial, &trajectory, &manifest.config, expected),
            Err(error) => {
                let place = name(trial);
                for gate in [Gate::AssistantTurns, Gate::Observations, Gate::Identity] {
                    seen.fail(gate, format!("{place}: no trajectory: {error}"));
                }
            }
        }
    }
    if (trials.len() as u64) < n_planned {
        let n = trials.len();
        seen.fail(
            Gate::Rewards,
            format!("{n} of {n_planned} trials are there"),
        );
    }
    match job.identity()? {
        Some(identity) => seen.identity(&identity, expected),
        None => seen.fail(Gate::Identity, "the job wrote no run profile".into()),
    }
    Ok(seen.results(n_planned))
}

#[derive(Default)]
struct Seen {
    n_trials: u64,
    n_lost: u64,
    n_repeated_calls: u64,
    n_turns: u64,
    n_actions: u64,
    n_observations: u64,
    n_rewards: u64,
    n_refused: u64,
    problems: std::collections::BTreeMap<Gate, Vec<String>>,
}

fn name(trial: &Trial) -> String {
    format!("{} attempt {}", trial.task_id, trial.attempt)
}

impl Seen {
    fn fail(&mut self, gate: Gate, problem: String) {
        self.problems.entry(gate).or_default().push(problem);
    }

    fn trial(&mut self, trial: &Trial) {
        self.n_trials += 1;
        let place = name(trial);
        if let Some(failure) = &trial.failure {
            self.n_lost += 1;
            let (class, message) = (&failure.class, &failure.message);
            self.fail(Gate::Infrastructure, format!("{place}: {class}: {message}"));
        }
        if trial.n_retries > 0 {
            let n = trial.n_retries;
            self.fail(
                Gate::Infrastructure,
                format!("{place}: it was started over {n} times"),
            );
        }
        if trial.solved().is_some() {
            self.n_rewards += 1;
        } else {
            self.fail(Gate::Rewards, format!("{place}: it has no reward"));
        }
        if trial.n_steps == 0 {
            self.fail(
                Gate::AssistantTurns,
                format!("{place}: the model never answered"),
            );
        }
    }

    fn trajectory(
        &mut self,
        trial: &Trial,
        trajectory: &trajectory_file::Trajectory,
        config: &serde_json::Value,
        expected: &RunIdentity,
    ) {
        let place = name(trial);
        let header = &trajectory.header;
        if header.profile_digest != expected.profile.digest {
            self.fail(
                Gate::Identity,
                format!("{place}: it ran under another profile"),
            );
        }
        if header.model != config["agent"]["model"] {
            self.fail(Gate::Identity, format!("{place}: another model answered"));
        }
        let n_steps = trajectory.steps.len();
        // A server that loses the text of every reply still answers every call.
        let says =
            |reply: &Message| !reply.content.trim().is_empty() || !reply.tool_calls.is_empty();
        let n_turns = trajectory
            .steps
            .iter()
            .filter(|step| says(&step.reply))
            .count();
        self.n_turns += n_turns as u64;
        if n_steps > 0 && n_turns == 0 {
            self.fail(
                Gate::AssistantTurns,
                format!("{place}: each of {n_steps} replies is empty"),
            );
        }
        for (index, step) in trajectory.steps.iter().enumerate() {
            let (n_actions, n_observations) = (step.actions.len(), step.observations.len());
            self.n_actions += n_actions as u64;
            let is_last = index + 1 == n_steps;
            let is_right = match step.outcome {
                // What a submitting command prints is the submission, which ends the conversation.
                StepOutcome::Submitted if is_last => {
                    self.n_observations += n_actions as u64;
                    n_actions > 0
                }
                StepOutcome::Submitted => false,
                StepOutcome::Ran | StepOutcome::TimedOut => {
                    self.n_observations += n_observations as u64;
                    n_actions > 0 && n_actions == n_observations
                }
                // Nothing ran; the model was told why. A last one may end the trial instead.
                StepOutcome::FormatError | StepOutcome::Truncated => {
                    n_actions == 0 && (n_observations > 0 || is_last)
                }
            };
            if !is_right {
                self.fail(
                    Gate::Observations,
                    format!(
                        "{place}: step {} has {n_actions} actions and {n_observations} observations",
                        step.number
                    ),
                );
            }
        }
        let attempts = trajectory
            .steps
            .iter()
            .flat_map(|step| &step.attempts)
            .chain(trajectory.end.iter().flat_map(|end| &end.attempts));
        let mut refused = false;
        for attempt in attempts {
            match attempt.error.as_deref() {
                None => {}
                Some("ContextExceeded") => refused = true,
                Some(class) => {
                    self.n_repeated_calls += 1;
                    self.fail(
                        Gate::Infrastructure,
                        format!("{place}: a call failed: {class}"),
                    );
                }
            }
        }
        // The guard ends a trial before it asks; then no attempt stands in the record.
        let guarded = expected
            .settings
            .get("agent.context_guard_reserve_tokens")
            .is_some_and(|setting| setting.set().is_some());
        if refused || (trial.exit == Exit::ContextExceeded && !guarded) {
            self.n_refused += 1;
            self.fail(
                Gate::Context,
                format!("{place}: the server refused the prompt as too long"),
            );
        }
    }

    fn identity(&mut self, found: &RunIdentity, expected: &RunIdentity) {
        let without_tasks = |identity: &RunIdentity| {
            let mut value = serde_json::to_value(identity).expect("an identity is plain data");
            for (table, keys) in [
                (
                    "dataset",
                    &[
                        "digest",
                        "split_digest",
                        "split",
                        "n_tasks",
                        "projects",
                        "task_format",
                    ][..],
                ),
                ("runtime", &["environment_digest", "image_names_digest"][..]),
            ] {
                for key in keys {
                    value[table][*key] = serde_json::Value::Null;
                }
            }
            value
        };
        for difference in differences(&without_tasks(expected), &without_tasks(found)) {
            self.fail(
                Gate::Identity,
                format!(
                    "{}: the ladder began with {}, this rung has {}",
                    difference.field, difference.first, difference.second
                ),
            );
        }
    }

    fn results(mut self, n_planned: u64) -> Vec<GateResult> {
        let counted = |gate: Gate| match gate {
            Gate::Infrastructure => format!(
                "{} of {} trials lost, {} calls failed",
                self.n_lost, self.n_trials, self.n_repeated_calls
            ),
            Gate::AssistantTurns => format!("{} turns in {} trials", self.n_turns, self.n_trials),
            Gate::Observations => format!(
                "{} observations, {} actions",
                self.n_observations, self.n_actions
            ),
            Gate::Rewards => format!("{} rewards for {n_planned} trials", self.n_rewards),
            Gate::Context => format!("{} prompts refused", self.n_refused),
            Gate::Identity => format!("{} trials", self.n_trials),
        };
        let counts = Gate::ALL.map(counted);
        Gate::ALL
            .into_iter()
            .zip(counts)
            .map(|(gate, counted)| {
                let mut problems = self.problems.remove(&gate).unwrap_or_default();
                let passed = problems.is_empty();
                let n_more = problems.len().saturating_sub(MAX_PROBLEMS);
                problems.truncate(MAX_PROBLEMS);
                if n_more > 0 {
                    problems.push(format!("{n_more} more"));
                }
                GateResult {
                    gate,
                    passed,
                    counted,
                    problems,
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rungs_grow_and_never_repeat() {
        let sizes = |n_tasks, workers| {
            rungs(n_tasks, workers)
                .into_iter()
                .map(|rung| (rung.n_tasks, rung.concurrency))
                .collect::<Vec<_>>()
        };
        assert_eq!(sizes(27, 8), [(1, 1), (10, 4), (27, 8)]);
        assert_eq!(sizes(10, 8), [(1, 1), (10, 8)]);
        assert_eq!(sizes(4, 8), [(1, 1), (4, 4)]);
        assert_eq!(sizes(1, 8), [(1, 1)]);
        assert_eq!(sizes(30, 1), [(1, 1), (10, 1), (30, 1)]);
        assert!(rungs(0, 8).is_empty());
    }
}
