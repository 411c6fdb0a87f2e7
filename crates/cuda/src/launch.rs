//! Launching kernels: modules by family, functions by name, arguments as 8-byte words.

use std::collections::HashMap;
use std::ffi::c_void;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream, DriverError, result};

use crate::nvrtc::{self, CompileError};

/// What every kernel text begins with.
const COMMON: &str = include_str!("../kernels/common.cuh");

/// Kernel texts that are compiled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Copies, sums, gathers, SwiGLU, rotary embedding.
    Elementwise,
    /// RMS norms and sums over rows.
    Norm,
    /// Log-probabilities.
    Head,
    /// Drawing tokens.
    Sample,
    /// The embedding's gradient.
    Embed,
    /// Quantised weights.
    Quantised,
    /// The optimizer.
    Optimizer,
}

impl Family {
    /// Every family.
    pub const ALL: [Family; 7] = [
        Family::Elementwise,
        Family::Norm,
        Family::Head,
        Family::Sample,
        Family::Embed,
        Family::Quantised,
        Family::Optimizer,
    ];

    /// Its name, which is that of its file.
    pub fn name(self) -> &'static str {
        match self {
            Family::Elementwise => "elementwise",
            Family::Norm => "norm",
            Family::Head => "head",
            Family::Sample => "sample",
            Family::Embed => "embed",
            Family::Quantised => "quantised",
            Family::Optimizer => "optimizer",
        }
    }

    /// Its whole text.
    pub fn source(self) -> String {
        let text = match self {
            Family::Elementwise => include_str!("../kernels/elementwise.cu"),
            Family::Norm => include_str!("../kernels/norm.cu"),
            Family::Head => include_str!("../kernels/head.cu"),
            Family::Sample => include_str!("../kernels/sample.cu"),
            Family::Embed => include_str!("../kernels/embed.cu"),
            Family::Quantised => include_str!("../kernels/quantised.cu"),
            Family::Optimizer => include_str!("../kernels/optimizer.cu"),
        };
        format!("{COMMON}\n{text}")
    }
}

/// The compiled kernels.
#[derive(Debug)]
pub(crate) struct Kernels {
    modules: Vec<Arc<CudaModule>>,
    functions: RwLock<HashMap<String, CudaFunction>>,
}

impl Kernels {
    /// Compiles every family, side by side, or takes it from `cache`.
    pub(crate) fn compile(
        context: &Arc<CudaContext>,
        cache: Option<&Path>,
    ) -> Result<Self, CompileError> {
        let compiled = std::thread::scope(|scope| {
            let running = Family::ALL.map(|family| {
                scope.spawn(move || {
                    context
                        .bind_to_thread()
                        .map_err(|source| CompileError::Driver {
                            name: family.name().to_owned(),
                            source,
                        })?;
                    nvrtc::compile(context, family.name(), &family.source(), &[], cache)
                })
            });
            running.map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        });
        Ok(Kernels {
            modules: compiled.into_iter().collect::<Result<_, _>>()?,
            functions: RwLock::default(),
        })
    }

    /// Issues a kernel. `arguments` are its parameters in order, each in the low bytes of a word.
    ///
    /// # Safety
    /// The arguments must be what the kernel takes, and what it reads and writes must be there.
    pub(crate) unsafe fn launch(
        &self,
        stream: &CudaStream,
        family: Family,
        name: &str,
        grid: (u32, u32, u32),
        block: (u32, u32, u32),
        arguments: &[u64],
    ) -> Result<(), DriverError> {
        stream.context().bind_to_thread()?;
        let known = self
            .functions
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .map(CudaFunction::cu_function);
        let function = match known {
            Some(function) => function,
            None => {
                let function = self.modules[family as usize].load_function(name)?;
                let raw = function.cu_function();
                self.functions
                    .write()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(name.to_owned(), function);
                raw
            }
        };
        let mut pointers = [std::ptr::null_mut::<c_void>(); 24];
        for (pointer, argument) in pointers.iter_mut().zip(arguments) {
            *pointer = std::ptr::from_ref(argument).cast_mut().cast();
        }
        // SAFETY: the function is live, as its module is; the driver copies the arguments before
        // it returns; the rest is the caller's promise.
        unsafe {
            result::launch_kernel(
                function,
                grid,
                block,
                0,
                stream.cu_stream(),
                &mut pointers[..arguments.len()],
            )
        }
    }
}

/// A kernel's parameter as a word.
pub(crate) trait Word {
    fn word(self) -> u64;
}
impl Word for u64 {
    fn word(self) -> u64 {
        self
    }
}
impl Word for usize {
    fn word(self) -> u64 {
        self as u64
    }
}
impl Word for u32 {
    fn word(self) -> u64 {
        u64::from(self)
    }
}
impl Word for bool {
    fn word(self) -> u64 {
        u64::from(self)
    }
}
impl Word for f32 {
    fn word(self) -> u64 {
        u64::from(self.to_bits())
    }
}

/// The parameters of a kernel as words.
macro_rules! words {
    ($($argument:expr),* $(,)?) => {
        &[$($crate::launch::Word::word($argument)),*]
    };
}
pub(crate) use words;
