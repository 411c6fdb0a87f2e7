//! Marks containers with who made them, and tells those whose maker is gone.
//!
//! A container ends by itself when its maker's connection to it closes; the marks are for what that
//! does not reach: containers that never started, and engines that were restarted.

use std::{
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

/// The label that all of Temper's containers carry.
pub const MARK: &str = "temper.sandbox";
const LABEL: &str = "temper.label";
const PLACE: &str = "temper.owner.place";
const PROCESS: &str = "temper.owner.process";
const EXPIRES: &str = "temper.expires";

/// A process, told apart from every other one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The boot and the PID namespace in which its number means something.
    place: String,
    /// Number and start time.
    process: String,
}

impl Owner {
    /// This process.
    pub fn this() -> Owner {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = fs::read_link("/proc/self/ns/pid")
            .map(|link| link.to_string_lossy().into_owned())
            .unwrap_or_default();
        let own = std::process::id();
        Owner {
            place: format!("{} {namespace}", boot.trim()),
            process: format!("{own} {}", start_of(own).unwrap_or(0)),
        }
    }

    /// The labels of a container that this owner makes now and will not need for longer than
    /// `lease`.
    pub fn labels(&self, label: &str, lease: Duration) -> Value {
        json!({
            MARK: "1",
            LABEL: label,
            PLACE: self.place,
            PROCESS: self.process,
            EXPIRES: (unix_seconds() + lease.as_secs()).to_string(),
        })
    }

    /// Whether the container with these labels is nobody's any more, as far as can be told from
    /// here.
    pub fn outlived(&self, labels: &Value) -> bool {
        let text = |name| labels.get(name).and_then(Value::as_str);
        if text(MARK).is_none() {
            return false;
        }
        let expired = text(EXPIRES)
            .and_then(|text| text.parse::<u64>().ok())
            .is_some_and(|expires| expires < unix_seconds());
        let dead = text(PLACE) == Some(&self.place)
            && text(PROCESS).is_some_and(|process| !is_alive(process));
        expired || dead
    }
}

/// Whether the process of this number still is the one that started then.
fn is_alive(process: &str) -> bool {
    let Some((number, start)) = process.split_once(' ') else {
        return true;
    };
    match number.parse().ok().map(start_of) {
        Some(Some(found)) => start == "0" || start == found.to_string(),
        Some(None) => false,
        None => true,
    }
}

/// When a process started, in ticks since the boot; `None` if there is none or it has ended.
fn start_of(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may hold anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    if matches!(fields.first(), Some(&"Z" | &"X")) {
        return None;
    }
    fields.get(19)?.parse().ok()
}

/// The wall clock: a lease has to mean the same to a later process.
fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_nobodys_is_outlived() {
        let own = Owner::this();
        let hour = Duration::from_secs(3600);
        let labels = own.labels("x", hour);
        assert!(!own.outlived(&labels));
        let with = |name: &str, value: &str| {
            let mut labels = labels.clone();
            labels[name] = value.into();
            labels
        };
        // A number that was given to somebody else since, and one that nobody has.
        let own_number = std::process::id();
        assert!(own.outlived(&with(PROCESS, &format!("{own_number} 1"))));
        assert!(own.outlived(&with(PROCESS, "4194305 1")));
        // Another machine's process cannot be judged, but its lease can.
        let mut other = with(PROCESS, "4194305 1");
        other[PLACE] = "elsewhere".into();
        assert!(!own.outlived(&other));
        other[EXPIRES] = "1000".into();
        assert!(own.outlived(&other));
        // Nobody else's container, and no damaged label, is touched.
        assert!(!own.outlived(&json!({EXPIRES: "1000"})));
        assert!(!own.outlived(&Value::Null));
        assert!(!own.outlived(&with(PROCESS, "nonsense")));
        assert!(!own.outlived(&with(EXPIRES, "nonsense")));
    }

    #[test]
    fn a_process_that_has_ended_is_dead_before_it_is_reaped() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let number = child.id();
        while start_of(number).is_some() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(start_of(number), None);
    }
}
