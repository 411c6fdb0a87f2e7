//! The Test Anything Protocol: `ok 1 - name`, `not ok 2 - name`.
//!
//! The id is everything after the number, the dash and directives included, as upstream's lists
//! hold it.

use super::{
    LineParser, Status, StatusMap,
    lines::{Statuses, strip_controls},
};

/// Reads TAP.
#[derive(Default)]
pub struct Tap {
    map: Statuses,
}

impl LineParser for Tap {
    fn line(&mut self, line: &[u8]) {
        let line = strip_controls(line);
        let line = line.trim_ascii();
        let (status, rest) = if let Some(rest) = line.strip_prefix(b"ok ") {
            (Status::Passed, rest)
        } else if let Some(rest) = line.strip_prefix(b"not ok ") {
            (Status::Failed, rest)
        } else {
            return;
        };
        let n_digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if n_digits > 0
            && let [b' ', name @ ..] = &rest[n_digits..]
            && !name.is_empty()
        {
            self.map.insert(name, status);
        }
    }

    fn finish(self: Box<Self>) -> StatusMap {
        self.map.finish()
    }
}
