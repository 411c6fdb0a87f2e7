//! Which protections a backend has in force here, and which ones a run demands.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One thing a sandbox keeps untrusted code from doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protection {
    /// Files of the host outside the mounts cannot be read.
    HostFilesHidden,
    /// Nothing outside the sandbox can be written.
    ReadOnlyRoot,
    /// Processes of the host cannot be seen or signalled.
    ProcessesIsolated,
    /// No network.
    NetworkIsolated,
    /// System calls are filtered.
    SyscallFilter,
    /// File access is restricted a second time, by Landlock.
    Landlock,
    /// All processes together stay below the memory limit.
    MemoryLimit,
    /// All processes together stay below the process limit, and sandboxes do not share it.
    ProcessLimit,
    /// Everything written stays below the disk limit.
    DiskLimit,
    /// Every process of the sandbox ends at a timeout and at the end.
    WholeTreeKilled,
    /// The launcher's environment cannot be read.
    EnvironmentScrubbed,
    /// Commands do not run as root of the host.
    Unprivileged,
}

/// How well a protection holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "strength", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Strength {
    /// The kernel enforces it for the sandbox as a whole.
    Enforced {
        /// By what (`cgroup v2`, `pid namespace`, …).
        by: String,
    },
    /// It holds for each process alone, so many processes can exceed it together.
    PerProcess {
        /// By what (`RLIMIT_AS`, …).
        by: String,
    },
    /// It does not hold here.
    Absent {
        /// Why, and where the user can act, what to do.
        why: String,
    },
}

/// The protections of a backend on this machine.
pub type Protections = BTreeMap<Protection, Strength>;

/// The protections without which a run must not start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Demand(pub std::collections::BTreeSet<Protection>);

impl Default for Demand {
    /// What untrusted, model-written commands need at the least: isolation from the host's files,
    /// processes and network, an end to every process, and no environment to steal from.
    fn default() -> Self {
        use Protection::*;
        Demand(
            [
                HostFilesHidden,
                ReadOnlyRoot,
                ProcessesIsolated,
                NetworkIsolated,
                WholeTreeKilled,
                EnvironmentScrubbed,
            ]
            .into(),
        )
    }
}

impl Demand {
    /// The demanded protections that are not enforced, each with the reason.
    pub fn unmet<'a>(&self, protections: &'a Protections) -> Vec<(Protection, &'a str)> {
        self.0
            .iter()
            .filter_map(|protection| match protections.get(protection) {
                Some(Strength::Enforced { .. }) => None,
                Some(Strength::PerProcess { by }) => Some((*protection, by.as_str())),
                Some(Strength::Absent { why }) => Some((*protection, why.as_str())),
                None => Some((*protection, "the backend does not say")),
            })
            .collect()
    }
}
