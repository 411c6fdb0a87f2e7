//! Ways to say one change of a file as a command, and what is said about it.
//!
//! Every style writes exactly the same bytes; a style that cannot say a change says so by `None`.

use temper_core::{Bytes, Entry, TreePath, patch, tree::Changes};

use super::words::Choice;

/// A way to change a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Style {
    /// `sed` with line numbers.
    Sed,
    /// The tool `edit_via_str_replace`.
    Replace,
    /// A Python program in a here-document.
    Python,
    /// A patch in a here-document.
    Apply,
}

impl Style {
    /// All of them.
    pub const ALL: [Style; 4] = [Style::Sed, Style::Replace, Style::Python, Style::Apply];
}

/// One change against the file as it is now.
#[derive(Clone, Debug)]
pub struct Edit<'a> {
    /// The file.
    pub file: &'a str,
    /// Its lines now.
    pub lines: &'a [String],
    /// The first line that goes, from 1.
    pub first: usize,
    /// How many lines go.
    pub n_old: usize,
    /// The lines that come.
    pub new: &'a [String],
}

/// More context than this is not added to make a text unique.
const MOST_CONTEXT: usize = 6;

impl Edit<'_> {
    /// The command in the given style, or in the first other one that can say it.
    pub fn command(&self, style: Style, tool: &str) -> Option<String> {
        let all = std::iter::once(style).chain(Style::ALL);
        // A line that looks like a fence would end the block that holds the command.
        all.filter_map(|style| self.in_style(style, tool))
            .find(|command| !command.contains("```"))
    }

    /// The command in one style.
    pub fn in_style(&self, style: Style, tool: &str) -> Option<String> {
        match style {
            Style::Sed => self.sed(),
            Style::Replace => self.replace(tool),
            Style::Python => self.python(),
            Style::Apply => self.apply(),
        }
    }

    /// The file's lines afterwards.
    pub fn after(&self) -> Vec<String> {
        let mut lines = self.lines.to_vec();
        let at = self.first - 1;
        lines.splice(at..at + self.n_old, self.new.iter().cloned());
        lines
    }

    /// The lines that a replacement names: those that go, and as much around them as it takes.
    pub fn unique_old(&self) -> Option<Vec<String>> {
        self.unique().map(|(old, _)| old)
    }

    fn old(&self) -> &[String] {
        &self.lines[self.first - 1..self.first - 1 + self.n_old]
    }

    fn sed(&self) -> Option<String> {
        let (first, file) = (self.first, self.file);
        let last = first + self.n_old.max(1) - 1;
        let range = if last > first {
            format!("{first},{last}")
        } else {
            first.to_string()
        };
        match (self.old(), self.new) {
            (_, []) => Some(format!("sed -i '{range}d' {file}")),
            ([old], [new]) => substitution(old, new)
                .map(|script| format!("sed -i '{first}{script}' {file}"))
                .or_else(|| one_line(new).map(|new| format!("sed -i '{first}c\\{new}' {file}"))),
            ([], [new]) if first > 1 => {
                one_line(new).map(|new| format!("sed -i '{}a\\{new}' {file}", first - 1))
            }
            ([], _) if first > 1 => self.sed_script(&format!("{}a", first - 1)),
            ([], _) => None,
            _ => self.sed_script(&format!("{range}c")),
        }
    }

    /// Several lines at once, with the script on the standard input.
    fn sed_script(&self, address: &str) -> Option<String> {
        let blank = |line: &String| line == "EOF";
        if self.new.iter().any(blank) {
            return None;
        }
        let text: Vec<String> = self
            .new
            .iter()
            .map(|line| line.replace('\\', r"\\"))
            .collect();
        let text = text.join("\\\n");
        Some(format!(
            "sed -i -f /dev/stdin {} <<'EOF'\n{address}\\\n{text}\nEOF",
            self.file
        ))
    }

    fn replace(&self, tool: &str) -> Option<String> {
        let (old, new) = self.unique()?;
        if old.iter().any(|line| line == "OLD") || new.iter().any(|line| line == "NEW") {
            return None;
        }
        Some(format!(
            "old=$(cat <<'OLD'\n{}\nOLD\n) && new=$(cat <<'NEW'\n{}\nNEW\n) && {tool} {} -- \"$old\" \"$new\"",
            old.join("\n"),
            new.join("\n"),
            self.file
        ))
    }

    fn python(&self) -> Option<String> {
        let (old, new) = self.unique()?;
        let hard = |line: &String| line.contains('\\') || line.contains("\"\"\"") || line == "EOF";
        if old.iter().chain(&new).any(hard) {
            return None;
        }
        Some(format!(
            "python - <<'EOF'\npath = \"{}\"\ntext = open(path).read()\nold = \"\"\"{}\n\"\"\"\nnew = \"\"\"{}\n\"\"\"\n\
             assert text.count(old) == 1\nopen(path, \"w\").write(text.replace(old, new))\nEOF",
            self.file,
            old.join("\n"),
            new.join("\n"),
        ))
    }

    fn apply(&self) -> Option<String> {
        let text = |lines: &[String]| Entry::File {
            content: (lines.join("\n") + "\n").into_bytes(),
            executable: false,
        };
        let path = TreePath::new(self.file).ok()?;
        let before = text(self.lines);
        let changes: Changes = [(path, Some(text(&self.after())))].into();
        let diff = patch::diff(&mut |_| Some(before.clone()), &changes);
        let Bytes(diff) = diff.0;
        let diff = String::from_utf8(diff).ok()?;
        let body = diff.split_once("--- ").map(|(_, body)| body)?;
        if body.lines().any(|line| line == "EOF") {
            return None;
        }
        Some(format!("git apply - <<'EOF'\n--- {body}EOF"))
    }

    /// The old and the new lines with as much around them as makes the old ones unique in the
    /// file, with neither beginning nor ending in a blank line, which a shell would drop.
    fn unique(&self) -> Option<(Vec<String>, Vec<String>)> {
        let text = self.lines.join("\n") + "\n";
        let (mut from, mut to) = (self.first - 1, self.first - 1 + self.n_old);
        let blank = |line: Option<&String>| line.is_none_or(|line| line.trim().is_empty());
        for turn in 0..=MOST_CONTEXT * 2 {
            let old = &self.lines[from..to];
            let before = &self.lines[from..self.first - 1];
            let behind = &self.lines[self.first - 1 + self.n_old..to];
            let new: Vec<String> = [before, self.new, behind].concat();
            let begins_blank = blank(old.first()) || blank(new.first());
            let ends_blank = blank(old.last()) || blank(new.last());
            let unique = text.matches(&old.join("\n")).count() == 1
                && text.matches(&(old.join("\n") + "\n")).count() == 1;
            if unique && !begins_blank && !ends_blank {
                return Some((old.to_vec(), new));
            }
            let up = begins_blank || (!ends_blank && turn % 2 == 0);
            if up && from > 0 {
                from -= 1;
            } else if to < self.lines.len() {
                to += 1;
            } else if from > 0 {
                from -= 1;
            } else {
                return None;
            }
        }
        None
    }
}

/// What a line of sed's `a` and `c` can hold on the command's own line.
fn one_line(line: &str) -> Option<String> {
    (!line.contains('\'') && !line.is_empty()).then(|| line.replace('\\', r"\\"))
}

/// `s/old/new/` for the smallest whole words that differ.
fn substitution(old: &str, new: &str) -> Option<String> {
    let (from, to) = fragments(old, new)?;
    let delimiter = ['/', '|', '#', ',']
        .into_iter()
        .find(|c| !from.contains(*c) && !to.contains(*c))?;
    let quotable = |text: &str| !text.contains('\'') && !text.chars().any(char::is_control);
    if !quotable(&from) || !quotable(&to) || from.trim().is_empty() {
        return None;
    }
    let mut pattern = String::new();
    for c in from.chars() {
        if "\\.[]*^$".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    let replacement = to.replace('\\', r"\\").replace('&', r"\&");
    Some(format!(
        "s{delimiter}{pattern}{delimiter}{replacement}{delimiter}"
    ))
}

/// The differing parts of two lines, widened to whole words and until the old one is the first of
/// its kind in its line.
pub fn fragments(old: &str, new: &str) -> Option<(String, String)> {
    let (a, b): (Vec<char>, Vec<char>) = (old.chars().collect(), new.chars().collect());
    let mut head = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let mut tail = a[head..]
        .iter()
        .rev()
        .zip(b[head..].iter().rev())
        .take_while(|(x, y)| x == y)
        .count();
    let part = |c: &char| c.is_alphanumeric() || "_=<>!".contains(*c);
    let joins = |chars: &[char], at: usize| {
        at > 0 && at < chars.len() && part(&chars[at - 1]) && part(&chars[at])
    };
    while head > 0 && (joins(&a, head) || joins(&b, head)) {
        head -= 1;
    }
    while tail > 0 && (joins(&a, a.len() - tail) || joins(&b, b.len() - tail)) {
        tail -= 1;
    }
    loop {
        let from: String = a[head..a.len() - tail].iter().collect();
        let to: String = b[head..b.len() - tail].iter().collect();
        let at: usize = a[..head].iter().map(|c| c.len_utf8()).sum();
        if !from.trim().is_empty() && old.find(&from) == Some(at) {
            return Some((from, to));
        }
        if head > 0 {
            head -= 1;
            while head > 0 && joins(&a, head) {
                head -= 1;
            }
        } else if tail > 0 {
            tail -= 1;
        } else {
            return None;
        }
    }
}

/// The differing parts of two lines, widened to what stands between spaces.
fn spaced_fragments(old: &str, new: &str) -> Option<(String, String)> {
    let common = |pairs: &mut dyn Iterator<Item = (char, char)>| {
        pairs.take_while(|(a, b)| a == b).map(|(a, _)| a).collect()
    };
    let head: String = common(&mut old.chars().zip(new.chars()));
    let head = &old[..old[..head.len()].rfind(' ').map_or(0, |at| at + 1)];
    let (a, b) = (&old[head.len()..], &new[head.len()..]);
    let tail: String = common(&mut a.chars().rev().zip(b.chars().rev()));
    let start = a.len() - tail.len();
    let end = a[start..].find(' ').map_or(a.len(), |at| start + at);
    let n_tail = a.len() - end;
    let parts = (a[..end].to_owned(), b[..b.len() - n_tail].to_owned());
    (!parts.0.trim().is_empty()).then_some(parts)
}

/// What an edit does, in words.
pub fn what(edit: &Edit<'_>, choice: &mut Choice) -> String {
    let short = |text: &str| text.chars().count() <= 60 && !text.contains('`');
    match (edit.old(), edit.new) {
        ([old], [new]) => {
            if let Some((from, to)) = spaced_fragments(old, new)
                && short(&from)
                && short(&to)
                && !to.trim().is_empty()
            {
                let (from, to) = (from.trim(), to.trim());
                return match choice.below(3) {
                    0 => format!("`{from}` has to be `{to}`."),
                    1 => format!("I replace `{from}` by `{to}`."),
                    _ => format!("It should be `{to}` instead of `{from}`."),
                };
            }
            "I change that line.".into()
        }
        ([], [new]) if short(new.trim()) => format!("`{}` is missing there.", new.trim()),
        ([], [_]) => "A line is missing there.".into(),
        ([], new) => format!("{} lines are missing there.", new.len()),
        ([old], []) if short(old.trim()) => format!("`{}` has to go.", old.trim()),
        (_, []) => "These lines have to go.".into(),
        (old, _) if old.len() == 1 => "I rewrite that line.".into(),
        _ => "I rewrite these lines.".into(),
    }
}

/// Where an edit is, in words.
pub fn place(edit: &Edit<'_>) -> String {
    match edit.n_old {
        0 => format!("the place after line {} of {}", edit.first - 1, edit.file),
        1 => format!("line {} of {}", edit.first, edit.file),
        n => format!(
            "lines {}-{} of {}",
            edit.first,
            edit.first + n - 1,
            edit.file
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Every style writes the same bytes, whatever the lines hold. Judged by running them.
    #[test]
    fn styles_write_exactly_the_new_lines() {
        let base: Vec<String> = [
            "import re",
            "",
            "def f(a, b):",
            "    if a <= b and 'x' in \"y\":",
            "        return re.sub(r'\\d+\\.', '&/|#', a)",
            "    return a[1:] * $b.c^2",
            "",
            "    # end",
            "    return None",
            "    return a",
            "",
            "\tx = 1  ",
            "    return None",
        ]
        .map(str::to_owned)
        .to_vec();
        let cases: &[(usize, usize, &[&str])] = &[
            (4, 1, &["    if a < b and 'x' in \"y\":"]),
            (5, 1, &["        return re.sub(r'\\d*\\\\n', '&&/', a)"]),
            (6, 1, &["    return a[2:] * $b.c^2"]),
            (6, 1, &["    return [x for x in a]  # \\1 & more"]),
            (10, 1, &[]),
            (4, 3, &["    return a"]),
            (4, 1, &["    if a:", "        pass", "", "    \\t = 'q'"]),
            (5, 0, &["        a = \"it's\""]),
            (7, 0, &["    x = 2", ""]),
            (8, 0, &["", "    x = 2"]),
            (13, 1, &["    return a or None"]),
            (9, 1, &["    return b"]),
            (12, 1, &["\tx = 2  "]),
            (1, 1, &["import os"]),
            (2, 0, &["import os"]),
        ];
        let mut n_made = 0;
        for (first, n_old, new) in cases {
            let new: Vec<String> = new.iter().map(|line| (*line).to_owned()).collect();
            let edit = Edit {
                file: "m.py",
                lines: &base,
                first: *first,
                n_old: *n_old,
                new: &new,
            };
            let expected = edit.after().join("\n") + "\n";
            for style in Style::ALL {
                // The tool of the sandbox is tested elsewhere; here a program stands for it.
                let tool = "python3 ../replace.py";
                let Some(command) = edit.in_style(style, tool) else {
                    continue;
                };
                n_made += 1;
                let place = tempfile::tempdir().unwrap();
                let tree = place.path().join("tree");
                std::fs::create_dir(&tree).unwrap();
                std::fs::write(tree.join("m.py"), base.join("\n") + "\n").unwrap();
                std::fs::write(
                    place.path().join("replace.py"),
                    "import sys\np, _, o, n = sys.argv[1:]\nt = open(p).read()\n\
                     assert t.count(o) == 1\nopen(p, 'w').write(t.replace(o, n))\n",
                )
                .unwrap();
                let command = command.replace("python - ", "python3 - ");
                let output = Command::new("bash")
                    .args(["-c", &command])
                    .current_dir(&tree)
                    .env("GIT_CEILING_DIRECTORIES", place.path())
                    .output()
                    .unwrap();
                let written = std::fs::read_to_string(tree.join("m.py")).unwrap();
                assert_eq!(
                    written,
                    expected,
                    "{style:?}\n{command}\n{}",
                    String::from_utf8_lossy(&output.stderr)
                );
            }
            assert!(edit.command(Style::Sed, "t").is_some());
        }
        assert!(n_made > 45, "{n_made}");
    }

    #[test]
    fn fragments_are_whole_words_and_come_first() {
        for (old, new, from, to) in [
            ("a <= b", "a < b", "<=", "<"),
            ("foo(bar)", "foo(barn)", "bar", "barn"),
            ("x = 1 + 1", "x = 1 + 2", "+ 1", "+ 2"),
            ("ab", "ab c", "ab", "ab c"),
        ] {
            assert_eq!(
                fragments(old, new),
                Some((from.to_owned(), to.to_owned())),
                "{old} {new}"
            );
        }
    }

    #[test]
    fn words_are_shown_whole() {
        for (old, new, from, to) in [
            (
                "v = v[:] if p else v",
                "v = v[:n] if p else v",
                "v[:]",
                "v[:n]",
            ),
            ("if a <= b:", "if a < b:", "<=", "<"),
            ("return ab", "return abc", "ab", "abc"),
            ("f(é, ü)", "f(é, öü)", "ü)", "öü)"),
        ] {
            let expected = Some((from.to_owned(), to.to_owned()));
            assert_eq!(spaced_fragments(old, new), expected, "{old}");
        }
    }

    #[test]
    fn no_command_ends_its_own_block() {
        let lines = ["a".to_owned(), "```".to_owned(), "b".to_owned()];
        let new = ["```".to_owned()];
        let edit = Edit {
            file: "m.py",
            lines: &lines,
            first: 1,
            n_old: 1,
            new: &new,
        };
        assert_eq!(edit.command(Style::Sed, "t"), None);
    }
}
