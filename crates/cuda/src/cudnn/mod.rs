//! Fused causal attention through cuDNN, found at run time.
//!
//! [`Cudnn::load`] opens `libcudnn.so.9`; [`Cudnn::attention_plan`] compiles (or finds again) the
//! plan for a shape; [`AttentionPlan::forward`] and [`AttentionPlan::backward`] queue it on the
//! stream. Grouped queries read their key/value head in place, sequences may be packed, and
//! operands may be slices of a fused buffer.
//!
//! Attention is written as a graph of small operations (matrix product, mask, softmax, matrix
//! product) which cuDNN's engines recognise and fuse. The single attention operation of newer
//! releases takes no causal mask before 9.21, so it is not used.
//!
//! What it does not do: other types than bf16, dropout, biases, masks that are not causal,
//! queries that outnumber or trail the keys (decoding against a cache).

mod backward;
mod descriptor;
mod forward;
mod graph;
mod library;
mod shape;
#[cfg(test)]
mod tests;

use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use thiserror::Error;

use backward::Scratch;
use descriptor::{Address, Descriptor, HandleValue, attribute, kind};
use graph::{ALIGNMENT, Graph, Plan};
use library::{Library, RawHandle};
use shape::{Form, IndexLayout, OFFSETS_ID, Operand};

pub use shape::{AttentionShape, Packing, RowStrides};

/// Addresses of workspaces, and of buffers inside them, are multiples of this many bytes.
pub const WORKSPACE_ALIGNMENT: usize = 256;

/// Plans kept for later. The one unused for longest makes room for a new one, so a caller whose
/// shapes all differ does not fill the device with kernels.
const MOST_PLANS: usize = 64;

/// Why cuDNN could not be loaded, planned with or run.
#[derive(Debug, Error)]
pub enum CudnnError {
    /// No library of that name where it was looked for.
    #[error("load cuDNN: libcudnn.so.9 was not found ({tried})")]
    NotFound {
        /// Each place with the loader's answer.
        tried: String,
    },
    /// A file of that name that is not cuDNN 9.
    #[error("load cuDNN: {path} has no function {function}")]
    MissingFunction {
        /// The file.
        path: PathBuf,
        /// The function.
        function: &'static str,
    },
    /// A release whose attention is faulty or lacks what is needed.
    #[error("use cuDNN {found}: {needed} or later is needed")]
    TooOld {
        /// The release found: 10000 × major + 100 × minor + patch.
        found: u64,
        /// The oldest that will do.
        needed: u64,
    },
    /// A call that cuDNN refused.
    #[error("{operation}: cuDNN answered {status} {name}: {reason}")]
    Call {
        /// What was attempted.
        operation: &'static str,
        /// cuDNN's status number.
        status: i32,
        /// Its name.
        name: String,
        /// cuDNN's last words on it.
        reason: String,
    },
    /// No engine of this release takes the graph on this device.
    #[error("plan attention: no engine of cuDNN takes it ({refusals})")]
    NoEngine {
        /// Each engine's answer.
        refusals: String,
    },
    /// Sizes that do not fit together, or that no plan can be made for.
    #[error("plan attention: {reason}")]
    Shape {
        /// What does not fit.
        reason: String,
    },
    /// A call that needs what the plan or the library was not made with.
    #[error("run attention: {reason}")]
    Use {
        /// What is missing.
        reason: &'static str,
    },
}

/// An opened cuDNN with its plans, bound to one device and one stream.
///
/// May be shared between threads; runs queue one after the other on the stream.
pub struct Cudnn {
    session: Arc<Session>,
    /// Oldest use first.
    plans: Mutex<Vec<(PlanKey, Arc<BuiltPlan>)>>,
}

/// The addresses of a forward run; see [`AttentionPlan::forward`] for what lies there.
#[derive(Clone, Copy, Debug)]
pub struct ForwardPointers {
    /// Queries.
    pub q: u64,
    /// Keys.
    pub k: u64,
    /// Values.
    pub v: u64,
    /// Output, written.
    pub out: u64,
    /// Log-sum-exps, written.
    pub lse: u64,
    /// Scratch memory.
    pub workspace: u64,
    /// The packed sequences' index; 0 for a single sequence.
    pub index: u64,
}

/// The addresses of a backward run; see [`AttentionPlan::backward`] for what lies there.
#[derive(Clone, Copy, Debug)]
pub struct BackwardPointers {
    /// Queries.
    pub q: u64,
    /// Keys.
    pub k: u64,
    /// Values.
    pub v: u64,
    /// Output of the forward run.
    pub out: u64,
    /// Log-sum-exps of the forward run.
    pub lse: u64,
    /// Gradient of the output.
    pub d_out: u64,
    /// Gradient of the queries, written.
    pub dq: u64,
    /// Gradient of the keys, written.
    pub dk: u64,
    /// Gradient of the values, written.
    pub dv: u64,
    /// Scratch memory.
    pub workspace: u64,
    /// The packed sequences' index; 0 for a single sequence.
    pub index: u64,
}

/// A compiled attention of one shape; cheap to clone.
#[derive(Clone)]
pub struct AttentionPlan {
    session: Arc<Session>,
    built: Arc<BuiltPlan>,
    softmax_scale: f32,
}

struct Session {
    library: Arc<Library>,
    device: Descriptor,
    /// None where plans are made for a device that is only described.
    handle: Option<Mutex<Handle>>,
}

struct Handle {
    raw: RawHandle,
    library: Arc<Library>,
}

// SAFETY: a handle may be used from any thread, one at a time; the mutex around it sees to that.
unsafe impl Send for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is live and nothing else destroys it. Its status helps no one here.
        unsafe {
            (self.library.destroy)(self.raw);
        }
    }
}

/// A shape as plans see it: the softmax scale is an argument of a run, not part of a plan.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PlanKey {
    tokens: usize,
    packing: Packing,
    query_heads: usize,
    key_value_heads: usize,
    head_dim: usize,
    strides: RowStrides,
    backward: bool,
    deterministic: bool,
}

impl From<&AttentionShape> for PlanKey {
    fn from(shape: &AttentionShape) -> Self {
        Self {
            tokens: shape.tokens,
            packing: shape.packing,
            query_heads: shape.query_heads,
            key_value_heads: shape.key_value_heads,
            head_dim: shape.head_dim,
            strides: shape.strides,
            backward: shape.backward,
            deterministic: shape.deterministic,
        }
    }
}

struct BuiltPlan {
    forward: Pass,
    backward: Option<Pass>,
    index: Option<IndexLayout>,
}

/// One direction: its plan, its buffers in the workspace and its offset tables.
struct Pass {
    plan: Plan,
    scratch: Vec<Scratch>,
    offsets: Vec<(i64, usize)>,
}

impl Cudnn {
    /// Opens cuDNN, from the first of `folders` that holds it or else by its name, for the current
    /// CUDA context, and runs everything on `stream` (a `CUstream`; null is the default stream).
    ///
    /// Fails where the library is missing ([`CudnnError::NotFound`]), too old or refuses.
    ///
    /// # Safety
    /// The calling thread has a current CUDA context, and it and `stream`, a stream of it, stay
    /// alive as long as this value and the plans made from it.
    pub unsafe fn load(stream: *mut c_void, folders: &[PathBuf]) -> Result<Self, CudnnError> {
        let library = Arc::new(Library::open(folders)?);
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is a place for the new handle; the context is current, as promised.
        let status = unsafe { (library.create)(&mut raw) };
        library.check("create a handle", status)?;
        let handle = Handle {
            raw,
            library: Arc::clone(&library),
        };
        // SAFETY: the handle is live, and the stream belongs to its context, as promised.
        let status = unsafe { (library.set_stream)(raw, stream) };
        library.check("set the stream", status)?;
        let mut device = Descriptor::new(&library, kind::DEVICE_PROPERTY)?;
        device.set(attribute::DEVICE_PROPERTY_HANDLE, &[HandleValue(raw)])?;
        device.finalize("describe the device")?;
        Ok(Self::with(library, device, Some(Mutex::new(handle))))
    }

    /// Opens cuDNN to plan for a device that is only described: shapes can be tried and their
    /// workspace sizes asked for, nothing can run. `description` is the JSON that
    /// [`Self::device_description`] gives. Plans load their kernels as they compile them, so
    /// the driver's `libcuda.so.1`, or a stand-in that reports success, must be there all the
    /// same; without it there is no engine for any shape.
    pub fn for_described_device(
        description: &str,
        folders: &[PathBuf],
    ) -> Result<Self, CudnnError> {
        let library = Arc::new(Library::open(folders)?);
        let mut device = Descriptor::new(&library, kind::DEVICE_PROPERTY)?;
        device.set(attribute::DEVICE_PROPERTY_JSON, description.as_bytes())?;
        device.finalize("describe the device")?;
        Ok(Self::with(library, device, None))
    }

    /// The release: 10000 × major + 100 × minor + patch.
    pub fn version(&self) -> u64 {
        self.session.library.version()
    }

    /// cuDNN's description of the device, for [`Self::for_described_device`].
    pub fn device_description(&self) -> Result<String, CudnnError> {
        let device = &self.session.device;
        let length = device.get_into::<u8>(attribute::DEVICE_PROPERTY_JSON, &mut [])?;
        let mut bytes = vec![0_u8; length.min(1 << 16)];
        device.get_into(attribute::DEVICE_PROPERTY_JSON, &mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes)
            .trim_end_matches('\0')
            .to_owned())
    }

    /// The plan for a shape: compiled the first time, which takes from tenths of a second to
    /// seconds, and found again after that, as long as it is among the last 64 used.
    ///
    /// Fails with [`CudnnError::Shape`] where sizes do not fit together and with
    /// [`CudnnError::NoEngine`] where this release has no engine for them on this device.
    pub fn attention_plan(&self, shape: &AttentionShape) -> Result<AttentionPlan, CudnnError> {
        shape.check(self.version())?;
        let key = PlanKey::from(shape);
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let built = match plans.iter().position(|(known, _)| *known == key) {
            Some(at) => plans.remove(at).1,
            None => Arc::new(self.session.build(shape)?),
        };
        if plans.len() == MOST_PLANS {
            plans.remove(0);
        }
        plans.push((key, Arc::clone(&built)));
        Ok(AttentionPlan {
            session: Arc::clone(&self.session),
            built,
            softmax_scale: shape.softmax_scale,
        })
    }

    fn with(library: Arc<Library>, device: Descriptor, handle: Option<Mutex<Handle>>) -> Self {
        Self {
            session: Arc::new(Session {
                library,
                device,
                handle,
            }),
            plans: Mutex::new(Vec::new()),
        }
    }
}

impl Session {
    fn build(&self, shape: &AttentionShape) -> Result<BuiltPlan, CudnnError> {
        let mut form = Form::new(shape, Graph::new(&self.library))?;
        forward::build(&mut form)?;
        let forward = self.pass(form, Vec::new(), false)?;
        let backward = if shape.backward {
            let mut form = Form::new(shape, Graph::new(&self.library))?;
            let scratch = backward::build(&mut form)?;
            Some(self.pass(form, scratch, shape.deterministic)?)
        } else {
            None
        };
        let rows: Vec<usize> = std::iter::once(&forward)
            .chain(&backward)
            .flat_map(|pass| pass.offsets.iter().map(|&(_, row)| row))
            .collect();
        Ok(BuiltPlan {
            index: IndexLayout::new(shape, rows.into_iter()),
            forward,
            backward,
        })
    }

    fn pass(
        &self,
        form: Form<'_>,
        scratch: Vec<Scratch>,
        deterministic: bool,
    ) -> Result<Pass, CudnnError> {
        let (graph, offsets) = form.finish();
        Ok(Pass {
            plan: graph.plan(&self.device, deterministic)?,
            scratch,
            offsets,
        })
    }
}

impl Pass {
    fn workspace_bytes(&self) -> usize {
        self.scratch
            .iter()
            .map(|scratch| scratch.bytes)
            .chain([self.plan.workspace_bytes()])
            .map(|bytes| bytes.next_multiple_of(WORKSPACE_ALIGNMENT))
            .sum()
    }
}

impl AttentionPlan {
    /// Bytes of workspace that a forward run needs.
    pub fn forward_workspace_bytes(&self) -> usize {
        self.built.forward.workspace_bytes()
    }

    /// Bytes of workspace that a backward run needs; 0 for a plan without one.
    pub fn backward_workspace_bytes(&self) -> usize {
        self.built
            .backward
            .as_ref()
            .map_or(0, Pass::workspace_bytes)
    }

    /// Bytes of workspace that serve both directions, one after the other.
    pub fn workspace_bytes(&self) -> usize {
        self.forward_workspace_bytes()
            .max(self.backward_workspace_bytes())
    }

    /// Bytes of the index that [`Self::index`] returns; 0 for a single sequence.
    pub fn index_bytes(&self) -> usize {
        self.built.index.as_ref().map_or(0, IndexLayout::bytes)
    }

    /// The index of packed sequences of these lengths, which lie one behind the other from row
    /// 0: to be copied to the device, at a multiple of 16 bytes, for the runs over them.
    ///
    /// Rows beyond the last sequence are neither read nor written. Fails with
    /// [`CudnnError::Shape`] where the sequences are more, longer or larger than planned for,
    /// and with [`CudnnError::Use`] for a plan of a single sequence.
    pub fn index(&self, lengths: &[usize]) -> Result<Vec<u8>, CudnnError> {
        match &self.built.index {
            Some(layout) => layout.fill(lengths),
            None => Err(CudnnError::Use {
                reason: "a plan for a single sequence has no index",
            }),
        }
    }

    /// Which engines the plan uses, for records of measurements.
    pub fn engines(&self) -> String {
        let name = |pass: &Pass| {
            let engine = pass.plan.engine();
            let note = if engine.deterministic {
                ""
            } else {
                " (not deterministic)"
            };
            format!("{}{note}", engine.index)
        };
        match &self.built.backward {
            Some(backward) => format!("{} / {}", name(&self.built.forward), name(backward)),
            None => name(&self.built.forward),
        }
    }

    /// Queues `out = softmax(causal(scale q kᵀ)) v` on the stream.
    ///
    /// All addresses are of device memory, multiples of 16 bytes. `q` and `out` are bf16
    /// `[tokens, query_heads, head_dim]`, `k` and `v` bf16 `[tokens, key_value_heads, head_dim]`,
    /// with the shape's row strides. `lse` is f32 `[query_heads, tokens]`: the natural logarithm
    /// of the sum of the exponentials of each row's scaled scores. `workspace` is
    /// [`Self::forward_workspace_bytes`] long, a multiple of [`WORKSPACE_ALIGNMENT`].
    ///
    /// Fails where cuDNN refuses to launch. What the kernel itself does wrong shows at the
    /// stream's next synchronisation.
    ///
    /// # Safety
    /// The context that cuDNN was loaded for is current on the calling thread. The memory is
    /// there, in that context, and stays until the stream has passed the run; what is written is
    /// used by nothing else meanwhile. `index` holds what [`Self::index`] gave for a packed plan.
    pub unsafe fn forward(&self, pointers: &ForwardPointers) -> Result<(), CudnnError> {
        let operands = [
            (Operand::Q, pointers.q),
            (Operand::K, pointers.k),
            (Operand::V, pointers.v),
            (Operand::Out, pointers.out),
            (Operand::Lse, pointers.lse),
        ];
        // SAFETY: as the caller promises.
        unsafe {
            self.run(
                &self.built.forward,
                &operands,
                pointers.workspace,
                pointers.index,
            )
        }
    }

    /// Queues the gradients of `q`, `k` and `v` on the stream, from what a forward run read and
    /// wrote and the gradient of its output.
    ///
    /// Layouts as for [`Self::forward`]: `d_out` as `out`, `dq`, `dk`, `dv` as `q`, `k`, `v`.
    /// The gradients overwrite what was there. `workspace` is
    /// [`Self::backward_workspace_bytes`] long.
    ///
    /// Fails with [`CudnnError::Use`] for a plan without a backward, and as a forward run does.
    ///
    /// # Safety
    /// As for [`Self::forward`].
    pub unsafe fn backward(&self, pointers: &BackwardPointers) -> Result<(), CudnnError> {
        let Some(pass) = &self.built.backward else {
            return Err(CudnnError::Use {
                reason: "the plan was made without a backward",
            });
        };
        let operands = [
            (Operand::Q, pointers.q),
            (Operand::K, pointers.k),
            (Operand::V, pointers.v),
            (Operand::Out, pointers.out),
            (Operand::Lse, pointers.lse),
            (Operand::DOut, pointers.d_out),
            (Operand::Dq, pointers.dq),
            (Operand::Dk, pointers.dk),
            (Operand::Dv, pointers.dv),
        ];
        // SAFETY: as the caller promises.
        unsafe { self.run(pass, &operands, pointers.workspace, pointers.index) }
    }

    /// # Safety
    /// As for [`Self::forward`].
    unsafe fn run(
        &self,
        pass: &Pass,
        operands: &[(Operand, u64)],
        workspace: u64,
        index: u64,
    ) -> Result<(), CudnnError> {
        let Some(handle) = &self.session.handle else {
            return Err(CudnnError::Use {
                reason: "the plan is for a device that is only described",
            });
        };
        let given = operands.iter().map(|&(_, address)| address);
        if given
            .chain([workspace, index])
            .any(|address| !address.is_multiple_of(ALIGNMENT as u64))
        {
            return Err(CudnnError::Use {
                reason: "addresses must be multiples of 16 bytes",
            });
        }
        let device = |address: u64| Address(address as usize as *mut c_void);
        let mut addresses: Vec<(i64, Address)> = operands
            .iter()
            .map(|&(operand, address)| (operand as i64, device(address)))
            .collect();

        let mut scalars = [self.softmax_scale, f32::NEG_INFINITY, 1.0];
        let is_backward = operands.iter().any(|&(operand, _)| operand == Operand::Dq);
        let ids = [Operand::Scale, Operand::MinusInfinity, Operand::One];
        let n_scalars = if is_backward { 3 } else { 2 };
        for (id, scalar) in ids.into_iter().zip(&mut scalars).take(n_scalars) {
            addresses.push((id as i64, Address(std::ptr::from_mut(scalar).cast())));
        }

        let mut next = workspace;
        for scratch in &pass.scratch {
            addresses.push((scratch.operand as i64, device(next)));
            next += scratch.bytes.next_multiple_of(WORKSPACE_ALIGNMENT) as u64;
        }

        if let Some(layout) = &self.built.index {
            if index == 0 {
                return Err(CudnnError::Use {
                    reason: "packed sequences need an index",
                });
            }
            addresses.push((Operand::QueryLengths as i64, device(index)));
            addresses.push((Operand::KeyLengths as i64, device(index)));
            for &(id, row) in &pass.offsets {
                debug_assert!(id > OFFSETS_ID);
                if let Some(at) = layout.table(row) {
                    addresses.push((id, device(index + at as u64)));
                }
            }
        }

        let handle = handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: every tensor that the graphs declare has its address above; the lock keeps
        // other threads off the handle. cuDNN reads the scalars before it returns.
        unsafe { pass.plan.run(handle.raw, &addresses, device(next)) }
    }
}
