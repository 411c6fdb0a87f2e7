//! mini-swe-agent's files: trajectories (`mini-swe-agent-1` and `-1.1`), `preds.json` and the
//! exit-status list.
//!
//! The shapes are upstream's. Two contents are not: exit statuses of failures are Temper's stable
//! names (see [`python_class`]), and a trial that failed has an empty `model_patch`, never the text
//! of its error.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use temper_core::{
    Message, Patch, Role, TaskId,
    trajectory::{Action, End, Exit, Step, StepOutcome},
    usage::{MicroDollars, Usage},
};

use crate::{
    profile::Settings,
    protocol::{Protocol, text},
    trajectory_file::Trajectory,
};

/// A trajectory as `ID.traj.json`: `mini-swe-agent-1` for the bash-block protocol,
/// `mini-swe-agent-1.1` for tool calls. A trajectory without an end has an empty exit status.
pub fn trajectory(trajectory: &Trajectory) -> Value {
    let header = &trajectory.header;
    let settings = settings(trajectory);
    let protocol = header.config.pointer("/settings/protocol");
    let version_2 = protocol == Some(&json!(Protocol::ToolCall));
    let (status, submission) = match &trajectory.end {
        Some(end) => (end.exit.mini_swe_agent_status(), submission(end, version_2)),
        None => (String::new(), String::new()),
    };
    let (_, cost) = totals(trajectory);
    let mut info = json!({
        "exit_status": status,
        "submission": submission,
        "model_stats": {
            "instance_cost": cost.unwrap_or_default().dollars(),
            "api_calls": trajectory.steps.len(),
        },
        "mini_version": concat!("temper-", env!("CARGO_PKG_VERSION")),
    });
    if !trajectory.prompts.is_empty() {
        info["config"] = match &settings {
            Some(settings) => config(settings, &header.model),
            None => header.config.clone(),
        };
    }
    if let Some(failure) = failure_text(trajectory.end.as_ref()) {
        info["traceback"] = json!(failure);
    }
    let messages = if version_2 {
        messages_2(trajectory)
    } else {
        trajectory.messages().into_iter().map(plain).collect()
    };
    json!({
        "info": info,
        "messages": messages,
        "trajectory_format": if version_2 { "mini-swe-agent-1.1" } else { "mini-swe-agent-1" },
        "instance_id": header.task_id.as_str(),
    })
}

/// One line of `preds.json`.
#[derive(Clone, Debug)]
pub struct Prediction<'a> {
    /// The task.
    pub task: &'a TaskId,
    /// Name of the arm or the model.
    pub model: &'a str,
    /// The patch; `None` for a trial that failed.
    pub patch: Option<&'a Patch>,
}

/// `preds.json`: an object by instance id. JSON holds text, so bytes of a patch that are not UTF-8
/// are replaced; the tasks where that happened come second.
pub fn predictions<'a>(
    predictions: impl IntoIterator<Item = Prediction<'a>>,
) -> (Value, Vec<TaskId>) {
    let mut object = Map::new();
    let mut replaced = Vec::new();
    for prediction in predictions {
        let bytes: &[u8] = prediction.patch.map_or(b"", |patch| &patch.0);
        if std::str::from_utf8(bytes).is_err() {
            replaced.push(prediction.task.clone());
        }
        object.insert(
            prediction.task.as_str().to_owned(),
            json!({
                "model_name_or_path": prediction.model,
                "instance_id": prediction.task.as_str(),
                "model_patch": text::decode(bytes),
            }),
        );
    }
    (Value::Object(object), replaced)
}

/// `exit_statuses_TIME.yaml`: the task ids by exit status, statuses sorted, ids in the order given.
pub fn exit_statuses<'a>(exits: impl IntoIterator<Item = (&'a TaskId, &'a Exit)>) -> String {
    let mut by_status: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (task, exit) in exits {
        by_status
            .entry(exit.mini_swe_agent_status())
            .or_default()
            .push(task.as_str());
    }
    // JSON strings are YAML strings, so quoting every one of them is always right.
    let quoted = |text: &str| Value::from(text).to_string();
    if by_status.is_empty() {
        return "instances_by_exit_status: {}\n".into();
    }
    let mut yaml = String::from("instances_by_exit_status:\n");
    for (status, ids) in by_status {
        yaml.push_str(&format!("  {}:\n", quoted(&status)));
        for id in ids {
            yaml.push_str(&format!("  - {}\n", quoted(id)));
        }
    }
    yaml
}

/// The Python class that upstream's files name where Temper's name `class`; `None` where upstream
/// has nothing that corresponds.
pub fn python_class(class: &str) -> Option<&'static str> {
    PYTHON_CLASSES
        .iter()
        .find(|(own, _)| *own == class)
        .map(|(_, python)| *python)
}

/// Temper's names of failures and exits, and the Python classes that stand for the same in
/// upstream's files. Classes of the HTTP client are LiteLLM's.
pub const PYTHON_CLASSES: &[(&str, &str)] = &[
    ("UndefinedVariable", "UndefinedError"),
    ("TemplateSyntax", "TemplateSyntaxError"),
    ("TemplateRendering", "TemplateRuntimeError"),
    ("Exhausted", "IndexError"),
    ("Authentication", "AuthenticationError"),
    ("ModelNotFound", "NotFoundError"),
    ("BadRequest", "BadRequestError"),
    ("RateLimited", "RateLimitError"),
    ("Server", "InternalServerError"),
    ("Connection", "APIConnectionError"),
    ("SandboxStart", "CalledProcessError"),
    ("Cancelled", "KeyboardInterrupt"),
];

fn settings(trajectory: &Trajectory) -> Option<Settings> {
    let settings = trajectory.header.config.get("settings")?;
    serde_json::from_value(settings.clone()).ok()
}

/// Tokens and price of the whole trajectory, from its steps where it has no end.
pub(super) fn totals(trajectory: &Trajectory) -> (Usage, Option<MicroDollars>) {
    if let Some(end) = &trajectory.end {
        return (end.usage, end.cost);
    }
    let mut usage = Usage::default();
    let mut cost: Option<MicroDollars> = None;
    for step in &trajectory.steps {
        usage.add(step.usage);
        if let Some(price) = step.cost {
            let total = cost.unwrap_or_default().0.saturating_add(price.0);
            cost = Some(MicroDollars(total));
        }
    }
    (usage, cost)
}

/// What stands under `submission`. Version 1 puts the text of an error there, version 2 nothing.
fn submission(end: &End, version_2: bool) -> String {
    match (&end.exit, version_2) {
        (Exit::Failed { failure }, false) => failure.message.clone(),
        _ => end
            .submission
            .as_ref()
            .map(|submission| submission.to_text().into_owned())
            .unwrap_or_default(),
    }
}

fn failure_text(end: Option<&End>) -> Option<String> {
    match &end?.exit {
        Exit::Failed { failure } => Some(format!(
            "{:?} failure {}: {}",
            failure.boundary, failure.class, failure.message
        )),
        Exit::ContextExceeded => Some("the conversation no longer fits the context".into()),
        _ => None,
    }
}

fn config(settings: &Settings, model: &Value) -> Value {
    let templates = &settings.templates;
    let mut agent = json!({
        "system_template": templates.system,
        "instance_template": templates.instance,
        "step_limit": settings.step_limit.unwrap_or(0),
        "cost_limit": settings.cost_limit.unwrap_or_default().dollars(),
    });
    let mut model = match model {
        Value::Object(fields) => fields.clone(),
        other => Map::from_iter([("model_name".to_owned(), other.clone())]),
    };
    match settings.protocol {
        Protocol::BashBlock => {
            agent["timeout_template"] = json!(templates.timeout);
            agent["format_error_template"] = json!(templates.format_error);
            agent["action_observation_template"] = json!(templates.observation);
        }
        Protocol::ToolCall => {
            let wall = settings.wall_time_limit.map_or(0, |limit| limit.as_secs());
            let errors = settings.max_consecutive_format_errors.unwrap_or(0);
            agent["wall_time_limit_seconds"] = json!(wall);
            agent["max_consecutive_format_errors"] = json!(errors);
            model.insert("observation_template".into(), json!(templates.observation));
            model.insert(
                "format_error_template".into(),
                json!(templates.format_error),
            );
        }
    }
    json!({
        "agent": agent,
        "model": model,
        "environment": {
            "cwd": settings.directory.as_deref().unwrap_or_default(),
            "env": settings.variables,
            "timeout": settings.command_timeout.as_secs(),
        },
        "agent_type": "temper.rollout",
        "model_type": "temper.model",
        "environment_type": "temper.sandbox",
    })
}

fn plain(message: &Message) -> Value {
    let role = match message.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let mut value = json!({"role": role, "content": message.content});
    if let Some(reasoning) = &message.reasoning {
        value["extra"] = json!({"reasoning_content": reasoning});
    }
    value
}

fn messages_2(trajectory: &Trajectory) -> Vec<Value> {
    let mut messages: Vec<_> = trajectory.prompts.iter().map(plain).collect();
    for step in &trajectory.steps {
        messages.push(reply_2(step));
        for observation in &step.observations {
            let mut value = plain(observation);
            if let Some(id) = &observation.tool_call_id {
                value["tool_call_id"] = json!(id);
            }
            let action = step
                .actions
                .iter()
                .find(|action| action.tool_call_id == observation.tool_call_id);
            value["extra"] = match (step.outcome, action) {
                (StepOutcome::FormatError | StepOutcome::Truncated, _) => {
                    json!({"interrupt_type": "FormatError"})
                }
                (_, Some(action)) => action_extra(action),
                (_, None) => json!({}),
            };
            messages.push(value);
        }
    }
    if let Some(end) = &trajectory.end {
        let status = end.exit.mini_swe_agent_status();
        let submission = submission(end, true);
        let content = match &end.exit {
            Exit::Submitted => submission.clone(),
            Exit::Failed { failure } => failure.message.clone(),
            _ => status.clone(),
        };
        let mut extra = json!({"exit_status": status, "submission": submission});
        if let Exit::Failed { failure } = &end.exit {
            extra["exception_str"] = json!(failure.message);
            extra["traceback"] = json!(failure_text(Some(end)));
        }
        messages.push(json!({"role": "exit", "content": content, "extra": extra}));
    }
    messages
}

fn reply_2(step: &Step) -> Value {
    let mut value = plain(&step.reply);
    if !step.reply.tool_calls.is_empty() {
        let calls: Vec<_> = step
            .reply
            .tool_calls
            .iter()
            .map(|call| {
                json!({
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                })
            })
            .collect();
        value["tool_calls"] = json!(calls);
    }
    let actions: Vec<_> = step
        .actions
        .iter()
        .map(|action| json!({"command": action.command, "tool_call_id": action.tool_call_id}))
        .collect();
    let mut extra = json!({
        "actions": actions,
        "cost": step.cost.unwrap_or_default().dollars(),
    });
    if let Some(reasoning) = &step.reply.reasoning {
        extra["reasoning_content"] = json!(reasoning);
    }
    value["extra"] = extra;
    value
}

fn action_extra(action: &Action) -> Value {
    let output = text::decode(&action.output);
    let exception = if action.timed_out {
        format!("the command was stopped after {} s", action.wall_seconds)
    } else {
        String::new()
    };
    json!({
        "raw_output": if action.timed_out { output } else { text::universal_newlines(&output) },
        "returncode": action.exit_code.unwrap_or(-1),
        "exception_info": exception,
    })
}
