//! The buffers of a training pass, as slots in memory that a plan lays out once.
//!
//! The same structures hold [`Slot`]s while the plan is made and tensors once it is carried out, so
//! what is counted is what is allocated.

use temper_checkpoint::ModelConfig;

use crate::tensor::{DType, Tensor};

/// Bytes at multiples of which buffers start: what vector loads and copies want.
const ALIGNMENT: usize = 256;

/// A place within a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    offset: usize,
    len: usize,
    dtype: DType,
}

impl Slot {
    /// The slot's elements in the memory of its region.
    pub fn in_region<S>(self, region: &Tensor<S>) -> Tensor<S> {
        let offset = region.byte_offset() + self.offset;
        Tensor::new(region.storage().clone(), offset, self.len, self.dtype)
    }
}

/// A piece of memory that is handed out from its start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Region {
    n_bytes: usize,
}

impl Region {
    /// A slot for `len` elements behind all earlier ones.
    pub fn place(&mut self, dtype: DType, len: usize) -> Slot {
        let slot = Slot {
            offset: self.n_bytes,
            len,
            dtype,
        };
        self.n_bytes = (self.n_bytes + len * dtype.size()).next_multiple_of(ALIGNMENT);
        slot
    }

    /// Bytes handed out.
    pub fn n_bytes(self) -> usize {
        self.n_bytes
    }

    /// A region that covers both; their slots share memory.
    pub fn or(self, other: Region) -> Region {
        Region {
            n_bytes: self.n_bytes.max(other.n_bytes),
        }
    }
}

/// What a batch brings and what comes out for its rows. Supervised rows lie at the front.
#[derive(Debug)]
pub struct RowBuffers<T> {
    /// Token ids, u32 `[n]`.
    pub ids: T,
    /// Positions, u32 `[n]`.
    pub positions: T,
    /// Starts of the sequences and the end of the last, u32 `[n + 1]`.
    pub starts: T,
    /// Numbers of the supervised rows, u32 `[n]`.
    pub rows: T,
    /// Their next tokens, u32 `[n]`.
    pub targets: T,
    /// Log-probabilities of the targets, f32 `[n]`.
    pub logprobs: T,
    /// Log-sum-exps of the logits, f32 `[n]`.
    pub lse: T,
    /// Entropies, f32 `[n]`.
    pub entropies: T,
    /// Values, f32 `[n]`.
    pub values: T,
    /// Gradients at the log-probabilities, f32 `[n]`.
    pub d_logprobs: T,
    /// Gradients at the values, f32 `[n]`.
    pub d_values: T,
}

impl RowBuffers<Slot> {
    /// Buffers for `n` tokens.
    pub fn layout(n: usize, region: &mut Region) -> Self {
        RowBuffers {
            ids: region.place(DType::U32, n),
            positions: region.place(DType::U32, n),
            starts: region.place(DType::U32, n + 1),
            rows: region.place(DType::U32, n),
            targets: region.place(DType::U32, n),
            logprobs: region.place(DType::F32, n),
            lse: region.place(DType::F32, n),
            entropies: region.place(DType::F32, n),
            values: region.place(DType::F32, n),
            d_logprobs: region.place(DType::F32, n),
            d_values: region.place(DType::F32, n),
        }
    }

    /// The buffers in memory.
    pub fn in_region<S>(&self, region: &Tensor<S>) -> RowBuffers<Tensor<S>> {
        let at = |slot: &Slot| slot.in_region(region);
        RowBuffers {
            ids: at(&self.ids),
            positions: at(&self.positions),
            starts: at(&self.starts),
            rows: at(&self.rows),
            targets: at(&self.targets),
            logprobs: at(&self.logprobs),
            lse: at(&self.lse),
            entropies: at(&self.entropies),
            values: at(&self.values),
            d_logprobs: at(&self.d_logprobs),
            d_values: at(&self.d_values),
        }
    }
}

/// What the backward pass of one layer needs from its forward pass, beside the layer's input.
/// Norms and the product of gate and up are cheap to make again and are not among it.
#[derive(Debug)]
pub struct LayerBuffers<T> {
    /// Queries, keys and values, `[n, q_size + 2 * kv_size]`: rotated in place, or, where heads
    /// have norms, as the product left them.
    pub qkv: T,
    /// Queries and keys after norm and rotation, `[n, q_size + kv_size]`, where heads have norms.
    pub rotated: Option<T>,
    /// Output of attention, `[n, q_size]`.
    pub attention: T,
    /// Log-sum-exps of the scores, f32 `[n_heads, n]`.
    pub lse: T,
    /// The residual stream between attention and feed-forward block, `[n, hidden]`.
    pub middle: T,
    /// Gate and up, `[n, 2 * intermediate]`.
    pub gate_up: T,
    /// `x A^T` of each group's adapters, `[n, sum of ranks]`.
    pub x_a: [Option<T>; 4],
}

impl LayerBuffers<Slot> {
    /// Buffers for `n` tokens of activations, with these sums of ranks in the groups.
    pub fn layout(
        config: &ModelConfig,
        n: usize,
        ranks: [usize; 4],
        activation: DType,
        region: &mut Region,
    ) -> Self {
        let (q, kv) = (config.q_size(), config.kv_size());
        LayerBuffers {
            qkv: region.place(activation, n * (q + 2 * kv)),
            rotated: config
                .qk_norm
                .then(|| region.place(activation, n * (q + kv))),
            attention: region.place(activation, n * q),
            lse: region.place(DType::F32, n * config.n_heads),
            middle: region.place(activation, n * config.hidden_size),
            gate_up: region.place(activation, n * 2 * config.intermediate_size),
            x_a: ranks.map(|rank| (rank > 0).then(|| region.place(activation, n * rank))),
        }
    }

    /// The buffers in memory.
    pub fn in_region<S>(&self, region: &Tensor<S>) -> LayerBuffers<Tensor<S>> {
        let at = |slot: &Slot| slot.in_region(region);
        LayerBuffers {
            qkv: at(&self.qkv),
            rotated: self.rotated.as_ref().map(at),
            attention: at(&self.attention),
            lse: at(&self.lse),
            middle: at(&self.middle),
            gate_up: at(&self.gate_up),
            x_a: self.x_a.map(|slot| slot.as_ref().map(at)),
        }
    }
}

/// Buffers that live within one part of the pass; parts that never run at once share memory.
#[derive(Debug)]
pub struct WorkBuffers<T> {
    /// Output of a norm, `[n, hidden]`.
    pub normed: T,
    /// Product of gate and up, `[n, intermediate]`.
    pub product: T,
    /// Buffers of the layers' backward pass.
    pub backward: Option<BackwardBuffers<T>>,
    /// Buffers of the head.
    pub head: HeadBuffers<T>,
}

/// Buffers of the layers' backward pass.
#[derive(Debug)]
pub struct BackwardBuffers<T> {
    /// Gradient at the output of a norm, `[n, hidden]`.
    pub d_normed: T,
    /// Gradient at the product of gate and up, `[n, intermediate]`.
    pub d_product: T,
    /// Gradient at the output of attention, `[n, q_size]`.
    pub d_attention: T,
    /// Gradient at queries, keys and values, `[n, q_size + 2 * kv_size]`.
    pub d_qkv: T,
    /// Gradient at `x A^T`, `[n, largest sum of ranks]`.
    pub d_x_a: T,
}

/// Buffers of the head, for one chunk of supervised rows.
#[derive(Debug)]
pub struct HeadBuffers<T> {
    /// Rows of the residual stream, `[rows, hidden]`.
    pub hidden: T,
    /// The same after the final norm.
    pub normed: T,
    /// Logits, f32 `[rows, vocab_size]`.
    pub logits: T,
    /// Gradient at the logits, of the activation type; the logits themselves where that is f32.
    pub d_logits: Option<T>,
    /// Gradient at the rows of the residual stream.
    pub d_hidden: Option<T>,
}

impl WorkBuffers<Slot> {
    /// Buffers for `n` tokens and `head_rows` rows of logits; adds to `region` what they take.
    pub fn layout(
        config: &ModelConfig,
        n: usize,
        head_rows: usize,
        ranks: [usize; 4],
        backward: bool,
        activation: DType,
        region: &mut Region,
    ) -> Self {
        let (q, kv) = (config.q_size(), config.kv_size());
        let hidden = config.hidden_size;
        let mut head = *region;
        let head_buffers = HeadBuffers {
            hidden: head.place(activation, head_rows * hidden),
            normed: head.place(activation, head_rows * hidden),
            logits: head.place(DType::F32, head_rows * config.vocab_size),
            d_logits: (backward && activation != DType::F32)
                .then(|| head.place(activation, head_rows * config.vocab_size)),
            d_hidden: backward.then(|| head.place(activation, head_rows * hidden)),
        };
        let mut layer = *region;
        let normed = layer.place(activation, n * hidden);
        let largest_rank = ranks.into_iter().max().unwrap_or(0);
        let shared = backward.then(|| {
            (
                layer.place(activation, n * hidden),
                layer.place(activation, n * largest_rank),
            )
        });
        let (mut feed_forward, mut attention) = (layer, layer);
        let product = feed_forward.place(activation, n * config.intermediate_size);
        let backward = shared.map(|(d_normed, d_x_a)| BackwardBuffers {
            d_normed,
            d_x_a,
            d_product: feed_forward.place(activation, n * config.intermediate_size),
            d_attention: attention.place(activation, n * q),
            d_qkv: attention.place(activation, n * (q + 2 * kv)),
        });
        *region = head.or(feed_forward).or(attention);
        WorkBuffers {
            normed,
            product,
            backward,
            head: head_buffers,
        }
    }

    /// The buffers in memory.
    pub fn in_region<S>(&self, region: &Tensor<S>) -> WorkBuffers<Tensor<S>> {
        let at = |slot: &Slot| slot.in_region(region);
        WorkBuffers {
            normed: at(&self.normed),
            product: at(&self.product),
            backward: self.backward.as_ref().map(|buffers| BackwardBuffers {
                d_normed: at(&buffers.d_normed),
                d_product: at(&buffers.d_product),
                d_attention: at(&buffers.d_attention),
                d_qkv: at(&buffers.d_qkv),
                d_x_a: at(&buffers.d_x_a),
            }),
            head: HeadBuffers {
                hidden: at(&self.head.hidden),
                normed: at(&self.head.normed),
                logits: at(&self.head.logits),
                d_logits: self.head.d_logits.as_ref().map(at),
                d_hidden: self.head.d_hidden.as_ref().map(at),
            },
        }
    }
}
