//! Log-probabilities of the reference, computed once and kept by content.
//!
//! The key of a pair is the digest of everything that its log-probabilities depend on: the model,
//! the starting adapter or the fresh one's draw, how weights are held, the device, and the pair
//! itself. So another run over the same pairs takes them from the file, and nothing that would
//! change them can be taken for the same.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};
use temper_core::{Digest, digest::Hasher};
use temper_model::Device;

use super::{PreferenceConfig, digest_of};
use crate::{
    row::Pair,
    run::{Run, TrainError, adapter_digest},
};

/// The reference's log-probabilities of a pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PairReference {
    pub chosen: f64,
    pub rejected: f64,
}

/// A file of them.
#[derive(Debug)]
pub(super) struct Cache {
    path: PathBuf,
    /// The digest of what all pairs' log-probabilities depend on.
    policy: Digest,
    known: BTreeMap<String, PairReference>,
    file: Option<File>,
    is_read: bool,
}

/// A line. The bits are what counts: decimal digits may be read back as a neighbour.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    key: String,
    chosen_bits: u64,
    rejected_bits: u64,
    chosen: f64,
    rejected: f64,
}

impl Cache {
    /// The cache of a run, in its folder.
    pub fn of_run<D: Device>(run: &Run<'_, D>, config: &PreferenceConfig, pairs: &[Pair]) -> Self {
        // The length of the longest sequence decides the rotary table and nothing of its values,
        // but the memory of passes follows the largest pair, so chunks of rows do.
        let largest = pairs.iter().map(Pair::n_tokens).max().unwrap_or(0);
        let mut hasher = Hasher::default();
        hasher.field(run.base.as_str().as_bytes());
        let adapter = run.adapter.map(adapter_digest);
        hasher.field(adapter.as_ref().map_or("", Digest::as_str).as_bytes());
        let method = Digest::of_value(&config.training.method);
        hasher.field(method.as_str().as_bytes());
        hasher.field(run.device.name().as_bytes());
        hasher.field(&(largest as u64).to_le_bytes());
        Cache {
            path: run.folder.join("reference.jsonl"),
            policy: hasher.finish(),
            known: BTreeMap::new(),
            file: None,
            is_read: false,
        }
    }

    /// A cache without a file, of a run that is only planned.
    pub fn nowhere() -> Self {
        Cache {
            path: PathBuf::new(),
            policy: Digest::of(b""),
            known: BTreeMap::new(),
            file: None,
            is_read: true,
        }
    }

    /// What is known of a pair. A file that cannot be read, or a line that is not whole, is as if
    /// it were not there.
    pub fn get(&mut self, pair: &Pair) -> Option<PairReference> {
        if !self.is_read {
            self.is_read = true;
            let text = fs::read(&self.path).unwrap_or_default();
            for line in text.split(|&byte| byte == b'\n') {
                if let Ok(line) = serde_json::from_slice::<Line>(line) {
                    let known = PairReference {
                        chosen: f64::from_bits(line.chosen_bits),
                        rejected: f64::from_bits(line.rejected_bits),
                    };
                    self.known.insert(line.key, known);
                }
            }
        }
        self.known.get(&self.key(pair)).copied()
    }

    /// Keeps what was computed. Numbers that are not finite are not kept.
    pub fn keep(&mut self, pair: &Pair, known: PairReference) -> Result<(), TrainError> {
        if !(known.chosen.is_finite() && known.rejected.is_finite()) {
            return Ok(());
        }
        let key = self.key(pair);
        let line = Line {
            key: key.clone(),
            chosen_bits: known.chosen.to_bits(),
            rejected_bits: known.rejected.to_bits(),
            chosen: known.chosen,
            rejected: known.rejected,
        };
        self.append(&line).map_err(|source| TrainError::Reference {
            path: self.path.clone(),
            source,
        })?;
        self.known.insert(key, known);
        Ok(())
    }

    /// Brings what was kept to the disk.
    pub fn flush(&mut self) -> Result<(), TrainError> {
        let file = self.file.take();
        file.map_or(Ok(()), |file| file.sync_all())
            .map_err(|source| TrainError::Reference {
                path: self.path.clone(),
                source,
            })
    }

    fn append(&mut self, line: &Line) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            empty => {
                let mut file = OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(&self.path)?;
                // A line that a kill left half-written ends here.
                if file.metadata()?.len() > 0 {
                    file.write_all(b"\n")?;
                }
                empty.insert(file)
            }
        };
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        file.write_all(&bytes)
    }

    fn key(&self, pair: &Pair) -> String {
        let mut hasher = Hasher::default();
        hasher.field(self.policy.as_str().as_bytes());
        hasher.field(digest_of(pair).as_str().as_bytes());
        hasher.finish().to_string()
    }
}
