//! From the keys of a file to settings, or to the reason why they do not go together.

use std::time::Duration;

use serde_json::Value;
use temper_core::{trial::PatchSource, usage::MicroDollars};

use super::{
    ProfileName, Settings, Templates,
    file::{EnvironmentSection, ProfileFile, ShellName},
};
use crate::{
    context_guard::ContextGuard,
    protocol::{Protocol, bash_block::NestedFences},
};

/// Decides every setting, or says what does not go together.
pub(super) fn settle(
    kind: ProfileName,
    file: ProfileFile,
    ignored: &mut Vec<String>,
) -> Result<Settings, String> {
    let environment = match (file.environment, file.env) {
        (Some(_), Some(_)) => {
            return Err(
                "it has both `env` and `environment`, which mean the same; keep one".into(),
            );
        }
        (one, other) => one.or(other).unwrap_or_default(),
    };
    if !environment.forward_env.is_empty() {
        return Err(
            "`forward_env` asks for variables of the host, and none enter a sandbox; write values \
             into `environment.env`"
                .into(),
        );
    }
    let (agent, model, temper) = (file.agent, file.model, file.temper);
    let version_2 = model.observation_template.is_some() || model.format_error_template.is_some();
    if version_2
        && (agent.action_observation_template.is_some() || agent.format_error_template.is_some())
    {
        return Err(
            "it has templates of version 1 under `agent` and of version 2 under `model`; keep one \
             kind"
                .into(),
        );
    }
    let protocol = temper.protocol.unwrap_or(if version_2 {
        Protocol::ToolCall
    } else {
        Protocol::BashBlock
    });
    let cost_limit = MicroDollars::from_dollars(agent.cost_limit).ok_or_else(|| {
        format!(
            "`agent.cost_limit` is {}, which is no amount",
            agent.cost_limit
        )
    })?;
    let shell = shell(&environment, temper.shell)?;
    let (temperature, kwargs_max) = sampling(&model.model_kwargs, ignored)?;
    let max_output_tokens = match (temper.max_output_tokens, kwargs_max) {
        (Some(a), Some(b)) if a != b => {
            return Err(format!(
                "`temper.max_output_tokens` is {a} and `model.model_kwargs` says {b}"
            ));
        }
        (a, b) => a.or(b),
    };
    let command_timeout = environment.timeout.unwrap_or(30);
    if command_timeout == 0 {
        return Err("`environment.timeout` is 0, so that no command could run".into());
    }
    let context_guard = match (temper.context_reserve_tokens, temper.context_tokens) {
        (None, _) => None,
        (Some(reserve_tokens), Some(context_tokens)) => Some(ContextGuard {
            context_tokens,
            max_output_tokens: max_output_tokens.ok_or(
                "the context guard needs `temper.max_output_tokens`: without it no prompt is \
                 known to leave room for a reply",
            )?,
            reserve_tokens,
        }),
        (Some(_), None) => {
            return Err("`temper.context_reserve_tokens` needs `temper.context_tokens`".into());
        }
    };
    for (key, present, why) in [
        (
            "agent.mode",
            agent.mode.is_some(),
            "trials are never interactive",
        ),
        (
            "agent.confirm_exit",
            agent.confirm_exit.is_some(),
            "trials are never interactive",
        ),
        (
            "agent.output_path",
            agent.output_path.is_some(),
            "the job names its directory",
        ),
        (
            "environment.image",
            environment.image.is_some(),
            "the task names its image",
        ),
        (
            "environment.executable",
            environment.executable.is_some(),
            "the job names its sandbox",
        ),
        (
            "environment.run_args",
            environment.run_args.is_some(),
            "the job names its sandbox",
        ),
        (
            "environment.pull_timeout",
            environment.pull_timeout.is_some(),
            "the job fetches images",
        ),
        (
            "environment.container_timeout",
            environment.container_timeout.is_some(),
            "a sandbox ends with its trial",
        ),
        (
            "model.model_name",
            model.model_name.is_some(),
            "the job names its model",
        ),
        (
            "model.model_class",
            model.model_class.is_some(),
            "the job names its model",
        ),
        (
            "model.cost_tracking",
            model.cost_tracking.is_some(),
            "an unknown price is no error",
        ),
    ] {
        if present {
            ignored.push(format!("{key}: {why}"));
        }
    }
    let observation = agent
        .action_observation_template
        .or(model.observation_template)
        .ok_or("it has no observation template")?;
    let official = kind == ProfileName::OfficialPublicRepro;
    Ok(Settings {
        protocol,
        templates: Templates {
            system: agent.system_template,
            instance: agent.instance_template,
            observation,
            format_error: agent
                .format_error_template
                .or(model.format_error_template)
                .unwrap_or_else(|| DEFAULT_FORMAT_ERROR.into()),
            timeout: match protocol {
                Protocol::BashBlock => Some(
                    agent
                        .timeout_template
                        .unwrap_or_else(|| DEFAULT_TIMEOUT.into()),
                ),
                Protocol::ToolCall => None,
            },
        },
        step_limit: some_if_positive(agent.step_limit),
        cost_limit: Some(cost_limit).filter(|limit| limit.0 > 0),
        wall_time_limit: Some(agent.wall_time_limit_seconds)
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs),
        max_consecutive_format_errors: some_if_positive(
            agent
                .max_consecutive_format_errors
                .unwrap_or(match protocol {
                    Protocol::BashBlock => 0,
                    Protocol::ToolCall => 3,
                }),
        ),
        directory: environment.cwd.filter(|cwd| !cwd.is_empty()),
        command_timeout: Duration::from_secs(command_timeout),
        variables: environment.env,
        shell,
        temperature,
        max_output_tokens,
        // What the published model was served with; the published file does not say.
        context_tokens: temper.context_tokens.or(official.then_some(65_536)),
        context_guard,
        repetition_note_after: temper.repetition_note_after.filter(|n| *n > 0),
        nested_fences: temper.nested_fences.unwrap_or(NestedFences::Refuse),
        patch_source: temper.patch_source.unwrap_or(PatchSource::Submission),
    })
}

const DEFAULT_FORMAT_ERROR: &str = "Nothing was run: a reply needs exactly ONE action.";

const DEFAULT_TIMEOUT: &str = "\
The command <command>{{action['action']}}</command> ran into its time limit and was stopped.
This is what it had printed until then:
<output>
{{output}}
</output>
Use another command, and none that waits for input.";

fn some_if_positive(limit: u32) -> Option<u32> {
    (limit > 0).then_some(limit)
}

fn shell(environment: &EnvironmentSection, own: Option<ShellName>) -> Result<ShellName, String> {
    let interpreter: Option<Vec<_>> = environment
        .interpreter
        .as_ref()
        .map(|words| words.iter().map(String::as_str).collect());
    let from_interpreter = match interpreter.as_deref() {
        None => None,
        Some(["bash" | "/bin/bash", "-c"]) => Some(ShellName::Bash),
        Some(["bash" | "/bin/bash", "-lc"]) => Some(ShellName::BashLogin),
        Some(["sh" | "/bin/sh", "-c"]) => Some(ShellName::Sh),
        Some(other) => return Err(format!("`environment.interpreter` {other:?} is not known")),
    };
    let by_class = match environment.environment_class.as_deref() {
        Some("local") => ShellName::Sh,
        None | Some("docker" | "singularity") => ShellName::BashLogin,
        Some(other) => {
            return Err(format!(
                "`environment.environment_class` {other:?} is not known"
            ));
        }
    };
    Ok(own.or(from_interpreter).unwrap_or(by_class))
}

/// Temperature and output limit from `model_kwargs`.
fn sampling(
    kwargs: &serde_json::Map<String, Value>,
    ignored: &mut Vec<String>,
) -> Result<(Option<f64>, Option<u32>), String> {
    let (mut temperature, mut max_tokens) = (None, None);
    for (key, value) in kwargs {
        let wrong = || format!("`model.model_kwargs.{key}` cannot be {value}");
        match key.as_str() {
            "temperature" => {
                let number = value.as_f64().filter(|t| (0.0..=2.0).contains(t));
                temperature = Some(number.ok_or_else(wrong)?);
            }
            "max_tokens" | "max_completion_tokens" => {
                let number = value.as_u64().and_then(|n| u32::try_from(n).ok());
                max_tokens = Some(number.filter(|n| *n > 0).ok_or_else(wrong)?);
            }
            "drop_params" | "parallel_tool_calls" => {
                ignored.push(format!("model.model_kwargs.{key}: it steers LiteLLM"));
            }
            _ => {
                return Err(format!(
                    "`model.model_kwargs.{key}` would have no effect here; only temperature and \
                     max_tokens are sent from a profile"
                ));
            }
        }
    }
    Ok((temperature, max_tokens))
}
