//! How a demonstration finds a place: from what is visible to one more command, until the place
//! has been shown.
//!
//! The known fix decides only which of the visible leads is followed. A command is built from a
//! lead alone: a name, a word or a line that the statement or an output holds.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    goal::{Change, defined_name},
    visible::{Hit, Visible, has_word},
    words::{self, Choice},
};

/// A search that would print more lines than this is not made.
const MOST_HITS: usize = 14;
/// Definitions of a file that is listed.
const MOST_DEFINITIONS: usize = 60;
/// How far below a line one reads on.
const REACH: usize = 42;
/// Lines of a function that are read to find what it calls.
const CALLER_LINES: usize = 30;
/// How often one reads on from the same line.
const MOST_CHUNKS: usize = 4;

/// A command, what is said before it, and what it shows if it works.
#[derive(Clone, Debug)]
pub struct Move {
    pub thought: String,
    pub command: String,
    pub shows: Shows,
}

/// What a command of the search is to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shows {
    /// These lines of a file.
    Lines {
        file: String,
        first: usize,
        last: usize,
    },
    /// The definitions of a file with their lines.
    Definitions { file: String },
    /// Whatever a search finds.
    Matches,
}

/// What has been asked and shown so far.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// Windows that were opened: file, first and last line.
    opened: Vec<(String, usize, usize)>,
    /// Listings: file, and which output it is.
    listings: Vec<(String, usize)>,
    /// Commands that were run; none is run twice.
    asked: BTreeSet<String>,
    /// Whether lines are shown with numbers.
    numbered: bool,
}

/// One kind of lead.
type Way = fn(&Search, &View<'_>, &mut Choice) -> Option<Move>;

/// What surrounds one decision.
pub struct View<'a> {
    /// What has been shown.
    pub visible: &'a Visible,
    /// The place to reach.
    pub change: &'a Change,
    /// The lines of its file.
    pub lines: &'a [String],
    /// The sources at the start.
    pub sources: &'a BTreeMap<String, String>,
}

impl Search {
    /// Nothing asked yet. Lines are shown with numbers if `numbered`.
    pub fn new(numbered: bool) -> Self {
        Search {
            numbered,
            ..Search::default()
        }
    }

    /// Remembers that a move is being made, with the number of outputs before it.
    pub fn made(&mut self, made: &Move, n_outputs: usize) {
        self.asked.insert(made.command.clone());
        match &made.shows {
            Shows::Lines { file, first, last } => {
                self.opened.push((file.clone(), *first, *last));
            }
            Shows::Definitions { file } => self.listings.push((file.clone(), n_outputs)),
            Shows::Matches => {}
        }
    }

    /// Whether the place has been opened and its text really was printed.
    pub fn reached(&self, view: &View<'_>) -> bool {
        let (first, last) = view.change.seen_lines();
        let opened = self
            .opened
            .iter()
            .any(|(file, from, to)| *file == view.change.file && *from <= first && last <= *to);
        let shown = (first..=last)
            .filter_map(|number| view.lines.get(number - 1))
            .map(|line| line.trim())
            .filter(|line| !line.is_empty())
            .all(|line| view.visible.outputs.iter().any(|text| text.contains(line)));
        opened && shown
    }

    /// The next command, or `None` when no visible lead goes on.
    pub fn next(&self, view: &View<'_>, choice: &mut Choice) -> Option<Move> {
        let ways: [Way; 8] = [
            Search::open,
            Search::by_name,
            Search::by_statement_word,
            Search::by_part_of_name,
            Search::by_test,
            Search::through_caller,
            Search::by_listing,
            Search::by_any_word,
        ];
        ways.iter()
            .filter_map(|way| way(self, view, choice))
            .find(|made| !self.asked.contains(&made.command))
    }

    /// Lines of the file that some output names.
    fn hits(&self, view: &View<'_>) -> Vec<Hit> {
        let mut hits = view.visible.hits(&view.change.file);
        for (file, at) in &self.listings {
            let output = view.visible.outputs.get(*at);
            if *file != view.change.file {
                continue;
            }
            for row in output.map(String::as_str).unwrap_or_default().lines() {
                let number = row.split(':').next().and_then(|text| text.parse().ok());
                hits.extend(number.map(|line| Hit {
                    line,
                    traceback: false,
                }));
            }
        }
        hits
    }

    /// Opens the file at a line that was named close by.
    fn open(&self, view: &View<'_>, choice: &mut Choice) -> Option<Move> {
        let (first, last) = view.change.seen_lines();
        let definition = view.change.definition.unwrap_or(first);
        let hits = self.hits(view);
        let hit = hits
            .iter()
            .filter(|hit| hit.line <= last + 25)
            .filter(|hit| {
                let ahead = first.saturating_sub(hit.line);
                ahead <= REACH || (hit.line >= definition && ahead <= REACH * MOST_CHUNKS)
            })
            .min_by_key(|hit| {
                let distance = hit.line.abs_diff(first);
                // A definition is where reading begins, and a traceback is the best of leads.
                (!hit.traceback && hit.line != definition, distance)
            })?;
        let n_lines = view.lines.len();
        let (from, to) = if hit.line > first {
            (
                first.saturating_sub(choice.between(4, 8)).max(1),
                hit.line.max(last) + choice.between(2, 5),
            )
        } else if first - hit.line <= REACH {
            (
                hit.line.saturating_sub(choice.between(0, 3)).max(1),
                (last + choice.between(3, 8)).max(hit.line + 12),
            )
        } else {
            // Reads on from where the last window ended.
            let from = self
                .opened
                .iter()
                .filter(|(file, from, _)| {
                    *file == view.change.file && *from <= first && *from + 4 >= hit.line
                })
                .map(|(_, _, to)| to + 1)
                .max()
                .unwrap_or(hit.line);
            let end = from + REACH;
            (from, if end >= first { end.max(last + 4) } else { end })
        };
        let to = to.min(n_lines);
        let file = &view.change.file;
        let command = if self.numbered {
            match choice.below(3) {
                0 => format!("awk 'NR>={from} && NR<={to} {{print NR\": \"$0}}' {file}"),
                1 => format!("cat -n {file} | sed -n '{from},{to}p'"),
                _ => format!("nl -ba {file} | sed -n '{from},{to}p'"),
            }
        } else {
            match choice.below(3) {
                0 => format!("head -n {to} {file} | tail -n {}", to + 1 - from),
                _ => format!("sed -n '{from},{to}p' {file}"),
            }
        };
        Some(Move {
            thought: words::open(choice, file, hit.line, hit.traceback),
            command,
            shows: Shows::Lines {
                file: file.clone(),
                first: from,
                last: to,
            },
        })
    }

    /// Looks for the definition of a name that was shown.
    fn by_name(&self, view: &View<'_>, choice: &mut Choice) -> Option<Move> {
        let name = view
            .change
            .around
            .iter()
            .find(|name| name.len() > 2 && view.visible.names(name))?;
        let n_hits = view
            .sources
            .values()
            .flat_map(|text| text.lines())
            .filter(|line| defined_name(line) == Some(name))
            .count();
        let command = if n_hits <= MOST_HITS {
            match choice.below(3) {
                0 => format!("grep -rnE '(def|class) {name}\\b' --include='*.py' ."),
                1 => format!("git grep -nE '(def|class) {name}\\b' -- '*.py'"),
                _ => format!("grep -rn 'def {name}\\|class {name}' --include='*.py' ."),
            }
        } else if view.visible.names_file(&view.change.file) {
            format!("grep -nH 'def {name}\\|class {name}' {}", view.change.file)
        } else {
            return None;
        };
        Some(Move {
            thought: words::name(choice, name, view.visible.statement_names(name)),
            command,
            shows: Shows::Matches,
        })
    }

    /// Looks for a word of the statement.
    fn by_statement_word(&self, view: &View<'_>, choice: &mut Choice) -> Option<Move> {
        let words = view.visible.statement_words();
        self.by_word(view, choice, &words, true)
    }

    /// Looks for a word of any output.
    fn by_any_word(&self, view: &View<'_>, choice: &mut Choice) -> Option<Move> {
        let mut words = BTreeSet::new();
        for text in &view.visible.outputs {
            let parts = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
            words.extend(
                parts
                    .filter(|word| (4..=40).contains(&word.len()))
                    .filter(|word| !word.starts_with(|c: char| c.is_ascii_digit()))
                    .map(str::to_owned),
            );
        }
        let words: Vec<String> = words.into_iter().collect();
        self.by_word(view, choice, &words, false)
    }

    fn by_word(
        &self,
        view: &View<'_>,
        choice: &mut Choice,
        words: &[String],
        of_statement: bool,
    ) -> Option<Move> {
        let (first, last) = view.change.seen_lines();
        let from = view
            .change
            .definition
            .unwrap_or(first)
            .max(first.saturating_sub(REACH));
        let near = &view.lines[from.max(1) - 1..(last + 6).min(view.lines.len())];
        let useful = |word: &&String| near.iter().any(|line| has_word(line, word));
        let count = |word: &str| {
            let sources = view.sources.iter();
            sources
                .filter(|(path, _)| !path.contains("test"))
                .flat_map(|(_, text)| text.lines())
                .filter(|line| has_word(line, word))
                .count()
        };
        let word = words
            .iter()
            .filter(useful)
            .take(40)
            .map(|word| (count(word), word))
            .filter(|(n_hits, _)| (1..=MOST_HITS).contains(n_hits))
            .filter(|(_, word)| {
                !self
                    .asked
                    .iter()
                    .any(|asked| asked.contains(&format!("'{word}'")))
            })
            .min()?
            .1;
        let command = match choice.below(2) {
            0 => format!("grep -rnw '{word}' --include='*.py' . | grep -v test | cut -c1-120"),
            _ => format!("git grep -nw '{word}' -- '*.py' | grep -v test | cut -c1-120"),
        };
        Some(Move {
            thought: words::word(choice, word, of_statement),
            command,
            shows: Shows::Matches,
        })
    }

    /// Looks for definitions whose names contain a word that was shown.
    fn by_part_of_name(&self, view: &View<'_>, choice: &mut Choice) -> Option<Move> {
        let shown = view.visible.texts().collect::<Vec<_>>().join("\n");
        let shown = shown.to_lowercase();
        let parts = view.change.around.iter().flat_map(|name| parts_of(name));
        let found = parts
            .filter(|part| shown.contains(part.as_str()))
            .filter(|part| !self.asked.iter().any(|asked| asked.contains(part.as_str())))
            .find(|part| {
                let hits = view.sources.iter();
                let hits = hits
                    .filter(|(path, _)| !path.contains("test"))
                    .flat_map(|(_, text)| text.lines())
                    .filter_map(defined_name)
                    .filter(|name| name.to_lowercase().contains(part.as_str()));
                (1..=MOST_HITS).contains(&hits.count())
            })?;
        Some(Move {
            thought: words::part(choice, &found),
            command: format!(
                "grep -rniE '(def|class) \\w*{found}' --include='*.py' . | grep -v test | cut -c1-120"
            ),
            shows: Shows::Matches,
        })
    }

    /// Reads a function that was named and that in turn names the one that is looked for.
    fn through_caller(&self, view: &View<'_>, choice: &mut Choice) -> Option<Move> {
        let wanted = view.change.around.iter().find(|name| name.len() > 2)?;
        let callers = view
            .sources
            .iter()
            .filter(|(path, _)| !path.contains("test"));
        let mut found: Vec<(usize, &str, &str)> = Vec::new();
        for (path, text) in callers {
            let lines: Vec<&str> = text.lines().collect();
            for (at, line) in lines.iter().enumerate() {
                let Some(name) = defined_name(line).filter(|name| name.len() > 2) else {
                    continue;
                };
                let body = &lines[at..(at + CALLER_LINES).min(lines.len())];
                let Some(distance) = body.iter().position(|line| has_word(line, wanted)) else {
                    continue;
                };
                if distance > 0 && name != wanted && view.visible.names(name) {
                    found.push((distance, name, path));
                }
            }
        }
        let plain = |text: &str| {
            text.chars()
                .all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
        };
        found.retain(|(_, name, path)| plain(name) && plain(path));
        found.sort_unstable();
        found.iter().find_map(|(distance, name, path)| {
            let n_lines = distance + choice.between(1, 4);
            let command = if view.visible.names_file(path) {
                format!("grep -n -A {n_lines} -E '(def|class) {name}\\b' {path}")
            } else {
                format!(
                    "grep -rn -A {n_lines} -E '(def|class) {name}\\b' --include='*.py' . | grep -v test | head -n 50"
                )
            };
            let marker = format!("'(def|class) {name}\\b'");
            let known = self.asked.iter().any(|a| a.contains("-A") && a.contains(&marker));
            (!known).then(|| Move {
                thought: words::name(choice, name, view.visible.statement_names(name)),
                command,
                shows: Shows::Matches,
            })
        })
    }

    /// Opens a test that was seen to fail.
    fn by_test(&self, view: &View<'_>, choice: &mut Choice) -> Option<Move> {
        let plain = |text: &str| {
            text.chars()
                .all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
        };
        for test in view.visible.failed_tests() {
            let Some((file, rest)) = test.split_once("::") else {
                continue;
            };
            let name = rest.split('[').next().unwrap_or(rest);
            let name = name.rsplit("::").next().unwrap_or(name);
            let command = format!(
                "grep -n -A {} 'def {name}\\b' {file}",
                choice.between(10, 16)
            );
            let known = self
                .asked
                .iter()
                .any(|asked| asked.contains(&format!("'def {name}\\b'")));
            if plain(file) && plain(name) && !name.is_empty() && !known {
                return Some(Move {
                    thought: words::test(choice, name),
                    command,
                    shows: Shows::Matches,
                });
            }
        }
        None
    }

    /// Lists the definitions of a file that was named.
    fn by_listing(&self, view: &View<'_>, choice: &mut Choice) -> Option<Move> {
        let file = &view.change.file;
        let n_definitions = view
            .lines
            .iter()
            .filter(|line| defined_name(line).is_some())
            .count();
        let listed = self.listings.iter().any(|(known, _)| known == file);
        if listed || n_definitions > MOST_DEFINITIONS || !view.visible.names_file(file) {
            return None;
        }
        Some(Move {
            thought: words::listing(choice, file),
            command: format!("grep -nE '^ *(async )?(def|class) ' {file} | cut -c1-70"),
            shows: Shows::Definitions { file: file.clone() },
        })
    }
}

/// The words of a name, in lower case: `strip`, `comments`, `filter` of `StripCommentsFilter`.
/// The rarer a word is likely to be, the earlier it comes: longest first.
fn parts_of(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for c in name.chars() {
        if c == '_' || c.is_uppercase() {
            parts.push(String::new());
        }
        if c.is_ascii_alphanumeric() {
            let last = parts.last_mut().expect("there is always one");
            last.push(c.to_ascii_lowercase());
        }
    }
    parts.retain(|part| part.len() >= 4);
    parts.sort_by_key(|part| std::cmp::Reverse(part.len()));
    parts
}
