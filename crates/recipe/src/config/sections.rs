//! The sections of a recipe, each setting beside its default.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Deserializer, Serialize, de};
use temper_train::{PreferenceConfig, PreferenceObjective, SftConfig, TrainingConfig};

/// `[output]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputSettings {
    /// The directory; made if need be.
    pub directory: PathBuf,
}

/// `[model]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSettings {
    /// A folder, a GGUF file, `default`, or a name on a hub.
    pub source: String,
    /// A PEFT folder that training starts from, whose settings are those of the method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<PathBuf>,
    /// The longest sequence of a trial in tokens; what the model is made for, at most 32768,
    /// unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
}

/// `[suite]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuiteSettings {
    /// A suite that ships with Temper, or a file or directory of tasks.
    pub name: String,
}

/// `[agent]`: how trials of teachers, of selection and of the final test run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentSettings {
    /// `project-hardened` or `official-public-repro`.
    pub profile: String,
    /// Settings of the profile that are changed.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, serde_json::Value>,
    /// Temperature of the trained model; 0 takes the most likely token.
    pub temperature: f32,
    /// The longest reply of the trained model in tokens; the profile's unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply_tokens: Option<u32>,
    /// Steps of a trial of the trained model; the profile's unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    /// Wall-clock limit of one trial.
    pub trial_timeout_seconds: u64,
    /// How often a trial is started over after a failure of the infrastructure.
    pub max_retries: u32,
}

/// `[data]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSettings {
    /// A directory that `temper dataset build` made.
    pub directory: PathBuf,
}

/// `[[collect]]`: one teacher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectSettings {
    /// `policy` for the model that is trained, or as for `temper collect --teacher`.
    pub teacher: String,
    /// Candidates of each training task.
    #[serde(default = "one")]
    pub attempts: u32,
    /// What candidates are drawn from.
    #[serde(default)]
    pub seed: u64,
    /// Temperature of the policy in place of that of `[agent]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Continuations of each failed candidate from one state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branches: Option<u32>,
    /// Steps before their end from which failed candidates are continued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_back: Option<u32>,
    /// Only training tasks whose id fits one of these: globs, or regular expressions between
    /// slashes. All where there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<String>,
    /// At most this many training tasks, the first by id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

fn one() -> u32 {
    1
}

/// `[train]`: the settings of supervised training, and the seeds that it runs with.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrainSettings {
    /// One run, and one candidate, for each.
    pub seeds: Vec<u64>,
    /// Everything else.
    #[serde(flatten)]
    pub sft: SftConfig,
}

/// `[select]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SelectSettings {
    /// Trials of each dev task.
    pub attempts: u32,
    /// What trials are drawn from, the same for every snapshot.
    pub seed: u64,
    /// Only dev tasks whose id fits one of these, as under `[[collect]]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<String>,
    /// At most this many dev tasks, the first by id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// `[preference]`: the settings of preference training but the method, which is that of `[train]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PreferenceSettings {
    /// What is minimised.
    pub objective: PreferenceObjective,
    /// Everything else; method and seed are those of the run that it goes on from.
    #[serde(flatten)]
    pub training: TrainingConfig,
}

/// `[evaluate]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluateSettings {
    /// Trials of each test task.
    pub attempts: u32,
    /// What trials are drawn from, the same for baseline and candidates.
    pub seed: u64,
    /// At most this many test tasks, the first by id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Samples of the bootstrap.
    pub resamples: u32,
}

impl Default for ModelSettings {
    fn default() -> Self {
        ModelSettings {
            source: "default".into(),
            adapter: None,
            context: None,
        }
    }
}

impl Default for AgentSettings {
    fn default() -> Self {
        AgentSettings {
            profile: "project-hardened".into(),
            set: BTreeMap::new(),
            temperature: 0.0,
            reply_tokens: None,
            steps: None,
            trial_timeout_seconds: 3600,
            max_retries: 2,
        }
    }
}

impl Default for TrainSettings {
    fn default() -> Self {
        TrainSettings {
            seeds: vec![0],
            sft: SftConfig::default(),
        }
    }
}

impl Default for SelectSettings {
    fn default() -> Self {
        SelectSettings {
            attempts: 1,
            seed: 0,
            tasks: Vec::new(),
            limit: None,
        }
    }
}

impl Default for EvaluateSettings {
    fn default() -> Self {
        EvaluateSettings {
            attempts: 1,
            seed: 0,
            limit: None,
            resamples: 10_000,
        }
    }
}

impl TrainSettings {
    /// The run of a seed.
    pub fn of_seed(&self, seed: u64) -> SftConfig {
        let mut sft = self.sft.clone();
        sft.training.seed = seed;
        sft
    }
}

impl PreferenceSettings {
    /// The run that goes on from a supervised one.
    pub fn after(&self, sft: &SftConfig) -> PreferenceConfig {
        PreferenceConfig {
            objective: self.objective,
            training: TrainingConfig {
                method: sft.training.method.clone(),
                seed: sft.training.seed,
                ..self.training.clone()
            },
        }
    }
}

impl<'de> Deserialize<'de> for TrainSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = toml::Table::deserialize(deserializer)?;
        let mut settings = TrainSettings::default();
        if let Some(seeds) = take(&mut table, "seeds")? {
            settings.seeds = seeds;
        }
        if let Some(packing) = take(&mut table, "packing")? {
            settings.sft.packing = packing;
        }
        settings.sft.max_tokens_per_pass = take(&mut table, "max_tokens_per_pass")?;
        refuse(&table, "seed", "name the seeds of the runs in seeds = [0]")?;
        settings.sft.training = rest(table)?;
        Ok(settings)
    }
}

impl<'de> Deserialize<'de> for PreferenceSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = toml::Table::deserialize(deserializer)?;
        let objective = take(&mut table, "objective")?.ok_or_else(|| {
            de::Error::custom("missing field `objective`, such as dpo.beta = 0.1")
        })?;
        refuse(
            &table,
            "seed",
            "it is the seed of the run that this goes on from",
        )?;
        refuse(
            &table,
            "method",
            "it is that of [train], whose adapter this goes on from",
        )?;
        Ok(PreferenceSettings {
            objective,
            training: rest(table)?,
        })
    }
}

/// Takes a value out of a table.
fn take<T: de::DeserializeOwned, E: de::Error>(
    table: &mut toml::Table,
    key: &str,
) -> Result<Option<T>, E> {
    let value = table.remove(key);
    value
        .map(|value| value.try_into().map_err(|error| wrong(Some(key), &error)))
        .transpose()
}

fn refuse<E: de::Error>(table: &toml::Table, key: &str, why: &str) -> Result<(), E> {
    if table.contains_key(key) {
        return Err(E::custom(format!("`{key}` has no place here: {why}")));
    }
    Ok(())
}

/// What is left are the settings that all training has.
fn rest<T: de::DeserializeOwned, E: de::Error>(table: toml::Table) -> Result<T, E> {
    toml::Value::Table(table)
        .try_into()
        .map_err(|error| wrong(None, &error))
}

fn wrong<E: de::Error>(key: Option<&str>, error: &toml::de::Error) -> E {
    let message = error.message().trim();
    match key {
        Some(key) => E::custom(format!("`{key}`: {message}")),
        None => E::custom(message),
    }
}
