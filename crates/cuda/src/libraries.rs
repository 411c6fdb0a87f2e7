//! Finding CUDA's libraries at run time: the system's, or those in Python's wheels.
//!
//! cudarc opens libraries by name and panics where that fails. So each library is opened here
//! first, from the usual places; once it is loaded, the loader finds it again by its name.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Where CUDA's libraries are looked for, beyond the loader's own search path (which covers
/// `LD_LIBRARY_PATH` and the system's folders).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LibraryFolders {
    folders: Vec<PathBuf>,
}

/// One of the libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// The driver.
    Driver,
    /// The compiler of the kernels.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// Fused attention; optional.
    Cudnn,
}

/// Where a library was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Under its name, in the loader's search path.
    ByName,
    /// In one of the folders.
    At(PathBuf),
}

impl Library {
    /// The stem of its file's name.
    pub fn stem(self) -> &'static str {
        match self {
            Library::Driver => "libcuda.so",
            Library::Nvrtc => "libnvrtc.so",
            Library::CublasLt => "libcublasLt.so",
            Library::Cudnn => "libcudnn.so",
        }
    }

    /// What to do where it is missing.
    pub fn hint(self) -> &'static str {
        match self {
            Library::Driver => {
                "install NVIDIA's driver; in a container, start it with access to the GPU"
            }
            Library::Nvrtc => {
                "install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc` beside python3"
            }
            Library::CublasLt => {
                "install the CUDA toolkit, or `pip install nvidia-cublas` beside python3"
            }
            Library::Cudnn => {
                "optional, makes attention faster: `pip install nvidia-cudnn-cu13` beside python3"
            }
        }
    }

    /// The major versions that are known to work, newest first.
    fn versions(self) -> &'static [&'static str] {
        match self {
            Library::Driver => &["1"],
            Library::Nvrtc | Library::CublasLt => &["13", "12"],
            Library::Cudnn => &["9"],
        }
    }
}

impl LibraryFolders {
    /// Only these folders.
    pub fn new(folders: Vec<PathBuf>) -> Self {
        LibraryFolders { folders }
    }

    /// The folders of toolkits and Python wheels that `path` (the value of `PATH`), `home` and
    /// `prefixes` (such as the values of `VIRTUAL_ENV`, `CONDA_PREFIX`, `CUDA_HOME`) lead to.
    /// Nothing is run; only folders that exist are kept.
    pub fn search(path: Option<&OsStr>, home: Option<&Path>, prefixes: &[PathBuf]) -> Self {
        let mut roots: Vec<PathBuf> = prefixes.to_vec();
        for folder in path.map(std::env::split_paths).into_iter().flatten() {
            let python = folder.join("python3");
            // A virtual environment's python3 is a link out of it: both ends count.
            for place in [Some(python.clone()), python.canonicalize().ok()]
                .into_iter()
                .flatten()
            {
                if place.exists()
                    && let Some(root) = place.parent().and_then(Path::parent)
                {
                    roots.push(root.to_owned());
                }
            }
        }
        roots.extend(home.map(|home| home.join(".local")));
        roots.extend(["/usr/local", "/usr"].map(PathBuf::from));

        let mut folders = Vec::new();
        for root in &roots {
            for python in folders_in(&root.join("lib"), "python3") {
                for packages in ["site-packages", "dist-packages"] {
                    for wheel in folders_in(&python.join(packages).join("nvidia"), "") {
                        folders.push(wheel.join("lib"));
                    }
                }
            }
            folders.push(root.join("lib64"));
            folders.push(root.join("targets/x86_64-linux/lib"));
        }
        for toolkit in folders_in(Path::new("/usr/local"), "cuda") {
            folders.push(toolkit.join("lib64"));
        }
        let mut known = std::collections::HashSet::new();
        folders.retain(|folder| folder.is_dir() && known.insert(folder.clone()));
        LibraryFolders { folders }
    }

    /// [`Self::search`] over this process's environment.
    pub fn from_environment() -> Self {
        let prefixes = ["VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH"]
            .into_iter()
            .filter_map(std::env::var_os)
            .map(PathBuf::from)
            .collect::<Vec<_>>();
        Self::search(
            std::env::var_os("PATH").as_deref(),
            std::env::var_os("HOME").map(PathBuf::from).as_deref(),
            &prefixes,
        )
    }

    /// The folders, in the order in which they are tried.
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// Opens a library for the life of the process, so that it is found by name from then on.
    pub fn load(&self, library: Library) -> Option<Found> {
        let names: Vec<String> = std::iter::once(library.stem().to_owned())
            .chain(
                library
                    .versions()
                    .iter()
                    .map(|version| format!("{}.{version}", library.stem())),
            )
            .collect();
        if names.iter().any(|name| open(Path::new(name))) {
            return Some(Found::ByName);
        }
        for folder in &self.folders {
            if library == Library::Nvrtc {
                // NVRTC opens its builtins by name when it first compiles.
                for builtins in files_in(folder, "libnvrtc-builtins.so") {
                    open(&builtins);
                }
            }
            for name in &names {
                let path = folder.join(name);
                if path.exists() && open(&path) {
                    return Some(Found::At(path));
                }
            }
        }
        None
    }
}

/// Opens a library for good; whether that worked.
fn open(path: &Path) -> bool {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
    // SAFETY: opening runs the initialisers of NVIDIA's libraries, found in the system's search
    // path or in folders that the caller trusts as much.
    match unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) } {
        Ok(library) => {
            std::mem::forget(library);
            true
        }
        Err(_) => false,
    }
}

/// Folders within `folder` whose names begin with `prefix`, in order of names.
fn folders_in(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut found = files_in(folder, prefix);
    found.retain(|path| path.is_dir());
    found
}

fn files_in(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheels_beside_a_python_on_the_path_are_found_through_links() {
        let root = tempfile::tempdir().unwrap();
        let base = root.path().join("base");
        let environment = root.path().join("environment");
        let wheel = |root: &Path| root.join("lib/python3.12/site-packages/nvidia/cu13/lib");
        for place in [&base, &environment] {
            std::fs::create_dir_all(place.join("bin")).unwrap();
            std::fs::create_dir_all(wheel(place)).unwrap();
        }
        std::fs::write(base.join("bin/python3"), "").unwrap();
        std::os::unix::fs::symlink(base.join("bin/python3"), environment.join("bin/python3"))
            .unwrap();
        let found = LibraryFolders::search(Some(environment.join("bin").as_os_str()), None, &[]);
        let base = base.canonicalize().unwrap();
        let at = |folder: &Path| found.folders().iter().position(|path| path == folder);
        assert!(at(&wheel(&environment)).is_some(), "{found:?}");
        assert!(at(&wheel(&environment)) < at(&wheel(&base)), "{found:?}");
    }

    #[test]
    fn a_library_that_is_nowhere_is_not_found() {
        let empty = tempfile::tempdir().unwrap();
        let folders = LibraryFolders::new(vec![empty.path().to_owned()]);
        // A file of the right name that is no library is passed over.
        std::fs::write(empty.path().join("libcudnn.so.9"), "no library").unwrap();
        if !open(Path::new("libcudnn.so.9")) {
            assert_eq!(folders.load(Library::Cudnn), None);
        }
    }
}
