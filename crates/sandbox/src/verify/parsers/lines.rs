//! What parsers share: taking terminal control sequences out of a line, and small searches.

use std::{borrow::Cow, collections::HashMap};

use super::{Status, StatusMap};

/// Statuses while a log is read: most lines of a long log name a test that is known already, which
/// costs no allocation here.
#[derive(Default)]
pub struct Statuses(HashMap<Vec<u8>, Status>);

impl Statuses {
    /// Sets the last status of a test.
    pub fn insert(&mut self, id: &[u8], status: Status) {
        match self.0.get_mut(id) {
            Some(known) => *known = status,
            None => {
                self.0.insert(id.to_vec(), status);
            }
        }
    }

    /// Forgets a test.
    pub fn remove(&mut self, id: &[u8]) {
        self.0.remove(id);
    }

    /// Forgets all tests.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes everything out of `later`, which wins.
    pub fn append(&mut self, later: &mut Statuses) {
        self.0.extend(later.0.drain());
    }

    /// Keeps the tests that `keeps` wants.
    pub fn retain(&mut self, mut keeps: impl FnMut(&[u8]) -> bool) {
        self.0.retain(|id, _| keeps(id));
    }

    /// Adds a test that is not known yet.
    pub fn insert_new(&mut self, id: &[u8], status: Status) {
        if !self.0.contains_key(id) {
            self.0.insert(id.to_vec(), status);
        }
    }

    /// The finished map.
    pub fn finish(self) -> StatusMap {
        self.0
            .into_iter()
            .map(|(id, status)| (text(&id), status))
            .collect()
    }
}

/// The line without terminal control sequences (ECMA-48: `ESC [ … final`, `ESC ] … BEL`, two-byte
/// escapes) and without a carriage return at its end.
pub fn strip_controls(line: &[u8]) -> Cow<'_, [u8]> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if !line.contains(&0x1b) {
        return Cow::Borrowed(line);
    }
    let mut out = Vec::with_capacity(line.len());
    let mut rest = line;
    while let Some(escape) = rest.iter().position(|byte| *byte == 0x1b) {
        out.extend_from_slice(&rest[..escape]);
        let sequence = &rest[escape + 1..];
        rest = match sequence.first() {
            Some(b'[') => {
                let end = sequence[1..]
                    .iter()
                    .position(|byte| !(0x20..=0x3f).contains(byte));
                // A sequence that breaks off or holds a foreign byte ends there.
                match end {
                    Some(end) if (0x40..=0x7e).contains(&sequence[1 + end]) => &sequence[end + 2..],
                    Some(end) => &sequence[end + 1..],
                    None => &[],
                }
            }
            Some(b']') => {
                let end = sequence
                    .iter()
                    .position(|byte| matches!(byte, 0x07 | 0x1b))
                    .unwrap_or(sequence.len());
                match sequence.get(end) {
                    Some(0x07) => &sequence[end + 1..],
                    _ => &sequence[end..],
                }
            }
            Some(b' '..=b'/') => sequence.get(2..).unwrap_or_default(),
            Some(0x30..=0x7e) => &sequence[1..],
            _ => sequence,
        };
    }
    out.extend_from_slice(rest);
    Cow::Owned(out)
}

/// The place of `needle` in `line`.
pub fn find(line: &[u8], needle: &[u8]) -> Option<usize> {
    memchr::memmem::find(line, needle)
}

/// The last place of `needle` in `line`.
pub fn rfind(line: &[u8], needle: &[u8]) -> Option<usize> {
    memchr::memmem::rfind(line, needle)
}

/// Text of an id.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether the bytes are a duration such as `0.01s`, `12 ms`, `1.2 s` or `3m 4s`.
pub fn is_duration(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(u8::is_ascii_digit)
        && bytes
            .last()
            .is_some_and(|byte| matches!(byte, b's' | b'm' | b'h'))
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b' ' | b's' | b'm' | b'h'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_go_and_text_stays() {
        let check = |line: &str, expected: &str| {
            assert_eq!(text(&strip_controls(line.as_bytes())), expected, "{line:?}");
        };
        check("\x1b[32mPASSED\x1b[0m a\x1b[1m[b]\x1b[0m", "PASSED a[b]");
        check("\x1b[38;5;208mx\x1b[K\r", "x");
        check("\x1b]8;;http://a\x07link\x1b]8;;\x1b\\", "link");
        check("\x1b(Bx\x1b7y", "xy");
        check("ends in \x1b", "ends in ");
        check("ends in \x1b[3", "ends in ");
        check("bad \x1b[3\u{1}x", "bad \u{1}x");
        check("é \x1b[0mé", "é é");
    }
}
