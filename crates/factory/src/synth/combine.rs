//! Several proven bugs as one: `combine_file` and `combine_module`.
//!
//! A combination holds two to five bugs that were proven one by one, in different functions of one
//! file, or of several files of one directory. Each of them must make a test fail that none of the
//! others does: otherwise a part of the combination would be a change that no test asks to undo.
//! SWE-smith asks that only of the whole. Bugs that touch the same or neighbouring lines are not
//! combined, and neither are combinations (`combine_*`) and undone commits (`pr_mirror`).

use std::collections::{BTreeMap, BTreeSet};

use temper_core::{Entry, Patch, TreePath, patch};

use super::{
    random::{Coin, hash},
    write,
};
use crate::{
    Candidate,
    syntax::{Source, definitions},
};

/// The kinds.
pub const KINDS: [&str; 2] = ["combine_file", "combine_module"];

/// A bug and the tests that fail because of it.
#[derive(Clone, Copy, Debug)]
pub struct Proven<'a> {
    /// The bug.
    pub candidate: &'a Candidate,
    /// The tests that fail with it and pass without it.
    pub fail_to_pass: &'a BTreeSet<String>,
}

/// How many combinations are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CombineOptions {
    /// Decides which bugs come together.
    pub seed: u64,
    /// The most `combine_file` candidates of one file.
    pub max_per_file: usize,
    /// The most `combine_module` candidates of one directory.
    pub max_per_module: usize,
}

impl Default for CombineOptions {
    fn default() -> Self {
        CombineOptions {
            seed: 0,
            max_per_file: 3,
            max_per_module: 3,
        }
    }
}

/// A combination.
#[derive(Clone, Debug, PartialEq)]
pub struct Combined {
    /// It, as a candidate; what its tests say is to be proven again.
    pub candidate: Candidate,
    /// Indices of its parts, in rising order.
    pub parts: Vec<usize>,
}

/// The most bugs in one combination.
const MAX_PARTS: usize = 5;

/// How many combinations are tried for each one wanted.
const TRIES: usize = 4;

/// Combines bugs of `files`, which are the repository's own state. The order of the result is that
/// of the files and directories; it depends on the arguments only.
pub fn combine(
    files: &BTreeMap<TreePath, Entry>,
    proven: &[Proven<'_>],
    options: &CombineOptions,
) -> Vec<Combined> {
    let parts: Vec<Option<Part<'_>>> = proven
        .iter()
        .map(|proven| Part::new(files, proven))
        .collect();
    let mut by_file: BTreeMap<&TreePath, Vec<usize>> = BTreeMap::new();
    let mut by_module: BTreeMap<&[u8], Vec<usize>> = BTreeMap::new();
    for (index, part) in parts.iter().enumerate() {
        if let Some(part) = part {
            by_file.entry(part.file).or_default().push(index);
            let path = part.file.as_bytes();
            let directory = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            by_module.entry(&path[..directory]).or_default().push(index);
        }
    }
    let mut made = Vec::new();
    for (file, members) in by_file {
        let group = Group {
            kind: "combine_file",
            name: file.as_bytes(),
            max: options.max_per_file,
        };
        made.extend(group.combine(files, &parts, &members, options.seed));
    }
    for (directory, members) in by_module {
        let group = Group {
            kind: "combine_module",
            name: directory,
            max: options.max_per_module,
        };
        made.extend(group.combine(files, &parts, &members, options.seed));
    }
    made
}

/// Lines that one bug changes: `removed` lines from line `start` (counted from 0) become `added`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    start: usize,
    removed: usize,
    added: Vec<u8>,
}

/// A bug of one file and of functions.
struct Part<'a> {
    file: &'a TreePath,
    functions: BTreeSet<&'a str>,
    runs: Vec<Run>,
    fails: &'a BTreeSet<String>,
}

impl<'a> Part<'a> {
    /// `None` for what is not combined.
    fn new(files: &BTreeMap<TreePath, Entry>, proven: &Proven<'a>) -> Option<Part<'a>> {
        let candidate = proven.candidate;
        let file = &candidate.places.first()?.file;
        let functions: Option<BTreeSet<&str>> = candidate
            .places
            .iter()
            .map(|place| place.function.as_deref())
            .collect();
        let is_excluded =
            candidate.kind.starts_with("combine_") || candidate.kind.starts_with("pr_mirror");
        if is_excluded
            || candidate.places.iter().any(|place| place.file != *file)
            || patch::paths(&candidate.patch).ok()?.len() != 1
        {
            return None;
        }
        let Entry::File { content, .. } = files.get(file)? else {
            return None;
        };
        let runs = runs(&candidate.patch);
        // What was read out of the patch must be what the patch does.
        let applied = patch::apply(&candidate.patch, &mut |path| files.get(path).cloned()).ok()?;
        match applied.changes.get(file) {
            Some(Some(Entry::File { content: after, .. }))
                if replaced(content, &runs) == *after => {}
            _ => return None,
        }
        Some(Part {
            file,
            functions: functions?,
            runs,
            fails: proven.fail_to_pass,
        })
    }

    /// Whether both can be made at once: other functions, and a line at least between them.
    fn fits(&self, other: &Part<'_>) -> bool {
        if self.file != other.file {
            return true;
        }
        self.functions.is_disjoint(&other.functions)
            && self.runs.iter().all(|a| {
                other
                    .runs
                    .iter()
                    .all(|b| a.start + a.removed < b.start || b.start + b.removed < a.start)
            })
    }
}

struct Group<'a> {
    kind: &'static str,
    name: &'a [u8],
    max: usize,
}

impl Group<'_> {
    fn combine(
        &self,
        files: &BTreeMap<TreePath, Entry>,
        parts: &[Option<Part<'_>>],
        members: &[usize],
        seed: u64,
    ) -> Vec<Combined> {
        let mut made: Vec<Combined> = Vec::new();
        let fields = [self.kind.as_bytes(), self.name];
        let mut coin = Coin::new(hash(seed, &fields), 0.5);
        for _ in 0..self.max * TRIES {
            if made.len() >= self.max || members.len() < 2 {
                break;
            }
            let wanted = 2 + coin.below(MAX_PARTS - 1);
            let mut order = members.to_vec();
            coin.shuffle(&mut order);
            let mut chosen = pick(parts, &order, wanted);
            let n_files = chosen
                .iter()
                .filter_map(|index| parts[*index].as_ref())
                .map(|part| part.file)
                .collect::<BTreeSet<_>>()
                .len();
            let is_known = |made: &[Combined], chosen: &[usize]| {
                made.iter().any(|earlier| earlier.parts == chosen)
            };
            chosen.sort_unstable();
            if chosen.len() < 2
                || (self.kind == "combine_module" && n_files < 2)
                || is_known(&made, &chosen)
            {
                continue;
            }
            if let Some(candidate) = self.write(files, parts, &chosen)
                && made
                    .iter()
                    .all(|earlier| earlier.candidate.patch != candidate.patch)
            {
                made.push(Combined {
                    candidate,
                    parts: chosen,
                });
            }
        }
        made
    }

    fn write(
        &self,
        files: &BTreeMap<TreePath, Entry>,
        parts: &[Option<Part<'_>>],
        chosen: &[usize],
    ) -> Option<Candidate> {
        let mut by_file: BTreeMap<&TreePath, Vec<Run>> = BTreeMap::new();
        for part in chosen.iter().filter_map(|index| parts[*index].as_ref()) {
            by_file
                .entry(part.file)
                .or_default()
                .extend(part.runs.iter().cloned());
        }
        let mut places = Vec::new();
        let mut changes = BTreeMap::new();
        for (file, mut runs) in by_file {
            runs.sort();
            let entry = files.get(file)?;
            let Entry::File {
                content,
                executable,
            } = entry
            else {
                return None;
            };
            let after = replaced(content, &runs);
            Source::parse(&after).ok()?;
            let source = Source::parse(content).ok()?;
            let patch = write::file_patch(file, entry, after.clone());
            places.extend(write::places(file, &patch, &source, &definitions(&source)));
            let after = Entry::File {
                content: after,
                executable: *executable,
            };
            changes.insert(file.clone(), Some(after));
        }
        Some(Candidate {
            kind: self.kind.to_owned(),
            places,
            patch: patch::diff(&mut |path| files.get(path).cloned(), &changes),
            note: None,
        })
    }
}

/// Up to `wanted` bugs in this order that fit together and of which each has a failing test of its
/// own.
fn pick(parts: &[Option<Part<'_>>], order: &[usize], wanted: usize) -> Vec<usize> {
    let part = |index: usize| parts[index].as_ref().expect("members are parts");
    let mut chosen: Vec<usize> = Vec::new();
    for index in order {
        if chosen.len() == wanted {
            break;
        }
        if !chosen.iter().all(|other| part(*index).fits(part(*other))) {
            continue;
        }
        chosen.push(*index);
        let has_own = |index: &usize| {
            part(*index).fails.iter().any(|test| {
                chosen
                    .iter()
                    .filter(|other| *other != index)
                    .all(|other| !part(*other).fails.contains(test))
            })
        };
        if !chosen.iter().all(has_own) {
            chosen.pop();
        }
    }
    chosen
}

/// The changes of a text patch of one file.
fn runs(patch: &Patch) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut line = 0;
    let mut in_hunk = false;
    let mut is_open = false;
    for text in patch.0.split_inclusive(|byte| *byte == b'\n') {
        if text.starts_with(b"@@ -") {
            line = write::hunk_start(text) as usize - 1;
            in_hunk = true;
            is_open = false;
            continue;
        }
        let sign = text.first().copied().filter(|_| in_hunk);
        match sign {
            Some(b' ') => {
                line += 1;
                is_open = false;
            }
            Some(b'-' | b'+') => {
                if !is_open {
                    runs.push(Run {
                        start: line,
                        removed: 0,
                        added: Vec::new(),
                    });
                    is_open = true;
                }
                let run = runs.last_mut().expect("one was pushed");
                if sign == Some(b'-') {
                    run.removed += 1;
                    line += 1;
                } else {
                    run.added.extend_from_slice(&text[1..]);
                }
            }
            // The line above has no newline; a removed one counts as it is.
            Some(b'\\') => {
                if let Some(run) = runs
                    .last_mut()
                    .filter(|run| is_open && run.added.ends_with(b"\n"))
                {
                    run.added.pop();
                }
            }
            _ => {}
        }
    }
    runs
}

/// `content` with runs, which are in order and apart, replaced.
fn replaced(content: &[u8], runs: &[Run]) -> Vec<u8> {
    let lines: Vec<&[u8]> = content.split_inclusive(|byte| *byte == b'\n').collect();
    let mut out = Vec::with_capacity(content.len());
    let mut at = 0;
    for run in runs {
        let start = run.start.clamp(at, lines.len());
        out.extend(lines[at..start].concat());
        out.extend_from_slice(&run.added);
        at = (start + run.removed).min(lines.len());
    }
    out.extend(lines[at..].concat());
    out
}

#[cfg(test)]
mod tests {
    use temper_core::Bytes;

    use super::*;
    use crate::synth::{Options, synthesize};

    fn files(list: &[(&str, &str)]) -> BTreeMap<TreePath, Entry> {
        list.iter()
            .map(|(path, text)| (path.parse().unwrap(), Entry::file(*text)))
            .collect()
    }

    const A: &str = "def f(a):\n    if a < 1:\n        return a + 1\n    return a\n\n\ndef g(a):\n    b = a - 2\n    return b\n\n\ndef h(a):\n    return a * 3";
    const B: &str = "class K:\n    def m(self, a):\n        return a / 2\n";

    /// Each bug fails a test of its own place and one that all fail.
    fn tests_of(candidates: &[Candidate]) -> Vec<BTreeSet<String>> {
        candidates
            .iter()
            .map(|candidate| {
                let own = candidate.places[0].function.clone().unwrap_or_default();
                BTreeSet::from([own, "all".to_owned()])
            })
            .collect()
    }

    #[test]
    fn combinations_do_what_their_parts_do() {
        let files = files(&[("p/a.py", A), ("p/b.py", B), ("q/c.py", B)]);
        let options = Options {
            kinds: Some(BTreeSet::from(["arithmetic".into(), "boundary".into()])),
            ..Options::default()
        };
        let candidates = synthesize(&files, &options).unwrap().candidates;
        let tests = tests_of(&candidates);
        let proven: Vec<Proven<'_>> = candidates
            .iter()
            .zip(&tests)
            .map(|(candidate, fail_to_pass)| Proven {
                candidate,
                fail_to_pass,
            })
            .collect();
        let options = CombineOptions {
            max_per_file: 20,
            max_per_module: 20,
            seed: 3,
        };
        let made = combine(&files, &proven, &options);
        assert_eq!(made, combine(&files, &proven, &options));
        let kinds: BTreeSet<&str> = made.iter().map(|c| c.candidate.kind.as_str()).collect();
        assert_eq!(kinds, BTreeSet::from(["combine_file", "combine_module"]));
        for combined in &made {
            assert!((2..=5).contains(&combined.parts.len()));
            // One after the other gives the same as all at once; the code is too small for a patch
            // to fit in two places.
            let mut tree = files.clone();
            for part in &combined.parts {
                let patch = &candidates[*part].patch;
                let runs = runs(patch);
                let path = patch::paths(patch).unwrap().remove(0);
                let Some(Entry::File { content, .. }) = tree.get(&path) else {
                    panic!("{path}");
                };
                // No part changes the number of lines here, so line numbers stay right.
                let after = replaced(content, &runs);
                tree.insert(path, Entry::file(after));
            }
            let applied = patch::apply(&combined.candidate.patch, &mut |path| {
                files.get(path).cloned()
            })
            .unwrap();
            for (path, entry) in &applied.changes {
                assert_eq!(tree.get(path), entry.as_ref());
            }
            let functions: Vec<_> = combined
                .candidate
                .places
                .iter()
                .map(|place| (&place.file, &place.function))
                .collect();
            let unique: BTreeSet<_> = functions.iter().collect();
            assert_eq!(unique.len(), functions.len());
            assert!(
                combined.candidate.kind == "combine_file"
                    || functions
                        .iter()
                        .map(|(file, _)| file)
                        .collect::<BTreeSet<_>>()
                        .len()
                        > 1
            );
        }
    }

    #[test]
    fn parts_without_a_test_of_their_own_are_not_combined() {
        let files = files(&[("a.py", A)]);
        let options = Options {
            kinds: Some(BTreeSet::from(["arithmetic".into()])),
            ..Options::default()
        };
        let candidates = synthesize(&files, &options).unwrap().candidates;
        let same = BTreeSet::from(["all".to_owned()]);
        let proven: Vec<Proven<'_>> = candidates
            .iter()
            .map(|candidate| Proven {
                candidate,
                fail_to_pass: &same,
            })
            .collect();
        assert!(proven.len() > 2);
        assert_eq!(combine(&files, &proven, &CombineOptions::default()), []);
        let mut mirrored = candidates.clone();
        for candidate in &mut mirrored {
            candidate.kind = "pr_mirror".into();
        }
        let tests = tests_of(&mirrored);
        let proven: Vec<Proven<'_>> = mirrored
            .iter()
            .zip(&tests)
            .map(|(candidate, fail_to_pass)| Proven {
                candidate,
                fail_to_pass,
            })
            .collect();
        assert_eq!(combine(&files, &proven, &CombineOptions::default()), []);
    }

    #[test]
    fn runs_say_what_a_patch_does() {
        for (before, after) in [
            ("a\nb\nc", "a\nB\nc"),
            ("a\nb\nc", "a\nb\nC"),
            ("a\nb\nc", "a\nb\nc\n"),
            ("a\nb\nc\n", "a\nb\nc"),
            ("a\n", "x\na\n"),
            (
                "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\n",
                "a\nc\nd\ne\nf\ng\nh\ni\nj\nx\nk\n",
            ),
            ("a\r\nb\r\n", "a\r\nc\r\n"),
        ] {
            let path: TreePath = "a".parse().unwrap();
            let patch = write::file_patch(&path, &Entry::file(before), after.into());
            let result = replaced(before.as_bytes(), &runs(&patch));
            assert_eq!(Bytes(result), Bytes::from(after), "{before:?}");
        }
    }
}
