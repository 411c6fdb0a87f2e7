//! Sandboxes that are containers of Docker or Podman, through the Docker-compatible API.
//!
//! A container's first process is a shell of the image that does nothing but kill everything else
//! when a line arrives on its input, and end when the input closes. Temper holds the other end: when
//! Temper ends, however it ends, the container ends and removes itself. Commands are started through
//! the engine; after each one the engine's count of the container's processes must be back at one.
//!
//! What differs from the namespaces sandbox: commands run as the image's user, the image's own
//! variables are in their environment, there is no Landlock and no bound on the writable layer, and
//! a command that ends by a signal ends with 128 and the signal's number, as shells tell it. See
//! `docs/sandbox.md`.

mod api;
mod compare;
mod frames;
mod http;
mod live;
mod meter;
mod owner;
mod pack;
mod protections;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use nix::sys::resource::{Resource, getrlimit};
use serde_json::{Value, json};

pub use http::Address;

use self::{
    api::{Api, ApiError, Image, Info, TREE_PATIENCE},
    compare::Index,
    live::Live,
    owner::Owner,
};
use crate::{Backend, Network, Protections, Root, Sandbox, SandboxError, SandboxSpec};

/// How long an engine may take to say who it is.
const FIRST_PATIENCE: Duration = Duration::from_secs(10);
/// How long a container may live if nobody removes it: longer than any trial takes.
const LEASE: Duration = Duration::from_secs(24 * 3600);
/// The first process. Ignoring the end of children lets the kernel clear them away. An
/// interrupted read looks like the end of the input in some shells, so only many in a row count.
const FIRST_PROCESS: &str = "trap '' CHLD; n=0; while [ $n -lt 20000 ]; do \
     if read -r line; then n=0; kill -9 -1 2>/dev/null; else n=$((n+1)); fi; done";
/// The first process, and what the engine itself needs for a moment to start a command.
const OWN_PROCESSES: u64 = 8;
/// What root in a container needs to work with its own files; it is never given more.
const CAPABILITIES_OF_ROOT: [&str; 3] = ["CHOWN", "DAC_OVERRIDE", "FOWNER"];

/// Which engine is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
}

impl Kind {
    /// `docker` or `podman`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Docker => "docker",
            Kind::Podman => "podman",
        }
    }
}

/// A Docker or Podman engine.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    kind: Kind,
    api: Api,
    info: Info,
    owner: Owner,
    /// Work trees of images, by image and path.
    indexes: Mutex<BTreeMap<(String, String), Arc<Index>>>,
}

impl Engine {
    /// Connects to the engine at `address`, or without one to the first of `candidates` that
    /// answers. Removes what dead processes have left behind there.
    pub fn connect(
        address: Option<&str>,
        kind: Kind,
        candidates: &[PathBuf],
    ) -> Result<Engine, SandboxError> {
        let unavailable = |reason: String, hint: String| SandboxError::Unavailable {
            backend: kind.name().into(),
            reason,
            hint,
        };
        if let Some(text) = address {
            let address = Address::parse(text).map_err(|reason| {
                unavailable(
                    format!("the engine's address {reason}"),
                    "give the address of its API, such as unix:///run/podman/podman.sock".into(),
                )
            })?;
            return Engine::open(address, kind)
                .map_err(|error| unavailable(error.to_string(), start_hint(kind)));
        }
        let mut reasons = vec![];
        for candidate in candidates {
            match Engine::open(Address::Unix(candidate.clone()), kind) {
                Ok(engine) => return Ok(engine),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        if reasons.is_empty() {
            reasons.push("no place to look for its socket is known".into());
        }
        Err(unavailable(reasons.join("; "), start_hint(kind)))
    }

    fn open(address: Address, kind: Kind) -> Result<Engine, ApiError> {
        let (api, version) = Api::negotiate(address, FIRST_PATIENCE)?;
        if version.is_podman() != (kind == Kind::Podman) {
            let found = if version.is_podman() {
                "Podman"
            } else {
                "Docker"
            };
            return Err(ApiError::Odd {
                what: "ask for the engine's version",
                why: format!("{found} {} answers at {}", version.version, api.address),
            });
        }
        let info = api.info()?;
        let engine = Engine(Arc::new(Inner {
            kind,
            api,
            info,
            owner: Owner::this(),
            indexes: Mutex::default(),
        }));
        engine.remove_outlived()?;
        Ok(engine)
    }

    /// Removes the containers of dead processes, and of any whose lease is over; says how many.
    fn remove_outlived(&self) -> Result<usize, ApiError> {
        let mut n_removed = 0;
        for (id, labels) in self.0.api.list(owner::MARK)? {
            if self.0.owner.outlived(&labels) {
                self.0.api.remove(&id)?;
                n_removed += 1;
            }
        }
        Ok(n_removed)
    }

    fn create(&self, spec: &SandboxSpec) -> Result<Live, SandboxError> {
        let begun = Instant::now();
        let inner = &self.0;
        let name = self.image_name(spec)?;
        let image =
            inner
                .api
                .image(name)
                .map_err(starting)?
                .ok_or_else(|| SandboxError::Unavailable {
                    backend: inner.kind.name().into(),
                    reason: format!("it has no image {name}"),
                    hint: format!(
                        "Temper never pulls; `{} pull {name}` does",
                        inner.kind.name()
                    ),
                })?;
        for mount in &spec.mounts {
            if !inner.api.address.is_local() {
                return Err(self.unsupported(
                    "directories of this machine cannot be mounted by an engine elsewhere",
                ));
            }
            let plain = |text: &str| !text.contains([':', '\0']) && text.starts_with('/');
            if !mount.source.to_str().is_some_and(plain) || !plain(&mount.target) {
                return Err(self.unsupported(&format!(
                    "{} cannot be mounted at {}: an engine takes only absolute paths of text without colons",
                    mount.source.display(),
                    mount.target
                )));
            }
            // An engine would make an empty one.
            if !mount.source.exists() {
                return Err(SandboxError::Start(format!(
                    "mount {}: it does not exist",
                    mount.source.display()
                )));
            }
        }
        let is_root = matches!(image.user.split(':').next(), Some("" | "0" | "root"));
        let id = inner
            .api
            .create(&self.specification(spec, &image, is_root))
            .map_err(starting)?;
        Live::start(self.clone(), id, spec, image, begun)
    }

    fn image_name<'a>(&self, spec: &'a SandboxSpec) -> Result<&'a str, SandboxError> {
        match &spec.root {
            Root::Image(name) if name.is_empty() || name.contains("..") => {
                Err(self.unsupported(&format!("{name:?} names no image")))
            }
            Root::Image(name) => Ok(name),
            Root::Host => {
                Err(self
                    .unsupported("the task names no image, it is meant for the namespaces sandbox"))
            }
            Root::Directory(_) => Err(self.unsupported("it runs images, not directories")),
        }
    }

    fn specification(&self, spec: &SandboxSpec, image: &Image, is_root: bool) -> Value {
        let info = &self.0.info;
        let limits = &spec.limits;
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let mut ulimits = vec![
            json!({"Name": "core", "Soft": 0, "Hard": 0}),
            json!({
                "Name": "fsize",
                "Soft": number(limits.file_size_bytes),
                "Hard": number(limits.file_size_bytes),
            }),
        ];
        if self.0.kind == Kind::Podman {
            // Podman would take numbers that a root without CAP_SYS_RESOURCE may not set, and the
            // engine's own limits are not known. Processes are counted over all containers of a
            // user, so this must not be the limit that matters.
            for (name, wanted, resource) in [
                ("nofile", 65_536, Resource::RLIMIT_NOFILE),
                ("nproc", 16_384, Resource::RLIMIT_NPROC),
            ] {
                let most = getrlimit(resource).map_or(wanted, |(_, hard)| hard.min(wanted));
                ulimits.push(json!({"Name": name, "Soft": most, "Hard": most}));
            }
        }
        let mut host = json!({
            "NetworkMode": match spec.network {
                Network::None => "none",
                Network::Host => "host",
            },
            "CapDrop": ["ALL"],
            "CapAdd": if is_root { &CAPABILITIES_OF_ROOT[..] } else { &[] },
            "SecurityOpt": ["no-new-privileges"],
            "AutoRemove": true,
            "LogConfig": {"Type": "none"},
            "ShmSize": number((limits.disk_bytes / 8).clamp(1 << 20, 64 << 20)),
            "Ulimits": ulimits,
            "Binds": spec
                .mounts
                .iter()
                .map(|mount| format!("{}:{}:ro", mount.source.display(), mount.target))
                .collect::<Vec<_>>(),
        });
        if info.memory_limit {
            host["Memory"] = json!(number(limits.memory_bytes));
            if info.swap_limit {
                host["MemorySwap"] = json!(number(limits.memory_bytes));
            }
        }
        if info.pids_limit {
            host["PidsLimit"] = json!(number(limits.max_processes.saturating_add(OWN_PROCESSES)));
        }
        if let (Some(milli_cores), true) = (limits.cpu_milli_cores, info.cpu_quota) {
            host["NanoCpus"] = json!(u64::from(milli_cores) * 1_000_000);
        }
        let mut whole = json!({
            "Image": image.id,
            "Entrypoint": ["/bin/sh", "-c", FIRST_PROCESS],
            "Cmd": [],
            "WorkingDir": "/",
            "OpenStdin": true,
            "StdinOnce": true,
            "AttachStdin": true,
            "AttachStdout": false,
            "AttachStderr": false,
            "Tty": false,
            "StopTimeout": 0,
            "Labels": self.0.owner.labels(&spec.label, LEASE),
            "HostConfig": host,
        });
        if image.has_health_check {
            whole["Healthcheck"] = json!({"Test": ["NONE"]});
        }
        whole
    }

    /// What an image holds at a path, without contents.
    fn index_of_image(&self, image: &str, path: &str) -> Result<Arc<Index>, String> {
        let key = (image.to_owned(), path.to_owned());
        let known = |engine: &Engine| {
            let indexes = engine.0.indexes.lock();
            let indexes = indexes.unwrap_or_else(PoisonError::into_inner);
            indexes.get(&key).cloned()
        };
        if let Some(index) = known(self) {
            return Ok(index);
        }
        let specification = json!({
            "Image": image,
            "Entrypoint": ["/bin/sh"],
            "Cmd": [],
            "Labels": self.0.owner.labels("work tree of an image", LEASE),
            "HostConfig": {"NetworkMode": "none", "CapDrop": ["ALL"]},
        });
        let api = &self.0.api;
        let id = api
            .create(&specification)
            .map_err(|error| error.to_string())?;
        // Never started, so nothing but the image can be in it.
        let index = match api.download(&id, path) {
            Ok(Some(mut archive)) => {
                archive.set_deadline(Instant::now() + TREE_PATIENCE);
                Index::of_archive(&mut archive, u64::MAX / 2).map_err(|error| error.to_string())
            }
            Ok(None) => Ok(Index::default()),
            Err(error) => Err(error.to_string()),
        };
        let removed = api.remove(&id).map_err(|error| error.to_string());
        let index = Arc::new(index?);
        removed?;
        let indexes = self.0.indexes.lock();
        indexes
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key, index.clone());
        Ok(index)
    }

    fn unsupported(&self, reason: &str) -> SandboxError {
        SandboxError::Unsupported {
            backend: self.0.kind.name().into(),
            reason: reason.into(),
        }
    }
}

impl Backend for Engine {
    fn name(&self) -> &str {
        self.0.kind.name()
    }

    fn protections(&self) -> Result<Protections, SandboxError> {
        Ok(protections::protections(&self.0.info, Network::None))
    }

    fn image_contents(&self, name: &str) -> Result<Option<String>, SandboxError> {
        let image = self.0.api.image(name).map_err(starting)?;
        Ok(image.map(|image| image.id))
    }

    fn start(&self, spec: &SandboxSpec) -> Result<Box<dyn Sandbox>, SandboxError> {
        let protections = protections::protections(&self.0.info, spec.network);
        let unmet = spec.demand.unmet(&protections);
        if !unmet.is_empty() {
            return Err(SandboxError::Refused {
                backend: self.name().into(),
                unmet: unmet
                    .into_iter()
                    .map(|(protection, why)| (protection, why.to_owned()))
                    .collect(),
            });
        }
        Ok(Box::new(self.create(spec)?))
    }
}

fn starting(error: ApiError) -> SandboxError {
    SandboxError::Start(error.to_string())
}

fn start_hint(kind: Kind) -> String {
    match kind {
        Kind::Docker => "start the Docker daemon, let your user read and write its socket, or name another address with --engine or DOCKER_HOST",
        Kind::Podman => "`podman system service --time=0 unix:///PATH` serves the API; name its address with --engine or DOCKER_HOST",
    }
    .into()
}
