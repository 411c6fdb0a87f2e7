//! The tensors of a model and what the two file formats call them.
//!
//! Canonical names are those of Hugging Face checkpoints.

use std::{fmt, str::FromStr};

/// One of the seven weight matrices of a decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Projection {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// Output of attention.
    O,
    /// Gate of the feed-forward block.
    Gate,
    /// Up projection of the feed-forward block.
    Up,
    /// Down projection of the feed-forward block.
    Down,
}

/// A tensor of a model. Layers count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TensorName {
    /// The token embedding, `[vocab_size, hidden_size]`.
    Embedding,
    /// The RMS norm before attention, `[hidden_size]`.
    AttentionNorm(usize),
    /// A projection's weight, `[out, in]`.
    Weight(usize, Projection),
    /// A projection's bias, `[out]`.
    Bias(usize, Projection),
    /// The RMS norm of each query head, `[head_dim]`.
    QNorm(usize),
    /// The RMS norm of each key head, `[head_dim]`.
    KNorm(usize),
    /// The RMS norm before the feed-forward block, `[hidden_size]`.
    MlpNorm(usize),
    /// The RMS norm after the last layer, `[hidden_size]`.
    FinalNorm,
    /// The output head, `[vocab_size, hidden_size]`, where it is not the embedding.
    Head,
}

impl Projection {
    /// All, in the order of the computation.
    pub const ALL: [Projection; 7] = [
        Projection::Q,
        Projection::K,
        Projection::V,
        Projection::O,
        Projection::Gate,
        Projection::Up,
        Projection::Down,
    ];

    /// The module's own name, as in PEFT's `target_modules`: `q_proj`.
    pub fn module(self) -> &'static str {
        match self {
            Projection::Q => "q_proj",
            Projection::K => "k_proj",
            Projection::V => "v_proj",
            Projection::O => "o_proj",
            Projection::Gate => "gate_proj",
            Projection::Up => "up_proj",
            Projection::Down => "down_proj",
        }
    }

    /// The projection whose module has this name.
    pub fn from_module(module: &str) -> Option<Self> {
        Projection::ALL
            .into_iter()
            .find(|projection| projection.module() == module)
    }

    /// The module with its parent inside a layer: `self_attn.q_proj`.
    pub fn path(self) -> &'static str {
        match self {
            Projection::Q => "self_attn.q_proj",
            Projection::K => "self_attn.k_proj",
            Projection::V => "self_attn.v_proj",
            Projection::O => "self_attn.o_proj",
            Projection::Gate => "mlp.gate_proj",
            Projection::Up => "mlp.up_proj",
            Projection::Down => "mlp.down_proj",
        }
    }

    /// The projection at this path inside a layer.
    pub fn from_path(path: &str) -> Option<Self> {
        Projection::ALL
            .into_iter()
            .find(|projection| projection.path() == path)
    }

    fn gguf(self) -> &'static str {
        match self {
            Projection::Q => "attn_q",
            Projection::K => "attn_k",
            Projection::V => "attn_v",
            Projection::O => "attn_output",
            Projection::Gate => "ffn_gate",
            Projection::Up => "ffn_up",
            Projection::Down => "ffn_down",
        }
    }
}

impl fmt::Display for Projection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.module())
    }
}

/// The name in Hugging Face checkpoints.
impl fmt::Display for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorName::Embedding => f.write_str("model.embed_tokens.weight"),
            TensorName::FinalNorm => f.write_str("model.norm.weight"),
            TensorName::Head => f.write_str("lm_head.weight"),
            TensorName::AttentionNorm(layer) => {
                write!(f, "model.layers.{layer}.input_layernorm.weight")
            }
            TensorName::MlpNorm(layer) => {
                write!(f, "model.layers.{layer}.post_attention_layernorm.weight")
            }
            TensorName::QNorm(layer) => write!(f, "model.layers.{layer}.self_attn.q_norm.weight"),
            TensorName::KNorm(layer) => write!(f, "model.layers.{layer}.self_attn.k_norm.weight"),
            TensorName::Weight(layer, projection) => {
                write!(f, "model.layers.{layer}.{}.weight", projection.path())
            }
            TensorName::Bias(layer, projection) => {
                write!(f, "model.layers.{layer}.{}.bias", projection.path())
            }
        }
    }
}

/// The text names no tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read the tensor name {0:?}: no model has it")]
pub struct UnknownTensor(pub String);

/// From the name in Hugging Face checkpoints.
impl FromStr for TensorName {
    type Err = UnknownTensor;

    fn from_str(name: &str) -> Result<Self, UnknownTensor> {
        let in_layer = || {
            let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
            // Only the usual spelling of a number, so that a tensor has one name.
            let number: usize = layer
                .parse()
                .ok()
                .filter(|n: &usize| n.to_string() == layer)?;
            if let Some(path) = rest.strip_suffix(".bias") {
                return Some(TensorName::Bias(number, Projection::from_path(path)?));
            }
            let path = rest.strip_suffix(".weight")?;
            Some(match path {
                "input_layernorm" => TensorName::AttentionNorm(number),
                "post_attention_layernorm" => TensorName::MlpNorm(number),
                "self_attn.q_norm" => TensorName::QNorm(number),
                "self_attn.k_norm" => TensorName::KNorm(number),
                path => TensorName::Weight(number, Projection::from_path(path)?),
            })
        };
        match name {
            "model.embed_tokens.weight" => Ok(TensorName::Embedding),
            "model.norm.weight" => Ok(TensorName::FinalNorm),
            "lm_head.weight" => Ok(TensorName::Head),
            _ => in_layer().ok_or_else(|| UnknownTensor(name.to_owned())),
        }
    }
}

impl TensorName {
    /// The name in GGUF files.
    pub fn gguf(self) -> String {
        match self {
            TensorName::Embedding => "token_embd.weight".into(),
            TensorName::FinalNorm => "output_norm.weight".into(),
            TensorName::Head => "output.weight".into(),
            TensorName::AttentionNorm(layer) => format!("blk.{layer}.attn_norm.weight"),
            TensorName::MlpNorm(layer) => format!("blk.{layer}.ffn_norm.weight"),
            TensorName::QNorm(layer) => format!("blk.{layer}.attn_q_norm.weight"),
            TensorName::KNorm(layer) => format!("blk.{layer}.attn_k_norm.weight"),
            TensorName::Weight(layer, projection) => {
                format!("blk.{layer}.{}.weight", projection.gguf())
            }
            TensorName::Bias(layer, projection) => {
                format!("blk.{layer}.{}.bias", projection.gguf())
            }
        }
    }
}
