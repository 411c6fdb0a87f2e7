//! What the types of `task.toml` do not say: ranges, forms of names, fields that exclude each
//! other. Deprecated fields become the present ones here.

use std::net::{IpAddr, Ipv6Addr};

use super::config::{
    Agent, Artifact, ArtifactEntry, Config, Environment, EnvironmentMode, Healthcheck, McpServer,
    MinReward, NetworkMode, Verifier,
};

/// A field and what is wrong with it.
pub(super) type Problem = (String, String);

/// The newest minor version of schema 1 that is known.
const NEWEST_MINOR: u32 = 4;

/// Checks a configuration and brings deprecated fields up to date; returns warnings.
pub(super) fn check(config: &mut Config) -> Result<Vec<String>, Problem> {
    let mut warnings = Vec::new();
    if let Some(version) = config.version.take() {
        warnings.push("version is deprecated; use schema_version".to_owned());
        config.schema_version.get_or_insert(version);
    }
    let version = config
        .schema_version
        .get_or_insert_with(|| "1.4".to_owned());
    let known = match version.split_once('.') {
        Some(("1", minor)) => minor.parse::<u32>().is_ok_and(|n| n <= NEWEST_MINOR),
        _ => version == "1",
    };
    if !known {
        return problem(
            "schema_version",
            format!("expected 1.0 to 1.{NEWEST_MINOR}, got {version:?}"),
        );
    }
    if let Some(task) = &config.task
        && !is_package_name(&task.name)
    {
        return problem(
            "task.name",
            format!("expected org/name, got {:?}", task.name),
        );
    }
    check_environment("environment", &mut config.environment, &mut warnings)?;
    check_agent("agent", &config.agent)?;
    check_verifier("verifier", &mut config.verifier, &mut warnings)?;
    check_artifacts("artifacts", &config.artifacts)?;
    if config.multi_step_reward_strategy.is_some() && config.steps.is_empty() {
        warnings.push("multi_step_reward_strategy has no effect without steps".to_owned());
    }
    let mut names: Vec<String> = Vec::new();
    for (index, step) in config.steps.iter_mut().enumerate() {
        let field = |name: &str| format!("steps[{index}].{name}");
        let folded = step.name.to_lowercase();
        if !is_step_name(&step.name) {
            return problem(
                &field("name"),
                format!("{:?} is not a portable directory name", step.name),
            );
        }
        if names.contains(&folded) {
            return problem(&field("name"), format!("{:?} is there twice", step.name));
        }
        names.push(folded);
        check_agent(&field("agent"), &step.agent)?;
        check_verifier(&field("verifier"), &mut step.verifier, &mut warnings)?;
        let is_finite = match &step.min_reward {
            Some(MinReward::One(reward)) => reward.is_finite(),
            Some(MinReward::Each(rewards)) => rewards.values().all(|reward| reward.is_finite()),
            None => true,
        };
        if !is_finite {
            return problem(&field("min_reward"), "expected finite numbers");
        }
        check_healthcheck(&field("healthcheck"), step.healthcheck.as_ref())?;
        check_artifacts(&field("artifacts"), &step.artifacts)?;
    }
    Ok(warnings)
}

fn problem<T>(field: &str, text: impl Into<String>) -> Result<T, Problem> {
    Err((field.to_owned(), text.into()))
}

fn check_agent(field: &str, agent: &Agent) -> Result<(), Problem> {
    if let Some(seconds) = agent.timeout_sec {
        check_seconds(&format!("{field}.timeout_sec"), seconds)?;
    }
    check_network(field, agent.network_mode, agent.allowed_hosts.as_deref())
}

fn check_verifier(
    field: &str,
    verifier: &mut Verifier,
    warnings: &mut Vec<String>,
) -> Result<(), Problem> {
    check_seconds(&format!("{field}.timeout_sec"), verifier.timeout_sec)?;
    check_network(
        field,
        verifier.network_mode,
        verifier.allowed_hosts.as_deref(),
    )?;
    if verifier.environment.is_some() && verifier.environment_mode == Some(EnvironmentMode::Shared)
    {
        return problem(
            &format!("{field}.environment_mode"),
            "shared contradicts an environment of the verifier's own",
        );
    }
    if let Some(environment) = &mut verifier.environment {
        check_environment(&format!("{field}.environment"), environment, warnings)?;
    }
    for collect in &verifier.collect {
        check_seconds(&format!("{field}.collect.timeout_sec"), collect.timeout_sec)?;
        check_service(&format!("{field}.collect.service"), &collect.service)?;
    }
    Ok(())
}

fn check_environment(
    field: &str,
    environment: &mut Environment,
    warnings: &mut Vec<String>,
) -> Result<(), Problem> {
    check_seconds(
        &format!("{field}.build_timeout_sec"),
        environment.build_timeout_sec,
    )?;
    if environment
        .cpus
        .is_some_and(|cpus| !cpus.is_finite() || cpus <= 0.0)
    {
        return problem(&format!("{field}.cpus"), "expected a number above 0");
    }
    for (name, old, new) in [
        (
            "memory",
            &mut environment.memory,
            &mut environment.memory_mb,
        ),
        (
            "storage",
            &mut environment.storage,
            &mut environment.storage_mb,
        ),
    ] {
        let Some(text) = old.take() else { continue };
        warnings.push(format!("{field}.{name} is deprecated; use {name}_mb"));
        let Some(size) = mebibytes(&text) else {
            return problem(
                &format!("{field}.{name}"),
                format!("expected a size such as 2G, 512M or 1024K, got {text:?}"),
            );
        };
        if new.is_some_and(|new| new != size) {
            return problem(
                &format!("{field}.{name}"),
                format!("{text} is not what {name}_mb says"),
            );
        }
        *new = Some(size);
    }
    if let Some(allowed) = environment.allow_internet.take() {
        warnings.push(format!(
            "{field}.allow_internet is deprecated; use network_mode"
        ));
        // The present field wins where both are given, as in Harbor.
        if environment.network_mode.is_none() && environment.allowed_hosts.is_none() {
            environment.network_mode = Some(if allowed {
                NetworkMode::Public
            } else {
                NetworkMode::NoNetwork
            });
        }
    }
    check_network(
        field,
        Some(environment.network()),
        environment.allowed_hosts.as_deref(),
    )?;
    check_healthcheck(
        &format!("{field}.healthcheck"),
        environment.healthcheck.as_ref(),
    )?;
    if let Some(tpu) = &environment.tpu {
        let parts: Vec<_> = tpu.topology.trim().split('x').collect();
        let good = parts.len() >= 2
            && parts.iter().all(|part| {
                !part.starts_with('0')
                    && !part.is_empty()
                    && part.bytes().all(|b| b.is_ascii_digit())
            });
        if !good || tpu.kind.is_empty() {
            return problem(
                &format!("{field}.tpu"),
                format!(
                    "expected a type and a topology such as 2x4, got {:?}",
                    tpu.topology
                ),
            );
        }
    }
    for server in &environment.mcp_servers {
        check_server(&format!("{field}.mcp_servers"), server)?;
    }
    Ok(())
}

fn check_server(field: &str, server: &McpServer) -> Result<(), Problem> {
    match server.transport.as_str() {
        "sse" | "http" | "streamable-http" if server.url.is_none() => {
            problem(field, format!("{} has no url", server.name))
        }
        "sse" | "http" | "streamable-http" => Ok(()),
        "stdio" if server.command.is_none() => {
            problem(field, format!("{} has no command", server.name))
        }
        "stdio" if !server.headers.is_empty() => problem(
            field,
            format!("{} has headers, which are for HTTP", server.name),
        ),
        "stdio" => Ok(()),
        other => problem(field, format!("unknown transport {other:?}")),
    }
}

fn check_healthcheck(field: &str, check: Option<&Healthcheck>) -> Result<(), Problem> {
    let Some(check) = check else { return Ok(()) };
    for (name, seconds, may_be_zero) in [
        ("interval_sec", check.interval_sec, true),
        ("timeout_sec", check.timeout_sec, false),
        ("start_period_sec", check.start_period_sec, true),
        ("start_interval_sec", check.start_interval_sec, true),
    ] {
        if !(may_be_zero && seconds == 0.0) {
            check_seconds(&format!("{field}.{name}"), seconds)?;
        }
    }
    Ok(())
}

/// A year is longer than any limit means.
fn check_seconds(field: &str, seconds: f64) -> Result<(), Problem> {
    if seconds > 0.0 && seconds <= 365.0 * 24.0 * 3600.0 {
        Ok(())
    } else {
        problem(
            field,
            format!("expected a number of seconds above 0, got {seconds}"),
        )
    }
}

fn check_network(
    field: &str,
    mode: Option<NetworkMode>,
    hosts: Option<&[String]>,
) -> Result<(), Problem> {
    let field = format!("{field}.allowed_hosts");
    match (mode, hosts) {
        (Some(NetworkMode::Allowlist), Some(hosts)) => {
            match hosts.iter().find(|host| !is_allowed_host(host)) {
                Some(host) => problem(
                    &field,
                    format!(
                        "expected a host name, an address or a range of addresses, got {host:?}"
                    ),
                ),
                None => Ok(()),
            }
        }
        (_, Some(hosts)) if !hosts.is_empty() || mode.is_none() => {
            problem(&field, "it goes only with network_mode = \"allowlist\"")
        }
        _ => Ok(()),
    }
}

/// A name, a name with a leading `*.`, an address, or a range of addresses whose host bits are
/// zero. No URL, no port, no path.
fn is_allowed_host(host: &str) -> bool {
    let host = host.trim().to_lowercase();
    let host = host.trim_end_matches('.');
    if let Some((address, length)) = host.split_once('/') {
        let Ok(length) = length.parse::<u32>() else {
            return false;
        };
        return match address.parse() {
            Ok(IpAddr::V4(address)) => {
                length <= 32 && u64::from(u32::from(address)) << length & 0xffff_ffff == 0
            }
            Ok(IpAddr::V6(address)) => {
                length <= 128 && u128::from(address).checked_shl(length).unwrap_or(0) == 0
            }
            Err(_) => false,
        };
    }
    if host.contains(':') {
        return host.parse::<Ipv6Addr>().is_ok();
    }
    let name = match host.strip_prefix("*.") {
        Some(name) if name.parse::<IpAddr>().is_err() => name,
        Some(_) => return false,
        None => host,
    };
    name.split('.').all(|label| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    })
}

fn check_artifacts(field: &str, artifacts: &[Artifact]) -> Result<(), Problem> {
    for artifact in artifacts {
        let (source, entry) = match artifact {
            Artifact::Path(source) => (source, None),
            Artifact::Entry(entry) => (&entry.source, Some(entry)),
        };
        if source.split('/').any(|part| part == "..") {
            return problem(field, format!("the source {source:?} climbs with `..`"));
        }
        if let Some(entry) = entry {
            check_artifact_entry(field, entry)?;
        }
    }
    Ok(())
}

fn check_artifact_entry(field: &str, entry: &ArtifactEntry) -> Result<(), Problem> {
    if let Some(service) = &entry.service {
        check_service(field, service)?;
        if service.trim() != "main" && !entry.source.starts_with('/') {
            return problem(
                field,
                format!(
                    "the source {:?} of another service must be absolute",
                    entry.source
                ),
            );
        }
    }
    let Some(destination) = entry.destination.as_deref().filter(|text| !text.is_empty()) else {
        return Ok(());
    };
    let bad = destination.starts_with('/')
        || destination.contains('\\')
        || destination.split('/').any(|part| part == "..")
        || destination
            .split('/')
            .all(|part| part.is_empty() || part == ".")
        || destination.trim_end_matches('/') == "manifest.json";
    if bad {
        return problem(
            field,
            format!(
                "expected a relative destination other than manifest.json, got {destination:?}"
            ),
        );
    }
    Ok(())
}

fn check_service(field: &str, service: &str) -> Result<(), Problem> {
    let name = service.trim();
    let good = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
    if good {
        Ok(())
    } else {
        problem(field, format!("{service:?} is not the name of a service"))
    }
}

fn is_package_name(name: &str) -> bool {
    let good = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    !name.contains("..")
        && name
            .split_once('/')
            .is_some_and(|(org, name)| good(org) && good(name))
}

/// One directory's name on every system.
fn is_step_name(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default().trim_end();
    let device = ["con", "prn", "aux", "nul", "conin$", "conout$"]
        .iter()
        .any(|device| stem.eq_ignore_ascii_case(device))
        || (stem.chars().count() == 4
            && stem.get(..3).is_some_and(|start| {
                start.eq_ignore_ascii_case("com") || start.eq_ignore_ascii_case("lpt")
            })
            && stem.ends_with(|c: char| "123456789¹²³".contains(c)));
    !name.trim().is_empty()
        && name != "."
        && name != ".."
        && name.len() <= 255
        && !name.ends_with(['.', ' '])
        && !name
            .chars()
            .any(|c| c.is_control() || r#"<>:"/\|?*"#.contains(c))
        && !device
}

/// `2G`, `512M`, `1024K` in MiB, cut down to a whole number.
fn mebibytes(text: &str) -> Option<u64> {
    let text = text.trim().to_uppercase();
    let factor = match text.chars().last()? {
        'G' => 1024.0,
        'M' => 1.0,
        'K' => 1.0 / 1024.0,
        _ => return None,
    };
    let number: f64 = text[..text.len() - 1].trim().parse().ok()?;
    let size = number * factor;
    (size.is_finite() && (0.0..1e15).contains(&size)).then_some(size as u64)
}
