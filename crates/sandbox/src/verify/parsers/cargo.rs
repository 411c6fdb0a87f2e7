//! `cargo test`: `test NAME ... ok`, between `running N tests` and `failures:`.

use super::{
    LineParser, Status, StatusMap,
    lines::{Statuses, rfind, strip_controls},
};

/// Reads `cargo test` logs. What failed tests printed follows `failures:` and is passed over.
#[derive(Default)]
pub struct Cargo {
    in_failures: bool,
    map: Statuses,
}

impl LineParser for Cargo {
    fn line(&mut self, line: &[u8]) {
        let line = strip_controls(line);
        let line = line.trim_ascii();
        if line == b"failures:" {
            self.in_failures = true;
        } else if line.starts_with(b"running ") && line.ends_with(b"tests")
            || line == b"running 1 test"
        {
            self.in_failures = false;
        } else if let Some(rest) = line.strip_prefix(b"test ")
            && !self.in_failures
            && let Some(at) = rfind(rest, b" ... ")
        {
            let status = match rest[at + 5..].trim_ascii() {
                b"ok" => Status::Passed,
                b"FAILED" => Status::Failed,
                ignored if ignored.starts_with(b"ignored") => Status::Skipped,
                _ => return,
            };
            self.map.insert(rest[..at].trim_ascii(), status);
        }
    }

    fn finish(self: Box<Self>) -> StatusMap {
        self.map.finish()
    }
}
