//! The process between Temper and a sandbox: the same program, started anew with an empty
//! environment, so that nothing of Temper's memory, variables or open files can be inherited.
//!
//! It stays outside of the namespaces, makes and removes the control groups, and ends the sandbox
//! when Temper ends, however that happens.

use std::{
    fs, io,
    io::{Read, Write},
    os::{
        fd::{AsFd, FromRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::atomic::{AtomicBool, Ordering},
};

use nix::{
    sys::{
        signal::{Signal, kill},
        wait::waitpid,
    },
    unistd::Pid,
};

use super::{
    cgroup::Groups,
    exec::Jail,
    fence::Fence,
    filter::Filter,
    owners::Ids,
    serve::Served,
    setup::{self, During, Identity, Problem},
    sys,
    wire::{self, Build, Built, Final},
};

/// The name under which this program starts itself as a launcher.
pub const NAME: &str = "temper-sandbox-init";

static CAN_LAUNCH: AtomicBool = AtomicBool::new(false);

/// Becomes the launcher of a sandbox if this process was started as one; returns otherwise. Call it
/// first thing in `main`, before anything else runs: only then can [`super::Namespaces`] start
/// this program again as its launcher.
pub fn run_launcher_if_asked() {
    CAN_LAUNCH.store(true, Ordering::Relaxed);
    if std::env::args_os().next().is_some_and(|name| name == NAME) {
        launch();
    }
}

/// Whether this program can be started as a launcher.
pub fn can_launch() -> bool {
    CAN_LAUNCH.load(Ordering::Relaxed)
}

fn launch() -> ! {
    sys::reset_signals();
    let _ = sys::close_from(3, false);
    // SAFETY: the parent gave its end of a socket pair as the standard input, and nothing else in
    // this process has used it yet.
    let inherited = unsafe { OwnedFd::from_raw_fd(0) };
    // Moved away from the standard input so that no child inherits it there.
    let code = match inherited.try_clone() {
        Ok(socket) => {
            let _ = fs::File::open("/dev/null").map(|nothing| {
                use std::os::fd::AsRawFd;
                sys::duplicate_to(nothing.as_raw_fd(), 0)
            });
            std::mem::forget(inherited);
            match keep(&mut UnixStream::from(socket)) {
                Ok(()) => 0,
                Err(_) => 1,
            }
        }
        Err(_) => 1,
    };
    sys::exit_now(code)
}

/// Builds a sandbox, waits for its end and removes what is left.
fn keep(socket: &mut UnixStream) -> io::Result<()> {
    // Out of reach of the signals that a terminal sends to Temper's process group.
    nix::unistd::setsid()?;
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    let (build, contents): (Build, _) = wire::receive(socket, u64::MAX)?;
    let parent = sys::pidfd(build.parent)?;
    let groups = Groups::create(&build.name, &build.limits);
    let result = watch(&build, contents, &groups, socket, &parent);
    let (peak_memory_bytes, cpu_seconds) = groups.usage();
    groups.remove();
    match result {
        Ok(()) => {
            let last = Final {
                peak_memory_bytes,
                cpu_seconds,
            };
            wire::send(socket, &last, &[])
        }
        Err(problem) => {
            let failed = Built::Failed {
                operation: problem.operation,
                errno: problem.error.raw_os_error(),
                reason: problem.error.to_string(),
            };
            wire::send(socket, &failed, &[])
        }
    }
}

fn watch(
    build: &Build,
    contents: Vec<Vec<u8>>,
    groups: &Groups,
    socket: &mut UnixStream,
    parent: &OwnedFd,
) -> Result<(), Problem> {
    let ids = Ids::choose().during(|| "read the user namespace's maps".into())?;
    let identity = ids.identity(build);
    let mut namespaces =
        libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    if !identity.privileged {
        namespaces |= libc::CLONE_NEWUSER;
    }
    if !build.host_network {
        namespaces |= libc::CLONE_NEWNET;
    }
    let (mut maps, mut maps_inner) = UnixStream::pair().during(|| "make a socket pair".into())?;
    let first = sys::fork_into(namespaces).during(|| "make namespaces".into())?;
    if first == 0 {
        drop(maps);
        let code = become_first(build, contents, groups, &identity, socket, &mut maps_inner);
        sys::exit_now(i32::from(code.is_err()));
    }
    drop((maps_inner, contents));
    let first = Pid::from_raw(first);
    let name: String = build
        .label
        .chars()
        .filter(char::is_ascii_graphic)
        .take(15)
        .collect();
    if let Ok(name) = sys::c_bytes(name.as_bytes()) {
        let _ = sys::set_process_name(&name);
    }
    let ended = sys::pidfd(first.as_raw()).during(|| "watch the first process".into())?;
    let mut mapped = false;
    loop {
        let asking = (!mapped).then_some(maps.as_fd());
        let [orphaned, over, asked] =
            sys::wait_readable([Some(parent.as_fd()), Some(ended.as_fd()), asking], None)
                .during(|| "wait for the first process".into())?;
        if asked {
            mapped = true;
            let mut request = [0];
            if maps.read(&mut request).is_ok_and(|n| n == 1) {
                let answer = if ids.write_maps(first).is_ok() {
                    b"k"
                } else {
                    b"e"
                };
                let _ = maps.write_all(answer);
            }
        }
        if orphaned {
            // The kernel kills everything in a PID namespace with its first process.
            let _ = kill(first, Signal::SIGKILL);
        }
        if orphaned || over {
            let _ = waitpid(first, None);
            return Ok(());
        }
    }
}

fn become_first(
    build: &Build,
    contents: Vec<Vec<u8>>,
    groups: &Groups,
    identity: &Identity,
    socket: &mut UnixStream,
    maps: &mut UnixStream,
) -> io::Result<()> {
    let prepared = prepare(build, &contents, groups, identity, maps);
    // They are in the sandbox now, and would stay in memory as long as it lives.
    drop(contents);
    match prepared {
        Ok((served, facts)) => {
            wire::send(socket, &Built::Ready(facts), &[])?;
            served.serve(socket)
        }
        Err(problem) => {
            let failed = Built::Failed {
                operation: problem.operation,
                errno: problem.error.raw_os_error(),
                reason: problem.error.to_string(),
            };
            wire::send(socket, &failed, &[])
        }
    }
}

fn prepare(
    build: &Build,
    contents: &[Vec<u8>],
    groups: &Groups,
    identity: &Identity,
    maps: &mut UnixStream,
) -> Result<(Served, wire::Facts), Problem> {
    nix::unistd::setsid().during(|| "leave the launcher's session".into())?;
    let entrance = groups
        .entrance()
        .during(|| "open the control groups".into())?;
    let inside = setup::build(build, contents, identity, maps)?;
    let mut facts = inside.facts;
    // Set last, because changes of credentials clear it.
    sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong)
        .during(|| "end with the launcher".into())?;
    // The launcher may have ended before; its end of the pair is then closed.
    if sys::is_hung_up(maps.as_fd()) {
        sys::exit_now(1);
    }
    facts.memory = groups.memory.clone();
    facts.processes = groups.processes.clone();
    let (filter, seccomp) = match Filter::new() {
        Ok(filter) => (Some(filter), Ok(())),
        Err(error) => (None, Err(error.to_string())),
    };
    facts.seccomp = seccomp;
    let (fence, landlock) = match Fence::new(&inside.area.writable) {
        Ok(fence) => {
            let version = fence.version;
            (Some(fence), Ok(version))
        }
        Err(reason) => (None, Err(reason)),
    };
    facts.landlock = landlock;
    let jail = Jail::new(
        entrance,
        build.limits.clone(),
        fence,
        filter,
        groups.memory.is_err(),
        (inside.uid, inside.gid),
    )
    .during(|| "prepare to run commands".into())?;
    let served = Served {
        jail,
        area: inside.area,
        work: inside.work,
        private: std::cell::RefCell::default(),
    };
    Ok((served, facts))
}
