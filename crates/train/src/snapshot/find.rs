//! Finding the newest snapshot that is whole, and why others are not.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use temper_core::Digest;

use super::{
    FORMAT, MANIFEST, MARKER, Marker, OPTIMIZER, PREFIX, SnapshotError, SnapshotManifest,
    Snapshots, write::digest,
};
use crate::optimizer::OptimizerState;

/// A whole snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Its folder.
    pub path: PathBuf,
    /// What it says of itself.
    pub manifest: SnapshotManifest,
}

/// What a search found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The newest snapshot that is whole.
    pub snapshot: Option<Snapshot>,
    /// Newer ones that are not, each with the reason; newest first.
    pub passed_over: Vec<(PathBuf, String)>,
}

/// A manifest is a few kilobytes; more is not ours.
const MAX_JSON_BYTES: u64 = 16 << 20;

impl Snapshots {
    /// Looks for the newest whole snapshot. Every byte of what is looked at is read.
    pub fn newest(&self) -> Result<Found, SnapshotError> {
        let mut found = Found::default();
        let mut candidates = self.candidates()?;
        candidates.sort_unstable();
        for (update, path) in candidates.into_iter().rev() {
            match self.read(&path) {
                Ok(snapshot) if snapshot.manifest.update == update => {
                    found.snapshot = Some(snapshot);
                    break;
                }
                Ok(snapshot) => {
                    let of = snapshot.manifest.update;
                    let reason = format!("it is the snapshot of update {of} under another name");
                    found.passed_over.push((path, reason));
                }
                Err(reason) => found.passed_over.push((path, reason)),
            }
        }
        Ok(found)
    }

    /// All snapshots that are whole, oldest first; their files' content is not read.
    pub fn all(&self) -> Result<Vec<Snapshot>, SnapshotError> {
        let mut candidates = self.candidates()?;
        candidates.sort_unstable();
        let snapshots = candidates.iter();
        Ok(snapshots
            .filter_map(|(_, path)| manifest_of(path).ok())
            .collect())
    }

    fn candidates(&self) -> Result<Vec<(u64, PathBuf)>, SnapshotError> {
        let on = || SnapshotError::on("read", &self.folder);
        let mut candidates = Vec::new();
        for item in fs::read_dir(&self.folder).map_err(on())? {
            let item = item.map_err(on())?;
            let name = item.file_name();
            let update = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            if let Some(update) = update.and_then(|digits| digits.parse().ok()) {
                candidates.push((update, item.path()));
            }
        }
        Ok(candidates)
    }

    /// Reads a snapshot and checks all of it.
    pub(super) fn read(&self, path: &Path) -> Result<Snapshot, String> {
        let snapshot = manifest_of(path)?;
        for (name, record) in &snapshot.manifest.files {
            let file = path.join(name);
            let n_bytes = match fs::metadata(&file) {
                Ok(metadata) => metadata.len(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(format!("its file {name} is missing"));
                }
                Err(error) => return Err(format!("its file {name} cannot be read: {error}")),
            };
            if n_bytes != record.n_bytes {
                return Err(format!(
                    "its file {name} has {n_bytes} bytes of {}",
                    record.n_bytes
                ));
            }
            let content = File::open(&file)
                .and_then(|mut file| digest(&mut file))
                .map_err(|error| format!("its file {name} cannot be read: {error}"))?;
            if content.1 != record.digest {
                return Err(format!(
                    "the content of its file {name} is not what was written"
                ));
            }
        }
        Ok(snapshot)
    }
}

impl Snapshot {
    /// The optimizer's state.
    pub fn optimizer(&self) -> Result<OptimizerState, SnapshotError> {
        let path = self.path.join(OPTIMIZER);
        let layout = &self.manifest.optimizer;
        let read = || {
            let mut file = File::open(&path)?;
            let size = file.metadata()?.len();
            let total = layout
                .lengths
                .iter()
                .try_fold(0u64, |sum, &it| sum.checked_add(it));
            if total != Some(size) {
                let reason = format!("{size} bytes where its manifest has {:?}", layout.lengths);
                return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
            }
            let tensors = layout.lengths.iter().map(|&length| {
                let mut bytes = vec![0; length as usize];
                file.read_exact(&mut bytes)?;
                Ok(bytes)
            });
            tensors.collect::<io::Result<Vec<_>>>()
        };
        Ok(OptimizerState {
            update: layout.update,
            moments: layout.moments,
            tensors: read().map_err(SnapshotError::on("read", &path))?,
        })
    }

    /// The folder with its weights.
    pub fn weights(&self) -> PathBuf {
        self.path.join(&self.manifest.weights)
    }
}

/// The manifest of a folder whose marker says that it is complete.
fn manifest_of(path: &Path) -> Result<Snapshot, String> {
    let marker = small(&path.join(MARKER))
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "its writing was not finished".to_owned(),
            _ => format!("its marker cannot be read: {error}"),
        })
        .and_then(|bytes| {
            serde_json::from_slice::<Marker>(&bytes)
                .map_err(|_| "its writing was not finished: the marker is incomplete".to_owned())
        })?;
    let bytes = small(&path.join(MANIFEST))
        .map_err(|error| format!("its manifest cannot be read: {error}"))?;
    if Digest::of(&bytes) != marker.manifest {
        return Err("its manifest is not what was written".into());
    }
    let manifest: SnapshotManifest = serde_json::from_slice(&bytes)
        .map_err(|error| format!("its manifest is of another kind: {error}"))?;
    if manifest.format != FORMAT {
        return Err(format!(
            "its format is {}, and this is {FORMAT}",
            manifest.format
        ));
    }
    Ok(Snapshot {
        path: path.to_owned(),
        manifest,
    })
}

fn small(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut bytes = Vec::new();
    file.take(MAX_JSON_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}
