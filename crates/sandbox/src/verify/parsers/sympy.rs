//! SymPy's own runner: `test_name ok`, `test_name F`, `test_name E`, and a heading of underscores
//! with `path.py:test_name` for each failure.

use super::{
    LineParser, Status, StatusMap,
    lines::{Statuses, rfind, strip_controls},
};

/// Reads logs of `bin/test`. Failures are listed once by path and once by name, as upstream.
#[derive(Default)]
pub struct Sympy {
    failures: Statuses,
    map: Statuses,
}

impl LineParser for Sympy {
    fn line(&mut self, line: &[u8]) {
        let line = strip_controls(line);
        if line.starts_with(b"_")
            && line.trim_ascii_end().ends_with(b"_")
            && let Some(title) = title(&line)
            && let Some(at) = rfind(title, b".py:")
        {
            let id = [&title[..at], b".py:", &title[at + 4..]].concat();
            self.failures.insert(&id, Status::Failed);
            return;
        }
        let line = line.trim_ascii();
        if !line.starts_with(b"test_") {
            return;
        }
        let status = if line.ends_with(b" E") {
            Status::Error
        } else if line.ends_with(b" F") {
            Status::Failed
        } else if line.ends_with(b" ok") {
            Status::Passed
        } else {
            return;
        };
        let end = line
            .iter()
            .position(u8::is_ascii_whitespace)
            .unwrap_or(line.len());
        self.map.insert(&line[..end], status);
    }

    fn finish(self: Box<Self>) -> StatusMap {
        let Sympy { failures, mut map } = *self;
        for (id, status) in failures.finish() {
            map.insert_new(id.as_bytes(), status);
        }
        map.finish()
    }
}

/// The words between the underscores.
fn title(line: &[u8]) -> Option<&[u8]> {
    let start = line.iter().position(|byte| *byte != b'_')?;
    let end = rfind(line, b" _")?;
    line.get(start..end)?.strip_prefix(b" ")
}
