//! jest with `--verbose`: `✓ name (3 ms)`, `✕ name`, `○ skipped name`.

use super::{
    LineParser, Status, StatusMap,
    lines::{Statuses, is_duration, rfind, strip_controls},
};

/// Reads jest logs. Tests of one name in different `describe` blocks share an id, as upstream.
#[derive(Default)]
pub struct Jest {
    /// Inside what a test printed or why it failed; a file's heading ends it.
    in_report: bool,
    /// Whether a file's heading was seen.
    structured: bool,
    map: Statuses,
}

impl LineParser for Jest {
    fn line(&mut self, line: &[u8]) {
        let line = strip_controls(line);
        let line = line.trim_ascii();
        if line.starts_with(b"PASS ") || line.starts_with(b"FAIL ") {
            self.in_report = false;
            if !self.structured {
                self.structured = true;
                self.map.clear();
            }
        } else if line.starts_with("●".as_bytes()) || line.starts_with(b"console.") {
            self.in_report = true;
        } else if !self.in_report
            && let Some((status, name)) = marked(
                line,
                [
                    ("✓", Status::Passed),
                    ("✕", Status::Failed),
                    ("○", Status::Skipped),
                ],
            )
        {
            let name = match rfind(name, b" (") {
                Some(at)
                    if at > 0
                        && name[at + 2..].strip_suffix(b")").is_some_and(|inside| {
                            is_duration(inside) && !inside.contains(&b'.')
                        }) =>
                {
                    &name[..at]
                }
                _ => name,
            };
            self.map.insert(name.trim_ascii(), status);
        }
    }

    fn finish(self: Box<Self>) -> StatusMap {
        self.map.finish()
    }
}

/// The status and the name of a line that starts with one of the marks and a space.
pub fn marked<'a, const N: usize>(
    line: &'a [u8],
    marks: [(&str, Status); N],
) -> Option<(Status, &'a [u8])> {
    marks.into_iter().find_map(|(mark, status)| {
        let name = line.strip_prefix(mark.as_bytes())?.strip_prefix(b" ")?;
        (!name.is_empty()).then_some((status, name))
    })
}
