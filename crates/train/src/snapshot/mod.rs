//! Immutable snapshots of a run, whole or not at all.
//!
//! A snapshot is made in a hidden folder: its files are written and synchronised, the folder gets
//! its name by one rename, and last of all a marker with the digest of its manifest is written.
//! The manifest has the size and digest of every file, so a snapshot that lacks its marker, a file,
//! or part of a file is passed over with the reason, whatever took it away.

mod find;
mod write;

use std::{collections::BTreeMap, io, path::PathBuf};

use serde::{Deserialize, Serialize};
use temper_core::{Digest, manifest::Producer};

use crate::{optimizer::MomentKind, order::Position};

pub use find::{Found, Snapshot};

/// The version of the format that this code writes.
pub const FORMAT: u32 = 1;

const MANIFEST: &str = "manifest.json";
const MARKER: &str = "complete.json";
const OPTIMIZER: &str = "optimizer.bin";
const PREFIX: &str = "update-";

/// The snapshots of one run.
#[derive(Clone, Debug)]
pub struct Snapshots {
    folder: PathBuf,
}

/// What a snapshot says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotManifest {
    /// Version of this format.
    pub format: u32,
    /// The program that wrote it.
    pub producer: Producer,
    /// The run's objective.
    pub objective: String,
    /// Updates that it has done: the position of the schedule.
    pub update: u64,
    /// Updates of the whole run.
    pub total_updates: u64,
    /// Where in the data the next update's window lies.
    pub position: Position,
    /// Tokens and supervised tokens that went through the model in training so far.
    pub n_tokens: u64,
    /// Supervised ones among them.
    pub n_supervised: u64,
    /// The state of randomness: all of it is drawn by counters of a seed and an epoch, so these
    /// are the whole state.
    pub seed: u64,
    /// The digest of everything that changes results: settings, data, model, objective.
    pub identity: Digest,
    /// What the identity is made of, each by its digest.
    pub inputs: BTreeMap<String, Digest>,
    /// The settings.
    pub config: serde_json::Value,
    /// The folder with the weights.
    pub weights: String,
    /// What the file of the optimizer's state holds.
    pub optimizer: OptimizerLayout,
    /// Every file but this one and the marker.
    pub files: BTreeMap<String, FileRecord>,
}

/// The optimizer's state in its file: its tensors one after another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerLayout {
    /// Updates that the optimizer has done.
    pub update: u64,
    /// How moments are held.
    pub moments: MomentKind,
    /// Bytes of each tensor.
    pub lengths: Vec<u64>,
}

/// A file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// Its size.
    pub n_bytes: u64,
    /// Its content.
    pub digest: Digest,
}

/// The marker of a whole snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Marker {
    manifest: Digest,
}

/// Why snapshots could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// A file or folder.
    #[error("{operation} {}: {source}", .path.display())]
    Io {
        /// What was done.
        operation: &'static str,
        /// With what.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// Something else has the name.
    #[error("write the snapshot {}: it exists already", .path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
}

impl SnapshotError {
    fn on(
        operation: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> SnapshotError {
        let path = path.into();
        move |source| SnapshotError::Io {
            operation,
            path,
            source,
        }
    }
}
