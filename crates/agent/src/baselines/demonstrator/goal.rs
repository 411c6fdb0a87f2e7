//! What a known fix changes: the places that a demonstration has to reach, and the text before and
//! after. Nothing here is shown; the rest of the demonstrator asks only whether a place has been
//! reached, and what to write once it has.

use std::{collections::BTreeMap, path::Path};

use temper_core::{Entry, Patch, PreparedTask, TreePath, patch, tree::Changes};

/// Changes that lie closer than this are made in one edit.
pub const SAME_EDIT_LINES: usize = 6;
/// A fix of more places than this is no small repair.
const MOST_EDITS: usize = 12;
/// How far from the end of a file that lacks its last newline an edit has to be.
const END_LINES: usize = 12;
/// Lines of one edit.
const MOST_LINES: usize = 120;
/// Sources beyond this are not indexed for searches.
const MAX_SOURCE_BYTES: u64 = 1 << 20;
/// Files of an index.
const MOST_FILES: usize = 4_000;

/// One place of a fix, in lines of the file as it was at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The file, below the work tree.
    pub file: String,
    /// The first line that goes, counted from 1; for a pure insertion the line before which the
    /// new ones are put.
    pub first: usize,
    /// The lines that go. May be empty.
    pub old: Vec<String>,
    /// The lines that come. May be empty.
    pub new: Vec<String>,
    /// Names of the definitions around it, innermost first.
    pub around: Vec<String>,
    /// The line at which the innermost definition begins.
    pub definition: Option<usize>,
}

impl Change {
    /// The lines that somebody who makes this change has to have seen: those that go, or the
    /// neighbours of an insertion.
    pub fn seen_lines(&self) -> (usize, usize) {
        if self.old.is_empty() {
            (self.first.saturating_sub(1).max(1), self.first.max(1))
        } else {
            (self.first, self.first + self.old.len() - 1)
        }
    }
}

/// Everything that a fix changes.
#[derive(Clone, Debug, Default)]
pub struct Goal {
    /// In the order of files and lines.
    pub changes: Vec<Change>,
    /// The changed files at the start, as lines.
    pub files: BTreeMap<String, Vec<String>>,
}

/// A fix cannot be demonstrated, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoGoal {
    /// There is none, or it is a script.
    #[error("demonstrate a fix: the task has no known fix that is a patch")]
    NoPatch,
    /// The start cannot be read here.
    #[error("demonstrate a fix: the start lies inside an image")]
    NoStart,
    /// The patch does not apply.
    #[error("demonstrate a fix: {0}")]
    Patch(String),
    /// Something that the editing styles cannot say.
    #[error("demonstrate a fix: {file} {reason}")]
    Shape {
        /// The file.
        file: String,
        /// What is different about it.
        reason: &'static str,
    },
    /// Too much for one demonstration.
    #[error("demonstrate a fix: it has {0} places or lines, more than a small repair")]
    TooLarge(usize),
}

impl Goal {
    /// Reads the known fix of a task against its start. Changes with at most `near` lines between
    /// them are one.
    pub fn of(task: &PreparedTask, near: usize) -> Result<Goal, NoGoal> {
        let fix = crate::trial::known_fix(&task.task)
            .map_err(|error| NoGoal::Patch(error.to_string()))?
            .ok_or(NoGoal::NoPatch)?;
        let start = task.start_tree.as_deref().ok_or(NoGoal::NoStart)?;
        Goal::of_patch(start, &fix, near)
    }

    /// Reads a patch against a tree on this machine.
    pub fn of_patch(start: &Path, fix: &Patch, near: usize) -> Result<Goal, NoGoal> {
        let mut read = |path: &TreePath| temper_sandbox::verify::read_entry(start, path);
        let applied =
            patch::apply(fix, &mut read).map_err(|error| NoGoal::Patch(error.to_string()))?;
        let mut goal = Goal::default();
        for (path, after) in &applied.changes {
            goal.add_file(path, read(path), after.as_ref(), near, &mut read)?;
        }
        let lines: usize = goal.changes.iter().map(|c| c.old.len() + c.new.len()).sum();
        if goal.changes.len() > MOST_EDITS || lines > MOST_LINES || goal.changes.is_empty() {
            return Err(NoGoal::TooLarge(goal.changes.len().max(lines)));
        }
        Ok(goal)
    }

    fn add_file(
        &mut self,
        path: &TreePath,
        before: Option<Entry>,
        after: Option<&Entry>,
        near: usize,
        read: &mut patch::Reader<'_>,
    ) -> Result<(), NoGoal> {
        let file = path.to_text().into_owned();
        let shape = |reason| NoGoal::Shape {
            file: file.clone(),
            reason,
        };
        let (Some(Entry::File { content, .. }), Some(Entry::File { .. })) = (before, after) else {
            return Err(shape("is made, removed or no plain file"));
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-./+".contains(c);
        if !file.chars().all(plain) || file.starts_with('-') {
            return Err(shape("has a name that a shell would interpret"));
        }
        let after_text = match after {
            Some(Entry::File { content, .. }) => std::str::from_utf8(content),
            _ => return Err(shape("is removed")),
        };
        let (Ok(before_text), Ok(after_text)) = (std::str::from_utf8(&content), after_text) else {
            return Err(shape("is not UTF-8"));
        };
        if before_text.contains('\r') || after_text.contains('\r') {
            return Err(shape("has carriage returns"));
        }
        let ends = |text: &str| text.ends_with('\n');
        if ends(before_text) != ends(after_text) {
            return Err(shape("gains or loses the newline at its end"));
        }
        let one: Changes = [(path.clone(), after.cloned())].into();
        let text = patch::diff(read, &one);
        let lines: Vec<String> = before_text.lines().map(str::to_owned).collect();
        let groups = groups_of(&String::from_utf8_lossy(&text.0));
        for (first, old, new) in joined(groups, near, &lines) {
            // Edits write whole lines, so a last one without a newline must not be near.
            if !ends(before_text) && first + old.len() + END_LINES > lines.len() {
                return Err(shape("is changed near an end without a newline"));
            }
            let (around, definition) = surroundings(&lines, first, &old, &new);
            self.changes.push(Change {
                file: file.clone(),
                first,
                old,
                new,
                around,
                definition,
            });
        }
        self.files.insert(file, lines);
        Ok(())
    }
}

type Group = (usize, Vec<String>, Vec<String>);

/// The changed lines of a unified diff of one file that this program wrote itself.
fn groups_of(diff: &str) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut line = 0;
    let mut open = false;
    let mut in_hunk = false;
    for text in diff.lines() {
        if let Some(rest) = text.strip_prefix("@@ -") {
            let number = rest.split([',', ' ']).next().unwrap_or_default();
            line = number.parse().unwrap_or(0);
            (open, in_hunk) = (false, true);
            continue;
        }
        if !in_hunk {
            continue;
        }
        match text.as_bytes().first() {
            Some(sign @ (b'-' | b'+')) => {
                if !open {
                    groups.push((line, Vec::new(), Vec::new()));
                    open = true;
                }
                let (_, old, new) = groups.last_mut().expect("a group was just opened");
                if *sign == b'-' {
                    old.push(text[1..].to_owned());
                    line += 1;
                } else {
                    new.push(text[1..].to_owned());
                }
            }
            _ => {
                line += 1;
                open = false;
            }
        }
    }
    groups
}

/// Makes one group of those that lie close together.
fn joined(groups: Vec<Group>, near: usize, lines: &[String]) -> Vec<Group> {
    let mut joined: Vec<Group> = Vec::new();
    for (first, old, new) in groups {
        if let Some((start, before, after)) = joined.last_mut() {
            let end = *start + before.len();
            if first >= end && first - end <= near {
                let between = &lines[end - 1..first - 1];
                before.extend(between.iter().cloned());
                after.extend(between.iter().cloned());
                before.extend(old);
                after.extend(new);
                continue;
            }
        }
        joined.push((first, old, new));
    }
    joined
}

/// The definitions around a change, by indentation, and where the innermost begins.
fn surroundings(
    lines: &[String],
    first: usize,
    old: &[String],
    new: &[String],
) -> (Vec<String>, Option<usize>) {
    let mut names = Vec::new();
    let mut definition = None;
    // An insertion belongs to what stands above it, as deep as what is inserted.
    let (at, changed) = if old.is_empty() {
        (first.saturating_sub(1), new)
    } else {
        (first, old)
    };
    let mut indent = changed
        .iter()
        .find(|line| !line.trim().is_empty())
        .map_or(0, |line| indent_of(line));
    for number in (1..=at.min(lines.len())).rev() {
        let line = &lines[number - 1];
        if line.trim().is_empty() {
            continue;
        }
        let own = indent_of(line);
        let is_head = number == at && !old.is_empty();
        if own < indent || is_head {
            if let Some(name) = defined_name(line) {
                names.push(name.to_owned());
                definition.get_or_insert(number);
            }
            indent = indent.min(own);
        }
        if indent == 0 {
            break;
        }
    }
    (names, definition)
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The name that a line defines, if it begins a function or a class.
pub fn defined_name(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = line
        .strip_prefix("async def ")
        .or_else(|| line.strip_prefix("def "))
        .or_else(|| line.strip_prefix("class "))?;
    let end = rest
        .find(|c: char| !(c.is_alphanumeric() || c == '_'))
        .unwrap_or(rest.len());
    (end > 0).then(|| &rest[..end])
}

/// The Python files of a start, to foresee how much a search would print. The searches
/// themselves run in the sandbox.
pub fn sources(start: &Path) -> BTreeMap<String, String> {
    let mut sources = BTreeMap::new();
    let mut waiting = vec![start.to_owned()];
    let mut n_seen = 0;
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(&directory)
            .into_iter()
            .flatten()
            .flatten()
        {
            n_seen += 1;
            if n_seen > MOST_FILES * 8 || sources.len() >= MOST_FILES {
                return sources;
            }
            let (path, Ok(metadata)) = (entry.path(), entry.metadata()) else {
                continue;
            };
            let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            if metadata.is_dir() && !hidden {
                waiting.push(path);
            } else if metadata.is_file()
                && metadata.len() <= MAX_SOURCE_BYTES
                && path.extension().is_some_and(|extension| extension == "py")
                && let (Ok(relative), Ok(text)) =
                    (path.strip_prefix(start), std::fs::read_to_string(&path))
            {
                sources.insert(relative.to_string_lossy().into_owned(), text);
            }
        }
    }
    sources
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goal(before: &str, after: &str) -> Result<Goal, NoGoal> {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("m.py"), before).unwrap();
        let path = TreePath::new("m.py").unwrap();
        let entry = Entry::File {
            content: after.as_bytes().to_vec(),
            executable: false,
        };
        let changes: Changes = [(path, Some(entry))].into();
        let mut read = |path: &TreePath| temper_sandbox::verify::read_entry(place.path(), path);
        let fix = patch::diff(&mut read, &changes);
        Goal::of_patch(place.path(), &fix, SAME_EDIT_LINES)
    }

    /// Applies changes from the last to the first, as lines.
    fn applied(goal: &Goal) -> String {
        let mut lines = goal.files["m.py"].clone();
        for change in goal.changes.iter().rev() {
            let at = change.first - 1;
            lines.splice(at..at + change.old.len(), change.new.iter().cloned());
        }
        lines.join("\n") + "\n"
    }

    #[test]
    fn changes_turn_the_start_into_the_fix() {
        let numbered = |n: usize| (1..=n).map(|i| format!("l{i}\n")).collect::<String>();
        let base = numbered(40);
        for after in [
            base.replace("l7\n", "x\n"),
            base.replace("l7\n", ""),
            base.replace("l1\n", "new\nl1\n"),
            base.replace("l40\n", "l40\nnew\n"),
            base.replace("l7\n", "x\n").replace("l10\n", "y\nz\n"),
            base.replace("l7\n", "x\n").replace("l30\n", ""),
        ] {
            let goal = goal(&base, &after).unwrap();
            assert_eq!(applied(&goal), after);
        }
        let two = base.replace("l7\n", "x\n").replace("l30\n", "");
        assert_eq!(goal(&base, &two).unwrap().changes.len(), 2);
        let near = base.replace("l7\n", "x\n").replace("l10\n", "");
        assert_eq!(goal(&base, &near).unwrap().changes.len(), 1);
    }

    #[test]
    fn definitions_around_a_change_are_found_by_indentation() {
        let before = "import a\n\nclass C:\n    x = 1\n\n    def f(self):\n        def g():\n            return 1\n        y = g()\n\n        return y\n\nz = 1\n";
        let around = |old: &str, new: &str| {
            let goal = goal(before, &before.replace(old, new)).unwrap();
            let change = &goal.changes[0];
            (change.around.clone(), change.definition)
        };
        assert_eq!(
            around("return y", "return -y"),
            (vec!["f".to_owned(), "C".to_owned()], Some(6))
        );
        assert_eq!(around("return 1", "return 2").0, ["g", "f", "C"]);
        assert_eq!(around("z = 1", "z = 2"), (vec![], None));
        assert_eq!(around("def f(self):", "def f(self, a):").0, ["f", "C"]);
    }

    #[test]
    fn what_editing_cannot_say_is_refused() {
        assert!(matches!(goal("a\n", "a\r\n"), Err(NoGoal::Shape { .. })));
        assert!(matches!(goal("a\n", "a"), Err(NoGoal::Shape { .. })));
        let many = "x\n".repeat(200);
        assert!(matches!(goal("a\n", &many), Err(NoGoal::TooLarge(_))));
    }
}
