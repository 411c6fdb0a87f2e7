//! `mvn test -Dtest=NAME`, one run per test: Maven does not print tests that pass, so each test is
//! run alone under `set -x`, and the build's result is the test's.

use std::collections::VecDeque;

use super::{
    LineParser, Status, StatusMap,
    lines::{rfind, strip_controls, text},
};

/// Reads Maven logs. Commands and results are matched in order, either of which may run ahead.
#[derive(Default)]
pub struct Maven {
    pending: VecDeque<String>,
    early: VecDeque<Status>,
    map: StatusMap,
}

impl LineParser for Maven {
    fn line(&mut self, line: &[u8]) {
        let line = strip_controls(line);
        let line = line.trim_ascii();
        if let Some(at) = rfind(line, b"-Dtest=") {
            let name = &line[at + 7..];
            let end = name
                .iter()
                .position(u8::is_ascii_whitespace)
                .unwrap_or(name.len());
            if end > 0 {
                self.pending.push_back(text(&name[..end]));
            }
        }
        let status = if line.ends_with(b"BUILD SUCCESS") {
            Status::Passed
        } else if line.ends_with(b"BUILD FAILURE") {
            Status::Failed
        } else {
            return;
        };
        match self.pending.pop_front() {
            Some(name) => {
                self.map.insert(name, status);
            }
            None => self.early.push_back(status),
        }
    }

    fn finish(self: Box<Self>) -> StatusMap {
        let Maven {
            pending,
            early,
            mut map,
        } = *self;
        map.extend(pending.into_iter().zip(early));
        map
    }
}
