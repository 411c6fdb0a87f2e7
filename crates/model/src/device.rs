//! What a device must be able to do: every operation of the model, forward and backward.
//!
//! The transformer, the trainer and the sampler are written once over [`Device`]. There is no
//! tape: a backward pass is a call like any other. All matrices are row-major, a row is a token.
//! Activations are of [`Device::ACTIVATION`]; what sums over many tokens (losses, gradients of
//! weights, log-probabilities, log-sum-exps) is f32.
//!
//! Operations return before their work is done where a device has a queue; downloads and
//! [`Device::synchronize`] wait. An error may so belong to an earlier call.

use temper_checkpoint::tensor::TensorView;

use crate::tensor::{DType, Tensor, View};

/// Tokens in one page of the key-value cache.
pub const PAGE_TOKENS: usize = 16;

/// An operation could not be done.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The memory is used up.
    #[error("allocate {n_bytes} bytes on {device}: {reason}")]
    OutOfMemory {
        /// Bytes asked for.
        n_bytes: usize,
        /// The device.
        device: String,
        /// What it said.
        reason: String,
    },
    /// The device cannot do this.
    #[error("{operation} on {device}: {reason}")]
    Unsupported {
        /// What was asked for.
        operation: &'static str,
        /// The device.
        device: String,
        /// Why not.
        reason: String,
    },
    /// Shapes that do not fit together: a fault of the caller.
    #[error("{operation}: {reason}")]
    Shape {
        /// What was asked for.
        operation: &'static str,
        /// What does not fit.
        reason: String,
    },
    /// The driver or a library reported a failure.
    #[error("{operation} on {device}: {reason}")]
    Failed {
        /// What was under way.
        operation: &'static str,
        /// The device.
        device: String,
        /// What was reported.
        reason: String,
    },
    /// A weight could not be read.
    #[error("{0}")]
    Weight(#[from] temper_checkpoint::tensor::DecodeError),
}

/// A result of a device's operation.
pub type Result<T> = std::result::Result<T, DeviceError>;

/// How a matrix of weights is kept on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// In the device's activation type.
    Dense,
    /// As the checkpoint holds it where the device can multiply with that encoding, else dense.
    AsStored,
    /// 4-bit NormalFloat in blocks of 64, optionally with quantised block maxima
    /// (QLoRA, arXiv 2305.14314).
    Nf4 {
        /// Whether the block maxima are quantised in turn.
        double_quantised: bool,
    },
    /// 8-bit integers in blocks of 32 with a scale.
    Int8,
}

/// Token sequences that lie one after another in the rows of a batch; attention does not cross
/// from one into another.
#[derive(Clone, Debug)]
pub struct Segments<S> {
    /// Where each sequence starts, and the end of the last: `n_sequences + 1` numbers.
    pub starts: Vec<u32>,
    /// The same on the device.
    pub device_starts: Tensor<S>,
}

impl<S> Segments<S> {
    /// Number of sequences.
    pub fn n_sequences(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Number of tokens.
    pub fn n_tokens(&self) -> usize {
        self.starts.last().map_or(0, |&end| end as usize)
    }

    /// Tokens of the longest sequence.
    pub fn longest(&self) -> usize {
        self.starts
            .windows(2)
            .map(|pair| (pair[1] - pair[0]) as usize)
            .max()
            .unwrap_or(0)
    }
}

/// Heads of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Query heads.
    pub n_query: usize,
    /// Key and value heads; divides the number of query heads.
    pub n_kv: usize,
    /// Elements of one head.
    pub dim: usize,
}

/// One layer of the paged cache, `[n_pages, n_kv_heads, PAGE_TOKENS, head_dim]` each.
#[derive(Debug)]
pub struct KvPages<S> {
    /// Keys, after rotary embedding.
    pub keys: Tensor<S>,
    /// Values.
    pub values: Tensor<S>,
}

/// The rows of one step of sampling, as they lie in the paged cache. All u32.
#[derive(Debug)]
pub struct PagedRows<S> {
    /// Number of rows in use; the tensors may be longer.
    pub n_rows: usize,
    /// `[n_rows]`: which line of the block tables a row belongs to.
    pub sequence: Tensor<S>,
    /// `[n_rows]`: the row's position; it attends to positions `0..=position`.
    pub position: Tensor<S>,
    /// `[n_rows]`: where the row's key and value are kept, `page * PAGE_TOKENS + offset`.
    pub slot: Tensor<S>,
    /// `[n_sequences, max_pages]`: the pages of each sequence, in order.
    pub block_tables: Tensor<S>,
    /// Columns of the block tables.
    pub max_pages: usize,
    /// An upper bound on every position plus one, which sizes grids and scratch space.
    pub max_context: usize,
    /// Runs of consecutive rows that belong to one sequence: (first row, rows, last position).
    /// Empty where every row is a sequence of its own: the decode step, which may be captured.
    pub runs: Vec<(u32, u32, u32)>,
}

/// How the next token of each row is drawn; all tensors are `[n_rows]`.
///
/// With `p = softmax(logits / temperature)`: the `top_k` largest are kept, of these the fewest
/// whose sum reaches `top_p`, of these those of at least `min_p` times the largest. Ties at a
/// threshold are kept. One uniform number `u` in `[0, 1)` is made of (`seed`, `draw`) by
/// [`crate::random::uniform`]; the token is the first in the order of ids at which the running sum over
/// the kept ones exceeds `u` times their sum. Temperature 0 takes the largest logit, the lowest
/// id among equals.
#[derive(Debug)]
pub struct Draws<S> {
    /// f32; 0 is greedy.
    pub temperature: Tensor<S>,
    /// u32; 0 keeps all.
    pub top_k: Tensor<S>,
    /// f32; 1 keeps all.
    pub top_p: Tensor<S>,
    /// f32; 0 keeps all.
    pub min_p: Tensor<S>,
    /// u32, `[2 * n_rows]`: low and high half of each row's seed.
    pub seed: Tensor<S>,
    /// u32: how many tokens the request has drawn before.
    pub draw: Tensor<S>,
    /// u32, output: the token.
    pub token: Tensor<S>,
    /// f32, output: natural-log probability of the token under `softmax(logits / temperature)`
    /// before any truncation; under `softmax(logits)` for a greedy row.
    pub logprob: Tensor<S>,
    /// f32, output: the same under `softmax(logits)`.
    pub raw_logprob: Tensor<S>,
}

/// Settings of one AdamW update (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate of this update.
    pub learning_rate: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment, after its bias correction.
    pub epsilon: f32,
    /// Decoupled weight decay, multiplied by the learning rate.
    pub weight_decay: f32,
    /// The number of this update, from 1.
    pub update: u64,
    /// Multiplies the gradient first: clipping, or one over a denominator.
    pub gradient_scale: f32,
}

/// First and second moments of the optimizer.
#[derive(Debug)]
pub enum Moments<S> {
    /// f32, `[n]` each.
    F32 {
        /// First moment.
        first: Tensor<S>,
        /// Second moment.
        second: Tensor<S>,
    },
    /// 8-bit codes of the dynamic maps in blocks of 256, each block with an f32 maximum
    /// (Dettmers et al., arXiv 2110.02861). The first moment's map is signed, the second's not.
    Int8 {
        /// Codes, u8 `[n]`.
        first: Tensor<S>,
        /// Block maxima, f32 `[ceil(n / 256)]`.
        first_max: Tensor<S>,
        /// Codes, u8 `[n]`.
        second: Tensor<S>,
        /// Block maxima, f32 `[ceil(n / 256)]`.
        second_max: Tensor<S>,
    },
}

/// A low-rank adapter of one linear map: `y += scale * (x a^T) b^T` (arXiv 2106.09685).
#[derive(Debug)]
pub struct Lora<'a, S> {
    /// `[rank, in]`, of the activation type.
    pub a: &'a Tensor<S>,
    /// `[out, rank]`, of the activation type.
    pub b: &'a Tensor<S>,
    /// alpha / rank, or alpha / sqrt(rank) for rsLoRA (arXiv 2312.03732).
    pub scale: f32,
    /// Rank.
    pub rank: usize,
}

/// A device and everything the model does on it.
pub trait Device: Clone + Send + Sync + 'static {
    /// What holds the bytes of a tensor.
    type Storage: Send + Sync + std::fmt::Debug + 'static;
    /// A matrix of weights `[out, in]`, laid out as this device multiplies best.
    type Matrix: Send + Sync + std::fmt::Debug + 'static;

    /// The type of activations.
    const ACTIVATION: DType;

    /// The device in words, for messages and reports.
    fn name(&self) -> String;
    /// Bytes that tensors and matrices of this device hold now, and the most they ever held.
    fn memory_used(&self) -> (usize, usize);
    /// Bytes that the device takes for itself when it is opened, such as a workspace of products.
    /// They count as used.
    fn own_bytes(&self) -> usize {
        0
    }
    /// Bytes that can still be allocated, where the device can say.
    fn memory_free(&self) -> Option<usize>;
    /// Waits until all issued work is done.
    fn synchronize(&self) -> Result<()>;
    /// Runs `body`, which issues the same operations on the same tensors whenever `key` is the
    /// same; a device may record them once and replay them. `body` must not allocate, upload,
    /// download or synchronise.
    fn replay(&self, key: u64, body: &mut dyn FnMut() -> Result<()>) -> Result<()>;

    // Memory.

    /// A tensor of `len` zeros.
    fn zeros(&self, dtype: DType, len: usize) -> Result<Tensor<Self::Storage>>;
    /// Writes `values` over the first elements of an F32 or Bf16 tensor, rounding to nearest even.
    fn upload_f32(&self, values: &[f32], to: &Tensor<Self::Storage>) -> Result<()>;
    /// Writes `values` over the first elements of a U32 tensor.
    fn upload_u32(&self, values: &[u32], to: &Tensor<Self::Storage>) -> Result<()>;
    /// The elements of an F32 or Bf16 tensor.
    fn download_f32(&self, from: &Tensor<Self::Storage>) -> Result<Vec<f32>>;
    /// The elements of a U32 tensor.
    fn download_u32(&self, from: &Tensor<Self::Storage>) -> Result<Vec<u32>>;
    /// The bytes of a tensor of any type, for snapshots.
    fn download_bytes(&self, from: &Tensor<Self::Storage>) -> Result<Vec<u8>>;
    /// Writes the bytes of a snapshot back; the lengths are equal.
    fn upload_bytes(&self, bytes: &[u8], to: &Tensor<Self::Storage>) -> Result<()>;
    /// Sets every element to zero.
    fn fill_zero(&self, tensor: &Tensor<Self::Storage>) -> Result<()>;
    /// Copies `[rows, cols]`, converting between F32 and Bf16 where the types differ.
    fn copy(&self, from: &View<Self::Storage>, to: &View<Self::Storage>) -> Result<()>;
    /// Row `i` of `to` becomes row `rows[i]` of `from`; `rows` is u32.
    fn gather_rows(
        &self,
        from: &View<Self::Storage>,
        rows: &Tensor<Self::Storage>,
        to: &View<Self::Storage>,
    ) -> Result<()>;
    /// Row `rows[i]` of `to` grows by row `i` of `from`; no row is named twice.
    fn scatter_add_rows(
        &self,
        from: &View<Self::Storage>,
        rows: &Tensor<Self::Storage>,
        to: &View<Self::Storage>,
    ) -> Result<()>;
    /// `to += scale * from`, any of F32 and Bf16.
    fn add_scaled(
        &self,
        from: &View<Self::Storage>,
        scale: f32,
        to: &View<Self::Storage>,
    ) -> Result<()>;

    // Weights.

    /// Takes weights over from a checkpoint: `parts` are `[out_i, in]` and are stacked by rows.
    fn matrix(&self, parts: &[TensorView<'_>], format: WeightFormat) -> Result<Self::Matrix>;
    /// A dense `[rows, cols]` matrix over a tensor of the activation type, which stays shared:
    /// a write to the tensor changes the matrix.
    fn matrix_over(
        &self,
        tensor: &Tensor<Self::Storage>,
        rows: usize,
        cols: usize,
    ) -> Result<Self::Matrix>;
    /// `[out, in]`.
    fn matrix_shape(&self, matrix: &Self::Matrix) -> (usize, usize);
    /// Bytes that a matrix holds.
    fn matrix_bytes(&self, matrix: &Self::Matrix) -> usize;
    /// Rows of a matrix as the products see them, dequantised, `[rows.len(), in]`.
    fn matrix_rows(&self, matrix: &Self::Matrix, rows: std::ops::Range<usize>) -> Result<Vec<f32>>;

    // Linear maps.

    /// `out = x w^T + bias`, plus what `out` held where `accumulate`.
    /// `x` is `[n, in]`, `out` `[n, out]` of the activation type or F32, `bias` `[out]`.
    fn linear(
        &self,
        x: &View<Self::Storage>,
        w: &Self::Matrix,
        bias: Option<&Tensor<Self::Storage>>,
        out: &View<Self::Storage>,
        accumulate: bool,
    ) -> Result<()>;
    /// `out = residual + x w^T`; `out` may be `residual`. A device that reads the residual within
    /// its product saves a pass over memory.
    fn linear_residual(
        &self,
        x: &View<Self::Storage>,
        w: &Self::Matrix,
        residual: &View<Self::Storage>,
        out: &View<Self::Storage>,
    ) -> Result<()> {
        if !out.is_same(residual) {
            self.copy(residual, out)?;
        }
        self.linear(x, w, None, out, true)
    }
    /// Bytes of scratch that products with an `[out, in]` matrix of this form take beside their
    /// arguments: for the plan.
    fn linear_scratch_bytes(&self, _format: WeightFormat, _out: usize, _in: usize) -> usize {
        0
    }
    /// `d_x = d_out w`, plus what `d_x` held where `accumulate`.
    fn linear_backward_input(
        &self,
        d_out: &View<Self::Storage>,
        w: &Self::Matrix,
        d_x: &View<Self::Storage>,
        accumulate: bool,
    ) -> Result<()>;
    /// `out = scale * op(a) op(b)`, plus what `out` held where `accumulate`; `op` transposes
    /// where asked. Operands are of the activation type or F32, `out` of either.
    fn matmul(
        &self,
        a: (&View<Self::Storage>, bool),
        b: (&View<Self::Storage>, bool),
        scale: f32,
        out: &View<Self::Storage>,
        accumulate: bool,
    ) -> Result<()>;
    /// `out += lora(x)`; `x_a` `[n, rank]` receives `x a^T`, which the backward pass needs.
    fn lora(
        &self,
        x: &View<Self::Storage>,
        lora: &Lora<'_, Self::Storage>,
        x_a: &View<Self::Storage>,
        out: &View<Self::Storage>,
    ) -> Result<()> {
        self.matmul((x, false), (&lora.a.view(x.cols()), true), 1.0, x_a, false)?;
        self.matmul(
            (x_a, false),
            (&lora.b.view(lora.rank), true),
            lora.scale,
            out,
            true,
        )
    }
    /// The sums over rows of `d_out`, added to `d_bias`, f32 `[cols]`.
    fn sum_rows(&self, d_out: &View<Self::Storage>, d_bias: &Tensor<Self::Storage>) -> Result<()>;

    // Layers.

    /// Row `i` of `out` becomes row `ids[i]` of the table.
    fn embed(
        &self,
        table: &Self::Matrix,
        ids: &Tensor<Self::Storage>,
        out: &View<Self::Storage>,
    ) -> Result<()>;
    /// Row `ids[i]` of `d_table`, f32 `[vocabulary, hidden]`, grows by row `i` of `d_out`; equal
    /// ids are added in the order of rows.
    fn embed_backward(
        &self,
        ids: &Tensor<Self::Storage>,
        d_out: &View<Self::Storage>,
        d_table: &View<Self::Storage>,
    ) -> Result<()>;
    /// Root-mean-square norm of each run of `weight.len()` columns (arXiv 1910.07467):
    /// `out = x / sqrt(mean(x^2) + epsilon) * weight`. `out` may be `x`.
    fn rms_norm(
        &self,
        x: &View<Self::Storage>,
        weight: &Tensor<Self::Storage>,
        epsilon: f32,
        out: &View<Self::Storage>,
    ) -> Result<()>;
    /// `sum += delta`, then `out = rms_norm(sum)`: the residual stream and the next norm in one
    /// pass.
    fn add_rms_norm(
        &self,
        delta: &View<Self::Storage>,
        sum: &View<Self::Storage>,
        weight: &Tensor<Self::Storage>,
        epsilon: f32,
        out: &View<Self::Storage>,
    ) -> Result<()>;
    /// Gradient of [`Device::rms_norm`] at its input `x`; `d_x` takes it, or grows by it where
    /// `accumulate`. `d_weight`, f32, grows by the weight's gradient where given. Without
    /// `accumulate`, `d_x` may be `d_out`.
    #[allow(clippy::too_many_arguments)]
    fn rms_norm_backward(
        &self,
        x: &View<Self::Storage>,
        weight: &Tensor<Self::Storage>,
        epsilon: f32,
        d_out: &View<Self::Storage>,
        d_x: &View<Self::Storage>,
        accumulate: bool,
        d_weight: Option<&Tensor<Self::Storage>>,
    ) -> Result<()>;
    /// Rotary embedding in place on every run of `head_dim` columns, elements `j` and
    /// `j + head_dim / 2` forming a pair. `table` is f32 `[n_positions, head_dim]`: cosines of the
    /// pairs, then sines, the attention factor multiplied in. `inverse` rotates back and
    /// is the gradient (the rotation is orthogonal up to the factor, which multiplies here too).
    fn rotary(
        &self,
        x: &View<Self::Storage>,
        head_dim: usize,
        positions: &Tensor<Self::Storage>,
        table: &Tensor<Self::Storage>,
        inverse: bool,
    ) -> Result<()>;
    /// Causal grouped-query attention within segments, never forming the matrix of scores.
    /// `q` and `out` are `[n, n_query * dim]`, `k` and `v` `[n, n_kv * dim]`; `lse`, f32
    /// `[n_query, n]`, receives the log-sum-exp of each row's scaled scores.
    #[allow(clippy::too_many_arguments)]
    fn attention(
        &self,
        q: &View<Self::Storage>,
        k: &View<Self::Storage>,
        v: &View<Self::Storage>,
        heads: Heads,
        scale: f32,
        segments: &Segments<Self::Storage>,
        out: &View<Self::Storage>,
        lse: &Tensor<Self::Storage>,
    ) -> Result<()>;
    /// Gradient of [`Device::attention`]; `d_q`, `d_k` and `d_v` are overwritten.
    #[allow(clippy::too_many_arguments)]
    fn attention_backward(
        &self,
        q: &View<Self::Storage>,
        k: &View<Self::Storage>,
        v: &View<Self::Storage>,
        out: &View<Self::Storage>,
        lse: &Tensor<Self::Storage>,
        d_out: &View<Self::Storage>,
        heads: Heads,
        scale: f32,
        segments: &Segments<Self::Storage>,
        d_q: &View<Self::Storage>,
        d_k: &View<Self::Storage>,
        d_v: &View<Self::Storage>,
    ) -> Result<()>;
    /// Bytes of scratch that attention on this shape takes beside its arguments: for the plan.
    fn attention_scratch_bytes(&self, heads: Heads, n_tokens: usize, backward: bool) -> usize;
    /// `out = silu(gate) * up`.
    fn swiglu(
        &self,
        gate: &View<Self::Storage>,
        up: &View<Self::Storage>,
        out: &View<Self::Storage>,
    ) -> Result<()>;
    /// Gradient of [`Device::swiglu`]. `d_gate` may be `gate`, and `d_up` may be `up`.
    fn swiglu_backward(
        &self,
        gate: &View<Self::Storage>,
        up: &View<Self::Storage>,
        d_out: &View<Self::Storage>,
        d_gate: &View<Self::Storage>,
        d_up: &View<Self::Storage>,
    ) -> Result<()>;

    // The head.

    /// For each row of `logits` (F32 or the activation type) and its target:
    /// `logprob = z[target] - logsumexp(z)` with `z = logits / temperature`, and the log-sum-exp;
    /// `entropy` of `softmax(z)` where given. All outputs f32 `[n]`.
    fn log_softmax_gather(
        &self,
        logits: &View<Self::Storage>,
        targets: &Tensor<Self::Storage>,
        temperature: f32,
        logprob: &Tensor<Self::Storage>,
        lse: &Tensor<Self::Storage>,
        entropy: Option<&Tensor<Self::Storage>>,
    ) -> Result<()>;
    /// Overwrites `logits` with the gradient of `sum_i d_logprob[i] * logprob[i]`:
    /// `d_logprob[i] * (onehot(target) - softmax(z)) / temperature`.
    fn log_softmax_gather_backward(
        &self,
        logits: &View<Self::Storage>,
        targets: &Tensor<Self::Storage>,
        temperature: f32,
        lse: &Tensor<Self::Storage>,
        d_logprob: &Tensor<Self::Storage>,
    ) -> Result<()>;
    /// [`Device::log_softmax_gather_backward`] with its result in `d_logits`, which may be of
    /// another type than `logits`, or be `logits`. What `logits` hold afterwards is not specified.
    #[allow(clippy::too_many_arguments)]
    fn log_softmax_gather_backward_into(
        &self,
        logits: &View<Self::Storage>,
        targets: &Tensor<Self::Storage>,
        temperature: f32,
        lse: &Tensor<Self::Storage>,
        d_logprob: &Tensor<Self::Storage>,
        d_logits: &View<Self::Storage>,
    ) -> Result<()> {
        self.log_softmax_gather_backward(logits, targets, temperature, lse, d_logprob)?;
        if d_logits.is_same(logits) {
            return Ok(());
        }
        self.copy(logits, d_logits)
    }
    /// Draws a token for each row of `logits` (F32 or the activation type).
    fn sample(&self, logits: &View<Self::Storage>, draws: &Draws<Self::Storage>) -> Result<()>;

    // The cache.

    /// Writes keys and values `[n, n_kv * dim]` to their slots.
    fn write_kv(
        &self,
        k: &View<Self::Storage>,
        v: &View<Self::Storage>,
        heads: Heads,
        rows: &PagedRows<Self::Storage>,
        pages: &KvPages<Self::Storage>,
    ) -> Result<()>;
    /// Attention of each row to the cached tokens of its sequence, its own among them.
    fn paged_attention(
        &self,
        q: &View<Self::Storage>,
        heads: Heads,
        scale: f32,
        rows: &PagedRows<Self::Storage>,
        pages: &KvPages<Self::Storage>,
        out: &View<Self::Storage>,
    ) -> Result<()>;
    /// Copies whole pages within the cache: `(from, to)`.
    fn copy_pages(
        &self,
        pages: &KvPages<Self::Storage>,
        heads: Heads,
        moves: &[(u32, u32)],
    ) -> Result<()>;

    // Training.

    /// The sum of squares of an F32 tensor, added to `sum`, f32 `[1]`.
    fn sum_squares(&self, x: &Tensor<Self::Storage>, sum: &Tensor<Self::Storage>) -> Result<()>;
    /// One AdamW update of `master`, f32; `copy`, of the activation type, receives the rounded
    /// result where given.
    fn adamw(
        &self,
        settings: &AdamW,
        gradient: &Tensor<Self::Storage>,
        master: &Tensor<Self::Storage>,
        moments: &Moments<Self::Storage>,
        copy: Option<&Tensor<Self::Storage>>,
    ) -> Result<()>;
}
