//! Which vLLM is installed, without starting it: importing it takes many seconds.

use std::{ffi::OsStr, fs, path::Path};

use temper_checkpoint::context::Version;

/// The release behind the `vllm` that `path` finds first, by the metadata beside its environment's
/// packages.
pub fn installed(path: &OsStr) -> Option<Version> {
    let bin = std::env::split_paths(path).find(|folder| folder.join("vllm").is_file())?;
    let libraries = bin.parent()?.join("lib");
    let pythons = fs::read_dir(libraries).ok()?.flatten();
    pythons
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .flat_map(|entry| ["site-packages", "dist-packages"].map(|name| entry.path().join(name)))
        .find_map(|packages| of_packages(&packages))
}

fn of_packages(packages: &Path) -> Option<Version> {
    fs::read_dir(packages).ok()?.flatten().find_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let version = name.strip_prefix("vllm-")?.strip_suffix(".dist-info")?;
        version.parse().ok()
    })
}
