//! A live container.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use temper_core::{TreePath, task::InjectedFile, tree::Changes};

use super::{
    Engine,
    api::{ApiError, Image, PathKind, TREE_PATIENCE},
    compare::{self, Index},
    frames::{Frames, Progress},
    http::Connection,
    meter::Meter,
    pack::{Packer, inner_path},
};
use crate::{
    Command, Execution, ExitStatus, Sandbox, SandboxError, SandboxSpec, Shell, Usage,
    backend::Omitted, output::Kept,
};

/// How long killing everything may take.
const KILL_PATIENCE: Duration = Duration::from_secs(20);
/// After how long the first process is given up and another way is tried.
const FIRST_PROCESS_PATIENCE: Duration = Duration::from_secs(2);
/// How long one wait for output lasts before looking at the rest of the world.
const GLANCE: Duration = Duration::from_millis(250);
/// The longest command.
const MAX_TEXT_BYTES: usize = 1 << 20;
/// Longer texts are split: the kernel takes no argument of 128 KiB.
const PIECE_BYTES: usize = 64 << 10;

/// Runs a command so that its end can be told from the end of what it leaves running: when it is
/// over, everything but the first process and this shell is killed. Both streams become one, for
/// the engine would lose their order. Everything else is more likely to be killed for memory than
/// the first process. The redirections are those of a subshell, so that this shell's remarks on how
/// it ended stay out of the output.
const WRAPPER: &str = "exec 3>&1 1>/dev/null 2>&1; echo 1000 >/proc/self/oom_score_adj; d=$1; s=$2; f=$3; shift 3; \
     if ! cd \"$d\"; then echo \"cannot enter $d\" >&3; exit 127; fi; \
     if [ $# -eq 1 ]; then (exec \"$s\" \"$f\" \"$1\" >&3 2>&1 3>&-); \
     else t=; for p; do t=$t$p; done; (exec \"$s\" ${f%c} /dev/fd/9 >&3 2>&1 3>&- 9<<TEMPER\n$t\nTEMPER\n); fi; \
     c=$?; kill -9 -1; exit $c";

/// A live sandbox.
pub struct Live {
    engine: Engine,
    id: String,
    image: String,
    /// The first process's input; the container ends when it closes.
    input: Option<Connection>,
    meter: Option<Meter>,
    user: (u64, u64),
    environment: BTreeMap<String, String>,
    work_path: String,
    work_start: Option<PathBuf>,
    mount_targets: Vec<PathBuf>,
    output_bytes: u64,
    disk_bytes: u64,
    begun: Instant,
    /// Why it can no longer be used.
    broken: Option<String>,
    ended: bool,
}

impl Live {
    /// Furnishes a created container and starts it. It is removed again if that fails.
    pub fn start(
        engine: Engine,
        id: String,
        spec: &SandboxSpec,
        image: Image,
        begun: Instant,
    ) -> Result<Live, SandboxError> {
        let mut live = Live {
            engine,
            id,
            image: image.id,
            input: None,
            meter: None,
            user: (0, 0),
            environment: spec.environment.clone(),
            work_path: spec.work_tree.path.clone(),
            work_start: spec.work_tree.start.clone(),
            mount_targets: vec![],
            output_bytes: spec.limits.output_bytes,
            disk_bytes: spec.limits.disk_bytes,
            begun,
            broken: None,
            ended: false,
        };
        for mount in &spec.mounts {
            let target = inner_path(&mount.target)
                .map_err(|why| SandboxError::Start(format!("mount at {}: {why}", mount.target)))?;
            live.mount_targets.push(target);
        }
        live.user = live.find_user(&image.user)?;
        live.furnish(spec)?;
        let api = &live.engine.0.api;
        let failed = |error: ApiError| SandboxError::Start(error.to_string());
        live.input = Some(api.attach_input(&live.id).map_err(failed)?);
        api.start(&live.id).map_err(failed)?;
        let state = api.container(&live.id).map_err(failed)?;
        let Some(state) = state.filter(|state| state.running) else {
            return Err(SandboxError::Start(
                "its first process ended at once; the image needs a /bin/sh".into(),
            ));
        };
        if api.address.is_local() {
            live.meter = Meter::find(state.pid, &live.id);
        }
        Ok(live)
    }

    fn find_user(&self, text: &str) -> Result<(u64, u64), SandboxError> {
        let mut parts = text.splitn(2, ':');
        let (user, group) = (parts.next().unwrap_or(""), parts.next());
        let mut found = match (user, user.parse()) {
            ("" | "root", _) => Some((0, 0)),
            (_, Ok(number)) => Some((number, 0)),
            _ => None,
        };
        if found.is_none_or(|(number, _)| number != 0) {
            let passwd = self.read("/etc/passwd", 16 << 20)?.unwrap_or_default();
            let passwd = String::from_utf8_lossy(&passwd);
            for line in passwd.lines() {
                let fields: Vec<&str> = line.split(':').collect();
                if let [name, _, uid, gid, ..] = fields[..]
                    && (name == user || uid == user)
                    && let (Ok(uid), Ok(gid)) = (uid.parse(), gid.parse())
                {
                    found = Some((uid, gid));
                    break;
                }
            }
        }
        let (uid, gid) = found.ok_or_else(|| {
            SandboxError::Start(format!("the image has no user {user:?} to run commands as"))
        })?;
        Ok((
            uid,
            group.and_then(|group| group.parse().ok()).unwrap_or(gid),
        ))
    }

    /// Lays the work tree, the home directory and the files into the container.
    fn furnish(&self, spec: &SandboxSpec) -> Result<(), SandboxError> {
        let wrong =
            |path: &str, why: String| SandboxError::Start(format!("use the path {path}: {why}"));
        let work = inner_path(&self.work_path).map_err(|why| wrong(&self.work_path, why))?;
        let mut directories = self.missing_parents(&work.join("x"))?;
        let home = spec
            .environment
            .get("HOME")
            .and_then(|home| inner_path(home).ok());
        if let Some(home) = &home {
            directories.extend(self.missing_parents(&home.join("x"))?);
        }
        let mut files = vec![];
        for file in &spec.files {
            let path = inner_path(&file.path).map_err(|why| wrong(&file.path, why))?;
            directories.extend(self.missing_parents(&path)?);
            files.push((path, file));
        }
        let is_theirs = |path: &Path| {
            path.starts_with(&work) || home.as_ref().is_some_and(|home| path.starts_with(home))
        };
        let owner = |path: &Path| if is_theirs(path) { self.user } else { (0, 0) };
        let directories: BTreeSet<PathBuf> = directories.into_iter().collect();
        let start = spec.work_tree.start.as_deref();
        if start.is_none() && directories.is_empty() && files.is_empty() {
            return Ok(());
        }
        let mut fill = |out: &mut dyn Write| -> io::Result<()> {
            let mut packer = Packer::new(out);
            for directory in &directories {
                packer.directory(directory, owner(directory))?;
            }
            if let Some(start) = start {
                packer.tree(&work, start, self.user)?;
            }
            for (path, file) in &files {
                packer.file(path, file, owner(path))?;
            }
            packer.finish()
        };
        self.engine
            .0
            .api
            .upload(&self.id, &mut fill)
            .map_err(|error| SandboxError::Start(format!("furnish the container: {error}")))
    }

    /// The directories above a path that are not there yet. Whatever is there must be a directory:
    /// no link is followed.
    fn missing_parents(&self, path: &Path) -> Result<Vec<PathBuf>, SandboxError> {
        let refuse = |path: &Path, reason: &str| SandboxError::File {
            operation: "write",
            path: format!("/{}", path.display()),
            reason: reason.into(),
        };
        if self
            .mount_targets
            .iter()
            .any(|target| path.starts_with(target) || target.starts_with(path))
        {
            return Err(refuse(path, "it lies in a read-only directory of the host"));
        }
        let mut missing: Vec<PathBuf> = vec![];
        for parent in path.ancestors().skip(1) {
            if parent.as_os_str().is_empty() {
                break;
            }
            match self.kind(parent)? {
                None => missing.push(parent.into()),
                Some(PathKind::Directory) => {}
                Some(_) => return Err(refuse(parent, "it is not a directory")),
            }
        }
        Ok(missing)
    }

    fn kind(&self, path: &Path) -> Result<Option<PathKind>, SandboxError> {
        let text = format!("/{}", path.display());
        self.engine
            .0
            .api
            .path_kind(&self.id, &text)
            .map_err(|error| file_error("read", &text, error))
    }

    fn read(&self, path: &str, max_bytes: u64) -> Result<Option<Vec<u8>>, SandboxError> {
        let refuse = |reason: String| SandboxError::File {
            operation: "read",
            path: path.to_owned(),
            reason,
        };
        let inner = inner_path(path).map_err(refuse)?;
        let parents: Vec<&Path> = inner.ancestors().skip(1).collect();
        for parent in parents.into_iter().rev() {
            if !parent.as_os_str().is_empty() && self.kind(parent)? != Some(PathKind::Directory) {
                return Ok(None);
            }
        }
        let size = match self.kind(&inner)? {
            Some(PathKind::File(size)) => size,
            _ => return Ok(None),
        };
        let too_much = |size: u64| {
            refuse(format!(
                "it holds {size} bytes, more than the limit of {max_bytes}"
            ))
        };
        if size > max_bytes {
            return Err(too_much(size));
        }
        let text = format!("/{}", inner.display());
        let download = self.engine.0.api.download(&self.id, &text);
        let Some(mut body) = download.map_err(|error| file_error("read", path, error))? else {
            return Ok(None);
        };
        let mut archive = tar::Archive::new(&mut body);
        let mut entries = archive
            .entries()
            .map_err(|error| refuse(error.to_string()))?;
        let Some(entry) = entries.next() else {
            return Ok(None);
        };
        let mut entry = entry.map_err(|error| refuse(error.to_string()))?;
        if !entry.header().entry_type().is_file() {
            return Ok(None);
        }
        if entry.size() > max_bytes {
            return Err(too_much(entry.size()));
        }
        let mut content = vec![];
        entry
            .read_to_end(&mut content)
            .map_err(|error| refuse(error.to_string()))?;
        Ok(Some(content))
    }

    fn check(&self) -> Result<(), SandboxError> {
        match &self.broken {
            Some(why) => Err(SandboxError::Ended(why.clone())),
            None => Ok(()),
        }
    }

    /// Nothing can be said about the container any more: it is removed.
    fn break_off(&mut self, why: impl Into<String>) -> SandboxError {
        let why = why.into();
        self.broken = Some(why.clone());
        let _ = self.end();
        SandboxError::Ended(why)
    }

    fn run(&mut self, command: &Command) -> Result<Execution, String> {
        let limit = command.output_bytes.unwrap_or(self.output_bytes);
        let mut kept = Kept::new(limit);
        if command.text.len() > MAX_TEXT_BYTES || command.text.contains('\0') {
            kept.push(b"the command is longer than 1 MiB or contains a NUL byte\n");
            return Ok(execution(
                ExitStatus::Exited(126),
                kept,
                false,
                Duration::ZERO,
            ));
        }
        let killed_before = self.meter.as_ref().map_or(0, Meter::n_killed);
        let say = |error: ApiError| error.to_string();
        let mut environment = self.environment.clone();
        environment.extend(command.environment.clone());
        let environment: Vec<String> = environment
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let directory = command.directory.as_ref().unwrap_or(&self.work_path);
        let arguments = wrapped(command.shell, directory, &command.text);
        let api = &self.engine.0.api;
        let exec = api
            .exec_create(&self.id, &arguments, &environment)
            .map_err(say)?;
        let mut output = api.exec_start(&exec).map_err(say)?;
        let begun = Instant::now();
        let deadline = begun + command.timeout;
        let mut frames = Frames::default();
        let mut timed_out = false;
        loop {
            let now = Instant::now();
            if now >= deadline {
                timed_out = true;
                break;
            }
            output.set_deadline(deadline.min(now + GLANCE));
            match frames.read(&mut output, &mut kept) {
                Ok(Progress::More) => {}
                Ok(Progress::End) => break,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    // The shell that would end the command may have been killed by it.
                    if !self.engine.0.api.exec_state(&exec).map_err(say)?.running {
                        break;
                    }
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        let wall = begun.elapsed();
        if timed_out {
            self.ask_first_process();
        }
        self.kill_everything(&mut || {
            // An engine that cannot get rid of the output does not clear the dead away.
            output.set_deadline(Instant::now() + Duration::from_millis(2));
            loop {
                match frames.read(&mut output, &mut kept) {
                    Ok(Progress::More) => {}
                    Ok(Progress::End) => return Ok(true),
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(false),
                    Err(error) => return Err(error.to_string()),
                }
            }
        })?;
        let out_of_memory = self.meter.as_ref().map_or(0, Meter::n_killed) > killed_before;
        let status = if timed_out {
            ExitStatus::TimedOut
        } else {
            ExitStatus::Exited(self.exit_code(&exec)?)
        };
        Ok(execution(status, kept, out_of_memory, wall))
    }

    fn exit_code(&self, exec: &str) -> Result<i32, String> {
        let deadline = Instant::now() + KILL_PATIENCE;
        loop {
            let state = self
                .engine
                .0
                .api
                .exec_state(exec)
                .map_err(|error| error.to_string())?;
            match state.exit_code {
                Some(code) if !state.running => return Ok(code as i32),
                _ if Instant::now() > deadline => {
                    return Err("the engine does not say how the command ended".into());
                }
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Asks the first process to kill everything else.
    fn ask_first_process(&mut self) {
        if let Some(input) = &mut self.input {
            input.set_deadline(Instant::now() + Duration::from_secs(1));
            // If it does not take it, the count of processes will show.
            let _ = input.write_all(b"kill\n");
        }
    }

    /// Returns when the container holds nothing but its first process and `drain` has seen the
    /// output's end.
    fn kill_everything(
        &mut self,
        drain: &mut dyn FnMut() -> Result<bool, String>,
    ) -> Result<(), String> {
        let begun = Instant::now();
        let mut pause = Duration::from_millis(2);
        let mut tried_otherwise = false;
        loop {
            let is_drained = drain()?;
            let stats = self
                .engine
                .0
                .api
                .stats(&self.id)
                .map_err(|error| error.to_string())?;
            match stats.n_tasks {
                Some(1) if is_drained => return Ok(()),
                Some(0) | None => return Err("the container has ended".into()),
                Some(_) => {}
            }
            let waited = begun.elapsed();
            if waited > KILL_PATIENCE {
                return Err("processes of a command could not be killed".into());
            }
            if waited > FIRST_PROCESS_PATIENCE && !tried_otherwise {
                // A command of the same user may have stopped the first process from listening. An
                // own one reaches everything but the first process, too.
                tried_otherwise = true;
                self.kill_by_command()?;
            }
            if waited > pause {
                self.ask_first_process();
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    fn kill_by_command(&self) -> Result<(), String> {
        let arguments = ["/bin/sh", "-c", "kill -9 -1"].map(String::from);
        let api = &self.engine.0.api;
        let say = |error: ApiError| error.to_string();
        let exec = api.exec_create(&self.id, &arguments, &[]).map_err(say)?;
        let mut output = api.exec_start(&exec).map_err(say)?;
        output.set_deadline(Instant::now() + FIRST_PROCESS_PATIENCE);
        let _ = io::copy(&mut output.take(1 << 20), &mut io::sink());
        Ok(())
    }

    fn start_index(&self) -> Result<Arc<Index>, String> {
        match &self.work_start {
            Some(start) => Index::of_directory(start)
                .map(Arc::new)
                .map_err(|error| format!("read the start {}: {error}", start.display())),
            None => self.engine.index_of_image(&self.image, &self.work_path),
        }
    }

    /// Ends the container; does nothing the second time.
    fn end(&mut self) -> Result<(), ApiError> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        let api = &self.engine.0.api;
        // The first process ends by itself now; the removal is for everything else.
        self.input = None;
        api.remove(&self.id)?;
        // Another removal may be under way; nothing is left only when the engine knows none.
        let deadline = Instant::now() + KILL_PATIENCE;
        while api.container(&self.id)?.is_some() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Sandbox for Live {
    fn exec(&mut self, command: &Command) -> Result<Execution, SandboxError> {
        self.check()?;
        self.run(command).map_err(|why| self.break_off(why))
    }

    fn write_files(&mut self, files: &[InjectedFile]) -> Result<(), SandboxError> {
        self.check()?;
        let refuse = |path: &str, reason: String| SandboxError::File {
            operation: "write",
            path: path.to_owned(),
            reason,
        };
        let mut directories = BTreeSet::new();
        let mut inner = vec![];
        for file in files {
            let path = inner_path(&file.path).map_err(|reason| refuse(&file.path, reason))?;
            directories.extend(self.missing_parents(&path)?);
            if self.kind(&path)? == Some(PathKind::Directory) {
                return Err(refuse(&file.path, "it is a directory".into()));
            }
            inner.push((path, file));
        }
        let Some((_, first)) = inner.first() else {
            return Ok(());
        };
        let mut fill = |out: &mut dyn Write| -> io::Result<()> {
            let mut packer = Packer::new(out);
            for directory in &directories {
                packer.directory(directory, self.user)?;
            }
            for (path, file) in &inner {
                packer.file(path, file, self.user)?;
            }
            packer.finish()
        };
        self.engine
            .0
            .api
            .upload(&self.id, &mut fill)
            .map_err(|error| file_error("write", &first.path, error))
    }

    fn read_file(&mut self, path: &str, max_bytes: u64) -> Result<Option<Vec<u8>>, SandboxError> {
        self.check()?;
        self.read(path, max_bytes)
    }

    fn changes(&mut self) -> Result<Changes, SandboxError> {
        self.check()?;
        let work = self.work_path.clone();
        let refuse = |reason: String| SandboxError::File {
            operation: "collect",
            path: work.clone(),
            reason,
        };
        let inner = inner_path(&work).map_err(refuse)?;
        for directory in inner.ancestors() {
            if !directory.as_os_str().is_empty()
                && self.kind(directory)? != Some(PathKind::Directory)
            {
                return Err(refuse("it is no longer a directory".into()));
            }
        }
        let start = self.start_index().map_err(refuse)?;
        let api = &self.engine.0.api;
        let path = format!("/{}", inner.display());
        let mut archive = api
            .download(&self.id, &path)
            .map_err(|error| file_error("collect", &work, error))?
            .ok_or_else(|| refuse("it is gone".into()))?;
        archive.set_deadline(Instant::now() + TREE_PATIENCE);
        let mut fetch = |file: &TreePath| {
            let Ok(name) = std::str::from_utf8(file.as_bytes()) else {
                return Err(io::Error::other(format!(
                    "{file} is a second name of a file, and not text"
                )));
            };
            self.read(&format!("{path}/{name}"), self.disk_bytes)
                .map_err(|error| io::Error::other(error.to_string()))
        };
        compare::changes(&start, &mut archive, self.disk_bytes, &mut fetch)
            .map_err(|error| refuse(error.to_string()))
    }

    fn stop(mut self: Box<Self>) -> Result<Usage, SandboxError> {
        let stats = if self.ended {
            Default::default()
        } else {
            self.engine.0.api.stats(&self.id).unwrap_or_default()
        };
        let peak = self.meter.as_ref().and_then(Meter::peak_bytes);
        self.end()
            .map_err(|error| SandboxError::Ended(error.to_string()))?;
        Ok(Usage {
            peak_memory_bytes: peak.or(stats.peak_memory_bytes),
            cpu_seconds: stats.cpu_seconds,
            wall_seconds: self.begun.elapsed().as_secs_f64(),
        })
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // The lease and the next connection see to what the engine does not remove now.
        let _ = self.end();
    }
}

/// The arguments that run a text in a shell, below the wrapper.
fn wrapped(shell: Shell, directory: &str, text: &str) -> Vec<String> {
    let (program, flag) = match shell {
        Shell::Sh => ("/bin/sh", "-c"),
        Shell::Bash => ("bash", "-c"),
        Shell::BashLogin => ("bash", "-lc"),
    };
    let mut arguments: Vec<String> = ["/bin/sh", "-c", WRAPPER, "temper", directory, program, flag]
        .map(String::from)
        .into();
    let mut rest = text;
    while rest.len() > PIECE_BYTES {
        let mut at = PIECE_BYTES;
        while !rest.is_char_boundary(at) {
            at -= 1;
        }
        let (piece, tail) = rest.split_at(at);
        arguments.push(piece.into());
        rest = tail;
    }
    arguments.push(rest.into());
    arguments
}

fn execution(status: ExitStatus, kept: Kept, out_of_memory: bool, wall: Duration) -> Execution {
    let (output, omitted) = kept.finish();
    Execution {
        status,
        output,
        omitted: omitted.map(|(at, bytes)| Omitted { at, bytes }),
        out_of_memory,
        wall,
    }
}

fn file_error(operation: &'static str, path: &str, error: ApiError) -> SandboxError {
    SandboxError::File {
        operation,
        path: path.to_owned(),
        reason: error.to_string(),
    }
}
