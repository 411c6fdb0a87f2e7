//! Profiles: everything about the loop that changes results, under one name and one digest.
//!
//! A [`ResolvedProfile`] is made from exactly one text, so keys of two profiles cannot meet in
//! one; an override is recorded and shows in the name. Two profiles are embedded. The published
//! file that `official-public-repro` stands for can be given in its place and is recognised by its
//! digest.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use temper_core::{Digest, trial::PatchSource, usage::MicroDollars};

use crate::{
    context_guard::ContextGuard,
    model::Tool,
    protocol::{Protocol, bash_block::NestedFences, tool_call},
    template::Variables,
};

pub mod file;
mod settle;

use file::{ProfileFile, ShellName};

/// SHA-256 of the published `swebench_add_edit_tool.yaml` at
/// 0ea04fab6aee2bcffe54db2cd11889780110f14a.
pub const PUBLISHED_SHA256: &str =
    "a53d2a59e6891a2200f91034302ac000c6818a65e7bea6179ff79653bec72662";

/// Which profile is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProfileName {
    /// Temper's own, for models on one's own machine.
    ProjectHardened,
    /// What was published, for comparison with published results.
    OfficialPublicRepro,
    /// A file of the user's that claims to be neither.
    Custom,
}

impl ProfileName {
    /// The name as typed.
    pub fn as_str(self) -> &'static str {
        match self {
            ProfileName::ProjectHardened => "project-hardened",
            ProfileName::OfficialPublicRepro => "official-public-repro",
            ProfileName::Custom => "custom",
        }
    }

    /// The text embedded under this name.
    pub fn embedded_text(self) -> Option<&'static str> {
        match self {
            ProfileName::ProjectHardened => Some(include_str!("profiles/project-hardened.yaml")),
            ProfileName::OfficialPublicRepro => {
                Some(include_str!("profiles/official-public-repro.yaml"))
            }
            ProfileName::Custom => None,
        }
    }
}

/// Where a profile's text comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Provenance {
    /// The published file, recognised by its digest.
    Published,
    /// A file of the user's with another digest than the published one.
    UserSupplied,
    /// The text embedded in this program.
    Embedded,
}

/// A profile could not be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProfileError {
    /// The text does not follow the schema.
    #[error("read profile {profile}: {message}")]
    Schema {
        /// The profile.
        profile: &'static str,
        /// What is wrong, with the place where it is known.
        message: String,
    },
    /// The values do not go together, or ask for something that is not done.
    #[error("use profile {profile}: {problem}")]
    Invalid {
        /// The profile.
        profile: &'static str,
        /// What and why.
        problem: String,
    },
}

/// A profile with every setting decided. Only this module makes one.
#[derive(Clone, Debug)]
pub struct ResolvedProfile {
    kind: ProfileName,
    text: String,
    text_digest: Digest,
    overrides: BTreeMap<String, Value>,
    settings: Settings,
    ignored: Vec<String>,
}

/// The settings, as they go into the trajectory's header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The protocol.
    pub protocol: Protocol,
    /// The texts.
    pub templates: Templates,
    /// Model calls; `None` for no limit.
    pub step_limit: Option<u32>,
    /// Cost; `None` for no limit. A cost that is not known is not counted.
    pub cost_limit: Option<MicroDollars>,
    /// Wall time of the loop.
    pub wall_time_limit: Option<Duration>,
    /// Unusable replies in a row.
    pub max_consecutive_format_errors: Option<u32>,
    /// Where commands start.
    pub directory: Option<String>,
    /// Wall time of one command.
    pub command_timeout: Duration,
    /// Variables of every command, on top of the sandbox's.
    pub variables: BTreeMap<String, String>,
    /// What interprets commands.
    pub shell: ShellName,
    /// Sampling temperature; `None` leaves it to the server.
    pub temperature: Option<f64>,
    /// Limit on one reply; `None` sends none.
    pub max_output_tokens: Option<u32>,
    /// Context that prompt and reply share.
    pub context_tokens: Option<u32>,
    /// When to stop before a call that cannot fit.
    pub context_guard: Option<ContextGuard>,
    /// Adds a note from this many equal outputs of an equal command on.
    pub repetition_note_after: Option<u32>,
    /// What happens to a command that a fence inside it cut off.
    pub nested_fences: NestedFences,
    /// Where the patch comes from.
    pub patch_source: PatchSource,
}

impl Settings {
    /// The settings that a trial ran under, from the configuration in its trajectory's header.
    ///
    /// # Errors
    /// What is missing in it, in words.
    pub fn of_config(config: &Value) -> Result<Self, String> {
        let settings = config.get("settings").ok_or("it names no settings")?;
        Settings::deserialize(settings).map_err(|error| error.to_string())
    }

    /// The tools that the model is told of.
    pub fn tools(&self) -> Vec<Tool> {
        match self.protocol {
            Protocol::BashBlock => Vec::new(),
            Protocol::ToolCall => vec![tool_call::bash_tool()],
        }
    }
}

/// The texts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Templates {
    /// First message.
    pub system: String,
    /// Second message.
    pub instance: String,
    /// An output.
    pub observation: String,
    /// An unusable reply.
    pub format_error: String,
    /// A command that ran into its limit. `None`: it is an ordinary observation.
    pub timeout: Option<String>,
}

impl ResolvedProfile {
    /// One of the two embedded profiles; an error for [`ProfileName::Custom`], which has no text.
    pub fn embedded(name: ProfileName) -> Result<Self, ProfileError> {
        let text = name.embedded_text().ok_or_else(|| ProfileError::Invalid {
            profile: name.as_str(),
            problem: "it is a file of yours, and no file was given".into(),
        })?;
        Self::resolve(name, text.to_owned(), BTreeMap::new())
    }

    /// A profile from the text of a file. `project-hardened` is defined by this program, so no file
    /// can stand for it.
    pub fn from_text(name: ProfileName, text: &str) -> Result<Self, ProfileError> {
        if name == ProfileName::ProjectHardened {
            return Err(ProfileError::Invalid {
                profile: name.as_str(),
                problem: "it is built in; a file can only be official-public-repro or custom"
                    .into(),
            });
        }
        Self::resolve(name, text.to_owned(), BTreeMap::new())
    }

    /// The same profile with other values for some keys, written as paths (`agent.step_limit`,
    /// `temper.context_tokens`). `null` takes a key out. The name and the digest change.
    pub fn with_overrides(
        self,
        overrides: impl IntoIterator<Item = (String, Value)>,
    ) -> Result<Self, ProfileError> {
        let mut all = self.overrides;
        all.extend(overrides);
        Self::resolve(self.kind, self.text, all)
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Which profile it is, overrides or not.
    pub fn kind(&self) -> ProfileName {
        self.kind
    }

    /// The name, ending in `+overrides` if there are any.
    pub fn name(&self) -> String {
        let name = self.kind.as_str();
        if self.overrides.is_empty() {
            name.to_owned()
        } else {
            format!("{name}+overrides")
        }
    }

    /// The digest: that of the text, or of the text's digest and the overrides where there are any.
    pub fn digest(&self) -> Digest {
        if self.overrides.is_empty() {
            self.text_digest.clone()
        } else {
            Digest::of_value(&json!({"text": self.text_digest, "overrides": self.overrides}))
        }
    }

    /// Where the text comes from.
    pub fn provenance(&self) -> Provenance {
        if self.text_digest.as_str() == PUBLISHED_SHA256 {
            Provenance::Published
        } else if self.kind.embedded_text() == Some(self.text.as_str()) {
            Provenance::Embedded
        } else {
            Provenance::UserSupplied
        }
    }

    /// Where the text comes from, in words, with its digest.
    pub fn statement(&self) -> String {
        let origin = match (self.kind, self.provenance()) {
            (_, Provenance::Published) => "the published file",
            (ProfileName::OfficialPublicRepro, Provenance::UserSupplied) => {
                "a user-supplied file that differs from the published one"
            }
            (_, Provenance::UserSupplied) => "a user-supplied file",
            (ProfileName::OfficialPublicRepro, Provenance::Embedded) => {
                "Temper's equivalent of the published file"
            }
            (_, Provenance::Embedded) => "Temper's own text",
        };
        let mut statement = format!("{}: {origin}, SHA-256 {}", self.name(), self.text_digest);
        for (key, value) in &self.overrides {
            statement.push_str(&format!("; {key} = {value}"));
        }
        statement
    }

    /// The overrides by key.
    pub fn overrides(&self) -> &BTreeMap<String, Value> {
        &self.overrides
    }

    /// Keys of the text that have no effect here, each with the reason.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// What goes into a trajectory's header and a job's manifest.
    pub fn config(&self) -> Value {
        json!({
            "name": self.name(),
            "provenance": self.provenance(),
            "text_digest": self.text_digest,
            "overrides": self.overrides,
            "settings": self.settings,
        })
    }

    /// The variables that templates see of the profile itself: upstream's configuration fields,
    /// and `protocol`, `max_output_tokens` and `context_tokens`.
    pub fn template_variables(&self) -> Variables {
        let settings = &self.settings;
        let mut variables = Variables::new();
        let mut set = |name: &str, value: Value| variables.insert(name.to_owned(), value);
        set("system_template", json!(settings.templates.system));
        set("instance_template", json!(settings.templates.instance));
        set(
            "format_error_template",
            json!(settings.templates.format_error),
        );
        set(
            "action_observation_template",
            json!(settings.templates.observation),
        );
        set(
            "observation_template",
            json!(settings.templates.observation),
        );
        set("timeout_template", json!(settings.templates.timeout));
        set("step_limit", json!(settings.step_limit.unwrap_or(0)));
        set(
            "cost_limit",
            json!(settings.cost_limit.map_or(0.0, MicroDollars::dollars)),
        );
        set(
            "cwd",
            json!(settings.directory.as_deref().unwrap_or_default()),
        );
        set("timeout", json!(settings.command_timeout.as_secs()));
        set("env", json!(settings.variables));
        set("protocol", json!(settings.protocol));
        set("max_output_tokens", json!(settings.max_output_tokens));
        set("context_tokens", json!(settings.context_tokens));
        variables
    }

    fn resolve(
        kind: ProfileName,
        text: String,
        overrides: BTreeMap<String, Value>,
    ) -> Result<Self, ProfileError> {
        let profile = kind.as_str();
        let schema = |message: String| ProfileError::Schema { profile, message };
        let file: ProfileFile = if overrides.is_empty() {
            serde_saphyr::from_str(&text).map_err(|error| schema(error.to_string()))?
        } else {
            let mut value: Value =
                serde_saphyr::from_str(&text).map_err(|error| schema(error.to_string()))?;
            for (key, new) in &overrides {
                set_key(&mut value, key, new).map_err(schema)?;
            }
            serde_json::from_value(value).map_err(|error| schema(error.to_string()))?
        };
        let mut ignored = Vec::new();
        let settings = settle::settle(kind, file, &mut ignored)
            .map_err(|problem| ProfileError::Invalid { profile, problem })?;
        Ok(ResolvedProfile {
            kind,
            text_digest: Digest::of(text.as_bytes()),
            text,
            overrides,
            settings,
            ignored,
        })
    }
}

impl std::str::FromStr for ProfileName {
    type Err = ProfileError;
    fn from_str(text: &str) -> Result<Self, ProfileError> {
        [
            ProfileName::ProjectHardened,
            ProfileName::OfficialPublicRepro,
            ProfileName::Custom,
        ]
        .into_iter()
        .find(|name| name.as_str() == text)
        .ok_or_else(|| ProfileError::Invalid {
            profile: "by name",
            problem: format!(
                "there is no profile {text:?}; there are project-hardened, official-public-repro \
                 and custom"
            ),
        })
    }
}

fn set_key(root: &mut Value, path: &str, new: &Value) -> Result<(), String> {
    let mut place = root;
    let mut parts = path.split('.').peekable();
    while let Some(part) = parts.next() {
        let Value::Object(map) = place else {
            return Err(format!(
                "the override {path} goes through a value that is no section"
            ));
        };
        if parts.peek().is_none() {
            if new.is_null() {
                map.remove(part);
            } else {
                map.insert(part.to_owned(), new.clone());
            }
            return Ok(());
        }
        place = map
            .entry(part)
            .or_insert_with(|| Value::Object(Default::default()));
    }
    Ok(())
}
