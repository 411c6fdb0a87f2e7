//! The file of a probe.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use temper_core::{Digest, trajectory::FinishReason};

use super::{Prompt, Slopes};
use crate::job::write_atomically;

/// A record longer than this is refused.
const LONGEST_FILE: u64 = 16 << 20;

/// A probe: what is asked, how far it is, what was answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeRecord {
    /// [`ProbeRecord::FORMAT`].
    pub format: u32,
    /// Temper's version.
    pub temper: String,
    /// What is asked.
    pub settings: ProbeSettings,
    /// What the server said of itself. One that says otherwise later is not asked further.
    pub server: ServerFacts,
    /// What the parts of a prompt cost.
    pub slopes: Option<Slopes>,
    /// The levels, in the order of the settings.
    pub levels: Vec<LevelRecord>,
    /// Whether every level is done.
    pub is_complete: bool,
}

/// What a probe asks. A record belongs to one value of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeSettings {
    /// The server.
    pub base_url: String,
    /// The model's name there.
    pub model: String,
    /// Of the tokens and the chat template that count.
    pub tokenizer_digest: Digest,
    /// Of the configuration beside the tokenizer, by value: of which checkpoint the probe is.
    /// Absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_digest: Option<Digest>,
    /// Prompt lengths, in tokens.
    pub levels: Vec<u64>,
    /// Limit of each answer, in tokens.
    pub output_tokens: u32,
    /// The window by the user, in tokens; else the server's own statement counts.
    pub window: Option<u64>,
    /// The codes in the prompts follow from it.
    pub seed: u64,
    /// Further fields of each request.
    pub body: Map<String, Value>,
}

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerFacts {
    /// Whether it lists the model.
    pub listing: Listing,
    /// Its release, where it tells.
    pub version: Option<String>,
}

/// What became of asking for the list of models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Listing {
    /// The model is in the list.
    Listed {
        /// The window beside its name, in tokens; older servers name none.
        context_tokens: Option<u64>,
    },
    /// The list lacks it.
    NotListed,
    /// There is no list.
    Unavailable {
        /// Why.
        message: String,
    },
}

/// How far a level is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Not begun.
    Waiting,
    /// The prompt is being made.
    Building,
    /// The request is with the server.
    Sending,
    /// There is an outcome.
    Done,
}

/// One level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LevelRecord {
    /// Tokens asked for.
    pub level: u64,
    /// How far it is.
    pub phase: Phase,
    /// When that phase began.
    pub since_unix_seconds: Option<u64>,
    /// How often a run ended in the middle of it.
    pub n_interrupted: u32,
    /// The prompt.
    pub prompt: Option<PromptRecord>,
    /// The longest that the answer may take.
    pub timeout_seconds: Option<u64>,
    /// What it came to.
    pub outcome: Option<Outcome>,
    /// The answer, where there is one.
    pub answer: Option<AnswerRecord>,
}

/// A prompt, without its text, which follows from the settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptRecord {
    /// Tokens aimed at: the level, or what the window leaves beside the answer.
    pub target_tokens: u64,
    /// Tokens as counted here.
    pub local_tokens: u64,
    /// Lines of filler.
    pub n_units: u64,
    /// Words behind them.
    pub n_pads: u64,
    /// How often it was counted.
    pub n_counts: u32,
    /// Of the text.
    pub digest: Digest,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerRecord {
    /// Tokens of the prompt as the server counts them; `None` when it does not say.
    pub server_tokens: Option<u64>,
    /// Tokens of the answer.
    pub output_tokens: Option<u64>,
    /// Why it ended.
    pub finish: FinishReason,
    /// From the request to the whole answer.
    pub seconds: f64,
    /// What was hidden in the prompt.
    pub needles: Vec<NeedleRecord>,
    /// How the answer begins.
    pub excerpt: String,
}

/// One hidden code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeedleRecord {
    /// Share of the filler before it.
    pub depth: f64,
    /// Whether the answer names it.
    pub is_found: bool,
}

/// What a level came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Outcome {
    /// Accepted, counted alike, every code named.
    Accepted,
    /// Accepted and counted alike; the answer names some codes.
    NeedlesMissed {
        /// Named.
        n_found: usize,
        /// Hidden.
        n: usize,
    },
    /// Accepted; the answer names no code.
    Nonsense,
    /// Accepted, every code named; the server does not say how many tokens it saw.
    Uncounted,
    /// Accepted; the server counts another number of tokens than tokenizer and template give here.
    Miscounted {
        /// By the server.
        server_tokens: u64,
        /// Here.
        local_tokens: u64,
    },
    /// Accepted; the server saw fewer tokens than were sent, and codes are missing.
    Truncated {
        /// By the server.
        server_tokens: u64,
        /// Here.
        local_tokens: u64,
    },
    /// Refused because of its length.
    Rejected {
        /// The window that the refusal names, in tokens.
        stated_limit: Option<u64>,
        /// What the server said.
        message: String,
    },
    /// Not sent: the window is smaller.
    BeyondWindow {
        /// In tokens.
        window: u64,
    },
    /// Not sent: there is no prompt of this length.
    Unbuildable {
        /// Why.
        reason: String,
    },
    /// No whole answer in time.
    TimedOut {
        /// How long it was waited for.
        seconds: f64,
    },
    /// No connection, or one that broke.
    Dropped {
        /// What happened.
        message: String,
    },
    /// Another error of the server.
    Failed {
        /// Which kind.
        class: String,
        /// What it said.
        message: String,
    },
}

impl Outcome {
    /// Whether the server refused the prompt, cut it or did not understand it.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Outcome::Rejected { .. }
                | Outcome::Truncated { .. }
                | Outcome::BeyondWindow { .. }
                | Outcome::Nonsense
        )
    }
}

/// A record is of another checkpoint, or does not say of which.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "use the probe for this checkpoint: the configuration beside its tokenizer has digest {}, this one has {wanted}",
    .found.as_ref().map_or_else(|| "unknown".to_owned(), Digest::to_string)
)]
pub struct OtherCheckpoint {
    /// Of the record.
    pub found: Option<Digest>,
    /// Of the checkpoint that is planned for.
    pub wanted: Digest,
}

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file system refuses.
    #[error("read the probe's record {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no record of a probe.
    #[error("read the probe's record {}: {problem}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// It belongs to another probe.
    #[error("go on with the probe {}: it was made with {setting} {there}, not {here}", .path.display())]
    Differs {
        /// The file.
        path: PathBuf,
        /// The first setting that differs.
        setting: String,
        /// Its value there.
        there: String,
        /// Its value now.
        here: String,
    },
}

impl ProbeRecord {
    /// The format that this code writes.
    pub const FORMAT: u32 = 1;

    /// Reads a record.
    pub fn read(path: &Path) -> Result<Self, RecordError> {
        let failed = |source| RecordError::Read {
            path: path.to_owned(),
            source,
        };
        let malformed = |problem: String| RecordError::Malformed {
            path: path.to_owned(),
            problem,
        };
        let length = fs::metadata(path).map_err(failed)?.len();
        if length > LONGEST_FILE {
            return Err(malformed(format!("it has {length} bytes")));
        }
        let bytes = fs::read(path).map_err(failed)?;
        let value: Value =
            serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?;
        match value.get("format").and_then(Value::as_u64) {
            Some(format) if format == u64::from(Self::FORMAT) => {}
            Some(format) => {
                return Err(malformed(format!(
                    "it has format {format}, this program reads {}",
                    Self::FORMAT
                )));
            }
            None => return Err(malformed("it has no format".into())),
        }
        serde_json::from_value(value).map_err(|error| malformed(error.to_string()))
    }

    /// Whether the server takes more than `beyond` tokens: yes by an accepted prompt that is longer,
    /// no by longer ones of which it refused, cut or did not understand the first; `None` when no
    /// such level was answered.
    pub fn takes_more_than(&self, beyond: u64) -> Option<bool> {
        let mut answered: Vec<&LevelRecord> = self
            .levels
            .iter()
            .filter(|level| level.level > beyond)
            .collect();
        answered.sort_by_key(|level| level.level);
        let is_longer = |level: &LevelRecord| {
            let prompt = level.prompt.as_ref();
            prompt.is_some_and(|prompt| prompt.local_tokens > beyond)
        };
        let mut verdict = None;
        for level in answered {
            match &level.outcome {
                Some(Outcome::Accepted) if is_longer(level) => verdict = Some(true),
                Some(outcome) if outcome.is_refusal() && verdict.is_none() => {
                    verdict = Some(false);
                }
                _ => {}
            }
        }
        verdict
    }

    /// The longest level within `window` tokens that the server accepted, counted alike and
    /// understood; `None` when there is none.
    pub fn accepted_within(&self, window: u64) -> Option<u64> {
        let accepted = self.levels.iter().filter(|level| level.is_accepted());
        let within = accepted.map(|level| level.level);
        within.filter(|level| *level <= window).max()
    }

    /// The levels within `window` tokens of which the record does not show that, the shortest
    /// first: refused, cut, counted otherwise, understood in part or not at all, never answered.
    pub fn not_accepted_within(&self, window: u64) -> Vec<&LevelRecord> {
        let mut levels: Vec<_> = self
            .levels
            .iter()
            .filter(|level| level.level <= window && !level.is_accepted())
            .collect();
        levels.sort_by_key(|level| level.level);
        levels
    }

    /// Refuses a record that is of another checkpoint than the one whose configuration this is, or
    /// that does not say of which.
    ///
    /// What a server holds is not known by that: the record shows which tokenizer and configuration
    /// its counts were compared with.
    pub fn check_checkpoint(&self, config: &Value) -> Result<(), OtherCheckpoint> {
        let wanted = Digest::of_value(config);
        match &self.settings.config_digest {
            Some(found) if *found == wanted => Ok(()),
            found => Err(OtherCheckpoint {
                found: found.clone(),
                wanted,
            }),
        }
    }

    /// Whether every level was accepted.
    pub fn is_accepted(&self) -> bool {
        self.is_complete && self.levels.iter().all(LevelRecord::is_accepted)
    }

    /// Writes the record by rename.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        text.push('\n');
        write_atomically(path, text.as_bytes())
    }

    /// The record of a file where there is one, with what was interrupted set back; else a new one.
    pub(super) fn open(
        path: &Path,
        settings: &ProbeSettings,
        server: &ServerFacts,
    ) -> Result<Self, RecordError> {
        let mut record = match path.exists() {
            true => Self::read(path)?,
            false => ProbeRecord {
                format: Self::FORMAT,
                temper: env!("CARGO_PKG_VERSION").into(),
                settings: settings.clone(),
                server: server.clone(),
                slopes: None,
                levels: settings
                    .levels
                    .iter()
                    .map(|level| LevelRecord::new(*level))
                    .collect(),
                is_complete: false,
            },
        };
        if let Some((setting, there, here)) = difference(&record.settings, settings) {
            return Err(RecordError::Differs {
                path: path.to_owned(),
                setting,
                there,
                here,
            });
        }
        let levels: Vec<u64> = record.levels.iter().map(|level| level.level).collect();
        if levels != settings.levels {
            return Err(RecordError::Malformed {
                path: path.to_owned(),
                problem: "its levels are not those of its settings".into(),
            });
        }
        let is_begun = record.levels.iter().any(LevelRecord::is_answered);
        record.server = match (is_begun, record.server.contradiction(server)) {
            (false, _) => server.clone(),
            (true, None) => record.server.or(server),
            (true, Some((setting, there, here))) => {
                return Err(RecordError::Differs {
                    path: path.to_owned(),
                    setting,
                    there,
                    here,
                });
            }
        };
        for level in &mut record.levels {
            if !level.is_answered() {
                let is_cut = matches!(level.phase, Phase::Building | Phase::Sending);
                *level = LevelRecord {
                    n_interrupted: level.n_interrupted + u32::from(is_cut),
                    ..LevelRecord::new(level.level)
                };
            }
        }
        Ok(record)
    }
}

impl ServerFacts {
    /// The window that the server states, in tokens.
    pub fn window(&self) -> Option<u64> {
        match self.listing {
            Listing::Listed { context_tokens } => context_tokens,
            _ => None,
        }
    }
}

impl ServerFacts {
    /// What two statements of one server cannot both say: another window or another release answers
    /// now.
    fn contradiction(&self, now: &ServerFacts) -> Option<(String, String, String)> {
        let shown = |value: &dyn std::fmt::Debug| format!("{value:?}");
        if let (Some(there), Some(here)) = (&self.version, &now.version)
            && there != here
        {
            return Some(("a server of version".into(), shown(there), shown(here)));
        }
        match (self.window(), now.window()) {
            (Some(there), Some(here)) if there != here => {
                Some(("a server's window".into(), shown(&there), shown(&here)))
            }
            _ => None,
        }
    }

    /// This statement, with what it lacks from the other.
    fn or(&self, other: &ServerFacts) -> ServerFacts {
        ServerFacts {
            listing: match (&self.listing, &other.listing) {
                (Listing::Unavailable { .. }, other) => other.clone(),
                (own, _) => own.clone(),
            },
            version: self.version.clone().or_else(|| other.version.clone()),
        }
    }
}

impl LevelRecord {
    fn new(level: u64) -> Self {
        LevelRecord {
            level,
            phase: Phase::Waiting,
            since_unix_seconds: None,
            n_interrupted: 0,
            prompt: None,
            timeout_seconds: None,
            outcome: None,
            answer: None,
        }
    }

    /// Whether the server accepted the prompt, counted it alike and understood it.
    pub fn is_accepted(&self) -> bool {
        self.phase == Phase::Done && self.outcome == Some(Outcome::Accepted)
    }

    /// Whether asking again would ask for what is known. What no server answered is not.
    pub fn is_answered(&self) -> bool {
        let lost = matches!(
            self.outcome,
            None | Some(
                Outcome::TimedOut { .. } | Outcome::Dropped { .. } | Outcome::Failed { .. }
            )
        );
        self.phase == Phase::Done && !lost
    }
}

impl PromptRecord {
    pub(super) fn of(prompt: &Prompt, target_tokens: u64) -> Self {
        PromptRecord {
            target_tokens,
            local_tokens: prompt.n_tokens,
            n_units: prompt.n_units,
            n_pads: prompt.n_pads,
            n_counts: prompt.n_counts,
            digest: Digest::of(prompt.text.as_bytes()),
        }
    }
}

fn difference(there: &ProbeSettings, here: &ProbeSettings) -> Option<(String, String, String)> {
    let map = |settings| match serde_json::to_value(settings) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let there = map(there);
    map(here).into_iter().find_map(|(key, here)| {
        let there = there.get(&key).cloned().unwrap_or_default();
        (there != here).then(|| (key, there.to_string(), here.to_string()))
    })
}
