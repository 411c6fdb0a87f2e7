//! How much of the machine a sandbox may take.

use serde::{Deserialize, Serialize};

/// Limits of one sandbox, all of its processes together unless a line says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Memory, tmpfs files included.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub max_processes: u64,
    /// Size of one file.
    pub file_size_bytes: u64,
    /// Everything written: the work tree's changes, `/tmp`, `/dev/shm`, home.
    pub disk_bytes: u64,
    /// CPU time in thousandths of a core (2000 is two cores); `None` leaves it to the scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_milli_cores: Option<u32>,
    /// Output kept of one command; the rest is counted and dropped.
    pub output_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            memory_bytes: 2 << 30,
            max_processes: 512,
            file_size_bytes: 512 << 20,
            disk_bytes: 1 << 30,
            cpu_milli_cores: None,
            output_bytes: 8 << 20,
        }
    }
}
