//! pytest's output: the short test summary, and the progress listing of a verbose run.
//!
//! A log may hold several sessions. Within one, the last short summary counts, because what a test
//! printed can only stand before it. A log without any of pytest's headings (a summary cut out of
//! its log) is read as if all of it were a summary.

use super::{
    LineParser, Status, StatusMap,
    lines::{Statuses, find, strip_controls, text},
};

/// Reads pytest logs.
pub struct Pytest {
    rename: Option<fn(String) -> String>,
    keeps: fn(Status) -> bool,
    region: Region,
    /// Whether a heading was seen at all.
    structured: bool,
    /// Whether the session announced itself, so that a second summary cannot be another session's.
    announced: bool,
    finished_sessions: Statuses,
    progress: Statuses,
    summary: Statuses,
    unstructured: Statuses,
}

#[derive(Clone, Copy, PartialEq)]
enum Region {
    Outside,
    Progress,
    Report,
    Summary,
}

impl Pytest {
    fn new(rename: Option<fn(String) -> String>, keeps: fn(Status) -> bool) -> Self {
        Pytest {
            rename,
            keeps,
            region: Region::Outside,
            structured: false,
            announced: false,
            finished_sessions: Statuses::default(),
            progress: Statuses::default(),
            summary: Statuses::default(),
            unstructured: Statuses::default(),
        }
    }

    /// Ids as they are.
    pub fn plain() -> Self {
        Pytest::new(None, |_| true)
    }

    /// A parameter that is a path keeps only its last component.
    pub fn options() -> Self {
        Pytest::new(Some(shorten_path_option), |_| true)
    }

    /// Mouse buttons are written as numbers, as older versions of the enumeration printed them.
    pub fn matplotlib() -> Self {
        Pytest::new(
            Some(|id| {
                id.replace("MouseButton.LEFT", "1")
                    .replace("MouseButton.RIGHT", "3")
            }),
            |_| true,
        )
    }

    /// Only passed and failed tests are kept.
    pub fn seaborn() -> Self {
        Pytest::new(None, |status| {
            matches!(status, Status::Passed | Status::Failed)
        })
    }

    fn heading(&mut self, title: &[u8]) {
        if title == b"test session starts" {
            self.end_session();
            self.announced = true;
            self.region = Region::Progress;
        } else if title == b"short test summary info" {
            if self.announced {
                self.summary.clear();
            } else {
                self.end_session();
            }
            self.region = Region::Summary;
        } else if is_result(title) {
            self.region = Region::Outside;
        } else if self.announced {
            self.region = Region::Report;
        } else {
            return;
        }
        self.structured = true;
    }

    fn end_session(&mut self) {
        self.finished_sessions.append(&mut self.progress);
        self.finished_sessions.append(&mut self.summary);
        self.announced = false;
    }
}

impl LineParser for Pytest {
    fn line(&mut self, line: &[u8]) {
        // Most lines of a long log are none of ours; they cost one look at their first byte.
        let first = line.first().copied().unwrap_or(0);
        let may_count = match self.region {
            Region::Progress => true,
            Region::Summary => matches!(first, b'=' | b'P' | b'F' | b'S' | b'E' | b'X' | 0x1b),
            Region::Outside if !self.structured => {
                matches!(first, b'=' | b'P' | b'F' | b'S' | b'E' | b'X' | 0x1b)
            }
            Region::Outside | Region::Report => matches!(first, b'=' | 0x1b),
        };
        if !may_count {
            return;
        }
        let line = strip_controls(line);
        if let Some(title) = heading(&line) {
            self.heading(title);
            return;
        }
        let (found, map) = match self.region {
            Region::Summary => (summary_line(&line), &mut self.summary),
            Region::Progress => (progress_line(&line), &mut self.progress),
            Region::Outside if !self.structured => (summary_line(&line), &mut self.unstructured),
            Region::Outside | Region::Report => return,
        };
        if let Some((id, status)) = found
            && (self.keeps)(status)
        {
            match self.rename {
                None => map.insert(id, status),
                Some(rename) => map.insert(rename(text(id)).as_bytes(), status),
            }
        }
    }

    fn finish(mut self: Box<Self>) -> StatusMap {
        if !self.structured {
            return self.unstructured.finish();
        }
        self.end_session();
        self.finished_sessions.finish()
    }
}

/// The title of `==== title ====`.
fn heading(line: &[u8]) -> Option<&[u8]> {
    let inner = line.strip_prefix(b"=")?.trim_ascii_end();
    let inner = inner.strip_suffix(b"=")?;
    let start = inner.iter().position(|byte| *byte != b'=')?;
    let end = inner.iter().rposition(|byte| *byte != b'=')?;
    inner[start..=end].strip_prefix(b" ")?.strip_suffix(b" ")
}

/// `2 failed, 1 passed in 0.12s`, `no tests ran in 0.01 seconds`.
fn is_result(title: &[u8]) -> bool {
    (title.first().is_some_and(u8::is_ascii_digit) || title.starts_with(b"no tests ran"))
        && find(title, b" in ").is_some()
}

/// `STATUS id[ - reason]`.
fn summary_line(line: &[u8]) -> Option<(&[u8], Status)> {
    let (status, rest) = leading_status(line)?;
    let id = match status {
        Status::Passed => rest,
        _ => without_reason(rest),
    };
    is_id(id).then_some((id, status))
}

fn leading_status(line: &[u8]) -> Option<(Status, &[u8])> {
    WORDS.iter().find_map(|(word, status)| {
        let rest = line.strip_prefix(*word)?.strip_prefix(b" ")?;
        Some((*status, rest.trim_ascii()))
    })
}

const WORDS: [(&[u8], Status); 5] = [
    (b"PASSED", Status::Passed),
    (b"FAILED", Status::Failed),
    (b"SKIPPED", Status::Skipped),
    (b"ERROR", Status::Error),
    (b"XFAIL", Status::ExpectedFailure),
];

/// The id before ` - reason`. The reason starts at the first ` - ` after the bracket that closes
/// the parameters, which may hold brackets and ` - ` themselves. Where brackets inside parameters
/// do not balance, the first closing one that ` - ` or the line's end follows is taken.
fn without_reason(rest: &[u8]) -> &[u8] {
    let dash = find(rest, b" - ");
    let open = match (rest.iter().position(|byte| *byte == b'['), dash) {
        (Some(open), Some(dash)) if open < dash => open,
        (Some(open), None) => open,
        (_, dash) => return dash.map_or(rest, |dash| &rest[..dash]),
    };
    let mut depth = 0_i64;
    let mut first = None;
    for (at, byte) in rest.iter().enumerate().skip(open) {
        match byte {
            b'[' => depth += 1,
            b']' => {
                depth -= 1;
                let after = &rest[at + 1..];
                if after.is_empty() || after.starts_with(b" - ") {
                    if depth == 0 {
                        return &rest[..=at];
                    }
                    first.get_or_insert(at);
                }
            }
            _ => {}
        }
    }
    first.map_or(rest, |at| &rest[..=at])
}

/// A test's id starts with a path: it has a dot or a slash before `::`, or is nothing but a path
/// (a module that could not be collected). `[1] a.py:3` of folded skips is none.
fn is_id(id: &[u8]) -> bool {
    let path = match find(id, b"::") {
        Some(end) => &id[..end],
        None if id.contains(&b' ') => return false,
        None => id,
    };
    !path.is_empty()
        && !path.starts_with(b"[")
        && !path.ends_with(b":")
        && path.iter().any(|byte| matches!(byte, b'.' | b'/'))
}

/// `id STATUS[ (reason)][ [ 10%]]`, or of a distributed run `[gw0] [ 10%] STATUS id`.
fn progress_line(line: &[u8]) -> Option<(&[u8], Status)> {
    let mut line = line.trim_ascii_end();
    if let Some(rest) = line.strip_prefix(b"[gw") {
        let rest = &rest[find(rest, b"] ")? + 2..];
        let rest = match rest.strip_prefix(b"[") {
            Some(percent) => percent[find(percent, b"] ")? + 2..].trim_ascii_start(),
            None => rest,
        };
        let (status, id) = leading_status(rest)?;
        return is_id(id).then_some((id, status));
    }
    if line.ends_with(b"]")
        && let Some(open) = line.iter().rposition(|byte| *byte == b'[')
        && line[open + 1..line.len() - 1].iter().all(|byte| {
            byte.is_ascii_digit() || matches!(byte, b' ' | b'%' | b'/' | b'.' | b's' | b'm')
        })
        && line[..open].ends_with(b" ")
    {
        line = line[..open].trim_ascii_end();
    }
    let (at, status) = status_at_end(line)?;
    let id = line[..at].trim_ascii_end();
    (find(id, b"::").is_some() && is_id(id)).then_some((id, status))
}

/// Where the status word stands that ends the line or is followed by its reason in brackets: of
/// several such words the first, since a reason can hold one.
fn status_at_end(line: &[u8]) -> Option<(usize, Status)> {
    let follows_space = |at: usize| at > 0 && line[at - 1] == b' ';
    if !line.ends_with(b")") {
        return WORDS.iter().find_map(|(word, status)| {
            let at = line.strip_suffix(*word)?.len();
            follows_space(at).then_some((at, *status))
        });
    }
    WORDS
        .iter()
        .filter_map(|(word, status)| {
            let at = memchr::memmem::find_iter(line, word)
                .find(|at| follows_space(*at) && line[at + word.len()..].starts_with(b" ("))?;
            Some((at, *status))
        })
        .min_by_key(|(at, _)| *at)
}

/// `a[/x/y]` becomes `a[/y]`; URLs and patterns stay.
pub fn shorten_path_option(id: String) -> String {
    let Some(open) = id.find('[') else {
        return id;
    };
    let Some(close) = id.rfind(']').filter(|close| *close > open) else {
        return id;
    };
    let option = &id[open + 1..close];
    if !option.starts_with('/') || option.starts_with("//") || option.contains('*') {
        return format!("{}[{option}]", &id[..open]);
    }
    let last = option.rsplit('/').next().unwrap_or(option);
    format!("{}[/{last}]", &id[..open])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_starts_after_the_bracket_that_closes_the_parameters() {
        let check = |line: &str, expected: &str| {
            assert_eq!(text(without_reason(line.as_bytes())), expected);
        };
        check(
            "t.py::test_b[a - b] - AssertionError: boom - bang",
            "t.py::test_b[a - b]",
        );
        check("t.py::test_b - assert [1] == [2] - x", "t.py::test_b");
        check("t.py::test_b[a - b]", "t.py::test_b[a - b]");
        check("t.py::test_b[[1] - [2]] - E", "t.py::test_b[[1] - [2]]");
        check("t.py::test_b[]] - E", "t.py::test_b[]]");
        check("t.py::test_b[[]", "t.py::test_b[[]");
        check("t.py::test_b[a - b", "t.py::test_b[a - b");
    }

    #[test]
    fn progress_lines_give_whole_ids() {
        let check = |line: &str, expected: Option<(&str, Status)>| {
            let found = progress_line(line.as_bytes()).map(|(id, status)| (text(id), status));
            assert_eq!(
                found,
                expected.map(|(id, status)| (id.to_owned(), status)),
                "{line}"
            );
        };
        check(
            "t.py::test_a PASSED      [ 50%]",
            Some(("t.py::test_a", Status::Passed)),
        );
        check(
            "t.py::test_a[x y] FAILED [100%]",
            Some(("t.py::test_a[x y]", Status::Failed)),
        );
        check(
            "t.py::test_a SKIPPED (no PASSED here) [ 1%]",
            Some(("t.py::test_a", Status::Skipped)),
        );
        check(
            "t.py::test_a[1] PASSED",
            Some(("t.py::test_a[1]", Status::Passed)),
        );
        check(
            "[gw1] [ 50%] PASSED t.py::test_a[x y] ",
            Some(("t.py::test_a[x y]", Status::Passed)),
        );
        check("t.py::test_a XPASS [ 3%]", None);
        check("t.py ..F [100%]", None);
        check("PASSED", None);
        check("x PASSED", None);
    }
}
