//! The choice of where commands run: one trait for a kind of sandbox, one for a live one.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use temper_core::{Boundary, Failure, task::InjectedFile, tree::Changes};

use crate::{Demand, Limits, Protection, Protections, Snapshot};

/// A kind of sandbox.
pub trait Backend: Send + Sync {
    /// `namespaces`, `docker`, `podman`.
    fn name(&self) -> &str;

    /// Which protections are in force on this machine; probed, not assumed.
    fn protections(&self) -> Result<Protections, SandboxError>;

    /// What identifies the contents of an image by this name, as it is now; `None` where it is not
    /// there, or where this kind of sandbox knows no images.
    fn image_contents(&self, name: &str) -> Result<Option<String>, SandboxError> {
        let _ = name;
        Ok(None)
    }

    /// Starts a sandbox. Refuses with [`SandboxError::Refused`] when a demanded protection does
    /// not hold.
    fn start(&self, spec: &SandboxSpec) -> Result<Box<dyn Sandbox>, SandboxError>;

    /// Starts a sandbox in the state of a snapshot. It shares nothing with the one the snapshot
    /// was taken of, nor with other forks. A backend without snapshots refuses.
    fn fork(&self, snapshot: &Snapshot, label: &str) -> Result<Box<dyn Sandbox>, SandboxError> {
        let _ = (snapshot, label);
        Err(no_snapshots(self.name()))
    }
}

/// A live sandbox. Dropping it kills everything in it and removes everything it left.
pub trait Sandbox: Send {
    /// Runs one command to its end or its limit. When it returns, no process of the command is
    /// left, daemons included. A command that fails or times out is an [`Execution`], not an error.
    fn exec(&mut self, command: &Command) -> Result<Execution, SandboxError>;

    /// Lays files into the sandbox. Paths are absolute in the sandbox; parents are made; links are
    /// not followed.
    fn write_files(&mut self, files: &[InjectedFile]) -> Result<(), SandboxError>;

    /// Reads one file, or `None` if there is no regular file at the path. More than `max_bytes` is
    /// an error.
    fn read_file(&mut self, path: &str, max_bytes: u64) -> Result<Option<Vec<u8>>, SandboxError>;

    /// What differs in the work tree from its start, `.git` left out. Reads hostile files: links
    /// are not followed, special files are skipped, and the total is bounded by the disk limit.
    fn changes(&mut self) -> Result<Changes, SandboxError>;

    /// Keeps everything that was written, as it is between two commands, without changing it.
    /// Contents of more than `max_bytes` are an error, and so is what cannot be kept: a process
    /// that still runs, a shared segment, a path that is too long. A backend without snapshots
    /// refuses.
    fn snapshot(&mut self, max_bytes: u64) -> Result<Snapshot, SandboxError> {
        let _ = max_bytes;
        Err(no_snapshots("this"))
    }

    /// Ends every process and removes everything, and says what was consumed.
    fn stop(self: Box<Self>) -> Result<Usage, SandboxError>;
}

/// What a sandbox is made of.
#[derive(Clone, Debug)]
pub struct SandboxSpec {
    /// The root file system.
    pub root: Root,
    /// The work tree.
    pub work_tree: WorkTree,
    /// Read-only directories.
    pub mounts: Vec<Mount>,
    /// Files laid outside the work tree before anything runs.
    pub files: Vec<InjectedFile>,
    /// The whole environment of every command; nothing is inherited.
    pub environment: BTreeMap<String, String>,
    /// Limits.
    pub limits: Limits,
    /// Network.
    pub network: Network,
    /// Protections without which the sandbox must not start.
    pub demand: Demand,
    /// A name for people and for finding what was left behind (a trial's id).
    pub label: String,
}

/// The root file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// The host's system directories (`/usr`, `/bin`, `/lib`, …), read-only, and nothing else of it.
    Host,
    /// A directory that holds a root file system.
    Directory(PathBuf),
    /// A container image.
    Image(String),
}

/// The directory commands work in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkTree {
    /// The starting state on this machine; never written. `None`: the image holds it, or it is
    /// empty.
    pub start: Option<PathBuf>,
    /// Where it is seen.
    pub path: String,
}

/// A read-only directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// On the host.
    pub source: PathBuf,
    /// In the sandbox.
    pub target: String,
}

/// What of the network a sandbox sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Nothing; the loopback of its own.
    None,
    /// The host's. Only for tasks whose format asks for it, and said in the report.
    Host,
}

/// The shell that interprets a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shell {
    /// `/bin/sh -c`
    Sh,
    /// `bash -c`
    Bash,
    /// `bash -lc`
    BashLogin,
}

/// One command.
#[derive(Clone, Debug)]
pub struct Command {
    /// Interpreted by `shell`.
    pub text: String,
    /// Its shell.
    pub shell: Shell,
    /// Working directory; the work tree if `None`.
    pub directory: Option<String>,
    /// Variables on top of the sandbox's.
    pub environment: BTreeMap<String, String>,
    /// Wall-clock limit.
    pub timeout: Duration,
    /// Overrides the sandbox's output limit.
    pub output_bytes: Option<u64>,
}

impl Command {
    /// A `bash -c` command in the work tree.
    pub fn bash(text: impl Into<String>, timeout: Duration) -> Self {
        Command {
            text: text.into(),
            shell: Shell::Bash,
            directory: None,
            environment: BTreeMap::new(),
            timeout,
            output_bytes: None,
        }
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// With a code.
    Exited(i32),
    /// By a signal.
    Signaled(i32),
    /// By its wall-clock limit.
    TimedOut,
}

/// What came of a command.
#[derive(Clone, Debug)]
pub struct Execution {
    /// How it ended.
    pub status: ExitStatus,
    /// Both streams in the order they were written: the first half and the last half of the output
    /// limit when there was more.
    pub output: Vec<u8>,
    /// Where in `output` bytes were left out, and how many.
    pub omitted: Option<Omitted>,
    /// Whether the memory limit killed something in the sandbox while the command ran.
    pub out_of_memory: bool,
    /// Wall time.
    pub wall: Duration,
}

/// A gap in an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Omitted {
    /// Index into the kept output.
    pub at: usize,
    /// Bytes that were dropped there.
    pub bytes: u64,
}

/// What a sandbox consumed. What the backend cannot measure is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Highest memory use.
    pub peak_memory_bytes: Option<u64>,
    /// CPU time of all processes.
    pub cpu_seconds: Option<f64>,
    /// From start to stop.
    pub wall_seconds: f64,
}

/// Why a sandbox could not do what was asked. Always a fault of the infrastructure, never of the
/// code inside.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// A demanded protection does not hold.
    #[error("start a sandbox with {backend}: it lacks {}", list(.unmet))]
    Refused {
        /// The backend.
        backend: String,
        /// Protections and reasons.
        unmet: Vec<(Protection, String)>,
    },
    /// The backend does not work on this machine.
    #[error("use the {backend} sandbox: {reason}")]
    Unavailable {
        /// The backend.
        backend: String,
        /// Why.
        reason: String,
        /// What the user can do.
        hint: String,
    },
    /// The sandbox could not be made.
    #[error("start a sandbox: {0}")]
    Start(String),
    /// The sandbox is gone although nobody stopped it.
    #[error("use a sandbox: it ended early: {0}")]
    Ended(String),
    /// A file operation failed.
    #[error("{operation} {path} in the sandbox: {reason}")]
    File {
        /// `read`, `write`, `collect`, `snapshot`, `fork`.
        operation: &'static str,
        /// The path.
        path: String,
        /// Why.
        reason: String,
    },
    /// The specification asks for something this backend cannot do.
    #[error("start a sandbox with {backend}: {reason}")]
    Unsupported {
        /// The backend.
        backend: String,
        /// What.
        reason: String,
    },
}

impl SandboxError {
    /// The error as a trial records it. What a fresh start may cure is retryable.
    pub fn failure(&self) -> Failure {
        let (class, retryable) = match self {
            SandboxError::Refused { .. } => ("SandboxRefused", false),
            SandboxError::Unavailable { .. } => ("SandboxUnavailable", false),
            SandboxError::Unsupported { .. } => ("SandboxUnsupported", false),
            SandboxError::Start(_) => ("SandboxStart", true),
            SandboxError::Ended(_) => ("SandboxEnded", true),
            SandboxError::File { .. } => ("SandboxFile", true),
        };
        Failure {
            boundary: Boundary::Sandbox,
            class: class.into(),
            message: self.to_string(),
            retryable,
        }
    }
}

fn no_snapshots(backend: &str) -> SandboxError {
    SandboxError::Unsupported {
        backend: backend.into(),
        reason: "it keeps no snapshots; use the embedded sandbox".into(),
    }
}

fn list(unmet: &[(Protection, String)]) -> String {
    let items: Vec<_> = unmet
        .iter()
        .map(|(protection, why)| format!("{protection:?} ({why})"))
        .collect();
    items.join(", ")
}
