//! What a run is, written when it starts: who answers, what is asked, under which settings, and
//! where each setting came from.
//!
//! [`RunIdentity`] is what may not change while a job goes on; [`RunOperation`] is how this process
//! works on it, which changes no result and may. A value that nobody set is `"unset"`, one that
//! nobody knows is `"unknown"`; neither is a number.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{AgentName, Digest, manifest::Producer};

/// The record, as the line `RUN_PROFILE {…}` on standard error and as a file of the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunProfile {
    /// Version of this format.
    pub format: u32,
    /// What the run is.
    pub identity: RunIdentity,
    /// How it is worked on.
    pub operation: RunOperation,
}

impl RunProfile {
    /// The format that this code writes.
    pub const FORMAT: u32 = 1;
}

/// What may not change while a job goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunIdentity {
    /// The program.
    pub producer: Producer,
    /// The arm.
    pub agent: AgentName,
    /// Whether a language model answers, as far as the agent says.
    pub is_language_model: bool,
    /// Digest of everything that decides how the agent acts: its profile and what drives it.
    pub config_digest: Digest,
    /// The profile.
    pub profile: ProfileIdentity,
    /// The model's files.
    pub model: ModelIdentity,
    /// Where commands run.
    pub runtime: RuntimeIdentity,
    /// What is asked.
    pub dataset: DatasetIdentity,
    /// The three lengths that must agree.
    pub context: ContextIdentity,
    /// Settings by name: steps, tokens, sampling, guard, timeouts.
    pub settings: std::collections::BTreeMap<String, Setting>,
    /// Trials per task.
    pub attempts: u32,
    /// The job's seed.
    pub seed: u64,
    /// How a trial's seed is made of it.
    pub seed_rule: String,
}

/// A profile by name and content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileIdentity {
    /// Which of the profiles, overrides or not.
    pub kind: String,
    /// The name, ending in `+overrides` if there are any.
    pub name: String,
    /// Digest of text and overrides.
    pub digest: Digest,
    /// Where the text comes from: `published`, `user-supplied`, `embedded`.
    pub provenance: String,
}

/// The model's files, as far as they are known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelIdentity {
    /// Digest of the audit of the files.
    pub audit_digest: Known<Digest>,
    /// The revision that the audit found.
    pub revision: Known<String>,
    /// `measured` when this process audited the files it runs, `stated` when the user named an
    /// audit for a server that Temper cannot look into, else `unknown`.
    pub evidence: ModelEvidence,
    /// Type of the model.
    pub architecture: Known<String>,
    /// Number type that the configuration declares.
    pub dtype: Known<String>,
    /// `max_position_embeddings` of the configuration.
    pub max_position_embeddings: Known<u64>,
    /// What the configuration says of the rotary embedding.
    pub rope: Known<Value>,
}

impl ModelIdentity {
    /// A model of which nothing is known.
    pub fn unknown() -> Self {
        ModelIdentity {
            audit_digest: Known::unknown(),
            revision: Known::unknown(),
            evidence: ModelEvidence::Unknown,
            architecture: Known::unknown(),
            dtype: Known::unknown(),
            max_position_embeddings: Known::unknown(),
            rope: Known::unknown(),
        }
    }
}

/// Who says which files the model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelEvidence {
    /// This process hashed the files it runs.
    Measured,
    /// The user named an audit for a server.
    Stated,
    /// Nobody.
    Unknown,
}

/// Where commands run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuntimeIdentity {
    /// The kind of sandbox.
    pub backend: String,
    /// Over the environments of all tasks, by task.
    pub environment_digest: Known<Digest>,
    /// Over the names of the images, by task; unknown where the tasks use none. A name is not a
    /// content digest: a tag can be moved.
    pub image_names_digest: Known<Digest>,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetIdentity {
    /// The suite as it was named.
    pub suite: String,
    /// What the user says it is: a name, or a name and `@REVISION`.
    pub stated: Known<String>,
    /// Format of the tasks; several are joined by `+`.
    pub task_format: String,
    /// Over ids and digests of all tasks.
    pub digest: Digest,
    /// Over ids and splits of all tasks.
    pub split_digest: Digest,
    /// Splits of the tasks; several are joined by `+`.
    pub split: String,
    /// How many tasks.
    pub n_tasks: u64,
    /// How many of them each project has. Unknown in jobs of builds that did not write it down.
    #[serde(default = "Known::unknown")]
    pub projects: Known<std::collections::BTreeMap<String, u64>>,
    /// How they were chosen: `all`, or by which flags or list.
    pub selection: String,
}

/// The three lengths that must agree, in tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextIdentity {
    /// What the profile lets prompt and reply share.
    pub profile: Known<u64>,
    /// What the server says it serves, or the engine in this process does.
    pub server: Known<u64>,
    /// Sequence length of the training, as the user states it.
    pub training: Known<u64>,
    /// Whether the user let a disagreement pass.
    pub mismatch_allowed: bool,
}

/// How this process works on the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunOperation {
    /// When the process started, RFC 3339.
    pub started_at: String,
    /// Trials at a time.
    pub concurrency: u64,
    /// How often a trial is started over after a failure of the infrastructure.
    pub max_retries: u32,
    /// Whether earlier lost trials are run again.
    pub redo_lost: bool,
    /// The part of the trials, `I/N`; absent for all.
    #[serde(default)]
    pub shard: Option<String>,
    /// Trials that were on disk already when the process started.
    pub n_finished_before: u64,
    /// Over what the container engine calls the contents of each task's image when the process
    /// starts, by task. Unknown where the tasks use none, where the sandbox is no engine, and where
    /// an image was not there: it is never made from names.
    #[serde(default = "Known::unknown")]
    pub image_contents_digest: Known<Digest>,
    /// Versions and hardware of the machine that Temper ran on. A server's own are not among them.
    pub machine: Value,
}

/// A value with where it came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// The value; `"unset"` where nobody set one.
    pub value: Value,
    /// Where it comes from.
    pub from: Origin,
}

impl Setting {
    /// A value; `None` is `"unset"`, and whoever acts in its absence decides.
    pub fn new<T: Serialize>(value: Option<T>, from: Origin, otherwise: Origin) -> Self {
        match value {
            Some(value) => Setting {
                value: serde_json::to_value(value).expect("settings are plain data"),
                from,
            },
            None => Setting {
                value: "unset".into(),
                from: otherwise,
            },
        }
    }

    /// The value, or `None` where it is unset.
    pub fn set(&self) -> Option<&Value> {
        Some(&self.value).filter(|value| *value != "unset")
    }
}

/// Who set a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The program, where nobody said otherwise.
    Default,
    /// The profile's text.
    Profile,
    /// A flag of this run.
    Flag,
    /// Whatever the server does by itself.
    Server,
}

/// A value, or the word `unknown`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Known<T> {
    /// Nobody knows it.
    Unknown(UnknownWord),
    /// The value.
    Is(T),
}

/// The word that stands for a value that nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnknownWord {
    /// `unknown`.
    #[serde(rename = "unknown")]
    Unknown,
}

impl<T> Known<T> {
    /// Not known.
    pub fn unknown() -> Self {
        Known::Unknown(UnknownWord::Unknown)
    }

    /// The value, where it is known.
    pub fn value(&self) -> Option<&T> {
        match self {
            Known::Unknown(_) => None,
            Known::Is(value) => Some(value),
        }
    }
}

impl<T> From<Option<T>> for Known<T> {
    fn from(value: Option<T>) -> Self {
        value.map_or_else(Known::unknown, Known::Is)
    }
}

impl<T: std::fmt::Display> std::fmt::Display for Known<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Known::Unknown(_) => f.write_str("unknown"),
            Known::Is(value) => value.fmt(f),
        }
    }
}

/// A field in which two values differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Difference {
    /// The field, as a path of keys.
    pub field: String,
    /// Its value in the first, as short text; `nothing` where it is absent.
    pub first: String,
    /// Its value in the second.
    pub second: String,
}

/// Every field in which two JSON values differ, in order of the fields. Equal values give nothing;
/// a key that one side lacks is a difference even from an explicit null.
pub fn differences(first: &Value, second: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    collect("", Some(first), Some(second), &mut found);
    found
}

fn collect(path: &str, a: Option<&Value>, b: Option<&Value>, found: &mut Vec<Difference>) {
    match (a, b) {
        (Some(Value::Object(first)), Some(Value::Object(second))) => {
            let keys: std::collections::BTreeSet<&String> =
                first.keys().chain(second.keys()).collect();
            for key in keys {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                collect(&path, first.get(key), second.get(key), found);
            }
        }
        (a, b) if a == b => {}
        (a, b) => found.push(Difference {
            field: path.to_owned(),
            first: short(a),
            second: short(b),
        }),
    }
}

fn short(value: Option<&Value>) -> String {
    let Some(value) = value else {
        return "nothing".into();
    };
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_knows_is_a_word_and_never_a_number() {
        let unknown: Known<u64> = Known::unknown();
        assert_eq!(serde_json::to_value(&unknown).unwrap(), "unknown");
        assert_eq!(
            serde_json::from_str::<Known<u64>>("\"unknown\"").unwrap(),
            unknown
        );
        assert_eq!(
            serde_json::from_str::<Known<u64>>("7").unwrap(),
            Known::Is(7)
        );
        assert!(serde_json::from_str::<Known<u64>>("\"seven\"").is_err());
        let unset = Setting::new(None::<u32>, Origin::Profile, Origin::Server);
        assert_eq!(
            serde_json::to_value(&unset).unwrap(),
            serde_json::json!({"value": "unset", "from": "server"})
        );
        assert_eq!(unset.set(), None);
    }

    #[test]
    fn every_difference_is_named() {
        let first = serde_json::json!({"a": 1, "b": {"c": [1], "d": null}, "e": 0});
        let second = serde_json::json!({"a": 2, "b": {"c": [2]}, "e": 0});
        let found = differences(&first, &second);
        let named: Vec<_> = found
            .iter()
            .map(|d| (d.field.as_str(), d.first.as_str(), d.second.as_str()))
            .collect();
        assert_eq!(
            named,
            [
                ("a", "1", "2"),
                ("b.c", "[1]", "[2]"),
                ("b.d", "null", "nothing")
            ]
        );
        assert!(differences(&first, &first).is_empty());
    }
}
