//! What trainer and server must agree on about the rotary embedding.

use serde::Serialize;
use serde_json::Value;

use super::declared;
use crate::{
    config::{RopeConfig, RopeScaling},
    rope::{inverse_frequencies, yarn_ramp},
};

/// The rotary embedding by what it computes. Two programs that report equal identities rotate
/// equally.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RopeIdentity {
    /// `default`, `yarn`, `llama3`, `linear`, …
    pub rope_type: String,
    /// Base.
    pub theta: Option<f64>,
    /// Factor of the scaling.
    pub factor: Option<f64>,
    /// Length before scaling, in tokens.
    pub original: Option<u64>,
    /// First pair that YaRN changes.
    pub low: Option<f64>,
    /// First pair that YaRN divides by the whole factor.
    pub high: Option<f64>,
    /// What cosine and sine are multiplied by.
    pub attention_factor: Option<f64>,
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

/// Computes the identity of a `config.json` with `rope_parameters` in it. What the configuration
/// does not state is `None`.
pub fn rope_identity(config: &Value) -> RopeIdentity {
    let lengths = declared(config);
    let mut identity = RopeIdentity {
        rope_type: lengths.rope_type.clone(),
        theta: lengths.rope_theta,
        factor: lengths.factor,
        original: lengths.original,
        low: None,
        high: None,
        attention_factor: None,
    };
    let whole = |key: &str| config.get(key).and_then(Value::as_u64);
    let head_dim = whole("head_dim").or_else(|| {
        let heads = whole("num_attention_heads").filter(|heads| *heads > 0)?;
        Some(whole("hidden_size")? / heads)
    });
    let scaling = config
        .get("rope_parameters")
        .or_else(|| config.get("rope_scaling"));
    let number = |key: &str| scaling?.get(key)?.as_f64();
    if let (true, Some(head_dim), Some(theta), Some(factor), Some(original)) = (
        lengths.rope_type.ends_with("yarn"),
        head_dim.filter(|dim| (2..=4096).contains(dim)),
        lengths.rope_theta,
        lengths.factor,
        lengths.original,
    ) {
        let rope = RopeConfig {
            theta,
            scaling: RopeScaling::Yarn {
                factor,
                original_max_position_embeddings: original as usize,
                beta_fast: number("beta_fast").unwrap_or(32.0),
                beta_slow: number("beta_slow").unwrap_or(1.0),
                attention_factor: number("attention_factor"),
                mscale: number("mscale"),
                mscale_all_dim: number("mscale_all_dim"),
                truncate: scaling
                    .and_then(|scaling| scaling.get("truncate"))
                    .and_then(Value::as_bool)
                    .unwrap_or(true),
            },
        };
        if let Some((low, high)) = yarn_ramp(&rope, head_dim as usize) {
            (identity.low, identity.high) = (Some(low), Some(high));
        }
        let factor = inverse_frequencies(&rope, head_dim as usize).attention_factor;
        identity.attention_factor = Some(f64::from(factor));
    } else if lengths.rope_type == "default" {
        identity.attention_factor = Some(1.0);
    }
    identity
}

/// Where two identities differ; empty when trainer and server may run together. A value that one
/// of them does not state is a difference.
pub fn differences(first: &RopeIdentity, second: &RopeIdentity) -> Vec<Difference> {
    let of = |identity: &RopeIdentity| {
        let number = |value: Option<f64>| value.map_or("unknown".into(), |value| value.to_string());
        [
            ("rope_type", identity.rope_type.clone()),
            ("theta", number(identity.theta)),
            ("factor", number(identity.factor)),
            ("original", number(identity.original.map(|n| n as f64))),
            ("low", number(identity.low)),
            ("high", number(identity.high)),
            ("attention_factor", number(identity.attention_factor)),
        ]
    };
    of(first)
        .into_iter()
        .zip(of(second))
        .filter(|((_, first), (_, second))| first != second)
        .map(|((field, first), (_, second))| Difference {
            field,
            first,
            second,
        })
        .collect()
}
