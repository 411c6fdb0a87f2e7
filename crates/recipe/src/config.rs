//! The recipe: one section for each stage, unknown keys and settings without effect are errors.

mod check;
mod sections;

use serde::{Deserialize, Serialize};
use temper_dataset::build::BuildConfig;

pub use sections::{
    AgentSettings, CollectSettings, DataSettings, EvaluateSettings, ModelSettings, OutputSettings,
    PreferenceSettings, SelectSettings, SuiteSettings, TrainSettings,
};

/// What a staged run does. Paths are taken from the directory that the program runs in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Where the run's stages go.
    pub output: OutputSettings,
    /// The model that is trained.
    #[serde(default)]
    pub model: ModelSettings,
    /// The tasks of collecting, selection and the final test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suite: Option<SuiteSettings>,
    /// How trials run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentSettings>,
    /// A data set that is there already, in place of collecting and building one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataSettings>,
    /// Teachers, one after another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub collect: Vec<CollectSettings>,
    /// From candidates to rows and pairs, as for `temper dataset build --config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildConfig>,
    /// Supervised training.
    #[serde(default)]
    pub train: TrainSettings,
    /// Selection between snapshots; without it the last one is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<SelectSettings>,
    /// Preference training from the selected adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preference: Option<PreferenceSettings>,
    /// The final test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluate: Option<EvaluateSettings>,
}

/// A stage, in the order of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StageName {
    /// Candidates from teachers.
    Collect,
    /// A data set of them.
    Build,
    /// Supervised training, once for each seed.
    Train,
    /// A snapshot of each, by execution on dev tasks.
    Select,
    /// Preference training from what was selected.
    Preference,
    /// A snapshot of that.
    SelectPreference,
    /// The final test of the baseline and each candidate.
    Evaluate,
    /// The page.
    Report,
}

impl StageName {
    /// All, in order.
    pub const ALL: [StageName; 8] = [
        StageName::Collect,
        StageName::Build,
        StageName::Train,
        StageName::Select,
        StageName::Preference,
        StageName::SelectPreference,
        StageName::Evaluate,
        StageName::Report,
    ];

    /// Its name in files and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            StageName::Collect => "collect",
            StageName::Build => "build",
            StageName::Train => "train",
            StageName::Select => "select",
            StageName::Preference => "preference",
            StageName::SelectPreference => "select-preference",
            StageName::Evaluate => "evaluate",
            StageName::Report => "report",
        }
    }
}

impl std::fmt::Display for StageName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// Why a recipe cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecipeError {
    /// It is not TOML of the right shape.
    #[error("read the recipe: {0}")]
    Malformed(String),
    /// A setting is wrong, missing or without effect.
    #[error("follow the recipe: {setting}: {reason}")]
    Setting {
        /// Its path.
        setting: String,
        /// What is wrong.
        reason: String,
    },
}

impl Recipe {
    /// A recipe with every section, explained.
    pub const EXAMPLE: &str = include_str!("../../../examples/recipes/repair.toml");

    /// Reads and checks a recipe.
    ///
    /// # Errors
    /// When the text is not TOML, has an unknown key, or a setting is wrong or without effect.
    pub fn parse(text: &str) -> Result<Self, RecipeError> {
        let recipe: Recipe =
            toml::from_str(text).map_err(|error| RecipeError::Malformed(error.to_string()))?;
        recipe.check()?;
        Ok(recipe)
    }

    /// The stages that it asks for, in order.
    pub fn stages(&self) -> Vec<StageName> {
        StageName::ALL
            .into_iter()
            .filter(|stage| match stage {
                StageName::Collect => !self.collect.is_empty(),
                StageName::Build => self.build.is_some(),
                StageName::Train => true,
                StageName::Select => self.select.is_some(),
                StageName::Preference => self.preference.is_some(),
                StageName::SelectPreference => self.preference.is_some() && self.select.is_some(),
                StageName::Evaluate => self.evaluate.is_some(),
                StageName::Report => true,
            })
            .collect()
    }

    /// Whether a stage runs trials.
    pub fn runs_trials(&self) -> bool {
        !self.collect.is_empty() || self.select.is_some() || self.evaluate.is_some()
    }
}

#[cfg(test)]
mod tests;
