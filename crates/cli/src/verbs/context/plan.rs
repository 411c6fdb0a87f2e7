//! `temper context plan [MODEL]`: whether a window is there, and what serving it takes.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;
use temper_agent::context_probe::{Outcome, ProbeError, ProbeRecord};
use temper_checkpoint::context::{
    self, ContextPlan, Decision, Difference, MemoryEstimate, MemoryRequest, PlanRequest,
    RopeIdentity, ServerCommand, Serving, SourceError, Version, WeightSource,
};

use super::{
    args::{CacheBits, PlanArgs},
    probe::described,
    vllm,
};
use crate::{
    error::CliError,
    exit_code,
    output::{self, printable},
    places::Places,
    verbs::model::locate::{Located, Origin, locate_without_weights},
};

/// The share of a GPU that vLLM takes when it is not told.
const DEFAULT_UTILISATION: f64 = 0.9;
/// The version of [`Plan`]'s written form.
const SCHEMA_VERSION: u32 = 1;

/// Everything that is said.
#[derive(Serialize)]
struct Plan {
    schema_version: u32,
    model: Located,
    #[serde(flatten)]
    plan: ContextPlan,
    /// The rotary embedding as it is served.
    rope_identity: RopeIdentity,
    vllm_version: Option<String>,
    commands: Vec<Command>,
    memory: Option<Memory>,
    gate: Option<Gate>,
    /// What a probe of the server says; absent where none was given.
    probe: Option<Probed>,
}

/// What a probe of the running server says of a window.
#[derive(Serialize)]
struct Probed {
    /// Whether it shows the longer of two readings; absent where the plan is not undecided, or no
    /// level beyond the shorter one was answered.
    takes_more: Option<bool>,
    /// The window that the server states, in tokens; older ones state none.
    stated_window: Option<u64>,
    /// The longest level within the window that it accepted, counted alike and understood.
    accepted: Option<u64>,
    /// The levels within the window of which the probe does not show that, shortest first.
    not_accepted: Vec<NotAccepted>,
    /// What speaks against the window, in words; empty where nothing does.
    objections: Vec<String>,
}

#[derive(Serialize)]
struct NotAccepted {
    level: u64,
    /// Absent where the probe was interrupted before there was one.
    outcome: Option<Outcome>,
}

#[derive(Serialize)]
struct Command {
    line: String,
    #[serde(flatten)]
    command: ServerCommand,
}

#[derive(Serialize)]
struct Memory {
    weight_source: WeightSource,
    #[serde(flatten)]
    estimate: MemoryEstimate,
}

#[derive(Serialize)]
struct Gate {
    trainer: RopeIdentity,
    server: RopeIdentity,
    differences: Vec<Difference>,
}

/// Prints the plan. A window that is not assured is [`exit_code::FINDINGS`], a trainer that rotates
/// in another way than the server [`exit_code::GATE_CLOSED`].
pub fn run(args: &PlanArgs, places: &Places) -> Result<u8, CliError> {
    let located = locate_without_weights(&args.source.model, &args.source.hub, places)?;
    let config = context::read_config(&located.path)?;
    let plan = context::plan(
        &config,
        &PlanRequest {
            window: args.window,
        },
    );
    let rope_identity = context::rope_identity(&plan.decision.served_config(&config));
    let gate = match &args.trainer {
        None => None,
        Some(trainer) => {
            let trainer = context::read_identity(trainer)?;
            let server = match &args.server_config {
                Some(server) => context::read_identity(server)?,
                None => rope_identity.clone(),
            };
            Some(Gate {
                differences: context::differences(&trainer, &server),
                trainer,
                server,
            })
        }
    };
    let probe = match &args.probe {
        Some(path) => Some(probed(path, &config, &plan)?),
        None => None,
    };
    let version = args.vllm_version.or_else(|| vllm::installed(&places.path));
    let plan = Plan {
        schema_version: SCHEMA_VERSION,
        rope_identity,
        vllm_version: version.as_ref().map(Version::to_string),
        commands: commands(args, &located, &plan, version),
        memory: memory(args, &located, &config),
        gate,
        probe,
        model: located,
        plan,
    };
    output::data(&args.format.format.one(&plan, || table(&plan)));
    let is_closed = |gate: &Gate| !gate.differences.is_empty();
    let is_assured = match &plan.probe {
        Some(probe) => {
            let is_there = plan.plan.decision.is_assured() || probe.takes_more == Some(true);
            is_there && probe.objections.is_empty()
        }
        None => plan.plan.decision.is_assured(),
    };
    let fits = |memory: &Memory| memory.estimate.n_concurrent != Some(0);
    Ok(if plan.gate.as_ref().is_some_and(is_closed) {
        exit_code::GATE_CLOSED
    } else if !is_assured || !plan.memory.as_ref().is_none_or(fits) {
        exit_code::FINDINGS
    } else {
        exit_code::SUCCESS
    })
}

/// Reads a probe and holds it against the plan. One of another checkpoint is refused.
fn probed(path: &Path, config: &Value, plan: &ContextPlan) -> Result<Probed, CliError> {
    let record = ProbeRecord::read(path).map_err(ProbeError::from)?;
    record.check_checkpoint(config).map_err(|error| {
        CliError::new(exit_code::JOB_DIFFERS, error).hint(format!(
            "{} has to be made with --tokenizer naming this checkpoint",
            path.display()
        ))
    })?;
    let takes_more = match &plan.decision {
        Decision::Undecided { declared, scaled } => record.takes_more_than(*declared.min(scaled)),
        _ => None,
    };
    let stated_window = record.server.window();
    let accepted = record.accepted_within(plan.window);
    let not_accepted = record.not_accepted_within(plan.window);
    let mut objections = Vec::new();
    if let Some(stated) = stated_window.filter(|stated| *stated < plan.window) {
        objections.push(format!("the server states a window of {stated} tokens"));
    }
    for level in &not_accepted {
        objections.push(format!("{}: {}", level.level, described(level)));
    }
    if accepted.is_none() && not_accepted.is_empty() {
        objections.push("no level lies within the window".to_owned());
    }
    Ok(Probed {
        takes_more,
        stated_window,
        accepted,
        not_accepted: not_accepted
            .into_iter()
            .map(|level| NotAccepted {
                level: level.level,
                outcome: level.outcome.clone(),
            })
            .collect(),
        objections,
    })
}

fn commands(
    args: &PlanArgs,
    located: &Located,
    plan: &ContextPlan,
    version: Option<Version>,
) -> Vec<Command> {
    let is_config = located.path.extension().is_some_and(|name| name == "json");
    let path = match located.path.parent() {
        Some(folder) if is_config => folder,
        _ => &located.path,
    };
    let path = path.display().to_string();
    let (model, commit) = match &located.origin {
        Origin::Hub { repository, commit } => (repository.as_str(), Some(commit.as_str())),
        _ => (path.as_str(), None),
    };
    let serving = Serving {
        model,
        revision: args.revision.as_deref().or(commit),
        version,
        utilisation: args.gpu_memory_utilization,
        is_cache_8bit: args.kv_cache_bits == CacheBits::Eight,
    };
    context::server_command(plan, &serving)
        .into_iter()
        .map(|command| Command {
            line: command.to_string(),
            command,
        })
        .collect()
}

fn memory(args: &PlanArgs, located: &Located, config: &Value) -> Option<Memory> {
    let (weight_bytes, weight_source) = match args.weights {
        Some(weights) => (weights, WeightSource::Stated),
        None => context::weight_bytes(&located.path, config)?,
    };
    let request = MemoryRequest {
        window: args.window,
        weight_bytes,
        cache_element_bytes: match args.kv_cache_bits {
            CacheBits::Sixteen => 2,
            CacheBits::Eight => 1,
        },
        gpu_bytes: args.gpu_memory,
        utilisation: args.gpu_memory_utilization.unwrap_or(DEFAULT_UTILISATION),
        overhead_bytes: args.overhead,
    };
    Some(Memory {
        weight_source,
        estimate: context::estimate(config, &request)?,
    })
}

fn table(plan: &Plan) -> String {
    let mut text = String::new();
    let mut field = |name: &str, value: String| {
        text.push_str(&format!("{name:<12} {}\n", printable(&value)));
    };
    field("model", plan.model.path.display().to_string());
    field("window", format!("{} tokens", plan.plan.window));
    field(
        "decision",
        match &plan.plan.decision {
            Decision::Native => "the checkpoint's own window; nothing is injected".to_owned(),
            Decision::Yarn {
                factor, original, ..
            } => {
                format!("YaRN, factor {factor} from {original} tokens")
            }
            Decision::Undecided { declared, scaled } => format!(
                "undecided: {declared} tokens by one reading, {scaled} by the other; probe a server (`temper context probe`)"
            ),
            Decision::Impossible { reason } => format!("impossible: {reason}"),
        },
    );
    if let Some(probe) = &plan.probe {
        let reading = match (probe.takes_more, &plan.plan.decision) {
            (Some(true), _) => "the server takes the longer reading",
            (Some(false), _) => "the server takes the shorter reading",
            (None, Decision::Undecided { .. }) => {
                "no level beyond the shorter reading was answered"
            }
            (None, _) => "of this checkpoint",
        };
        let accepted = match probe.accepted {
            Some(level) => format!("accepted up to the level of {level} tokens"),
            None => "no level within the window was accepted".to_owned(),
        };
        field("probe", format!("{reading}; {accepted}"));
        for objection in &probe.objections {
            field("", format!("against the window: {objection}"));
        }
    }
    for reason in &plan.plan.reasons {
        field("", reason.clone());
    }
    field("rope", plan.rope_identity.to_string());
    for command in &plan.commands {
        field("command", command.line.clone());
        field("", format!("vLLM, {}", command.command.holds_for));
    }
    match &plan.memory {
        None => field(
            "memory",
            "unknown: the configuration lacks layers, heads or the size of the weights".to_owned(),
        ),
        Some(memory) => memory_fields(memory, &mut field),
    }
    if let Some(gate) = &plan.gate {
        if gate.differences.is_empty() {
            field("gate", "open: trainer and server rotate alike".to_owned());
        } else {
            field(
                "gate",
                "closed: trainer and server rotate differently".to_owned(),
            );
        }
        for difference in &gate.differences {
            field(
                "",
                format!(
                    "{}: {} in the trainer, {} in the server",
                    difference.field, difference.first, difference.second
                ),
            );
        }
    }
    text
}

fn memory_fields(memory: &Memory, field: &mut impl FnMut(&str, String)) {
    let estimate = &memory.estimate;
    let gib = |bytes: u64| format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30));
    let source = match memory.weight_source {
        WeightSource::Files => "the files",
        WeightSource::Index => "the index's total",
        WeightSource::Configuration => "the configuration's shapes in bfloat16",
        WeightSource::Stated => "as stated",
    };
    field(
        "memory",
        format!("weights {} ({source})", gib(estimate.weight_bytes)),
    );
    field(
        "",
        format!(
            "keys and values {} bytes a token, {} a window",
            estimate.cache_bytes_per_token,
            gib(estimate.cache_bytes_per_window)
        ),
    );
    if let (Some(room), Some(n)) = (estimate.cache_room_bytes, estimate.n_concurrent) {
        field(
            "",
            format!(
                "room for keys and values {}, whole windows at once: {n}",
                gib(room)
            ),
        );
    }
}

impl From<SourceError> for CliError {
    fn from(error: SourceError) -> Self {
        let hint = error.hint();
        CliError::new(exit_code::INPUT, error).maybe_hint(hint)
    }
}
