//! Found bugs as candidates: patches and places.

use std::collections::BTreeMap;

use temper_core::{Entry, Patch, Place, TreePath, patch};

use super::{Found, kinds};
use crate::{
    Candidate,
    syntax::{Definition, DefinitionKind, Source, definitions},
};

/// Each bug of one file as a candidate; `None` for one whose result does not parse.
pub(super) fn write(path: &TreePath, entry: &Entry, bugs: &[Found]) -> Vec<Option<Candidate>> {
    let Entry::File { content, .. } = entry else {
        return Vec::new();
    };
    let Ok(source) = Source::parse(content) else {
        return Vec::new();
    };
    let definitions = definitions(&source);
    bugs.iter()
        .map(|bug| {
            let edit = &bug.edit;
            if !source.parses_with(edit.start..edit.end, &edit.text) {
                return None;
            }
            let after = source.with(edit.start..edit.end, &edit.text);
            let patch = file_patch(path, entry, after.into_bytes());
            let places = places(path, &patch, &source, &definitions);
            Some(Candidate {
                kind: kinds()[bug.kind].name.to_owned(),
                places,
                patch,
                note: None,
            })
        })
        .collect()
}

/// The patch that gives a file another content.
pub(super) fn file_patch(path: &TreePath, entry: &Entry, content: Vec<u8>) -> Patch {
    let executable = matches!(
        entry,
        Entry::File {
            executable: true,
            ..
        }
    );
    let after = Entry::File {
        content,
        executable,
    };
    let changes = BTreeMap::from([(path.clone(), Some(after))]);
    patch::diff(&mut |_| Some(entry.clone()), &changes)
}

/// The places of a patch of one file that changes text only, one for each run of changed lines.
pub(super) fn places(
    path: &TreePath,
    patch: &Patch,
    source: &Source,
    definitions: &[Definition],
) -> Vec<Place> {
    removed_runs(patch)
        .into_iter()
        .map(|(first_line, last_line)| Place {
            file: path.clone(),
            function: function_around(first_line, last_line, source, definitions),
            first_line,
            last_line,
        })
        .collect()
}

/// For each run of changed lines of a text patch, the first and last line that it removes, or
/// twice the line that it follows.
fn removed_runs(patch: &Patch) -> Vec<(u32, u32)> {
    let mut runs = Vec::new();
    let mut line: u32 = 0;
    let mut run: Option<(u32, u32)> = None;
    let mut in_hunk = false;
    for text in patch.0.split_inclusive(|byte| *byte == b'\n') {
        if text.starts_with(b"@@ -") {
            runs.extend(run.take());
            in_hunk = true;
            line = hunk_start(text);
            continue;
        }
        if !in_hunk {
            continue;
        }
        match text.first() {
            Some(b'-') => {
                run = Some(match run {
                    // Lines were only added so far: the removed ones count.
                    Some((first, last)) if first <= last => (first, line),
                    _ => (line, line),
                });
                line += 1;
            }
            // An empty run is marked by a last line before its first until a line is removed.
            Some(b'+') => run = run.or(Some((line, line - 1))),
            Some(b' ') => {
                runs.extend(run.take());
                line += 1;
            }
            _ => {}
        }
    }
    runs.extend(run);
    runs.into_iter()
        .map(|(first, last)| {
            if first > last {
                (last.max(1), last.max(1))
            } else {
                (first, last)
            }
        })
        .collect()
}

/// The line, counted from 1, with which the old side of a hunk begins, or before which it inserts.
pub(super) fn hunk_start(header: &[u8]) -> u32 {
    let header = String::from_utf8_lossy(&header[4..]);
    let old = header.split(' ').next().unwrap_or_default();
    let (start, count) = old.split_once(',').unwrap_or((old, "1"));
    let start: u32 = start.parse().unwrap_or(1);
    // A hunk without old lines is numbered by the line before it.
    if count == "0" {
        start + 1
    } else {
        start.max(1)
    }
}

/// The innermost function that holds these lines and was not itself taken away by them.
fn function_around(
    first_line: u32,
    last_line: u32,
    source: &Source,
    definitions: &[Definition],
) -> Option<String> {
    definitions
        .iter()
        .rfind(|definition| {
            let own = source.line(definition.bytes.start)..=definition.last_line;
            let is_covered = first_line <= *own.start() && *own.end() <= last_line;
            definition.kind == DefinitionKind::Function
                && own.contains(&first_line)
                && own.contains(&last_line)
                && (!is_covered || own.start() == own.end())
        })
        .map(|definition| definition.name.clone())
}
