//! What a patch says of the state after it: which files, which lines, and their text. Enough to
//! know the code when the tree is not at hand; the applying reader is `temper_core::patch`.

/// One hunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hunk {
    /// The file's name after the patch, or before it when it is removed.
    pub(super) file: String,
    /// First changed line of the state after, counted from 1.
    pub(super) first_line: u32,
    /// Last one; for a pure removal the line that it follows.
    pub(super) last_line: u32,
    /// Context and added lines.
    pub(super) text: Vec<u8>,
    /// Context and removed lines.
    pub(super) before: Vec<u8>,
}

/// Reads the hunks of a patch; lines that are no part of one are passed over.
pub(super) fn hunks(patch: &[u8]) -> Vec<Hunk> {
    let mut found: Vec<Hunk> = Vec::new();
    let (mut old, mut new) = (String::new(), String::new());
    let (mut n_old, mut n_new, mut line) = (0u32, 0u32, 0u32);
    // Lines were removed and nothing stands in their place so far.
    let mut removed = false;
    for raw in patch.split_inclusive(|byte| *byte == b'\n') {
        let inside = n_old > 0 || n_new > 0;
        let (first, rest) = (raw.first().copied(), raw.get(1..).unwrap_or_default());
        if !inside {
            if let Some(name) = raw.strip_prefix(b"--- ") {
                old = path(name);
            } else if let Some(name) = raw.strip_prefix(b"+++ ") {
                new = path(name);
            } else if let Some((from, to)) = header(raw) {
                (n_old, line, n_new) = (from.1, to.0, to.1);
                let file = if new.is_empty() {
                    old.clone()
                } else {
                    new.clone()
                };
                found.push(Hunk {
                    file,
                    ..Hunk::default()
                });
            }
            continue;
        }
        let Some(hunk) = found.last_mut() else {
            continue;
        };
        match first {
            Some(b'-') => {
                n_old = n_old.saturating_sub(1);
                removed = true;
                hunk.before.extend_from_slice(rest);
            }
            Some(b'+') => {
                n_new = n_new.saturating_sub(1);
                removed = false;
                touch(hunk, line.max(1));
                line = line.saturating_add(1);
                hunk.text.extend_from_slice(rest);
            }
            Some(b'\\') => {}
            _ => {
                if std::mem::take(&mut removed) {
                    touch(hunk, line.saturating_sub(1).max(1));
                }
                n_old = n_old.saturating_sub(1);
                n_new = n_new.saturating_sub(1);
                line = line.saturating_add(1);
                hunk.text.extend_from_slice(rest);
                hunk.before.extend_from_slice(rest);
            }
        }
        if removed && n_old == 0 && n_new == 0 {
            removed = false;
            touch(hunk, line.saturating_sub(1).max(1));
        }
    }
    found
}

fn touch(hunk: &mut Hunk, line: u32) {
    if hunk.first_line == 0 {
        hunk.first_line = line;
    }
    hunk.last_line = hunk.last_line.max(line).max(hunk.first_line);
}

/// A name in a header: without its `a/` or `b/` and without a time; empty for `/dev/null`.
fn path(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let text = text.split('\t').next().unwrap_or_default().trim_end();
    let text = text
        .strip_prefix('"')
        .and_then(|t| t.strip_suffix('"'))
        .unwrap_or(text);
    if text == "/dev/null" {
        return String::new();
    }
    text.split_once('/')
        .map_or(text, |(_, rest)| rest)
        .to_owned()
}

type Range = (u32, u32);

fn header(line: &[u8]) -> Option<(Range, Range)> {
    let text =
        std::str::from_utf8(line.strip_prefix(b"@@ -")?.split(|b| *b == b'@').next()?).ok()?;
    let (old, new) = text.trim().split_once(" +")?;
    let range = |text: &str| -> Option<Range> {
        match text.split_once(',') {
            Some((start, n)) => Some((start.parse().ok()?, n.parse().ok()?)),
            None => Some((text.parse().ok()?, 1)),
        }
    };
    Some((range(old)?, range(new)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hunks_give_the_state_after() {
        let patch = b"diff --git a/p/m.py b/p/m.py\nindex 1..2 100644\n--- a/p/m.py\n+++ b/p/m.py\n@@ -4,4 +4,4 @@ def f():\n a\n-old\n+new\n b\n c\n@@ -20,3 +20,2 @@\n x\n-- gone\n y\ndiff --git a/n.py b/n.py\nnew file mode 100644\n--- /dev/null\n+++ b/n.py\n@@ -0,0 +1 @@\n+++ b/x\n\\ No newline at end of file\n";
        let got = hunks(patch);
        assert_eq!(got.len(), 3);
        assert_eq!(
            (got[0].file.as_str(), got[0].first_line, got[0].last_line),
            ("p/m.py", 5, 5)
        );
        assert_eq!(got[0].text, b"a\nnew\nb\nc\n");
        assert_eq!((got[1].first_line, got[1].last_line), (20, 20));
        assert_eq!(
            (got[2].file.as_str(), got[2].text.as_slice()),
            ("n.py", &b"++ b/x\n"[..])
        );
    }

    #[test]
    fn damaged_patches_give_what_is_readable() {
        for text in [
            "",
            "@@ -1 +1 @@",
            "@@ -1,9 +1,9 @@\n+a",
            "--- \n+++ \n@@ -a +b @@\n x",
        ] {
            hunks(text.as_bytes());
        }
    }
}
