//! `gradle test` with test logging on: `com.example.Test > method PASSED`.

use super::{
    LineParser, Status, StatusMap,
    lines::{strip_controls, text},
};

/// Reads Gradle logs. A name whose status comes on a later line of its own is waited for.
#[derive(Default)]
pub struct Gradle {
    pending: Option<String>,
    map: StatusMap,
}

impl LineParser for Gradle {
    fn line(&mut self, line: &[u8]) {
        let line = strip_controls(line);
        let line = line.trim_ascii();
        let (name, status) = if let Some(name) = line.strip_suffix(b"PASSED") {
            (name, Status::Passed)
        } else if let Some(name) = line.strip_suffix(b"FAILED") {
            (name, Status::Failed)
        } else {
            if is_name(line) {
                self.pending = Some(text(line));
            }
            return;
        };
        if name.is_empty() {
            if let Some(name) = self.pending.take() {
                self.map.insert(name, status);
            }
        } else if name.ends_with(b" ") && !name.starts_with(b">") && name.trim_ascii().len() > 1 {
            self.map.insert(text(name.trim_ascii()), status);
            self.pending = None;
        }
    }

    fn finish(self: Box<Self>) -> StatusMap {
        self.map
    }
}

/// `Class > method`, nothing else.
fn is_name(line: &[u8]) -> bool {
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    matches!(
        (words.next(), words.next(), words.next(), words.next()),
        (Some(class), Some(b">"), Some(_), None) if !class.starts_with(b">")
    )
}
