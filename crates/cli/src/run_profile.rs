//! What a run says of itself when it starts: the record `RUN_PROFILE`.

use std::{collections::BTreeMap, path::Path};

use serde_json::{Value, json};
use temper_agent::{
    context_gate::ContextLengths,
    job::{self, Plan},
    profile::ResolvedProfile,
};
use temper_checkpoint::audit::{self, AuditOptions};
use temper_core::{
    Digest, Task,
    manifest::Producer,
    run_profile::{
        ContextIdentity, DatasetIdentity, Known, ModelEvidence, ModelIdentity, Origin,
        ProfileIdentity, RunIdentity, RunOperation, RunProfile, RuntimeIdentity, Setting,
    },
    task::Environment,
};
use temper_eval::claims::{self, Facts};

use crate::{
    agents::Agent,
    args::TrialArgs,
    clock,
    error::CliError,
    exit_code,
    jobs::Request,
    machine, output,
    places::workers,
    sandboxes::Sandboxes,
    tasks::PreparedSuite,
    verbs::model::locate::{self, Located},
};

/// Fields of a request that are settings of a run under their own names.
const SAMPLING_FIELDS: [&str; 5] = [
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
];
/// Fields of a request that a profile sets, too.
const NAMED_FIELDS: [&str; 3] = ["temperature", "max_tokens", "max_completion_tokens"];

/// Makes or takes up the job's directory, and writes and prints what the run is. A job that is something else is refused with every field that differs.
pub fn begin(request: &Request<'_>, plan: &Plan) -> Result<(), CliError> {
    let job = job::prepare(plan)?;
    let mut n_finished_before = 0;
    job.for_each_trial(|_| n_finished_before += 1)?;
    let image_contents_digest = image_contents(request)?;
    for session in job.sessions()? {
        check_images(
            &session.operation.image_contents_digest,
            &image_contents_digest,
        )?;
    }
    let profile = RunProfile {
        format: RunProfile::FORMAT,
        identity: identity(request),
        operation: RunOperation {
            started_at: clock::now(),
            concurrency: request.n_workers() as u64,
            max_retries: request.trials.max_retries,
            redo_lost: request.trials.redo_lost,
            shard: request.shard.map(|shard| shard.to_string()),
            n_finished_before,
            image_contents_digest,
            machine: json!(machine::describe(request.places)),
        },
    };
    job.begin_session(&profile)?;
    if !request.places.quiet {
        output::note(&format!("RUN_PROFILE {}", json!(profile)));
    }
    Ok(())
}

/// Over the contents of the tasks' images, by task; unknown unless each is there.
fn image_contents(request: &Request<'_>) -> Result<Known<Digest>, CliError> {
    let mut contents = BTreeMap::new();
    for (id, image) in images(request.suite) {
        match request.sandboxes.backend.image_contents(image)? {
            Some(digest) => contents.insert(id, digest),
            None => return Ok(Known::unknown()),
        };
    }
    Ok((!contents.is_empty())
        .then(|| Digest::of_value(&contents))
        .into())
}

/// Names of the tasks' images, by task.
fn images(suite: &PreparedSuite) -> BTreeMap<String, &str> {
    suite
        .iter()
        .filter_map(|(task, _)| match &task.environment {
            Environment::Image { image, .. } => Some((task.id.to_string(), image.as_str())),
            _ => None,
        })
        .collect()
}

/// Refuses to go on with a job in images of other contents; what is not known contradicts nothing.
fn check_images(before: &Known<Digest>, now: &Known<Digest>) -> Result<(), CliError> {
    match (before.value(), now.value()) {
        (Some(before), Some(now)) if before != now => Err(CliError::new(
            exit_code::JOB_DIFFERS,
            format!(
                "go on with the job: its images have other contents by now, {} in place of {}",
                now.short(),
                before.short()
            ),
        )
        .hint("choose another directory for the job, or put the images of then in place")),
        _ => Ok(()),
    }
}

/// Refuses context lengths that differ, unless the user lets them.
pub fn check_context(
    agent: &Agent,
    profile: &ResolvedProfile,
    trials: &TrialArgs,
) -> Result<(), CliError> {
    let lengths = ContextLengths {
        profile: profile.settings().context_tokens.map(u64::from),
        server: agent.server_context,
        training: trials.identity.training_context,
    };
    match lengths.check() {
        Ok(()) => Ok(()),
        Err(mismatch) if trials.identity.allow_context_mismatch => {
            output::note(&format!(
                "CONTEXT MISMATCH: {}",
                mismatch
                    .to_string()
                    .trim_start_matches("agree on the context: ")
            ));
            Ok(())
        }
        Err(mismatch) => {
            let hint = mismatch.hint();
            Err(CliError::new(exit_code::GATE_CLOSED, mismatch).hint(hint))
        }
    }
}

/// Refuses an audit that would say nothing, or the same of two servers.
pub fn check_audit<'a>(
    agents: impl IntoIterator<Item = &'a Agent>,
    trials: &TrialArgs,
) -> Result<(), CliError> {
    if trials.identity.model_audit.is_none() {
        return Ok(());
    }
    let stated = |agent: &&Agent| agent.model.evidence == ModelEvidence::Stated;
    let problem = match agents.into_iter().filter(stated).count() {
        1 => return Ok(()),
        0 => "no agent is a server, and a model in this process is audited by itself",
        _ => "several agents are servers, and it cannot be the audit of each",
    };
    Err(CliError::new(
        exit_code::USAGE,
        format!("use --model-audit: {problem}"),
    ))
}

/// What the run is.
pub fn identity(request: &Request<'_>) -> RunIdentity {
    let Request {
        agent,
        profile,
        suite,
        sandboxes,
        trials,
        ..
    } = request;
    let lengths = ContextLengths {
        profile: profile.settings().context_tokens.map(u64::from),
        server: agent.server_context,
        training: trials.identity.training_context,
    };
    let driver = agent.models.describe();
    RunIdentity {
        producer: Producer {
            name: "temper".into(),
            version: env!("CARGO_PKG_VERSION").into(),
        },
        agent: agent.name.clone(),
        is_language_model: agent.models.is_language_model(),
        config_digest: Digest::of_value(&json!({
            "profile": profile.config(),
            "model": driver,
        })),
        profile: profile_identity(profile),
        model: agent.model.clone(),
        runtime: runtime(suite, sandboxes),
        dataset: dataset(suite, trials),
        context: ContextIdentity {
            profile: lengths.profile.into(),
            server: lengths.server.into(),
            training: lengths.training.into(),
            mismatch_allowed: lengths.check().is_err(),
        },
        settings: settings(profile, agent, &driver, trials),
        attempts: trials.attempts,
        seed: trials.seed,
        seed_rule: "SHA-256 of job seed, task id and attempt, cut to 31 bits".into(),
    }
}

fn profile_identity(profile: &ResolvedProfile) -> ProfileIdentity {
    let provenance = match json!(profile.provenance()) {
        Value::String(word) => word,
        other => other.to_string(),
    };
    ProfileIdentity {
        kind: profile.kind().as_str().into(),
        name: profile.name(),
        digest: profile.digest(),
        provenance,
    }
}

fn runtime(suite: &PreparedSuite, sandboxes: &Sandboxes) -> RuntimeIdentity {
    let environments: Option<BTreeMap<String, &Digest>> = suite
        .iter()
        .map(|(task, prepared)| {
            let prepared = prepared.as_ref().ok()?;
            Some((task.id.to_string(), &prepared.environment_digest))
        })
        .collect();
    let images = images(suite);
    RuntimeIdentity {
        backend: sandboxes.backend.name().to_owned(),
        environment_digest: environments.map(|all| Digest::of_value(&all)).into(),
        image_names_digest: (!images.is_empty())
            .then(|| Digest::of_value(&images))
            .into(),
    }
}

fn dataset(suite: &PreparedSuite, trials: &TrialArgs) -> DatasetIdentity {
    let tasks: Vec<&Task> = suite.iter().map(|(task, _)| task).collect();
    let word = |value: Value| value.as_str().unwrap_or_default().to_owned();
    let joined = |words: Vec<String>| {
        let words: std::collections::BTreeSet<String> = words.into_iter().collect();
        words.into_iter().collect::<Vec<_>>().join("+")
    };
    let by_id = |value: &dyn Fn(&Task) -> Value| -> Digest {
        let all: BTreeMap<String, Value> = tasks
            .iter()
            .map(|task| (task.id.to_string(), value(task)))
            .collect();
        Digest::of_value(&all)
    };
    let mut projects = BTreeMap::new();
    for task in &tasks {
        *projects.entry(task.origin.project.clone()).or_default() += 1;
    }
    DatasetIdentity {
        stated: trials
            .identity
            .dataset
            .clone()
            .or_else(|| of_hub_path(&suite.name))
            .into(),
        suite: suite.name.clone(),
        task_format: joined(tasks.iter().map(|task| word(json!(task.format))).collect()),
        digest: by_id(&|task| json!(task.digest())),
        split_digest: by_id(&|task| json!(task.split)),
        split: joined(tasks.iter().map(|task| word(json!(task.split))).collect()),
        n_tasks: tasks.len() as u64,
        projects: Known::Is(projects),
        selection: suite.selection.clone(),
    }
}

/// The name and commit that a hub's cache writes into its paths.
fn of_hub_path(suite: &str) -> Option<String> {
    let path = std::path::absolute(suite).ok()?;
    let parts: Vec<String> = path
        .components()
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .collect();
    let at = parts
        .iter()
        .position(|part| part.starts_with("datasets--"))?;
    let name = parts[at].strip_prefix("datasets--")?.replacen("--", "/", 1);
    let commit = parts
        .get(at + 2)
        .filter(|_| parts.get(at + 1).is_some_and(|part| part == "snapshots"))?;
    Some(format!("{name}@{commit}"))
}

/// Every setting that can change a result, with where it came from.
fn settings(
    profile: &ResolvedProfile,
    agent: &Agent,
    driver: &Value,
    trials: &TrialArgs,
) -> BTreeMap<String, Setting> {
    let values = profile.settings();
    let from = |key: &str| origin(profile, key);
    let mut all = agent_settings(profile);
    let mut add = |name: &str, setting| all.insert(name.to_owned(), setting);
    // In this process what nobody set is Temper's default; elsewhere it is the server's business.
    let otherwise = if agent.engine.is_some() {
        Origin::Default
    } else {
        Origin::Server
    };
    let body = &driver["body"];
    let sent = |keys: &[&str]| {
        let value = keys
            .iter()
            .map(|key| &body[*key])
            .find(|value| !value.is_null());
        value.cloned()
    };
    let mut sampling =
        |name: &str, of_profile: Option<Value>, key: &str, own: Option<Value>, keys: &[&str]| {
            let setting = match (of_profile, sent(keys), own) {
                (Some(value), ..) => Setting::new(Some(value), from(key), otherwise),
                (None, Some(value), _) => Setting::new(Some(value), Origin::Flag, otherwise),
                (None, None, Some(value)) => Setting::new(Some(value), Origin::Default, otherwise),
                (None, None, None) => Setting::new(None::<Value>, Origin::Default, otherwise),
            };
            add(&format!("sampling.{name}"), setting);
        };
    let flags = &trials.sampling;
    let own = |value: Value| agent.engine.is_some().then_some(value);
    sampling(
        "temperature",
        values.temperature.map(|t| json!(t)),
        "model.model_kwargs",
        own(json!(flags.embedded_temperature.unwrap_or(0.0))),
        &["temperature"],
    );
    sampling(
        "max_output_tokens",
        values.max_output_tokens.map(|n| json!(n)),
        "temper.max_output_tokens",
        own(json!(flags.embedded_reply_tokens.unwrap_or(1024))),
        &["max_tokens", "max_completion_tokens"],
    );
    for key in SAMPLING_FIELDS {
        sampling(key, None, "", None, &[key]);
    }
    // Further fields of a request change what comes back as well.
    let other: serde_json::Map<String, Value> = body
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, _)| !NAMED_FIELDS.contains(&key.as_str()))
        .filter(|(key, _)| !SAMPLING_FIELDS.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    add(
        "sampling.other",
        Setting::new(
            (!other.is_empty()).then_some(other),
            Origin::Flag,
            otherwise,
        ),
    );
    if agent.engine.is_some()
        && values.temperature.is_none()
        && flags.embedded_temperature.is_some()
    {
        let given = flags.embedded_temperature;
        add(
            "sampling.temperature",
            Setting::new(given, Origin::Flag, Origin::Default),
        );
    }
    let default = TrialArgs::default().trial_timeout;
    let timeout_from = if trials.trial_timeout == default {
        Origin::Default
    } else {
        Origin::Flag
    };
    add(
        "trial.timeout_seconds",
        Setting::new(Some(trials.trial_timeout), timeout_from, Origin::Default),
    );
    all
}

/// Who set a key of the profile.
fn origin(profile: &ResolvedProfile, key: &str) -> Origin {
    if profile.overrides().keys().any(|set| set.starts_with(key)) {
        Origin::Flag
    } else {
        Origin::Profile
    }
}

/// The settings that are the profile's alone.
fn agent_settings(profile: &ResolvedProfile) -> BTreeMap<String, Setting> {
    let mut all = BTreeMap::new();
    let values = profile.settings();
    let mut of_profile = |name: &str, key: &str, value: Option<Value>| {
        let from = origin(profile, key);
        all.insert(format!("agent.{name}"), Setting::new(value, from, from));
    };
    for (name, key, value) in [
        ("protocol", "temper.protocol", Some(json!(values.protocol))),
        (
            "step_limit",
            "agent.step_limit",
            values.step_limit.map(|n| json!(n)),
        ),
        (
            "cost_limit_dollars",
            "agent.cost_limit",
            values.cost_limit.map(|cost| json!(cost.dollars())),
        ),
        (
            "wall_time_limit_seconds",
            "agent.wall_time_limit_seconds",
            values.wall_time_limit.map(|limit| json!(limit.as_secs())),
        ),
        (
            "max_consecutive_format_errors",
            "agent.max_consecutive_format_errors",
            values.max_consecutive_format_errors.map(|n| json!(n)),
        ),
        (
            "directory",
            "environment.cwd",
            values.directory.as_ref().map(|d| json!(d)),
        ),
        (
            "command_timeout_seconds",
            "environment.timeout",
            Some(json!(values.command_timeout.as_secs())),
        ),
        (
            "variables",
            "environment.env",
            Some(json!(values.variables)),
        ),
        ("shell", "temper.shell", Some(json!(values.shell))),
        (
            "context_guard_reserve_tokens",
            "temper.context_reserve_tokens",
            values
                .context_guard
                .as_ref()
                .map(|guard| json!(guard.reserve_tokens)),
        ),
        (
            "repetition_note_after",
            "temper.repetition_note_after",
            values.repetition_note_after.map(|n| json!(n)),
        ),
        (
            "nested_fences",
            "temper.nested_fences",
            Some(json!(values.nested_fences)),
        ),
        (
            "patch_source",
            "temper.patch_source",
            Some(json!(values.patch_source)),
        ),
    ] {
        of_profile(name, key, value);
    }
    all
}

/// What is known before a run: the audit of a checkpoint's files, as stated, and a profile by
/// itself. What flags of the run would add is not in it.
pub fn facts_before(model: &ModelIdentity, profile: Option<&ResolvedProfile>) -> Facts {
    let mut facts = claims::of_model(model);
    let Some(profile) = profile else {
        return facts;
    };
    let mut settings = agent_settings(profile);
    let values = profile.settings();
    for (name, value) in [
        ("temperature", values.temperature.map(|t| json!(t))),
        (
            "max_output_tokens",
            values.max_output_tokens.map(|n| json!(n)),
        ),
    ] {
        settings.insert(
            format!("sampling.{name}"),
            Setting::new(value, Origin::Profile, Origin::Profile),
        );
    }
    facts.extend(claims::of_settings(&settings));
    facts.extend(claims::of_profile(
        &profile_identity(profile),
        values.context_tokens.map(u64::from),
    ));
    facts
}

/// The identity of files that run in this process: they are audited, hashes and all.
pub fn of_files(located: &Located) -> Result<ModelIdentity, CliError> {
    let audit = audit::audit(
        &located.path,
        &AuditOptions {
            revision: locate::revision(located),
            n_threads: workers(None),
        },
    )
    .map_err(|error| CliError::new(exit_code::INPUT, error))?;
    Ok(of_audit(&json!(audit), ModelEvidence::Measured))
}

/// The identity that the audit in a file states.
pub fn of_audit_file(path: &Path) -> Result<ModelIdentity, CliError> {
    let wrong = |reason: String| {
        CliError::new(
            exit_code::INPUT,
            format!("read the model audit {}: {reason}", path.display()),
        )
        .hint("`temper model audit MODEL --format json` writes one")
    };
    let text = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let value: Value = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
    if value["schema_version"] != audit::SCHEMA_VERSION {
        return Err(wrong(format!(
            "it has schema_version {}, this version reads {}",
            value["schema_version"],
            audit::SCHEMA_VERSION
        )));
    }
    let identity = of_audit(&value, ModelEvidence::Stated);
    if identity.audit_digest.value().is_none() {
        return Err(wrong("it has no digest".into()));
    }
    Ok(identity)
}

fn of_audit(audit: &Value, evidence: ModelEvidence) -> ModelIdentity {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    // Where the weights contradict the configuration, it does not say what they are.
    let findings = audit["findings"].as_array();
    let is_contradicted = findings
        .into_iter()
        .flatten()
        .any(|finding| finding["kind"] == "dtype-differs");
    ModelIdentity {
        audit_digest: text(&audit["digest"])
            .and_then(|digest| digest.parse().ok())
            .into(),
        revision: text(&audit["revision"]["value"]).into(),
        evidence,
        architecture: text(&audit["architecture"]).into(),
        dtype: text(&audit["declared_dtype"])
            .filter(|_| !is_contradicted)
            .into(),
        max_position_embeddings: audit["max_position_embeddings"].as_u64().into(),
        rope: match &audit["rope"] {
            Value::Null => Known::unknown(),
            rope => Known::Is(rope.clone()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_may_become_known_and_may_not_change() {
        let one = Known::Is(Digest::of(b"one"));
        let other = Known::Is(Digest::of(b"other"));
        let unknown = Known::unknown();
        for (before, now) in [(&one, &one), (&unknown, &one), (&one, &unknown)] {
            assert!(check_images(before, now).is_ok());
        }
        let refused = check_images(&one, &other).map_err(|error| (error.code, error.message));
        let (code, message) = refused.unwrap_err();
        assert_eq!(code, exit_code::JOB_DIFFERS);
        assert!(message.contains("other contents"), "{message}");
    }
}
