//! Causal grouped-query attention, forward and backward, by kernels of our own.
//!
//! Inputs and outputs are bf16, sums float32; sequences are packed one after the other and do not
//! see each other. There are two sets of kernels of one interface: one of warp instructions, for
//! compute capability 8.0 and later, and one of warpgroup instructions with the tensor copy engine,
//! for 9.0. Results do not vary from run to run; the two sets differ by rounding. Head dimensions
//! are 64 and 128. What `kernels/attention_*.cu` compute is written there; `paged` is attention
//! over a paged cache, for sampling.

mod arguments;
mod paged;
mod sizes;

use std::path::Path;
use std::sync::Arc;

use cudarc::driver::sys::{CUdevice_attribute, CUdeviceptr, CUfunction_attribute};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};

use crate::nvrtc::{self, CompileError};
use arguments::{BackwardArgs, ForwardArgs, TensorMap};
pub use paged::PagedShape;
use sizes::{TILE, delta_bytes, forward_shared, keys_shared, n_tiles, queries_shared, threads};

const COMMON: &str = include_str!("../../kernels/attention_common.cuh");
const WARPGROUP: &str = include_str!("../../kernels/attention_sm90.cuh");
const FORWARD: &str = include_str!("../../kernels/attention_forward.cu");
const FORWARD_WARPGROUP: &str = include_str!("../../kernels/attention_forward_sm90.cu");
const BACKWARD_COMMON: &str = include_str!("../../kernels/attention_backward_common.cu");
const BACKWARD: &str = include_str!("../../kernels/attention_backward.cu");
const BACKWARD_WARPGROUP: &str = include_str!("../../kernels/attention_backward_sm90.cu");
const PAGED: &str = include_str!("../../kernels/attention_paged.cu");

/// Why attention could not be compiled or launched.
#[derive(Debug, thiserror::Error)]
pub enum AttentionError {
    /// The kernels did not compile or load.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The driver refused a launch or a question.
    #[error("launch attention: {0}")]
    Driver(#[from] DriverError),
    /// The kernels cannot compute this.
    #[error("launch attention: {0}")]
    Unsupported(String),
}

/// Which matrix instructions the kernels use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// `mma.sync`, on every card of compute capability 8.0 and later.
    Warp,
    /// `wgmma` and the tensor copy engine, on compute capability 9.0 alone.
    Warpgroup,
}

/// Token rows of bf16 in device memory, perhaps columns of a wider buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Address of the first token's first element; a multiple of 16.
    pub at: CUdeviceptr,
    /// Elements from one token to the next; a multiple of 8.
    pub stride: usize,
}

/// The size of one attention over packed sequences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Tokens of all sequences together.
    pub tokens: usize,
    /// Sequences.
    pub n_sequences: usize,
    /// Query heads.
    pub q_heads: usize,
    /// Key and value heads; they divide the query heads.
    pub kv_heads: usize,
    /// Columns of a head: 64 or 128, as compiled.
    pub head_dim: usize,
    /// Factor of the scores before the softmax, usually 1 / sqrt(head_dim).
    pub scale: f32,
}

/// Device memory that a backward pass reads and writes.
#[derive(Clone, Copy, Debug)]
pub struct BackwardRows {
    /// Queries `[tokens, q_heads * head_dim]`.
    pub q: Rows,
    /// Keys `[tokens, kv_heads * head_dim]`.
    pub k: Rows,
    /// Values, as the keys.
    pub v: Rows,
    /// What forward wrote, as the queries.
    pub out: Rows,
    /// The gradient of `out`, as the queries.
    pub d_out: Rows,
    /// Written: the gradient of the queries.
    pub d_q: Rows,
    /// Written: the gradient of the keys.
    pub d_k: Rows,
    /// Written: the gradient of the values.
    pub d_v: Rows,
}

/// Attention kernels for one head dimension, loaded in one context.
pub struct AttentionKernels {
    head_dim: usize,
    instructions: Instructions,
    stages: usize,
    multiprocessors: usize,
    forward: CudaFunction,
    delta: CudaFunction,
    keys: CudaFunction,
    keys_merge: CudaFunction,
    queries: CudaFunction,
    chunks: CudaFunction,
    paged: CudaFunction,
    paged_wide: CudaFunction,
    merge: CudaFunction,
}

impl AttentionKernels {
    /// Compiles (or reads from `cache`) the kernels for heads of `head_dim` columns, with the best
    /// instructions of the card.
    ///
    /// # Errors
    ///
    /// A head dimension other than 64 and 128, a card before compute capability 8.0, or what
    /// [`nvrtc::compile`] reports.
    pub fn compile(
        cx: &Arc<CudaContext>,
        head_dim: usize,
        cache: Option<&Path>,
    ) -> Result<Self, AttentionError> {
        let instructions = match cx.compute_capability()? {
            (9, 0) => Instructions::Warpgroup,
            _ => Instructions::Warp,
        };
        Self::compile_for(cx, head_dim, instructions, cache)
    }

    /// As [`compile`](Self::compile), with the instructions named.
    ///
    /// # Errors
    ///
    /// As [`compile`](Self::compile), and warpgroup instructions on another card than 9.0.
    pub fn compile_for(
        cx: &Arc<CudaContext>,
        head_dim: usize,
        instructions: Instructions,
        cache: Option<&Path>,
    ) -> Result<Self, AttentionError> {
        if !matches!(head_dim, 64 | 128) {
            return Err(AttentionError::Unsupported(format!(
                "head dimension {head_dim}; 64 and 128 are supported"
            )));
        }
        let capability = cx.compute_capability()?;
        if capability < (8, 0) || instructions == Instructions::Warpgroup && capability != (9, 0) {
            return Err(AttentionError::Unsupported(format!(
                "{instructions:?} instructions on compute capability {}.{}",
                capability.0, capability.1
            )));
        }
        let attribute = |which| cx.attribute(which).map(|value| value.max(0) as usize);
        let room =
            attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let stages = match keys_shared(instructions, head_dim, 2) <= room {
            true => 2,
            false => 1,
        };
        let options = vec![
            format!("-DHEAD_DIM={head_dim}"),
            format!("-DSTAGES={stages}"),
            "--diag-suppress=177".to_owned(),
        ];
        let build = |name: &str, parts: &[&str], more: &[&str]| {
            let mut options = options.clone();
            options.extend(more.iter().map(|&option| option.to_owned()));
            nvrtc::compile(cx, name, &parts.join("\n"), &options, cache)
        };
        let (forward, backward) = match instructions {
            Instructions::Warp => (
                build("attention_forward", &[COMMON, FORWARD], &[])?,
                build(
                    "attention_backward",
                    &[COMMON, BACKWARD_COMMON, BACKWARD],
                    &[],
                )?,
            ),
            Instructions::Warpgroup => (
                build(
                    "attention_forward_sm90",
                    &[COMMON, WARPGROUP, FORWARD_WARPGROUP],
                    &[],
                )?,
                build(
                    "attention_backward_sm90",
                    &[COMMON, BACKWARD_COMMON, WARPGROUP, BACKWARD_WARPGROUP],
                    &[],
                )?,
            ),
        };
        let chunks = build("attention_chunks", &[COMMON, FORWARD], &["-DPAGED"])?;
        let paged = build("attention_paged", &[COMMON, PAGED], &[])?;
        let row = head_dim * 2;
        let load = |module: &Arc<CudaModule>, name, shared: usize| {
            let function = module.load_function(name)?;
            function.set_attribute(
                CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                shared as i32,
            )?;
            Ok::<_, DriverError>(function)
        };
        Ok(Self {
            head_dim,
            instructions,
            stages,
            multiprocessors: attribute(
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            )?,
            forward: load(
                &forward,
                "attention_forward",
                forward_shared(instructions, row),
            )?,
            delta: backward.load_function("attention_delta")?,
            keys: load(
                &backward,
                "attention_keys",
                keys_shared(instructions, head_dim, stages),
            )?,
            keys_merge: backward.load_function("attention_keys_merge")?,
            queries: load(
                &backward,
                "attention_queries",
                queries_shared(instructions, head_dim, stages),
            )?,
            chunks: load(
                &chunks,
                "attention_chunks",
                forward_shared(Instructions::Warp, row),
            )?,
            paged: paged.load_function("attention_paged")?,
            paged_wide: paged.load_function("attention_paged_wide")?,
            merge: paged.load_function("attention_paged_merge")?,
        })
    }

    /// The instructions the kernels were compiled for.
    pub fn instructions(&self) -> Instructions {
        self.instructions
    }

    /// Bytes of scratch that [`backward`](Self::backward) needs: one f32 per query head and token,
    /// and partial sums of the gradients of keys and values where key heads and tokens alone would
    /// not fill the card.
    pub fn scratch_bytes(&self, shape: &AttentionShape) -> usize {
        let partial = match self.parts(shape) {
            1 => 0,
            parts => parts * 2 * shape.tokens * shape.kv_heads * shape.head_dim * size_of::<f32>(),
        };
        delta_bytes(shape) + partial
    }

    /// Parts into which each key head's query heads are cut for the gradients of keys and values:
    /// with causal masks the first tile of keys takes twice the average, so three blocks per
    /// multiprocessor keep the card evenly busy.
    fn parts(&self, shape: &AttentionShape) -> usize {
        let blocks = (shape.tokens.div_ceil(TILE) * shape.kv_heads).max(1);
        let group = shape.q_heads / shape.kv_heads.max(1);
        (3 * self.multiprocessors)
            .div_ceil(blocks)
            .clamp(1, group.max(1))
    }

    /// Writes `out` = softmax(scale q k', causal within each sequence) v, and the log of each
    /// row's sum of exponentials.
    ///
    /// `q` and `out` are `[tokens, q_heads * head_dim]`, `k` and `v` `[tokens, kv_heads *
    /// head_dim]`; query head h reads key head h / (q_heads / kv_heads). `lse` is f32
    /// `[q_heads, tokens]`, natural logarithm, or 0 where no backward pass follows. `offsets` is i32
    /// `[n_sequences + 1]`, ascending from 0 to `tokens`. No tokens: nothing is launched.
    ///
    /// # Safety
    ///
    /// The addresses hold memory of these sizes in the stream's context, which stays until the
    /// kernel has run; `offsets` is as described. `out` overlaps no input.
    ///
    /// # Errors
    ///
    /// A shape or alignment that the kernels do not take, or a failed launch.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn forward(
        &self,
        stream: &Arc<CudaStream>,
        shape: &AttentionShape,
        q: Rows,
        k: Rows,
        v: Rows,
        out: Rows,
        lse: CUdeviceptr,
        offsets: CUdeviceptr,
    ) -> Result<(), AttentionError> {
        self.check(shape)?;
        check_rows(&[("q", q), ("out", out)], shape.q_heads * shape.head_dim)?;
        check_rows(&[("k", k), ("v", v)], shape.kv_heads * shape.head_dim)?;
        if shape.tokens == 0 {
            return Ok(());
        }
        let args = ForwardArgs::new(shape, q, k, v, out, lse, offsets);
        let mut launch = stream.launch_builder(&self.forward);
        launch.arg(&args);
        let maps;
        if self.instructions == Instructions::Warpgroup {
            maps = [
                TensorMap::new(q, shape.tokens, shape.q_heads * shape.head_dim, TILE)?,
                TensorMap::new(k, shape.tokens, shape.kv_heads * shape.head_dim, TILE)?,
                TensorMap::new(v, shape.tokens, shape.kv_heads * shape.head_dim, TILE)?,
            ];
            launch.arg(&maps[0]).arg(&maps[1]).arg(&maps[2]);
        }
        let config = LaunchConfig {
            grid_dim: (shape.q_heads as u32, n_tiles(shape), 1),
            block_dim: (threads(self.instructions, 128), 1, 1),
            shared_mem_bytes: forward_shared(self.instructions, shape.head_dim * 2) as u32,
        };
        // SAFETY: the arguments are those of the kernel; the caller answers for the memory.
        unsafe { launch.launch(config) }?;
        Ok(())
    }

    /// Writes the gradients of queries, keys and values, each overwritten, summed in a fixed
    /// order.
    ///
    /// `lse` is what [`forward`](Self::forward) wrote, `scratch` has
    /// [`scratch_bytes`](Self::scratch_bytes) at a multiple of 16; the rest as in `forward`.
    ///
    /// # Safety
    ///
    /// As [`forward`](Self::forward); no gradient overlaps an input.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub unsafe fn backward(
        &self,
        stream: &Arc<CudaStream>,
        shape: &AttentionShape,
        rows: &BackwardRows,
        lse: CUdeviceptr,
        scratch: CUdeviceptr,
        offsets: CUdeviceptr,
    ) -> Result<(), AttentionError> {
        self.check(shape)?;
        let (q_width, kv_width) = (
            shape.q_heads * shape.head_dim,
            shape.kv_heads * shape.head_dim,
        );
        let BackwardRows {
            q,
            k,
            v,
            out,
            d_out,
            d_q,
            d_k,
            d_v,
        } = *rows;
        check_rows(
            &[("q", q), ("out", out), ("d_out", d_out), ("d_q", d_q)],
            q_width,
        )?;
        check_rows(&[("k", k), ("v", v), ("d_k", d_k), ("d_v", d_v)], kv_width)?;
        if shape.tokens == 0 {
            return Ok(());
        }
        if !scratch.is_multiple_of(16) {
            return Err(AttentionError::Unsupported(format!(
                "scratch at {scratch:#x}, which must be a multiple of 16"
            )));
        }
        let parts = self.parts(shape);
        let args = BackwardArgs::new(shape, rows, lse, scratch, offsets, parts);
        let rows_of_heads = shape.tokens * shape.q_heads;
        let config = LaunchConfig {
            grid_dim: (rows_of_heads.div_ceil(8) as u32, 1, 1),
            block_dim: (256, 1, 1),
            shared_mem_bytes: 0,
        };
        let mut launch = stream.launch_builder(&self.delta);
        // SAFETY: the argument is that of the kernel; the caller answers for the memory.
        unsafe { launch.arg(&args).launch(config) }?;

        let (instructions, stages) = (self.instructions, self.stages);
        let passes = [
            Pass {
                kernel: &self.keys,
                grid: (shape.kv_heads, parts),
                tile_rows: (64, TILE),
                shared: keys_shared(instructions, shape.head_dim, stages),
            },
            Pass {
                kernel: &self.queries,
                grid: (shape.q_heads, 1),
                tile_rows: (TILE, 64),
                shared: queries_shared(instructions, shape.head_dim, stages),
            },
        ];
        for pass in passes {
            let mut launch = stream.launch_builder(pass.kernel);
            launch.arg(&args);
            let (q_rows, k_rows) = pass.tile_rows;
            let maps;
            if instructions == Instructions::Warpgroup {
                maps = [
                    TensorMap::new(q, shape.tokens, q_width, q_rows)?,
                    TensorMap::new(k, shape.tokens, kv_width, k_rows)?,
                    TensorMap::new(v, shape.tokens, kv_width, k_rows)?,
                    TensorMap::new(d_out, shape.tokens, q_width, q_rows)?,
                ];
                launch
                    .arg(&maps[0])
                    .arg(&maps[1])
                    .arg(&maps[2])
                    .arg(&maps[3]);
            }
            let config = LaunchConfig {
                grid_dim: (pass.grid.0 as u32, n_tiles(shape), pass.grid.1 as u32),
                block_dim: (threads(instructions, 256), 1, 1),
                shared_mem_bytes: pass.shared as u32,
            };
            // SAFETY: as above.
            unsafe { launch.launch(config) }?;
        }
        if parts > 1 {
            let quads = shape.tokens * kv_width / 4;
            let config = LaunchConfig {
                grid_dim: (quads.div_ceil(256) as u32, 2, 1),
                block_dim: (256, 1, 1),
                shared_mem_bytes: 0,
            };
            let mut launch = stream.launch_builder(&self.keys_merge);
            // SAFETY: as above.
            unsafe { launch.arg(&args).launch(config) }?;
        }
        Ok(())
    }

    fn check(&self, shape: &AttentionShape) -> Result<(), AttentionError> {
        let AttentionShape {
            tokens,
            n_sequences,
            q_heads,
            kv_heads,
            head_dim,
            scale,
        } = *shape;
        let fault = if head_dim != self.head_dim {
            format!(
                "head dimension {head_dim} with kernels for {}",
                self.head_dim
            )
        } else if kv_heads == 0 || !q_heads.is_multiple_of(kv_heads) {
            format!("{q_heads} query heads over {kv_heads} key heads")
        } else if tokens >= 1 << 31 || n_sequences >= 1 << 31 || n_tiles(shape) > 65_535 {
            format!("{tokens} tokens in {n_sequences} sequences, which the grid cannot hold")
        } else if tokens > 0 && n_sequences == 0 {
            format!("{tokens} tokens in no sequence")
        } else if !(scale > 0.0 && scale.is_finite()) {
            format!("scale {scale}, which must be positive")
        } else {
            return Ok(());
        };
        Err(AttentionError::Unsupported(fault))
    }
}

/// One of the two tiled kernels of a backward pass.
struct Pass<'a> {
    kernel: &'a CudaFunction,
    /// Heads and parts.
    grid: (usize, usize),
    /// Rows of a tile of queries and of keys.
    tile_rows: (usize, usize),
    shared: usize,
}

fn check_rows(rows: &[(&str, Rows)], width: usize) -> Result<(), AttentionError> {
    for &(name, Rows { at, stride }) in rows {
        if at == 0 || !at.is_multiple_of(16) || !stride.is_multiple_of(8) || stride < width {
            return Err(AttentionError::Unsupported(format!(
                "{name} at {at:#x} with {stride} elements a token: the address must be a multiple \
                 of 16, the elements one of 8 and at least {width}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_the_copies_cannot_take_are_refused() {
        let rows = |at, stride| check_rows(&[("q", Rows { at, stride })], 128);
        assert!(rows(32, 128).is_ok());
        assert!(rows(32, 384).is_ok());
        for (at, stride) in [(0, 128), (8, 128), (32, 132), (32, 120)] {
            assert!(rows(at, stride).is_err(), "{at} {stride}");
        }
    }
}
