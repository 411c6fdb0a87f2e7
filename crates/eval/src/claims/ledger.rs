//! What was published of an experiment, as data.

use serde::{Deserialize, Serialize};
use temper_core::{Digest, evidence::Provenance};

/// The ledgers that ship with Temper, by name.
const SHIPPED: [(&str, &str); 1] = [(
    "klear-agentforge",
    include_str!("../ledgers/klear-agentforge.toml"),
)];

/// Every value that can influence a result, and how it is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Ledger {
    /// Its name.
    pub name: String,
    /// What it is about.
    pub subject: String,
    /// Digest of its text.
    pub digest: Digest,
    /// Whether its text is one that ships with Temper.
    pub ships: bool,
    /// Published results.
    pub published: Vec<Published>,
    /// The values.
    pub entries: Vec<Entry>,
}

/// A result that the authors published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The system.
    pub system: String,
    /// The benchmark.
    pub benchmark: String,
    /// The value, in percent.
    pub percent: f64,
    /// Where it is stated.
    pub source: String,
    /// How far the ledger's author looked.
    pub checked: Checked,
}

/// How far the ledger's author looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Checked {
    /// The source itself was read.
    Read,
    /// From an account of the source.
    SecondHand,
}

/// One value.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// A stable name, unique in the ledger.
    pub key: String,
    /// When it acts.
    pub stage: Stage,
    /// What it is.
    pub what: String,
    /// How it is known.
    pub provenance: Provenance,
    /// The published value. Absent exactly for what is undisclosed.
    #[serde(default)]
    pub value: Option<serde_json::Value>,
    /// Values of a run that count as equivalent, not as equal.
    #[serde(default)]
    pub equivalent: Vec<serde_json::Value>,
    /// The fact of a run that it is held against; absent where no run shows it.
    #[serde(default)]
    pub fact: Option<String>,
    /// Whether no reproduction can be claimed without it.
    #[serde(default)]
    pub essential: bool,
    /// Whether somebody can choose a value in its place.
    #[serde(default)]
    pub kind: Kind,
    /// Where it can be read; for what is undisclosed, where it was looked for.
    pub source: String,
    /// How far the ledger's author looked.
    pub checked: Checked,
    /// What a reader should know.
    #[serde(default)]
    pub note: Option<String>,
}

/// When a value acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// In the files of the model.
    Checkpoint,
    /// While the model is evaluated.
    Evaluation,
    /// While the model was made. It does not act on who evaluates the published checkpoint.
    Training,
}

/// Whether somebody can choose a value in a missing one's place.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A setting: one's own value makes an experiment of one's own.
    #[default]
    Setting,
    /// Data, code or an image: without it the thing cannot be done again.
    Material,
}

/// A ledger cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// It does not follow the schema.
    #[error("read the ledger: {0}")]
    Schema(String),
    /// It was written for another version.
    #[error("read the ledger: it has format {0}, this version reads 1")]
    Format(u32),
    /// Two entries have one key.
    #[error("read the ledger: the key {0} is there twice")]
    Twice(String),
    /// A value that nobody published was filled in.
    #[error(
        "read the ledger: {0} is undisclosed and has a value; what was not published has none, and a guess belongs to no ledger"
    )]
    FilledIn(String),
    /// A published value is missing.
    #[error("read the ledger: {0} is said to be {1} and has no value")]
    NoValue(String, &'static str),
    /// Nothing could ever hold an essential entry.
    #[error("read the ledger: {0} is essential and names no fact that it is held against")]
    NoFact(String),
    /// Nothing in it has to hold, so everything would be a reproduction.
    #[error("read the ledger: it has no essential entry, so anything would be a reproduction")]
    NothingEssential,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: u32,
    name: String,
    subject: String,
    #[serde(default)]
    published: Vec<Published>,
    #[serde(default, rename = "entry")]
    entries: Vec<Entry>,
}

impl Ledger {
    /// Reads a ledger's text.
    pub fn parse(text: &str) -> Result<Self, LedgerError> {
        let file: File =
            toml::from_str(text).map_err(|error| LedgerError::Schema(error.to_string()))?;
        if file.format != 1 {
            return Err(LedgerError::Format(file.format));
        }
        let mut seen = std::collections::BTreeSet::new();
        for entry in &file.entries {
            let key = || entry.key.clone();
            if !seen.insert(&entry.key) {
                return Err(LedgerError::Twice(key()));
            }
            let undisclosed = entry.provenance == Provenance::Undisclosed;
            if undisclosed && (entry.value.is_some() || !entry.equivalent.is_empty()) {
                return Err(LedgerError::FilledIn(key()));
            }
            if !undisclosed && entry.value.is_none() {
                return Err(LedgerError::NoValue(key(), entry.provenance.words()));
            }
            if entry.essential && entry.fact.is_none() {
                return Err(LedgerError::NoFact(key()));
            }
        }
        if !file.entries.iter().any(|entry| entry.essential) {
            return Err(LedgerError::NothingEssential);
        }
        Ok(Ledger {
            ships: SHIPPED.iter().any(|(_, shipped)| *shipped == text),
            digest: Digest::of(text.as_bytes()),
            name: file.name,
            subject: file.subject,
            published: file.published,
            entries: file.entries,
        })
    }

    /// The ledger of Klear-AgentForge, which ships with Temper and is used where none is named.
    pub fn shipped() -> Self {
        Ledger::parse(SHIPPED[0].1).expect("a shipped ledger is well-formed; a test reads it")
    }

    /// The published revision of the checkpoint, where the ledger names one.
    pub fn checkpoint(&self) -> Option<&str> {
        let entry = self
            .entries
            .iter()
            .find(|entry| entry.fact.as_deref() == Some("checkpoint.revision"))?;
        entry.value.as_ref()?.as_str()
    }
}
