//! The device itself: opening it, its memory, errors, and what all operations share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::cublaslt::result::CublasError;
use cudarc::driver::sys::CUdevice_attribute;
use cudarc::driver::{CudaContext, CudaStream, DriverError, result as driver};
use temper_model::device::{DeviceError, Result};
use temper_model::tensor::{DType, Tensor, View};

use crate::attend::Attention;
use crate::gemm::{Gemm, Product, WORKSPACE_BYTES};
use crate::graphs::Graphs;
use crate::launch::{Family, Kernels};
use crate::libraries::LibraryFolders;
use crate::matrix::map_bytes;
use crate::memory::{Memory, Purpose, Scratch, Staging, Storage, is_out_of_memory};
use crate::nvrtc::CompileError;
use crate::probe::{Probe, ProbeError, probe};

/// Which GPU, and where things are found and kept.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// The driver's number of the GPU.
    pub ordinal: usize,
    /// Where libraries are looked for.
    pub folders: LibraryFolders,
    /// Where compiled kernels are kept from run to run; compiled anew each time without it.
    pub kernel_cache: Option<PathBuf>,
    /// What computes attention in training.
    pub attention: AttentionChoice,
}

/// What computes attention over whole sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttentionChoice {
    /// Our kernels for heads of 64 and 128 elements, and cuDNN, where it is there, for others.
    #[default]
    Best,
    /// Our kernels alone, whose gradients have the same bits on every run.
    Own,
}

/// Why a GPU could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is nothing to run on.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// There is no GPU of that number, or it is too old.
    #[error("use GPU {ordinal}: {reason}")]
    Gpu {
        /// The number asked for.
        ordinal: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The kernels could not be compiled or loaded.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The driver failed.
    #[error("open the GPU: {0}")]
    Driver(#[from] DriverError),
    /// cublasLt failed.
    #[error("open cublasLt: {0}")]
    Cublas(#[from] CublasError),
    /// The first operation failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A GPU as a device of the model. Activations are bf16, sums f32; one stream, in order.
///
/// A clone is the same device. Operations are issued from one thread at a time.
#[derive(Clone, Debug)]
pub struct Cuda {
    inner: Arc<Inner>,
}

// Fields are dropped in this order: what uses memory before what gives it.
#[derive(Debug)]
struct Inner {
    name: String,
    n_multiprocessors: u32,
    graphs: Graphs,
    attention: Attention,
    gemm: Gemm,
    kernels: Kernels,
    staging: Mutex<Staging>,
    scratch: Scratch,
    workspace: Storage,
    maps: Storage,
    // Whether a recorded graph may hold addresses of scratch buffers.
    has_graphs: AtomicBool,
    memory: Arc<Memory>,
    stream: Arc<CudaStream>,
    context: Arc<CudaContext>,
}

impl Cuda {
    /// What there is to run on; loads the libraries for the life of the process.
    ///
    /// # Errors
    /// Where something is missing that nothing works without.
    pub fn probe(folders: &LibraryFolders) -> std::result::Result<Probe, ProbeError> {
        probe(folders)
    }

    /// Opens a GPU: loads the libraries, compiles the kernels (or takes them from the cache),
    /// allocates a workspace.
    ///
    /// # Errors
    /// Where something is missing, the GPU is too old, or a library fails.
    pub fn open(options: &CudaOptions) -> std::result::Result<Self, OpenError> {
        let found = probe(&options.folders)?;
        let gpu = found
            .gpus
            .get(options.ordinal)
            .ok_or_else(|| OpenError::Gpu {
                ordinal: options.ordinal,
                reason: format!("there are {}", found.gpus.len()),
            })?;
        if !gpu.is_supported() {
            return Err(OpenError::Gpu {
                ordinal: options.ordinal,
                reason: format!("{} has no bf16 products", gpu.name),
            });
        }
        let context = CudaContext::new(options.ordinal)?;
        let stream = context.new_stream()?;
        let memory = Memory::new(Arc::clone(&context), Arc::clone(&stream));
        let kernels = Kernels::compile(&context, options.kernel_cache.as_deref())?;
        context.bind_to_thread()?;
        let gemm = Gemm::new()?;
        let mut staging = Staging::new(&memory)?;
        let maps = memory.allocate(map_bytes().len())?;
        staging.upload(maps.pointer(), map_bytes().len(), |bytes| {
            bytes.copy_from_slice(&map_bytes());
            Ok::<_, DriverError>(())
        })?;
        Ok(Cuda {
            inner: Arc::new(Inner {
                name: gpu.name.clone(),
                n_multiprocessors: u32::try_from(gpu.n_multiprocessors).unwrap_or(1),
                graphs: Graphs::default(),
                attention: Attention::new(options),
                gemm,
                kernels,
                staging: Mutex::new(staging),
                scratch: Scratch::default(),
                workspace: memory.allocate(WORKSPACE_BYTES)?,
                maps,
                has_graphs: AtomicBool::new(false),
                memory,
                stream,
                context,
            }),
        })
    }

    /// Bytes of the buffers that are there from the start.
    pub(crate) fn own_storage_bytes(&self) -> usize {
        self.inner.workspace.n_bytes() + self.inner.maps.n_bytes()
    }

    /// The multiprocessors of the GPU.
    pub fn n_multiprocessors(&self) -> u32 {
        self.inner.n_multiprocessors
    }

    /// Compute capability, as (9, 0) for Hopper.
    pub fn compute_capability(&self) -> Result<(i32, i32)> {
        self.context()
            .compute_capability()
            .map_err(|error| self.failed("read the compute capability", error))
    }

    /// The largest block of shared memory that a kernel may ask for, in bytes.
    pub fn shared_memory_bytes(&self) -> Result<usize> {
        let which = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        self.context()
            .attribute(which)
            .map(|bytes| usize::try_from(bytes).unwrap_or(0))
            .map_err(|error| self.failed("read the shared memory", error))
    }

    /// The driver's context.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.inner.context
    }

    /// The stream that all work is issued on.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.inner.stream
    }

    pub(crate) fn gpu_name(&self) -> &str {
        &self.inner.name
    }

    pub(crate) fn graphs(&self) -> &Graphs {
        &self.inner.graphs
    }

    pub(crate) fn attention_state(&self) -> &Attention {
        &self.inner.attention
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.inner.memory
    }

    /// The signed and the unsigned 8-bit map, f32, one behind the other.
    pub(crate) fn maps(&self) -> &Storage {
        &self.inner.maps
    }

    /// From now on scratch addresses may be recorded in a graph.
    pub(crate) fn keep_scratch(&self) {
        self.inner.has_graphs.store(true, Ordering::Relaxed);
    }

    // Errors.

    pub(crate) fn failed(
        &self,
        operation: &'static str,
        reason: impl std::fmt::Display,
    ) -> DeviceError {
        DeviceError::Failed {
            operation,
            device: self.inner.name.clone(),
            reason: reason.to_string(),
        }
    }

    pub(crate) fn unsupported(&self, operation: &'static str, reason: String) -> DeviceError {
        DeviceError::Unsupported {
            operation,
            device: self.inner.name.clone(),
            reason,
        }
    }

    fn allocation_failed(&self, n_bytes: usize, error: DriverError) -> DeviceError {
        if !is_out_of_memory(error) {
            return self.failed("allocate", error);
        }
        let (used, _) = self.inner.memory.usage();
        DeviceError::OutOfMemory {
            n_bytes,
            device: self.inner.name.clone(),
            reason: format!("{error}, {used} bytes are held"),
        }
    }

    // Memory.

    pub(crate) fn allocate(&self, n_bytes: usize) -> Result<Storage> {
        self.inner
            .memory
            .allocate(n_bytes)
            .map_err(|error| self.allocation_failed(n_bytes, error))
    }

    /// A tensor of undefined content.
    pub(crate) fn allocate_tensor(&self, dtype: DType, len: usize) -> Result<Tensor<Storage>> {
        let storage = self.allocate(len * dtype.size())?;
        Ok(Tensor::new(Arc::new(storage), 0, len, dtype))
    }

    /// The address of a scratch buffer of at least `n_bytes` bytes.
    pub(crate) fn scratch(&self, purpose: Purpose, n_bytes: usize) -> Result<u64> {
        Ok(self.scratch_storage(purpose, n_bytes)?.pointer())
    }

    /// A scratch buffer as a tensor.
    pub(crate) fn scratch_tensor(
        &self,
        purpose: Purpose,
        dtype: DType,
        len: usize,
    ) -> Result<Tensor<Storage>> {
        let storage = self.scratch_storage(purpose, len * dtype.size())?;
        Ok(Tensor::new(storage, 0, len, dtype))
    }

    fn scratch_storage(&self, purpose: Purpose, n_bytes: usize) -> Result<Arc<Storage>> {
        let keep_outgrown = self.inner.has_graphs.load(Ordering::Relaxed);
        self.inner
            .scratch
            .get(&self.inner.memory, purpose, n_bytes, keep_outgrown)
            .map_err(|error| self.allocation_failed(n_bytes, error))
    }

    /// The address of a tensor's first element.
    pub(crate) fn pointer(&self, tensor: &Tensor<Storage>) -> u64 {
        tensor.storage().pointer() + tensor.byte_offset() as u64
    }

    /// The address of a view's first element.
    pub(crate) fn at(&self, view: &View<Storage>) -> u64 {
        self.pointer(view.tensor())
    }

    pub(crate) fn staging(&self) -> MutexGuard<'_, Staging> {
        self.inner
            .staging
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies `n_bytes` bytes, at most a staging segment, which `fill` writes, to `to`.
    pub(crate) fn stage(
        &self,
        to: u64,
        n_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        enum Fault {
            Driver(DriverError),
            Fill(DeviceError),
        }
        impl From<DriverError> for Fault {
            fn from(error: DriverError) -> Self {
                Fault::Driver(error)
            }
        }
        self.staging()
            .upload(to, n_bytes, |bytes| fill(bytes).map_err(Fault::Fill))
            .map_err(|fault| match fault {
                Fault::Driver(error) => self.failed("upload", error),
                Fault::Fill(error) => error,
            })
    }

    /// Copies elements to device memory that has room for them.
    pub(crate) fn upload_slice<T: Copy>(&self, values: &[T], to: u64) -> Result<()> {
        // SAFETY: plain numbers of the caller, read as bytes.
        let bytes = unsafe {
            std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values))
        };
        let mut at = to;
        for piece in bytes.chunks(Staging::SEGMENT) {
            self.stage(at, piece.len(), |staged| {
                staged.copy_from_slice(piece);
                Ok(())
            })?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Waits for all work, then reads device memory.
    pub(crate) fn download_from(&self, from: u64, n_bytes: usize) -> Result<Vec<u8>> {
        const OPERATION: &str = "download";
        let fail = |error| self.failed(OPERATION, error);
        self.context().bind_to_thread().map_err(fail)?;
        let mut bytes = vec![0u8; n_bytes];
        // SAFETY: `bytes` outlives the copy, which the synchronisation below waits for; `from`
        // holds as many bytes by the caller's promise.
        unsafe { driver::memcpy_dtoh_async(&mut bytes, from, self.stream().cu_stream()) }
            .map_err(fail)?;
        self.stream().synchronize().map_err(fail)?;
        Ok(bytes)
    }

    // Work.

    /// Issues a kernel.
    ///
    /// # Safety
    /// The arguments must be what the kernel takes, and what it reads and writes must be there.
    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn launch(
        &self,
        operation: &'static str,
        family: Family,
        kernel: &str,
        grid: (u32, u32, u32),
        block: (u32, u32, u32),
        arguments: &[u64],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            self.inner
                .kernels
                .launch(self.stream(), family, kernel, grid, block, arguments)
        }
        .map_err(|error| self.failed(operation, error))
    }

    /// Issues a product of nonempty matrices.
    ///
    /// # Safety
    /// The matrices must be there.
    pub(crate) unsafe fn multiply(&self, operation: &'static str, product: &Product) -> Result<()> {
        self.context()
            .bind_to_thread()
            .map_err(|error| self.failed(operation, error))?;
        // SAFETY: the caller's promise; the workspace is used by this one stream.
        unsafe {
            self.inner.gemm.run(
                product,
                self.inner.workspace.pointer(),
                self.stream().cu_stream().cast(),
            )
        }
        .map_err(|error| self.failed(operation, format!("cublasLt, {product:?}: {error}")))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Libraries free their own things as fields are dropped; nothing may be running then.
        let _ = self.context.bind_to_thread();
        let _ = self.stream.synchronize();
    }
}
