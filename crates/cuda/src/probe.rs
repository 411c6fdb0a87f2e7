//! What there is to run on: GPUs, the driver, the libraries, and what is missing.

use std::fmt;

use cudarc::driver::result::{self, device};
use cudarc::driver::sys::CUdevice_attribute as Attribute;

use crate::libraries::{Found, Library, LibraryFolders};

/// A GPU that the driver shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// The driver's number of it, from 0.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Compute capability, as (9, 0) for Hopper.
    pub compute_capability: (i32, i32),
    /// Bytes of memory.
    pub memory_bytes: usize,
    /// Multiprocessors.
    pub n_multiprocessors: usize,
}

impl GpuInfo {
    /// Whether this crate runs on it: compute capability 8.0 and later has bfloat16 products.
    pub fn is_supported(&self) -> bool {
        self.compute_capability >= (8, 0)
    }
}

/// What was found on this machine.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The highest CUDA version the driver speaks, as 13000 for 13.0.
    pub driver_version: i32,
    /// GPUs, in the driver's order.
    pub gpus: Vec<GpuInfo>,
    /// Each library, and where it is.
    pub libraries: Vec<(Library, Option<Found>)>,
}

/// Why nothing can run on a GPU here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeError {
    /// The driver's library is not there.
    NoDriver,
    /// The driver is there and does not start.
    DriverFailed {
        /// What it said.
        reason: String,
    },
    /// There is no GPU.
    NoGpu,
    /// Every GPU is older than compute capability 8.0.
    TooOld {
        /// The GPUs.
        gpus: Vec<GpuInfo>,
    },
    /// A library is missing that nothing works without.
    NoLibrary {
        /// Which.
        library: Library,
        /// The GPUs that would have been used.
        gpus: Vec<GpuInfo>,
        /// How many folders were searched.
        n_folders: usize,
    },
}

impl ProbeError {
    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            ProbeError::NoDriver => Library::Driver.hint(),
            ProbeError::DriverFailed { .. } => {
                "run `nvidia-smi`: driver and kernel module must be of one version"
            }
            ProbeError::NoGpu => "make a GPU visible (CUDA_VISIBLE_DEVICES hides them)",
            ProbeError::TooOld { .. } => "use a GPU of compute capability 8.0 or later, or the CPU",
            ProbeError::NoLibrary { library, .. } => library.hint(),
        }
    }
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeError::NoDriver => write!(f, "find NVIDIA's driver: libcuda.so.1 is not there"),
            ProbeError::DriverFailed { reason } => {
                write!(f, "start NVIDIA's driver: {reason}")
            }
            ProbeError::NoGpu => write!(f, "find a GPU: the driver shows none"),
            ProbeError::TooOld { gpus } => {
                write!(f, "use the GPU: ")?;
                for (i, gpu) in gpus.iter().enumerate() {
                    let (major, minor) = gpu.compute_capability;
                    let separator = if i == 0 { "" } else { ", " };
                    write!(
                        f,
                        "{separator}{} has compute capability {major}.{minor}",
                        gpu.name
                    )?;
                }
                write!(f, ", and 8.0 is needed")
            }
            ProbeError::NoLibrary {
                library, n_folders, ..
            } => write!(
                f,
                "find {}: it is neither in the loader's search path nor in {n_folders} folders of \
                 toolkits and Python wheels",
                library.stem()
            ),
        }
    }
}

impl std::error::Error for ProbeError {}

/// Looks for the driver, GPUs and libraries; loads the libraries for the life of the process.
///
/// # Errors
/// Where something is missing that nothing works without; cuDNN may be missing.
pub fn probe(folders: &LibraryFolders) -> Result<Probe, ProbeError> {
    if folders.load(Library::Driver).is_none() {
        return Err(ProbeError::NoDriver);
    }
    // SAFETY: opens and closes the driver's library by name.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err(ProbeError::NoDriver);
    }
    let (driver_version, gpus) = gpus().map_err(|error| match error.0 {
        cudarc::driver::sys::CUresult::CUDA_ERROR_NO_DEVICE => ProbeError::NoGpu,
        _ => ProbeError::DriverFailed {
            reason: error.to_string(),
        },
    })?;
    if gpus.is_empty() {
        return Err(ProbeError::NoGpu);
    }
    if !gpus.iter().any(GpuInfo::is_supported) {
        return Err(ProbeError::TooOld { gpus });
    }
    let mut libraries = Vec::new();
    for library in [Library::Nvrtc, Library::CublasLt, Library::Cudnn] {
        let found = folders.load(library);
        if found.is_none() && library != Library::Cudnn {
            return Err(ProbeError::NoLibrary {
                library,
                gpus,
                n_folders: folders.folders().len(),
            });
        }
        libraries.push((library, found));
    }
    Ok(Probe {
        driver_version,
        gpus,
        libraries,
    })
}

/// The driver's version and its GPUs; its library must be loadable.
fn gpus() -> Result<(i32, Vec<GpuInfo>), cudarc::driver::DriverError> {
    result::init()?;
    let mut version = 0;
    // SAFETY: writes one integer.
    unsafe { cudarc::driver::sys::cuDriverGetVersion(&mut version) }.result()?;
    let mut gpus = Vec::new();
    for ordinal in 0..device::get_count()? {
        let gpu = device::get(ordinal)?;
        // SAFETY: `gpu` is a device that the driver has just named.
        let attribute = |which| unsafe { device::get_attribute(gpu, which) };
        gpus.push(GpuInfo {
            ordinal: usize::try_from(ordinal).unwrap_or(0),
            name: device::get_name(gpu)?,
            compute_capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            // SAFETY: as above.
            memory_bytes: unsafe { device::total_mem(gpu) }?,
            n_multiprocessors: usize::try_from(attribute(
                Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            )?)
            .unwrap_or(1),
        });
    }
    Ok((version, gpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_gpu_gets_a_reason_and_not_a_panic() {
        // Where there is a GPU, the probe succeeds or names the missing library.
        match probe(&LibraryFolders::default()) {
            Ok(found) => assert!(!found.gpus.is_empty()),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                assert!(!error.hint().is_empty());
            }
        }
    }
}
