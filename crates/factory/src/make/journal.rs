//! What earlier runs found out.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use temper_core::Digest;
use temper_tasks::cache::{Cache, CacheError};

use super::MakeError;

/// The result of a stage: as it was found earlier under the same key, or by running it now. The
/// second value says whether it was there.
pub(super) fn stage<T, E>(
    cache: &Cache,
    key: &Digest,
    run: impl FnOnce() -> Result<T, E>,
) -> Result<(T, bool), MakeError>
where
    T: Serialize + DeserializeOwned,
    MakeError: From<E>,
{
    let mut resumed = true;
    let content = cache.entry::<StageError>("stages", key, |content| {
        resumed = false;
        let value = run().map_err(|error| StageError(MakeError::from(error)))?;
        let bytes = serde_json::to_vec(&value).expect("the result of a stage is plain data");
        let path = content.join("result.json");
        std::fs::write(&path, bytes).map_err(|source| {
            StageError(MakeError::Stage {
                operation: "write",
                path,
                source,
            })
        })
    });
    let path = content
        .map_err(|StageError(error)| error)?
        .join("result.json");
    let value = std::fs::read(&path)
        .and_then(|bytes| serde_json::from_slice(&bytes).map_err(std::io::Error::other))
        .map_err(|source| MakeError::Stage {
            operation: "read",
            path,
            source,
        })?;
    Ok((value, resumed))
}

struct StageError(MakeError);

impl From<CacheError> for StageError {
    fn from(error: CacheError) -> Self {
        StageError(error.into())
    }
}

/// Verdicts on tasks, appended one by one. A line that a killed run left half written is skipped.
pub(super) struct Journal {
    path: PathBuf,
    known: BTreeMap<Digest, Option<String>>,
    file: Mutex<File>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    task: Digest,
    /// Why it is not proven.
    reason: Option<String>,
}

impl Journal {
    pub(super) fn open(cache: &Cache, key: &Digest) -> Result<Self, MakeError> {
        let directory = cache.root().join("proofs");
        let path = directory.join(format!("{key}.jsonl"));
        let failed = |operation| {
            let path = path.clone();
            move |source| MakeError::Stage {
                operation,
                path,
                source,
            }
        };
        std::fs::create_dir_all(&directory).map_err(failed("make"))?;
        let mut known = BTreeMap::new();
        let mut ends_in_a_line = true;
        if let Ok(file) = File::open(&path) {
            let mut reader = BufReader::new(file);
            let mut text = Vec::new();
            while reader
                .read_until(b'\n', &mut text)
                .map_err(failed("read"))?
                > 0
            {
                ends_in_a_line = text.ends_with(b"\n");
                if let Ok(line) = serde_json::from_slice::<Line>(&text) {
                    known.insert(line.task, line.reason);
                }
                text.clear();
            }
        }
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(failed("write"))?;
        if !ends_in_a_line {
            file.write_all(b"\n").map_err(failed("write"))?;
        }
        Ok(Journal {
            path,
            known,
            file: Mutex::new(file),
        })
    }

    /// `Some(None)` for a task that was proven, `Some(Some(reason))` for one that is not.
    pub(super) fn get(&self, task: &Digest) -> Option<Option<String>> {
        self.known.get(task).cloned()
    }

    pub(super) fn put(&self, task: &Digest, reason: Option<&str>) -> Result<(), MakeError> {
        let line = Line {
            task: task.clone(),
            reason: reason.map(str::to_owned),
        };
        let mut text = serde_json::to_vec(&line).expect("a line is plain data");
        text.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&text).map_err(|source| MakeError::Stage {
            operation: "write",
            path: self.path.clone(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_survive_a_torn_line() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path()).unwrap();
        let key = Digest::of(b"k");
        let (a, b, c) = (Digest::of(b"a"), Digest::of(b"b"), Digest::of(b"c"));
        let journal = Journal::open(&cache, &key).unwrap();
        journal.put(&a, None).unwrap();
        journal.put(&b, Some("why")).unwrap();
        let path = journal.path.clone();
        drop(journal);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 5);
        std::fs::write(&path, bytes).unwrap();
        let journal = Journal::open(&cache, &key).unwrap();
        assert_eq!(journal.get(&a), Some(None));
        assert_eq!(journal.get(&b), None);
        journal.put(&c, Some("x")).unwrap();
        let journal = Journal::open(&cache, &key).unwrap();
        assert_eq!(journal.get(&a), Some(None));
        assert_eq!(journal.get(&c), Some(Some("x".into())));
    }

    #[test]
    fn a_stage_runs_once_and_again_after_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path()).unwrap();
        let key = Digest::of(b"k");
        let failing: Result<(u32, bool), _> = stage(&cache, &key, || {
            Err::<u32, _>(MakeError::Stage {
                operation: "test",
                path: "x".into(),
                source: std::io::Error::other("stop"),
            })
        });
        assert!(failing.is_err());
        assert_eq!(
            stage(&cache, &key, || Ok::<_, MakeError>(7u32)).unwrap(),
            (7, false)
        );
        assert_eq!(
            stage(&cache, &key, || Ok::<_, MakeError>(8u32)).unwrap(),
            (7, true)
        );
    }
}
