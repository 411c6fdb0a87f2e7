//! Opens the kind of sandbox that the flags ask for, and refuses early what it cannot promise.

use std::{collections::BTreeSet, path::PathBuf};

use temper_sandbox::{
    Backend, Demand, Limits, Network, Protection, Protections, SandboxError, Strength,
    engine::{Engine, Kind},
    namespaces::Namespaces,
};

use crate::{
    args::{SandboxArgs, SandboxKind},
    error::CliError,
    exit_code,
};

/// A backend with what every sandbox of the run gets.
pub struct Sandboxes {
    /// The backend.
    pub backend: Box<dyn Backend>,
    /// What it protects against here.
    pub protections: Protections,
    /// Limits.
    pub limits: Limits,
    /// What the run demands.
    pub demand: Demand,
    /// Network.
    pub network: Network,
}

impl Sandboxes {
    /// Opens the backend without asking whether it is good enough.
    pub fn open(args: &SandboxArgs) -> Result<Self, CliError> {
        let backend: Box<dyn Backend> = match args.sandbox {
            SandboxKind::Namespaces => Box::new(Namespaces::new()),
            SandboxKind::Docker => Box::new(Engine::connect(
                args.engine.as_deref(),
                Kind::Docker,
                &["/var/run/docker.sock".into()],
            )?),
            SandboxKind::Podman => Box::new(Engine::connect(
                args.engine.as_deref(),
                Kind::Podman,
                &podman_sockets(),
            )?),
        };
        let protections = backend.protections()?;
        Ok(Sandboxes {
            backend,
            protections,
            limits: Limits {
                memory_bytes: args.memory_mib << 20,
                disk_bytes: args.disk_mib << 20,
                max_processes: args.processes,
                ..Limits::default()
            },
            demand: demand(args)?,
            network: if args.host_network {
                Network::Host
            } else {
                Network::None
            },
        })
    }

    /// Opens the backend for untrusted code: refused unless every demanded protection holds.
    pub fn open_for_untrusted(args: &SandboxArgs) -> Result<Self, CliError> {
        let sandboxes = Sandboxes::open(args)?;
        let unmet = sandboxes.demand.unmet(&sandboxes.protections);
        if unmet.is_empty() {
            return Ok(sandboxes);
        }
        Err(SandboxError::Refused {
            backend: sandboxes.backend.name().to_owned(),
            unmet: unmet
                .into_iter()
                .map(|(protection, why)| (protection, why.to_owned()))
                .collect(),
        }
        .into())
    }

    /// One line on what is in force.
    pub fn summary(&self) -> String {
        let mut parts = Vec::new();
        let names = |wanted: fn(&Strength) -> bool| -> Vec<String> {
            self.protections
                .iter()
                .filter(|(_, strength)| wanted(strength))
                .map(|(protection, _)| name(*protection))
                .collect()
        };
        let enforced = names(|strength| matches!(strength, Strength::Enforced { .. }));
        parts.push(format!(
            "{} of {} protections enforced",
            enforced.len(),
            self.protections.len()
        ));
        let weak = names(|strength| matches!(strength, Strength::PerProcess { .. }));
        if !weak.is_empty() {
            parts.push(format!("per process only: {}", weak.join(", ")));
        }
        let absent = names(|strength| matches!(strength, Strength::Absent { .. }));
        if !absent.is_empty() {
            parts.push(format!("NOT in force: {}", absent.join(", ")));
        }
        format!("sandbox {}: {}", self.backend.name(), parts.join("; "))
    }
}

/// Where Podman listens: for the system, and for the user.
fn podman_sockets() -> Vec<PathBuf> {
    let mut sockets = vec![PathBuf::from("/run/podman/podman.sock")];
    if let Some(directory) = std::env::var_os("XDG_RUNTIME_DIR") {
        sockets.push(PathBuf::from(directory).join("podman/podman.sock"));
    }
    sockets
}

/// A protection's name as typed and printed.
pub fn name(protection: Protection) -> String {
    match serde_json::to_value(protection) {
        Ok(serde_json::Value::String(name)) => name,
        _ => format!("{protection:?}"),
    }
}

fn demand(args: &SandboxArgs) -> Result<Demand, CliError> {
    let Demand(mut demanded): Demand = Demand::default();
    if args.host_network {
        demanded.remove(&Protection::NetworkIsolated);
    }
    let parse = |text: &String| -> Result<Protection, CliError> {
        serde_json::from_value(serde_json::Value::String(text.clone())).map_err(|_| {
            CliError::new(
                exit_code::USAGE,
                format!("read the protection {text:?}: there is none of that name"),
            )
            .hint("`temper doctor` lists them")
        })
    };
    let more: BTreeSet<Protection> = args.demand.iter().map(parse).collect::<Result<_, _>>()?;
    let fewer: BTreeSet<Protection> = args.without.iter().map(parse).collect::<Result<_, _>>()?;
    if let Some(both) = more.intersection(&fewer).next() {
        return Err(CliError::new(
            exit_code::USAGE,
            format!("demand {} and do without it at once", name(*both)),
        ));
    }
    demanded.extend(more);
    demanded.retain(|protection| !fewer.contains(protection));
    Ok(Demand(demanded))
}
