//! What a container's control groups say, where the engine runs on this machine.
//!
//! The API does not tell whether the memory limit killed something, and Podman's does not tell the
//! highest memory use. The kernel tells both.

use std::{fs, path::PathBuf};

/// The memory group of a container.
#[derive(Debug)]
pub struct Meter {
    group: PathBuf,
    is_v2: bool,
}

impl Meter {
    /// Finds the groups of a container by its first process. `None` where they cannot be seen, or
    /// are not that container's.
    pub fn find(first_process: i64, container: &str) -> Option<Meter> {
        let text = fs::read_to_string(format!("/proc/{first_process}/cgroup")).ok()?;
        let mut found = None;
        for line in text.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            // The number could be that of an unrelated process of this machine.
            if !path.contains(container) {
                continue;
            }
            let path = path.trim_start_matches('/');
            let candidates = if controllers.is_empty() {
                vec![(PathBuf::from("/sys/fs/cgroup").join(path), true)]
            } else if controllers.split(',').any(|name| name == "memory") {
                vec![(PathBuf::from("/sys/fs/cgroup/memory").join(path), false)]
            } else {
                vec![]
            };
            for (group, is_v2) in candidates {
                let probe = if is_v2 {
                    "memory.events"
                } else {
                    "memory.oom_control"
                };
                if group.join(probe).exists() {
                    found = Some(Meter { group, is_v2 });
                }
            }
        }
        found
    }

    /// How often the memory limit has killed something.
    pub fn n_killed(&self) -> u64 {
        let file = if self.is_v2 {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        fs::read_to_string(self.group.join(file))
            .ok()
            .and_then(|text| {
                text.lines()
                    .find_map(|line| line.strip_prefix("oom_kill "))
                    .and_then(|count| count.trim().parse().ok())
            })
            .unwrap_or(0)
    }

    /// Highest memory use.
    pub fn peak_bytes(&self) -> Option<u64> {
        let file = if self.is_v2 {
            "memory.peak"
        } else {
            "memory.max_usage_in_bytes"
        };
        fs::read_to_string(self.group.join(file))
            .ok()?
            .trim()
            .parse()
            .ok()
    }
}
