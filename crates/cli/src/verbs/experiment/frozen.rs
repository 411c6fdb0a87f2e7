//! A declared experiment on disk.
//!
//! ```text
//! DIR/contract.json    the contract in force, with its digest and where it was read
//! DIR/files/           the files that it names, as they were
//! DIR/record.jsonl     what happened, only added to
//! ```

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::json;
use temper_agent::job::write_atomically;
use temper_core::Digest;
use temper_eval::experiment::{Contract, Event, What, first_difference};

use crate::{clock, error::CliError, exit_code};

const CONTRACT: &str = "contract.json";
const RECORD: &str = "record.jsonl";

/// A contract with what its files hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Frozen {
    /// Version of this format.
    pub format: u32,
    /// The digest of contract and files.
    pub digest: Digest,
    /// The file that it was read from.
    pub source: PathBuf,
    /// The contract.
    pub contract: Contract,
    /// The files by name.
    pub files: BTreeMap<String, String>,
}

impl Frozen {
    /// The format that this code writes.
    pub const FORMAT: u32 = 1;

    /// Reads a contract and its files as they are now. They are named from the contract's
    /// directory.
    pub fn from_source(source: &Path) -> Result<Self, CliError> {
        let source = std::path::absolute(source)?;
        let contract: Contract = toml::from_str(&text(&source)?).map_err(|error| {
            CliError::new(
                exit_code::INPUT,
                format!("read {}: {error}", source.display()),
            )
        })?;
        contract
            .check()
            .map_err(|error| CliError::new(exit_code::INPUT, error))?;
        let parent = source.parent().unwrap_or(Path::new("."));
        let mut files = BTreeMap::new();
        for name in contract.files() {
            files.insert(name.to_owned(), text(&parent.join(name))?);
        }
        let digests = files
            .iter()
            .map(|(name, text)| (name.clone(), Digest::of(text.as_bytes())))
            .collect();
        Ok(Frozen {
            format: Self::FORMAT,
            digest: contract.digest(&digests),
            source,
            contract,
            files,
        })
    }

    /// Reads what was declared.
    pub fn read(directory: &Path) -> Result<Self, CliError> {
        let path = directory.join(CONTRACT);
        let wrong = |problem: String| {
            CliError::new(
                exit_code::INPUT,
                format!("read {}: {problem}", path.display()),
            )
            .hint("`temper experiment declare` makes the directory of an experiment")
        };
        let bytes = fs::read(&path).map_err(|error| wrong(error.to_string()))?;
        let frozen: Frozen =
            serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        let digests = frozen
            .files
            .iter()
            .map(|(name, text)| (name.clone(), Digest::of(text.as_bytes())))
            .collect();
        if frozen.format != Self::FORMAT || frozen.contract.digest(&digests) != frozen.digest {
            return Err(wrong("it is not what was declared".to_owned()));
        }
        Ok(frozen)
    }

    /// Writes it, with a copy of each file for people.
    pub fn write(&self, directory: &Path) -> Result<(), CliError> {
        let files = directory.join("files");
        fs::create_dir_all(&files)?;
        for (name, text) in &self.files {
            let flat = name.replace(['/', '\\'], "_");
            write_atomically(&files.join(flat), text.as_bytes())?;
        }
        let mut bytes = serde_json::to_vec_pretty(self).expect("a contract is plain data");
        bytes.push(b'\n');
        Ok(write_atomically(&directory.join(CONTRACT), &bytes)?)
    }

    /// The first place in which another version differs from it.
    pub fn difference(&self, other: &Frozen) -> Option<String> {
        let value = |it: &Frozen| json!({ "contract": it.contract, "files": it.files });
        first_difference(&value(self), &value(other))
    }

    /// Whether what was declared is still what its source says.
    pub fn check_source(&self) -> Result<(), CliError> {
        if !self.source.is_file() {
            return Ok(());
        }
        let now = Frozen::from_source(&self.source)?;
        match self.difference(&now) {
            None => Ok(()),
            Some(place) => Err(CliError::new(
                exit_code::JOB_DIFFERS,
                format!(
                    "keep to the contract: {} differs from what was declared: {place}",
                    self.source.display()
                ),
            )
            .hint(
                "put it back, declare another experiment, or change the contract for the record: \
                 `temper experiment declare --amend REASON`",
            )),
        }
    }
}

/// The events of an experiment.
pub struct Record {
    path: PathBuf,
    /// All so far.
    pub events: Vec<Event>,
}

impl Record {
    /// Reads them. A last line without its end was being written when the program was killed.
    pub fn open(directory: &Path) -> Result<Self, CliError> {
        let path = directory.join(RECORD);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let whole = bytes.iter().rposition(|byte| *byte == b'\n');
        let whole = &bytes[..whole.map_or(0, |at| at + 1)];
        let mut events = Vec::new();
        for (index, line) in whole.split_inclusive(|byte| *byte == b'\n').enumerate() {
            events.push(serde_json::from_slice(line).map_err(|error| {
                CliError::new(
                    exit_code::INPUT,
                    format!("read {}, line {}: {error}", path.display(), index + 1),
                )
            })?);
        }
        if whole.len() < bytes.len() {
            let file = OpenOptions::new().write(true).open(&path)?;
            file.set_len(whole.len() as u64)?;
        }
        Ok(Record { path, events })
    }

    /// Adds one, durable before this returns.
    pub fn add(&mut self, contract: &Digest, what: What) -> Result<(), CliError> {
        let event = Event {
            at: clock::now(),
            contract: contract.clone(),
            what,
        };
        let mut line = serde_json::to_vec(&event).expect("an event is plain data");
        line.push(b'\n');
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.path)?;
        file.write_all(&line)?;
        file.sync_all()?;
        self.events.push(event);
        Ok(())
    }

    /// Whether something happened under a contract.
    pub fn has(&self, contract: &Digest, what: impl Fn(&What) -> bool) -> bool {
        let mut events = self.events.iter();
        events.any(|event| event.contract == *contract && what(&event.what))
    }
}

fn text(path: &Path) -> Result<String, CliError> {
    fs::read_to_string(path).map_err(|error| {
        CliError::new(
            exit_code::INPUT,
            format!("read {}: {error}", path.display()),
        )
    })
}
