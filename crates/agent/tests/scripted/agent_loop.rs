//! What tests of the loop share: a scripted model, profiles from JSON, and a way to run a trial. The
//! conformance test, which has a `main` of its own, uses this file too, and all of it.

use std::{
    collections::VecDeque,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use temper_agent::{
    model::{Model, ModelError, ModelErrorClass, ModelReply, ModelRequest},
    profile::{ProfileName, ResolvedProfile},
    rollout::{self, Rollout},
    template::Variables,
    trajectory_file::Trajectory,
};
use temper_core::{
    AgentName, Message, Role, TaskId,
    task::InjectedFile,
    trajectory::{End, FinishReason, Header, Record, Step},
    tree::Changes,
    usage::{MicroDollars, Usage},
};
use temper_sandbox::{Command, Execution, ExitStatus, Sandbox, SandboxError};

/// Answers with prepared replies and keeps what it was sent.
#[derive(Default)]
pub struct Scripted {
    pub replies: VecDeque<Result<ModelReply, ModelError>>,
    pub requests: Vec<Vec<Message>>,
    pub cost: Option<MicroDollars>,
}

impl Scripted {
    pub fn texts<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> Self {
        Scripted {
            replies: texts.into_iter().map(|text| Ok(text_reply(text))).collect(),
            ..Scripted::default()
        }
    }
}

impl Model for Scripted {
    fn query(&mut self, request: &ModelRequest<'_>) -> Result<ModelReply, ModelError> {
        self.requests.push(request.messages.to_vec());
        let reply = self
            .replies
            .pop_front()
            .unwrap_or_else(|| Err(model_error(ModelErrorClass::Exhausted)));
        reply.map(|reply| ModelReply {
            cost: reply.cost.or(self.cost),
            ..reply
        })
    }
}

pub fn text_reply(text: impl Into<String>) -> ModelReply {
    ModelReply {
        message: Message::text(Role::Assistant, text),
        finish: FinishReason::Stop,
        usage: Usage::default(),
        cost: None,
        tokens: None,
        attempts: Vec::new(),
    }
}

pub fn model_error(class: ModelErrorClass) -> ModelError {
    ModelError {
        class,
        message: format!("the script says {class:?}"),
        attempts: Vec::new(),
    }
}

/// A profile with the templates of a probe: `agent` as upstream writes it.
pub fn probe(agent: &Value, timeout: u64, temper: Value) -> ResolvedProfile {
    let text = json!({
        "agent": agent,
        "environment": {"cwd": "/testbed", "timeout": timeout},
        "temper": temper,
    });
    ResolvedProfile::from_text(ProfileName::Custom, &text.to_string()).unwrap()
}

/// The probe templates of the golden cases, without limits.
pub fn probe_templates() -> Value {
    json!({
        "system_template": "SYS",
        "instance_template": "TASK {{task}}",
        "format_error_template": "FORMAT n={{actions|length}}",
        "timeout_template": "TIMEOUT [{{action['action']}}] out=[{{output}}]",
        "action_observation_template": "rc={{output.returncode}} out=[{{output.output}}]",
        "cost_limit": 0,
    })
}

/// A finished trial.
pub struct Done {
    pub end: End,
    pub records: Vec<Record>,
}

impl Done {
    pub fn trajectory(&self, task: &str, profile: &ResolvedProfile) -> Trajectory {
        let header = Header {
            branch: None,
            format: Header::FORMAT,
            task_id: TaskId::new(task).unwrap(),
            agent: AgentName::new("probe").unwrap(),
            attempt: 0,
            seed: 0,
            profile: profile.name(),
            profile_digest: profile.digest(),
            config: profile.config(),
            model: json!({"model_name": "scripted"}),
            sandbox: json!({}),
            started_at: "2026-01-01T00:00:00Z".into(),
        };
        Trajectory {
            header,
            prompts: self.prompts(),
            steps: self.steps(),
            end: Some(self.end.clone()),
            torn: false,
        }
    }

    pub fn prompts(&self) -> Vec<Message> {
        let prompts = self.records.iter().filter_map(|record| match record {
            Record::Prompt { message } => Some(message.clone()),
            _ => None,
        });
        prompts.collect()
    }

    pub fn steps(&self) -> Vec<Step> {
        let steps = self.records.iter().filter_map(|record| match record {
            Record::Step(step) => Some((**step).clone()),
            _ => None,
        });
        steps.collect()
    }

    pub fn messages(&self) -> Vec<Message> {
        let mut messages = self.prompts();
        for step in self.steps() {
            messages.push(step.reply);
            messages.extend(step.observations);
        }
        messages.extend(self.end.message.clone());
        messages
    }
}

/// Runs a trial.
pub fn run(
    profile: &ResolvedProfile,
    variables: Variables,
    model: &mut dyn Model,
    sandbox: &mut dyn Sandbox,
) -> Done {
    run_until(profile, variables, model, sandbox, None)
}

/// Runs a trial with a deadline.
pub fn run_until(
    profile: &ResolvedProfile,
    variables: Variables,
    model: &mut dyn Model,
    sandbox: &mut dyn Sandbox,
    deadline: Option<Instant>,
) -> Done {
    let mut records: Vec<Record> = Vec::new();
    let end = rollout::run(Rollout {
        profile,
        variables,
        directory: None,
        seed: 7,
        deadline,
        cancel: &AtomicBool::new(false),
        now: &|| "2026-01-01T00:00:00Z".into(),
        count_tokens: None,
        model,
        sandbox,
        recorder: &mut records,
        prefix: None,
        after_step: None,
    });
    assert_eq!(records.last(), Some(&Record::End(end.clone())));
    Done { end, records }
}

pub fn task(statement: &str) -> Variables {
    rollout::task_variables(statement, "/testbed")
}

/// A sandbox that runs nothing: it keeps the commands and answers from a list, then with nothing.
#[derive(Default)]
pub struct Pretend {
    pub commands: Vec<Command>,
    pub answers: VecDeque<Result<Execution, SandboxError>>,
}

pub fn printed(output: impl Into<Vec<u8>>) -> Execution {
    Execution {
        status: ExitStatus::Exited(0),
        output: output.into(),
        omitted: None,
        out_of_memory: false,
        wall: Duration::ZERO,
    }
}

impl Sandbox for Pretend {
    fn exec(&mut self, command: &Command) -> Result<Execution, SandboxError> {
        self.commands.push(command.clone());
        self.answers.pop_front().unwrap_or_else(|| Ok(printed("")))
    }

    fn write_files(&mut self, _: &[InjectedFile]) -> Result<(), SandboxError> {
        Ok(())
    }

    fn read_file(&mut self, _: &str, _: u64) -> Result<Option<Vec<u8>>, SandboxError> {
        Ok(None)
    }

    fn changes(&mut self) -> Result<Changes, SandboxError> {
        Ok(Changes::new())
    }

    fn stop(self: Box<Self>) -> Result<temper_sandbox::Usage, SandboxError> {
        Ok(temper_sandbox::Usage::default())
    }
}
