//! Writing of snapshots.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use serde::Serialize;
use temper_core::{Digest, digest::Hasher};

use super::{
    FileRecord, MANIFEST, MARKER, Marker, OPTIMIZER, PREFIX, SnapshotError, SnapshotManifest,
    Snapshots,
};
use crate::optimizer::OptimizerState;

impl Snapshots {
    /// The snapshots in a folder, which is made if need be. What a killed process left of a
    /// snapshot in the making is removed; one process at a time may write here.
    pub fn open(folder: &Path) -> Result<Self, SnapshotError> {
        fs::create_dir_all(folder).map_err(SnapshotError::on("make", folder))?;
        let on = || SnapshotError::on("read", folder);
        for item in fs::read_dir(folder).map_err(on())? {
            let item = item.map_err(on())?;
            let name = item.file_name();
            if name.to_string_lossy().starts_with(&format!(".{PREFIX}")) {
                let path = item.path();
                fs::remove_dir_all(&path).map_err(SnapshotError::on("remove", &path))?;
            }
        }
        Ok(Snapshots {
            folder: folder.to_owned(),
        })
    }

    /// Where the snapshot of an update is.
    pub fn path(&self, update: u64) -> PathBuf {
        self.folder.join(format!("{PREFIX}{update:08}"))
    }

    /// Writes a snapshot. `fill` puts the weights into the folder that it is given; the manifest's
    /// list of files is made here.
    ///
    /// A folder of the same name that is no whole snapshot makes room. A whole one is never
    /// touched.
    pub fn write<E: From<SnapshotError>>(
        &self,
        manifest: SnapshotManifest,
        optimizer: &OptimizerState,
        fill: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<PathBuf, E> {
        let target = self.path(manifest.update);
        if target.exists() {
            if self.read(&target).is_ok() {
                return Err(SnapshotError::Exists { path: target }.into());
            }
            fs::remove_dir_all(&target).map_err(SnapshotError::on("remove", &target))?;
        }
        let work = tempfile::Builder::new()
            .prefix(&format!(".{PREFIX}"))
            .tempdir_in(&self.folder)
            .map_err(SnapshotError::on("make a folder in", &self.folder))?;
        fill(work.path())?;
        Ok(self.complete(work, target, manifest, optimizer)?)
    }

    fn complete(
        &self,
        work: tempfile::TempDir,
        target: PathBuf,
        mut manifest: SnapshotManifest,
        optimizer: &OptimizerState,
    ) -> Result<PathBuf, SnapshotError> {
        let state = work.path().join(OPTIMIZER);
        let write = || {
            let mut file = File::create(&state)?;
            for tensor in &optimizer.tensors {
                file.write_all(tensor)?;
            }
            Ok(())
        };
        write().map_err(SnapshotError::on("write", &state))?;
        manifest.files.clear();
        let mut folders = vec![work.path().to_owned()];
        while let Some(folder) = folders.pop() {
            let on = || SnapshotError::on("read", &folder);
            for item in fs::read_dir(&folder).map_err(on())? {
                let path = item.map_err(on())?.path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let name = path.strip_prefix(work.path()).unwrap_or(&path);
                let name = name.to_string_lossy().into_owned();
                let record = record(&path).map_err(SnapshotError::on("read", &path))?;
                manifest.files.insert(name, record);
            }
            synchronise(&folder).map_err(SnapshotError::on("synchronise", &folder))?;
        }
        let bytes = json(&manifest);
        let path = work.path().join(MANIFEST);
        write_synchronised(&path, &bytes).map_err(SnapshotError::on("write", &path))?;
        synchronise(work.path()).map_err(SnapshotError::on("synchronise", work.path()))?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // A temporary folder is private to its owner; this one is to be as any other.
            fs::set_permissions(work.path(), fs::Permissions::from_mode(0o755))
                .map_err(SnapshotError::on("open up", work.path()))?;
        }
        fs::rename(work.path(), &target).map_err(SnapshotError::on("name", &target))?;
        // It has another name now, under which it is to stay.
        let _ = work.keep();
        synchronise(&self.folder).map_err(SnapshotError::on("synchronise", &self.folder))?;
        let marker = Marker {
            manifest: Digest::of(&bytes),
        };
        let path = target.join(MARKER);
        write_synchronised(&path, &json(&marker)).map_err(SnapshotError::on("write", &path))?;
        synchronise(&target).map_err(SnapshotError::on("synchronise", &target))?;
        Ok(target)
    }
}

/// Size and digest of a file, which is on the disk after this.
fn record(path: &Path) -> io::Result<FileRecord> {
    let mut file = File::open(path)?;
    file.sync_all()?;
    let (n_bytes, digest) = digest(&mut file)?;
    Ok(FileRecord { n_bytes, digest })
}

/// Bytes and digest of what a reader gives.
pub(super) fn digest(reader: &mut dyn Read) -> io::Result<(u64, Digest)> {
    let mut hasher = Hasher::default();
    let mut buffer = vec![0; 1 << 20];
    let mut n_bytes = 0;
    loop {
        let n = reader.read(&mut buffer)?;
        if n == 0 {
            return Ok((n_bytes, hasher.finish()));
        }
        hasher.update(&buffer[..n]);
        n_bytes += n as u64;
    }
}

fn write_synchronised(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn synchronise(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn json(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(value).expect("plain data serializes to JSON");
    bytes.push(b'\n');
    bytes
}
