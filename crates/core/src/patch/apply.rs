//! Applies one file's part of a patch.

use super::{BinaryHunk, Content, FilePatch, Hunk, LineKind, Mode, PatchError, Reader, base85};
use crate::{Entry, TreePath, tree::Changes};

/// The size that a file may have after patching.
const MAX_FILE_BYTES: usize = 256 << 20;

pub(super) fn apply_file(
    file: &FilePatch,
    read: &mut Reader<'_>,
    changes: &mut Changes,
) -> Result<(), PatchError> {
    let error = |line: usize, hunk: Option<usize>, reason: String| PatchError {
        file: file
            .new
            .as_ref()
            .or(file.old.as_ref())
            .map(TreePath::to_string),
        hunk,
        line,
        reason,
    };
    // Earlier parts of the same patch come first.
    let mut look_up = |path: &TreePath, changes: &Changes| match changes.get(path) {
        Some(entry) => entry.clone(),
        None => read(path),
    };
    for path in [&file.old, &file.new].into_iter().flatten() {
        for parent in parents(path) {
            if matches!(look_up(&parent, changes), Some(Entry::Symlink { .. })) {
                return Err(error(
                    file.line,
                    None,
                    format!("{path} lies beyond the symbolic link {parent}"),
                ));
            }
        }
    }
    let before = match &file.old {
        Some(old) => Some(
            look_up(old, changes)
                .ok_or_else(|| error(file.line, None, format!("the file {old} does not exist")))?,
        ),
        None => None,
    };
    if let Some(new) = &file.new
        && file.old.as_ref() != Some(new)
        && look_up(new, changes).is_some()
    {
        return Err(error(
            file.line,
            None,
            format!("the file {new} exists already"),
        ));
    }
    let content = match &before {
        Some(Entry::File { content, .. }) => content.as_slice(),
        Some(Entry::Symlink { target }) => target.as_slice(),
        None => &[],
    };
    let after = match &file.content {
        Content::Text(hunks) => apply_hunks(content, hunks)
            .map_err(|(line, hunk, reason)| error(line, Some(hunk), reason))?,
        Content::Binary { forward, .. } => match forward {
            BinaryHunk::Literal(content) => content.clone(),
            BinaryHunk::Delta(delta) => base85::apply_delta(content, delta, MAX_FILE_BYTES)
                .ok_or_else(|| {
                    error(
                        file.line,
                        None,
                        "the binary delta does not fit the file's content".into(),
                    )
                })?,
        },
    };
    if let Some(old) = &file.old
        && !file.copied
        && file.new.as_ref() != Some(old)
    {
        if file.new.is_none() && !after.is_empty() {
            return Err(error(
                file.line,
                None,
                format!("the patch removes {old} but does not remove all of its lines"),
            ));
        }
        changes.insert(old.clone(), None);
    }
    if let Some(new) = &file.new {
        let mode = file
            .new_mode
            .or_else(|| before.as_ref().map(Mode::of))
            .unwrap_or(Mode::Regular);
        let entry = match mode {
            Mode::Symlink => Entry::Symlink { target: after },
            mode => Entry::File {
                content: after,
                executable: mode == Mode::Executable,
            },
        };
        changes.insert(new.clone(), Some(entry));
    }
    Ok(())
}

fn parents(path: &TreePath) -> Vec<TreePath> {
    let bytes = path.as_bytes();
    bytes
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'/')
        .filter_map(|(at, _)| TreePath::new(&bytes[..at]).ok())
        .collect()
}

/// One line of the file being patched.
struct Line<'a> {
    text: &'a [u8],
    /// Written by an earlier hunk; a later hunk may not match it.
    patched: bool,
}

type HunkError = (usize, usize, String);

fn apply_hunks(content: &[u8], hunks: &[Hunk]) -> Result<Vec<u8>, HunkError> {
    let mut image: Vec<Line<'_>> = content
        .split_inclusive(|b| *b == b'\n')
        .map(|text| Line {
            text,
            patched: false,
        })
        .collect();
    for (index, hunk) in hunks.iter().enumerate() {
        let old: Vec<&[u8]> = hunk
            .lines
            .iter()
            .filter(|line| line.kind != LineKind::Added)
            .map(|line| line.text.as_slice())
            .collect();
        let at = find(&image, &old, hunk).ok_or_else(|| {
            let (line, reason) = explain(&image, hunk);
            (line, index + 1, reason)
        })?;
        let replacement: Vec<Line<'_>> = hunk
            .lines
            .iter()
            .filter(|line| line.kind != LineKind::Removed)
            .map(|line| Line {
                text: &line.text,
                patched: true,
            })
            .collect();
        image.splice(at..at + old.len(), replacement);
    }
    // A line without a newline can only be the last one.
    let mut out = Vec::with_capacity(content.len());
    let n_lines = image.len();
    for (index, line) in image.into_iter().enumerate() {
        if index + 1 < n_lines && !line.text.ends_with(b"\n") {
            return Err((
                hunks.last().map_or(1, |hunk| hunk.line),
                hunks.len(),
                "a line without a newline would end up inside the file".into(),
            ));
        }
        out.extend_from_slice(line.text);
    }
    Ok(out)
}

/// Where the old side of a hunk stands in the image: at its stated place, or else at the nearest
/// place, later ones first on a tie, as in git. A hunk without leading context belongs to the
/// beginning, one without trailing context to the end.
fn find(image: &[Line<'_>], old: &[&[u8]], hunk: &Hunk) -> Option<usize> {
    let last = image.len().checked_sub(old.len())?;
    let matches = |at: usize| {
        image[at..at + old.len()]
            .iter()
            .zip(old)
            .all(|(line, old)| !line.patched && line.text == *old)
    };
    let at_beginning = hunk.old_start <= 1;
    let at_end = hunk
        .lines
        .last()
        .is_none_or(|line| line.kind != LineKind::Context);
    if at_beginning && at_end {
        return (last == 0 && matches(0)).then_some(0);
    }
    if at_beginning {
        return matches(0).then_some(0);
    }
    if at_end {
        return matches(last).then_some(last);
    }
    let start = hunk.new_start.saturating_sub(1).min(last);
    if matches(start) {
        return Some(start);
    }
    let mut distance = 1;
    loop {
        let below = start.checked_sub(distance);
        let above = Some(start + distance).filter(|at| *at <= last);
        if below.is_none() && above.is_none() {
            return None;
        }
        for at in [below, above].into_iter().flatten() {
            if matches(at) {
                return Some(at);
            }
        }
        distance += 1;
    }
}

/// The first line of a hunk that differs from the file at the stated place.
fn explain(image: &[Line<'_>], hunk: &Hunk) -> (usize, String) {
    let mut at = hunk.new_start.saturating_sub(1);
    for (offset, line) in hunk.lines.iter().enumerate() {
        if line.kind == LineKind::Added {
            continue;
        }
        match image.get(at) {
            Some(found) if found.text == line.text.as_slice() && !found.patched => at += 1,
            Some(found) => {
                let show = |text: &[u8]| {
                    let text = String::from_utf8_lossy(text);
                    let short: String = text.chars().take(80).collect();
                    format!("{short:?}")
                };
                return (
                    hunk.line + 1 + offset,
                    format!(
                        "expected {} at line {} of the file, found {}",
                        show(&line.text),
                        at + 1,
                        show(found.text)
                    ),
                );
            }
            None => {
                return (
                    hunk.line + 1 + offset,
                    format!("the file ends at line {}, before this line", image.len()),
                );
            }
        }
    }
    (
        hunk.line,
        "its lines stand at their place, but not at the file's beginning or end as the hunk demands".into(),
    )
}
