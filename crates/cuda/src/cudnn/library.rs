//! The cuDNN library, opened at run time: where it is looked for, its entry points, its errors.
//!
//! Nothing here links against cuDNN. The library is looked for in the folders the caller names,
//! such as `nvidia/cudnn/lib` of a Python wheel, then by its name on the system's search path.

use std::ffi::{CStr, c_char, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use super::CudnnError;

/// What every cuDNN call returns; zero is success.
pub(super) type Status = i32;

/// An opaque object of the backend API.
pub(super) type RawDescriptor = *mut c_void;

/// A cuDNN context, bound to one CUDA context and one stream.
pub(super) type RawHandle = *mut c_void;

/// The library's file name; the major version is part of its ABI.
const FILE_NAME: &str = "libcudnn.so.9";

/// The oldest release whose fused attention gives right bf16 gradients: 9.10.0 and 9.10.1 do not,
/// and descriptions of devices (which plans are built from) appeared in 9.8.
const MINIMUM_VERSION: u64 = 91002;

type Create = unsafe extern "C" fn(*mut RawHandle) -> Status;
type Destroy = unsafe extern "C" fn(RawHandle) -> Status;
type SetStream = unsafe extern "C" fn(RawHandle, *mut c_void) -> Status;
type CreateDescriptor = unsafe extern "C" fn(i32, *mut RawDescriptor) -> Status;
type OneDescriptor = unsafe extern "C" fn(RawDescriptor) -> Status;
type SetAttribute = unsafe extern "C" fn(RawDescriptor, i32, i32, i64, *const c_void) -> Status;
type GetAttribute =
    unsafe extern "C" fn(RawDescriptor, i32, i32, i64, *mut i64, *mut c_void) -> Status;
type Execute = unsafe extern "C" fn(RawHandle, RawDescriptor, RawDescriptor) -> Status;
type ErrorString = unsafe extern "C" fn(Status) -> *const c_char;
type LastErrorString = unsafe extern "C" fn(*mut c_char, usize);

/// The entry points of an opened cuDNN.
pub(super) struct Library {
    pub(super) create: Create,
    pub(super) destroy: Destroy,
    pub(super) set_stream: SetStream,
    pub(super) create_descriptor: CreateDescriptor,
    pub(super) destroy_descriptor: OneDescriptor,
    pub(super) finalize: OneDescriptor,
    pub(super) set_attribute: SetAttribute,
    pub(super) get_attribute: GetAttribute,
    pub(super) execute: Execute,
    error_string: ErrorString,
    last_error_string: LastErrorString,
    version: u64,
    /// Never closed: cuDNN registers CUDA modules and thread-local state that outlive a handle.
    _opened: ManuallyDrop<libloading::Library>,
    _companions: ManuallyDrop<Vec<libloading::Library>>,
}

impl Library {
    /// Opens cuDNN from the first of `folders` that holds it, or else by its name.
    ///
    /// Fails with [`CudnnError::NotFound`] where it is nowhere, [`CudnnError::MissingFunction`]
    /// where the file is not cuDNN 9, [`CudnnError::TooOld`] where its bf16 attention is faulty.
    pub(super) fn open(folders: &[PathBuf]) -> Result<Self, CudnnError> {
        let companions = open_companions(folders);
        let (opened, path) = open_first(folders)?;
        // SAFETY: each type is the C declaration of the function in cuDNN 9's headers, and the
        // library stays open for as long as the process lives.
        unsafe {
            let version: unsafe extern "C" fn() -> usize =
                function(&opened, &path, "cudnnGetVersion")?;
            let library = Self {
                create: function(&opened, &path, "cudnnCreate")?,
                destroy: function(&opened, &path, "cudnnDestroy")?,
                set_stream: function(&opened, &path, "cudnnSetStream")?,
                create_descriptor: function(&opened, &path, "cudnnBackendCreateDescriptor")?,
                destroy_descriptor: function(&opened, &path, "cudnnBackendDestroyDescriptor")?,
                finalize: function(&opened, &path, "cudnnBackendFinalize")?,
                set_attribute: function(&opened, &path, "cudnnBackendSetAttribute")?,
                get_attribute: function(&opened, &path, "cudnnBackendGetAttribute")?,
                execute: function(&opened, &path, "cudnnBackendExecute")?,
                error_string: function(&opened, &path, "cudnnGetErrorString")?,
                last_error_string: function(&opened, &path, "cudnnGetLastErrorString")?,
                version: version() as u64,
                _opened: ManuallyDrop::new(opened),
                _companions: ManuallyDrop::new(companions),
            };
            if library.version < MINIMUM_VERSION {
                return Err(CudnnError::TooOld {
                    found: library.version,
                    needed: MINIMUM_VERSION,
                });
            }
            Ok(library)
        }
    }

    /// The release: 10000 × major + 100 × minor + patch.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Turns a status into an error that carries cuDNN's own words, or into success.
    pub(super) fn check(&self, operation: &'static str, status: Status) -> Result<(), CudnnError> {
        if status == 0 {
            return Ok(());
        }
        let mut message = [0 as c_char; 4096];
        // SAFETY: cuDNN writes at most the given number of bytes, the last of them zero, and
        // `error_string` returns a static string for every status.
        let (name, reason) = unsafe {
            (self.last_error_string)(message.as_mut_ptr(), message.len());
            message[message.len() - 1] = 0;
            let name = (self.error_string)(status);
            let name = if name.is_null() {
                String::new()
            } else {
                CStr::from_ptr(name).to_string_lossy().into_owned()
            };
            (
                name,
                CStr::from_ptr(message.as_ptr())
                    .to_string_lossy()
                    .into_owned(),
            )
        };
        Err(CudnnError::Call {
            operation,
            status,
            name,
            reason: reason.trim().replace('\n', "; "),
        })
    }
}

fn open_first(folders: &[PathBuf]) -> Result<(libloading::Library, PathBuf), CudnnError> {
    let places = folders
        .iter()
        .map(|folder| folder.join(FILE_NAME))
        .chain([PathBuf::from(FILE_NAME)]);
    let mut tried = Vec::new();
    for path in places {
        // SAFETY: opening runs the initialisers of the library, which is the vendor's; a folder
        // is named by the caller, who trusts it as it trusts the system's search path.
        match unsafe { libloading::Library::new(&path) } {
            Ok(opened) => return Ok((opened, path)),
            Err(error) => tried.push(format!("{}: {error}", path.display())),
        }
    }
    Err(CudnnError::NotFound {
        tried: tried.join("; "),
    })
}

/// Opens what the run-time compiler needs and, in a wheel's folders, does not find by itself:
/// cuDNN's attention kernels are compiled when a plan is built, and NVRTC asks for its built-in
/// functions by bare name, which is answered by whatever of that name is already open.
fn open_companions(folders: &[PathBuf]) -> Vec<libloading::Library> {
    let mut opened = Vec::new();
    for folder in folders {
        let Ok(entries) = folder.read_dir() else {
            continue;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if name.to_string_lossy().starts_with("libnvrtc-builtins.so.") {
                // SAFETY: as for the library itself. What does not open is not missed unless a
                // plan needs it, and then cuDNN reports the failed compilation.
                opened.extend(unsafe { libloading::Library::new(entry.path()) });
            }
        }
    }
    opened
}

/// Reads one entry point.
///
/// # Safety
/// `F` must be the function's C type, and `opened` must outlive every call of it.
unsafe fn function<F: Copy>(
    opened: &libloading::Library,
    path: &Path,
    name: &'static str,
) -> Result<F, CudnnError> {
    // SAFETY: as the caller promises.
    match unsafe { opened.get::<F>(name.as_bytes()) } {
        Ok(symbol) => Ok(*symbol),
        Err(_) => Err(CudnnError::MissingFunction {
            path: path.to_owned(),
            function: name,
        }),
    }
}
