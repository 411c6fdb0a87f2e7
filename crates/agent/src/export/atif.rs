//! ATIF, the trajectory format of Harbor (`ATIF-v1.8`).
//!
//! A reply and what came of it are one `agent` step; its commands are tool calls and its
//! observations the results. In the bash-block protocol the calls are made up: the function is
//! `bash`, and a note says so. The number of steps is that of the file: prompts count.

use serde_json::{Map, Value, json};
use temper_core::{
    Message, Role,
    trajectory::{Step, StepOutcome, TokenRecord},
    usage::MicroDollars,
};

use super::mini_swe_agent::totals;
use crate::{protocol::tool_call, rollout::finish_name, trajectory_file::Trajectory};

/// The version that is written.
pub const SCHEMA_VERSION: &str = "ATIF-v1.8";

/// A trajectory in ATIF, or `None` for one without a single message: ATIF wants at least one step.
pub fn trajectory(trajectory: &Trajectory) -> Option<Value> {
    let header = &trajectory.header;
    let model_name = model_name(&header.model);
    let mut steps: Vec<Value> = Vec::new();
    for message in &trajectory.prompts {
        let source = match message.role {
            Role::System => "system",
            _ => "user",
        };
        steps.push(json!({"source": source, "message": message.content}));
    }
    let mut made_up_calls = false;
    for step in &trajectory.steps {
        made_up_calls |= step.reply.tool_calls.is_empty() && !step.actions.is_empty();
        steps.push(agent_step(step));
    }
    if let Some(message) = trajectory.end.as_ref().and_then(|end| end.message.as_ref())
        && !message.content.is_empty()
    {
        steps.push(json!({"source": "user", "message": message.content}));
    }
    if steps.is_empty() {
        return None;
    }
    for (step, number) in steps.iter_mut().zip(1..) {
        step["step_id"] = json!(number);
    }
    let (usage, cost) = totals(trajectory);
    let n_steps = steps.len();
    let mut agent = json!({
        "name": header.agent.as_str(),
        "version": env!("CARGO_PKG_VERSION"),
        "extra": {
            "profile": header.profile,
            "profile_digest": header.profile_digest,
            "protocol": header.config.pointer("/settings/protocol"),
            "model": header.model,
        },
    });
    if let Some(name) = model_name {
        agent["model_name"] = json!(name);
    }
    if header.config.pointer("/settings/protocol") == Some(&json!("tool-call")) {
        let tool = tool_call::bash_tool();
        agent["tool_definitions"] = json!([{
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
            },
        }]);
    }
    let mut root = json!({
        "schema_version": SCHEMA_VERSION,
        "session_id": format!("{}#{}", header.task_id, header.attempt),
        "agent": agent,
        "steps": steps,
        "final_metrics": without_nulls(json!({
            "total_prompt_tokens": usage.prompt_tokens,
            "total_completion_tokens": usage.completion_tokens,
            "total_cached_tokens": usage.cached_tokens,
            "total_cost_usd": cost.map(MicroDollars::dollars),
            "total_steps": n_steps,
        })),
        "extra": {
            "task_id": header.task_id,
            "seed": header.seed,
            "sandbox": header.sandbox,
            "exit": trajectory.end.as_ref().map(|end| &end.exit),
        },
    });
    if made_up_calls {
        root["notes"] = json!(
            "The agent writes its command as a fenced block; the tool calls of its steps are \
             derived from those blocks."
        );
    }
    Some(root)
}

fn agent_step(step: &Step) -> Value {
    let calls = tool_calls(step);
    let mut value = json!({
        "source": "agent",
        "message": step.reply.content,
        "llm_call_count": 1,
        "metrics": metrics(step),
        "extra": {
            "outcome": step.outcome,
            "finish_reason": finish_name(&step.finish),
            "model_seconds": step.model_seconds,
            "action_seconds": step.action_seconds,
        },
    });
    if let Some(reasoning) = &step.reply.reasoning {
        value["reasoning_content"] = json!(reasoning);
    }
    let ids: Vec<_> = calls
        .iter()
        .filter_map(|call| call["tool_call_id"].as_str())
        .collect();
    let results: Vec<Value> = step
        .observations
        .iter()
        .zip(0..)
        .map(|(observation, index)| result(step, observation, index, &ids))
        .collect();
    if !results.is_empty() {
        value["observation"] = json!({"results": results});
    }
    if !calls.is_empty() {
        value["tool_calls"] = json!(calls);
    }
    value
}

fn tool_calls(step: &Step) -> Vec<Value> {
    if step.reply.tool_calls.is_empty() {
        return step
            .actions
            .iter()
            .zip(1..)
            .map(|(action, index)| {
                json!({
                    "tool_call_id": format!("step-{}-{index}", step.number),
                    "function_name": "bash",
                    "arguments": {"command": action.command},
                })
            })
            .collect();
    }
    step.reply
        .tool_calls
        .iter()
        .map(|call| {
            // The history only keeps calls whose arguments are an object.
            let arguments = serde_json::from_str::<Map<String, Value>>(&call.arguments);
            json!({
                "tool_call_id": call.id,
                "function_name": call.name,
                "arguments": arguments.unwrap_or_default(),
            })
        })
        .collect()
}

fn result(step: &Step, observation: &Message, index: usize, ids: &[&str]) -> Value {
    let mut value = json!({"content": observation.content});
    let ran = matches!(
        step.outcome,
        StepOutcome::Ran | StepOutcome::TimedOut | StepOutcome::Submitted
    );
    let id = match &observation.tool_call_id {
        Some(id) => ids.iter().find(|known| *known == id).copied(),
        None if ran => ids.get(index).copied(),
        None => None,
    };
    if let Some(id) = id {
        value["source_call_id"] = json!(id);
    }
    if let Some(action) = step.actions.get(index).filter(|_| ran) {
        value["extra"] = json!({
            "exit_code": action.exit_code,
            "timed_out": action.timed_out,
            "omitted_bytes": action.omitted_bytes,
            "wall_seconds": action.wall_seconds,
        });
    }
    value
}

fn metrics(step: &Step) -> Value {
    let mut metrics = json!({
        "prompt_tokens": step.usage.prompt_tokens,
        "completion_tokens": step.usage.completion_tokens,
        "cached_tokens": step.usage.cached_tokens,
        "cost_usd": step.cost.map(MicroDollars::dollars),
    });
    if let Some(TokenRecord {
        prompt_ids,
        completion_ids,
        logprobs,
        loss_mask,
    }) = &step.tokens
    {
        metrics["prompt_token_ids"] = json!(prompt_ids);
        metrics["completion_token_ids"] = json!(completion_ids);
        metrics["logprobs"] = json!(logprobs);
        if loss_mask.is_some() {
            metrics["extra"] = json!({"loss_mask": loss_mask});
        }
    }
    without_nulls(metrics)
}

fn model_name(model: &Value) -> Option<&str> {
    ["model", "model_name", "name"]
        .iter()
        .find_map(|key| model.get(key).and_then(Value::as_str))
}

/// What is not known is left out rather than written as null.
fn without_nulls(mut value: Value) -> Value {
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, field| !field.is_null());
    }
    value
}
