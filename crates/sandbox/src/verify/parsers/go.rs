//! `go test`: `--- PASS: NAME (0.00s)`, subtests indented.

use std::collections::HashSet;

use super::{
    LineParser, Status, StatusMap,
    lines::{Statuses, is_duration, rfind, strip_controls},
};

/// Reads `go test` logs. Where the run was verbose, only tests that were announced count.
#[derive(Default)]
pub struct Go {
    announced: HashSet<Vec<u8>>,
    map: Statuses,
}

impl LineParser for Go {
    fn line(&mut self, line: &[u8]) {
        let line = strip_controls(line);
        let line = line.trim_ascii();
        if let Some(name) = line.strip_prefix(b"=== RUN") {
            self.announced.insert(name.trim_ascii().to_vec());
            return;
        }
        let Some(rest) = line.strip_prefix(b"--- ") else {
            return;
        };
        let (status, rest) = match rest {
            [b'P', b'A', b'S', b'S', b':', b' ', rest @ ..] => (Status::Passed, rest),
            [b'F', b'A', b'I', b'L', b':', b' ', rest @ ..] => (Status::Failed, rest),
            [b'S', b'K', b'I', b'P', b':', b' ', rest @ ..] => (Status::Skipped, rest),
            _ => return,
        };
        if let Some(at) = rfind(rest, b" (")
            && let Some(duration) = rest[at + 2..].strip_suffix(b")")
            && is_duration(duration)
        {
            self.map.insert(&rest[..at], status);
        }
    }

    fn finish(self: Box<Self>) -> StatusMap {
        let Go { announced, mut map } = *self;
        if !announced.is_empty() {
            map.retain(|name| announced.contains(name));
        }
        map.finish()
    }
}
