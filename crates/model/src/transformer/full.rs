//! Full fine-tuning: every weight of a model is trained.
//!
//! The model's matrices lie over the values of a [`Parameters`] set, so an update of the set is an
//! update of the model. Stacked matrices are one array of the set, with a named part for each
//! tensor of a checkpoint. Norms and biases do not decay.

use temper_checkpoint::{Checkpoint, ModelConfig, TensorName, TensorView};

use super::{
    Group, Layer, Model, Parameter, Parameters, Result,
    load::{QKV, check_shape, random_tensor, rope_table},
};
use crate::{
    device::Device,
    tensor::{DType, Tensor},
};

/// Elements decoded at a time on the way to the device.
const DECODE_ELEMENTS: usize = 1 << 20;

/// The weights of a model that is trained whole, with their gradients.
#[derive(Debug)]
pub struct FullTuning<D: Device> {
    /// All weights: masters, gradients, and the values the model computes with.
    pub parameters: Parameters<D::Storage>,
    /// Gradient of the embedding, and of a head tied to it, f32 `[vocab_size, hidden]`.
    pub d_embed: Tensor<D::Storage>,
    /// Gradients of the layers.
    pub layers: Vec<LayerGradients<D::Storage>>,
    /// Gradient of the final norm, f32 `[hidden]`.
    pub d_norm: Tensor<D::Storage>,
    /// Gradient of a head of its own, f32 `[vocab_size, hidden]`.
    pub d_head: Option<Tensor<D::Storage>>,
}

/// Gradients of one layer's weights, all f32, named and shaped as in [`Layer`].
#[derive(Debug)]
pub struct LayerGradients<S> {
    /// Of the norm before attention.
    pub input_norm: Tensor<S>,
    /// Of the query, key and value rows.
    pub qkv: Tensor<S>,
    /// Of their biases.
    pub qkv_bias: Option<Tensor<S>>,
    /// Of the query heads' norm.
    pub q_norm: Option<Tensor<S>>,
    /// Of the key heads' norm.
    pub k_norm: Option<Tensor<S>>,
    /// Of the output of attention.
    pub o: Tensor<S>,
    /// Of the norm before the feed-forward block.
    pub post_norm: Tensor<S>,
    /// Of the gate and up rows.
    pub gate_up: Tensor<S>,
    /// Of the down projection.
    pub down: Tensor<S>,
}

impl<S> LayerGradients<S> {
    /// The gradient of a group's matrix.
    pub fn group(&self, group: Group) -> &Tensor<S> {
        match group {
            Group::Qkv => &self.qkv,
            Group::O => &self.o,
            Group::GateUp => &self.gate_up,
            Group::Down => &self.down,
        }
    }
}

impl<D: Device> FullTuning<D> {
    /// The arrays of a model, in the order in which the set holds them.
    pub fn parameters_of(config: &ModelConfig) -> Vec<Parameter> {
        let part = |name: TensorName| {
            let shape = config.shape_of(name).unwrap_or_default();
            (name.to_string(), shape)
        };
        arrays(config)
            .into_iter()
            .map(|names| {
                let decays = !matches!(
                    names[0],
                    TensorName::AttentionNorm(_)
                        | TensorName::MlpNorm(_)
                        | TensorName::QNorm(_)
                        | TensorName::KNorm(_)
                        | TensorName::FinalNorm
                        | TensorName::Bias(..)
                );
                Parameter::new(names.into_iter().map(part).collect(), decays)
            })
            .collect()
    }

    /// A checkpoint's weights, to be trained.
    ///
    /// # Errors
    /// When a tensor cannot be read, or the weights do not fit onto the device.
    pub fn load(
        device: D,
        checkpoint: &Checkpoint,
        max_positions: usize,
    ) -> Result<(Model<D>, Self)> {
        Self::from_tensors(device, checkpoint.config(), max_positions, |name| {
            Ok(checkpoint.get(name)?)
        })
    }

    /// Random weights, to be trained: those of [`Model::random`].
    pub fn random(
        device: D,
        config: &ModelConfig,
        seed: u64,
        max_positions: usize,
    ) -> Result<(Model<D>, Self)> {
        Self::from_tensors(device, config, max_positions, |name| {
            Ok(random_tensor(config, name, seed))
        })
    }

    /// The weights that `tensor` gives by name, to be trained.
    pub fn from_tensors<'a>(
        device: D,
        config: &ModelConfig,
        max_positions: usize,
        mut tensor: impl FnMut(TensorName) -> Result<TensorView<'a>>,
    ) -> Result<(Model<D>, Self)> {
        let parameters = Parameters::new(&device, Self::parameters_of(config))?;
        for (index, names) in arrays(config).into_iter().enumerate() {
            let mut start = parameters.entries()[index].range().start;
            for name in names {
                let view = tensor(name)?;
                check_shape(config, name, &view)?;
                start = fill(&device, &parameters, &view, start)?;
            }
        }
        let mut arrays = Arrays {
            device: &device,
            parameters: &parameters,
            next: 0,
        };
        let hidden = config.hidden_size;
        let (embed, d_embed) = arrays.matrix(config.vocab_size, hidden)?;
        let mut layers = Vec::with_capacity(config.n_layers);
        let mut gradients = Vec::with_capacity(config.n_layers);
        for _ in 0..config.n_layers {
            let (input_norm, d_input_norm) = arrays.vector();
            let (qkv, d_qkv) = arrays.matrix(config.q_size() + 2 * config.kv_size(), hidden)?;
            let (qkv_bias, d_qkv_bias) = config.qkv_bias.then(|| arrays.vector()).unzip();
            let (q_norm, d_q_norm) = config.qk_norm.then(|| arrays.vector()).unzip();
            let (k_norm, d_k_norm) = config.qk_norm.then(|| arrays.vector()).unzip();
            let (o, d_o) = arrays.matrix(hidden, config.q_size())?;
            let (post_norm, d_post_norm) = arrays.vector();
            let (gate_up, d_gate_up) = arrays.matrix(2 * config.intermediate_size, hidden)?;
            let (down, d_down) = arrays.matrix(hidden, config.intermediate_size)?;
            layers.push(Layer {
                input_norm,
                qkv,
                qkv_bias,
                q_norm,
                k_norm,
                o,
                post_norm,
                gate_up,
                down,
            });
            gradients.push(LayerGradients {
                input_norm: d_input_norm,
                qkv: d_qkv,
                qkv_bias: d_qkv_bias,
                q_norm: d_q_norm,
                k_norm: d_k_norm,
                o: d_o,
                post_norm: d_post_norm,
                gate_up: d_gate_up,
                down: d_down,
            });
        }
        let (norm, d_norm) = arrays.vector();
        let (head, d_head) = if config.tie_word_embeddings {
            (None, None)
        } else {
            let (head, d_head) = arrays.matrix(config.vocab_size, hidden)?;
            (Some(head), Some(d_head))
        };
        let model = Model {
            rope_table: rope_table(&device, config, max_positions)?,
            config: config.clone(),
            embed,
            layers,
            norm,
            head,
            device,
        };
        let tuning = FullTuning {
            parameters,
            d_embed,
            layers: gradients,
            d_norm,
            d_head,
        };
        Ok((model, tuning))
    }
}

/// The tensors of each array, in the order of the set.
fn arrays(config: &ModelConfig) -> Vec<Vec<TensorName>> {
    let mut arrays = vec![vec![TensorName::Embedding]];
    for layer in 0..config.n_layers {
        let weights = |group: Group| {
            let weight = |&projection| TensorName::Weight(layer, projection);
            group.projections().iter().map(weight).collect::<Vec<_>>()
        };
        arrays.push(vec![TensorName::AttentionNorm(layer)]);
        arrays.push(weights(Group::Qkv));
        if config.qkv_bias {
            arrays.push(QKV.map(|it| TensorName::Bias(layer, it)).to_vec());
        }
        if config.qk_norm {
            arrays.push(vec![TensorName::QNorm(layer)]);
            arrays.push(vec![TensorName::KNorm(layer)]);
        }
        arrays.push(weights(Group::O));
        arrays.push(vec![TensorName::MlpNorm(layer)]);
        arrays.push(weights(Group::GateUp));
        arrays.push(weights(Group::Down));
    }
    arrays.push(vec![TensorName::FinalNorm]);
    if !config.tie_word_embeddings {
        arrays.push(vec![TensorName::Head]);
    }
    arrays
}

/// Writes a tensor to masters and values from element `start` on; returns where it ends.
fn fill<D: Device>(
    device: &D,
    parameters: &Parameters<D::Storage>,
    view: &TensorView<'_>,
    start: usize,
) -> Result<usize> {
    let (n_rows, columns) = (view.n_rows(), view.columns());
    let step = (DECODE_ELEMENTS / columns.max(1)).max(1);
    let mut decoded = Vec::new();
    for row in (0..n_rows).step_by(step) {
        let rows = row..n_rows.min(row + step);
        decoded.resize(rows.len() * columns, 0.0);
        view.to_f32_into(rows.clone(), &mut decoded)?;
        let range = start + rows.start * columns..start + rows.end * columns;
        device.upload_f32(&decoded, &parameters.masters().slice(range.clone()))?;
        if D::ACTIVATION != DType::F32 {
            device.upload_f32(&decoded, &parameters.values().slice(range))?;
        }
    }
    Ok(start + n_rows * columns)
}

/// The arrays of a set, handed out in order, with their gradients.
struct Arrays<'a, D: Device> {
    device: &'a D,
    parameters: &'a Parameters<D::Storage>,
    next: usize,
}

impl<D: Device> Arrays<'_, D> {
    fn vector(&mut self) -> (Tensor<D::Storage>, Tensor<D::Storage>) {
        let index = self.next;
        self.next += 1;
        (
            self.parameters.value(index),
            self.parameters.gradient(index),
        )
    }

    fn matrix(&mut self, rows: usize, cols: usize) -> Result<(D::Matrix, Tensor<D::Storage>)> {
        let (value, gradient) = self.vector();
        Ok((self.device.matrix_over(&value, rows, cols)?, gradient))
    }
}
