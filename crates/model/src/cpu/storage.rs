//! Memory of the processor's tensors, and how operations reach into it.
//!
//! A tensor is a handle that may be cloned, sliced and written through, so the borrow checker
//! cannot see who reads and who writes. The contract that makes [`Rows`] sound: operations of one
//! device are issued from one thread at a time (they hold a lock while they run), an operation
//! checks that what it writes shares no element with what it reads unless it works in place, and
//! the tasks of one operation write to disjoint rows.

use std::{
    alloc::{Layout, alloc, alloc_zeroed, dealloc},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{
    device::{DeviceError, Result},
    tensor::{DType, Tensor, View},
};

/// Bytes to which allocations are aligned: a cache line, and the widest vector.
const ALIGNMENT: usize = 64;

/// Bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;
/// Allocations of as many bytes are laid into huge pages.
const LARGE: usize = 2 * HUGE_PAGE;

/// Bytes held now and at most.
#[derive(Debug, Default)]
pub(super) struct Meter {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Meter {
    pub(super) fn add(&self, n_bytes: usize) {
        let now = self.now.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes;
        self.most.fetch_max(now, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, n_bytes: usize) {
        self.now.fetch_sub(n_bytes, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> (usize, usize) {
        (
            self.now.load(Ordering::Relaxed),
            self.most.load(Ordering::Relaxed),
        )
    }
}

/// Zeroed, aligned memory that operations write through shared handles.
#[derive(Debug)]
pub struct CpuStorage {
    pointer: NonNull<u8>,
    layout: Layout,
    meter: Arc<Meter>,
}

// SAFETY: the memory is owned, and reached only through `Rows`, whose contract keeps writes apart.
unsafe impl Send for CpuStorage {}
// SAFETY: as above.
unsafe impl Sync for CpuStorage {}

impl CpuStorage {
    /// `n_bytes` zeros.
    pub(super) fn zeroed(n_bytes: usize, meter: &Arc<Meter>) -> Result<Self> {
        let out_of_memory = |reason: &str| DeviceError::OutOfMemory {
            n_bytes,
            device: "the processor".into(),
            reason: reason.into(),
        };
        let is_large = n_bytes >= LARGE;
        let alignment = if is_large { HUGE_PAGE } else { ALIGNMENT };
        let layout = Layout::from_size_align(n_bytes.max(1), alignment)
            .map_err(|_| out_of_memory("more than the address space"))?;
        // SAFETY: the layout's size is not zero.
        let pointer = unsafe {
            if is_large {
                alloc(layout)
            } else {
                alloc_zeroed(layout)
            }
        };
        let pointer =
            NonNull::new(pointer).ok_or_else(|| out_of_memory("refused by the allocator"))?;
        if is_large {
            // Products walk through large matrices by columns, and small pages would cost a walk
            // through the page tables each. Without huge pages nothing else changes.
            #[cfg(target_os = "linux")]
            // SAFETY: advice on memory that was just allocated.
            unsafe {
                libc::madvise(pointer.as_ptr().cast(), n_bytes, libc::MADV_HUGEPAGE);
            }
            // SAFETY: the allocation has as many bytes.
            unsafe { pointer.as_ptr().write_bytes(0, n_bytes) };
        }
        meter.add(layout.size());
        Ok(CpuStorage {
            pointer,
            layout,
            meter: Arc::clone(meter),
        })
    }

    /// Bytes held.
    pub fn n_bytes(&self) -> usize {
        self.layout.size()
    }

    /// The first byte.
    pub(super) fn pointer(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }
}

impl Drop for CpuStorage {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `zeroed`, and dropped once.
        unsafe { dealloc(self.pointer.as_ptr(), self.layout) };
        self.meter.remove(self.layout.size());
    }
}

/// A type that elements of a tensor are read as.
pub(super) trait Element: Copy + Send + Sync + 'static {
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
impl Element for u32 {
    const DTYPE: DType = DType::U32;
}
impl Element for half::bf16 {
    const DTYPE: DType = DType::Bf16;
}
impl Element for u8 {
    const DTYPE: DType = DType::U8;
}

/// The rows of a matrix in memory: a checked range without a lifetime.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<T> {
    pointer: *mut T,
    pub rows: usize,
    pub cols: usize,
    pub stride: usize,
}

// SAFETY: a range of plain numbers; the module's contract governs who writes.
unsafe impl<T: Element> Send for Rows<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Rows<T> {}

impl Rows<u8> {
    /// The bytes of a tensor of any type, as one row.
    pub fn of_bytes(operation: &'static str, tensor: &Tensor<CpuStorage>) -> Result<Self> {
        let bytes = Tensor::new(
            Arc::clone(tensor.storage()),
            tensor.byte_offset(),
            tensor.n_bytes(),
            DType::U8,
        );
        Self::of_tensor(operation, &bytes)
    }
}

impl<T: Element> Rows<T> {
    /// The rows of a view whose elements are of type `T` and lie within their storage.
    pub fn of(operation: &'static str, view: &View<CpuStorage>) -> Result<Self> {
        let mut rows = Self::of_tensor(operation, view.tensor())?;
        (rows.rows, rows.cols, rows.stride) = (view.rows(), view.cols(), view.stride());
        Ok(rows)
    }

    /// A tensor as one row.
    pub fn of_tensor(operation: &'static str, tensor: &Tensor<CpuStorage>) -> Result<Self> {
        if tensor.dtype() != T::DTYPE {
            return Err(shape(
                operation,
                format!("{:?} where {:?} is taken", tensor.dtype(), T::DTYPE),
            ));
        }
        let storage = tensor.storage();
        let fits = tensor
            .len()
            .checked_mul(size_of::<T>())
            .and_then(|n_bytes| n_bytes.checked_add(tensor.byte_offset()))
            .is_some_and(|end| end <= storage.n_bytes());
        if !fits || !tensor.byte_offset().is_multiple_of(size_of::<T>()) {
            return Err(shape(
                operation,
                format!(
                    "{} elements at byte {} of {} bytes",
                    tensor.len(),
                    tensor.byte_offset(),
                    storage.n_bytes()
                ),
            ));
        }
        Ok(Rows {
            // SAFETY: the offset lies within the allocation.
            pointer: unsafe { storage.pointer().add(tensor.byte_offset()) }.cast(),
            rows: 1,
            cols: tensor.len(),
            stride: tensor.len(),
        })
    }

    /// Row `i`.
    ///
    /// # Safety
    /// The storage lives, nothing writes to the row while the slice lives, and `i < self.rows`.
    pub unsafe fn row<'a>(self, i: usize) -> &'a [T] {
        assert!(i < self.rows);
        // SAFETY: within the checked range; aliasing is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.pointer.add(i * self.stride), self.cols) }
    }

    /// Row `i`, to write.
    ///
    /// # Safety
    /// The storage lives, nothing else reads or writes the row while the slice lives, and
    /// `i < self.rows`.
    pub unsafe fn row_mut<'a>(self, i: usize) -> &'a mut [T] {
        assert!(i < self.rows);
        // SAFETY: within the checked range; aliasing is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(i * self.stride), self.cols) }
    }

    /// `cols` columns from `start` on, which exist.
    pub fn columns(self, start: usize, cols: usize) -> Self {
        assert!(start + cols <= self.cols);
        Rows {
            pointer: self.pointer.wrapping_add(start),
            cols,
            ..self
        }
    }

    /// `rows` rows from `start` on, which exist.
    pub fn row_range(self, start: usize, rows: usize) -> Self {
        assert!(start + rows <= self.rows);
        Rows {
            pointer: self.pointer.wrapping_add(start * self.stride),
            rows,
            ..self
        }
    }

    /// Rows over scratch memory, which must outlive them.
    pub fn over(scratch: &mut [T], cols: usize) -> Self {
        Rows {
            pointer: scratch.as_mut_ptr(),
            rows: scratch.len().checked_div(cols).unwrap_or(0),
            cols,
            stride: cols,
        }
    }

    /// Some columns of row `i`, to write.
    ///
    /// # Safety
    /// As for [`Rows::row_mut`], for these columns, which exist.
    pub unsafe fn row_mut_range<'a>(self, i: usize, range: std::ops::Range<usize>) -> &'a mut [T] {
        // SAFETY: by this function's own contract.
        unsafe { self.columns(range.start, range.len()).row_mut(i) }
    }

    /// The first element.
    pub fn pointer(self) -> *mut T {
        self.pointer
    }

    /// Whether the two share an element.
    pub fn overlaps<U: Element>(self, other: Rows<U>) -> bool {
        if self.rows * self.cols == 0 || other.rows * other.cols == 0 {
            return false;
        }
        let (start, end) = self.byte_range();
        let (other_start, other_end) = other.byte_range();
        if end <= other_start || other_end <= start {
            return false;
        }
        let stride = self.stride * size_of::<T>();
        if stride != other.stride * size_of::<U>() || (self.rows == 1 && other.rows == 1) {
            return true;
        }
        // Columns of one buffer: intervals on a circle of one stride.
        let distance = (other_start as isize - start as isize).rem_euclid(stride as isize) as usize;
        distance < self.cols * size_of::<T>() || distance + other.cols * size_of::<U>() > stride
    }

    /// Whether the two are the same elements in the same order.
    pub fn same(self, other: Rows<T>) -> bool {
        std::ptr::eq(self.pointer, other.pointer)
            && (self.rows, self.cols) == (other.rows, other.cols)
            && (self.stride == other.stride || self.rows <= 1)
    }

    fn byte_range(self) -> (usize, usize) {
        let start = self.pointer as usize;
        let n_elements = (self.rows - 1) * self.stride + self.cols;
        (start, start + n_elements * size_of::<T>())
    }
}

/// An error about shapes.
pub(super) fn shape(operation: &'static str, reason: String) -> DeviceError {
    DeviceError::Shape { operation, reason }
}

/// Checks that two numbers are equal.
pub(super) fn equal(
    operation: &'static str,
    what: &str,
    got: usize,
    expected: usize,
) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    Err(shape(operation, format!("{got} {what}, not {expected}")))
}

/// Checks that a matrix is `[rows, cols]`.
pub(super) fn is_shape<T>(
    operation: &'static str,
    what: &str,
    matrix: Rows<T>,
    rows: usize,
    cols: usize,
) -> Result<()> {
    if (matrix.rows, matrix.cols) == (rows, cols) {
        return Ok(());
    }
    Err(shape(
        operation,
        format!(
            "{what} is [{}, {}], not [{rows}, {cols}]",
            matrix.rows, matrix.cols
        ),
    ))
}

/// Checks that the output shares no element with the input.
pub(super) fn apart<T: Element, U: Element>(
    operation: &'static str,
    what: &str,
    output: Rows<T>,
    input: Rows<U>,
) -> Result<()> {
    if output.overlaps(input) {
        return Err(shape(operation, format!("{what} overlap")));
    }
    Ok(())
}

/// Checks that the output is the input, or shares no element with it.
pub(super) fn apart_or_same<T: Element>(
    operation: &'static str,
    what: &str,
    output: Rows<T>,
    input: Rows<T>,
) -> Result<()> {
    if output.same(input) {
        return Ok(());
    }
    apart(operation, what, output, input)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(len: usize) -> Tensor<CpuStorage> {
        let storage = CpuStorage::zeroed(len * 4, &Arc::default()).unwrap();
        Tensor::new(Arc::new(storage), 0, len, DType::F32)
    }

    #[test]
    fn overlap_knows_columns_of_one_buffer() {
        let whole = tensor(40);
        let view = whole.view(10);
        let rows = |from, to| Rows::<f32>::of("test", &view.columns(from..to)).unwrap();
        assert!(!rows(0, 4).overlaps(rows(4, 10)));
        assert!(!rows(4, 10).overlaps(rows(0, 4)));
        assert!(rows(0, 5).overlaps(rows(4, 10)));
        assert!(rows(4, 10).overlaps(rows(0, 5)));
        let upper = Rows::<f32>::of("test", &view.row_range(0..2)).unwrap();
        let lower = Rows::<f32>::of("test", &view.row_range(2..4)).unwrap();
        assert!(!upper.overlaps(lower));
        assert!(upper.overlaps(rows(0, 1)));
        // Columns that wrap around the other's row start.
        let shifted = View::new(whole.slice(8..38), 3, 3, 10);
        let shifted = Rows::<f32>::of("test", &shifted).unwrap();
        assert!(shifted.overlaps(rows(0, 1)));
        assert!(!shifted.overlaps(rows(1, 8)));
        assert!(rows(0, 1).overlaps(shifted));
        assert!(!rows(1, 8).overlaps(shifted));
    }

    #[test]
    fn a_tensor_beyond_its_storage_is_refused() {
        let storage = Arc::new(CpuStorage::zeroed(16, &Arc::default()).unwrap());
        for (offset, len) in [(0, 17), (64, 1), (2, 1), (8, usize::MAX / 2)] {
            let beyond = Tensor::new(Arc::clone(&storage), offset, len, DType::F32);
            assert!(Rows::<f32>::of_tensor("test", &beyond).is_err());
        }
    }

    #[test]
    fn the_meter_knows_what_is_held_and_the_most() {
        let meter = Arc::new(Meter::default());
        let first = CpuStorage::zeroed(100, &meter).unwrap();
        drop(CpuStorage::zeroed(50, &meter).unwrap());
        assert_eq!(meter.read(), (100, 150));
        drop(first);
        assert_eq!(meter.read(), (0, 150));
        assert!(CpuStorage::zeroed(usize::MAX - 100, &meter).is_err());
    }
}
