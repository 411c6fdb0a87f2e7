//! The readings of SWE-bench 4.1.0, SWE-bench 5.0.2 and SWE-smith 0.0.9, as they are: any line that
//! starts with a status word makes a test, and ids end at a space. They exist so that numbers can
//! be compared with published ones; text that a test prints can make tests and flip them.

use super::{
    LineParser, Status, StatusMap,
    lines::{Statuses, find},
    pytest::shorten_path_option,
};

/// SWE-bench's readings of pytest.
pub struct Upstream {
    kind: Kind,
    version: u8,
    map: Statuses,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Pytest,
    Options,
    PytestV2,
    Matplotlib,
    Seaborn,
}

const WORDS: [(&str, Status); 5] = [
    ("FAILED", Status::Failed),
    ("PASSED", Status::Passed),
    ("SKIPPED", Status::Skipped),
    ("ERROR", Status::Error),
    ("XFAIL", Status::ExpectedFailure),
];

impl Upstream {
    fn new(kind: Kind, version: u8) -> Self {
        Upstream {
            kind,
            version,
            map: Statuses::default(),
        }
    }

    /// `parse_log_pytest`.
    pub fn pytest(version: u8) -> Self {
        Upstream::new(Kind::Pytest, version)
    }

    /// `parse_log_pytest_options`.
    pub fn options(version: u8) -> Self {
        Upstream::new(Kind::Options, version)
    }

    /// `parse_log_pytest_v2`.
    pub fn pytest_v2(version: u8) -> Self {
        Upstream::new(Kind::PytestV2, version)
    }

    /// `parse_log_matplotlib`.
    pub fn matplotlib(version: u8) -> Self {
        Upstream::new(Kind::Matplotlib, version)
    }

    /// `parse_log_seaborn`.
    pub fn seaborn() -> Self {
        Upstream::new(Kind::Seaborn, 4)
    }

    /// Records a status by its word. A word that only starts with a status (`PASSEDx`) makes an
    /// entry upstream whose status is that word; it decides nothing there, so none is made here.
    fn record(&mut self, id: &str, word: &str) {
        match WORDS.iter().find(|(name, _)| *name == word) {
            Some((_, status)) => self.map.insert(id.as_bytes(), *status),
            None => self.map.remove(id.as_bytes()),
        }
    }

    /// Version 5 passes over `SKIPPED [3] path:line: reason`, which names no test.
    fn is_folded_skip(&self, word: &str, id: &str) -> bool {
        self.version == 5 && word == "SKIPPED" && is_skip_count(id)
    }

    fn plain(&mut self, line: &str) {
        if !starts_with_status(line) {
            return;
        }
        let joined;
        let line = if line.starts_with("FAILED") {
            joined = line.replace(" - ", " ");
            &joined
        } else {
            line
        };
        let mut words = line.split_whitespace();
        if let (Some(word), Some(id)) = (words.next(), words.next())
            && !self.is_folded_skip(word, id)
        {
            match self.kind {
                Kind::Options => self.record(&shorten_path_option(id.to_owned()), word),
                _ => self.record(id, word),
            }
        }
    }

    fn v2(&mut self, line: &str) {
        let line = without_codes(line);
        if starts_with_status(&line) {
            let line = match (line.starts_with("FAILED"), self.version) {
                (true, 4) => line.replace(" - ", " "),
                (true, _) => line.split(" - ").next().unwrap_or_default().to_owned(),
                (false, _) => line,
            };
            let words: Vec<_> = line.split_whitespace().collect();
            if let [word, id, ..] = words[..]
                && !self.is_folded_skip(word, id)
            {
                if self.version == 4 {
                    self.record(id, word);
                } else {
                    self.record(&words[1..].join(" "), word);
                }
            }
        } else if WORDS.iter().any(|(word, _)| line.ends_with(word)) {
            let words: Vec<_> = line.split_whitespace().collect();
            if words.len() >= 2 {
                if self.version == 4 {
                    self.record(words[0], words[1]);
                } else {
                    let last = words.len() - 1;
                    self.record(&words[..last].join(" "), words[last]);
                }
            }
        }
    }

    fn seaborn_line(&mut self, line: &str) {
        let words: Vec<_> = line.split_whitespace().collect();
        if line.starts_with("FAILED") {
            if let Some(id) = words.get(1) {
                self.map.insert(id.as_bytes(), Status::Failed);
            }
        } else if line.contains(" PASSED ") {
            if words.get(1) == Some(&"PASSED") {
                self.map.insert(words[0].as_bytes(), Status::Passed);
            }
        } else if line.starts_with("PASSED")
            && let Some(id) = words.get(1)
        {
            self.map.insert(id.as_bytes(), Status::Passed);
        }
    }
}

impl Upstream {
    /// A cheap look that rules most lines out.
    fn may_count(&self, line: &[u8]) -> bool {
        let (Some(first), Some(last)) = (line.first(), line.last()) else {
            return false;
        };
        let starts = matches!(first, b'P' | b'F' | b'S' | b'E' | b'X');
        match self.kind {
            Kind::Pytest | Kind::Options | Kind::Matplotlib => starts,
            // Codes that are taken out can stand at either end.
            Kind::PytestV2 => {
                starts
                    || matches!(first, b'[' | 0x01..=0x1f)
                    || matches!(last, b'D' | b'R' | b'L' | b'm' | 0x01..=0x1f)
            }
            Kind::Seaborn => starts || find(line, b" PASSED ").is_some(),
        }
    }
}

fn starts_with_status(line: &str) -> bool {
    WORDS.iter().any(|(word, _)| line.starts_with(word))
}

fn is_skip_count(id: &str) -> bool {
    id.strip_prefix('[')
        .and_then(|id| id.strip_suffix(']'))
        .is_some_and(|count| !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The line without `[31m`-like text and without control characters, in this order, as upstream.
fn without_codes(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(open) = rest.find('[') {
        let after = &rest[open + 1..];
        let n_digits = after.bytes().take_while(u8::is_ascii_digit).count();
        out.push_str(&rest[..open]);
        if n_digits > 0 && after[n_digits..].starts_with('m') {
            rest = &after[n_digits + 1..];
        } else {
            out.push('[');
            rest = after;
        }
    }
    out.push_str(rest);
    out.retain(|character| !('\u{1}'..='\u{1f}').contains(&character));
    out
}

impl LineParser for Upstream {
    fn line(&mut self, line: &[u8]) {
        if !self.may_count(line) {
            return;
        }
        let line = String::from_utf8_lossy(line);
        match self.kind {
            Kind::Pytest | Kind::Options => self.plain(&line),
            Kind::Matplotlib => self.plain(
                &line
                    .replace("MouseButton.LEFT", "1")
                    .replace("MouseButton.RIGHT", "3"),
            ),
            Kind::PytestV2 => self.v2(&line),
            Kind::Seaborn => self.seaborn_line(&line),
        }
    }

    fn finish(self: Box<Self>) -> StatusMap {
        self.map.finish()
    }
}

/// SWE-smith's reading of a verbose pytest run: `ID STATUS`, the id without a space.
#[derive(Default)]
pub struct SweSmith {
    map: Statuses,
}

impl LineParser for SweSmith {
    fn line(&mut self, line: &[u8]) {
        let n_id = line
            .iter()
            .take_while(|byte| !byte.is_ascii_whitespace())
            .count();
        let (id, rest) = line.split_at(n_id);
        let status = rest.trim_ascii_start();
        if id.is_empty() || status.len() == rest.len() {
            return;
        }
        for (word, found) in WORDS {
            if status.starts_with(word.as_bytes()) {
                self.map.insert(id, found);
            }
        }
    }

    fn finish(self: Box<Self>) -> StatusMap {
        self.map.finish()
    }
}
