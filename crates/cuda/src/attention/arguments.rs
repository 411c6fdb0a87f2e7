//! Kernel arguments, laid out as the structures of `kernels/attention_*` declare them.

use std::mem::MaybeUninit;

use cudarc::driver::sys::{self, CUdeviceptr};
use cudarc::driver::{DeviceRepr, DriverError};

use super::{AttentionShape, BackwardRows, PagedShape, Rows};

/// `ForwardArgs` of `attention_common.cuh`.
#[repr(C)]
pub(super) struct ForwardArgs {
    q: CUdeviceptr,
    k: CUdeviceptr,
    v: CUdeviceptr,
    out: CUdeviceptr,
    lse: CUdeviceptr,
    offsets: CUdeviceptr,
    strides: [i64; 4],
    tokens: i32,
    n_sequences: i32,
    q_heads: i32,
    kv_heads: i32,
    scale: f32,
    max_pages: i32,
    row_line: CUdeviceptr,
    positions: CUdeviceptr,
    block_tables: CUdeviceptr,
}

// SAFETY: plain numbers in the layout of the kernel's structure.
unsafe impl DeviceRepr for ForwardArgs {}

impl ForwardArgs {
    pub(super) fn new(
        shape: &AttentionShape,
        q: Rows,
        k: Rows,
        v: Rows,
        out: Rows,
        lse: CUdeviceptr,
        offsets: CUdeviceptr,
    ) -> Self {
        Self {
            q: q.at,
            k: k.at,
            v: v.at,
            out: out.at,
            lse,
            offsets,
            strides: [q, k, v, out].map(|rows| rows.stride as i64),
            tokens: shape.tokens as i32,
            n_sequences: shape.n_sequences as i32,
            q_heads: shape.q_heads as i32,
            kv_heads: shape.kv_heads as i32,
            scale: shape.scale,
            max_pages: 0,
            row_line: 0,
            positions: 0,
            block_tables: 0,
        }
    }

    /// Chunks of queries over pages: `offsets` cuts the rows of `q` into chunks.
    pub(super) fn over_pages(
        shape: &PagedShape,
        q: Rows,
        pages: [CUdeviceptr; 2],
        out: Rows,
        tables: [CUdeviceptr; 3],
        offsets: CUdeviceptr,
        n_chunks: usize,
    ) -> Self {
        let [row_line, positions, block_tables] = tables;
        Self {
            q: q.at,
            k: pages[0],
            v: pages[1],
            out: out.at,
            lse: 0,
            offsets,
            strides: [q.stride as i64, 0, 0, out.stride as i64],
            tokens: shape.n_rows as i32,
            n_sequences: n_chunks as i32,
            q_heads: shape.q_heads as i32,
            kv_heads: shape.kv_heads as i32,
            scale: shape.scale,
            max_pages: shape.max_pages as i32,
            row_line,
            positions,
            block_tables,
        }
    }
}

/// `BackwardArgs` of `attention_common.cuh`.
#[repr(C)]
pub(super) struct BackwardArgs {
    inputs: [CUdeviceptr; 5],
    gradients: [CUdeviceptr; 3],
    lse: CUdeviceptr,
    delta: CUdeviceptr,
    offsets: CUdeviceptr,
    strides: [i64; 8],
    tokens: i32,
    n_sequences: i32,
    q_heads: i32,
    kv_heads: i32,
    scale: f32,
    parts: i32,
    partial: CUdeviceptr,
}

// SAFETY: plain numbers in the layout of the kernel's structure.
unsafe impl DeviceRepr for BackwardArgs {}

impl BackwardArgs {
    pub(super) fn new(
        shape: &AttentionShape,
        rows: &BackwardRows,
        lse: CUdeviceptr,
        delta: CUdeviceptr,
        offsets: CUdeviceptr,
        parts: usize,
    ) -> Self {
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
        Self {
            inputs: [q, k, v, out, d_out].map(|rows| rows.at),
            gradients: [d_q, d_k, d_v].map(|rows| rows.at),
            lse,
            delta,
            offsets,
            strides: [q, k, v, out, d_out, d_q, d_k, d_v].map(|rows| rows.stride as i64),
            tokens: shape.tokens as i32,
            n_sequences: shape.n_sequences as i32,
            q_heads: shape.q_heads as i32,
            kv_heads: shape.kv_heads as i32,
            scale: shape.scale,
            parts: parts as i32,
            partial: delta + super::sizes::delta_bytes(shape) as u64,
        }
    }
}

/// `PagedArgs` of `attention_paged.cu`.
#[repr(C)]
pub(super) struct PagedArgs {
    pub(super) q: CUdeviceptr,
    pub(super) k_pages: CUdeviceptr,
    pub(super) v_pages: CUdeviceptr,
    pub(super) out: CUdeviceptr,
    pub(super) partial: CUdeviceptr,
    pub(super) partial_lse: CUdeviceptr,
    pub(super) row_line: CUdeviceptr,
    pub(super) positions: CUdeviceptr,
    pub(super) block_tables: CUdeviceptr,
    pub(super) q_stride: i64,
    pub(super) out_stride: i64,
    pub(super) n_rows: i32,
    pub(super) q_heads: i32,
    pub(super) kv_heads: i32,
    pub(super) max_pages: i32,
    pub(super) n_splits: i32,
    pub(super) scale: f32,
}

// SAFETY: plain numbers in the layout of the kernel's structure.
unsafe impl DeviceRepr for PagedArgs {}

/// What the tensor copy engine must know of a buffer: tiles of some rows by 64 columns.
#[repr(transparent)]
pub(super) struct TensorMap(sys::CUtensorMap);

// SAFETY: an opaque value that kernels take as it is.
unsafe impl DeviceRepr for TensorMap {}

impl TensorMap {
    /// The map of `tokens` rows of `width` bf16 columns, read `tile_rows` rows at a time; rows
    /// past the end read as zeros.
    pub(super) fn new(
        rows: Rows,
        tokens: usize,
        width: usize,
        tile_rows: usize,
    ) -> Result<Self, DriverError> {
        let mut map = MaybeUninit::<sys::CUtensorMap>::uninit();
        // SAFETY: every array has the rank's length; the map is written on success.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                map.as_mut_ptr(),
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                2,
                rows.at as *mut _,
                [width as u64, tokens as u64].as_ptr(),
                [rows.stride as u64 * 2].as_ptr(),
                [64, tile_rows as u32].as_ptr(),
                [1, 1].as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
            .result()?;
            Ok(Self(map.assume_init()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// The sizes are what the compiler reports of the kernels' parameters.
    #[test]
    fn arguments_have_the_layout_of_the_kernels() {
        assert_eq!(size_of::<ForwardArgs>(), 128);
        assert_eq!(offset_of!(ForwardArgs, tokens), 80);
        assert_eq!(offset_of!(ForwardArgs, row_line), 104);
        assert_eq!(size_of::<BackwardArgs>(), 184);
        assert_eq!(offset_of!(BackwardArgs, tokens), 152);
        assert_eq!(offset_of!(BackwardArgs, partial), 176);
        assert_eq!(size_of::<PagedArgs>(), 112);
        assert_eq!(offset_of!(PagedArgs, n_rows), 88);
    }
}
