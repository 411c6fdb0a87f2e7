//! Where candidates lie: raw ones as they were sampled, and apart from them what was judged.
//!
//! ```text
//! raw/CONTENT/REQUEST/NAME/      candidate.json, trajectory.jsonl, patch.diff
//! graded/CONTENT/REQUEST/NAME/   graded.json, grading-*.log
//! runs/DIGEST.json               what one run asked for and which candidates it got
//! ```
//!
//! `CONTENT` is the beginning of a task's fingerprint and `REQUEST` that of everything else that
//! can change a candidate. A directory is moved into place by one rename when all of it is written,
//! its record last, so what is there is whole.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use serde::{Serialize, de::DeserializeOwned};
use temper_core::Digest;

use super::{Candidate, Graded, Run};
use crate::{budget::Spent, job::write_atomically};

/// A collection on disk.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    /// Held while a run works on the collection.
    _lock: Option<File>,
}

/// Names one candidate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CandidateKey {
    /// The task's fingerprint.
    pub content: Digest,
    /// The digest of how it was asked for.
    pub request: Digest,
    /// `N`, or `N-STEP-M` for continuation `M` after `STEP` of candidate `N`.
    pub name: String,
}

/// A file of a collection cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refused.
    #[error("{operation} {path}: {source}")]
    File {
        /// `read`, `write`, …
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another run works on the collection.
    #[error("open the collection {0}: another run works on it")]
    Busy(PathBuf),
    /// A file does not hold what it should.
    #[error("read {path}: {reason}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl CandidateKey {
    fn below(&self, root: &Path) -> PathBuf {
        let short = |digest: &Digest| digest.as_str()[..24].to_owned();
        root.join(short(&self.content))
            .join(short(&self.request))
            .join(&self.name)
    }
}

impl Store {
    /// Opens or makes a collection, and removes what killed runs left half written. One run at a
    /// time works on a collection.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let root = root.into();
        for name in ["raw", "graded", "runs"] {
            let path = root.join(name);
            fs::create_dir_all(&path).map_err(|source| error("create", &path, source))?;
        }
        let path = root.join("lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|source| error("open", &path, source))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::Busy(root)),
            Err(TryLockError::Error(source)) => return Err(error("lock", &path, source)),
        }
        let unfinished = root.join("unfinished");
        match fs::remove_dir_all(&unfinished) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(error("remove", &unfinished, source));
            }
            _ => {}
        }
        fs::create_dir_all(&unfinished).map_err(|source| error("create", &unfinished, source))?;
        Ok(Store {
            root,
            _lock: Some(lock),
        })
    }

    /// A collection that is only read, which may be while a run works on it: what is in it is
    /// whole.
    pub fn read_only(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let root = root.into();
        if !root.join("runs").is_dir() || !root.join("raw").is_dir() {
            return Err(StoreError::Corrupt {
                path: root,
                reason: "it is no collection: `raw` and `runs` are not there".into(),
            });
        }
        Ok(Store { root, _lock: None })
    }

    /// All raw candidates of a task's content, however they were asked for, in the order of their
    /// places.
    pub fn candidates(&self, content: &Digest) -> Result<Vec<Candidate>, StoreError> {
        let mut candidates = Vec::new();
        let below = self.root.join("raw").join(&content.as_str()[..24]);
        for request in directories(&below)? {
            for directory in directories(&request)? {
                let path = directory.join("candidate.json");
                let text = read(&path)?;
                let corrupt = |reason: String| StoreError::Corrupt {
                    path: path.clone(),
                    reason,
                };
                let candidate: Candidate =
                    serde_json::from_slice(&text).map_err(|why| corrupt(why.to_string()))?;
                if candidate.key.content != *content
                    || self.raw_directory(&candidate.key) != directory
                {
                    return Err(corrupt("it belongs to another candidate".into()));
                }
                candidates.push(candidate);
            }
        }
        Ok(candidates)
    }

    /// The records of all runs, in the order of their names.
    pub fn runs(&self) -> Result<Vec<Run>, StoreError> {
        let directory = self.root.join("runs");
        let entries =
            fs::read_dir(&directory).map_err(|source| error("list", &directory, source))?;
        let mut paths: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| extension == "json")
            })
            .collect();
        paths.sort();
        let read = |path: PathBuf| {
            let text = fs::read(&path).map_err(|source| error("read", &path, source))?;
            let run: Run = serde_json::from_slice(&text).map_err(|why| StoreError::Corrupt {
                path: path.clone(),
                reason: why.to_string(),
            })?;
            if run.format != Run::FORMAT {
                return Err(StoreError::Corrupt {
                    path,
                    reason: format!(
                        "it has format {}, this version reads {}",
                        run.format,
                        Run::FORMAT
                    ),
                });
            }
            Ok(run)
        };
        paths.into_iter().map(read).collect()
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Where a raw candidate lies.
    pub fn raw_directory(&self, key: &CandidateKey) -> PathBuf {
        key.below(&self.root.join("raw"))
    }

    /// Where its judgement lies.
    pub fn graded_directory(&self, key: &CandidateKey) -> PathBuf {
        key.below(&self.root.join("graded"))
    }

    /// A raw candidate, if it is there.
    pub fn candidate(&self, key: &CandidateKey) -> Result<Option<Candidate>, StoreError> {
        self.record(&self.raw_directory(key).join("candidate.json"), key)
    }

    /// A judgement, if it is there.
    pub fn graded(&self, key: &CandidateKey) -> Result<Option<Graded>, StoreError> {
        self.record(&self.graded_directory(key).join("graded.json"), key)
    }

    fn record<T: DeserializeOwned + Keyed>(
        &self,
        path: &Path,
        key: &CandidateKey,
    ) -> Result<Option<T>, StoreError> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(error("read", path, source)),
        };
        let corrupt = |reason: String| StoreError::Corrupt {
            path: path.to_owned(),
            reason,
        };
        let record: T = serde_json::from_slice(&text).map_err(|why| corrupt(why.to_string()))?;
        if record.key() != key {
            return Err(corrupt("it belongs to another candidate".into()));
        }
        Ok(Some(record))
    }

    /// A new directory that is not yet part of the collection.
    pub fn begin(&self) -> Result<PathBuf, StoreError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{number}", std::process::id());
        let path = self.root.join("unfinished").join(name);
        fs::create_dir_all(&path).map_err(|source| error("create", &path, source))?;
        Ok(path)
    }

    /// Adds a raw candidate whose other files lie in `from`.
    pub fn add_candidate(&self, from: &Path, candidate: &Candidate) -> Result<(), StoreError> {
        let to = self.raw_directory(&candidate.key);
        finish(from, "candidate.json", candidate, &to)
    }

    /// Adds a judgement whose logs lie in `from`.
    pub fn add_graded(&self, from: &Path, graded: &Graded) -> Result<(), StoreError> {
        let to = self.graded_directory(&graded.key);
        finish(from, "graded.json", graded, &to)
    }

    /// Writes the record of a run, named by the digest of its own content.
    pub fn add_run<T: Serialize>(&self, run: &T) -> Result<PathBuf, StoreError> {
        let digest = Digest::of_value(run);
        let name = format!("{}.json", &digest.as_str()[..24]);
        let path = self.root.join("runs").join(name);
        write_atomically(&path, &text_of(run)).map_err(|source| error("write", &path, source))?;
        Ok(path)
    }

    /// What all candidates of a request have used, for a ledger that goes on from there.
    pub fn spent(&self, request: &Digest) -> Result<Spent, StoreError> {
        let mut spent = Spent::default();
        let raw = self.root.join("raw");
        for content in directories(&raw)? {
            for candidate in directories(&content.join(&request.as_str()[..24]))? {
                let path = candidate.join("candidate.json");
                let Ok(text) = fs::read(&path) else { continue };
                let candidate: Candidate =
                    serde_json::from_slice(&text).map_err(|why| StoreError::Corrupt {
                        path,
                        reason: why.to_string(),
                    })?;
                candidate.add_to(&mut spent);
            }
        }
        Ok(spent)
    }
}

/// A record that says which candidate it belongs to.
trait Keyed {
    fn key(&self) -> &CandidateKey;
}

impl Keyed for Candidate {
    fn key(&self) -> &CandidateKey {
        &self.key
    }
}

impl Keyed for Graded {
    fn key(&self) -> &CandidateKey {
        &self.key
    }
}

fn finish<T: Serialize>(from: &Path, name: &str, record: &T, to: &Path) -> Result<(), StoreError> {
    let path = from.join(name);
    write_atomically(&path, &text_of(record)).map_err(|source| error("write", &path, source))?;
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).map_err(|source| error("create", parent, source))?;
    }
    match fs::rename(from, to) {
        Ok(()) => Ok(()),
        // Another run was faster; what it wrote is as good.
        Err(_) if to.join(name).exists() => {
            fs::remove_dir_all(from).map_err(|source| error("remove", from, source))
        }
        Err(source) => Err(error("move to", to, source)),
    }
}

fn text_of<T: Serialize>(value: &T) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).expect("records are plain data");
    text.push(b'\n');
    text
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, StoreError> {
    fs::read(path).map_err(|source| error("read", path, source))
}

fn directories(path: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(error("list", path, source)),
    };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_dir())
        .collect();
    paths.sort();
    Ok(paths)
}

fn error(operation: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::File {
        operation,
        path: path.to_owned(),
        source,
    }
}
