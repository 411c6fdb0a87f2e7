//! What a job shows of itself, by the names that a ledger holds its values against.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use temper_core::run_profile::{
    ModelEvidence, ModelIdentity, ProfileIdentity, RunIdentity, Setting,
};

/// Facts by name. What is not known is absent.
pub type Facts = BTreeMap<String, Fact>;

/// A value of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fact {
    /// The value.
    pub value: Value,
    /// Who says so.
    pub strength: Strength,
}

/// Who says what a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strength {
    /// The user, and nothing that Temper could look at.
    Stated,
    /// Temper itself, from files or settings.
    Measured,
}

/// A job as the rule sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobFacts {
    /// Its name in tables.
    pub job: String,
    /// What it shows.
    pub facts: Facts,
    /// Whether a language model answered.
    pub is_language_model: bool,
    /// Trials that it is to have.
    pub n_planned: u64,
    /// Trials that it has.
    pub n_trials: u64,
    /// Of these, lost to the infrastructure.
    pub n_lost: u64,
    /// Processes that worked on it; `None` where they were not recorded.
    pub n_sessions: Option<u64>,
    /// Whether a disagreement of context lengths was let pass.
    pub context_mismatch_allowed: bool,
    /// Whether it is shown together with results of another profile.
    pub is_mixed: bool,
}

/// The facts of a run that wrote down what it is.
pub fn of_job(identity: &RunIdentity) -> Facts {
    let mut facts = of_model(&identity.model);
    let mut add = |name: &str, value: Value, strength| {
        facts.insert(name.to_owned(), Fact { value, strength });
    };
    let measured = Strength::Measured;
    if let Some(stated) = identity.dataset.stated.value() {
        let name = stated.split('@').next().unwrap_or_default();
        add("dataset.name", json!(name), Strength::Stated);
    }
    let dataset = &identity.dataset;
    add("dataset.format", json!(dataset.task_format), measured);
    add("dataset.split", json!(dataset.split), measured);
    add("dataset.n_tasks", json!(dataset.n_tasks), measured);
    if let Some(projects) = dataset.projects.value() {
        add("dataset.projects", json!(projects), measured);
    }
    add(
        "agent.implementation",
        json!(identity.producer.name),
        measured,
    );
    if let Some(n) = identity.context.server.value() {
        add("context.server", json!(n), measured);
    }
    if let Some(n) = identity.context.training.value() {
        add("context.training", json!(n), Strength::Stated);
    }
    add("attempts", json!(identity.attempts), measured);
    add("seed", json!(identity.seed), measured);
    facts.extend(of_profile(
        &identity.profile,
        identity.context.profile.value().copied(),
    ));
    facts.extend(of_settings(&identity.settings));
    facts
}

/// The facts of a model's files; none where nobody says what they are.
pub fn of_model(model: &ModelIdentity) -> Facts {
    let strength = match model.evidence {
        ModelEvidence::Measured => Strength::Measured,
        ModelEvidence::Stated => Strength::Stated,
        ModelEvidence::Unknown => return Facts::new(),
    };
    let mut facts = Facts::new();
    for (name, value) in [
        ("revision", json!(model.revision.value())),
        ("architecture", json!(model.architecture.value())),
        ("dtype", json!(model.dtype.value())),
        (
            "max_position_embeddings",
            json!(model.max_position_embeddings.value()),
        ),
        (
            "rope_scaling",
            model.rope.value().map_or(Value::Null, rope_scaling),
        ),
    ] {
        if !value.is_null() {
            facts.insert(format!("checkpoint.{name}"), Fact { value, strength });
        }
    }
    facts
}

/// The facts of a profile: which text, and the context that prompt and reply share, in tokens.
pub fn of_profile(profile: &ProfileIdentity, context_tokens: Option<u64>) -> Facts {
    let text = match (profile.name == profile.kind, profile.provenance.as_str()) {
        // A changed setting is another configuration, whatever text it started from.
        (false, _) => format!("{} with overrides", profile.kind),
        (true, "published") => "published".to_owned(),
        (true, provenance) => format!("{} {}", profile.kind, provenance),
    };
    let context = context_tokens.map(|n| ("context.profile", json!(n)));
    [("profile.text", json!(text))]
        .into_iter()
        .chain(context)
        .map(|(name, value)| (name.to_owned(), measured(value)))
        .collect()
}

/// The facts that settings are, by their own names.
pub fn of_settings(settings: &BTreeMap<String, Setting>) -> Facts {
    let each = settings.iter();
    each.map(|(name, setting)| (name.clone(), measured(setting.value.clone())))
        .collect()
}

fn measured(value: Value) -> Fact {
    Fact {
        value,
        strength: Strength::Measured,
    }
}

/// The scaling of the rotary embedding in one word: `none` where there is none.
fn rope_scaling(rope: &Value) -> Value {
    let scaling = [&rope["rope_parameters"], &rope["rope_scaling"]]
        .into_iter()
        .find(|value| value.is_object());
    let kind = scaling.and_then(|scaling| {
        scaling["rope_type"]
            .as_str()
            .or_else(|| scaling["type"].as_str())
    });
    match kind {
        None | Some("default") => json!("none"),
        Some(kind) => json!(kind),
    }
}
