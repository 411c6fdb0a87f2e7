//! What a model is: its architecture, sizes and rotary embedding, as one checked value.
//!
//! Read from a Hugging Face `config.json` (as transformers 4 and 5 write it) here and from GGUF
//! metadata in [`crate::gguf`]. A setting that would change results and that the engine does not
//! have (sliding windows, other activations, biases it lacks) is refused, never ignored. Where a
//! key is absent, the default is that of transformers for the architecture.

mod json;
#[cfg(test)]
mod tests;

pub(crate) use json::{generation_eos, shorten};

use crate::names::{Projection, TensorName};

/// A model family whose arithmetic the engine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Llama 1 to 3 and what is shaped like them (SmolLM2).
    Llama,
    /// Qwen2 and Qwen2.5: as Llama, with biases on the query, key and value projections.
    Qwen2,
    /// Qwen3: as Llama, with an RMS norm over each query and key head.
    Qwen3,
}

/// The shape of a model and the constants of its arithmetic. Made by [`ModelConfig::from_json`] or
/// from GGUF metadata; [`ModelConfig::check`] holds for both.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of decoder layers.
    pub n_layers: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of one head; even. `n_heads * head_dim` need not be `hidden_size`.
    pub head_dim: usize,
    /// Width inside the feed-forward block.
    pub intermediate_size: usize,
    /// Rows of the embedding. May exceed the number of tokens that the tokenizer knows.
    pub vocab_size: usize,
    /// Added to the mean square in every RMS norm.
    pub rms_norm_eps: f32,
    /// Whether the output head is the embedding.
    pub tie_word_embeddings: bool,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether each query and key head passes an RMS norm before the rotation.
    pub qk_norm: bool,
    /// The longest sequence, in tokens, that the checkpoint declares.
    pub max_position_embeddings: usize,
    /// The rotary embedding.
    pub rope: RopeConfig,
    /// The id that begins a text, where there is one.
    pub bos_token_id: Option<u32>,
    /// The ids that end a reply; empty when the files name none.
    pub eos_token_ids: Vec<u32>,
    /// The id that fills batches, where there is one.
    pub pad_token_id: Option<u32>,
}

/// The rotary position embedding; [`crate::rope::inverse_frequencies`] computes what it means.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the geometric series of wavelengths.
    pub theta: f64,
    /// How the frequencies are changed for longer contexts.
    pub scaling: RopeScaling,
}

/// A change of the rotary frequencies, the same at every sequence length.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// None.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// At least 1.
        factor: f64,
    },
    /// Long wavelengths divided by `factor`, short ones kept, a smooth passage between (Llama 3.1).
    Llama3 {
        /// At least 1.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are scaled.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Length in tokens of the context before scaling.
        original_max_position_embeddings: usize,
    },
    /// YaRN (Peng et al. 2023, arXiv:2309.00071).
    Yarn {
        /// At least 1.
        factor: f64,
        /// Length in tokens of the context before scaling.
        original_max_position_embeddings: usize,
        /// Rotations over the original context above which a frequency is kept; usually 32.
        beta_fast: f64,
        /// Rotations below which a frequency is divided by `factor`; usually 1.
        beta_slow: f64,
        /// What cosine and sine are multiplied by; else it follows from the factor and the two
        /// settings below.
        attention_factor: Option<f64>,
        /// Numerator setting of the attention factor; counts only with `mscale_all_dim`.
        mscale: Option<f64>,
        /// Denominator setting of the attention factor.
        mscale_all_dim: Option<f64>,
        /// Whether the ends of the ramp are rounded outwards to whole dimensions; usually true.
        truncate: bool,
    },
    /// Each frequency divided by its own factor: how GGUF files store the Llama 3.1 scaling.
    PerFrequency {
        /// `[head_dim / 2]`, each at least 1e-6.
        factors: Vec<f32>,
    },
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is no JSON object.
    #[error("read the model configuration: {reason}")]
    Syntax {
        /// What is wrong, with its place.
        reason: String,
    },
    /// A needed key is not there.
    #[error("read the model configuration: {key} is missing")]
    Missing {
        /// The key.
        key: String,
    },
    /// A key has a value of another type, or one outside its range.
    #[error("read the model configuration: {key} is {got}, expected {expected}")]
    Value {
        /// The key.
        key: String,
        /// What it must be.
        expected: String,
        /// What it is, shortened.
        got: String,
    },
    /// The model is of a family that the engine does not have.
    #[error("use the model: its architecture is {got}, and known are llama, qwen2 and qwen3")]
    Architecture {
        /// What the files say.
        got: String,
    },
    /// The model needs something that the engine does not have.
    #[error("use the model: {key} is {got}, and {reason}")]
    Unsupported {
        /// The key.
        key: String,
        /// Its value, shortened.
        got: String,
        /// Why this matters.
        reason: &'static str,
    },
    /// Sizes that are each possible do not fit together.
    #[error("use the model: {reason}")]
    Sizes {
        /// Which, with their values.
        reason: String,
    },
}

impl Architecture {
    /// The name that `model_type` and GGUF's `general.architecture` use.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
            Architecture::Qwen3 => "qwen3",
        }
    }

    /// The architecture called `name`, as [`Architecture::name`] gives it.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "llama" => Some(Architecture::Llama),
            "qwen2" => Some(Architecture::Qwen2),
            "qwen3" => Some(Architecture::Qwen3),
            _ => None,
        }
    }

    /// The class name that transformers puts into `architectures`.
    pub fn class_name(self) -> &'static str {
        match self {
            Architecture::Llama => "LlamaForCausalLM",
            Architecture::Qwen2 => "Qwen2ForCausalLM",
            Architecture::Qwen3 => "Qwen3ForCausalLM",
        }
    }
}

impl ModelConfig {
    /// Reads the bytes of a `config.json`.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ConfigError> {
        json::read(bytes)
    }

    /// The `config.json` of a model saved with weights of `dtype` (`bfloat16`, `float32`), readable
    /// by transformers 4 and 5.
    ///
    /// # Errors
    /// [`ConfigError::Unsupported`] for [`RopeScaling::PerFrequency`] factors that are not those of
    /// Llama 3.1's scaling: the format has no words for them.
    pub fn to_json(&self, dtype: &str) -> Result<serde_json::Value, ConfigError> {
        json::write(self, dtype)
    }

    /// Rows of the query projection.
    pub fn q_size(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Rows of the key projection, and of the value projection.
    pub fn kv_size(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// `[rows, columns]` = `[out, in]` of a projection's weight.
    pub fn projection_shape(&self, projection: Projection) -> [usize; 2] {
        match projection {
            Projection::Q => [self.q_size(), self.hidden_size],
            Projection::K | Projection::V => [self.kv_size(), self.hidden_size],
            Projection::O => [self.hidden_size, self.q_size()],
            Projection::Gate | Projection::Up => [self.intermediate_size, self.hidden_size],
            Projection::Down => [self.hidden_size, self.intermediate_size],
        }
    }

    /// The shape of a tensor of this model, or `None` when the model has no such tensor.
    pub fn shape_of(&self, name: TensorName) -> Option<Vec<usize>> {
        let in_layers = |layer: usize| layer < self.n_layers;
        Some(match name {
            TensorName::Embedding => vec![self.vocab_size, self.hidden_size],
            TensorName::Head if !self.tie_word_embeddings => {
                vec![self.vocab_size, self.hidden_size]
            }
            TensorName::FinalNorm => vec![self.hidden_size],
            TensorName::AttentionNorm(layer) | TensorName::MlpNorm(layer) if in_layers(layer) => {
                vec![self.hidden_size]
            }
            TensorName::QNorm(layer) | TensorName::KNorm(layer)
                if in_layers(layer) && self.qk_norm =>
            {
                vec![self.head_dim]
            }
            TensorName::Weight(layer, projection) if in_layers(layer) => {
                self.projection_shape(projection).to_vec()
            }
            TensorName::Bias(layer, projection)
                if in_layers(layer)
                    && self.qkv_bias
                    && matches!(projection, Projection::Q | Projection::K | Projection::V) =>
            {
                vec![self.projection_shape(projection)[0]]
            }
            _ => return None,
        })
    }

    /// Every tensor of the model in the order of its computation, a tied head left out.
    pub fn tensor_names(&self) -> impl Iterator<Item = TensorName> + '_ {
        let layers = (0..self.n_layers).flat_map(|layer| {
            let norms = [
                TensorName::AttentionNorm(layer),
                TensorName::QNorm(layer),
                TensorName::KNorm(layer),
                TensorName::MlpNorm(layer),
            ];
            let projections = Projection::ALL.into_iter().flat_map(move |projection| {
                [
                    TensorName::Weight(layer, projection),
                    TensorName::Bias(layer, projection),
                ]
            });
            norms.into_iter().chain(projections)
        });
        std::iter::once(TensorName::Embedding)
            .chain(layers)
            .chain([TensorName::FinalNorm, TensorName::Head])
            .filter(|name| self.shape_of(*name).is_some())
    }

    /// The number of parameters, a tied head counted once.
    pub fn n_parameters(&self) -> u64 {
        let matrices: u64 = Projection::ALL
            .into_iter()
            .map(|projection| {
                let [rows, columns] = self.projection_shape(projection);
                rows as u64 * columns as u64
            })
            .sum();
        let mut layer = matrices + 2 * self.hidden_size as u64;
        if self.qkv_bias {
            layer += (self.q_size() + 2 * self.kv_size()) as u64;
        }
        if self.qk_norm {
            layer += 2 * self.head_dim as u64;
        }
        let embeddings = if self.tie_word_embeddings { 1 } else { 2 };
        self.n_layers as u64 * layer
            + embeddings * self.vocab_size as u64 * self.hidden_size as u64
            + self.hidden_size as u64
    }

    /// Checks that every size is possible and that they fit together. What this bounds keeps all
    /// products of sizes far from overflow.
    pub fn check(&self) -> Result<(), ConfigError> {
        let sizes = [
            ("hidden_size", self.hidden_size, 1 << 17),
            ("num_hidden_layers", self.n_layers, 1 << 12),
            ("num_attention_heads", self.n_heads, 1 << 12),
            ("num_key_value_heads", self.n_kv_heads, 1 << 12),
            ("head_dim", self.head_dim, 1 << 12),
            ("intermediate_size", self.intermediate_size, 1 << 20),
            ("vocab_size", self.vocab_size, 1 << 24),
            (
                "max_position_embeddings",
                self.max_position_embeddings,
                1 << 30,
            ),
        ];
        for (key, size, limit) in sizes {
            if size == 0 || size > limit {
                return Err(ConfigError::Value {
                    key: key.into(),
                    expected: format!("1 to {limit}"),
                    got: size.to_string(),
                });
            }
        }
        let mismatch = |reason: String| Err(ConfigError::Sizes { reason });
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            return mismatch(format!(
                "{} attention heads cannot share {} key-value heads evenly",
                self.n_heads, self.n_kv_heads
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            return mismatch(format!(
                "head_dim is {}, and rotation needs pairs",
                self.head_dim
            ));
        }
        if !(self.rms_norm_eps > 0.0 && self.rms_norm_eps <= 1.0) {
            return Err(ConfigError::Value {
                key: "rms_norm_eps".into(),
                expected: "above 0 and at most 1".into(),
                got: self.rms_norm_eps.to_string(),
            });
        }
        self.rope.check(self.head_dim)
    }
}

impl RopeConfig {
    fn check(&self, head_dim: usize) -> Result<(), ConfigError> {
        let range = |key: &str, value: f64, from: f64, to: f64| {
            if (from..=to).contains(&value) {
                return Ok(());
            }
            Err(ConfigError::Value {
                key: key.into(),
                expected: format!("{from} to {to}"),
                got: value.to_string(),
            })
        };
        let length =
            |value: usize| range("original_max_position_embeddings", value as f64, 1.0, 1e9);
        // A theta of exactly 1 has no wavelengths: YaRN would divide by its logarithm.
        range("rope_theta", self.theta, 1.0 + 1e-6, 1e12)?;
        match &self.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => range("factor", *factor, 1.0, 1e6),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                range("factor", *factor, 1.0, 1e6)?;
                range("low_freq_factor", *low_freq_factor, 1e-6, 1e6)?;
                range("high_freq_factor", *high_freq_factor, 1e-6, 1e6)?;
                if high_freq_factor <= low_freq_factor {
                    return Err(ConfigError::Sizes {
                        reason: format!(
                            "high_freq_factor {high_freq_factor} is not above low_freq_factor {low_freq_factor}"
                        ),
                    });
                }
                length(*original_max_position_embeddings)
            }
            RopeScaling::Yarn {
                factor,
                original_max_position_embeddings,
                beta_fast,
                beta_slow,
                attention_factor,
                mscale,
                mscale_all_dim,
                truncate: _,
            } => {
                range("factor", *factor, 1.0, 1e6)?;
                range("beta_fast", *beta_fast, 1e-6, 1e6)?;
                range("beta_slow", *beta_slow, 1e-6, 1e6)?;
                if beta_fast < beta_slow {
                    return Err(ConfigError::Sizes {
                        reason: format!("beta_fast {beta_fast} is below beta_slow {beta_slow}"),
                    });
                }
                for (key, value) in [
                    ("attention_factor", attention_factor),
                    ("mscale", mscale),
                    ("mscale_all_dim", mscale_all_dim),
                ] {
                    if let Some(value) = value {
                        range(key, *value, 0.0, 1e6)?;
                    }
                }
                length(*original_max_position_embeddings)
            }
            RopeScaling::PerFrequency { factors } => {
                if factors.len() != head_dim / 2 {
                    return Err(ConfigError::Sizes {
                        reason: format!(
                            "{} rotary factors do not fit head_dim {head_dim}",
                            factors.len()
                        ),
                    });
                }
                factors.iter().try_for_each(|factor| {
                    range("rope_freqs.weight", f64::from(*factor), 1e-6, 1e6)
                })
            }
        }
    }
}
