//! Device memory: plain allocations, counted, freed when dropped; scratch; pinned staging.
//!
//! There is no caching allocator. The model lays its activations out once, so allocations are few,
//! and what the driver reports is what is used.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::result as driver;
use cudarc::driver::sys::{self, CUevent_flags_enum, CUresult};
use cudarc::driver::{CudaContext, CudaStream, DriverError};

/// Allocations are rounded up to this many bytes, which is also what addresses are multiples of.
const GRANULE: usize = 256;

/// A device's memory, and how much of it is taken.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
    used: AtomicUsize,
    peak: AtomicUsize,
    n_freed: AtomicUsize,
}

/// A piece of device memory, freed when dropped.
#[derive(Debug)]
pub struct Storage {
    pointer: sys::CUdeviceptr,
    n_bytes: usize,
    memory: Arc<Memory>,
}

impl Memory {
    pub(crate) fn new(context: Arc<CudaContext>, stream: Arc<CudaStream>) -> Arc<Self> {
        Arc::new(Memory {
            context,
            stream,
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            n_freed: AtomicUsize::new(0),
        })
    }

    /// Bytes taken now, and the most ever.
    pub(crate) fn usage(&self) -> (usize, usize) {
        (
            self.used.load(Ordering::Relaxed),
            self.peak.load(Ordering::Relaxed),
        )
    }

    /// How many pieces were freed so far: an address is good as long as this stays.
    pub(crate) fn n_freed(&self) -> usize {
        self.n_freed.load(Ordering::Relaxed)
    }

    /// At least `n_bytes` bytes of undefined content.
    pub(crate) fn allocate(self: &Arc<Self>, n_bytes: usize) -> Result<Storage, DriverError> {
        let n_bytes = n_bytes.max(1).next_multiple_of(GRANULE);
        self.context.bind_to_thread()?;
        // SAFETY: the context is current; the memory is freed once, by `Storage::drop`.
        let pointer = unsafe { driver::malloc_sync(n_bytes) }?;
        let used = self.used.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes;
        self.peak.fetch_max(used, Ordering::Relaxed);
        Ok(Storage {
            pointer,
            n_bytes,
            memory: Arc::clone(self),
        })
    }
}

impl Storage {
    /// The address on the device.
    pub(crate) fn pointer(&self) -> u64 {
        self.pointer
    }

    /// Bytes held.
    pub(crate) fn n_bytes(&self) -> usize {
        self.n_bytes
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let memory = &self.memory;
        // Work that was issued may still use the memory. A failure here has been or will be
        // reported by the operation that caused it.
        let _ = memory.context.bind_to_thread().and_then(|()| {
            let _ = memory.stream.synchronize();
            // SAFETY: allocated by `Memory::allocate`, freed only here, and no longer in use.
            unsafe { driver::free_sync(self.pointer) }
        });
        memory.used.fetch_sub(self.n_bytes, Ordering::Relaxed);
        memory.n_freed.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a scratch buffer is for; one operation uses at most one of each.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// A dequantised matrix.
    Dequantised,
    /// Partial sums of a reduction in fixed order.
    Partial,
    /// An operand in another type.
    Converted,
    /// What attention needs.
    Attention,
}

/// Buffers that operations write and read within one call, kept from call to call.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    current: [Mutex<Option<Arc<Storage>>>; 4],
    // Recorded graphs hold the addresses of buffers that were outgrown.
    outgrown: Mutex<Vec<Arc<Storage>>>,
}

impl Scratch {
    /// At least `n_bytes` bytes. Growing waits for the device.
    pub(crate) fn get(
        &self,
        memory: &Arc<Memory>,
        purpose: Purpose,
        n_bytes: usize,
        keep_outgrown: bool,
    ) -> Result<Arc<Storage>, DriverError> {
        let mut current = self.current[purpose as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(storage) = &*current
            && storage.n_bytes() >= n_bytes
        {
            return Ok(Arc::clone(storage));
        }
        if let Some(old) = current.take()
            && keep_outgrown
        {
            self.outgrown
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(old);
        }
        let storage = Arc::new(memory.allocate(n_bytes)?);
        *current = Some(Arc::clone(&storage));
        Ok(storage)
    }
}

/// Page-locked memory on the host through which uploads pass, so that they need no waiting.
///
/// Segments are filled in turn; one is filled again when the copies out of it are done.
#[derive(Debug)]
pub(crate) struct Staging {
    base: *mut u8,
    events: Vec<sys::CUevent>,
    pending: Vec<bool>,
    segment: usize,
    filled: usize,
    memory: Arc<Memory>,
}

// SAFETY: the pointers are to memory and events of the process, used under a lock.
unsafe impl Send for Staging {}

impl Staging {
    /// Bytes of one segment, the most that is copied at once.
    pub(crate) const SEGMENT: usize = 8 << 20;
    const N_SEGMENTS: usize = 4;

    pub(crate) fn new(memory: &Arc<Memory>) -> Result<Self, DriverError> {
        memory.context.bind_to_thread()?;
        // SAFETY: freed once, in `drop`.
        let base = unsafe { driver::malloc_host(Self::SEGMENT * Self::N_SEGMENTS, 0) }?.cast();
        let mut staging = Staging {
            base,
            events: Vec::new(),
            pending: vec![false; Self::N_SEGMENTS],
            segment: 0,
            filled: 0,
            memory: Arc::clone(memory),
        };
        for _ in 0..Self::N_SEGMENTS {
            staging.events.push(driver::event::create(
                CUevent_flags_enum::CU_EVENT_DISABLE_TIMING,
            )?);
        }
        Ok(staging)
    }

    /// Copies `n_bytes` bytes, at most a segment, to `to`; `fill` writes them, 16-byte aligned.
    pub(crate) fn upload<E: From<DriverError>>(
        &mut self,
        to: u64,
        n_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        assert!(n_bytes <= Self::SEGMENT, "{n_bytes} bytes in a segment");
        self.memory.context.bind_to_thread()?;
        let stream = self.memory.stream.cu_stream();
        if self.filled + n_bytes > Self::SEGMENT {
            // SAFETY: event and stream are live.
            unsafe { driver::event::record(self.events[self.segment], stream) }?;
            self.pending[self.segment] = true;
            self.segment = (self.segment + 1) % Self::N_SEGMENTS;
            self.filled = 0;
            if self.pending[self.segment] {
                // SAFETY: the event is live.
                unsafe { driver::event::synchronize(self.events[self.segment]) }?;
                self.pending[self.segment] = false;
            }
        }
        // SAFETY: within the segment, which no copy reads any more past `filled`; the memory was
        // allocated for writing, and bytes of any value are valid.
        let piece = unsafe {
            std::slice::from_raw_parts_mut(
                self.base.add(self.segment * Self::SEGMENT + self.filled),
                n_bytes,
            )
        };
        fill(piece)?;
        // SAFETY: `to` has room by the caller's promise; the piece stays as it is until the
        // segment's event has passed.
        unsafe { driver::memcpy_htod_async(to, piece, stream) }?;
        self.filled += n_bytes.next_multiple_of(GRANULE);
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = self.memory.context.bind_to_thread();
        let _ = self.memory.stream.synchronize();
        for &event in &self.events {
            // SAFETY: made by `new`, destroyed only here, no longer in use.
            let _ = unsafe { driver::event::destroy(event) };
        }
        // SAFETY: allocated by `new`, freed only here, no longer in use.
        let _ = unsafe { driver::free_host(self.base.cast::<c_void>()) };
    }
}

/// Whether the driver says that memory is used up.
pub(crate) fn is_out_of_memory(error: DriverError) -> bool {
    error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY
}
