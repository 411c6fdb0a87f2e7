//! Runs one command and leaves none of its processes behind.

use std::{
    collections::BTreeMap,
    ffi::{CString, OsStr},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask},
        signalfd::{SfdFlags, SignalFd},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Gid, Pid, Uid},
};

use super::{
    cgroup,
    fence::Fence,
    filter::Filter,
    sys,
    wire::{WireShell, WireStatus},
};
use crate::{Limits, output::Kept};

/// What holds for every command of a sandbox.
pub struct Jail {
    pub entrance: cgroup::Entrance,
    pub limits: Limits,
    pub fence: Option<Fence>,
    pub filter: Option<Filter>,
    /// Whether memory has to be limited for each process, for lack of a control group.
    pub memory_per_process: bool,
    pub uid: u32,
    pub gid: u32,
    children: SignalFd,
}

/// One command, with everything filled in.
pub struct Order {
    pub text: String,
    pub shell: WireShell,
    pub directory: String,
    pub environment: BTreeMap<String, String>,
    pub timeout: Duration,
    pub output_bytes: u64,
}

/// How a command ended.
pub struct Outcome {
    pub status: WireStatus,
    pub output: Vec<u8>,
    pub omitted: Option<(usize, u64)>,
    pub out_of_memory: bool,
    pub wall: Duration,
}

/// A script that is longer than the kernel takes as one argument is read from this descriptor.
const SCRIPT_FD: i32 = 9;
const MAX_ARGUMENT_BYTES: usize = 120 << 10;
/// The conventional code for a command that cannot be run.
const CANNOT_RUN: i32 = 127;

impl Jail {
    pub fn new(
        entrance: cgroup::Entrance,
        limits: Limits,
        fence: Option<Fence>,
        filter: Option<Filter>,
        memory_per_process: bool,
        (uid, gid): (u32, u32),
    ) -> io::Result<Jail> {
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        mask.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Jail {
            entrance,
            limits,
            fence,
            filter,
            memory_per_process,
            uid,
            gid,
            children: SignalFd::with_flags(&mask, flags)?,
        })
    }

    /// Runs a command. Ends this process if `socket`'s other side is gone.
    pub fn run(&self, order: &Order, socket: BorrowedFd<'_>) -> io::Result<Outcome> {
        let begun = Instant::now();
        let killed_before = self.n_killed_for_memory();
        let (output, output_inner) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        // Fewer switches for commands that write much; a small pipe works too.
        let _ = nix::fcntl::fcntl(&output_inner, nix::fcntl::FcntlArg::F_SETPIPE_SZ(256 << 10));
        nix::fcntl::fcntl(
            &output,
            nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK),
        )?;
        let (failure, failure_inner) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        let (child, inside) = self.fork()?;
        if child == 0 {
            let failed = self.become_command(order, &output_inner, inside);
            let mut report = std::fs::File::from(failure_inner);
            let _ = report.write_all(failed.to_text().as_bytes());
            sys::exit_now(CANNOT_RUN)
        }
        let child = Pid::from_raw(child);
        drop((output_inner, failure_inner));
        let mut message = String::new();
        std::fs::File::from(failure).read_to_string(&mut message)?;
        if let Some(reason) = message.strip_prefix(Failed::SETUP) {
            self.kill_everything();
            return Err(io::Error::other(reason.to_owned()));
        }
        let mut kept = Kept::new(order.output_bytes);
        kept.push(
            message
                .strip_prefix(Failed::COMMAND)
                .unwrap_or("")
                .as_bytes(),
        );

        let status = self.attend(child, begun + order.timeout, &output, &mut kept, socket)?;
        self.kill_everything();
        drain(&output, &mut kept)?;
        let (output, omitted) = kept.finish();
        Ok(Outcome {
            status: status.unwrap_or(WireStatus::TimedOut),
            output,
            omitted,
            out_of_memory: self.n_killed_for_memory() > killed_before,
            wall: begun.elapsed(),
        })
    }

    /// Forks; says whether the child is already in its control group.
    fn fork(&self) -> io::Result<(libc::pid_t, bool)> {
        if let Some((place, _)) = &self.entrance.birthplace {
            // Not every kernel and not every delegation allows it.
            if let Ok(child) = sys::fork_into_group(place.as_fd()) {
                return Ok((child, true));
            }
        }
        Ok((sys::fork_into(0)?, false))
    }

    /// Collects output until the command ends (`Some`) or the deadline passes (`None`).
    fn attend(
        &self,
        command: Pid,
        deadline: Instant,
        output: &OwnedFd,
        kept: &mut Kept,
        socket: BorrowedFd<'_>,
    ) -> io::Result<Option<WireStatus>> {
        let mut open = true;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let [asked, ended, written] = sys::wait_readable(
                [
                    Some(socket),
                    Some(self.children.as_fd()),
                    open.then_some(output.as_fd()),
                ],
                Some(left),
            )?;
            if asked && sys::is_hung_up(socket) {
                // Nobody waits for an answer any more; the kernel ends everything with us.
                sys::exit_now(0);
            }
            if written {
                open = read_some(output, kept)?;
            }
            if ended && let Some(status) = self.reap(command)? {
                return Ok(Some(status));
            }
        }
    }

    /// Reaps what has ended; the command's status if it is among it.
    fn reap(&self, command: Pid) -> io::Result<Option<WireStatus>> {
        while let Ok(Some(_)) = self.children.read_signal() {}
        let mut found = None;
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == command => {
                    found = Some(WireStatus::Exited(code));
                }
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == command => {
                    found = Some(WireStatus::Signaled(signal as i32));
                }
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(found),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Kills every other process of the PID namespace and waits until none is left. One `kill`
    /// reaches all of them at once: a fork that is under way then fails.
    fn kill_everything(&self) {
        let everything = Pid::from_raw(-1);
        let _ = kill(everything, Signal::SIGKILL);
        loop {
            while let Ok(Some(_)) = self.children.read_signal() {}
            match waitpid(None, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL)) {
                Err(Errno::ECHILD) => return,
                Ok(WaitStatus::StillAlive) => {
                    let patience = Some(Duration::from_millis(50));
                    let waited = sys::wait_readable([Some(self.children.as_fd())], patience);
                    if !matches!(waited, Ok([true])) {
                        let _ = kill(everything, Signal::SIGKILL);
                    }
                }
                _ => {}
            }
        }
    }

    fn n_killed_for_memory(&self) -> u64 {
        self.entrance
            .out_of_memory
            .as_ref()
            .map_or(0, cgroup::n_killed_for_memory)
    }

    /// Turns this process into the command. Returns only what went wrong.
    fn become_command(&self, order: &Order, output: &OwnedFd, inside: bool) -> Failed {
        match self.try_become_command(order, output, inside) {
            Ok(never) => match never {},
            Err(failed) => failed,
        }
    }

    fn try_become_command(
        &self,
        order: &Order,
        output: &OwnedFd,
        inside: bool,
    ) -> Result<std::convert::Infallible, Failed> {
        let setup = |error: io::Error| Failed::Setup(error.to_string());
        nix::unistd::setsid().map_err(|error| setup(error.into()))?;
        let outer_door = self.entrance.birthplace.iter().map(|(_, door)| door);
        let outer_door = outer_door.filter(|_| !inside);
        for door in self.entrance.doors.iter().chain(outer_door) {
            nix::unistd::write(door, b"0")
                .map_err(|error| Failed::Setup(format!("enter a control group: {error}")))?;
        }
        // So that the group's name on the host is not seen. Kernels without it show the name.
        let _ = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWCGROUP);
        self.set_limits().map_err(setup)?;
        let script = order
            .script()
            .map_err(|error| Failed::Command(error.to_string()))?;
        redirect(output, script.as_ref()).map_err(setup)?;
        self.drop_privileges().map_err(setup)?;
        if let Some(fence) = &self.fence {
            fence.enter().map_err(setup)?;
        }
        if let Some(filter) = &self.filter {
            filter.enter().map_err(setup)?;
        }
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)
            .map_err(|error| setup(error.into()))?;
        // The runtime of this program ignores it, and what is ignored is inherited.
        // SAFETY: restores a default; no handler is involved.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };

        nix::unistd::chdir(order.directory.as_str()).map_err(|error| {
            Failed::Command(format!("cannot change to {}: {error}", order.directory))
        })?;
        let invalid = |error: io::Error| Failed::Command(format!("cannot run: {error}"));
        let arguments = order.arguments(script.is_some()).map_err(invalid)?;
        let environment = order.environment().map_err(invalid)?;
        let programs = order.programs();
        let mut last = Errno::ENOENT;
        for program in &programs {
            let Ok(program) = sys::c_path(program) else {
                continue;
            };
            match nix::unistd::execve(&program, &arguments, &environment) {
                Ok(never) => match never {},
                Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(error) => last = error,
            }
        }
        Err(Failed::Command(format!(
            "cannot run {}: {last}",
            order.shell.name()
        )))
    }

    fn set_limits(&self) -> io::Result<()> {
        let limits = &self.limits;
        sys::set_limit(libc::RLIMIT_CORE, 0)?;
        sys::set_limit(libc::RLIMIT_FSIZE, limits.file_size_bytes)?;
        sys::set_limit(libc::RLIMIT_NPROC, limits.max_processes)?;
        sys::set_limit(libc::RLIMIT_MEMLOCK, 8 << 20)?;
        sys::set_limit(libc::RLIMIT_MSGQUEUE, 819_200)?;
        if self.memory_per_process {
            sys::set_limit(libc::RLIMIT_AS, limits.memory_bytes)?;
        }
        Ok(())
    }

    fn drop_privileges(&self) -> io::Result<()> {
        if nix::unistd::geteuid().as_raw() != self.uid {
            let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
            nix::unistd::setresgid(gid, gid, gid)?;
            nix::unistd::setresuid(uid, uid, uid)?;
        }
        sys::keep_capabilities(&[])
    }
}

/// Why a command was not run.
enum Failed {
    /// Through its own fault: the directory or the shell is not there.
    Command(String),
    /// A protection could not be put in place.
    Setup(String),
}

impl Failed {
    const COMMAND: &str = "c";
    const SETUP: &str = "s";

    fn to_text(&self) -> String {
        match self {
            Failed::Command(reason) => format!("{}temper: {reason}\n", Self::COMMAND),
            Failed::Setup(reason) => format!("{}{reason}", Self::SETUP),
        }
    }
}

impl Order {
    /// The script in a file of its own, if it is too long for an argument.
    fn script(&self) -> io::Result<Option<OwnedFd>> {
        if self.text.len() < MAX_ARGUMENT_BYTES {
            return Ok(None);
        }
        let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
        let file = nix::sys::memfd::memfd_create(c"command", flags)?;
        let mut file = std::fs::File::from(file);
        file.write_all(self.text.as_bytes())?;
        Ok(Some(file.into()))
    }

    fn arguments(&self, from_file: bool) -> io::Result<Vec<CString>> {
        let text = if from_file {
            format!(". /proc/self/fd/{SCRIPT_FD}")
        } else {
            self.text.clone()
        };
        let option = match self.shell {
            WireShell::Sh | WireShell::Bash => "-c",
            WireShell::BashLogin => "-lc",
        };
        // What `$0` shows: upstream's local environment runs `/bin/sh` by its path.
        let name = match self.shell {
            WireShell::Sh => "/bin/sh",
            WireShell::Bash | WireShell::BashLogin => self.shell.name(),
        };
        [name, option, &text]
            .into_iter()
            .map(|argument| sys::c_bytes(argument.as_bytes()))
            .collect()
    }

    fn environment(&self) -> io::Result<Vec<CString>> {
        self.environment
            .iter()
            .map(|(name, value)| sys::c_bytes(format!("{name}={value}").as_bytes()))
            .collect()
    }

    fn programs(&self) -> Vec<std::path::PathBuf> {
        let name = self.shell.name();
        let path = self.environment.get("PATH").map_or("", String::as_str);
        ["/bin", "/usr/bin", "/usr/local/bin"]
            .into_iter()
            .chain(
                path.split(':')
                    .filter(|directory| directory.starts_with('/')),
            )
            .map(|directory| Path::new(OsStr::from_bytes(directory.as_bytes())).join(name))
            .collect()
    }
}

impl WireShell {
    fn name(self) -> &'static str {
        match self {
            WireShell::Sh => "sh",
            WireShell::Bash | WireShell::BashLogin => "bash",
        }
    }
}

/// Connects the standard streams, and marks everything else to be closed.
fn redirect(output: &OwnedFd, script: Option<&OwnedFd>) -> io::Result<()> {
    let nothing = std::fs::File::open("/dev/null")?;
    // `dup2` onto itself would keep the descriptor marked.
    for (from, to) in [
        (nothing.as_raw_fd(), 0),
        (output.as_raw_fd(), 1),
        (output.as_raw_fd(), 2),
    ] {
        sys::duplicate_to(from, to)?;
    }
    sys::close_from(3, true)?;
    if let Some(script) = script {
        sys::duplicate_to(script.as_raw_fd(), SCRIPT_FD)?;
    }
    Ok(())
}

/// Reads once; whether more can come.
fn read_some(output: &OwnedFd, kept: &mut Kept) -> io::Result<bool> {
    let mut buffer = [0; 64 << 10];
    match nix::unistd::read(output, &mut buffer) {
        Ok(0) => Ok(false),
        Ok(n) => {
            kept.push(&buffer[..n]);
            Ok(true)
        }
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Reads what is left in the pipe; everything that could write to it is dead.
fn drain(output: &OwnedFd, kept: &mut Kept) -> io::Result<()> {
    while read_some(output, kept)? {}
    Ok(())
}
