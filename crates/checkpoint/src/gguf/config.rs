//! The model's configuration from GGUF metadata.

use super::{Gguf, GgufError};
use crate::{
    config::{Architecture, ConfigError, ModelConfig, RopeConfig, RopeScaling, shorten},
    names::TensorName,
};

pub(super) fn read(gguf: &Gguf) -> Result<ModelConfig, GgufError> {
    let keys = Keys { gguf };
    let name = gguf
        .string("general.architecture")?
        .ok_or_else(|| keys.missing("general.architecture"))?;
    let architecture = Architecture::from_name(name)
        .ok_or_else(|| keys.config(ConfigError::Architecture { got: shorten(name) }))?;
    let hidden_size = keys.need_size("embedding_length")?;
    let n_heads = keys.need_size("attention.head_count")?;
    let head_dim = match keys.size("attention.key_length")? {
        Some(head_dim) => head_dim,
        None if n_heads > 0 && hidden_size % n_heads == 0 => hidden_size / n_heads,
        None => {
            return Err(keys.config(ConfigError::Sizes {
                reason: format!("width {hidden_size} is no multiple of {n_heads} attention heads"),
            }));
        }
    };
    for (key, reason) in [
        (
            "attention.value_length",
            "keys and values must be of one width",
        ),
        ("rope.dimension_count", "heads are rotated whole here"),
    ] {
        if let Some(size) = keys.size(key)?.filter(|size| *size != head_dim) {
            return Err(keys.unsupported(key, size.to_string(), reason));
        }
    }
    if let Some(n) = keys.size("expert_count")?.filter(|n| *n > 0) {
        return Err(keys.unsupported(
            "expert_count",
            n.to_string(),
            "mixtures of experts are not supported",
        ));
    }
    let max_position_embeddings = keys.need_size("context_length")?;
    if let Some(window) = keys
        .size("attention.sliding_window")?
        .filter(|window| *window > 0 && *window < max_position_embeddings)
    {
        return Err(keys.unsupported(
            "attention.sliding_window",
            window.to_string(),
            "attention over a sliding window is not supported",
        ));
    }
    // The embedding says how many rows there are; the key, where it is there, only repeats it.
    let vocab_size = gguf
        .raw_tensor(&TensorName::Embedding.gguf())
        .map(|embedding| embedding.n_rows())
        .ok_or_else(|| keys.missing("token_embd.weight"))?;
    let mut eos_token_ids = Vec::new();
    for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"] {
        if let Some(id) = keys.token_id(key)?
            && !eos_token_ids.contains(&id)
        {
            eos_token_ids.push(id);
        }
    }
    let config = ModelConfig {
        architecture,
        hidden_size,
        n_layers: keys.need_size("block_count")?,
        n_heads,
        n_kv_heads: keys.size("attention.head_count_kv")?.unwrap_or(n_heads),
        head_dim,
        intermediate_size: keys.need_size("feed_forward_length")?,
        vocab_size,
        rms_norm_eps: keys
            .number("attention.layer_norm_rms_epsilon")?
            .unwrap_or(1e-6) as f32,
        tie_word_embeddings: gguf.raw_tensor(&TensorName::Head.gguf()).is_none(),
        qkv_bias: architecture == Architecture::Qwen2,
        qk_norm: architecture == Architecture::Qwen3,
        max_position_embeddings,
        rope: rope(&keys, max_position_embeddings)?,
        bos_token_id: keys.token_id("tokenizer.ggml.bos_token_id")?,
        eos_token_ids,
        pad_token_id: keys.token_id("tokenizer.ggml.padding_token_id")?,
    };
    config.check().map_err(|error| keys.config(error))?;
    Ok(config)
}

fn rope(keys: &Keys<'_>, max_position_embeddings: usize) -> Result<RopeConfig, GgufError> {
    let theta = keys.number("rope.freq_base")?.unwrap_or(10_000.0);
    let factor = match keys.number("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        // What files had before there were kinds of scaling.
        None => keys.number("rope.scale_linear")?,
    };
    let kind = keys.gguf.string(&keys.key("rope.scaling.type"))?;
    // Factors of each frequency lie among the tensors.
    let factors = match keys.gguf.raw_tensor("rope_freqs.weight") {
        Some(tensor) if tensor.n_elements() > 1 << 12 => {
            return Err(keys.unsupported(
                "rope_freqs.weight",
                format!("{} elements", tensor.n_elements()),
                "no head is that wide",
            ));
        }
        Some(tensor) => tensor.to_f32().ok(),
        None => None,
    };
    let scaling = match (kind, factor, factors) {
        (None | Some("none"), None, Some(factors)) => RopeScaling::PerFrequency { factors },
        (_, _, Some(_)) => {
            return Err(keys.unsupported(
                "rope.scaling.type",
                shorten(kind.unwrap_or("linear")),
                "it comes together with factors of each frequency",
            ));
        }
        (Some("none"), _, None) | (None, None, None) => RopeScaling::None,
        (Some("linear") | None, Some(factor), None) => match factor {
            // Converters write both where there is nothing to scale.
            0.0 | 1.0 => RopeScaling::None,
            factor => RopeScaling::Linear { factor },
        },
        (Some("yarn"), Some(factor), None) => {
            let attention = keys.number("rope.scaling.yarn_attn_factor")?.map_or_else(
                || keys.number("rope.scaling.attn_factor"),
                |factor| Ok(Some(factor)),
            )?;
            RopeScaling::Yarn {
                factor,
                original_max_position_embeddings: keys
                    .size("rope.scaling.original_context_length")?
                    .unwrap_or(max_position_embeddings),
                beta_fast: keys.number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: keys.number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                // Here it multiplies the usual factor; elsewhere in this crate it replaces it.
                attention_factor: attention
                    .filter(|attention| *attention != 1.0)
                    .map(|attention| attention * (0.1 * factor.max(1.0).ln() + 1.0)),
                mscale: None,
                mscale_all_dim: None,
                truncate: true,
            }
        }
        (Some("linear" | "yarn"), None, None) => {
            return Err(keys.missing(&keys.key("rope.scaling.factor")));
        }
        (Some(other), _, _) => {
            return Err(keys.unsupported(
                "rope.scaling.type",
                shorten(other),
                "known are none, linear and yarn",
            ));
        }
    };
    Ok(RopeConfig { theta, scaling })
}

/// Metadata keys below the architecture's name.
struct Keys<'a> {
    gguf: &'a Gguf,
}

impl Keys<'_> {
    fn key(&self, key: &str) -> String {
        match self.gguf.string("general.architecture") {
            Ok(Some(architecture)) => format!("{architecture}.{key}"),
            _ => key.to_owned(),
        }
    }

    fn config(&self, source: ConfigError) -> GgufError {
        GgufError::Config {
            path: self.gguf.path().to_owned(),
            source,
        }
    }

    fn missing(&self, key: &str) -> GgufError {
        self.config(ConfigError::Missing { key: key.into() })
    }

    fn unsupported(&self, key: &str, got: String, reason: &'static str) -> GgufError {
        self.config(ConfigError::Unsupported {
            key: key.into(),
            got,
            reason,
        })
    }

    fn size(&self, key: &str) -> Result<Option<usize>, GgufError> {
        let value = self.gguf.unsigned(&self.key(key))?;
        // What no usize holds is refused with all other sizes that are too large.
        Ok(value.map(|value| usize::try_from(value).unwrap_or(usize::MAX)))
    }

    fn need_size(&self, key: &str) -> Result<usize, GgufError> {
        self.size(key)?.ok_or_else(|| self.missing(&self.key(key)))
    }

    fn number(&self, key: &str) -> Result<Option<f64>, GgufError> {
        // An f32 of the file is meant as the decimal it prints as: 1e-5, not 9.99999974e-6.
        let value = self.gguf.float(&self.key(key))?;
        Ok(value.map(|value| {
            let single = value as f32;
            if f64::from(single) == value {
                single.to_string().parse().unwrap_or(value)
            } else {
                value
            }
        }))
    }

    fn token_id(&self, key: &str) -> Result<Option<u32>, GgufError> {
        let value = self.gguf.unsigned(key)?;
        Ok(value.and_then(|id| u32::try_from(id).ok()))
    }
}
