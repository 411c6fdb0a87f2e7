//! `config.json`, read and written.

use serde_json::{Map, Value, json};

use super::{Architecture, ConfigError, ModelConfig, RopeConfig, RopeScaling};

/// A longer `config.json` is refused; real ones have a few kilobytes.
const MAX_BYTES: usize = 16 << 20;

pub(super) fn read(bytes: &[u8]) -> Result<ModelConfig, ConfigError> {
    if bytes.len() > MAX_BYTES {
        return Err(ConfigError::Syntax {
            reason: format!("it has {} bytes, and {MAX_BYTES} are allowed", bytes.len()),
        });
    }
    let value: Value = serde_json::from_slice(bytes).map_err(|error| ConfigError::Syntax {
        reason: error.to_string(),
    })?;
    let Value::Object(map) = &value else {
        return Err(ConfigError::Syntax {
            reason: "it is no JSON object".into(),
        });
    };
    let object = Object { map };
    let architecture = architecture(&object)?;
    refuse_what_is_missing_here(&object, architecture)?;

    let hidden_size = object.need_size("hidden_size")?;
    let n_heads = object.need_size("num_attention_heads")?;
    let n_layers = object.need_size("num_hidden_layers")?;
    let max_position_embeddings =
        object
            .size("max_position_embeddings")?
            .unwrap_or(match architecture {
                Architecture::Llama => 2048,
                Architecture::Qwen2 | Architecture::Qwen3 => 32768,
            });
    let head_dim = match object.size("head_dim")? {
        Some(head_dim) => head_dim,
        // Only Qwen3 has a default of its own, for a key that is absent; null means as below.
        None if architecture == Architecture::Qwen3 && !map.contains_key("head_dim") => 128,
        None if n_heads > 0 && hidden_size % n_heads == 0 => hidden_size / n_heads,
        None => {
            return Err(ConfigError::Sizes {
                reason: format!(
                    "hidden_size {hidden_size} is no multiple of {n_heads} attention heads, and head_dim is missing"
                ),
            });
        }
    };
    refuse_sliding_windows(&object, n_layers, max_position_embeddings)?;
    let default_special = |id: u32| match architecture {
        Architecture::Llama => Some(id),
        Architecture::Qwen2 | Architecture::Qwen3 => None,
    };
    let config = ModelConfig {
        architecture,
        hidden_size,
        n_layers,
        n_heads,
        n_kv_heads: object.size("num_key_value_heads")?.unwrap_or(n_heads),
        head_dim,
        intermediate_size: object.need_size("intermediate_size")?,
        vocab_size: object.need_size("vocab_size")?,
        rms_norm_eps: object.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        tie_word_embeddings: object.flag("tie_word_embeddings")?.unwrap_or(false),
        qkv_bias: architecture == Architecture::Qwen2,
        qk_norm: architecture == Architecture::Qwen3,
        max_position_embeddings,
        rope: rope(&object, max_position_embeddings)?,
        bos_token_id: match map.get("bos_token_id") {
            None => default_special(1),
            Some(_) => object.token_ids("bos_token_id")?.first().copied(),
        },
        eos_token_ids: match map.get("eos_token_id") {
            None => default_special(2).into_iter().collect(),
            Some(_) => object.token_ids("eos_token_id")?,
        },
        pad_token_id: object.token_ids("pad_token_id")?.first().copied(),
    };
    config.check()?;
    Ok(config)
}

/// The end-of-reply ids of a `generation_config.json`, which count more than those of
/// `config.json`; `None` when it names none.
pub(crate) fn generation_eos(bytes: &[u8]) -> Result<Option<Vec<u32>>, ConfigError> {
    if bytes.len() > MAX_BYTES {
        return Err(ConfigError::Syntax {
            reason: format!("it has {} bytes, and {MAX_BYTES} are allowed", bytes.len()),
        });
    }
    let map: Map<String, Value> =
        serde_json::from_slice(bytes).map_err(|error| ConfigError::Syntax {
            reason: error.to_string(),
        })?;
    let ids = Object { map: &map }.token_ids("eos_token_id")?;
    Ok((!ids.is_empty()).then_some(ids))
}

fn architecture(object: &Object<'_>) -> Result<Architecture, ConfigError> {
    // A class name says more than `model_type`: the same type also has classifiers and encoders.
    if let Some(Value::Array(names)) = object.get("architectures") {
        let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
        if !names.is_empty() {
            return [
                Architecture::Llama,
                Architecture::Qwen2,
                Architecture::Qwen3,
            ]
            .into_iter()
            .find(|architecture| names.contains(&architecture.class_name()))
            .ok_or_else(|| ConfigError::Architecture {
                got: shorten(&names.join(", ")),
            });
        }
    }
    let name = match object.get("model_type") {
        Some(Value::String(name)) => name.as_str(),
        Some(other) => return Err(object.wrong("model_type", "a string", other)),
        None => {
            return Err(ConfigError::Missing {
                key: "model_type".into(),
            });
        }
    };
    Architecture::from_name(name).ok_or_else(|| ConfigError::Architecture { got: shorten(name) })
}

fn refuse_what_is_missing_here(
    object: &Object<'_>,
    architecture: Architecture,
) -> Result<(), ConfigError> {
    let unsupported = |key: &str, got: String, reason| {
        Err(ConfigError::Unsupported {
            key: key.into(),
            got,
            reason,
        })
    };
    if let Some(Value::String(name)) = object.get("hidden_act")
        && name != "silu"
        && name != "swish"
    {
        return unsupported(
            "hidden_act",
            shorten(name),
            "the only feed-forward activation here is silu",
        );
    }
    // Qwen2 has its biases by definition and no key for them; elsewhere the key also adds one to
    // the output projection.
    if architecture != Architecture::Qwen2 && object.flag("attention_bias")? == Some(true) {
        return unsupported(
            "attention_bias",
            "true".into(),
            "an output projection with a bias is not supported",
        );
    }
    if object.flag("mlp_bias")? == Some(true) {
        return unsupported(
            "mlp_bias",
            "true".into(),
            "feed-forward biases are not supported",
        );
    }
    if let Some(quantization) = object.get("quantization_config") {
        let method = quantization.get("quant_method").and_then(Value::as_str);
        return unsupported(
            "quantization_config",
            shorten(method.unwrap_or("there")),
            "such weights are not read; use the unquantised model or a GGUF file",
        );
    }
    Ok(())
}

fn refuse_sliding_windows(
    object: &Object<'_>,
    n_layers: usize,
    max_position_embeddings: usize,
) -> Result<(), ConfigError> {
    let window = object.size("sliding_window")?;
    // A window that no sequence exceeds changes nothing.
    let reaches_all = window.is_some_and(|window| window >= max_position_embeddings);
    let in_force = match object.get("layer_types") {
        Some(Value::Array(kinds)) => {
            if let Some(kind) = kinds
                .iter()
                .find(|kind| !matches!(kind.as_str(), Some("full_attention" | "sliding_attention")))
            {
                return Err(ConfigError::Unsupported {
                    key: "layer_types".into(),
                    got: shorten(&kind.to_string()),
                    reason: "every layer must have full attention",
                });
            }
            kinds
                .iter()
                .any(|kind| kind.as_str() == Some("sliding_attention"))
        }
        _ => {
            object.flag("use_sliding_window")? == Some(true)
                && window.is_some()
                && object.size("max_window_layers")?.unwrap_or(28) < n_layers
        }
    };
    if in_force && !reaches_all {
        return Err(ConfigError::Unsupported {
            key: "sliding_window".into(),
            got: window.map_or("null".into(), |window| window.to_string()),
            reason: "attention over a sliding window is not supported",
        });
    }
    Ok(())
}

fn rope(object: &Object<'_>, max_position_embeddings: usize) -> Result<RopeConfig, ConfigError> {
    let empty = Map::new();
    let nested = |key: &str| match object.get(key) {
        Some(Value::Object(map)) if !map.is_empty() => Ok(Some(map)),
        None | Some(Value::Object(_)) => Ok(None),
        Some(other) => Err(object.wrong(key, "an object", other)),
    };
    // As in transformers 5, the older key wins where both are there.
    let map = match nested("rope_scaling")? {
        Some(map) => map,
        None => nested("rope_parameters")?.unwrap_or(&empty),
    };
    if let Some((key, _)) = map.iter().find(|(_, value)| value.is_object()) {
        return Err(ConfigError::Unsupported {
            key: "rope_parameters".into(),
            got: shorten(key),
            reason: "rotary settings that differ by layer are not supported",
        });
    }
    let inner = Object { map };
    for place in [object, &inner] {
        if let Some(partial) = place.number("partial_rotary_factor")?
            && partial != 1.0
        {
            return Err(ConfigError::Unsupported {
                key: "partial_rotary_factor".into(),
                got: partial.to_string(),
                reason: "heads are rotated whole here",
            });
        }
    }
    let theta = match inner.number("rope_theta")? {
        Some(theta) => theta,
        None => object.number("rope_theta")?.unwrap_or(10_000.0),
    };
    let kind = match inner.get("rope_type").or_else(|| inner.get("type")) {
        None => "default",
        Some(Value::String(kind)) => kind.as_str(),
        Some(other) => return Err(inner.wrong("rope_type", "a string", other)),
    };
    let original_length = || -> Result<usize, ConfigError> {
        // Beside the rotary settings, it wins over the one inside them.
        if let Some(length) = object.size("original_max_position_embeddings")? {
            return Ok(length);
        }
        Ok(inner
            .size("original_max_position_embeddings")?
            .unwrap_or(max_position_embeddings))
    };
    let scaling = match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear {
            factor: inner.need_number("factor")?,
        },
        "llama3" => RopeScaling::Llama3 {
            factor: inner.need_number("factor")?,
            low_freq_factor: inner.need_number("low_freq_factor")?,
            high_freq_factor: inner.need_number("high_freq_factor")?,
            original_max_position_embeddings: original_length()?,
        },
        "yarn" => RopeScaling::Yarn {
            factor: inner.need_number("factor")?,
            original_max_position_embeddings: original_length()?,
            beta_fast: nonzero(inner.number("beta_fast")?).unwrap_or(32.0),
            beta_slow: nonzero(inner.number("beta_slow")?).unwrap_or(1.0),
            attention_factor: inner.number("attention_factor")?,
            mscale: nonzero(inner.number("mscale")?),
            mscale_all_dim: nonzero(inner.number("mscale_all_dim")?),
            truncate: inner.flag("truncate")?.unwrap_or(true),
        },
        other => {
            return Err(ConfigError::Unsupported {
                key: "rope_type".into(),
                got: shorten(other),
                reason: "known are default, linear, llama3 and yarn",
            });
        }
    };
    Ok(RopeConfig { theta, scaling })
}

/// Zero stands for absence in these settings.
fn nonzero(value: Option<f64>) -> Option<f64> {
    value.filter(|value| *value != 0.0)
}

pub(super) fn write(config: &ModelConfig, dtype: &str) -> Result<Value, ConfigError> {
    let eos = match config.eos_token_ids.as_slice() {
        [] => Value::Null,
        [id] => json!(id),
        ids => json!(ids),
    };
    let mut value = json!({
        "architectures": [config.architecture.class_name()],
        "model_type": config.architecture.name(),
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "hidden_act": "silu",
        "rms_norm_eps": shortest(config.rms_norm_eps),
        "tie_word_embeddings": config.tie_word_embeddings,
        "max_position_embeddings": config.max_position_embeddings,
        "rope_theta": config.rope.theta,
        "rope_scaling": scaling(&config.rope, config.head_dim)?,
        "attention_dropout": 0.0,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos,
        "pad_token_id": config.pad_token_id,
        // transformers 4 reads the first, transformers 5 writes the second and reads both.
        "torch_dtype": dtype,
        "dtype": dtype,
    });
    match config.architecture {
        Architecture::Llama => {
            value["attention_bias"] = json!(false);
            value["mlp_bias"] = json!(false);
        }
        Architecture::Qwen2 => value["use_sliding_window"] = json!(false),
        Architecture::Qwen3 => {
            value["attention_bias"] = json!(false);
            value["use_sliding_window"] = json!(false);
        }
    }
    Ok(value)
}

fn scaling(rope: &RopeConfig, head_dim: usize) -> Result<Value, ConfigError> {
    Ok(match &rope.scaling {
        RopeScaling::None => Value::Null,
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_max_position_embeddings,
        }),
        RopeScaling::Yarn {
            factor,
            original_max_position_embeddings,
            beta_fast,
            beta_slow,
            attention_factor,
            mscale,
            mscale_all_dim,
            truncate,
        } => {
            let mut value = json!({
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": original_max_position_embeddings,
                "beta_fast": beta_fast,
                "beta_slow": beta_slow,
                "truncate": truncate,
            });
            for (key, setting) in [
                ("attention_factor", attention_factor),
                ("mscale", mscale),
                ("mscale_all_dim", mscale_all_dim),
            ] {
                if let Some(setting) = setting {
                    value[key] = json!(setting);
                }
            }
            value
        }
        RopeScaling::PerFrequency { .. } => {
            let as_llama3 =
                crate::rope::as_llama3(rope, head_dim).ok_or_else(|| ConfigError::Unsupported {
                    key: "rope_freqs.weight".into(),
                    got: "not Llama 3.1's".into(),
                    reason: "config.json has no words for other factors",
                })?;
            scaling(&as_llama3, head_dim)?
        }
    })
}

/// The f64 that prints as the f32 does, so that 1e-5 is written as such.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// A JSON object with typed reading. A key whose value is null counts as absent.
struct Object<'a> {
    map: &'a Map<String, Value>,
}

impl Object<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn wrong(&self, key: &str, expected: &str, got: &Value) -> ConfigError {
        ConfigError::Value {
            key: key.into(),
            expected: expected.into(),
            got: shorten(&got.to_string()),
        }
    }

    fn need<T>(&self, key: &str, value: Option<T>) -> Result<T, ConfigError> {
        value.ok_or_else(|| ConfigError::Missing { key: key.into() })
    }

    fn size(&self, key: &str) -> Result<Option<usize>, ConfigError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        value
            .as_u64()
            .and_then(|size| usize::try_from(size).ok())
            .map(Some)
            .ok_or_else(|| self.wrong(key, "a whole number", value))
    }

    fn need_size(&self, key: &str) -> Result<usize, ConfigError> {
        self.need(key, self.size(key)?)
    }

    fn number(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        value
            .as_f64()
            .map(Some)
            .ok_or_else(|| self.wrong(key, "a number", value))
    }

    fn need_number(&self, key: &str) -> Result<f64, ConfigError> {
        self.need(key, self.number(key)?)
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        value
            .as_bool()
            .map(Some)
            .ok_or_else(|| self.wrong(key, "true or false", value))
    }

    /// One id or a list of ids; a negative one, as some old files have, stands for none.
    fn token_ids(&self, key: &str) -> Result<Vec<u32>, ConfigError> {
        let one = |value: &Value| match value.as_i64() {
            Some(id) if id < 0 => Ok(None),
            Some(id) => u32::try_from(id)
                .map(Some)
                .map_err(|_| self.wrong(key, "a token id", value)),
            None => Err(self.wrong(key, "a token id", value)),
        };
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(values)) if values.len() > 1024 => {
                Err(self.wrong(key, "at most 1024 ids", &json!(values.len())))
            }
            Some(Value::Array(values)) => {
                let ids: Result<Vec<_>, _> = values.iter().map(one).collect();
                Ok(ids?.into_iter().flatten().collect())
            }
            Some(value) => Ok(one(value)?.into_iter().collect()),
        }
    }
}

/// A value as it may appear in a message: at most 80 characters.
pub(crate) fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(80).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
