//! Undoing real changes: the fix of a commit taken back at the repository's present state, and what
//! a release changed taken back at the later one.
//!
//! A commit qualifies if it changes source and tests together, or if its message speaks of a fix.
//! Its source part is undone by exact context, as `git apply --reverse` would: hunks may have
//! moved, nothing else may have changed in them. What does not apply, does not parse or changes
//! only comments is left out and counted. Tests are never changed, so a mirror's tests are those of
//! the present state.

use std::collections::BTreeSet;

use temper_core::{Entry, Patch, Place, Tree, TreePath, patch, tree::Changes};
use temper_tasks::git::CommitChanges;

use super::write::{file_patch, places};
use crate::{
    Candidate, Note,
    syntax::{Identifiers, Source, TokenOptions, definitions, tokens},
};

/// The kind of a commit that is undone.
pub const PR_MIRROR: &str = "pr_mirror";
/// The kind of a part of a release that is undone.
pub const RELEASE_HISTORY: &str = "release_history";

/// A larger change is a rewrite and no fix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorLimits {
    /// Source files of one bug.
    pub max_files: usize,
    /// Lines that one bug adds and removes together.
    pub max_lines: usize,
    /// Candidates.
    pub max_candidates: usize,
}

impl Default for MirrorLimits {
    fn default() -> Self {
        MirrorLimits {
            max_files: 5,
            max_lines: 200,
            max_candidates: 10_000,
        }
    }
}

/// What was made of a history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mirrors {
    /// The candidates in the order of the history. No two have the same patch.
    pub candidates: Vec<Candidate>,
    /// Commits or parts that qualify.
    pub n_qualified: usize,
    /// Of these, those that no longer apply.
    pub n_not_applied: usize,
    /// Of these, those whose result is no Python or behaves as before by its syntax.
    pub n_without_effect: usize,
}

/// Undoes commits (as [`temper_tasks::git::Git::changes`] gives them, the newest first) at `tree`.
/// Only `source_files` are changed.
pub fn from_commits(
    commits: &[CommitChanges],
    tree: &Tree,
    source_files: &BTreeSet<TreePath>,
    limits: &MirrorLimits,
) -> Mirrors {
    let mut maker = Maker::new(tree, limits);
    for commit in commits {
        let (before, after): (Vec<_>, Vec<_>) = commit
            .files
            .iter()
            .filter(|file| source_files.contains(&file.path))
            .filter_map(|file| {
                // A file that the commit added cannot be taken away by a fix of one function.
                let (before, after) = (file.before.as_ref()?, file.after.as_ref()?);
                let entry = |content: &Vec<u8>| Entry::file(content.clone());
                Some((
                    (file.path.clone(), entry(before)),
                    (file.path.clone(), entry(after)),
                ))
            })
            .unzip();
        let touches_tests = commit
            .files
            .iter()
            .any(|file| is_test(&file.path) && !source_files.contains(&file.path));
        if before.is_empty() || !(touches_tests || speaks_of_a_fix(&commit.message)) {
            continue;
        }
        let undo = undo(&before.into_iter().collect(), &after.into_iter().collect());
        let note = Note::Commit {
            commit: commit.commit.clone(),
            message: commit.message.clone(),
        };
        maker.add(PR_MIRROR, &undo, Some(note));
    }
    maker.mirrors
}

/// Undoes what changed between an earlier release and `tree`: each changed stretch of each source
/// file by itself, then each file as a whole where it has several.
pub fn from_release(
    earlier: &Tree,
    tree: &Tree,
    source_files: &BTreeSet<TreePath>,
    limits: &MirrorLimits,
) -> Mirrors {
    let mut maker = Maker::new(tree, limits);
    for path in source_files {
        let (Some(before), Some(after)) = (earlier.get(path), tree.get(path)) else {
            continue;
        };
        let (Entry::File { content, .. }, Entry::File { .. }) = (before, after) else {
            continue;
        };
        let whole = file_patch(path, after, content.clone());
        let stretches = stretches(&whole);
        for stretch in &stretches {
            maker.add(RELEASE_HISTORY, stretch, None);
        }
        if stretches.len() > 1 {
            maker.add(RELEASE_HISTORY, &whole, None);
        }
    }
    maker.mirrors
}

struct Maker<'a> {
    tree: &'a Tree,
    limits: &'a MirrorLimits,
    mirrors: Mirrors,
    seen: BTreeSet<Vec<u8>>,
}

impl<'a> Maker<'a> {
    fn new(tree: &'a Tree, limits: &'a MirrorLimits) -> Self {
        Maker {
            tree,
            limits,
            mirrors: Mirrors::default(),
            seen: BTreeSet::new(),
        }
    }

    /// Adds a candidate that applies `undo` at the tree, if that gives one.
    fn add(&mut self, kind: &str, undo: &Patch, note: Option<Note>) {
        if undo.is_empty()
            || self.mirrors.candidates.len() >= self.limits.max_candidates
            || n_changed_lines(undo) > self.limits.max_lines
        {
            return;
        }
        self.mirrors.n_qualified += 1;
        let Ok(applied) = patch::apply(undo, &mut |path| self.tree.get(path).cloned()) else {
            self.mirrors.n_not_applied += 1;
            return;
        };
        let Some(places) = self.places(&applied.changes) else {
            self.mirrors.n_without_effect += 1;
            return;
        };
        // Written anew, so that equal bugs have equal bytes wherever they come from.
        let patch = patch::diff(&mut |path| self.tree.get(path).cloned(), &applied.changes);
        if self.seen.insert(patch.0.to_vec()) {
            self.mirrors.candidates.push(Candidate {
                kind: kind.to_owned(),
                places,
                patch,
                note,
            });
        }
    }

    /// The places of the changes; `None` unless every file is Python before and after and one of
    /// them differs in more than layout, comments and documentation.
    fn places(&self, changes: &Changes) -> Option<Vec<Place>> {
        if changes.is_empty() || changes.len() > self.limits.max_files {
            return None;
        }
        let mut found = Vec::new();
        let mut has_effect = false;
        for (path, after) in changes {
            let before = self.tree.get(path)?;
            let (Entry::File { content: old, .. }, Some(Entry::File { content: new, .. })) =
                (before, after)
            else {
                return None;
            };
            let (old, parsed) = (Source::parse(old).ok()?, Source::parse(new).ok()?);
            has_effect |= exact(&old) != exact(&parsed);
            let patch = file_patch(path, before, new.clone());
            found.extend(places(path, &patch, &old, &definitions(&old)));
        }
        has_effect.then_some(found)
    }
}

/// Everything that can change what the code does.
fn exact(source: &Source) -> Vec<String> {
    let options = TokenOptions {
        identifiers: Identifiers::Kept,
        literals: true,
        annotations: true,
    };
    tokens(source, 0..source.text().len(), options)
}

/// What turns `after` back into `before`.
fn undo(before: &Tree, after: &Tree) -> Patch {
    let changes: Changes = before
        .iter()
        .map(|(path, entry)| (path.clone(), Some(entry.clone())))
        .collect();
    patch::diff(&mut |path| after.get(path).cloned(), &changes)
}

fn is_test(path: &TreePath) -> bool {
    let text = path.to_text();
    let base = text.rsplit('/').next().unwrap_or(&text);
    base.ends_with(".py")
        && (base.starts_with("test") || base.ends_with("_test.py") || text.contains("tests/"))
}

/// Whether a message names a mistake that was mended, in words of their own.
fn speaks_of_a_fix(message: &str) -> bool {
    const WORDS: [&str; 14] = [
        "fix",
        "fixes",
        "fixed",
        "fixing",
        "bug",
        "bugs",
        "bugfix",
        "regression",
        "crash",
        "crashes",
        "incorrect",
        "incorrectly",
        "wrong",
        "broken",
    ];
    message
        .split(|c: char| !c.is_alphanumeric())
        .any(|word| WORDS.contains(&word.to_lowercase().as_str()))
}

/// How many lines a patch in our own form adds and removes.
fn n_changed_lines(patch: &Patch) -> usize {
    let (mut n, mut in_hunk) = (0, false);
    for line in patch.0.split(|byte| *byte == b'\n') {
        if line.starts_with(b"@@ ") {
            in_hunk = true;
        } else if line.starts_with(b"diff --git ") {
            in_hunk = false;
        } else if in_hunk && matches!(line.first(), Some(b'+' | b'-')) {
            n += 1;
        }
    }
    n
}

/// The hunks of a patch of one file in our own form, each as a patch.
fn stretches(patch: &Patch) -> Vec<Patch> {
    let mut header = Vec::new();
    let mut hunks: Vec<Vec<u8>> = Vec::new();
    for line in patch.0.split_inclusive(|byte| *byte == b'\n') {
        if line.starts_with(b"@@ ") {
            hunks.push(header.clone());
        }
        // The content's id is that of the whole change.
        if hunks.is_empty() && !line.starts_with(b"index ") {
            header.extend_from_slice(line);
        } else if let Some(hunk) = hunks.last_mut() {
            hunk.extend_from_slice(line);
        }
    }
    hunks.into_iter().map(|hunk| Patch(hunk.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use temper_tasks::git::FileChange;

    fn path(name: &str) -> TreePath {
        name.parse().unwrap()
    }

    fn tree(files: &[(&str, &str)]) -> Tree {
        files
            .iter()
            .map(|(name, text)| (path(name), Entry::file(*text)))
            .collect()
    }

    fn commit(message: &str, files: &[(&str, &str, &str)]) -> CommitChanges {
        CommitChanges {
            commit: "1".repeat(40),
            message: message.to_owned(),
            files: files
                .iter()
                .map(|(name, before, after)| FileChange {
                    path: path(name),
                    before: (!before.is_empty()).then(|| before.as_bytes().to_vec()),
                    after: (!after.is_empty()).then(|| after.as_bytes().to_vec()),
                })
                .collect(),
        }
    }

    const NOW: &str = "# New.\r\nimport os\r\nimport re\r\n\r\n\r\nfirst = 1  # comment\r\nsecond = 2\r\n\r\n\r\ndef last(xs):\r\n    return xs[-1]\r\n\r\n\r\ndef more():\r\n    pass\r\n\r\n\r\nend = 3\r\n";

    /// The file as it was before a comment came to it, with something else in one place.
    fn then(now: &str, text: &str) -> String {
        let then = NOW.replace("# New.\r\n", "");
        assert!(then.contains(now));
        if now.is_empty() {
            return then;
        }
        then.replace(now, text)
    }

    #[test]
    fn a_fix_is_undone_where_it_stands_today() {
        let now = tree(&[("pkg/a.py", NOW), ("tests/test_a.py", "x\n")]);
        let sources = BTreeSet::from([path("pkg/a.py")]);
        let (old, new) = (then("xs[-1]", "xs[0]"), then("", ""));
        let (gone, came) = (then("first", "gone1"), then("first", "gone2"));
        let quiet = then("# comment", "# other words");
        let nonsense = then("def last(xs):", "def last(xs:");
        let (old, new) = (old.as_str(), new.as_str());
        let commits = [
            commit(
                "Take the last",
                &[("pkg/a.py", old, new), ("tests/test_a.py", "", "x\n")],
            ),
            commit("Fix: the same again", &[("pkg/a.py", old, new)]),
            commit("Add words", &[("pkg/a.py", old, new)]),
            commit("fix a comment", &[("pkg/a.py", &quiet, new)]),
            commit("fix what is gone", &[("pkg/a.py", &gone, &came)]),
            commit("fix a file that came", &[("pkg/a.py", "", new)]),
            commit("fix tests only", &[("tests/test_a.py", "y\n", "x\n")]),
            commit("fix into nonsense", &[("pkg/a.py", &nonsense, new)]),
        ];
        let mirrors = from_commits(&commits, &now, &sources, &MirrorLimits::default());
        assert_eq!(
            (
                mirrors.n_qualified,
                mirrors.n_not_applied,
                mirrors.n_without_effect
            ),
            (5, 1, 2)
        );
        let [candidate] = &mirrors.candidates[..] else {
            panic!("{:?}", mirrors.candidates)
        };
        assert_eq!(candidate.kind, PR_MIRROR);
        assert_eq!(
            candidate.places,
            [Place {
                file: path("pkg/a.py"),
                function: Some("last".into()),
                first_line: 11,
                last_line: 11
            }]
        );
        let applied = patch::apply(&candidate.patch, &mut |path| now.get(path).cloned()).unwrap();
        assert_eq!(
            applied.changes[&path("pkg/a.py")],
            Some(Entry::file(NOW.replace("-1", "0")))
        );
        // The fix is the patch in reverse.
        let fixed = patch::apply(&patch::reverse(&candidate.patch).unwrap(), &mut |p| {
            applied.changes.get(p).cloned().flatten()
        })
        .unwrap();
        assert_eq!(fixed.changes[&path("pkg/a.py")], Some(Entry::file(NOW)));
        assert!(
            matches!(&candidate.note, Some(Note::Commit { message, .. }) if message == "Take the last")
        );
    }

    #[test]
    fn a_release_gives_its_stretches_and_the_whole() {
        let body = |a: &str, b: &str| {
            let filler: String = (0..10).map(|n| format!("x{n} = {n}\n")).collect();
            format!("def f():\n    return {a}\n\n{filler}\n\ndef g():\n    return {b}\n")
        };
        let now = tree(&[("a.py", &body("1", "2")), ("same.py", "x = 1\n")]);
        let earlier = tree(&[
            ("a.py", &body("10", "20")),
            ("same.py", "x = 1\n"),
            ("gone.py", ""),
        ]);
        let sources = ["a.py", "same.py", "gone.py"].map(path).into();
        let mirrors = from_release(&earlier, &now, &sources, &MirrorLimits::default());
        let functions: Vec<Vec<_>> = mirrors
            .candidates
            .iter()
            .map(|candidate| {
                assert_eq!(candidate.kind, RELEASE_HISTORY);
                let places = candidate.places.iter();
                places
                    .map(|place| place.function.clone().unwrap())
                    .collect()
            })
            .collect();
        assert_eq!(functions, [vec!["f"], vec!["g"], vec!["f", "g"]]);
        let few = MirrorLimits {
            max_lines: 2,
            ..MirrorLimits::default()
        };
        assert_eq!(
            from_release(&earlier, &now, &sources, &few)
                .candidates
                .len(),
            2
        );
    }
}
