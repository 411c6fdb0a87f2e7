//! Sizes of a paged model, and the memory of a step.

use std::fmt;

use super::super::{Model, ModelError, Result};
use crate::{
    device::{Device, PAGE_TOKENS},
    tensor::{DType, Tensor},
};

/// Sizes of a paged model. What is `0` is derived: [`PagedOptions::default`] derives all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagedOptions {
    /// The longest sequence in tokens; 0 for what the model's rotary table covers.
    pub max_context: usize,
    /// Sequences that run at one time; 0 for 64.
    pub max_sequences: usize,
    /// Rows of one step; 0 for 512, or a page more than the sequences where these are many.
    pub max_rows: usize,
    /// Rows whose logits exist at one time, at least `max_sequences` as padded; 0 for that.
    pub max_logit_rows: usize,
    /// Pages of the cache, one of them for padding; 0 for as many as fit `cache_bytes`.
    pub n_pages: usize,
    /// Bytes of the cache where `n_pages` is 0; 0 for what all sequences at full length would
    /// take, but at most three quarters of the memory that is free.
    pub cache_bytes: usize,
    /// The largest rank of an adapter; 0 for no adapters.
    pub max_adapter_rank: usize,
    /// Whether decode steps are padded to few shapes and recorded by the device.
    pub pads_decoding: bool,
}

impl PagedOptions {
    /// Fills in what is derived, and checks that everything fits.
    pub(super) fn resolve<D: Device>(&self, model: &Model<D>) -> Result<Self> {
        let mut options = *self;
        let or = |value: &mut usize, default: usize| {
            if *value == 0 {
                *value = default;
            }
        };
        or(&mut options.max_context, model.n_positions());
        or(&mut options.max_sequences, 64);
        let least_rows = options.max_sequences.next_multiple_of(8) + PAGE_TOKENS;
        or(&mut options.max_rows, least_rows.max(512));
        let least_logits = options.max_sequences.next_multiple_of(8);
        or(&mut options.max_logit_rows, least_logits);
        let page = page_bytes(model);
        if options.n_pages == 0 {
            let of_sequences = options
                .max_sequences
                .saturating_mul(options.max_context.div_ceil(PAGE_TOKENS))
                .saturating_add(1);
            let free = model.device.memory_free().map(|free| free / 4 * 3);
            let bytes = match (options.cache_bytes, free) {
                (0, Some(free)) => free.saturating_sub(workspace_bytes(model, &options)),
                (0, None) => usize::MAX,
                (given, _) => given,
            };
            options.n_pages = (bytes / page).min(of_sequences).min(u32::MAX as usize / 16);
        }
        options.cache_bytes = options.n_pages.saturating_mul(page);
        options.max_context = options
            .max_context
            .min(options.n_pages.saturating_sub(1) * PAGE_TOKENS);
        options.check(model, least_rows, least_logits)?;
        Ok(options)
    }

    fn check<D: Device>(
        &self,
        model: &Model<D>,
        least_rows: usize,
        least_logits: usize,
    ) -> Result<()> {
        let refuse = |reason: String| {
            Err(ModelError::Input {
                operation: "lay out the cache",
                reason,
            })
        };
        if self.n_pages < 2 {
            return refuse(format!("{} pages hold nothing", self.n_pages));
        }
        if self.max_context > model.n_positions() {
            return refuse(format!(
                "a context of {} tokens where the rotary table covers {}",
                self.max_context,
                model.n_positions()
            ));
        }
        if self.max_rows < least_rows {
            return refuse(format!(
                "{} rows of a step where {} sequences take {least_rows}",
                self.max_rows, self.max_sequences
            ));
        }
        if self.max_logit_rows < least_logits {
            return refuse(format!(
                "logits of {} rows where {} sequences take {least_logits}",
                self.max_logit_rows, self.max_sequences
            ));
        }
        Ok(())
    }
}

/// Bytes of one page over all layers.
fn page_bytes<D: Device>(model: &Model<D>) -> usize {
    2 * model.config.n_layers * model.config.kv_size() * PAGE_TOKENS * D::ACTIVATION.size()
}

/// What a paged model takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagedPlan {
    /// The model's weights.
    pub weight_bytes: usize,
    /// The cache.
    pub cache_bytes: usize,
    /// The memory of a step.
    pub workspace_bytes: usize,
    /// Pages of the cache.
    pub n_pages: usize,
    /// Tokens that they hold.
    pub n_tokens: usize,
    /// The longest sequence in tokens.
    pub max_context: usize,
}

impl PagedPlan {
    pub(super) fn new<D: Device>(model: &Model<D>, options: &PagedOptions) -> Self {
        PagedPlan {
            weight_bytes: model.weight_bytes(),
            cache_bytes: options.cache_bytes,
            workspace_bytes: workspace_bytes(model, options),
            n_pages: options.n_pages,
            n_tokens: (options.n_pages - 1) * PAGE_TOKENS,
            max_context: options.max_context,
        }
    }
}

impl fmt::Display for PagedPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
        write!(
            f,
            "weights {:.1} MiB, cache {:.1} MiB ({} pages, {} tokens, {} a sequence), \
             workspace {:.1} MiB",
            mib(self.weight_bytes),
            mib(self.cache_bytes),
            self.n_pages,
            self.n_tokens,
            self.max_context,
            mib(self.workspace_bytes)
        )
    }
}

/// The memory of a step, at its largest.
#[derive(Debug)]
pub(super) struct Workspace<S> {
    /// Residual stream, `[max_rows, hidden]`.
    pub stream: Tensor<S>,
    /// `[max_rows, hidden]`.
    pub normed: Tensor<S>,
    /// `[max_rows, q_size + 2 * kv_size]`.
    pub qkv: Tensor<S>,
    /// `[max_rows, q_size]`.
    pub attention: Tensor<S>,
    /// Rows that go on to the logits: `[max_rows, q_size]`.
    pub kept_attention: Tensor<S>,
    /// The same, `[max_rows, hidden]`.
    pub kept_stream: Tensor<S>,
    /// `[max_rows, 2 * intermediate]`.
    pub gate_up: Tensor<S>,
    /// `[max_rows, intermediate]`.
    pub product: Tensor<S>,
    /// `[max_rows, 3 * max_adapter_rank]`.
    pub low_rank: Tensor<S>,
    /// f32 `[max_logit_rows, vocabulary]`.
    pub logits: Tensor<S>,
    /// Integers of a step, u32.
    pub integers: Tensor<S>,
    /// Numbers of a step, f32.
    pub numbers: Tensor<S>,
    /// Drawn tokens, u32.
    pub drawn: Tensor<S>,
    /// Their log-probabilities, then the raw ones, f32.
    pub drawn_logprobs: Tensor<S>,
    /// f32 `[max_logit_rows]`.
    pub scored_logprobs: Tensor<S>,
    /// f32 `[max_logit_rows]`.
    pub scored_lse: Tensor<S>,
}

impl<S: Send + Sync + fmt::Debug + 'static> Workspace<S> {
    pub(super) fn new<D: Device<Storage = S>>(
        model: &Model<D>,
        options: &PagedOptions,
    ) -> Result<Self> {
        let [
            stream,
            normed,
            qkv,
            attention,
            kept_attention,
            kept_stream,
            gate_up,
            product,
            low_rank,
            logits,
            integers,
            numbers,
            drawn,
            drawn_logprobs,
            scored_logprobs,
            scored_lse,
        ] = sizes(model, options).map(|(dtype, len)| model.device.zeros(dtype, len));
        Ok(Workspace {
            stream: stream?,
            normed: normed?,
            qkv: qkv?,
            attention: attention?,
            kept_attention: kept_attention?,
            kept_stream: kept_stream?,
            gate_up: gate_up?,
            product: product?,
            low_rank: low_rank?,
            logits: logits?,
            integers: integers?,
            numbers: numbers?,
            drawn: drawn?,
            drawn_logprobs: drawn_logprobs?,
            scored_logprobs: scored_logprobs?,
            scored_lse: scored_lse?,
        })
    }
}

fn workspace_bytes<D: Device>(model: &Model<D>, options: &PagedOptions) -> usize {
    sizes(model, options)
        .iter()
        .map(|(dtype, len)| dtype.size() * len)
        .sum()
}

/// Types and lengths of the tensors of [`Workspace`], in its order.
fn sizes<D: Device>(model: &Model<D>, options: &PagedOptions) -> [(DType, usize); 16] {
    let config = &model.config;
    let (q, kv) = (config.q_size(), config.kv_size());
    let rows = |cols: usize| (D::ACTIVATION, options.max_rows * cols);
    let n_logits = options.max_logit_rows;
    // Each of at most ten vectors starts at a multiple of 64 elements.
    let slack = 10 * super::inputs::ALIGNMENT;
    let table =
        options.max_sequences.next_multiple_of(8) * (options.max_context.div_ceil(PAGE_TOKENS) + 1);
    [
        rows(config.hidden_size),
        rows(config.hidden_size),
        rows(q + 2 * kv),
        rows(q),
        rows(q),
        rows(config.hidden_size),
        rows(2 * config.intermediate_size),
        rows(config.intermediate_size),
        rows((3 * options.max_adapter_rank).max(1)),
        (DType::F32, n_logits * config.vocab_size),
        (DType::U32, 11 * options.max_rows + table + slack),
        (DType::F32, 3 * options.max_rows + slack),
        (DType::U32, options.max_rows),
        (DType::F32, 2 * options.max_rows),
        (DType::F32, n_logits),
        (DType::F32, n_logits),
    ]
}
