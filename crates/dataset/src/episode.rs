//! A finished trial with its trajectory: what training rows are made of.

use temper_core::{
    Digest, Message, Trial,
    message::Tool,
    task::TrainingTask,
    trajectory::{Branch, Record, Step, StepOutcome},
    trial::TeacherKind,
};

use crate::row::RowOrigin;

/// A trial of a training task, with what was said and done in it.
#[derive(Clone, Debug)]
pub struct Episode {
    task: TrainingTask,
    trial: Trial,
    tools: Vec<Tool>,
    prompt: Vec<Message>,
    steps: Vec<Step>,
    policy: Digest,
    branch: Option<Branch>,
    teacher: Option<TeacherKind>,
}

/// Why records are not those of a trial.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EpisodeError {
    /// The trial belongs to another task, or to another version of it.
    #[error("take a trial of {trial_task}: it is not of the task {task} as it is now")]
    OtherTask {
        /// The trial's.
        trial_task: String,
        /// The one given.
        task: String,
    },
    /// The records are not those of the trial.
    #[error("take the trajectory of {trial}: {problem}")]
    Records {
        /// The trial.
        trial: String,
        /// What does not fit.
        problem: String,
    },
}

impl Episode {
    /// Puts a trial and the records of its trajectory together. `tools` are those that the model
    /// was told of.
    ///
    /// # Errors
    /// When the task is another than the trial's, by id or content, or the records are of another
    /// trial, have a gap, or are cut off.
    pub fn new(
        task: TrainingTask,
        trial: Trial,
        records: Vec<Record>,
        tools: Vec<Tool>,
    ) -> Result<Self, EpisodeError> {
        if trial.task_id != task.id || trial.task_digest != task.digest() {
            return Err(EpisodeError::OtherTask {
                trial_task: trial.task_id.to_string(),
                task: task.id.to_string(),
            });
        }
        let name = format!("{}/{}/{}", trial.task_id, trial.agent, trial.attempt);
        let wrong = |problem: String| EpisodeError::Records {
            trial: name.clone(),
            problem,
        };
        let mut prompt = Vec::new();
        let mut steps: Vec<Step> = Vec::new();
        let mut ended = false;
        let mut read = None;
        for record in records {
            match record {
                Record::Header(header) => {
                    let same = header.task_id == trial.task_id
                        && header.agent == trial.agent
                        && header.attempt == trial.attempt
                        && header.seed == trial.seed;
                    if !same {
                        return Err(wrong("its header names another trial".to_owned()));
                    }
                    read = Some(header);
                }
                Record::Prompt { message } => prompt.push(message),
                Record::Step(step) => {
                    if step.number as usize != steps.len() + 1 {
                        return Err(wrong(format!("step {} is out of order", step.number)));
                    }
                    steps.push(*step);
                }
                Record::End(_) => ended = true,
            }
        }
        if !ended {
            return Err(wrong("it has no end".to_owned()));
        }
        let Some(header) = read else {
            return Err(wrong("it has no header".to_owned()));
        };
        if let Some(branch) = &header.branch
            && branch.n_steps as usize >= steps.len()
        {
            return Err(wrong(format!(
                "it shares {} steps and has {}",
                branch.n_steps,
                steps.len()
            )));
        }
        Ok(Episode {
            task,
            trial,
            tools,
            prompt,
            steps,
            policy: Digest::of_value(&(&header.agent, &header.model, &header.profile_digest)),
            branch: header.branch,
            teacher: None,
        })
    }

    /// The same, collected from a teacher.
    pub fn of_teacher(mut self, teacher: TeacherKind) -> Self {
        self.teacher = Some(teacher);
        self
    }

    /// The task.
    pub fn task(&self) -> &TrainingTask {
        &self.task
    }

    /// The trial.
    pub fn trial(&self) -> &Trial {
        &self.trial
    }

    /// The tools that the model was told of.
    pub fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// The messages that open the conversation.
    pub fn prompt(&self) -> &[Message] {
        &self.prompt
    }

    /// The turns.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The digest of what was sampled from: agent, model and profile.
    pub fn policy(&self) -> &Digest {
        &self.policy
    }

    /// Where it parts from the trial that it goes on from, if it does.
    pub fn branch(&self) -> Option<&Branch> {
        self.branch.as_ref()
    }

    /// Steps at the beginning that another trial took. They are that one's to teach.
    pub fn n_shared(&self) -> usize {
        self.branch
            .as_ref()
            .map_or(0, |branch| branch.n_steps as usize)
    }

    /// Whether it begins with the steps that a continuation shares: it goes on from the same state,
    /// or is the trial that the state is of.
    pub fn begins_with(&self, branch: &Branch) -> bool {
        if self.n_shared() == branch.n_steps as usize {
            return self
                .branch
                .as_ref()
                .is_some_and(|own| own.prefix == branch.prefix);
        }
        let steps = self.steps.get(..branch.n_steps as usize);
        steps.is_some_and(|steps| Digest::of_value(&(&self.prompt, steps)) == branch.prefix)
    }

    /// The whole conversation up to the last reply; what came after it was not answered.
    pub fn messages(&self) -> Vec<Message> {
        let mut messages = self.prompt.clone();
        for (index, step) in self.steps.iter().enumerate() {
            messages.push(step.reply.clone());
            if index + 1 < self.steps.len() {
                messages.extend(step.observations.iter().cloned());
            }
        }
        messages
    }

    /// What a row made of it says of where it comes from.
    pub fn origin(&self) -> RowOrigin {
        RowOrigin {
            task_id: self.trial.task_id.clone(),
            source_group: self.trial.source_group.clone(),
            agent: self.trial.agent.clone(),
            attempt: self.trial.attempt,
            seed: self.trial.seed,
            teacher: self.teacher,
        }
    }
}

/// Whether a turn had no action that could run: nothing to learn from.
pub(crate) fn is_faulty(step: &Step) -> bool {
    matches!(
        step.outcome,
        StepOutcome::FormatError | StepOutcome::Truncated
    )
}
