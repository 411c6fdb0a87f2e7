//! Patches as sets of changed lines: which are the same, and how far apart two are.

use std::collections::BTreeMap;

use temper_core::{Digest, Patch, digest::Hasher};

/// The changed lines of a patch: per file and direction, with how often each occurs. Where a line
/// stands and what is around it does not matter, nor does white space at its ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedLines(BTreeMap<(Vec<u8>, bool, Vec<u8>), usize>);

impl ChangedLines {
    /// Reads a patch in git's format. What is not understood (binary changes) counts line by line.
    pub fn of(patch: &Patch) -> Self {
        let mut lines = BTreeMap::new();
        let mut file: Vec<u8> = Vec::new();
        // Lines of a hunk are counted, so that a removed line `-- x` is no file's name.
        let mut left = (0u64, 0u64);
        for line in patch.0.split(|byte| *byte == b'\n') {
            let in_hunk = left != (0, 0);
            let (added, text) = match line.first() {
                Some(b'+') if in_hunk => {
                    left.1 = left.1.saturating_sub(1);
                    (true, &line[1..])
                }
                Some(b'-') if in_hunk => {
                    left.0 = left.0.saturating_sub(1);
                    (false, &line[1..])
                }
                Some(b'\\') if in_hunk => continue,
                _ if in_hunk => {
                    left = (left.0.saturating_sub(1), left.1.saturating_sub(1));
                    continue;
                }
                _ if line.starts_with(b"diff --git ") => {
                    file = line[b"diff --git ".len()..].to_vec();
                    continue;
                }
                _ if line.starts_with(b"@@ ") => {
                    left = hunk_lengths(line);
                    continue;
                }
                _ if line.is_empty()
                    || line.starts_with(b"index ")
                    || line.starts_with(b"--- ")
                    || line.starts_with(b"+++ ")
                    || line.starts_with(b"\\") =>
                {
                    continue;
                }
                // Modes, renames, binary content.
                _ => (true, line),
            };
            let key = (file.clone(), added, text.trim_ascii().to_vec());
            *lines.entry(key).or_default() += 1;
        }
        ChangedLines(lines)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.values().sum()
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Changed lines that only one of two has, over all lines that either has: 0 for the same
    /// changes, 1 for nothing in common. Two empty ones are the same.
    pub fn distance(&self, other: &ChangedLines) -> f64 {
        let mut shared = 0;
        for (line, n) in &self.0 {
            shared += other.0.get(line).map_or(0, |m| *n.min(m));
        }
        let all = self.len() + other.len() - shared;
        if all == 0 {
            return 0.0;
        }
        1.0 - shared as f64 / all as f64
    }
}

/// The digest of a patch's changed lines.
pub fn normalised_digest(patch: &Patch) -> Digest {
    let mut hasher = Hasher::default();
    for ((file, added, text), n) in &ChangedLines::of(patch).0 {
        hasher.field(file);
        hasher.field(&[u8::from(*added)]);
        hasher.field(text);
        hasher.field(&(*n as u64).to_le_bytes());
    }
    hasher.finish()
}

/// Old and new lines of `@@ -a,b +c,d @@`; a length that is left out is 1.
fn hunk_lengths(line: &[u8]) -> (u64, u64) {
    let mut words = line.split(|byte| *byte == b' ').skip(1);
    let mut length = || {
        let word = words.next().unwrap_or_default();
        let mut parts = word.splitn(2, |byte| *byte == b',').skip(1);
        let Some(digits) = parts.next() else { return 1 };
        let digits = std::str::from_utf8(digits).unwrap_or_default();
        digits.parse().unwrap_or(1)
    };
    (length(), length())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(text: &str) -> Patch {
        Patch(text.as_bytes().to_vec().into())
    }

    const ONE: &str = "diff --git a/a.py b/a.py\nindex 1..2 100644\n--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n def f():\n-    return 1\n+    return 2\n x\n";

    #[test]
    fn position_and_context_do_not_matter() {
        let moved = ONE
            .replace("@@ -1,3 +1,3 @@", "@@ -11,2 +11,2 @@ class A:")
            .replace(" def f():\n", "")
            .replace("index 1..2", "index 3..4");
        assert_eq!(
            normalised_digest(&patch(ONE)),
            normalised_digest(&patch(&moved))
        );
        for other in [
            ONE.replace("return 2", "return 3"),
            ONE.replace("a.py", "b.py"),
            ONE.replace("@@ -1,3 +1,3 @@", "@@ -1,3 +1,4 @@")
                .replace(" x\n", "+    return 2\n x\n"),
            String::new(),
        ] {
            assert_ne!(
                normalised_digest(&patch(ONE)),
                normalised_digest(&patch(&other)),
                "{other}"
            );
        }
    }

    #[test]
    fn a_removed_comment_is_no_file_name() {
        let text = "diff --git a/a.sql b/a.sql\n--- a/a.sql\n+++ b/a.sql\n@@ -1,2 +1 @@\n--- b/other\n x\n";
        assert_eq!(ChangedLines::of(&patch(text)).len(), 1);
    }

    #[test]
    fn distance_is_a_share_of_lines() {
        let lines = |text: &str| ChangedLines::of(&patch(text));
        let (one, other) = (lines(ONE), lines(&ONE.replace("return 2", "return 3")));
        assert_eq!(one.distance(&one), 0.0);
        assert!((one.distance(&other) - 2.0 / 3.0).abs() < 1e-12);
        assert_eq!(one.distance(&lines("")), 1.0);
        assert_eq!(lines("").distance(&lines("")), 0.0);
    }
}
