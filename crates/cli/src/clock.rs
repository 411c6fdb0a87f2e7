//! The one place that reads the clock.

use std::time::SystemTime;

/// The time now as RFC 3339, in UTC, with milliseconds.
pub fn now() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

/// The time now as a file name: `2026-01-31T12-30-59`.
pub fn file_stamp() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now())
        .to_string()
        .trim_end_matches('Z')
        .replace(':', "-")
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_secs())
}

/// Seconds since 1970, with their fractions.
pub fn unix_time() -> f64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0.0, |elapsed| elapsed.as_secs_f64())
}
