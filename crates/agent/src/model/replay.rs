//! A recorded session in place of its model: every trial gets the answers that were recorded for
//! it, as long as it asks what was asked then.

use std::{
    collections::HashMap,
    fs::File,
    io::{Seek, SeekFrom},
    path::Path,
    sync::{Arc, Mutex},
};

use temper_core::{Digest, PreparedTask, digest::Hasher};

use super::{
    Model, ModelError, ModelErrorClass, ModelFactory, ModelReply, ModelRequest,
    record::{RecordedAnswer, RequestDigest, SessionError, SessionHeader, read_session},
};

/// More openings in a row without a call are not believed.
const MOST_GAPS: usize = 64;

type Key = (String, u64);
type Opening = Vec<(RequestDigest, RecordedAnswer)>;

/// Makes models that repeat a session. Trials may run in any order and at the same time.
pub struct ReplayFactory {
    header: SessionHeader,
    digest: Digest,
    session: Arc<HashMap<Key, Vec<Opening>>>,
    next_opening: Arc<Mutex<HashMap<Key, usize>>>,
}

impl ReplayFactory {
    /// Reads a session file.
    pub fn read(path: &Path) -> Result<Self, SessionError> {
        let failed = |cause| SessionError::File {
            path: path.to_owned(),
            cause,
        };
        let mut file = File::open(path).map_err(failed)?;
        let mut hasher = HashWriter(Hasher::default());
        std::io::copy(&mut file, &mut hasher).map_err(failed)?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let session = read_session(&mut file, path)?;
        let bad_line = |line, problem: String| SessionError::Line {
            path: path.to_owned(),
            line,
            problem,
        };
        let header = session
            .header
            .ok_or_else(|| bad_line(1, "expected a header".into()))?;
        let mut trials: HashMap<Key, Vec<Opening>> = HashMap::new();
        for (index, call) in session.calls.into_iter().enumerate() {
            let line = index + 2;
            let openings = trials.entry((call.task_id, call.seed)).or_default();
            // A trial may be opened and killed before its first answer, which leaves a number
            // without calls.
            let number = call.opening as usize;
            if number > openings.len() + MOST_GAPS {
                return Err(bad_line(line, format!("opening {number} is out of order")));
            }
            if openings.len() <= number {
                openings.resize_with(number + 1, Vec::new);
            }
            let opening = &mut openings[number];
            if call.call as usize != opening.len() {
                return Err(bad_line(
                    line,
                    format!("expected call {}, got {}", opening.len(), call.call),
                ));
            }
            let earlier = opening.last().map_or(&[][..], |(last, _)| &last.messages);
            let Some(shared) = earlier.get(..call.request.n_shared_messages) else {
                return Err(bad_line(
                    line,
                    format!(
                        "{} shared messages, but the call before had {}",
                        call.request.n_shared_messages,
                        earlier.len()
                    ),
                ));
            };
            let request = RequestDigest {
                messages: [shared, &call.request.messages].concat(),
                tools: call.request.tools,
                max_output_tokens: call.request.max_output_tokens,
                temperature: call.request.temperature,
            };
            opening.push((request, call.answer));
        }
        for openings in trials.values_mut() {
            openings.retain(|opening| !opening.is_empty());
        }
        Ok(ReplayFactory {
            header,
            digest: hasher.0.finish(),
            session: Arc::new(trials),
            next_opening: Arc::default(),
        })
    }

    /// What the session was recorded from.
    pub fn header(&self) -> &SessionHeader {
        &self.header
    }
}

impl ModelFactory for ReplayFactory {
    fn describe(&self) -> serde_json::Value {
        serde_json::json!({
            "kind": "replay",
            "session": self.digest,
            "recorded_from": self.header.model,
        })
    }

    /// No: the answers may be a language model's, but none is asked.
    fn is_language_model(&self) -> bool {
        false
    }

    fn open(&self, task: &PreparedTask, seed: u64) -> Result<Box<dyn Model>, ModelError> {
        let key = (task.task.id.as_str().to_owned(), seed);
        let n_openings = self.session.get(&key).map_or(0, Vec::len);
        let mut next = self.next_opening.lock().unwrap_or_else(|e| e.into_inner());
        let next = next.entry(key.clone()).or_insert(0);
        if *next >= n_openings {
            let message = match n_openings {
                0 => format!("the session holds no trial of {} with seed {seed}", key.0),
                n => format!("the session holds {n} trials of {} with seed {seed}", key.0),
            };
            return Err(ModelError {
                class: ModelErrorClass::Exhausted,
                message,
                attempts: Vec::new(),
            });
        }
        *next += 1;
        Ok(Box::new(Replayer {
            session: Arc::clone(&self.session),
            next_opening: Arc::clone(&self.next_opening),
            key,
            opening: *next - 1,
            n_calls: 0,
        }))
    }
}

struct Replayer {
    session: Arc<HashMap<Key, Vec<Opening>>>,
    next_opening: Arc<Mutex<HashMap<Key, usize>>>,
    key: Key,
    opening: usize,
    n_calls: usize,
}

impl Model for Replayer {
    fn query(&mut self, request: &ModelRequest<'_>) -> Result<ModelReply, ModelError> {
        let asked = RequestDigest::of(request);
        let session = Arc::clone(&self.session);
        let openings = session.get(&self.key).map_or(&[][..], Vec::as_slice);
        if openings[self.opening].len() <= self.n_calls {
            self.go_on_in_later_opening(openings);
        }
        let Some((recorded, answer)) = openings[self.opening].get(self.n_calls) else {
            return Err(ModelError {
                class: ModelErrorClass::Exhausted,
                message: format!(
                    "the session holds {} calls of {} with seed {}",
                    self.n_calls, self.key.0, self.key.1
                ),
                attempts: Vec::new(),
            });
        };
        if let Some(difference) = first_difference(recorded, &asked) {
            return Err(ModelError {
                class: ModelErrorClass::BadRequest,
                message: format!(
                    "call {} of {} differs from the recorded one: {difference}",
                    self.n_calls + 1,
                    self.key.0
                ),
                attempts: Vec::new(),
            });
        }
        self.n_calls += 1;
        answer.to_outcome()
    }
}

impl Replayer {
    /// A trial that was killed was opened anew when its job was resumed: its record is cut off,
    /// and a later one begins with the same calls. The replay, which is not killed, goes on there.
    fn go_on_in_later_opening(&mut self, openings: &[Opening]) {
        let same_start = |later: &Opening| {
            later.len() > self.n_calls
                && later
                    .iter()
                    .zip(&openings[self.opening])
                    .take(self.n_calls)
                    .all(|(a, b)| a.0 == b.0)
        };
        let mut next = self.next_opening.lock().unwrap_or_else(|e| e.into_inner());
        let next = next.entry(self.key.clone()).or_insert(0);
        if let Some(offset) = openings[*next..].iter().position(same_start) {
            self.opening = *next + offset;
            *next = self.opening + 1;
        }
    }
}

fn first_difference(recorded: &RequestDigest, asked: &RequestDigest) -> Option<String> {
    for (index, (then, now)) in recorded.messages.iter().zip(&asked.messages).enumerate() {
        if then != now {
            return Some(format!(
                "message {} was {:?} {} and is {:?} {}",
                index + 1,
                then.role,
                then.digest.short(),
                now.role,
                now.digest.short()
            ));
        }
    }
    let (then, now) = (recorded.messages.len(), asked.messages.len());
    if then != now {
        return Some(format!(
            "message {} is where they part: it had {then} messages and has {now}",
            then.min(now) + 1
        ));
    }
    if recorded.tools != asked.tools {
        return Some("other tools are on offer".into());
    }
    if recorded.max_output_tokens != asked.max_output_tokens {
        return Some(format!(
            "the limit on the reply was {:?} and is {:?}",
            recorded.max_output_tokens, asked.max_output_tokens
        ));
    }
    (recorded.temperature != asked.temperature).then(|| {
        format!(
            "the temperature was {:?} and is {:?}",
            recorded.temperature, asked.temperature
        )
    })
}

struct HashWriter(Hasher);

impl std::io::Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
