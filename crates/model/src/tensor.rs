//! Buffers on a device, and strided views of them as matrices.

use std::{ops::Range, sync::Arc};

/// How the elements of a buffer are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit floating point.
    F32,
    /// bfloat16.
    Bf16,
    /// Unsigned 32-bit integers: token ids, positions, slots.
    U32,
    /// Bytes: quantised codes.
    U8,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::Bf16 => 2,
            DType::U8 => 1,
        }
    }
}

/// A handle on a piece of device memory; a clone names the same memory.
///
/// Operations read and write through handles, so what an operation writes must not overlap what
/// it reads unless the operation says that it works in place. Operations of one device are issued
/// from one thread at a time.
#[derive(Debug)]
pub struct Tensor<S> {
    storage: Arc<S>,
    byte_offset: usize,
    len: usize,
    dtype: DType,
}

impl<S> Clone for Tensor<S> {
    fn clone(&self) -> Self {
        Tensor {
            storage: Arc::clone(&self.storage),
            ..*self
        }
    }
}

impl<S> Tensor<S> {
    /// `len` elements of `storage` from `byte_offset` on; devices make these.
    pub fn new(storage: Arc<S>, byte_offset: usize, len: usize, dtype: DType) -> Self {
        Tensor {
            storage,
            byte_offset,
            len,
            dtype,
        }
    }

    /// What holds the elements.
    pub fn storage(&self) -> &Arc<S> {
        &self.storage
    }

    /// Where the first element lies in the storage, in bytes.
    pub fn byte_offset(&self) -> usize {
        self.byte_offset
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements' type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Bytes held.
    pub fn n_bytes(&self) -> usize {
        self.len * self.dtype.size()
    }

    /// The elements of `range`, as a handle on the same memory.
    ///
    /// # Panics
    /// When the range does not lie within the tensor: offsets come from our own plans.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "slice {range:?} of {} elements",
            self.len
        );
        Tensor {
            storage: Arc::clone(&self.storage),
            byte_offset: self.byte_offset + range.start * self.dtype.size(),
            len: range.end - range.start,
            dtype: self.dtype,
        }
    }

    /// The whole tensor as a `[len / cols, cols]` matrix.
    pub fn view(&self, cols: usize) -> View<S> {
        let rows = self.len.checked_div(cols).unwrap_or(0);
        View::new(self.clone(), rows, cols, cols)
    }
}

/// A `[rows, cols]` matrix within a tensor, row `i` starting at element `i * stride`.
#[derive(Debug)]
pub struct View<S> {
    tensor: Tensor<S>,
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<S> Clone for View<S> {
    fn clone(&self) -> Self {
        View {
            tensor: self.tensor.clone(),
            ..*self
        }
    }
}

impl<S> View<S> {
    /// A view that starts at the tensor's first element.
    ///
    /// # Panics
    /// When the matrix does not fit into the tensor.
    pub fn new(tensor: Tensor<S>, rows: usize, cols: usize, stride: usize) -> Self {
        assert!(cols <= stride, "{cols} columns in a stride of {stride}");
        assert!(
            rows == 0 || (rows - 1) * stride + cols <= tensor.len(),
            "[{rows}, {cols}] with stride {stride} in {} elements",
            tensor.len()
        );
        View {
            tensor,
            rows,
            cols,
            stride,
        }
    }

    /// The tensor; its first element is the matrix's.
    pub fn tensor(&self) -> &Tensor<S> {
        &self.tensor
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row's start to the next one's.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The elements' type.
    pub fn dtype(&self) -> DType {
        self.tensor.dtype()
    }

    /// Whether rows follow one another without a gap.
    pub fn is_contiguous(&self) -> bool {
        self.stride == self.cols
    }

    /// Whether this is the same matrix in the same memory as `other`.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.tensor.storage, &other.tensor.storage)
            && self.tensor.byte_offset == other.tensor.byte_offset
            && self.tensor.dtype == other.tensor.dtype
            && (self.rows, self.cols) == (other.rows, other.cols)
            && (self.stride == other.stride || self.rows <= 1)
    }

    /// Columns `range` of every row.
    pub fn columns(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.cols,
            "columns {range:?} of {}",
            self.cols
        );
        let end = self.tensor.len();
        let start = range.start.min(end);
        View {
            tensor: self.tensor.slice(start..end),
            rows: self.rows,
            cols: range.end - range.start,
            stride: self.stride,
        }
    }

    /// Rows `range`.
    pub fn row_range(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.rows,
            "rows {range:?} of {}",
            self.rows
        );
        let end = self.tensor.len();
        let start = (range.start * self.stride).min(end);
        View {
            tensor: self.tensor.slice(start..end),
            rows: range.end - range.start,
            cols: self.cols,
            stride: self.stride,
        }
    }
}
