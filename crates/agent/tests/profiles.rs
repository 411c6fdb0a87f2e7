//! What a profile file may say, and what becomes of it.
#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use temper_agent::{
    context_guard::ContextGuard,
    profile::{ProfileError, ProfileName, Provenance, ResolvedProfile, file::ShellName},
    protocol::{Protocol, bash_block::NestedFences},
};
use temper_core::{Digest, trial::PatchSource, usage::MicroDollars};

fn embedded(name: ProfileName) -> ResolvedProfile {
    ResolvedProfile::embedded(name).unwrap()
}

fn custom(text: &str) -> Result<ResolvedProfile, ProfileError> {
    ResolvedProfile::from_text(ProfileName::Custom, text)
}

const MINIMAL: &str = "agent:
  system_template: S
  instance_template: I
  action_observation_template: O
";

fn refused(text: &str, part: &str) {
    let error = custom(text).expect_err(text).to_string();
    assert!(error.contains(part), "{error}");
}

#[test]
fn the_embedded_profiles_say_what_the_project_decided() {
    let hardened = embedded(ProfileName::ProjectHardened);
    let settings = hardened.settings();
    assert_eq!(settings.step_limit, Some(100));
    assert_eq!(settings.cost_limit, None);
    assert_eq!(settings.max_output_tokens, Some(896));
    assert_eq!(
        settings.context_guard,
        Some(ContextGuard {
            context_tokens: 32_768,
            max_output_tokens: 896,
            reserve_tokens: 256,
        })
    );
    assert_eq!(settings.patch_source, PatchSource::WorkTree);
    assert_eq!(settings.nested_fences, NestedFences::RunWhole);
    assert_eq!(settings.shell, ShellName::Bash);
    assert!(hardened.statement().contains("Temper's own text"));
    assert!(hardened.ignored().is_empty());

    let official = embedded(ProfileName::OfficialPublicRepro);
    let settings = official.settings();
    assert_eq!(settings.step_limit, Some(200));
    assert_eq!(settings.cost_limit, MicroDollars::from_dollars(3.0));
    assert_eq!(settings.max_output_tokens, None);
    assert_eq!(settings.context_guard, None);
    assert_eq!(settings.context_tokens, Some(65_536));
    assert_eq!(settings.temperature, Some(1.0));
    assert_eq!(settings.repetition_note_after, None);
    assert_eq!(settings.max_consecutive_format_errors, None);
    assert_eq!(settings.patch_source, PatchSource::Submission);
    assert_eq!(settings.shell, ShellName::BashLogin);
    assert_eq!(official.provenance(), Provenance::Embedded);
    assert!(official.statement().contains("Temper's equivalent"));
    assert_ne!(hardened.digest(), official.digest());
}

#[test]
fn overrides_show_in_name_digest_and_statement() {
    let plain = embedded(ProfileName::ProjectHardened);
    let text = ProfileName::ProjectHardened.embedded_text().unwrap();
    assert_eq!(plain.digest(), Digest::of(text.as_bytes()));
    let changed = plain
        .clone()
        .with_overrides([("agent.step_limit".to_owned(), json!(7))])
        .unwrap();
    assert_eq!(changed.settings().step_limit, Some(7));
    assert_eq!(changed.name(), "project-hardened+overrides");
    assert_ne!(changed.digest(), plain.digest());
    assert!(changed.statement().contains("agent.step_limit = 7"));
    // A second override keeps the first.
    let both = changed
        .with_overrides([("environment.env.PAGER".to_owned(), Value::Null)])
        .unwrap();
    assert_eq!(both.settings().step_limit, Some(7));
    assert!(!both.settings().variables.contains_key("PAGER"));
    let unknown = both.with_overrides([("agent.step_limits".to_owned(), json!(7))]);
    assert!(unknown.unwrap_err().to_string().contains("step_limits"));
}

#[test]
fn nothing_can_stand_for_project_hardened_but_itself() {
    assert!(ResolvedProfile::from_text(ProfileName::ProjectHardened, MINIMAL).is_err());
    assert!(ResolvedProfile::embedded(ProfileName::Custom).is_err());
    let own = ResolvedProfile::from_text(ProfileName::OfficialPublicRepro, MINIMAL).unwrap();
    assert_eq!(own.provenance(), Provenance::UserSupplied);
    assert!(own.statement().contains("differs from the published one"));
}

#[test]
fn upstream_defaults_hold_where_a_file_is_silent() {
    let profile = custom(MINIMAL).unwrap();
    let settings = profile.settings();
    assert_eq!(settings.step_limit, None);
    assert_eq!(settings.cost_limit, MicroDollars::from_dollars(3.0));
    assert_eq!(settings.command_timeout.as_secs(), 30);
    assert_eq!(settings.protocol, Protocol::BashBlock);
    assert_eq!(settings.shell, ShellName::BashLogin);
    assert_eq!(settings.directory, None);
}

#[test]
fn both_names_of_the_environment_are_read_and_never_both() {
    for name in ["env", "environment"] {
        let text = format!("{MINIMAL}{name}:\n  cwd: /here\n  environment_class: local\n");
        let profile = custom(&text).unwrap();
        assert_eq!(profile.settings().directory.as_deref(), Some("/here"));
        assert_eq!(profile.settings().shell, ShellName::Sh);
    }
    refused(
        &format!("{MINIMAL}env: {{}}\nenvironment: {{}}\n"),
        "both `env` and `environment`",
    );
}

#[test]
fn version_2_files_select_the_tool_protocol() {
    let text = "agent: {system_template: S, instance_template: I, wall_time_limit_seconds: 9}
model: {observation_template: O, format_error_template: F}
environment: {interpreter: [bash, -c]}
";
    let profile = custom(text).unwrap();
    let settings = profile.settings();
    assert_eq!(settings.protocol, Protocol::ToolCall);
    assert_eq!(settings.max_consecutive_format_errors, Some(3));
    assert_eq!(settings.wall_time_limit.unwrap().as_secs(), 9);
    assert_eq!(settings.shell, ShellName::Bash);
    assert_eq!(settings.templates.timeout, None);
    refused(
        &format!("{MINIMAL}model: {{observation_template: O}}\n"),
        "version 1",
    );
}

#[test]
fn every_key_is_read_refused_or_listed() {
    refused(&format!("{MINIMAL}surprise: 1\n"), "surprise");
    refused(&format!("{MINIMAL}  surprise: 1\n"), "surprise");
    refused(&format!("{MINIMAL}temper: {{surprise: 1}}\n"), "surprise");
    refused(
        &format!("{MINIMAL}model: {{model_kwargs: {{top_p: 0.9}}}}\n"),
        "top_p",
    );
    refused(
        &format!("{MINIMAL}model: {{model_kwargs: {{temperature: hot}}}}\n"),
        "temperature",
    );
    refused(
        &format!("{MINIMAL}environment: {{forward_env: [HOME]}}\n"),
        "forward_env",
    );
    refused(
        &format!("{MINIMAL}environment: {{timeout: 0}}\n"),
        "timeout",
    );
    refused(
        &format!("{MINIMAL}environment: {{environment_class: moon}}\n"),
        "moon",
    );
    refused(&format!("{MINIMAL}  cost_limit: -1\n"), "cost_limit");
    refused(
        &format!("{MINIMAL}temper: {{context_reserve_tokens: 1}}\n"),
        "context_tokens",
    );
    refused(
        "agent: {system_template: S, instance_template: I}",
        "observation template",
    );
    refused("[]", "custom");
    refused("", "custom");
    let text = format!(
        "{MINIMAL}model: {{model_name: m, model_kwargs: {{drop_params: true}}}}\n\
         environment: {{image: i}}\n"
    );
    let profile = custom(&text).unwrap();
    let keys: Vec<_> = profile
        .ignored()
        .iter()
        .map(|line| line.split(':').next().unwrap())
        .collect();
    assert_eq!(
        keys,
        [
            "model.model_kwargs.drop_params",
            "environment.image",
            "model.model_name"
        ]
    );
}

#[test]
fn the_published_file_is_recognised() {
    let Some(path) = std::env::var_os("TEMPER_PUBLISHED_PROFILE") else {
        println!("TEMPER_PUBLISHED_PROFILE is not set: not run");
        return;
    };
    let text = std::fs::read_to_string(path).unwrap();
    let profile = ResolvedProfile::from_text(ProfileName::OfficialPublicRepro, &text).unwrap();
    assert_eq!(profile.provenance(), Provenance::Published);
    // The equivalent has every setting of the published file.
    let equivalent = embedded(ProfileName::OfficialPublicRepro);
    let mut settings = profile.settings().clone();
    settings.templates = equivalent.settings().templates.clone();
    assert_eq!(&settings, equivalent.settings());
}
