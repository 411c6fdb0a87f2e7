//! States of a trial's sandbox between its steps, and trials that go on from one.

use std::collections::VecDeque;

use temper_core::{
    Digest, Message,
    trajectory::{Branch, Step},
    usage::{MicroDollars, Usage},
};
use temper_sandbox::{Sandbox, Snapshot};

use crate::trajectory_file::Trajectory;

/// Where a trial goes on from instead of a task's start.
#[derive(Clone, Debug)]
pub struct BranchStart {
    /// The sandbox's state.
    pub state: Snapshot,
    /// The messages that open the conversation.
    pub prompts: Vec<Message>,
    /// What has happened up to that state.
    pub steps: Vec<Step>,
    /// The same, as the trajectory's header says it.
    pub branch: Branch,
}

/// Keeps the last states of a trial's sandbox.
#[derive(Debug)]
pub struct StateKeeper {
    most: usize,
    max_bytes: u64,
    states: VecDeque<(u32, Snapshot)>,
    problem: Option<String>,
}

impl StateKeeper {
    /// Keeps the states after the last `most` steps, each of at most `max_bytes` of contents.
    pub fn new(most: usize, max_bytes: u64) -> Self {
        StateKeeper {
            most,
            max_bytes,
            states: VecDeque::new(),
            problem: None,
        }
    }

    pub(crate) fn keep(&mut self, number: u32, sandbox: &mut dyn Sandbox) {
        match sandbox.snapshot(self.max_bytes) {
            Ok(state) => self.states.push_back((number, state)),
            Err(error) => self.problem = Some(error.to_string()),
        }
        while self.states.len() > self.most {
            self.states.pop_front();
        }
    }

    /// The states, each with the number of the step after which it was.
    pub fn states(&self) -> impl DoubleEndedIterator<Item = (u32, &Snapshot)> {
        self.states.iter().map(|(number, state)| (*number, state))
    }

    /// Why a state is not there, the last one if there are several.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }
}

impl BranchStart {
    /// A start after step `n_steps` of a trajectory, in the state that its sandbox was in then.
    /// `None` if the trajectory has no such step.
    pub fn new(trajectory: &Trajectory, n_steps: u32, state: Snapshot) -> Option<Self> {
        let steps = trajectory.steps.get(..n_steps as usize)?.to_vec();
        let prompts = trajectory.prompts.clone();
        let mut usage = Usage::default();
        let mut cost: Option<MicroDollars> = None;
        for step in &steps {
            usage.add(step.usage);
            if let Some(more) = step.cost {
                let sum = cost.unwrap_or_default().0.saturating_add(more.0);
                cost = Some(MicroDollars(sum));
            }
        }
        // The call after the prefix had it as its prompt.
        let next = trajectory.steps.get(n_steps as usize);
        let branch = Branch {
            prefix: Digest::of_value(&(&prompts, &steps)),
            n_steps,
            n_tokens: next
                .and_then(|step| step.usage.prompt_tokens)
                .filter(|tokens| *tokens > 0),
            state: state.digest(),
            usage,
            cost,
        };
        Some(BranchStart {
            state,
            prompts,
            steps,
            branch,
        })
    }
}
