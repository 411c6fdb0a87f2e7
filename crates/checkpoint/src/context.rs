//! Whether a checkpoint can serve a context window, and how to ask a server for it.
//!
//! The rule: what a checkpoint declares is used as it is; only a window beyond it is scaled, with
//! YaRN (arXiv:2309.00071), and only from values that the checkpoint states. Engines read the same
//! configuration differently, so where they may disagree the answer is [`Decision::Undecided`], and
//! a probe of the running server decides.

mod memory;
mod rope;
mod serving;
mod source;
#[cfg(test)]
mod tests;

use serde::Serialize;
use serde_json::{Map, Value, json};

pub use memory::{MemoryEstimate, MemoryRequest, estimate};
pub use rope::{Difference, RopeIdentity, differences, rope_identity};
pub use serving::{ServerCommand, Serving, Version, server_command};
pub use source::{SourceError, WeightSource, read_config, read_identity, weight_bytes};

/// What is asked of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanRequest {
    /// Tokens of prompt and output together.
    pub window: u64,
}

/// What a configuration says of lengths.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Declared {
    /// `max_position_embeddings`, in tokens.
    pub declared: Option<u64>,
    /// `default` where there is no scaling.
    pub rope_type: String,
    /// Base of the rotary embedding.
    pub rope_theta: Option<f64>,
    /// Factor of the scaling.
    pub factor: Option<f64>,
    /// Length before scaling, in tokens, as stated; never filled in.
    pub original: Option<u64>,
    /// `original * factor` (or `declared * factor` where the scaling means that), in tokens.
    pub scaled: Option<u64>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "decision", rename_all = "kebab-case")]
pub enum Decision {
    /// The checkpoint's own window suffices; nothing is injected.
    Native,
    /// The window is reached by YaRN on top of the checkpoint.
    Yarn {
        /// `window / original`, at least 1.
        factor: f64,
        /// Length before scaling, in tokens.
        original: u64,
        /// The checkpoint's own base.
        rope_theta: f64,
        /// Whether a scaling of the checkpoint is replaced.
        replaces: bool,
    },
    /// Engines read the configuration differently; a probe decides.
    Undecided {
        /// By `max_position_embeddings`.
        declared: u64,
        /// By the scaling.
        scaled: u64,
    },
    /// It cannot be planned.
    Impossible {
        /// Why.
        reason: String,
    },
}

/// A plan with its reasons.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContextPlan {
    /// Tokens asked for.
    pub window: u64,
    /// What the configuration says.
    pub lengths: Declared,
    /// The answer.
    #[serde(flatten)]
    pub decision: Decision,
    /// Why, in sentences.
    pub reasons: Vec<String>,
}

/// Reads what a `config.json` says of lengths, in the words of transformers 4 and 5 and of
/// configurations that keep the language model in `text_config`.
pub fn declared(config: &Value) -> Declared {
    let config = language_model(config);
    let scaling = rotary_settings(config);
    let of = |key: &str| scaling.and_then(|scaling| scaling.get(key));
    let rope_type = of("rope_type")
        .or_else(|| of("type"))
        .and_then(Value::as_str)
        .unwrap_or("default");
    let whole = |value: Option<&Value>| {
        let value = value?;
        value
            .as_u64()
            .or_else(|| value.as_f64().filter(|n| *n >= 1.0).map(|n| n as u64))
    };
    let mut lengths = Declared {
        declared: whole(config.get("max_position_embeddings")),
        rope_type: rope_type.to_owned(),
        rope_theta: of("rope_theta")
            .or_else(|| config.get("rope_theta"))
            .and_then(Value::as_f64)
            .filter(|theta| theta.is_finite() && *theta > 1.0),
        factor: of("factor")
            .and_then(Value::as_f64)
            .filter(|factor| factor.is_finite() && *factor > 0.0),
        // Beside the rotary settings, it wins over the one inside them.
        original: whole(config.get("original_max_position_embeddings"))
            .or_else(|| whole(of("original_max_position_embeddings"))),
        scaled: None,
    };
    let times = |length: Option<u64>| Some((length? as f64 * lengths.factor?).round() as u64);
    lengths.scaled = if is_yarn(rope_type) {
        times(lengths.original)
    } else if matches!(rope_type, "linear" | "dynamic") {
        times(lengths.declared)
    } else {
        None
    };
    lengths
}

/// The part of a configuration that describes the language model.
pub(crate) fn language_model(config: &Value) -> &Value {
    match config.get("text_config") {
        Some(text @ Value::Object(_)) if config.get("max_position_embeddings").is_none() => text,
        _ => config,
    }
}

/// `rope_scaling`, or `rope_parameters` where that is not there; as in transformers 5, the older key
/// wins where both are.
pub(crate) fn rotary_settings(config: &Value) -> Option<&Map<String, Value>> {
    ["rope_scaling", "rope_parameters"]
        .into_iter()
        .filter_map(|key| config.get(key)?.as_object())
        .find(|settings| !settings.is_empty())
}

/// Vendors name their variants (`deepseek_yarn`); the lengths mean the same.
fn is_yarn(rope_type: &str) -> bool {
    rope_type.ends_with("yarn")
}

/// Plans a window.
pub fn plan(config: &Value, request: &PlanRequest) -> ContextPlan {
    let lengths = declared(config);
    let mut reasons = Vec::new();
    let decision = decide(&lengths, request.window, &mut reasons);
    ContextPlan {
        window: request.window,
        lengths,
        decision,
        reasons,
    }
}

fn decide(lengths: &Declared, window: u64, reasons: &mut Vec<String>) -> Decision {
    let Some(declared) = lengths.declared else {
        return Decision::Impossible {
            reason: "the configuration has no max_position_embeddings".into(),
        };
    };
    let kind = lengths.rope_type.as_str();
    if kind == "default" {
        reasons.push(format!(
            "the configuration declares {declared} tokens and no scaling"
        ));
        return if window <= declared {
            reasons.push("the window is the checkpoint's own, so no scaling is injected".into());
            Decision::Native
        } else {
            yarn(lengths, declared, window, false, reasons)
        };
    }
    if is_yarn(kind) && (lengths.original.is_none() || lengths.factor.is_none()) {
        reasons.push(format!(
            "the configuration declares {declared} tokens and {kind} without factor or original length; releases of one library fill the gap differently"
        ));
        return Decision::Impossible {
            reason: format!("{kind} lacks factor or original_max_position_embeddings"),
        };
    }
    let Some(scaled) = lengths.scaled else {
        // Llama 3.1 and the long-context variants declare the length after scaling.
        reasons.push(format!(
            "the configuration declares {declared} tokens, {kind} included"
        ));
        return if window <= declared {
            reasons.push("the window is the checkpoint's own, so nothing is injected".into());
            Decision::Native
        } else {
            Decision::Impossible {
                reason: format!(
                    "{window} tokens are beyond the {declared} declared, and a checkpoint with {kind} cannot be scaled by YaRN"
                ),
            }
        };
    };
    let shown = format!(
        "the configuration declares {declared} tokens; {kind} with factor {} from {} gives {scaled}",
        lengths.factor.unwrap_or(1.0),
        lengths.original.unwrap_or(declared),
    );
    reasons.push(shown);
    if window <= declared.min(scaled) {
        reasons.push("both suffice, so nothing is injected and nothing is multiplied again".into());
        return Decision::Native;
    }
    if window <= declared.max(scaled) {
        reasons.push(
            "engines differ: some take the declared length, others the original length times the factor; a probe of the server decides"
                .into(),
        );
        return Decision::Undecided { declared, scaled };
    }
    match lengths.original {
        Some(original) if is_yarn(kind) => yarn(lengths, original, window, true, reasons),
        _ => Decision::Impossible {
            reason: format!("{window} tokens are beyond {kind}, which YaRN cannot extend"),
        },
    }
}

fn yarn(
    lengths: &Declared,
    original: u64,
    window: u64,
    replaces: bool,
    reasons: &mut Vec<String>,
) -> Decision {
    let Some(rope_theta) = lengths.rope_theta else {
        return Decision::Impossible {
            reason:
                "YaRN needs rope_theta, which the configuration does not state; it is never guessed"
                    .into(),
        };
    };
    let factor = window as f64 / original as f64;
    reasons.push(format!(
        "YaRN with factor {factor} from {original} tokens reaches {window}; it changes the model at every length"
    ));
    if replaces {
        reasons.push("the checkpoint's own scaling is replaced, so this is another model than the one that was trained".into());
    }
    Decision::Yarn {
        factor,
        original,
        rope_theta,
        replaces,
    }
}

impl Decision {
    /// Whether the window is there, without a probe.
    pub fn is_assured(&self) -> bool {
        matches!(self, Decision::Native | Decision::Yarn { .. })
    }

    /// The configuration as the server has it after the plan's overrides.
    pub fn served_config(&self, config: &Value) -> Value {
        let mut config = language_model(config).clone();
        if let (Some(parameters), Some(map)) = (self.rope_parameters(), config.as_object_mut()) {
            map.remove("rope_scaling");
            map.remove("original_max_position_embeddings");
            map.insert("rope_parameters".into(), parameters);
        }
        config
    }

    /// The `rope_parameters` to inject, in the words of transformers 5; `None` where nothing is.
    pub fn rope_parameters(&self) -> Option<Value> {
        match self {
            Decision::Yarn {
                factor,
                original,
                rope_theta,
                ..
            } => Some(json!({
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": original,
                "rope_theta": rope_theta,
            })),
            _ => None,
        }
    }
}
