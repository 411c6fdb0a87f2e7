//! The suites that ship inside the binary.

use std::path::{Path, PathBuf};

use temper_core::Digest;

use crate::{error::CliError, exit_code};

/// The directories below `suites` as they were when this binary was built, packed by the build
/// script.
const SHIPPED: [(&str, &[u8]); 2] = [
    (
        "starter",
        include_bytes!(concat!(env!("OUT_DIR"), "/starter.tar.gz")),
    ),
    (
        "temper-mend",
        include_bytes!(concat!(env!("OUT_DIR"), "/temper-mend.tar.gz")),
    ),
];

/// The directory of a suite: one that ships, unpacked into the cache, or the path as given. A path
/// wins.
pub fn locate(name: &str, cache: &Path) -> Result<PathBuf, CliError> {
    if Path::new(name).exists() {
        return Ok(std::path::absolute(name)?);
    }
    match SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
        Some((name, archive)) => unpack(name, archive, &cache.join("suites")),
        None => {
            let shipped = SHIPPED.map(|(name, _)| format!("`{name}`")).join(" and ");
            Err(CliError::new(
                exit_code::INPUT,
                format!("find the suite {name:?}: there is no such file or directory"),
            )
            .hint(format!(
                "{shipped} ship with Temper; anything else is a path"
            )))
        }
    }
}

/// Unpacks an archive into a directory named by its digest. Several processes may do so at once;
/// the first rename wins.
fn unpack(name: &str, archive: &[u8], into: &Path) -> Result<PathBuf, CliError> {
    let target = into.join(format!("{name}-{}", Digest::of(archive).short()));
    if target.is_dir() {
        return Ok(target);
    }
    std::fs::create_dir_all(into)?;
    let temporary = into.join(format!("unpacking-{}", std::process::id()));
    // Left by a process of the same number that was killed.
    let _ = std::fs::remove_dir_all(&temporary);
    tar::Archive::new(flate2::read::GzDecoder::new(archive)).unpack(&temporary)?;
    if let Err(error) = std::fs::rename(&temporary, &target)
        && !target.is_dir()
    {
        return Err(error.into());
    }
    let _ = std::fs::remove_dir_all(&temporary);
    Ok(target)
}
