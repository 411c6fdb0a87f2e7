//! What trainer and server must agree on about the rotary embedding.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{declared, language_model, rotary_settings};
use crate::{
    config::{RopeConfig, RopeScaling},
    rope::{inverse_frequencies, yarn_ramp},
};

/// Programs compute these in different precision; more than this share apart is another value.
const TOLERANCE: f64 = 1e-6;

/// The rotary embedding by what it computes. Two programs that report equal identities rotate
/// equally.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeIdentity {
    /// `default`, `yarn`, `llama3`, `linear`, …
    pub rope_type: String,
    /// Base.
    #[serde(default)]
    pub rope_theta: Option<f64>,
    /// Elements of a head, all of which turn.
    #[serde(default)]
    pub head_dim: Option<u64>,
    /// Factor of the scaling.
    #[serde(default)]
    pub factor: Option<f64>,
    /// Length before scaling, in tokens.
    #[serde(default)]
    pub original_max_position_embeddings: Option<u64>,
    /// YaRN: the first pair that it changes. Llama 3: `low_freq_factor`.
    #[serde(default)]
    pub low: Option<f64>,
    /// YaRN: the first pair that it divides by the whole factor. Llama 3: `high_freq_factor`.
    #[serde(default)]
    pub high: Option<f64>,
    /// What cosine and sine are multiplied by.
    #[serde(default)]
    pub attention_factor: Option<f64>,
    /// Settings of a type whose arithmetic is not known here, as they are stated.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub other: Map<String, Value>,
}

/// One disagreement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The field of [`RopeIdentity`].
    pub field: &'static str,
    /// The first one's value.
    pub first: String,
    /// The second one's.
    pub second: String,
}

impl RopeIdentity {
    /// The identity of a checked configuration for heads of `head_dim` elements.
    pub fn of(rope: &RopeConfig, head_dim: usize) -> Self {
        let (rope_type, factor, original) = match &rope.scaling {
            RopeScaling::None => ("default", None, None),
            RopeScaling::Linear { factor } => ("linear", Some(*factor), None),
            RopeScaling::Llama3 {
                factor,
                original_max_position_embeddings,
                ..
            } => (
                "llama3",
                Some(*factor),
                Some(*original_max_position_embeddings),
            ),
            RopeScaling::Yarn {
                factor,
                original_max_position_embeddings,
                ..
            } => (
                "yarn",
                Some(*factor),
                Some(*original_max_position_embeddings),
            ),
            RopeScaling::PerFrequency { .. } => ("factors-of-each-frequency", None, None),
        };
        let ends = match &rope.scaling {
            RopeScaling::Llama3 {
                low_freq_factor,
                high_freq_factor,
                ..
            } => Some((*low_freq_factor, *high_freq_factor)),
            _ => yarn_ramp(rope, head_dim),
        };
        RopeIdentity {
            rope_type: rope_type.to_owned(),
            rope_theta: Some(rope.theta),
            head_dim: Some(head_dim as u64),
            factor,
            original_max_position_embeddings: original.map(|length| length as u64),
            low: ends.map(|(low, _)| low),
            high: ends.map(|(_, high)| high),
            attention_factor: Some(f64::from(
                inverse_frequencies(rope, head_dim).attention_factor,
            )),
            other: Map::new(),
        }
    }
}

/// Computes the identity of a `config.json`. What the configuration does not state, and what follows
/// only from that, is `None`: libraries fill such gaps differently.
pub fn rope_identity(config: &Value) -> RopeIdentity {
    let config = language_model(config);
    let lengths = declared(config);
    let whole = |key: &str| config.get(key).and_then(Value::as_u64);
    let head_dim = whole("head_dim")
        .or_else(|| {
            let heads = whole("num_attention_heads").filter(|heads| *heads > 0)?;
            Some(whole("hidden_size")? / heads)
        })
        .filter(|dim| (2..=4096).contains(dim));
    let empty = Map::new();
    let settings = rotary_settings(config).unwrap_or(&empty);
    let partial = settings
        .get("partial_rotary_factor")
        .or_else(|| config.get("partial_rotary_factor"))
        .filter(|partial| !partial.is_null() && partial.as_f64() != Some(1.0));
    let stated = RopeIdentity {
        rope_type: lengths.rope_type.clone(),
        rope_theta: lengths.rope_theta,
        head_dim,
        factor: lengths.factor,
        original_max_position_embeddings: lengths.original,
        ..RopeIdentity::default()
    };
    let scaling = scaling(
        &stated.rope_type,
        settings,
        lengths.factor,
        lengths.original,
    );
    if let (Some(scaling), Some(theta), Some(head_dim), None) =
        (&scaling, lengths.rope_theta, head_dim, partial)
    {
        let rope = RopeConfig {
            theta,
            scaling: scaling.clone(),
        };
        return RopeIdentity {
            rope_type: stated.rope_type,
            ..RopeIdentity::of(&rope, head_dim as usize)
        };
    }
    let mut other = Map::new();
    if scaling.is_none() {
        let known = [
            "rope_type",
            "type",
            "rope_theta",
            "factor",
            "original_max_position_embeddings",
        ];
        let rest = settings.iter();
        other.extend(
            rest.filter(|(key, _)| !known.contains(&key.as_str()))
                .map(|(key, value)| (key.clone(), value.clone())),
        );
    }
    if let Some(partial) = partial {
        other.insert("partial_rotary_factor".into(), partial.clone());
    }
    RopeIdentity { other, ..stated }
}

/// The scaling that a configuration states whole; `None` where something is missing or the type's
/// arithmetic is not known here.
fn scaling(
    rope_type: &str,
    settings: &Map<String, Value>,
    factor: Option<f64>,
    original: Option<u64>,
) -> Option<RopeScaling> {
    let number = |key: &str| settings.get(key)?.as_f64();
    // Zero stands for absence in YaRN's settings.
    let nonzero = |key: &str| number(key).filter(|value| *value != 0.0);
    Some(match rope_type {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: factor? },
        "llama3" => RopeScaling::Llama3 {
            factor: factor?,
            low_freq_factor: number("low_freq_factor")?,
            high_freq_factor: number("high_freq_factor")?,
            original_max_position_embeddings: original? as usize,
        },
        _ if super::is_yarn(rope_type) => RopeScaling::Yarn {
            factor: factor?,
            original_max_position_embeddings: original? as usize,
            beta_fast: nonzero("beta_fast").unwrap_or(32.0),
            beta_slow: nonzero("beta_slow").unwrap_or(1.0),
            attention_factor: number("attention_factor"),
            mscale: nonzero("mscale"),
            mscale_all_dim: nonzero("mscale_all_dim"),
            truncate: settings
                .get("truncate")
                .and_then(Value::as_bool)
                .unwrap_or(true),
        },
        _ => return None,
    })
}

/// Where two identities differ; empty when trainer and server may run together. A value that only
/// one of them states is a difference.
pub fn differences(first: &RopeIdentity, second: &RopeIdentity) -> Vec<Difference> {
    let numbers = |identity: &RopeIdentity| {
        [
            ("rope_theta", identity.rope_theta),
            ("head_dim", identity.head_dim.map(|n| n as f64)),
            ("factor", identity.factor),
            (
                "original_max_position_embeddings",
                identity.original_max_position_embeddings.map(|n| n as f64),
            ),
            ("low", identity.low),
            ("high", identity.high),
            ("attention_factor", identity.attention_factor),
        ]
    };
    let mut found = Vec::new();
    if first.rope_type != second.rope_type {
        found.push(Difference {
            field: "rope_type",
            first: first.rope_type.clone(),
            second: second.rope_type.clone(),
        });
    }
    let shown = |value: Option<f64>| value.map_or("unknown".into(), |value| value.to_string());
    for ((field, one), (_, other)) in numbers(first).into_iter().zip(numbers(second)) {
        let same = match (one, other) {
            (Some(one), Some(other)) => {
                (one - other).abs() <= TOLERANCE * one.abs().max(other.abs())
            }
            (one, other) => one == other,
        };
        if !same {
            found.push(Difference {
                field,
                first: shown(one),
                second: shown(other),
            });
        }
    }
    if first.other != second.other {
        let shown = |map: &Map<String, Value>| Value::Object(map.clone()).to_string();
        found.push(Difference {
            field: "other",
            first: shown(&first.other),
            second: shown(&second.other),
        });
    }
    found
}

impl fmt::Display for RopeIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rope_type)?;
        let original = self.original_max_position_embeddings.map(|n| n as f64);
        for (name, value) in [
            ("theta", self.rope_theta),
            ("factor", self.factor),
            ("original length", original),
            ("low", self.low),
            ("high", self.high),
            (
                "attention factor",
                self.attention_factor.filter(|factor| *factor != 1.0),
            ),
        ] {
            if let Some(value) = value {
                write!(f, ", {name} {value}")?;
            }
        }
        if self.rope_theta.is_none() {
            f.write_str(", theta not stated")?;
        }
        if !self.other.is_empty() {
            write!(f, ", {}", Value::Object(self.other.clone()))?;
        }
        Ok(())
    }
}
