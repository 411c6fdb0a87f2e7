//! Reading and replacing files.

use std::{
    fs,
    io::{Read, Write},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use crate::{EditError, TOOL, display};

/// Larger files are refused rather than read into memory.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// The whole content of a regular file.
pub fn read(path: &Path) -> Result<Vec<u8>, EditError> {
    let failed = |error| EditError::Os(error, path.to_owned());
    let metadata = fs::metadata(path).map_err(failed)?;
    // Opening a pipe would wait for a writer that may never come.
    if !metadata.is_file() && !metadata.is_dir() {
        return Err(EditError::Other(format!(
            "{} is not a regular file",
            display(path)
        )));
    }
    let mut bytes = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(EditError::Other(format!(
            "{} has more than {MAX_FILE_BYTES} bytes",
            display(path)
        )));
    }
    Ok(bytes)
}

/// Writes a file beside the target and renames it over it, so that a reader sees the old content or
/// the new one and never a part.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), EditError> {
    let failed = |error| EditError::Os(error, path.to_owned());
    let target = fs::canonicalize(path).map_err(failed)?;
    let metadata = fs::metadata(&target).map_err(failed)?;
    let temporary = target.with_file_name(format!(".{TOOL}.{}", std::process::id()));
    let result = (|| {
        let mut file = fs::File::create_new(&temporary)?;
        file.write_all(bytes)?;
        // Only root may give files away; a file of one's own has the right owner already.
        let _ = std::os::unix::fs::fchown(&file, Some(metadata.uid()), Some(metadata.gid()));
        file.set_permissions(fs::Permissions::from_mode(metadata.mode() & 0o7777))?;
        file.sync_all()?;
        fs::rename(&temporary, &target)
    })();
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    result.map_err(|error| EditError::Os(error, temporary))
}
