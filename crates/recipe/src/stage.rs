//! What stages did, kept so that none does the same twice.
//!
//! A stage's folder is named by the digest of everything that its result depends on. Its record is
//! written last, by one rename: a folder without one is unfinished, and the stage goes on in it.
//! When an input changes, the stage gets another folder and the old one stays.

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use temper_core::{Digest, manifest::Producer};

use crate::config::StageName;

const RECORD: &str = "stage.json";

/// The folder in which the stages of a run lie.
#[derive(Clone, Debug)]
pub struct Stages {
    root: PathBuf,
    producer: Producer,
}

/// A piece of work: a stage, or one of several that a stage has, and what its result depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// The stage.
    pub name: StageName,
    /// Which of several, such as `seed-0`.
    pub part: Option<String>,
    /// What it reads, by content.
    pub inputs: BTreeMap<String, Digest>,
    /// Its settings.
    pub config: Value,
}

/// What a finished piece of work says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageRecord {
    /// Version of this format.
    pub format: u32,
    /// The stage.
    pub stage: StageName,
    /// Which of several.
    pub part: Option<String>,
    /// The program that did it.
    pub producer: Producer,
    /// The digest of producer, inputs and settings.
    pub key: Digest,
    /// What it read, by content.
    pub inputs: BTreeMap<String, Digest>,
    /// Its settings.
    pub config: Value,
    /// What it gave, by content: what later stages read.
    pub outputs: BTreeMap<String, Digest>,
    /// What it found, for people and for later stages.
    pub result: Value,
    /// When it ended, RFC 3339.
    pub ended_at: String,
    /// Wall time of its last part, from where it went on.
    pub seconds: f64,
}

/// Why a record cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The file system.
    #[error("{operation} {}: {source}", .path.display())]
    File {
        /// What was done.
        operation: &'static str,
        /// With what.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// Another process works on the run.
    #[error("work in {}: another process does", .0.display())]
    Busy(PathBuf),
    /// A record is not what it should be.
    #[error("read {}: {reason}", .path.display())]
    Corrupt {
        /// The record.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl Stage {
    /// A stage's name and part.
    pub fn label(&self) -> String {
        match &self.part {
            Some(part) => format!("{} {part}", self.name),
            None => self.name.to_string(),
        }
    }
}

impl StageRecord {
    /// The format that this code writes.
    pub const FORMAT: u32 = 1;

    /// The digest of an output.
    ///
    /// # Errors
    /// When the record has none of that name: it is of another kind of stage.
    pub fn output(&self, name: &str, path: &Path) -> Result<Digest, StageError> {
        self.outputs
            .get(name)
            .cloned()
            .ok_or_else(|| StageError::Corrupt {
                path: path.join(RECORD),
                reason: format!("it has no output {name}"),
            })
    }
}

impl Stages {
    /// The stages below a directory, which is made if need be.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(root: &Path, producer: Producer) -> Result<Self, StageError> {
        fs::create_dir_all(root).map_err(on("create", root))?;
        Ok(Stages {
            root: root.to_owned(),
            producer,
        })
    }

    /// Keeps other processes from working here, until the file is dropped or the process ends. Two
    /// at once would do everything twice, and each would take the machine from the other's trials.
    ///
    /// # Errors
    /// [`StageError::Busy`] when another process has it.
    pub fn lock(&self) -> Result<File, StageError> {
        let path = self.root.join("lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(on("open", &path))?;
        match lock.try_lock() {
            Ok(()) => Ok(lock),
            Err(TryLockError::WouldBlock) => Err(StageError::Busy(self.root.clone())),
            Err(TryLockError::Error(source)) => Err(on("lock", &path)(source)),
        }
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The digest of everything that a stage's result depends on.
    pub fn key(&self, stage: &Stage) -> Digest {
        Digest::of_value(&(
            StageRecord::FORMAT,
            &self.producer,
            stage.name,
            &stage.part,
            &stage.inputs,
            &stage.config,
        ))
    }

    /// Where a stage works.
    pub fn folder(&self, stage: &Stage) -> PathBuf {
        let mut folder = self.root.join(stage.name.as_str());
        folder.extend(&stage.part);
        folder.join(self.key(stage).short())
    }

    /// The record of a stage that is finished.
    ///
    /// # Errors
    /// When a record is there and cannot be read, or is of something else.
    pub fn record(&self, stage: &Stage) -> Result<Option<StageRecord>, StageError> {
        let path = self.folder(stage).join(RECORD);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(on("read", &path)(source)),
        };
        let corrupt = |reason: String| StageError::Corrupt {
            path: path.clone(),
            reason,
        };
        let record: StageRecord =
            serde_json::from_slice(&bytes).map_err(|error| corrupt(error.to_string()))?;
        if record.format != StageRecord::FORMAT {
            let (found, known) = (record.format, StageRecord::FORMAT);
            return Err(corrupt(format!(
                "its format is {found}, and this is {known}"
            )));
        }
        if record.key != self.key(stage) {
            return Err(corrupt("it is the record of another stage".into()));
        }
        Ok(Some(record))
    }

    /// Whether a stage was begun: its folder is there.
    pub fn is_begun(&self, stage: &Stage) -> bool {
        self.folder(stage).is_dir()
    }

    /// Marks a stage as finished.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn finish(
        &self,
        stage: &Stage,
        outputs: BTreeMap<String, Digest>,
        result: Value,
        ended_at: String,
        seconds: f64,
    ) -> Result<StageRecord, StageError> {
        let record = StageRecord {
            format: StageRecord::FORMAT,
            stage: stage.name,
            part: stage.part.clone(),
            producer: self.producer.clone(),
            key: self.key(stage),
            inputs: stage.inputs.clone(),
            config: stage.config.clone(),
            outputs,
            result,
            ended_at,
            seconds,
        };
        let folder = self.folder(stage);
        fs::create_dir_all(&folder).map_err(on("create", &folder))?;
        write_json(&folder.join(RECORD), &record)?;
        Ok(record)
    }
}

/// Writes JSON by one rename.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), StageError> {
    let mut bytes = serde_json::to_vec_pretty(value).expect("plain data serializes to JSON");
    bytes.push(b'\n');
    let parent = path.parent().unwrap_or(Path::new("."));
    let write = || {
        let mut file = tempfile::NamedTempFile::new_in(parent)?;
        file.write_all(&bytes)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        fs::File::open(parent)?.sync_all()
    };
    write().map_err(on("write", path))
}

pub(crate) fn on(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StageError {
    let path = path.to_owned();
    move |source| StageError::File {
        operation,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(config: u32) -> Stage {
        Stage {
            name: StageName::Train,
            part: Some("seed-0".into()),
            inputs: BTreeMap::from([("data".into(), Digest::of(b"data"))]),
            config: config.into(),
        }
    }

    fn producer(version: &str) -> Producer {
        Producer {
            name: "temper".into(),
            version: version.into(),
        }
    }

    #[test]
    fn a_stage_is_known_by_everything_that_its_result_depends_on() {
        let folder = tempfile::tempdir().unwrap();
        let stages = Stages::open(folder.path(), producer("1")).unwrap();
        let first = stage(1);
        assert_eq!(stages.record(&first).unwrap(), None);
        assert!(!stages.is_begun(&first));
        let outputs = BTreeMap::from([("weights".to_owned(), Digest::of(b"w"))]);
        let record = stages
            .finish(&first, outputs, Value::Null, "now".into(), 1.0)
            .unwrap();
        assert_eq!(stages.record(&first).unwrap(), Some(record.clone()));
        assert!(record.output("weights", folder.path()).is_ok());
        assert!(record.output("pairs", folder.path()).is_err());

        let mut others = vec![stage(2), stage(1), stage(1), stage(1)];
        others[1].inputs.insert("data".into(), Digest::of(b"other"));
        others[2].part = None;
        others[3].name = StageName::Preference;
        for other in &others {
            assert_eq!(stages.record(other).unwrap(), None, "{}", other.label());
            assert_ne!(stages.folder(other), stages.folder(&first));
        }
        let newer = Stages::open(folder.path(), producer("2")).unwrap();
        assert_eq!(newer.record(&first).unwrap(), None);
    }

    #[test]
    fn one_process_at_a_time_works_on_a_run() {
        let folder = tempfile::tempdir().unwrap();
        let stages = Stages::open(folder.path(), producer("1")).unwrap();
        let lock = stages.lock().unwrap();
        let error = stages.lock().unwrap_err();
        assert!(matches!(error, StageError::Busy(_)), "{error}");
        drop(lock);
        stages.lock().unwrap();
    }

    #[test]
    fn a_record_that_is_not_ours_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let stages = Stages::open(folder.path(), producer("1")).unwrap();
        let (first, second) = (stage(1), stage(2));
        stages
            .finish(&first, BTreeMap::new(), Value::Null, "now".into(), 1.0)
            .unwrap();
        fs::create_dir_all(stages.folder(&second)).unwrap();
        assert!(stages.is_begun(&second));
        let path = |stage| stages.folder(stage).join(RECORD);
        fs::copy(path(&first), path(&second)).unwrap();
        let error = stages.record(&second).unwrap_err().to_string();
        assert!(error.contains("another stage"), "{error}");
        fs::write(path(&second), "{}").unwrap();
        assert!(stages.record(&second).is_err());
        let unknown = fs::read_to_string(path(&first))
            .unwrap()
            .replacen('{', "{\"more\": 1,", 1);
        fs::write(path(&first), unknown).unwrap();
        assert!(stages.record(&first).is_err());
    }
}
