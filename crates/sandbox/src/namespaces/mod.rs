//! Sandboxes made of the kernel's own parts: namespaces, control groups, a system call filter and
//! Landlock. Needs no daemon, and no root where the kernel lets users make namespaces.
//!
//! Temper starts itself again as a *launcher* with an empty environment; the launcher makes the
//! control groups and forks the *first process* of new namespaces, which builds the file system,
//! gives up its privileges and then serves requests over a socket pair. Commands are children of
//! the first process. Whatever ends — a command, the first process, the launcher, Temper — the
//! kernel ends everything below it.
//!
//! What this does not cover: faults of the kernel, side channels through shared hardware, and what
//! the host's system directories show to every user. See `docs/sandbox.md`.

mod cgroup;
mod changes;
mod exec;
mod fence;
mod files;
mod filter;
mod furnish;
mod launcher;
mod owners;
mod probe;
mod serve;
mod setup;
mod skeleton;
mod snapshot;
mod sys;
mod wire;
mod work_tree;

use std::{
    collections::BTreeMap,
    io,
    os::unix::{ffi::OsStrExt, net::UnixStream, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{
        Arc, Once, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use temper_core::{
    Bytes, TreePath,
    task::InjectedFile,
    tree::{Changes, Entry},
};

pub use launcher::run_launcher_if_asked;

use self::wire::{Answer, Build, Built, FileHead, Final, Request, WireChange, WireShell};
use crate::{
    Backend, Command, Execution, ExitStatus, Network, Protections, Root, Sandbox, SandboxError,
    SandboxSpec, Shell, Snapshot, Usage, WorkTree, backend::Omitted,
};

/// The name of this backend.
const NAME: &str = "namespaces";
/// How long building may take; a copied start is the slow part.
const START_PATIENCE: Duration = Duration::from_secs(120);
/// How long the first process may take beyond a command's limit, and for file operations.
const GRACE: Duration = Duration::from_secs(30);

/// The embedded backend.
pub struct Namespaces {
    launcher: PathBuf,
    needs_call: bool,
    probed: OnceLock<Protections>,
}

impl Default for Namespaces {
    fn default() -> Self {
        Self::new()
    }
}

impl Namespaces {
    /// Launches through this very program, which must call [`run_launcher_if_asked`] first thing in
    /// its `main`.
    pub fn new() -> Self {
        Namespaces {
            launcher: "/proc/self/exe".into(),
            needs_call: true,
            probed: OnceLock::new(),
        }
    }

    /// Launches through another program that calls [`run_launcher_if_asked`].
    pub fn with_launcher(program: impl Into<PathBuf>) -> Self {
        Namespaces {
            launcher: program.into(),
            needs_call: false,
            probed: OnceLock::new(),
        }
    }

    fn launch(&self, spec: &SandboxSpec) -> Result<(Live, wire::Facts), SandboxError> {
        static ORPHANS: Once = Once::new();
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        if self.needs_call && !launcher::can_launch() {
            return Err(unavailable(
                "this program does not start itself as a launcher".into(),
                "call run_launcher_if_asked first thing in main, or name a launcher program",
            ));
        }
        // What an earlier run left behind when it was killed together with its launchers.
        ORPHANS.call_once(cgroup::remove_orphans);
        let begun = Instant::now();
        let own = std::process::id() as i32;
        let name = cgroup::name_for(own, NUMBER.fetch_add(1, Ordering::Relaxed));
        let (build, contents) = describe(spec, name.clone(), own)?;

        let (socket, theirs) = UnixStream::pair().map_err(starting)?;
        let child = std::process::Command::new(&self.launcher)
            .arg0(launcher::NAME)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| {
                SandboxError::Start(format!(
                    "run the launcher {}: {error}",
                    self.launcher.display()
                ))
            })?;
        let mut live = Live {
            socket,
            child,
            name,
            begun,
            environment: spec.environment.clone(),
            work_path: spec.work_tree.path.clone(),
            output_bytes: spec.limits.output_bytes,
            disk_bytes: spec.limits.disk_bytes,
            spec: Arc::new(spec.clone()),
            broken: None,
            ended: false,
        };
        let contents: Vec<&[u8]> = contents.iter().map(|content| &content[..]).collect();
        live.socket
            .set_read_timeout(Some(START_PATIENCE))
            .map_err(starting)?;
        let built = wire::send(&mut live.socket, &build, &contents)
            .and_then(|()| wire::receive(&mut live.socket, 0));
        match built {
            Ok((Built::Ready(facts), _)) => Ok((live, facts)),
            Ok((
                Built::Failed {
                    operation,
                    reason,
                    errno,
                },
                _,
            )) => Err(probe::explain(&operation, &reason, errno)),
            Err(error) => Err(SandboxError::Start(format!(
                "the launcher {} did not answer: {error}",
                self.launcher.display()
            ))),
        }
    }
}

impl Backend for Namespaces {
    fn name(&self) -> &str {
        NAME
    }

    fn protections(&self) -> Result<Protections, SandboxError> {
        if let Some(known) = self.probed.get() {
            return Ok(known.clone());
        }
        let protections = match self.launch(&probe::smallest()) {
            Ok((live, facts)) => {
                drop(live);
                probe::protections(&facts)
            }
            Err(SandboxError::Unavailable { reason, hint, .. }) => probe::none(&reason, &hint),
            Err(error) => return Err(error),
        };
        Ok(self.probed.get_or_init(|| protections).clone())
    }

    fn start(&self, spec: &SandboxSpec) -> Result<Box<dyn Sandbox>, SandboxError> {
        Ok(Box::new(self.start_live(spec)?))
    }

    fn fork(&self, snapshot: &Snapshot, label: &str) -> Result<Box<dyn Sandbox>, SandboxError> {
        let (state, spec) = snapshot.of(NAME)?;
        let Ok(State { kept, private }) = serde_json::from_slice(&state.head) else {
            return Err(SandboxError::Start(
                "the snapshot's list cannot be read".into(),
            ));
        };
        let mut live = self.start_live(&SandboxSpec {
            label: label.to_owned(),
            ..spec.clone()
        })?;
        let blobs: Vec<&[u8]> = state.contents.iter().map(Vec::as_slice).collect();
        match live.ask(&Request::Lay { kept, private }, &blobs, 0, START_PATIENCE)? {
            (Answer::Written, _) => Ok(Box::new(live)),
            _ => Err(live.confused()),
        }
    }
}

/// What is kept of a sandbox, as its snapshot carries it.
#[derive(serde::Serialize, serde::Deserialize)]
struct State {
    kept: Vec<wire::Kept>,
    private: Vec<FileHead>,
}

impl Namespaces {
    fn start_live(&self, spec: &SandboxSpec) -> Result<Live, SandboxError> {
        let (live, facts) = self.launch(spec)?;
        // What this very sandbox has, not what another one had a while ago.
        let protections = probe::protections(&facts);
        let unmet = spec.demand.unmet(&protections);
        if unmet.is_empty() {
            Ok(live)
        } else {
            Err(SandboxError::Refused {
                backend: NAME.into(),
                unmet: unmet
                    .into_iter()
                    .map(|(protection, why)| (protection, why.to_owned()))
                    .collect(),
            })
        }
    }
}

fn describe(
    spec: &SandboxSpec,
    name: String,
    parent: i32,
) -> Result<(Build, Vec<Vec<u8>>), SandboxError> {
    let root = match &spec.root {
        Root::Host => None,
        Root::Directory(path) => Some(Bytes(path.as_os_str().as_bytes().to_vec())),
        Root::Image(_) => {
            return Err(SandboxError::Unsupported {
                backend: NAME.into(),
                reason: "it cannot run container images".into(),
            });
        }
    };
    let WorkTree { start, path } = &spec.work_tree;
    let bytes = |path: &Path| Bytes(path.as_os_str().as_bytes().to_vec());
    let root_work_tree = match (&spec.root, start) {
        (Root::Directory(root), None) => {
            Some(root.join(path.trim_start_matches('/'))).filter(|inner| inner.is_dir())
        }
        _ => None,
    };
    let build = Build {
        parent,
        name,
        label: spec.label.clone(),
        root,
        work_start: start.as_deref().map(bytes),
        root_work_tree: root_work_tree.as_deref().map(bytes),
        work_path: path.clone(),
        mounts: spec
            .mounts
            .iter()
            .map(|mount| (bytes(&mount.source), mount.target.clone()))
            .collect(),
        files: spec.files.iter().map(file_head).collect(),
        home: spec.environment.get("HOME").cloned(),
        limits: spec.limits.clone(),
        host_network: spec.network == Network::Host,
    };
    let contents = spec
        .files
        .iter()
        .map(|file| file.content.0.clone())
        .collect();
    Ok((build, contents))
}

fn file_head(file: &InjectedFile) -> FileHead {
    FileHead {
        path: file.path.clone(),
        executable: file.executable,
    }
}

/// A live sandbox.
struct Live {
    socket: UnixStream,
    child: Child,
    name: String,
    begun: Instant,
    environment: BTreeMap<String, String>,
    work_path: String,
    output_bytes: u64,
    disk_bytes: u64,
    /// For snapshots, which start their forks from it.
    spec: Arc<SandboxSpec>,
    /// Why it can no longer be used.
    broken: Option<String>,
    ended: bool,
}

impl Live {
    fn ask(
        &mut self,
        request: &Request,
        blobs: &[&[u8]],
        max_bytes: u64,
        patience: Duration,
    ) -> Result<(Answer, Vec<Vec<u8>>), SandboxError> {
        if let Some(why) = &self.broken {
            return Err(SandboxError::Ended(why.clone()));
        }
        let result = self
            .socket
            .set_read_timeout(Some(patience))
            .and_then(|()| wire::send(&mut self.socket, request, blobs))
            .and_then(|()| wire::receive(&mut self.socket, max_bytes));
        let why = match result {
            Ok((Answer::Broken(why), _)) => why,
            Ok((
                Answer::FileError {
                    operation,
                    path,
                    reason,
                },
                _,
            )) => {
                return Err(SandboxError::File {
                    operation: match operation {
                        wire::WireOperation::Read => "read",
                        wire::WireOperation::Write => "write",
                        wire::WireOperation::Collect => "collect",
                        wire::WireOperation::Snapshot => "snapshot",
                        wire::WireOperation::Fork => "fork",
                    },
                    path,
                    reason,
                });
            }
            Ok(answer) => return Ok(answer),
            Err(error) => error.to_string(),
        };
        // After half an answer nothing more can be understood.
        self.broken = Some(why.clone());
        self.end();
        Err(SandboxError::Ended(why))
    }

    /// Ends the sandbox and collects what it consumed. Does nothing the second time.
    fn end(&mut self) -> Option<Final> {
        if self.ended {
            return None;
        }
        self.ended = true;
        // The first process ends when nobody can send to it, and the launcher after it.
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
        let last = self
            .socket
            .set_read_timeout(Some(GRACE))
            .and_then(|()| wire::receive::<Final>(&mut self.socket, 0));
        if last.is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
        if last.is_err() {
            cgroup::remove_by_name(&self.name);
        }
        last.ok().map(|(last, _)| last)
    }
}

impl Sandbox for Live {
    fn exec(&mut self, command: &Command) -> Result<Execution, SandboxError> {
        let mut environment = self.environment.clone();
        environment.extend(command.environment.clone());
        let output_bytes = command.output_bytes.unwrap_or(self.output_bytes);
        let request = Request::Exec {
            text: command.text.clone(),
            shell: match command.shell {
                Shell::Sh => WireShell::Sh,
                Shell::Bash => WireShell::Bash,
                Shell::BashLogin => WireShell::BashLogin,
            },
            directory: command
                .directory
                .clone()
                .unwrap_or_else(|| self.work_path.clone()),
            environment,
            timeout_ms: u64::try_from(command.timeout.as_millis()).unwrap_or(u64::MAX),
            output_bytes,
        };
        let patience = command.timeout.saturating_add(GRACE);
        let (answer, mut blobs) =
            self.ask(&request, &[], output_bytes.saturating_add(4096), patience)?;
        let (
            Answer::Ended {
                status,
                omitted,
                out_of_memory,
                wall_us,
            },
            Some(output),
        ) = (answer, blobs.pop())
        else {
            return Err(self.confused());
        };
        Ok(Execution {
            status: match status {
                wire::WireStatus::Exited(code) => ExitStatus::Exited(code),
                wire::WireStatus::Signaled(signal) => ExitStatus::Signaled(signal),
                wire::WireStatus::TimedOut => ExitStatus::TimedOut,
            },
            output,
            omitted: omitted.map(|(at, bytes)| Omitted { at, bytes }),
            out_of_memory,
            wall: Duration::from_micros(wall_us),
        })
    }

    fn write_files(&mut self, files: &[InjectedFile]) -> Result<(), SandboxError> {
        let heads = files.iter().map(file_head).collect();
        let contents: Vec<&[u8]> = files.iter().map(|file| &file.content[..]).collect();
        match self.ask(&Request::Write(heads), &contents, 0, GRACE)?.0 {
            Answer::Written => Ok(()),
            _ => Err(self.confused()),
        }
    }

    fn read_file(&mut self, path: &str, max_bytes: u64) -> Result<Option<Vec<u8>>, SandboxError> {
        let request = Request::Read {
            path: path.to_owned(),
            max_bytes,
        };
        match self.ask(&request, &[], max_bytes, GRACE)? {
            (Answer::NoFile, _) => Ok(None),
            (Answer::Content, mut blobs) if blobs.len() == 1 => Ok(blobs.pop()),
            _ => Err(self.confused()),
        }
    }

    fn changes(&mut self) -> Result<Changes, SandboxError> {
        let (answer, blobs) = self.ask(&Request::Changes, &[], self.disk_bytes, START_PATIENCE)?;
        let Answer::Changes(heads) = answer else {
            return Err(self.confused());
        };
        let mut blobs = blobs.into_iter();
        let mut changes = Changes::new();
        for (path, what) in heads {
            let entry = match what {
                WireChange::Removed => None,
                WireChange::Link(target) => Some(Entry::Symlink { target: target.0 }),
                WireChange::File { executable } => {
                    let Some(content) = blobs.next() else {
                        return Err(self.confused());
                    };
                    Some(Entry::File {
                        content,
                        executable,
                    })
                }
            };
            let Ok(path) = TreePath::new(path.0) else {
                return Err(self.confused());
            };
            changes.insert(path, entry);
        }
        Ok(changes)
    }

    fn snapshot(&mut self, max_bytes: u64) -> Result<Snapshot, SandboxError> {
        let request = Request::Snapshot { max_bytes };
        // Besides the contents that the limit counts there are the files that were laid apart.
        let most = max_bytes.saturating_add(self.disk_bytes);
        let (answer, contents) = self.ask(&request, &[], most, START_PATIENCE)?;
        let Answer::Snapshot { kept, private } = answer else {
            return Err(self.confused());
        };
        let n_paths = kept.len();
        let head =
            serde_json::to_vec(&State { kept, private }).map_err(|error| SandboxError::File {
                operation: "snapshot",
                path: "the sandbox".into(),
                reason: error.to_string(),
            })?;
        Ok(Snapshot::new(
            NAME,
            Arc::clone(&self.spec),
            n_paths,
            head,
            contents,
        ))
    }

    fn stop(mut self: Box<Self>) -> Result<Usage, SandboxError> {
        let last = self.end();
        Ok(Usage {
            peak_memory_bytes: last.as_ref().and_then(|last| last.peak_memory_bytes),
            cpu_seconds: last.as_ref().and_then(|last| last.cpu_seconds),
            wall_seconds: self.begun.elapsed().as_secs_f64(),
        })
    }
}

impl Live {
    fn confused(&mut self) -> SandboxError {
        let why = String::from("its first process gave an answer of the wrong kind");
        self.broken = Some(why.clone());
        SandboxError::Ended(why)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.end();
    }
}

fn starting(error: io::Error) -> SandboxError {
    SandboxError::Start(error.to_string())
}

fn unavailable(reason: String, hint: &str) -> SandboxError {
    SandboxError::Unavailable {
        backend: NAME.into(),
        reason,
        hint: hint.into(),
    }
}
