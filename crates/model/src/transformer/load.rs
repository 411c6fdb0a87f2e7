//! Weights on their way from a checkpoint, or from a seed, to a device.
//!
//! Tensors pass one after another, so the host holds no more than the largest group that is stacked
//! (gate and up), however large the model is.

use std::borrow::Cow;

use rayon::prelude::*;
use temper_checkpoint::{
    Checkpoint, Encoding, ModelConfig, Projection, TensorName, TensorView,
    rope::inverse_frequencies,
};

use super::{Layer, Model, ModelError, Result};
use crate::{
    device::{Device, WeightFormat},
    random::mix,
    tensor::{DType, Tensor},
};

/// Standard deviation of random weights: what the families' own initialisation uses.
const RANDOM_DEVIATION: f32 = 0.02;

/// How weights are laid onto a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Form of the layers' matrices. With [`WeightFormat::Nf4`] the embedding and the head stay
    /// dense, as in QLoRA; with any other they take the same form.
    pub format: WeightFormat,
    /// Positions that the rotary table covers.
    pub max_positions: usize,
}

impl<D: Device> Model<D> {
    /// Takes a model from a checkpoint.
    ///
    /// # Errors
    /// When a tensor cannot be read, or the weights do not fit onto the device.
    pub fn load(device: D, checkpoint: &Checkpoint, options: &LoadOptions) -> Result<Self> {
        Self::from_tensors(device, checkpoint.config(), options, |name| {
            Ok(checkpoint.get(name)?)
        })
    }

    /// Takes a model from `tensor`, which gives each tensor of `config` by name.
    ///
    /// # Errors
    /// When a tensor is missing, has another shape than the configuration says, or does not fit
    /// onto the device.
    pub fn from_tensors<'a>(
        device: D,
        config: &ModelConfig,
        options: &LoadOptions,
        mut tensor: impl FnMut(TensorName) -> Result<TensorView<'a>>,
    ) -> Result<Self> {
        let mut checked = |name: TensorName| -> Result<TensorView<'a>> {
            let view = tensor(name)?;
            check_shape(config, name, &view)?;
            Ok(view)
        };
        let outer = match options.format {
            WeightFormat::Nf4 { .. } => WeightFormat::Dense,
            format => format,
        };
        let embed = device.matrix(&[checked(TensorName::Embedding)?], outer)?;
        let mut layers = Vec::with_capacity(config.n_layers);
        for layer in 0..config.n_layers {
            let mut matrix = |projections: &[Projection]| -> Result<D::Matrix> {
                let parts = projections
                    .iter()
                    .map(|&projection| checked(TensorName::Weight(layer, projection)))
                    .collect::<Result<Vec<_>>>()?;
                Ok(device.matrix(&parts, options.format)?)
            };
            let qkv = matrix(&QKV)?;
            let o = matrix(&[Projection::O])?;
            let gate_up = matrix(&[Projection::Gate, Projection::Up])?;
            let down = matrix(&[Projection::Down])?;
            let mut vector = |names: &[TensorName]| -> Result<Tensor<D::Storage>> {
                let mut values = Vec::new();
                for &name in names {
                    values.extend(checked(name)?.to_f32()?);
                }
                upload(&device, &values)
            };
            layers.push(Layer {
                input_norm: vector(&[TensorName::AttentionNorm(layer)])?,
                qkv,
                qkv_bias: config
                    .qkv_bias
                    .then(|| vector(&QKV.map(|projection| TensorName::Bias(layer, projection))))
                    .transpose()?,
                q_norm: config
                    .qk_norm
                    .then(|| vector(&[TensorName::QNorm(layer)]))
                    .transpose()?,
                k_norm: config
                    .qk_norm
                    .then(|| vector(&[TensorName::KNorm(layer)]))
                    .transpose()?,
                o,
                post_norm: vector(&[TensorName::MlpNorm(layer)])?,
                gate_up,
                down,
            });
        }
        let norm = checked(TensorName::FinalNorm)?.to_f32()?;
        let head = (!config.tie_word_embeddings)
            .then(|| Ok::<_, ModelError>(device.matrix(&[checked(TensorName::Head)?], outer)?))
            .transpose()?;
        Ok(Model {
            norm: upload(&device, &norm)?,
            rope_table: rope_table(&device, config, options.max_positions)?,
            config: config.clone(),
            embed,
            layers,
            head,
            device,
        })
    }

    /// A model with random weights, the same for the same `seed` on every device: matrices and
    /// biases uniform with standard deviation 0.02, norms uniform in `[0.9, 1.1)`.
    ///
    /// Made for measurements and tests; a real initialisation would scale some layers by depth.
    pub fn random(
        device: D,
        config: &ModelConfig,
        seed: u64,
        options: &LoadOptions,
    ) -> Result<Self> {
        Self::from_tensors(device, config, options, |name| {
            Ok(random_tensor(config, name, seed))
        })
    }
}

/// The projections that share the query-key-value matrix, in its order of rows.
pub(super) const QKV: [Projection; 3] = [Projection::Q, Projection::K, Projection::V];

/// A random bfloat16 tensor that depends on the seed and the name only.
pub(super) fn random_tensor(
    config: &ModelConfig,
    name: TensorName,
    seed: u64,
) -> TensorView<'static> {
    let shape = config.shape_of(name).unwrap_or_default();
    let text = name.to_string();
    let key = text
        .bytes()
        .fold(mix(seed), |state, byte| mix(state ^ u64::from(byte)));
    let (center, half_width) = match name {
        TensorName::Embedding | TensorName::Head => (0.0, RANDOM_DEVIATION * 3f32.sqrt()),
        TensorName::Weight(..) | TensorName::Bias(..) => (0.0, RANDOM_DEVIATION * 3f32.sqrt()),
        _ => (1.0, 0.1),
    };
    let len: usize = shape.iter().product();
    let mut bytes = vec![0u8; 2 * len];
    const CHUNK: usize = 1 << 16;
    bytes
        .par_chunks_mut(2 * CHUNK)
        .enumerate()
        .for_each(|(chunk, bytes)| {
            let first = (chunk * CHUNK / 4) as u64;
            for (word, four) in bytes.chunks_mut(8).enumerate() {
                let bits = mix(key ^ (first + word as u64)).to_le_bytes();
                for (to, from) in four.chunks_exact_mut(2).zip(bits.chunks_exact(2)) {
                    let step = f32::from(i16::from_le_bytes([from[0], from[1]])) + 0.5;
                    let value = center + half_width * step * (1.0 / 32768.0);
                    to.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes());
                }
            }
        });
    TensorView {
        name: text,
        shape,
        encoding: Encoding::Bf16,
        bytes: Cow::Owned(bytes),
    }
}

/// The rotary table of a model, f32 `[max_positions, head_dim]`: cosines of the pairs, then sines.
///
/// The angle is rounded to f32 before its cosine is taken, as transformers does; the cosine itself
/// is the f64 one, rounded.
pub(super) fn rope_table<D: Device>(
    device: &D,
    config: &ModelConfig,
    max_positions: usize,
) -> Result<Tensor<D::Storage>> {
    let rope = inverse_frequencies(&config.rope, config.head_dim);
    let half = config.head_dim / 2;
    let mut table = vec![0f32; max_positions * config.head_dim];
    table
        .par_chunks_mut(config.head_dim)
        .enumerate()
        .for_each(|(position, row)| {
            let (cosines, sines) = row.split_at_mut(half);
            for (j, frequency) in rope.inv_freq.iter().enumerate() {
                let angle = f64::from(position as f32 * frequency);
                cosines[j] = angle.cos() as f32 * rope.attention_factor;
                sines[j] = angle.sin() as f32 * rope.attention_factor;
            }
        });
    let tensor = device.zeros(DType::F32, table.len())?;
    device.upload_f32(&table, &tensor)?;
    Ok(tensor)
}

/// Checks that a tensor is what the configuration says.
pub(super) fn check_shape(
    config: &ModelConfig,
    name: TensorName,
    view: &TensorView<'_>,
) -> Result<()> {
    let expected = config.shape_of(name).unwrap_or_default();
    if view.shape != expected {
        return Err(ModelError::Shape {
            name,
            expected,
            got: view.shape.clone(),
        });
    }
    Ok(())
}

/// A tensor of the activation type that holds `values`.
fn upload<D: Device>(device: &D, values: &[f32]) -> Result<Tensor<D::Storage>> {
    let tensor = device.zeros(D::ACTIVATION, values.len())?;
    device.upload_f32(values, &tensor)?;
    Ok(tensor)
}
