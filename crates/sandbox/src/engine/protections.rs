//! What an engine says that it enforces, as protections.

use super::api::Info;
use crate::{Network, Protection, Protections, Strength};

/// The protections of a container as [`super::Engine`] makes it.
pub fn protections(info: &Info, network: Network) -> Protections {
    let enforced = |by: String| Strength::Enforced { by };
    let absent = |why: &str| Strength::Absent { why: why.into() };
    let options = info.security_options.clone().unwrap_or_default();
    let has = |name: &str| {
        options
            .iter()
            .any(|option| option.split(',').next() == Some(&format!("name={name}")))
    };
    let groups = format!(
        "control groups, version {}",
        info.cgroup_version.as_deref().unwrap_or("1")
    );
    let filtered = options
        .iter()
        .any(|option| option.starts_with("name=seccomp") && !option.contains("profile=unconfined"));
    let mapped = has("rootless") || has("userns") || info.rootless == Some(true);
    [
        (
            Protection::HostFilesHidden,
            enforced("the container's mount namespace".into()),
        ),
        (
            Protection::ReadOnlyRoot,
            enforced("the container's own file system, and read-only mounts".into()),
        ),
        (
            Protection::ProcessesIsolated,
            enforced("the container's PID namespace".into()),
        ),
        (
            Protection::NetworkIsolated,
            match network {
                Network::None => enforced("a network namespace with nothing but a loopback".into()),
                Network::Host => absent("the run asks for the host's network"),
            },
        ),
        (
            Protection::SyscallFilter,
            if filtered {
                enforced("the engine's seccomp profile".into())
            } else {
                absent("the engine says that it runs containers without a seccomp profile")
            },
        ),
        (
            Protection::Landlock,
            absent("engines do not set it; use the namespaces sandbox"),
        ),
        (
            Protection::MemoryLimit,
            match (info.memory_limit, info.swap_limit) {
                (true, true) => enforced(groups.clone()),
                (true, false) => absent("the engine cannot limit swap, so memory can be exceeded"),
                (false, _) => absent(
                    "the engine cannot limit memory; a rootless one needs version 2 control groups \
                     and the memory controller delegated to the user",
                ),
            },
        ),
        (
            Protection::ProcessLimit,
            if info.pids_limit {
                enforced(groups)
            } else {
                absent(
                    "the engine cannot limit processes; a rootless one needs version 2 control \
                     groups and the pids controller delegated to the user",
                )
            },
        ),
        (
            Protection::DiskLimit,
            absent(
                "engines do not bound a container's writable layer on most file systems; only the \
                 size of one file and of /dev/shm is limited. The namespaces sandbox bounds all",
            ),
        ),
        (
            Protection::WholeTreeKilled,
            if info.pids_limit {
                enforced("the container's first process, and the engine's count of processes".into())
            } else {
                absent("the engine does not count a container's processes")
            },
        ),
        (
            Protection::EnvironmentScrubbed,
            enforced("the engine starts commands, not Temper".into()),
        ),
        (
            Protection::Unprivileged,
            if mapped {
                enforced("the engine's user namespace".into())
            } else {
                absent(
                    "the engine maps root in a container to root of the host, although without most \
                     capabilities; a rootless engine or one with userns-remap does not",
                )
            },
        ),
    ]
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(info: &str, expected: &[Protection]) {
        let info: Info = serde_json::from_str(info).unwrap();
        let absent: Vec<Protection> = protections(&info, Network::None)
            .into_iter()
            .filter(|(_, strength)| !matches!(strength, Strength::Enforced { .. }))
            .map(|(protection, _)| protection)
            .collect();
        assert_eq!(absent, expected);
    }

    #[test]
    fn what_an_engine_does_not_say_is_absent() {
        use Protection::*;
        check(
            r#"{"MemoryLimit":true,"SwapLimit":true,"PidsLimit":true,"CgroupVersion":"1",
                "SecurityOptions":["name=seccomp,profile=default"]}"#,
            &[Landlock, DiskLimit, Unprivileged],
        );
        check(
            r#"{"MemoryLimit":true,"SwapLimit":true,"PidsLimit":true,"CgroupVersion":"2",
                "SecurityOptions":["name=seccomp,profile=builtin","name=rootless","name=cgroupns"]}"#,
            &[Landlock, DiskLimit],
        );
        check(
            r#"{"MemoryLimit":true,"SwapLimit":false,"PidsLimit":true,
                "SecurityOptions":["name=seccomp,profile=unconfined"],"Rootless":true}"#,
            &[SyscallFilter, Landlock, MemoryLimit, DiskLimit],
        );
        check(
            "{}",
            &[
                SyscallFilter,
                Landlock,
                MemoryLimit,
                ProcessLimit,
                DiskLimit,
                WholeTreeKilled,
                Unprivileged,
            ],
        );
        let host = protections(&Info::default(), Network::Host);
        assert!(matches!(host[&NetworkIsolated], Strength::Absent { .. }));
    }
}
