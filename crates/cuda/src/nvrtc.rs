//! Kernels as text, compiled by NVRTC for the card found and kept on disk.
//!
//! The result is machine code (a cubin) for exactly that card, so the driver translates nothing at
//! load time; only where NVRTC is older than the card is it PTX. Nothing here finds libraries:
//! NVRTC must be loadable under its usual names, and a missing one is an error, not a panic.
//! Kernel text may include no header, since Python's CUDA wheels carry only part of them.

use std::ffi::{CString, c_char, c_int};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::{CudaContext, CudaModule, DriverError};
use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::{Ptx, sys};
use sha2::{Digest, Sha256};

/// Why kernel text could not become a loaded module.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The NVRTC library cannot be loaded under any of its usual names.
    #[error("load NVRTC (libnvrtc), which compiles the kernels: no such library was found")]
    LibraryMissing,
    /// A name, option or source that holds a NUL byte.
    #[error("pass {what} to NVRTC: it holds a NUL byte")]
    Nul {
        /// Which text it was.
        what: &'static str,
    },
    /// NVRTC knows no architecture that the card can run.
    #[error("compile for compute capability {0}.{1}: this NVRTC supports none that it can run")]
    Unsupported(i32, i32),
    /// An NVRTC call other than the compilation itself failed.
    #[error("call {call}: {source}")]
    Nvrtc {
        /// The NVRTC function.
        call: &'static str,
        /// Its status.
        source: NvrtcError,
    },
    /// The text does not compile; `log` is the compiler's own words.
    #[error("compile {name} for {arch}: {source}\n{log}")]
    Text {
        /// The module's name.
        name: String,
        /// The architecture asked for.
        arch: String,
        /// NVRTC's status.
        source: NvrtcError,
        /// The compiler's log.
        log: String,
    },
    /// The driver refused the compiled module, or a question about the card.
    #[error("load the compiled module {name}: {source}")]
    Driver {
        /// The module's name.
        name: String,
        /// The driver's status.
        source: DriverError,
    },
}

/// Compiles `source` (CUDA C++ without includes) for the card of `cx` and loads it.
///
/// `name` is used in messages and in the cached file's name; `options` are NVRTC options such as
/// `-DHEAD_DIM=128` and must not name an architecture. With `cache`, the compiled code is read
/// from and written to that directory (created when missing), keyed by a hash of name, source,
/// options, NVRTC version, driver version and card architecture. A cache that cannot be read or
/// written is passed over in silence: it only saves time.
///
/// # Errors
///
/// NVRTC missing, text that does not compile (with the compiler's log), or a module that the
/// driver refuses.
pub fn compile(
    cx: &Arc<CudaContext>,
    name: &str,
    source: &str,
    options: &[String],
    cache: Option<&Path>,
) -> Result<Arc<CudaModule>, CompileError> {
    let driver = |source| CompileError::Driver {
        name: name.to_owned(),
        source,
    };
    // SAFETY: only opens and closes a library by name.
    if !unsafe { sys::is_culib_present() } {
        return Err(CompileError::LibraryMissing);
    }
    let (major, minor) = cx.compute_capability().map_err(driver)?;
    let target = Target::choose((major, minor), &supported_architectures()?)
        .ok_or(CompileError::Unsupported(major, minor))?;
    let kept = match cache {
        Some(directory) => {
            let key = key(&[
                name.as_bytes(),
                source.as_bytes(),
                options.join("\n").as_bytes(),
                nvrtc_version()?.as_bytes(),
                &driver_version().map_err(driver)?.to_le_bytes(),
                target.option().as_bytes(),
            ]);
            Some(directory.join(format!("{name}-{}.bin", &key[..32])))
        }
        None => None,
    };
    if let Some(image) = kept.as_deref().and_then(read_kept) {
        return cx.load_module(Ptx::from_binary(image)).map_err(driver);
    }
    let image = compile_image(name, source, options, target)?;
    if let Some(path) = &kept {
        // A failure costs only the next start's compile time.
        drop(write_kept(path, &image));
    }
    cx.load_module(Ptx::from_binary(image)).map_err(driver)
}

/// What NVRTC is asked to compile for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    number: i32,
    kind: TargetKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetKind {
    /// Machine code for this architecture with its own instructions (`sm_90a`).
    Specific,
    /// Machine code for this architecture (`sm_86`).
    Plain,
    /// PTX of an older architecture (`compute_90`), translated by the driver.
    Virtual,
}

impl Target {
    /// The best target for a card of compute capability `(major, minor)` among the architectures
    /// that NVRTC supports (as numbers, 90 for 9.0); none when it supports none that the card can
    /// run.
    ///
    /// From 9.0 on it is the architecture-specific one, without which Hopper's matrix and copy
    /// instructions are refused.
    pub fn choose((major, minor): (i32, i32), supported: &[i32]) -> Option<Self> {
        let card = 10 * major + minor;
        let number = supported.iter().copied().filter(|&n| n <= card).max()?;
        let kind = match number == card {
            false => TargetKind::Virtual,
            true if card >= 90 => TargetKind::Specific,
            true => TargetKind::Plain,
        };
        Some(Self { number, kind })
    }

    /// Its NVRTC option, as `--gpu-architecture=sm_90a`.
    pub fn option(self) -> String {
        let number = self.number;
        let name = match self.kind {
            TargetKind::Specific => format!("sm_{number}a"),
            TargetKind::Plain => format!("sm_{number}"),
            TargetKind::Virtual => format!("compute_{number}"),
        };
        format!("--gpu-architecture={name}")
    }
}

/// Compiles `source` to a loadable image (a cubin, or PTX for an older architecture) without a
/// device; see [`compile`] for the arguments.
///
/// # Errors
///
/// As [`compile`]; NVRTC must have been found, or cudarc panics.
pub fn compile_image(
    name: &str,
    source: &str,
    options: &[String],
    target: Target,
) -> Result<Vec<u8>, CompileError> {
    let nul = |what| move |_| CompileError::Nul { what };
    let call = |call| move |source| CompileError::Nvrtc { call, source };
    let text = CString::new(source).map_err(nul("a kernel's source"))?;
    let file = CString::new(format!("{name}.cu")).map_err(nul("a kernel's name"))?;
    let architecture = target.option();
    let options = options
        .iter()
        .map(String::as_str)
        .chain([architecture.as_str(), "--std=c++17"])
        .map(|option| CString::new(option).map_err(nul("an option")))
        .collect::<Result<Vec<_>, _>>()?;
    let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();

    let program =
        Program(result::create_program(&text, Some(&file)).map_err(call("nvrtcCreateProgram"))?);
    // SAFETY: the program is live, and the option strings outlive the call.
    let outcome =
        unsafe { sys::nvrtcCompileProgram(program.0, pointers.len() as c_int, pointers.as_ptr()) }
            .result();
    if let Err(source) = outcome {
        // SAFETY: the program is live.
        let log = unsafe { result::get_program_log(program.0) }.unwrap_or_default();
        let log: Vec<u8> = log
            .iter()
            .map(|&c| c as u8)
            .take_while(|&c| c != 0)
            .collect();
        return Err(CompileError::Text {
            name: name.to_owned(),
            arch: architecture,
            source,
            log: String::from_utf8_lossy(&log).into_owned(),
        });
    }
    if target.kind == TargetKind::Virtual {
        // SAFETY: the program is live and compiled.
        let ptx = unsafe { result::get_ptx(program.0) }.map_err(call("nvrtcGetPTX"))?;
        return Ok(ptx.iter().map(|&c| c as u8).collect());
    }
    let mut size = 0;
    // SAFETY: the program is live and compiled for a real architecture; `size` is written.
    unsafe { sys::nvrtcGetCUBINSize(program.0, &mut size) }
        .result()
        .map_err(call("nvrtcGetCUBINSize"))?;
    let mut image = vec![0_u8; size];
    // SAFETY: `image` has the size just asked for.
    unsafe { sys::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast()) }
        .result()
        .map_err(call("nvrtcGetCUBIN"))?;
    Ok(image)
}

/// A live NVRTC program.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `create_program` and not destroyed before. A failure leaks it.
        let _leaked = unsafe { result::destroy_program(self.0) };
    }
}

fn supported_architectures() -> Result<Vec<i32>, CompileError> {
    let mut count = 0;
    // SAFETY: writes one integer.
    unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) }
        .result()
        .map_err(|source| CompileError::Nvrtc {
            call: "nvrtcGetNumSupportedArchs",
            source,
        })?;
    let mut numbers = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: the array has the length just asked for.
    unsafe { sys::nvrtcGetSupportedArchs(numbers.as_mut_ptr()) }
        .result()
        .map_err(|source| CompileError::Nvrtc {
            call: "nvrtcGetSupportedArchs",
            source,
        })?;
    Ok(numbers)
}

fn nvrtc_version() -> Result<String, CompileError> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: writes two integers.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) }
        .result()
        .map_err(|source| CompileError::Nvrtc {
            call: "nvrtcVersion",
            source,
        })?;
    Ok(format!("{major}.{minor}"))
}

fn driver_version() -> Result<i32, DriverError> {
    let mut version = 0;
    // SAFETY: writes one integer.
    unsafe { cudarc::driver::sys::cuDriverGetVersion(&mut version) }.result()?;
    Ok(version)
}

/// The hexadecimal SHA-256 of the parts, each preceded by its length.
fn key(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// A kept image, if the file is whole.
///
/// The driver takes an image without a length, so a cut file must not reach it: the file opens
/// with the SHA-256 of the rest.
fn read_kept(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(path).ok()?;
    if bytes.len() <= 32 {
        return None;
    }
    let image = bytes.split_off(32);
    (Sha256::digest(&image)[..] == bytes[..]).then_some(image)
}

/// Keeps an image whole or not at all: it is written beside its place and then renamed.
fn write_kept(path: &Path, image: &[u8]) -> std::io::Result<()> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let beside: PathBuf = path.with_extension(format!("{}.{number}", std::process::id()));
    let mut file = fs::File::create(&beside)?;
    let written = file
        .write_all(&Sha256::digest(image))
        .and_then(|()| file.write_all(image))
        .and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        drop(fs::remove_file(&beside));
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_is_the_cards_own_where_nvrtc_knows_it() {
        let supported = [75, 80, 86, 89, 90, 100];
        let option = |card, supported: &[i32]| Target::choose(card, supported).map(Target::option);
        let is = |name: &str| Some(format!("--gpu-architecture={name}"));
        assert_eq!(option((9, 0), &supported), is("sm_90a"));
        assert_eq!(option((8, 6), &supported), is("sm_86"));
        assert_eq!(option((8, 7), &supported), is("compute_86"));
        assert_eq!(option((12, 0), &supported), is("compute_100"));
        assert_eq!(option((7, 0), &supported), None);
    }

    #[test]
    fn parts_of_a_key_do_not_run_together() {
        assert_ne!(key(&[b"ab", b"c"]), key(&[b"a", b"bc"]));
    }

    #[test]
    fn a_kept_image_comes_back_whole_or_not_at_all() {
        let directory = std::env::temp_dir().join(format!("temper-nvrtc-{}", std::process::id()));
        let path = directory.join("kernel-00.bin");
        write_kept(&path, b"machine code").unwrap();
        assert_eq!(read_kept(&path).as_deref(), Some(&b"machine code"[..]));
        let mut bytes = fs::read(&path).unwrap();
        bytes.pop();
        fs::write(&path, &bytes).unwrap();
        assert_eq!(read_kept(&path), None);
        fs::write(&path, [0; 32]).unwrap();
        assert_eq!(read_kept(&path), None);
        fs::remove_dir_all(&directory).unwrap();
    }
}
