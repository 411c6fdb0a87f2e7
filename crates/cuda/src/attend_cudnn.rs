//! Attention through cuDNN, for heads that our own kernels do not have.
//!
//! A plan is compiled for each number of tokens, which takes up to seconds, and kept. Sequences are
//! always given as packed ones: their most and longest are rounded up, so that batches of one size
//! share a plan.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use temper_model::device::{DeviceError, Heads, Result, Segments};
use temper_model::tensor::{DType, Tensor, View};

use crate::cuda::Cuda;
use crate::cudnn::{
    AttentionPlan, AttentionShape, BackwardPointers, Cudnn, ForwardPointers, Packing, RowStrides,
};
use crate::memory::{Purpose, Storage};

/// cuDNN, opened when it is first needed.
#[derive(Default)]
pub(crate) struct CudnnAttention {
    folders: Vec<PathBuf>,
    opened: Mutex<Option<std::result::Result<Arc<Cudnn>, String>>>,
}

/// Operands of a forward pass.
pub(crate) struct ForwardViews<'a> {
    pub(crate) q: &'a View<Storage>,
    pub(crate) k: &'a View<Storage>,
    pub(crate) v: &'a View<Storage>,
    pub(crate) out: &'a View<Storage>,
    pub(crate) lse: &'a Tensor<Storage>,
}

/// What a backward pass has besides.
pub(crate) struct BackwardViews<'a> {
    pub(crate) d_out: &'a View<Storage>,
    pub(crate) d_q: &'a View<Storage>,
    pub(crate) d_k: &'a View<Storage>,
    pub(crate) d_v: &'a View<Storage>,
}

impl CudnnAttention {
    pub(crate) fn new(folders: Vec<PathBuf>) -> Self {
        CudnnAttention {
            folders,
            opened: Mutex::default(),
        }
    }
}

impl Cuda {
    fn cudnn(&self, operation: &'static str) -> Result<Arc<Cudnn>> {
        let state = self.cudnn_state();
        let mut opened = state.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if opened.is_none() {
            self.context()
                .bind_to_thread()
                .map_err(|error| self.failed(operation, error))?;
            // SAFETY: the context is current; the device drops what holds cuDNN before the stream
            // and the context.
            let cudnn = unsafe { Cudnn::load(self.stream().cu_stream().cast(), &state.folders) };
            *opened = Some(cudnn.map(Arc::new).map_err(|error| error.to_string()));
        }
        match opened.as_ref() {
            Some(Ok(cudnn)) => Ok(Arc::clone(cudnn)),
            Some(Err(reason)) => Err(self.unsupported(operation, reason.clone())),
            None => Err(self.unsupported(operation, "cuDNN was not opened".to_owned())),
        }
    }

    fn cudnn_plan(
        &self,
        operation: &'static str,
        heads: Heads,
        scale: f32,
        segments: (usize, usize, usize),
        strides: RowStrides,
        backward: bool,
    ) -> Result<AttentionPlan> {
        let (tokens, n_sequences, longest) = segments;
        if tokens == 1 {
            // Seen with 9.19: the log-sum-exp and the values' gradient come out wrong.
            let reason = "cuDNN is wrong about a single token".to_owned();
            return Err(self.unsupported(operation, reason));
        }
        let shape = AttentionShape {
            tokens,
            packing: Packing::Packed {
                sequences: n_sequences.next_power_of_two(),
                longest: longest.next_multiple_of(128).min(tokens),
            },
            query_heads: heads.n_query,
            key_value_heads: heads.n_kv,
            head_dim: heads.dim,
            softmax_scale: scale,
            strides,
            backward,
            deterministic: false,
        };
        self.cudnn(operation)?
            .attention_plan(&shape)
            .map_err(|error| self.unsupported(operation, error.to_string()))
    }

    /// The plan, the address of its workspace, and that of the sequences' index.
    fn cudnn_ready(
        &self,
        operation: &'static str,
        (heads, scale): (Heads, f32),
        segments: &Segments<Storage>,
        strides: RowStrides,
        backward: bool,
    ) -> Result<(AttentionPlan, u64, u64)> {
        let sizes = (
            segments.n_tokens(),
            segments.n_sequences(),
            segments.longest(),
        );
        let plan = self.cudnn_plan(operation, heads, scale, sizes, strides, backward)?;
        let lengths: Vec<usize> = segments
            .starts
            .windows(2)
            .map(|pair| (pair[1] - pair[0]) as usize)
            .collect();
        let index = plan
            .index(&lengths)
            .map_err(|error| self.failed(operation, error))?;
        let index_at = self.scratch(Purpose::Converted, index.len())?;
        self.upload_slice(&index, index_at)?;
        let n_bytes = if backward {
            plan.backward_workspace_bytes()
        } else {
            plan.forward_workspace_bytes()
        };
        let workspace = self.scratch(Purpose::Attention, n_bytes)?;
        Ok((plan, workspace, index_at))
    }

    pub(crate) fn cudnn_forward(
        &self,
        views: &ForwardViews<'_>,
        heads: Heads,
        scale: f32,
        segments: &Segments<Storage>,
    ) -> Result<()> {
        const OPERATION: &str = "attention";
        let strides = RowStrides {
            q: views.q.stride(),
            k: views.k.stride(),
            v: views.v.stride(),
            out: views.out.stride(),
            ..RowStrides::dense(heads.n_query, heads.n_kv, heads.dim)
        };
        let (plan, workspace, index) =
            self.cudnn_ready(OPERATION, (heads, scale), segments, strides, false)?;
        let pointers = ForwardPointers {
            q: self.aligned(OPERATION, views.q)?,
            k: self.aligned(OPERATION, views.k)?,
            v: self.aligned(OPERATION, views.v)?,
            out: self.aligned(OPERATION, views.out)?,
            lse: self.pointer(views.lse),
            workspace,
            index,
        };
        // SAFETY: the views lie within their tensors with a row for each token, as the caller
        // checked; workspace and index are the plan's.
        unsafe { plan.forward(&pointers) }.map_err(|error| self.failed(OPERATION, error))
    }

    pub(crate) fn cudnn_backward(
        &self,
        views: &ForwardViews<'_>,
        gradients: &BackwardViews<'_>,
        heads: Heads,
        scale: f32,
        segments: &Segments<Storage>,
    ) -> Result<()> {
        const OPERATION: &str = "attention_backward";
        let strides = RowStrides {
            q: views.q.stride(),
            k: views.k.stride(),
            v: views.v.stride(),
            out: views.out.stride(),
            d_out: gradients.d_out.stride(),
            dq: gradients.d_q.stride(),
            dk: gradients.d_k.stride(),
            dv: gradients.d_v.stride(),
        };
        let (plan, workspace, index) =
            self.cudnn_ready(OPERATION, (heads, scale), segments, strides, true)?;
        let pointers = BackwardPointers {
            q: self.aligned(OPERATION, views.q)?,
            k: self.aligned(OPERATION, views.k)?,
            v: self.aligned(OPERATION, views.v)?,
            out: self.aligned(OPERATION, views.out)?,
            lse: self.pointer(views.lse),
            d_out: self.aligned(OPERATION, gradients.d_out)?,
            dq: self.aligned(OPERATION, gradients.d_q)?,
            dk: self.aligned(OPERATION, gradients.d_k)?,
            dv: self.aligned(OPERATION, gradients.d_v)?,
            workspace,
            index,
        };
        // SAFETY: as in the forward pass.
        unsafe { plan.backward(&pointers) }.map_err(|error| self.failed(OPERATION, error))
    }

    /// Bytes of workspace for one sequence of `n_tokens`; 0 where there is no plan for it, which
    /// the run itself reports.
    pub(crate) fn cudnn_bytes(&self, heads: Heads, n_tokens: usize, backward: bool) -> usize {
        let strides = RowStrides::dense(heads.n_query, heads.n_kv, heads.dim);
        self.cudnn_plan(
            "attention",
            heads,
            1.0,
            (n_tokens, 1, n_tokens),
            strides,
            backward,
        )
        .map_or(0, |plan| plan.workspace_bytes())
    }

    fn aligned(&self, operation: &'static str, view: &View<Storage>) -> Result<u64> {
        debug_assert_eq!(view.dtype(), DType::Bf16);
        let at = self.at(view);
        if at.is_multiple_of(16) {
            return Ok(at);
        }
        Err(DeviceError::Shape {
            operation,
            reason: format!("address {at:#x} is no multiple of 16"),
        })
    }
}
