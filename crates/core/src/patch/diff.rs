//! Writes git's unified format.

use imara_diff::{Algorithm, Diff, InternedInput, sources::byte_lines};
use sha1::Digest as _;

use super::{BinaryHunk, Content, FilePatch, Hunk, HunkLine, LineKind, Mode, PatchError, base85};
use crate::{Entry, TreePath};

/// Lines of context around a change.
const CONTEXT: u32 = 3;

/// A file of more lines than this is replaced as a whole: a diff of it is of no use to anybody.
const MAX_LINES: usize = 1_000_000;

/// Writes what turns `before` into `after`; nothing when they are equal.
pub(super) fn write_file(
    path: &TreePath,
    before: Option<&Entry>,
    after: Option<&Entry>,
    out: &mut Vec<u8>,
) {
    if before == after {
        return;
    }
    // A change between file and link is a removal and a new file, as in git.
    if let (Some(old), Some(new)) = (before, after)
        && (Mode::of(old) == Mode::Symlink) != (Mode::of(new) == Mode::Symlink)
    {
        write_file(path, before, None, out);
        write_file(path, None, after, out);
        return;
    }
    let (old, new) = (content(before), content(after));
    let content = if is_binary(old) || is_binary(new) {
        Content::Binary {
            forward: BinaryHunk::Literal(new.to_vec()),
            backward: Some(BinaryHunk::Literal(old.to_vec())),
        }
    } else {
        Content::Text(hunks(old, new))
    };
    FilePatch {
        line: 0,
        old: before.map(|_| path.clone()),
        new: after.map(|_| path.clone()),
        copied: false,
        old_mode: before.map(Mode::of),
        new_mode: after.map(Mode::of),
        content,
    }
    .write_with_index(Some((before.map(content_id), after.map(content_id))), out);
}

fn content(entry: Option<&Entry>) -> &[u8] {
    match entry {
        Some(Entry::File { content, .. }) => content,
        Some(Entry::Symlink { target }) => target,
        None => &[],
    }
}

/// git's rule, a NUL among the first 8,000 bytes, and also anything that is not UTF-8: so a patch
/// made here is always text, and formats that hold patches in JSON strings lose nothing.
fn is_binary(content: &[u8]) -> bool {
    content.iter().take(8000).any(|byte| *byte == 0) || std::str::from_utf8(content).is_err()
}

/// The object id git gives the content; binary patches must name it.
fn content_id(entry: &Entry) -> String {
    use std::fmt::Write;
    let content = content(Some(entry));
    let mut hasher = sha1::Sha1::new();
    hasher.update(format!("blob {}\0", content.len()).as_bytes());
    hasher.update(content);
    let mut hex = String::with_capacity(40);
    for byte in hasher.finalize() {
        write!(hex, "{byte:02x}").expect("writing to a string succeeds");
    }
    hex
}

fn hunks(old: &[u8], new: &[u8]) -> Vec<Hunk> {
    let input = InternedInput::new(byte_lines(old), byte_lines(new));
    let (n_old, n_new) = (input.before.len() as u32, input.after.len() as u32);
    let line = |token: imara_diff::Token, kind| HunkLine {
        kind,
        text: input.interner[token].to_vec(),
    };
    let changes: Vec<(std::ops::Range<u32>, std::ops::Range<u32>)> =
        if input.before.len().max(input.after.len()) > MAX_LINES {
            vec![(0..n_old, 0..n_new)]
        } else {
            let mut diff = Diff::compute(Algorithm::Histogram, &input);
            diff.postprocess_lines(&input);
            diff.hunks().map(|hunk| (hunk.before, hunk.after)).collect()
        };
    let mut hunks = Vec::new();
    let mut index = 0;
    while index < changes.len() {
        // Changes whose context would touch share a hunk.
        let mut end = index + 1;
        while end < changes.len() && changes[end].0.start - changes[end - 1].0.end <= 2 * CONTEXT {
            end += 1;
        }
        let group = &changes[index..end];
        let old_from = group[0].0.start.saturating_sub(CONTEXT);
        let new_from = group[0].1.start - (group[0].0.start - old_from);
        let old_to = (group[group.len() - 1].0.end + CONTEXT).min(n_old);
        let mut lines = Vec::new();
        let mut at = old_from;
        for (removed, added) in group {
            lines.extend(
                (at..removed.start).map(|i| line(input.before[i as usize], LineKind::Context)),
            );
            lines.extend(
                removed
                    .clone()
                    .map(|i| line(input.before[i as usize], LineKind::Removed)),
            );
            lines.extend(
                added
                    .clone()
                    .map(|i| line(input.after[i as usize], LineKind::Added)),
            );
            at = removed.end;
        }
        lines.extend((at..old_to).map(|i| line(input.before[i as usize], LineKind::Context)));
        // An empty side is numbered by the line before it.
        let start = |from: u32, kind: LineKind| {
            let is_empty = lines.iter().all(|line| line.kind == kind);
            from as usize + usize::from(!is_empty)
        };
        hunks.push(Hunk {
            line: 0,
            old_start: start(old_from, LineKind::Added),
            new_start: start(new_from, LineKind::Removed),
            lines,
        });
        index = end;
    }
    hunks
}

impl FilePatch {
    /// The part that undoes this one.
    pub(super) fn reversed(self) -> Result<FilePatch, PatchError> {
        let content = match self.content {
            Content::Text(hunks) => Content::Text(
                hunks
                    .into_iter()
                    .map(|hunk| Hunk {
                        line: hunk.line,
                        old_start: hunk.new_start,
                        new_start: hunk.old_start,
                        lines: removed_first(hunk.lines.into_iter().map(|line| HunkLine {
                            kind: match line.kind {
                                LineKind::Context => LineKind::Context,
                                LineKind::Removed => LineKind::Added,
                                LineKind::Added => LineKind::Removed,
                            },
                            text: line.text,
                        })),
                    })
                    .collect(),
            ),
            Content::Binary {
                forward,
                backward: Some(backward),
            } => Content::Binary {
                forward: backward,
                backward: Some(forward),
            },
            Content::Binary { backward: None, .. } => {
                return Err(PatchError {
                    file: self.new.as_ref().map(TreePath::to_string),
                    hunk: None,
                    line: self.line,
                    reason: "the binary part does not say how to undo it".into(),
                });
            }
        };
        Ok(FilePatch {
            old: self.new,
            new: self.old,
            old_mode: self.new_mode,
            new_mode: self.old_mode,
            content,
            ..self
        })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        self.write_with_index(None, out);
    }

    fn write_with_index(&self, ids: Option<(Option<String>, Option<String>)>, out: &mut Vec<u8>) {
        let Some(any) = self.new.as_ref().or(self.old.as_ref()) else {
            return;
        };
        let (old, new) = (
            self.old.as_ref().unwrap_or(any),
            self.new.as_ref().unwrap_or(any),
        );
        let mut line = |text: String| {
            out.extend_from_slice(text.as_bytes());
            out.push(b'\n');
        };
        line(format!(
            "diff --git {} {}",
            quoted("a/", old),
            quoted("b/", new)
        ));
        let mode = |mode: Option<Mode>| mode.unwrap_or(Mode::Regular).as_str();
        match (&self.old, &self.new) {
            (None, _) => line(format!("new file mode {}", mode(self.new_mode))),
            (_, None) => line(format!("deleted file mode {}", mode(self.old_mode))),
            _ => {
                if let (Some(before), Some(after)) = (self.old_mode, self.new_mode)
                    && before != after
                {
                    line(format!("old mode {}", before.as_str()));
                    line(format!("new mode {}", after.as_str()));
                }
                if old != new {
                    let verb = if self.copied { "copy" } else { "rename" };
                    line(format!("{verb} from {}", quoted("", old)));
                    line(format!("{verb} to {}", quoted("", new)));
                }
            }
        }
        if let Some((before, after)) = ids
            && before != after
        {
            let none = || "0".repeat(40);
            let suffix = match (self.old_mode, self.new_mode) {
                (Some(before), Some(after)) if before == after => format!(" {}", after.as_str()),
                _ => String::new(),
            };
            line(format!(
                "index {}..{}{suffix}",
                before.unwrap_or_else(none),
                after.unwrap_or_else(none)
            ));
        }
        match &self.content {
            Content::Text(hunks) if hunks.is_empty() => {}
            Content::Text(hunks) => {
                let name = |path: &Option<TreePath>, prefix: &str| match path {
                    // A tab ends a name with a space in it, so that no reader takes the rest for
                    // a time stamp.
                    Some(path) if path.as_bytes().contains(&b' ') => {
                        format!("{}\t", quoted(prefix, path))
                    }
                    Some(path) => quoted(prefix, path),
                    None => "/dev/null".into(),
                };
                line(format!("--- {}", name(&self.old, "a/")));
                line(format!("+++ {}", name(&self.new, "b/")));
                for hunk in hunks {
                    write_hunk(hunk, out);
                }
            }
            Content::Binary { forward, backward } => {
                line("GIT binary patch".into());
                for part in [Some(forward), backward.as_ref()].into_iter().flatten() {
                    match part {
                        BinaryHunk::Literal(content) => base85::write_literal(content, out),
                        BinaryHunk::Delta(delta) => base85::write_delta(delta, out),
                    }
                }
            }
        }
    }
}

/// Within each run of changed lines, the removed ones go in front.
fn removed_first(lines: impl Iterator<Item = HunkLine>) -> Vec<HunkLine> {
    let mut out = Vec::new();
    let mut added = Vec::new();
    for line in lines {
        match line.kind {
            LineKind::Added => added.push(line),
            LineKind::Removed => out.push(line),
            LineKind::Context => {
                out.append(&mut added);
                out.push(line);
            }
        }
    }
    out.append(&mut added);
    out
}

fn write_hunk(hunk: &Hunk, out: &mut Vec<u8>) {
    let count = |skip: LineKind| hunk.lines.iter().filter(|line| line.kind != skip).count();
    let range = |start: usize, length: usize| {
        if length == 1 {
            start.to_string()
        } else {
            format!("{start},{length}")
        }
    };
    out.extend_from_slice(
        format!(
            "@@ -{} +{} @@\n",
            range(hunk.old_start, count(LineKind::Added)),
            range(hunk.new_start, count(LineKind::Removed))
        )
        .as_bytes(),
    );
    for line in &hunk.lines {
        out.push(match line.kind {
            LineKind::Context => b' ',
            LineKind::Removed => b'-',
            LineKind::Added => b'+',
        });
        out.extend_from_slice(&line.text);
        if !line.text.ends_with(b"\n") {
            out.extend_from_slice(b"\n\\ No newline at end of file\n");
        }
    }
}

/// A name as git writes it: quoted in C style when it holds anything unusual.
fn quoted(prefix: &str, path: &TreePath) -> String {
    use std::fmt::Write;
    let bytes = path.as_bytes();
    let plain = bytes
        .iter()
        .all(|b| (0x20..0x7f).contains(b) && *b != b'"' && *b != b'\\');
    if plain {
        return format!("{prefix}{path}");
    }
    let mut out = format!("\"{prefix}");
    for byte in bytes {
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\t' => out.push_str("\\t"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            0x20..=0x7e => out.push(*byte as char),
            other => write!(out, "\\{other:03o}").expect("writing to a string succeeds"),
        }
    }
    out.push('"');
    out
}
