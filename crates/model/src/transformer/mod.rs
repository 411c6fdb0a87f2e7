//! The transformer over any device: Llama, Qwen2 and Qwen3 decoders.
//!
//! [`Model`] holds the weights as a device multiplies them, with the query, key and value rows of a
//! layer stacked into one matrix, and gate and up rows into another. What runs it is elsewhere: the
//! training pass here, the sampler in its own module.

mod adapter;
mod batch;
mod buffers;
mod full;
mod head;
mod layer;
mod load;
pub mod paged;
mod parameters;
mod plan;
mod train;
mod value;

pub use adapter::{Adapter, AdapterConfig, AdapterPart, Group, GroupAdapter, LayerAdapter, Side};
pub use batch::PackedBatch;
pub use full::{FullTuning, LayerGradients};
pub use load::LoadOptions;
pub use parameters::{PARAMETER_ALIGNMENT, Parameter, Parameters, parameter_bytes};
pub use plan::{Keep, MemoryPlan, PlanRequest};
pub use train::{Chunk, Policy, ScoreOptions, Scored, Scores, TrainingPass};
pub use value::ValueHead;

use temper_checkpoint::{DecodeError, ModelConfig, TensorName};

use crate::{
    device::{Device, DeviceError, Heads},
    tensor::{Tensor, View},
};

/// A model's weights on a device.
#[derive(Debug)]
pub struct Model<D: Device> {
    /// The device that holds them.
    pub device: D,
    /// Architecture and sizes.
    pub config: ModelConfig,
    /// Token embedding, `[vocab_size, hidden]`.
    pub embed: D::Matrix,
    /// Decoder layers, first to last.
    pub layers: Vec<Layer<D>>,
    /// Weight of the norm after the last layer, `[hidden]`, of the activation type.
    pub norm: Tensor<D::Storage>,
    /// Output head, `[vocab_size, hidden]`; `None` where the embedding is the head.
    pub head: Option<D::Matrix>,
    /// Rotary table, f32 `[n_positions, head_dim]`: cosines of the pairs, then sines, the attention
    /// factor multiplied in.
    pub rope_table: Tensor<D::Storage>,
}

/// The weights of one decoder layer. Norms and biases are of the activation type.
#[derive(Debug)]
pub struct Layer<D: Device> {
    /// Norm before attention, `[hidden]`.
    pub input_norm: Tensor<D::Storage>,
    /// Query, key and value rows, `[q_size + 2 * kv_size, hidden]`.
    pub qkv: D::Matrix,
    /// Their biases (Qwen2), `[q_size + 2 * kv_size]`.
    pub qkv_bias: Option<Tensor<D::Storage>>,
    /// Norm of each query head (Qwen3), `[head_dim]`.
    pub q_norm: Option<Tensor<D::Storage>>,
    /// Norm of each key head (Qwen3), `[head_dim]`.
    pub k_norm: Option<Tensor<D::Storage>>,
    /// Output of attention, `[hidden, q_size]`.
    pub o: D::Matrix,
    /// Norm before the feed-forward block, `[hidden]`.
    pub post_norm: Tensor<D::Storage>,
    /// Gate rows, then up rows, `[2 * intermediate, hidden]`.
    pub gate_up: D::Matrix,
    /// Down projection, `[hidden, intermediate]`.
    pub down: D::Matrix,
}

/// A model could not be made or run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The device could not do its part.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A tensor could not be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A tensor has another shape than the configuration asks for.
    #[error("load {name}: shape {got:?} where the configuration asks for {expected:?}")]
    Shape {
        /// The tensor.
        name: TensorName,
        /// Shape asked for.
        expected: Vec<usize>,
        /// Shape found.
        got: Vec<usize>,
    },
    /// A tensor could not be read.
    #[error(transparent)]
    Checkpoint(#[from] temper_checkpoint::CheckpointError),
    /// An adapter's files do not fit the model.
    #[error(transparent)]
    Adapter(#[from] temper_checkpoint::adapter::AdapterError),
    /// A batch, an adapter or a setting does not fit the model.
    #[error("{operation}: {reason}")]
    Input {
        /// What was asked for.
        operation: &'static str,
        /// What does not fit, with values.
        reason: String,
    },
}

/// A result of the model.
pub type Result<T> = std::result::Result<T, ModelError>;

impl<D: Device> Model<D> {
    /// Heads of every attention layer.
    pub fn heads(&self) -> Heads {
        Heads {
            n_query: self.config.n_heads,
            n_kv: self.config.n_kv_heads,
            dim: self.config.head_dim,
        }
    }

    /// What attention scores are multiplied by: one over the root of the head's width.
    pub fn attention_scale(&self) -> f32 {
        1.0 / (self.config.head_dim as f32).sqrt()
    }

    /// The matrix that makes logits, `[vocab_size, hidden]`.
    pub fn head_matrix(&self) -> &D::Matrix {
        self.head.as_ref().unwrap_or(&self.embed)
    }

    /// Positions that the rotary table covers.
    pub fn n_positions(&self) -> usize {
        self.rope_table.len() / self.config.head_dim
    }

    /// Bytes of all weights and the rotary table.
    pub fn weight_bytes(&self) -> usize {
        let matrices = |layer: &Layer<D>| {
            [&layer.qkv, &layer.o, &layer.gate_up, &layer.down]
                .into_iter()
                .map(|matrix| self.device.matrix_bytes(matrix))
                .sum::<usize>()
        };
        let vectors = |layer: &Layer<D>| {
            [
                Some(&layer.input_norm),
                Some(&layer.post_norm),
                layer.qkv_bias.as_ref(),
                layer.q_norm.as_ref(),
                layer.k_norm.as_ref(),
            ]
            .into_iter()
            .flatten()
            .map(Tensor::n_bytes)
            .sum::<usize>()
        };
        let layers: usize = self
            .layers
            .iter()
            .map(|layer| matrices(layer) + vectors(layer))
            .sum();
        let head = self
            .head
            .as_ref()
            .map_or(0, |head| self.device.matrix_bytes(head));
        self.device.matrix_bytes(&self.embed)
            + layers
            + head
            + self.norm.n_bytes()
            + self.rope_table.n_bytes()
    }
}

/// The query, key and value columns of a fused `[n, q_size + 2 * kv_size]` matrix.
pub fn split_qkv<S>(qkv: &View<S>, heads: Heads) -> [View<S>; 3] {
    let q = heads.n_query * heads.dim;
    let kv = heads.n_kv * heads.dim;
    [
        qkv.columns(0..q),
        qkv.columns(q..q + kv),
        qkv.columns(q + kv..q + 2 * kv),
    ]
}

/// The gate and up columns of a fused `[n, 2 * intermediate]` matrix.
pub fn split_gate_up<S>(gate_up: &View<S>) -> [View<S>; 2] {
    let half = gate_up.cols() / 2;
    [gate_up.columns(0..half), gate_up.columns(half..2 * half)]
}
