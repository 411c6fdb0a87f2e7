//! A trajectory on disk: JSON Lines of [`Record`], appended as things happen.
//!
//! Each record is one write of one whole line. A process that is killed leaves whole lines and at
//! most one torn line at the end, which [`read`] drops; a trajectory without an end record belongs
//! to a trial that was cut off, and its steps are still good.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
};

use temper_core::{
    Message,
    trajectory::{End, Header, Record, Step},
};

use crate::rollout::{RecordError, Recorder, token_problem};

/// Longest line that is read. A step holds a reply and outputs that the sandbox has bounded.
const MAX_LINE_BYTES: u64 = 256 << 20;

/// Appends records to a new file.
pub struct TrajectoryWriter {
    file: File,
    path: PathBuf,
    sync_each_step: bool,
}

/// Why a trajectory file could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum TrajectoryError {
    /// The file system refused.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// `create`, `append to`, `flush`, `read`.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is not what it should be.
    #[error("read {}, line {line}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// The file is of a format that this version does not know.
    #[error(
        "read {}: its format is {found}, and this version reads up to {}",
        path.display(),
        Header::FORMAT
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// The format it says it has.
        found: u64,
    },
}

impl TrajectoryWriter {
    /// Creates the file with its header. A file that is already there is an error: a trajectory is
    /// never continued or overwritten.
    pub fn create(path: &Path, header: &Header) -> Result<Self, TrajectoryError> {
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(path)
            .map_err(|source| TrajectoryError::Io {
                operation: "create",
                path: path.to_owned(),
                source,
            })?;
        let mut writer = TrajectoryWriter {
            file,
            path: path.to_owned(),
            sync_each_step: false,
        };
        writer.append(&Record::Header(header.clone()))?;
        Ok(writer)
    }

    /// Whether every record is forced to the disk before the trial goes on. Without it a killed
    /// process loses nothing, but a machine that loses power can lose the last steps.
    pub fn sync_each_step(mut self, sync: bool) -> Self {
        self.sync_each_step = sync;
        self
    }

    /// Forces everything to the disk.
    pub fn finish(self) -> Result<(), TrajectoryError> {
        self.sync()
    }

    fn append(&mut self, record: &Record) -> Result<(), TrajectoryError> {
        let mut line = serde_json::to_vec(record).expect("plain data serializes to JSON");
        line.push(b'\n');
        self.file
            .write_all(&line)
            .map_err(|source| TrajectoryError::Io {
                operation: "append to",
                path: self.path.clone(),
                source,
            })?;
        if self.sync_each_step {
            self.sync()?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), TrajectoryError> {
        self.file.sync_all().map_err(|source| TrajectoryError::Io {
            operation: "flush",
            path: self.path.clone(),
            source,
        })
    }
}

impl Recorder for TrajectoryWriter {
    fn record(&mut self, record: &Record) -> Result<(), RecordError> {
        self.append(record)
            .map_err(|error| RecordError(error.to_string()))
    }
}

/// A trajectory in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Trajectory {
    /// What it belongs to.
    pub header: Header,
    /// The messages that open the conversation.
    pub prompts: Vec<Message>,
    /// The turns, numbered from 1 without gaps.
    pub steps: Vec<Step>,
    /// How it ended; `None` for a trial that was cut off.
    pub end: Option<End>,
    /// Whether the file ended in half a line, which is left out.
    pub torn: bool,
}

impl Trajectory {
    /// The conversation as the model would see it next: prompts, replies, observations and the
    /// message of the end, if it has one.
    pub fn messages(&self) -> Vec<&Message> {
        let turns = self
            .steps
            .iter()
            .flat_map(|step| std::iter::once(&step.reply).chain(&step.observations));
        let last = self.end.iter().filter_map(|end| end.message.as_ref());
        self.prompts.iter().chain(turns).chain(last).collect()
    }
}

impl Trajectory {
    /// The records, in the order of the file.
    pub fn into_records(self) -> Vec<Record> {
        let prompts = self.prompts.into_iter();
        let steps = self.steps.into_iter();
        std::iter::once(Record::Header(self.header))
            .chain(prompts.map(|message| Record::Prompt { message }))
            .chain(steps.map(|step| Record::Step(Box::new(step))))
            .chain(self.end.map(Record::End))
            .collect()
    }
}

/// Reads a trajectory. Everything but a torn last line has to be in order: the header first,
/// prompts before steps, step numbers without gaps, token records of one length, nothing after the
/// end.
pub fn read(path: &Path) -> Result<Trajectory, TrajectoryError> {
    let io = |source| TrajectoryError::Io {
        operation: "read",
        path: path.to_owned(),
        source,
    };
    let mut lines = BufReader::new(File::open(path).map_err(io)?);
    let mut reading = Reading {
        path,
        line: 0,
        header: None,
        prompts: Vec::new(),
        steps: Vec::new(),
        end: None,
    };
    let mut torn = false;
    let mut line = Vec::new();
    loop {
        line.clear();
        let n = (&mut lines)
            .take(MAX_LINE_BYTES + 1)
            .read_until(b'\n', &mut line)
            .map_err(io)?;
        if n == 0 {
            break;
        }
        reading.line += 1;
        if n as u64 > MAX_LINE_BYTES {
            return Err(reading.malformed(format!("it is longer than {MAX_LINE_BYTES} bytes")));
        }
        if line.last() != Some(&b'\n') {
            torn = true;
            break;
        }
        reading.take(&line)?;
    }
    let header = reading
        .header
        .take()
        .ok_or_else(|| reading.malformed("there is no header".into()))?;
    Ok(Trajectory {
        header,
        prompts: reading.prompts,
        steps: reading.steps,
        end: reading.end,
        torn,
    })
}

struct Reading<'a> {
    path: &'a Path,
    line: usize,
    header: Option<Header>,
    prompts: Vec<Message>,
    steps: Vec<Step>,
    end: Option<End>,
}

impl Reading<'_> {
    fn malformed(&self, problem: String) -> TrajectoryError {
        TrajectoryError::Malformed {
            path: self.path.to_owned(),
            line: self.line,
            problem,
        }
    }

    fn take(&mut self, line: &[u8]) -> Result<(), TrajectoryError> {
        if self.header.is_none() {
            self.check_format(line)?;
        }
        let record: Record =
            serde_json::from_slice(line).map_err(|error| self.malformed(error.to_string()))?;
        if self.end.is_some() {
            return Err(self.malformed("it follows the end".into()));
        }
        match (record, &self.header) {
            (Record::Header(header), None) => self.header = Some(header),
            (_, None) => return Err(self.malformed("the first record is no header".into())),
            (Record::Header(_), Some(_)) => {
                return Err(self.malformed("it is a second header".into()));
            }
            (Record::Prompt { message }, _) if self.steps.is_empty() => self.prompts.push(message),
            (Record::Prompt { .. }, _) => {
                return Err(self.malformed("it is a prompt after a step".into()));
            }
            (Record::Step(step), _) => {
                let expected = self.steps.len() as u64 + 1;
                if u64::from(step.number) != expected {
                    return Err(self.malformed(format!(
                        "it is step {}, expected step {expected}",
                        step.number
                    )));
                }
                if let Some(problem) = step.tokens.as_ref().and_then(token_problem) {
                    return Err(self.malformed(problem));
                }
                self.steps.push(*step);
            }
            (Record::End(end), _) => self.end = Some(end),
        }
        Ok(())
    }

    /// Looks at nothing but the version, so that a newer format is told apart from a broken file.
    fn check_format(&self, line: &[u8]) -> Result<(), TrajectoryError> {
        let value: serde_json::Value =
            serde_json::from_slice(line).map_err(|error| self.malformed(error.to_string()))?;
        match value.get("format").and_then(serde_json::Value::as_u64) {
            Some(found) if found != u64::from(Header::FORMAT) => {
                Err(TrajectoryError::UnknownFormat {
                    path: self.path.to_owned(),
                    found,
                })
            }
            _ => Ok(()),
        }
    }
}
