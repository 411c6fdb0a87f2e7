//! What this backend has in force, told from what a real sandbox reported of itself, and why it
//! has nothing where none can be built.

use std::{collections::BTreeMap, fs};

use super::{NAME, wire::Facts};
use crate::{
    Demand, Limits, Network, Protection, Protections, Root, SandboxError, SandboxSpec, Strength,
    WorkTree,
};

/// The smallest sandbox, to see what one has.
pub fn smallest() -> SandboxSpec {
    SandboxSpec {
        root: Root::Host,
        work_tree: WorkTree {
            start: None,
            path: "/testbed".into(),
        },
        mounts: vec![],
        files: vec![],
        environment: BTreeMap::new(),
        limits: Limits::default(),
        network: Network::None,
        demand: Demand(Default::default()),
        label: "probe".into(),
    }
}

/// The protections of a sandbox that reported these facts.
pub fn protections(facts: &Facts) -> Protections {
    use Protection::*;
    let enforced = |by: &str| Strength::Enforced { by: by.into() };
    let absent = |why: String| Strength::Absent { why };
    let mut all: Protections = [
        (HostFilesHidden, enforced("mount namespace")),
        (ReadOnlyRoot, enforced("read-only mounts")),
        (ProcessesIsolated, enforced("PID namespace")),
        (
            DiskLimit,
            enforced("one sized tmpfs for everything that can be written"),
        ),
        (WholeTreeKilled, enforced("PID namespace")),
        (
            EnvironmentScrubbed,
            enforced("launcher started with an empty environment"),
        ),
    ]
    .into();
    let network = if facts.host_network {
        absent("the sandbox was asked to use the host's network".into())
    } else {
        enforced("network namespace")
    };
    all.insert(NetworkIsolated, network);
    let filter = match &facts.seccomp {
        Ok(()) => enforced("seccomp"),
        Err(why) => absent(format!("seccomp: {why}")),
    };
    all.insert(SyscallFilter, filter);
    let landlock = match &facts.landlock {
        Ok(version) => enforced(&format!("Landlock version {version}")),
        Err(why) => absent(why.clone()),
    };
    all.insert(Landlock, landlock);
    let memory = match &facts.memory {
        Ok(by) => enforced(by),
        Err(why) => Strength::PerProcess {
            by: format!("RLIMIT_AS, because {why}; {DELEGATE}"),
        },
    };
    all.insert(MemoryLimit, memory);
    all.insert(ProcessLimit, process_limit(facts));
    let unprivileged = if facts.host_uid == 0 {
        absent("the launcher is root and has no other user id to give to commands".into())
    } else {
        enforced(&format!("user id {} without capabilities", facts.host_uid))
    };
    all.insert(Unprivileged, unprivileged);
    all
}

const DELEGATE: &str =
    "to limit the sandbox as a whole, run under `systemd-run --user --scope -p Delegate=yes`";

fn process_limit(facts: &Facts) -> Strength {
    match &facts.processes {
        Ok(by) => Strength::Enforced { by: by.clone() },
        // Since Linux 5.14 processes are counted per user and user namespace, and every sandbox
        // has a user namespace of its own.
        Err(_) if facts.user_namespace && kernel_is_at_least(5, 14) => Strength::Enforced {
            by: "RLIMIT_NPROC in a user namespace of its own".into(),
        },
        Err(why) => Strength::PerProcess {
            by: format!("RLIMIT_NPROC, which counts the user's other processes too, because {why}"),
        },
    }
}

/// No protection at all, because no sandbox can be built.
pub fn none(reason: &str, hint: &str) -> Protections {
    use Protection::*;
    let why = format!("{reason}; {hint}");
    [
        HostFilesHidden,
        ReadOnlyRoot,
        ProcessesIsolated,
        NetworkIsolated,
        SyscallFilter,
        Landlock,
        MemoryLimit,
        ProcessLimit,
        DiskLimit,
        WholeTreeKilled,
        EnvironmentScrubbed,
        Unprivileged,
    ]
    .into_iter()
    .map(|protection| (protection, Strength::Absent { why: why.clone() }))
    .collect()
}

/// Turns what the launcher could not do into something a user can act on.
pub fn explain(operation: &str, reason: &str, errno: Option<i32>) -> SandboxError {
    let by_the_kernel = ["namespace", "mount", "/proc", "root", "overlay", "/dev"]
        .iter()
        .any(|word| operation.contains(word));
    let refused = matches!(
        errno,
        Some(
            libc::EPERM | libc::EACCES | libc::ENOSYS | libc::ENOSPC | libc::EUSERS | libc::EINVAL
        )
    );
    if !(by_the_kernel && refused) {
        return SandboxError::Start(format!("{operation}: {reason}"));
    }
    SandboxError::Unavailable {
        backend: NAME.into(),
        reason: format!("the kernel refused to {operation}: {reason}"),
        hint: hint(errno),
    }
}

fn hint(errno: Option<i32>) -> String {
    let setting = |path: &str| {
        fs::read_to_string(format!("/proc/sys/{path}"))
            .ok()
            .map(|text| text.trim().to_owned())
    };
    if !kernel_is_at_least(5, 12) || errno == Some(libc::ENOSYS) {
        "this backend needs Linux 5.12 or later; use the docker or podman backend".into()
    } else if setting("kernel/apparmor_restrict_unprivileged_userns").as_deref() == Some("1") {
        "AppArmor restricts user namespaces (Ubuntu 23.10 and later): as root, run `sysctl -w \
         kernel.apparmor_restrict_unprivileged_userns=0` or give temper an AppArmor profile that \
         allows `userns`, or use the docker or podman backend"
            .into()
    } else if setting("kernel/unprivileged_userns_clone").as_deref() == Some("0") {
        "as root, run `sysctl -w kernel.unprivileged_userns_clone=1`".into()
    } else if setting("user/max_user_namespaces").as_deref() == Some("0") {
        "as root, run `sysctl -w user.max_user_namespaces=15000`".into()
    } else if in_container() {
        "this looks like a container that forbids namespaces: start it with `--security-opt \
         seccomp=unconfined --security-opt systempaths=unconfined` (and `--security-opt \
         apparmor=unconfined` where AppArmor is used), or run temper outside of it"
            .into()
    } else {
        "check that user namespaces are allowed (`unshare -Ur true`), or use the docker or podman \
         backend"
            .into()
    }
}

fn in_container() -> bool {
    ["/.dockerenv", "/run/.containerenv"]
        .iter()
        .any(|marker| fs::symlink_metadata(marker).is_ok())
        || fs::read_to_string("/proc/self/status")
            .is_ok_and(|status| status.lines().any(|line| line == "Seccomp:\t2"))
}

fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
}
