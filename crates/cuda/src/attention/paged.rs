//! Attention over a paged cache of keys and values, for sampling.
//!
//! Pages are bf16 `[n_pages, kv_heads, 16, head_dim]`, keys and values apart. A row is one query
//! token: `row_line[row]` is its sequence's line of `block_tables` (i32 `[n_lines, max_pages]`,
//! page numbers), `positions[row]` its place in the sequence; it sees the positions up to its own.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, LaunchConfig, PushKernelArg};

use super::arguments::{ForwardArgs, PagedArgs};
use super::sizes::{TILE, forward_shared};
use super::{AttentionError, AttentionKernels, Instructions, Rows, check_rows};

/// Tokens of a page.
const PAGE: usize = 16;

/// Parts that the merging kernel has room for (`MOST_SPLITS`).
const MOST_SPLITS: usize = 64;

/// The size of one attention over pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PagedShape {
    /// Query rows.
    pub n_rows: usize,
    /// Query heads.
    pub q_heads: usize,
    /// Key and value heads; they divide the query heads.
    pub kv_heads: usize,
    /// Columns of a head, as compiled.
    pub head_dim: usize,
    /// Page numbers a line of the block tables holds: the longest context over 16, rounded up.
    pub max_pages: usize,
    /// Factor of the scores before the softmax.
    pub scale: f32,
}

impl AttentionKernels {
    /// Parts into which each row's context is cut so that the card is full; 1 needs no scratch.
    /// It depends on the shape alone, never on lengths.
    pub fn paged_splits(&self, shape: &PagedShape) -> usize {
        let blocks = (shape.n_rows * shape.kv_heads).max(1);
        // Three blocks fit a multiprocessor, and below eight pages a warp has no second page to
        // fetch ahead.
        (4 * self.multiprocessors)
            .div_ceil(blocks)
            .clamp(1, shape.max_pages.div_ceil(8).max(1))
            .min(MOST_SPLITS)
    }

    /// Bytes of scratch that [`paged`](Self::paged) needs.
    pub fn paged_scratch_bytes(&self, shape: &PagedShape) -> usize {
        match self.paged_splits(shape) {
            1 => 0,
            n => n * shape.n_rows * shape.q_heads * (shape.head_dim + 1) * size_of::<f32>(),
        }
    }

    /// Writes `out[row]` = attention of row `row` of `q` over its sequence's pages, each row by
    /// itself: for decoding, where rows belong to different sequences.
    ///
    /// `q` and `out` are `[n_rows, q_heads * head_dim]`; `row_line` and `positions` are i32
    /// `[n_rows]`. A row whose position is negative becomes zeros (a place held free in a captured
    /// graph); its line must still exist. Every key and value is read once per row.
    ///
    /// # Safety
    ///
    /// The addresses hold memory as described, in the stream's context, until the kernels have
    /// run; every page number within a row's positions exists.
    ///
    /// # Errors
    ///
    /// A shape or alignment that the kernels do not take, or a failed launch.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn paged(
        &self,
        stream: &Arc<CudaStream>,
        shape: &PagedShape,
        q: Rows,
        k_pages: CUdeviceptr,
        v_pages: CUdeviceptr,
        out: Rows,
        row_line: CUdeviceptr,
        positions: CUdeviceptr,
        block_tables: CUdeviceptr,
        scratch: CUdeviceptr,
    ) -> Result<(), AttentionError> {
        self.check_paged(shape, q, out)?;
        if shape.n_rows == 0 {
            return Ok(());
        }
        let n_splits = self.paged_splits(shape);
        let partial_bytes = n_splits * shape.n_rows * shape.q_heads * shape.head_dim * 4;
        let args = PagedArgs {
            q: q.at,
            k_pages,
            v_pages,
            out: out.at,
            partial: scratch,
            partial_lse: scratch + partial_bytes as u64,
            row_line,
            positions,
            block_tables,
            q_stride: q.stride as i64,
            out_stride: out.stride as i64,
            n_rows: shape.n_rows as i32,
            q_heads: shape.q_heads as i32,
            kv_heads: shape.kv_heads as i32,
            max_pages: shape.max_pages as i32,
            n_splits: n_splits as i32,
            scale: shape.scale,
        };
        let group = shape.q_heads / shape.kv_heads;
        let kernel = match group > 8 {
            true => &self.paged_wide,
            false => &self.paged,
        };
        let blocks = shape.kv_heads * group.div_ceil(16);
        let config = LaunchConfig {
            grid_dim: (blocks as u32, shape.n_rows as u32, n_splits as u32),
            block_dim: (128, 1, 1),
            shared_mem_bytes: 0,
        };
        let mut launch = stream.launch_builder(kernel);
        // SAFETY: the argument is that of the kernel; the caller answers for the memory.
        unsafe { launch.arg(&args).launch(config) }?;
        if n_splits > 1 {
            let config = LaunchConfig {
                grid_dim: (shape.q_heads as u32, shape.n_rows as u32, 1),
                block_dim: (shape.head_dim as u32, 1, 1),
                shared_mem_bytes: 0,
            };
            let mut launch = stream.launch_builder(&self.merge);
            // SAFETY: as above.
            unsafe { launch.arg(&args).launch(config) }?;
        }
        Ok(())
    }

    /// As [`paged`](Self::paged) for chunks of neighbouring tokens of one sequence, such as the
    /// chunks of a prompt: rows `offsets[c]..offsets[c + 1]` (i32 `[n_chunks + 1]`, from 0 to
    /// `n_rows`) are chunk c, whose line and first position are those of its first row and whose
    /// other positions follow. The keys and values of the chunk itself must be in the pages.
    ///
    /// # Safety
    ///
    /// As [`paged`](Self::paged).
    ///
    /// # Errors
    ///
    /// As [`paged`](Self::paged).
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn paged_chunks(
        &self,
        stream: &Arc<CudaStream>,
        shape: &PagedShape,
        q: Rows,
        k_pages: CUdeviceptr,
        v_pages: CUdeviceptr,
        out: Rows,
        row_line: CUdeviceptr,
        positions: CUdeviceptr,
        block_tables: CUdeviceptr,
        offsets: CUdeviceptr,
        n_chunks: usize,
    ) -> Result<(), AttentionError> {
        self.check_paged(shape, q, out)?;
        if shape.n_rows == 0 || n_chunks == 0 {
            return Ok(());
        }
        let args = ForwardArgs::over_pages(
            shape,
            q,
            [k_pages, v_pages],
            out,
            [row_line, positions, block_tables],
            offsets,
            n_chunks,
        );
        let n_tiles = shape.n_rows.div_ceil(TILE) + n_chunks - 1;
        let config = LaunchConfig {
            grid_dim: (shape.q_heads as u32, n_tiles as u32, 1),
            block_dim: (128, 1, 1),
            shared_mem_bytes: forward_shared(Instructions::Warp, shape.head_dim * 2) as u32,
        };
        let mut launch = stream.launch_builder(&self.chunks);
        // SAFETY: as above.
        unsafe { launch.arg(&args).launch(config) }?;
        Ok(())
    }

    fn check_paged(&self, shape: &PagedShape, q: Rows, out: Rows) -> Result<(), AttentionError> {
        let PagedShape {
            n_rows,
            q_heads,
            kv_heads,
            head_dim,
            max_pages,
            scale,
        } = *shape;
        let fault = if head_dim != self.head_dim {
            format!(
                "head dimension {head_dim} with kernels for {}",
                self.head_dim
            )
        } else if kv_heads == 0 || !q_heads.is_multiple_of(kv_heads) {
            format!("{q_heads} query heads over {kv_heads} key heads")
        } else if n_rows > 32_768 || max_pages >= (1 << 31) / PAGE {
            format!("{n_rows} rows of up to {max_pages} pages, which the grid cannot hold")
        } else if !(scale > 0.0 && scale.is_finite()) {
            format!("scale {scale}, which must be positive")
        } else {
            return check_rows(&[("q", q), ("out", out)], q_heads * head_dim);
        };
        Err(AttentionError::Unsupported(fault))
    }
}
