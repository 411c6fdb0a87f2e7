//! LoRA adapters in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! Read and written is what a trainer of these models uses: plain LoRA or rsLoRA on the seven
//! projections, no biases, no other trained modules. Ranks and alphas by pattern are read into one
//! rank and one scale that say the same. Everything else PEFT can express would change results and
//! is refused.

mod pattern;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use self::pattern::Patterns;
use crate::{
    config::{ModelConfig, shorten},
    file::{FileError, read_small},
    names::Projection,
    safetensors::{SafetensorsError, SafetensorsFile},
    save::{NewFolder, SaveDtype, SaveError, TensorPlan, write_file},
    tensor::DecodeError,
};

const CONFIG_NAME: &str = "adapter_config.json";
const WEIGHTS_NAME: &str = "adapter_model.safetensors";
const MAX_CONFIG_BYTES: u64 = 16 << 20;
const MAX_RANK: u64 = 1 << 14;

/// A LoRA adapter: `W + scale() * B A` for each adapted projection.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// Rows of every A.
    pub rank: usize,
    /// PEFT's `lora_alpha`.
    pub alpha: f64,
    /// Whether the scale is `alpha / sqrt(rank)` (rsLoRA, arXiv:2312.03732) rather than
    /// `alpha / rank`.
    pub rank_stabilised: bool,
    /// The model it was trained against, as PEFT's `base_model_name_or_path`.
    pub base_model: Option<String>,
    /// The pairs by layer and projection.
    pub tensors: BTreeMap<(usize, Projection), LoraPair>,
}

/// The two factors of one projection's change.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraPair {
    /// `[rank, in]`, row by row.
    pub a: Vec<f32>,
    /// `[out, rank]`, row by row.
    pub b: Vec<f32>,
}

/// Why an adapter cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The weights cannot be read.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// A tensor does not fit its bytes.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// It cannot be written.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// The configuration is malformed.
    #[error("read {}: {reason}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// It uses something that would change results and is not there.
    #[error("use the adapter {}: {key} is {got}, which is not supported", .path.display())]
    Unsupported {
        /// The configuration file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Its value, shortened.
        got: String,
    },
    /// It does not fit the model.
    #[error("use the adapter {}: {reason}", .path.display())]
    Mismatch {
        /// The folder.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
}

impl AdapterError {
    /// What the user can do, where there is something.
    pub fn hint(&self) -> Option<String> {
        match self {
            AdapterError::Mismatch { .. } => {
                Some("use the base model that the adapter was trained against".to_owned())
            }
            AdapterError::File(error)
                if error.path.ends_with(WEIGHTS_NAME)
                    && error.path.with_extension("bin").exists() =>
            {
                Some(
                    "save it again as safetensors; pickled files can run code and are not read"
                        .to_owned(),
                )
            }
            _ => None,
        }
    }
}

impl Adapter {
    /// What `B A` is multiplied by.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        if self.rank_stabilised {
            self.alpha / rank.sqrt()
        } else {
            self.alpha / rank
        }
    }

    /// The projections that are adapted in any layer.
    pub fn targets(&self) -> BTreeSet<Projection> {
        self.tensors
            .keys()
            .map(|(_, projection)| *projection)
            .collect()
    }

    /// The number of trained parameters.
    pub fn n_parameters(&self) -> u64 {
        self.tensors
            .values()
            .map(|pair| (pair.a.len() + pair.b.len()) as u64)
            .sum()
    }

    /// Reads an adapter folder and checks that it fits the model.
    pub fn read(folder: &Path, model: &ModelConfig) -> Result<Self, AdapterError> {
        let (mut adapter, patterns) = read_config(&folder.join(CONFIG_NAME))?;
        let file = SafetensorsFile::open(&folder.join(WEIGHTS_NAME))?;
        let mismatch = |reason: String| AdapterError::Mismatch {
            path: folder.to_owned(),
            reason,
        };
        let mut halves: BTreeMap<(usize, Projection), [Option<Vec<f32>>; 2]> = BTreeMap::new();
        for name in file.names() {
            let Some((layer, projection, is_b)) = parse_name(name) else {
                return Err(mismatch(format!(
                    "the tensor {} is no LoRA factor of a projection",
                    shorten(name)
                )));
            };
            if layer >= model.n_layers {
                return Err(mismatch(format!(
                    "it adapts layer {layer}, and the model has {}",
                    model.n_layers
                )));
            }
            let [out, input] = model.projection_shape(projection);
            let rank = patterns.rank(layer, projection).unwrap_or(adapter.rank);
            let expected = if is_b { [out, rank] } else { [rank, input] };
            let got = file.shape(name).unwrap_or_default();
            if got != expected {
                return Err(mismatch(format!(
                    "the tensor {name} has shape {got:?}, expected {expected:?}"
                )));
            }
            let Some(view) = file.tensor(name).transpose()? else {
                continue;
            };
            let values = view.to_f32()?;
            if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                return Err(mismatch(format!(
                    "the tensor {name} holds {} at {at}",
                    values[at]
                )));
            }
            halves.entry((layer, projection)).or_default()[usize::from(is_b)] = Some(values);
        }
        for ((layer, projection), pair) in halves {
            let [Some(a), Some(b)] = pair else {
                return Err(mismatch(format!(
                    "layer {layer} has one factor of {projection} without the other"
                )));
            };
            adapter
                .tensors
                .insert((layer, projection), LoraPair { a, b });
        }
        if adapter.tensors.is_empty() {
            return Err(mismatch("it holds no tensors".into()));
        }
        patterns.make_uniform(&mut adapter, model);
        Ok(adapter)
    }

    /// Checks that every factor has the size that the model asks for.
    pub fn check(&self, model: &ModelConfig) -> Result<(), AdapterError> {
        for ((layer, projection), pair) in &self.tensors {
            let [out, input] = model.projection_shape(*projection);
            let fits = *layer < model.n_layers
                && pair.a.len() == self.rank * input
                && pair.b.len() == self.rank * out;
            if !fits {
                return Err(AdapterError::Mismatch {
                    path: PathBuf::from(self.base_model.as_deref().unwrap_or("in memory")),
                    reason: format!(
                        "its factors of {projection} in layer {layer} have {} and {} elements, expected {} and {} of a layer below {}",
                        pair.a.len(),
                        pair.b.len(),
                        self.rank * input,
                        self.rank * out,
                        model.n_layers
                    ),
                });
            }
        }
        Ok(())
    }

    /// Writes the folder `target` in float32, readable by PEFT. It appears when it is complete.
    ///
    /// # Errors
    /// [`AdapterError::Mismatch`] when [`Adapter::check`] fails.
    pub fn write(&self, target: &Path, model: &ModelConfig) -> Result<(), AdapterError> {
        self.check(model)?;
        let mut plan = Vec::new();
        let mut data = Vec::new();
        for ((layer, projection), pair) in &self.tensors {
            let [out, input] = model.projection_shape(*projection);
            for (is_b, shape, values) in [
                (false, [self.rank, input], &pair.a),
                (true, [out, self.rank], &pair.b),
            ] {
                plan.push(TensorPlan {
                    name: tensor_name(*layer, *projection, is_b),
                    shape: shape.to_vec(),
                });
                data.push(values);
            }
        }
        let folder = NewFolder::create(target)?;
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        write_file(
            &folder.path().join(WEIGHTS_NAME),
            &plan,
            SaveDtype::F32,
            &metadata,
            |number, sink| sink.write(data[number]),
        )?;
        let mut config = format!("{:#}", self.config_json());
        config.push('\n');
        folder.file(CONFIG_NAME, config.as_bytes())?;
        folder.finish()?;
        Ok(())
    }

    fn config_json(&self) -> Value {
        let modules: Vec<&str> = self.targets().into_iter().map(Projection::module).collect();
        // A whole alpha is written as PEFT writes it.
        let alpha = if self.alpha.fract() == 0.0 && self.alpha.abs() < 1e15 {
            json!(self.alpha as i64)
        } else {
            json!(self.alpha)
        };
        json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": self.base_model,
            "r": self.rank,
            "lora_alpha": alpha,
            "use_rslora": self.rank_stabilised,
            "target_modules": modules,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": false,
            "inference_mode": true,
            "init_lora_weights": true,
            "modules_to_save": null,
        })
    }
}

/// The settings, and those that patterns change for some modules.
fn read_config(path: &Path) -> Result<(Adapter, Patterns), AdapterError> {
    let bytes = read_small(path, MAX_CONFIG_BYTES)?;
    let malformed = |reason: String| AdapterError::Malformed {
        path: path.to_owned(),
        reason,
    };
    let map: Map<String, Value> =
        serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?;
    let unsupported = |key: &str, got: &Value| AdapterError::Unsupported {
        path: path.to_owned(),
        key: key.to_owned(),
        got: shorten(&got.to_string()),
    };
    let get = |key: &str| map.get(key).filter(|value| !value.is_null());
    match get("peft_type").and_then(Value::as_str) {
        Some("LORA") => {}
        _ => {
            return Err(unsupported(
                "peft_type",
                get("peft_type").unwrap_or(&Value::Null),
            ));
        }
    }
    if let Some(bias) = get("bias").filter(|bias| bias.as_str() != Some("none")) {
        return Err(unsupported("bias", bias));
    }
    for key in [
        "use_dora",
        "fan_in_fan_out",
        "lora_bias",
        "use_qalora",
        "use_bdlora",
    ] {
        if let Some(value) = get(key).filter(|value| value.as_bool() != Some(false)) {
            return Err(unsupported(key, value));
        }
    }
    for key in [
        "modules_to_save",
        "layer_replication",
        "trainable_token_indices",
        "target_parameters",
        "alora_invocation_tokens",
        "arrow_config",
        "kasa_config",
        "monteclora_config",
    ] {
        let is_empty = |value: &Value| match value {
            Value::Array(values) => values.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        if let Some(value) = get(key).filter(|value| !is_empty(value)) {
            return Err(unsupported(key, value));
        }
    }
    // These begin by changing the base's weights, to which the factors are relative then.
    if let Some(value) = get("init_lora_weights")
        && let Some(text) = value.as_str()
        && ["pissa", "olora", "corda", "loftq", "lora_ga"]
            .iter()
            .any(|kind| text.to_lowercase().starts_with(kind))
    {
        return Err(unsupported("init_lora_weights", value));
    }
    let rank = get("r")
        .and_then(Value::as_u64)
        .filter(|rank| (1..=MAX_RANK).contains(rank))
        .ok_or_else(|| malformed(format!("r is no rank from 1 to {MAX_RANK}")))?;
    let alpha = match get("lora_alpha") {
        None => 8.0,
        Some(value) => value
            .as_f64()
            .filter(|alpha| alpha.is_finite())
            .ok_or_else(|| malformed("lora_alpha is no number".into()))?,
    };
    let rank_stabilised = match get("use_rslora") {
        None => false,
        Some(value) => value
            .as_bool()
            .ok_or_else(|| malformed("use_rslora is neither true nor false".into()))?,
    };
    let mut patterns = Patterns::default();
    for key in ["rank_pattern", "alpha_pattern"] {
        let Some(value) = get(key) else { continue };
        let map = value
            .as_object()
            .ok_or_else(|| malformed(format!("{key} is no object")))?;
        for (module, value) in map {
            // A key is a regular expression to PEFT; one that is a name says the same here.
            if !Patterns::is_name(module) {
                return Err(unsupported(key, &json!({ module: value })));
            }
            let refuse = || malformed(format!("{key} of {} is {value}", shorten(module)));
            if key == "rank_pattern" {
                let rank = value.as_u64().filter(|rank| (1..=MAX_RANK).contains(rank));
                let rank = rank.ok_or_else(refuse)? as usize;
                patterns.ranks.push((module.clone(), rank));
            } else {
                let alpha = value.as_f64().filter(|alpha| alpha.is_finite());
                patterns
                    .alphas
                    .push((module.clone(), alpha.ok_or_else(refuse)?));
            }
        }
    }
    let adapter = Adapter {
        rank: rank as usize,
        alpha,
        rank_stabilised,
        base_model: get("base_model_name_or_path")
            .and_then(Value::as_str)
            .map(str::to_owned),
        tensors: BTreeMap::new(),
    };
    if !patterns.is_empty() && adapter.alpha == 0.0 {
        return Err(unsupported("lora_alpha", &json!(0)));
    }
    Ok((adapter, patterns))
}

fn tensor_name(layer: usize, projection: Projection, is_b: bool) -> String {
    let factor = if is_b { "lora_B" } else { "lora_A" };
    format!(
        "base_model.model.model.layers.{layer}.{}.{factor}.weight",
        projection.path()
    )
}

fn parse_name(name: &str) -> Option<(usize, Projection, bool)> {
    let (layer, rest) = name
        .strip_prefix("base_model.model.model.layers.")?
        .split_once('.')?;
    let (path, factor) = rest.strip_suffix(".weight")?.rsplit_once('.')?;
    let is_b = match factor {
        "lora_A" => false,
        "lora_B" => true,
        _ => return None,
    };
    Some((layer.parse().ok()?, Projection::from_path(path)?, is_b))
}
