//! `go test`: `--- PASS: NAME (0.00s)`, subtests indented.

use std::collections::BTreeSet;

use super::{
    LineParser, Status, StatusMap,
    lines::{is_duration, rfind, strip_controls, text},
};

/// Reads `go test` logs. Where the run was verbose, only tests that were announced count.
#[derive(Default)]
pub struct Go {
    announced: BTreeSet<String>,
    map: StatusMap,
}

impl LineParser for Go {
    fn line(&mut self, line: &[u8]) {
        let line = strip_controls(line);
        let line = line.trim_ascii();
        if let Some(name) = line.strip_prefix(b"=== RUN") {
            self.announced.insert(text(name.trim_ascii()));
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
            self.map.insert(text(&rest[..at]), status);
        }
    }

    fn finish(self: Box<Self>) -> StatusMap {
        let Go { announced, mut map } = *self;
        if !announced.is_empty() {
            map.retain(|name, _| announced.contains(name));
        }
        map
    }
}
