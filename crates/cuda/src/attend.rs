//! Attention: which kernels compute it, and what they are given.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use temper_model::device::{Heads, KvPages, PagedRows, Result, Segments};
use temper_model::tensor::{DType, Tensor, View};

use crate::attend_cudnn::{BackwardViews, CudnnAttention, ForwardViews};
use crate::attention::{AttentionKernels, AttentionShape, BackwardRows, PagedShape, Rows};
use crate::cuda::{AttentionChoice, Cuda, CudaOptions};
use crate::memory::{Purpose, Storage};

/// Rows that form one chunk for the kernels: first row, rows, last position.
type Runs = Vec<(u32, u32, u32)>;

/// Attention's kernels by head dimension, and what they were last told about rows.
#[derive(Default)]
pub(crate) struct Attention {
    choice: AttentionChoice,
    kernel_cache: Option<PathBuf>,
    kernels: Mutex<HashMap<usize, Arc<AttentionKernels>>>,
    cudnn: CudnnAttention,
    offsets: Mutex<Option<(Runs, Tensor<Storage>)>>,
}

impl std::fmt::Debug for Attention {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attention")
            .field("choice", &self.choice)
            .finish_non_exhaustive()
    }
}

impl Attention {
    pub(crate) fn new(options: &CudaOptions) -> Self {
        Attention {
            choice: options.attention,
            kernel_cache: options.kernel_cache.clone(),
            cudnn: CudnnAttention::new(options.folders.folders().to_vec()),
            ..Attention::default()
        }
    }
}

impl Cuda {
    fn attention_kernels(
        &self,
        operation: &'static str,
        head_dim: usize,
    ) -> Result<Arc<AttentionKernels>> {
        let state = self.attention_state();
        let mut kernels = state.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kernels.get(&head_dim) {
            return Ok(Arc::clone(known));
        }
        let compiled = Arc::new(
            AttentionKernels::compile(self.context(), head_dim, state.kernel_cache.as_deref())
                .map_err(|error| self.unsupported(operation, error.to_string()))?,
        );
        kernels.insert(head_dim, Arc::clone(&compiled));
        Ok(compiled)
    }

    pub(crate) fn cudnn_state(&self) -> &CudnnAttention {
        &self.attention_state().cudnn
    }

    /// Whether cuDNN has to take over from our kernels, which take heads of 64 and 128.
    fn needs_cudnn(&self, heads: Heads) -> bool {
        self.attention_state().choice == AttentionChoice::Best && !matches!(heads.dim, 64 | 128)
    }

    fn token_rows(&self, view: &View<Storage>) -> Rows {
        Rows {
            at: self.at(view),
            stride: view.stride(),
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn op_attention(
        &self,
        q: &View<Storage>,
        k: &View<Storage>,
        v: &View<Storage>,
        heads: Heads,
        scale: f32,
        segments: &Segments<Storage>,
        out: &View<Storage>,
        lse: &Tensor<Storage>,
    ) -> Result<()> {
        const OPERATION: &str = "attention";
        let shape =
            self.check_attention(OPERATION, heads, scale, segments, &[q, out], &[k, v], lse)?;
        if self.needs_cudnn(heads) {
            let views = ForwardViews { q, k, v, out, lse };
            return self.cudnn_forward(&views, heads, scale, segments);
        }
        let kernels = self.attention_kernels(OPERATION, heads.dim)?;
        // SAFETY: the views lie within their tensors, with a row for each token; offsets are the
        // segments' starts.
        unsafe {
            kernels.forward(
                self.stream(),
                &shape,
                self.token_rows(q),
                self.token_rows(k),
                self.token_rows(v),
                self.token_rows(out),
                self.pointer(lse),
                self.pointer(&segments.device_starts),
            )
        }
        .map_err(|error| self.failed(OPERATION, error))
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn op_attention_backward(
        &self,
        q: &View<Storage>,
        k: &View<Storage>,
        v: &View<Storage>,
        out: &View<Storage>,
        lse: &Tensor<Storage>,
        d_out: &View<Storage>,
        heads: Heads,
        scale: f32,
        segments: &Segments<Storage>,
        d_q: &View<Storage>,
        d_k: &View<Storage>,
        d_v: &View<Storage>,
    ) -> Result<()> {
        const OPERATION: &str = "attention_backward";
        let shape = self.check_attention(
            OPERATION,
            heads,
            scale,
            segments,
            &[q, out, d_out, d_q],
            &[k, v, d_k, d_v],
            lse,
        )?;
        if self.needs_cudnn(heads) {
            let views = ForwardViews { q, k, v, out, lse };
            let gradients = BackwardViews {
                d_out,
                d_q,
                d_k,
                d_v,
            };
            return self.cudnn_backward(&views, &gradients, heads, scale, segments);
        }
        let kernels = self.attention_kernels(OPERATION, heads.dim)?;
        let scratch = self.scratch(Purpose::Attention, kernels.scratch_bytes(&shape))?;
        let rows = BackwardRows {
            q: self.token_rows(q),
            k: self.token_rows(k),
            v: self.token_rows(v),
            out: self.token_rows(out),
            d_out: self.token_rows(d_out),
            d_q: self.token_rows(d_q),
            d_k: self.token_rows(d_k),
            d_v: self.token_rows(d_v),
        };
        // SAFETY: as in the forward pass; the scratch is as large as asked for.
        unsafe {
            kernels.backward(
                self.stream(),
                &shape,
                &rows,
                self.pointer(lse),
                scratch,
                self.pointer(&segments.device_starts),
            )
        }
        .map_err(|error| self.failed(OPERATION, error))
    }

    pub(crate) fn attention_bytes(&self, heads: Heads, n_tokens: usize, backward: bool) -> usize {
        if self.needs_cudnn(heads) {
            return self.cudnn_bytes(heads, n_tokens, backward);
        }
        if !backward {
            return 0;
        }
        let shape = AttentionShape {
            tokens: n_tokens,
            n_sequences: 1,
            q_heads: heads.n_query,
            kv_heads: heads.n_kv,
            head_dim: heads.dim,
            scale: 1.0,
        };
        // Where there are no kernels for these heads, attention itself says so.
        self.attention_kernels("attention", heads.dim)
            .map_or(0, |kernels| kernels.scratch_bytes(&shape))
    }

    #[allow(clippy::too_many_arguments)]
    fn check_attention(
        &self,
        operation: &'static str,
        heads: Heads,
        scale: f32,
        segments: &Segments<Storage>,
        query_like: &[&View<Storage>],
        key_like: &[&View<Storage>],
        lse: &Tensor<Storage>,
    ) -> Result<AttentionShape> {
        let n = segments.n_tokens();
        let fits = |view: &&View<Storage>, n_heads: usize| {
            view.dtype() == DType::Bf16 && view.rows() == n && view.cols() == n_heads * heads.dim
        };
        let views_fit = query_like.iter().all(|view| fits(view, heads.n_query))
            && key_like.iter().all(|view| fits(view, heads.n_kv));
        if !views_fit
            || lse.dtype() != DType::F32
            || lse.len() < heads.n_query * n
            || segments.device_starts.len() < segments.starts.len()
        {
            let shapes: Vec<_> = query_like
                .iter()
                .chain(key_like)
                .map(|view| (view.rows(), view.cols()))
                .collect();
            return Err(temper_model::DeviceError::Shape {
                operation,
                reason: format!("{shapes:?} and lse {} for {n} tokens, {heads:?}", lse.len()),
            });
        }
        Ok(AttentionShape {
            tokens: n,
            n_sequences: segments.n_sequences(),
            q_heads: heads.n_query,
            kv_heads: heads.n_kv,
            head_dim: heads.dim,
            scale,
        })
    }

    pub(crate) fn op_paged_attention(
        &self,
        q: &View<Storage>,
        heads: Heads,
        scale: f32,
        rows: &PagedRows<Storage>,
        pages: &KvPages<Storage>,
        out: &View<Storage>,
    ) -> Result<()> {
        const OPERATION: &str = "paged_attention";
        let n = rows.n_rows;
        let cols = heads.n_query * heads.dim;
        let fits = |view: &View<Storage>| {
            view.dtype() == DType::Bf16 && view.rows() >= n && view.cols() == cols
        };
        if !fits(q) || !fits(out) || rows.sequence.len() < n || rows.position.len() < n {
            return Err(temper_model::DeviceError::Shape {
                operation: OPERATION,
                reason: format!(
                    "[{}, {}] to [{}, {}] for {n} rows, {heads:?}",
                    q.rows(),
                    q.cols(),
                    out.rows(),
                    out.cols()
                ),
            });
        }
        let kernels = self.attention_kernels(OPERATION, heads.dim)?;
        if rows.runs.is_empty() {
            return self.paged_rows(&kernels, q, heads, scale, rows, pages, out, 0..n);
        }
        // Stretches of single rows are decoded, the others are chunks of prompts.
        let runs = &rows.runs;
        let mut start = 0;
        while start < runs.len() {
            let single = runs[start].1 == 1;
            let end = runs[start..]
                .iter()
                .position(|run| (run.1 == 1) != single)
                .map_or(runs.len(), |i| start + i);
            let last = runs[end - 1];
            let stretch = runs[start].0 as usize..(last.0 + last.1) as usize;
            if single {
                self.paged_rows(&kernels, q, heads, scale, rows, pages, out, stretch)?;
            } else {
                self.paged_chunks(&kernels, q, heads, scale, rows, pages, out, start..end)?;
            }
            start = end;
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn paged_rows(
        &self,
        kernels: &AttentionKernels,
        q: &View<Storage>,
        heads: Heads,
        scale: f32,
        rows: &PagedRows<Storage>,
        pages: &KvPages<Storage>,
        out: &View<Storage>,
        stretch: std::ops::Range<usize>,
    ) -> Result<()> {
        let shape = PagedShape {
            n_rows: stretch.len(),
            q_heads: heads.n_query,
            kv_heads: heads.n_kv,
            head_dim: heads.dim,
            max_pages: rows.max_pages,
            scale,
        };
        let scratch = match kernels.paged_scratch_bytes(&shape) {
            0 => 0,
            n_bytes => self.scratch(Purpose::Attention, n_bytes)?,
        };
        let skip = (stretch.start * size_of::<u32>()) as u64;
        // SAFETY: the views have the rows, the tables the lines, as the caller of the operation
        // laid them out; the scratch is as large as asked for.
        unsafe {
            kernels.paged(
                self.stream(),
                &shape,
                self.token_rows(&q.row_range(stretch.clone())),
                self.pointer(&pages.keys),
                self.pointer(&pages.values),
                self.token_rows(&out.row_range(stretch)),
                self.pointer(&rows.sequence) + skip,
                self.pointer(&rows.position) + skip,
                self.pointer(&rows.block_tables),
                scratch,
            )
        }
        .map_err(|error| self.failed("paged_attention", error))
    }

    #[allow(clippy::too_many_arguments)]
    fn paged_chunks(
        &self,
        kernels: &AttentionKernels,
        q: &View<Storage>,
        heads: Heads,
        scale: f32,
        rows: &PagedRows<Storage>,
        pages: &KvPages<Storage>,
        out: &View<Storage>,
        runs: std::ops::Range<usize>,
    ) -> Result<()> {
        let first = rows.runs[runs.start].0;
        let last = rows.runs[runs.end - 1];
        let stretch = first as usize..(last.0 + last.1) as usize;
        let shape = PagedShape {
            n_rows: stretch.len(),
            q_heads: heads.n_query,
            kv_heads: heads.n_kv,
            head_dim: heads.dim,
            max_pages: rows.max_pages,
            scale,
        };
        let n_chunks = runs.len();
        let offsets = self.run_offsets(&rows.runs[runs])?;
        let skip = u64::from(first) * 4;
        // SAFETY: as for single rows; the offsets are those of the runs, from 0 to the rows.
        unsafe {
            kernels.paged_chunks(
                self.stream(),
                &shape,
                self.token_rows(&q.row_range(stretch.clone())),
                self.pointer(&pages.keys),
                self.pointer(&pages.values),
                self.token_rows(&out.row_range(stretch)),
                self.pointer(&rows.sequence) + skip,
                self.pointer(&rows.position) + skip,
                self.pointer(&rows.block_tables),
                self.pointer(&offsets),
                n_chunks,
            )
        }
        .map_err(|error| self.failed("paged_attention", error))
    }

    /// Where runs start among their rows, and where the last ends. The layers of a model ask for
    /// the same ones in turn, so the last are kept.
    fn run_offsets(&self, runs: &[(u32, u32, u32)]) -> Result<Tensor<Storage>> {
        let state = self.attention_state();
        let mut kept = state.offsets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, tensor)) = &*kept
            && known == runs
        {
            return Ok(tensor.clone());
        }
        let base = runs[0].0;
        let last = runs[runs.len() - 1];
        let mut offsets: Vec<u32> = runs.iter().map(|run| run.0 - base).collect();
        offsets.push(last.0 + last.1 - base);
        let tensor = match &*kept {
            Some((_, tensor)) if tensor.len() >= offsets.len() => tensor.clone(),
            _ => self.allocate_tensor(DType::U32, offsets.len().next_power_of_two().max(256))?,
        };
        self.op_upload_u32(&offsets, &tensor)?;
        *kept = Some((runs.to_vec(), tensor.clone()));
        Ok(tensor)
    }
}
