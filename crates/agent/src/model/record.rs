//! A recorded session: every request by digest, every answer in full, so that it can be replayed.
//!
//! The file is JSON Lines: a header, then one line for each call of any trial, in the order in
//! which the answers came. A line is written at once, after the answer and before the trial sees
//! it; a last line without its newline is what a killed process left, and is dropped.
//!
//! A trial is known by its task, its seed, and how often that pair was opened before (the seed
//! stands for the attempt, since every attempt has its own). Requests are kept as digests of each
//! message, of which those that the trial's call before already had are only counted.

use std::{
    collections::HashMap,
    fs::File,
    io::{BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use serde::{Deserialize, Serialize};
use temper_core::{
    Digest, Message, PreparedTask, Role,
    trajectory::{Attempt, FinishReason, Limit, TokenRecord},
    usage::{MicroDollars, Usage},
};

use super::{Model, ModelError, ModelErrorClass, ModelFactory, ModelReply, ModelRequest};

/// A line longer than this is refused.
const LONGEST_LINE: u64 = 256 * 1024 * 1024;

/// One line of a recorded session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case", deny_unknown_fields)]
pub enum SessionRecord {
    /// First line.
    Header(SessionHeader),
    /// One call.
    Call(Box<RecordedCall>),
}

/// What the session was recorded from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionHeader {
    /// Version of this format.
    pub format: u32,
    /// The description of the model that answered.
    pub model: serde_json::Value,
    /// Whether that was a language model.
    pub is_language_model: bool,
}

impl SessionHeader {
    /// The format that this code writes.
    pub const FORMAT: u32 = 1;
}

/// One call and its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedCall {
    /// The trial's task.
    pub task_id: String,
    /// The trial's seed.
    pub seed: u64,
    /// How often this task and seed had been opened before.
    pub opening: u32,
    /// The place of the call in the trial, from 0.
    pub call: u32,
    /// What was asked.
    pub request: RecordedRequest,
    /// What was answered.
    pub answer: RecordedAnswer,
}

/// A request, by digest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedRequest {
    /// How many leading messages are those of the call before.
    pub n_shared_messages: usize,
    /// The other messages.
    pub messages: Vec<MessageDigest>,
    /// All tools.
    pub tools: Digest,
    /// The limit on the reply.
    pub max_output_tokens: Option<u32>,
    /// The temperature.
    pub temperature: Option<f64>,
}

/// A message, by digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageDigest {
    /// Who speaks.
    pub role: Role,
    /// The digest of the whole message.
    pub digest: Digest,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum RecordedAnswer {
    /// A reply.
    Reply(Box<RecordedReply>),
    /// An error.
    Error {
        /// The class's name.
        class: String,
        /// The limit, for a budget's stop.
        limit: Option<Limit>,
        /// The cause.
        message: String,
        /// Attempts.
        attempts: Vec<Attempt>,
    },
}

/// A reply, field by field as in [`ModelReply`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedReply {
    /// The message.
    pub message: Message,
    /// Why it ended.
    pub finish: FinishReason,
    /// Tokens.
    pub usage: Usage,
    /// Price.
    pub cost: Option<MicroDollars>,
    /// Ids and log-probabilities.
    pub tokens: Option<TokenRecord>,
    /// Attempts.
    pub attempts: Vec<Attempt>,
}

/// A session file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The file system refuses.
    #[error("open the session {path}: {cause}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// A line cannot be read.
    #[error("read the session {path}, line {line}: {problem}")]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// The file belongs to another model.
    #[error("append to the session {0}: it was recorded from another model")]
    OtherModel(PathBuf),
}

/// A request reduced to what is compared.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RequestDigest {
    pub(super) messages: Vec<MessageDigest>,
    pub(super) tools: Digest,
    pub(super) max_output_tokens: Option<u32>,
    pub(super) temperature: Option<f64>,
}

impl RequestDigest {
    pub(super) fn of(request: &ModelRequest<'_>) -> Self {
        let tools: Vec<_> = request
            .tools
            .iter()
            .map(|tool| (&tool.name, &tool.description, &tool.parameters))
            .collect();
        RequestDigest {
            messages: request
                .messages
                .iter()
                .map(|message| MessageDigest {
                    role: message.role,
                    digest: Digest::of_value(message),
                })
                .collect(),
            tools: Digest::of_value(&tools),
            max_output_tokens: request.max_output_tokens,
            temperature: request.temperature,
        }
    }
}

/// Passes calls on to another factory's models and records them.
pub struct RecordingFactory {
    inner: Arc<dyn ModelFactory>,
    sink: Arc<Mutex<File>>,
    openings: Mutex<HashMap<(String, u64), u32>>,
}

impl RecordingFactory {
    /// Starts a session file, or goes on with one that was recorded from the same model.
    pub fn new(inner: Arc<dyn ModelFactory>, path: &Path) -> Result<Self, SessionError> {
        let failed = |cause| SessionError::File {
            path: path.to_owned(),
            cause,
        };
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        let session = read_session(&mut file, path)?;
        let header = SessionHeader {
            format: SessionHeader::FORMAT,
            model: inner.describe(),
            is_language_model: inner.is_language_model(),
        };
        let mut openings = HashMap::new();
        for call in &session.calls {
            let n = openings
                .entry((call.task_id.clone(), call.seed))
                .or_insert(0);
            *n = call.opening.saturating_add(1).max(*n);
        }
        file.set_len(session.n_bytes).map_err(failed)?;
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        match session.header {
            Some(known) if known != header => {
                return Err(SessionError::OtherModel(path.to_owned()));
            }
            Some(_) => {}
            None => write_line(&mut file, &SessionRecord::Header(header)).map_err(failed)?,
        }
        Ok(RecordingFactory {
            inner,
            sink: Arc::new(Mutex::new(file)),
            openings: Mutex::new(openings),
        })
    }
}

impl ModelFactory for RecordingFactory {
    fn describe(&self) -> serde_json::Value {
        self.inner.describe()
    }

    fn is_language_model(&self) -> bool {
        self.inner.is_language_model()
    }

    fn open(&self, task: &PreparedTask, seed: u64) -> Result<Box<dyn Model>, ModelError> {
        let inner = self.inner.open(task, seed)?;
        let task_id = task.task.id.as_str().to_owned();
        let opening = {
            let mut openings = self.openings.lock().unwrap_or_else(|e| e.into_inner());
            let n = openings.entry((task_id.clone(), seed)).or_insert(0);
            *n += 1;
            *n - 1
        };
        Ok(Box::new(Recorder {
            inner,
            sink: Arc::clone(&self.sink),
            task_id,
            seed,
            opening,
            n_calls: 0,
            last: Vec::new(),
        }))
    }
}

struct Recorder {
    inner: Box<dyn Model>,
    sink: Arc<Mutex<File>>,
    task_id: String,
    seed: u64,
    opening: u32,
    n_calls: u32,
    last: Vec<MessageDigest>,
}

impl Model for Recorder {
    fn query(&mut self, request: &ModelRequest<'_>) -> Result<ModelReply, ModelError> {
        let digest = RequestDigest::of(request);
        let outcome = self.inner.query(request);
        let n_shared = digest
            .messages
            .iter()
            .zip(&self.last)
            .take_while(|(a, b)| a == b)
            .count();
        let record = SessionRecord::Call(Box::new(RecordedCall {
            task_id: self.task_id.clone(),
            seed: self.seed,
            opening: self.opening,
            call: self.n_calls,
            request: RecordedRequest {
                n_shared_messages: n_shared,
                messages: digest.messages[n_shared..].to_vec(),
                tools: digest.tools,
                max_output_tokens: digest.max_output_tokens,
                temperature: digest.temperature,
            },
            answer: RecordedAnswer::of(&outcome),
        }));
        self.n_calls += 1;
        self.last = digest.messages;
        let mut sink = self.sink.lock().unwrap_or_else(|e| e.into_inner());
        match write_line(&mut sink, &record) {
            Ok(()) => outcome,
            // A session with a hole could not be replayed, so the loss is not passed over.
            Err(cause) => Err(ModelError {
                class: ModelErrorClass::InvalidResponse,
                message: format!("the answer could not be recorded: {cause}"),
                attempts: match outcome {
                    Ok(reply) => reply.attempts,
                    Err(error) => error.attempts,
                },
            }),
        }
    }
}

impl RecordedAnswer {
    fn of(outcome: &Result<ModelReply, ModelError>) -> Self {
        match outcome {
            Ok(reply) => RecordedAnswer::Reply(Box::new(RecordedReply {
                message: reply.message.clone(),
                finish: reply.finish.clone(),
                usage: reply.usage,
                cost: reply.cost,
                tokens: reply.tokens.clone(),
                attempts: reply.attempts.clone(),
            })),
            Err(error) => RecordedAnswer::Error {
                class: error.class.name().into(),
                limit: match error.class {
                    ModelErrorClass::Budget(limit) => Some(limit),
                    _ => None,
                },
                message: error.message.clone(),
                attempts: error.attempts.clone(),
            },
        }
    }

    /// The answer as it was given; an unknown class is an invalid response.
    pub fn to_outcome(&self) -> Result<ModelReply, ModelError> {
        match self {
            RecordedAnswer::Reply(reply) => Ok(ModelReply {
                message: reply.message.clone(),
                finish: reply.finish.clone(),
                usage: reply.usage,
                cost: reply.cost,
                tokens: reply.tokens.clone(),
                attempts: reply.attempts.clone(),
            }),
            RecordedAnswer::Error {
                class,
                limit,
                message,
                attempts,
            } => Err(ModelError {
                class: class_named(class, *limit),
                message: message.clone(),
                attempts: attempts.clone(),
            }),
        }
    }
}

fn class_named(name: &str, limit: Option<Limit>) -> ModelErrorClass {
    use ModelErrorClass::*;
    let plain = [
        ContextExceeded,
        Authentication,
        ModelNotFound,
        BadRequest,
        RateLimited,
        Server,
        Connection,
        Deadline,
        InvalidResponse,
        Exhausted,
    ];
    match limit {
        Some(limit) => Budget(limit),
        None => plain
            .into_iter()
            .find(|class| class.name() == name)
            .unwrap_or(InvalidResponse),
    }
}

/// What a session file holds.
pub(super) struct Session {
    pub(super) header: Option<SessionHeader>,
    pub(super) calls: Vec<RecordedCall>,
    /// Length of the complete lines.
    pub(super) n_bytes: u64,
}

/// Reads all complete lines.
pub(super) fn read_session(file: &mut File, path: &Path) -> Result<Session, SessionError> {
    let mut session = Session {
        header: None,
        calls: Vec::new(),
        n_bytes: 0,
    };
    let mut reader = BufReader::new(file);
    for line in 1.. {
        let problem = |problem: String| SessionError::Line {
            path: path.to_owned(),
            line,
            problem,
        };
        let mut bytes = Vec::new();
        let n = (&mut reader)
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut bytes)
            .map_err(|cause| SessionError::File {
                path: path.to_owned(),
                cause,
            })? as u64;
        if bytes.last() != Some(&b'\n') {
            if n == LONGEST_LINE {
                return Err(problem(format!("it is longer than {LONGEST_LINE} bytes")));
            }
            break;
        }
        let record = serde_json::from_slice(&bytes).map_err(|error| problem(error.to_string()))?;
        match record {
            SessionRecord::Header(header) if line == 1 => {
                if header.format != SessionHeader::FORMAT {
                    return Err(problem(format!(
                        "expected format {}, got {}",
                        SessionHeader::FORMAT,
                        header.format
                    )));
                }
                session.header = Some(header);
            }
            SessionRecord::Header(_) => return Err(problem("a second header".into())),
            SessionRecord::Call(_) if line == 1 => return Err(problem("expected a header".into())),
            SessionRecord::Call(call) => session.calls.push(*call),
        }
        session.n_bytes += n;
    }
    Ok(session)
}

fn write_line(file: &mut File, record: &SessionRecord) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    file.write_all(&line)?;
    file.sync_data()
}
