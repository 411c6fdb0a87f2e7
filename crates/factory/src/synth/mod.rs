//! Bug synthesis on syntax trees.
//!
//! A [`Kind`] is one way to write a bug; each is a file below `kinds/`, and [`kinds`] lists them.
//! [`synthesize`] finds what every kind can do in the functions and classes of a repository's
//! source files, chooses among it, and writes each choice as a [`Candidate`] with a minimal
//! patch. [`combine`] joins bugs that were proven one by one.
//!
//! The kinds named `func_pm_*` are SWE-smith's procedural modifications: one candidate for each
//! function or class, in which every place was changed with a likelihood. They differ from it in
//! three ways: nested functions are units of their own, no bound on complexity is asked for, and a
//! block never loses its last statement without getting a `pass`. The other kinds are mutation
//! operators: one candidate for each place and each alternative.
//!
//! The result depends on the files' contents, their paths and the options, and on nothing else: not
//! on the order of files, the number of workers or time. What code is never changed is said in
//! `code.rs`. A candidate is syntactically valid; nothing here says that a test notices it.

mod code;
pub mod combine;
mod edit;
mod kinds;
pub mod model_written;
pub mod pr_mirror;
mod random;
mod select;
mod write;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use temper_core::{Entry, TreePath};

pub use kinds::{Kind, kinds};

use self::{code::Code, edit::Edit, random::Coin};
use crate::{
    Candidate,
    syntax::{DefinitionKind, Node, Source},
};

/// Kinds that no operator makes: they come from a history or a model.
pub const OTHER_KINDS: [&str; 4] = [
    pr_mirror::PR_MIRROR,
    pr_mirror::RELEASE_HISTORY,
    "lm_rewrite",
    "lm_modify",
];

/// The name of every kind.
pub fn all_kinds() -> impl Iterator<Item = &'static str> {
    let operators = kinds().iter().map(|kind| kind.name);
    operators.chain(combine::KINDS).chain(OTHER_KINDS)
}

/// What to write.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Decides what is changed where, and what is taken when there is too much.
    pub seed: u64,
    /// The kinds to use, by name; `None` for all.
    pub kinds: Option<BTreeSet<String>>,
    /// By kind, the likelihood in `0..=1` that a place is changed, where it is not
    /// [`Kind::default_likelihood`]. For kinds that make a candidate of each place, it is the
    /// likelihood that the candidate is made.
    pub likelihood: BTreeMap<String, f64>,
    /// The most candidates of one function or class.
    pub max_per_function: Option<usize>,
    /// The most candidates of one file; [`MAX_PER_FILE`] holds in any case.
    pub max_per_file: Option<usize>,
    /// The most candidates of one kind.
    pub max_per_kind: Option<usize>,
    /// The most candidates.
    pub max_candidates: Option<usize>,
    /// Threads that work; it changes only the time.
    pub n_workers: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            seed: 0,
            kinds: None,
            likelihood: BTreeMap::new(),
            max_per_function: None,
            max_per_file: None,
            max_per_kind: None,
            max_candidates: None,
            n_workers: 1,
        }
    }
}

/// The most candidates of one file, whatever the options say.
pub const MAX_PER_FILE: usize = 5_000;

/// The most bugs that are looked at in one file, and the bytes that their replacements may have
/// together; what comes later in a file beyond that is not seen.
const MAX_FOUND: usize = 100_000;
const MAX_FOUND_BYTES: usize = 64 << 20;

/// Options that make no sense.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OptionsError {
    /// No kind has this name.
    #[error("synthesize bugs of the kind {name:?}: there is no such kind")]
    UnknownKind {
        /// The name.
        name: String,
    },
    /// Not a likelihood.
    #[error("use {value} as the likelihood of {kind}: it is not between 0 and 1")]
    Likelihood {
        /// The kind.
        kind: String,
        /// The value.
        value: f64,
    },
}

impl OptionsError {
    /// What the user can do.
    pub fn hint(&self) -> Option<String> {
        match self {
            OptionsError::UnknownKind { .. } => {
                let names: Vec<&str> = all_kinds().collect();
                Some(format!("kinds are {}", names.join(", ")))
            }
            OptionsError::Likelihood { .. } => None,
        }
    }
}

/// A file from which no bug is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The file.
    pub file: TreePath,
    /// Why.
    pub reason: String,
}

/// What was written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Synthesis {
    /// The candidates, by file, place and kind. No two have the same patch.
    pub candidates: Vec<Candidate>,
    /// Python files that were left out; files that are no Python are not named.
    pub skipped: Vec<Skipped>,
    /// Bugs that were found before the limits chose among them.
    pub n_found: usize,
    /// Bugs that were dropped because their result does not parse.
    pub n_invalid: usize,
}

/// Whether a path is a source file by its name: Python, and no test, set-up script, example or
/// benchmark.
pub fn is_source_path(path: &TreePath) -> bool {
    let text = path.to_text();
    let mut parts: Vec<&str> = text.split('/').collect();
    let Some(stem) = parts.pop().and_then(|name| name.strip_suffix(".py")) else {
        return false;
    };
    let is_test_name = stem.starts_with("test_")
        || stem.ends_with("_test")
        || stem.ends_with("_tests")
        || ["test", "tests", "conftest", "setup", "noxfile", "tasks"].contains(&stem);
    let is_other_directory = |part: &&str| {
        let part = part.to_ascii_lowercase();
        part.starts_with('.')
            || part.starts_with("test_")
            || [
                "test",
                "tests",
                "testing",
                "doc",
                "docs",
                "example",
                "examples",
                "benchmark",
                "benchmarks",
                "bench",
                "tools",
                "scripts",
                "vendor",
                "_vendor",
                "vendored",
                "third_party",
                "site-packages",
                "build",
                "dist",
            ]
            .contains(&part.as_str())
    };
    !is_test_name && !parts.iter().any(is_other_directory)
}

/// Writes candidate bugs for `files`, which the caller has chosen (see [`is_source_path`]).
pub fn synthesize(
    files: &BTreeMap<TreePath, Entry>,
    options: &Options,
) -> Result<Synthesis, OptionsError> {
    let active = active_kinds(options)?;
    let files: Vec<(&TreePath, &Entry)> = files
        .iter()
        .filter(|(path, _)| path.file_name().ends_with(b".py"))
        .collect();
    let found = in_parallel(options.n_workers, &files, |(path, entry)| {
        find(path, entry, &active, options)
    });
    let mut synthesis = Synthesis::default();
    let mut bugs = Vec::new();
    for (at, (result, (path, _))) in found.into_iter().zip(&files).enumerate() {
        match result {
            Ok(found) => bugs.extend(found.into_iter().map(|bug| (at, bug))),
            Err(reason) => synthesis.skipped.push(Skipped {
                file: (*path).clone(),
                reason,
            }),
        }
    }
    synthesis.n_found = bugs.len();
    let chosen = select::select(bugs, options);
    let mut by_file: Vec<(usize, Vec<Found>)> = Vec::new();
    for (file, bug) in chosen {
        match by_file.last_mut() {
            Some((last, list)) if *last == file => list.push(bug),
            _ => by_file.push((file, vec![bug])),
        }
    }
    let written = in_parallel(options.n_workers, &by_file, |(file, bugs)| {
        let (path, entry) = files[*file];
        write::write(path, entry, bugs)
    });
    let mut patches = BTreeSet::new();
    for candidate in written.into_iter().flatten() {
        match candidate {
            Some(candidate) if patches.insert(candidate.patch.digest()) => {
                synthesis.candidates.push(candidate);
            }
            Some(_) => {}
            None => synthesis.n_invalid += 1,
        }
    }
    Ok(synthesis)
}

/// A bug that may be written: one edit of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Index in [`kinds`].
    kind: usize,
    /// Index of the innermost definition around it in the file's list.
    unit: usize,
    edit: Edit,
    /// Lower is taken first, all else being equal.
    priority: u64,
}

/// One kind in use.
struct Active {
    index: usize,
    kind: &'static Kind,
    likelihood: f64,
}

fn active_kinds(options: &Options) -> Result<Vec<Active>, OptionsError> {
    let named = options
        .kinds
        .iter()
        .flatten()
        .chain(options.likelihood.keys());
    for name in named {
        if !kinds().iter().any(|kind| kind.name == name) {
            return Err(OptionsError::UnknownKind { name: name.clone() });
        }
    }
    for (kind, value) in &options.likelihood {
        if !(0.0..=1.0).contains(value) {
            return Err(OptionsError::Likelihood {
                kind: kind.clone(),
                value: *value,
            });
        }
    }
    Ok(kinds()
        .iter()
        .enumerate()
        .filter(|(_, kind)| {
            let wanted = options.kinds.as_ref();
            wanted.is_none_or(|names| names.contains(kind.name))
        })
        .map(|(index, kind)| Active {
            index,
            kind,
            likelihood: options
                .likelihood
                .get(kind.name)
                .copied()
                .unwrap_or(kind.default_likelihood()),
        })
        .collect())
}

/// A kind and what finds its bugs at one node.
type Search<'a> = (&'a Active, fn(&Code<'_>, Node<'_>, &mut Bugs));

/// The bugs of one file, without two that have the same result.
fn find(
    path: &TreePath,
    entry: &Entry,
    active: &[Active],
    options: &Options,
) -> Result<Vec<Found>, String> {
    let Entry::File { content, .. } = entry else {
        return Err("it is a symbolic link".into());
    };
    let source = Source::parse(content).map_err(|error| error.to_string())?;
    let code = Code::new(&source);
    let mut list = Finder {
        code: &code,
        path,
        seed: options.seed,
        found: Vec::new(),
        results: BTreeSet::new(),
        bytes: 0,
    };
    let ordinals = ordinals(&code);
    for kind in active {
        match kind.kind.rule {
            kinds::Rule::Units { of, change } => {
                for (unit, definition) in code.definitions.iter().enumerate() {
                    let is_open =
                        definition.kind == DefinitionKind::Class || code.own(unit).next().is_some();
                    if definition.kind != of || !is_open {
                        continue;
                    }
                    let name = format!("{}#{}", definition.name, ordinals[unit]);
                    let fields = [path.as_bytes(), kind.kind.name.as_bytes(), name.as_bytes()];
                    let state = random::hash(options.seed, &fields);
                    let mut coin = Coin::new(state, kind.likelihood);
                    // SWE-smith tries five times, too, until something changes. A coin that was
                    // not thrown found no place to be thrown for.
                    for _ in 0..5 {
                        let edits = change(&code, unit, &mut coin);
                        if list.add(kind, unit, edits, 1.0) || !coin.was_thrown() {
                            break;
                        }
                    }
                }
            }
            kinds::Rule::Functions { find } => {
                for (unit, definition) in code.definitions.iter().enumerate() {
                    if definition.kind == DefinitionKind::Function {
                        let mut bugs = Bugs::default();
                        find(&code, unit, &mut bugs);
                        list.add_all(kind, unit, bugs);
                    }
                }
            }
            kinds::Rule::Places { .. } => {}
        }
    }
    let mut by_node: HashMap<&str, Vec<Search<'_>>> = HashMap::new();
    for kind in active {
        if let kinds::Rule::Places { nodes, find } = kind.kind.rule {
            for node in nodes {
                by_node.entry(node).or_default().push((kind, find));
            }
        }
    }
    for index in 0..source.n_nodes() {
        let node = source.node(index);
        let Some(unit) = code.unit(node).filter(|_| code.is_open(node)) else {
            continue;
        };
        for (kind, find) in by_node.get(node.kind()).into_iter().flatten() {
            let mut bugs = Bugs::default();
            find(&code, node, &mut bugs);
            list.add_all(kind, unit, bugs);
        }
    }
    Ok(list.found)
}

/// For each definition, how many earlier ones have the same name.
fn ordinals(code: &Code<'_>) -> Vec<usize> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    code.definitions
        .iter()
        .map(|definition| {
            let count = seen.entry(&definition.name).or_default();
            *count += 1;
            *count
        })
        .collect()
}

/// Collects what a kind can do at one place: each item is a bug, made of one or more edits.
#[derive(Default)]
pub(crate) struct Bugs {
    list: Vec<Vec<Edit>>,
}

impl Bugs {
    /// A bug that replaces a node's text.
    pub(crate) fn replace(&mut self, node: Node<'_>, text: impl Into<String>) {
        self.edit(Edit::new(node.range(), text));
    }

    /// A bug of one edit.
    pub(crate) fn edit(&mut self, edit: Edit) {
        self.list.push(vec![edit]);
    }

    /// A bug of several edits, which do not overlap.
    pub(crate) fn edits(&mut self, edits: Vec<Edit>) {
        self.list.push(edits);
    }

    /// A bug of one edit, if there is one.
    pub(crate) fn maybe(&mut self, edit: Option<Edit>) {
        self.list.extend(edit.map(|edit| vec![edit]));
    }

    /// A bug of several edits, if there are any.
    pub(crate) fn maybe_edits(&mut self, edits: Option<Vec<Edit>>) {
        self.list.extend(edits);
    }

    /// A bug that exchanges the texts of two nodes, of which none holds the other.
    pub(crate) fn exchange(&mut self, a: Node<'_>, b: Node<'_>) {
        self.edits(vec![
            Edit::new(a.range(), b.text()),
            Edit::new(b.range(), a.text()),
        ]);
    }
}

struct Finder<'a> {
    code: &'a Code<'a>,
    path: &'a TreePath,
    seed: u64,
    found: Vec<Found>,
    results: BTreeSet<Edit>,
    bytes: usize,
}

impl Finder<'_> {
    fn add_all(&mut self, kind: &Active, unit: usize, bugs: Bugs) {
        for edits in bugs.list {
            self.add(kind, unit, edits, kind.likelihood);
        }
    }

    /// Whether it changes anything; a bug with a result that is there already is not kept.
    fn add(&mut self, kind: &Active, unit: usize, edits: Vec<Edit>, likelihood: f64) -> bool {
        if self.found.len() >= MAX_FOUND || self.bytes >= MAX_FOUND_BYTES {
            return true;
        }
        let text = self.code.source.text();
        let Some(edit) = Edit::merged(edits, text) else {
            return false;
        };
        let fields = [
            self.path.as_bytes(),
            kind.kind.name.as_bytes(),
            &(edit.start as u64).to_le_bytes(),
            &(edit.end as u64).to_le_bytes(),
            edit.text.as_bytes(),
        ];
        let priority = random::hash(self.seed, &fields);
        let is_made = likelihood >= 1.0 || Coin::new(priority, likelihood).flip();
        if is_made && self.results.insert(edit.clone()) {
            self.bytes += edit.text.len();
            self.found.push(Found {
                kind: kind.index,
                unit,
                edit,
                priority,
            });
        }
        true
    }
}

/// `work` on every item by `n_workers` threads; results in the order of the items.
fn in_parallel<I: Sync, O: Send>(
    n_workers: usize,
    items: &[I],
    work: impl Fn(&I) -> O + Sync,
) -> Vec<O> {
    if n_workers <= 1 || items.len() < 2 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<O>>> = items.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..n_workers.min(items.len()) {
            scope.spawn(|| {
                while let Some(index) = Some(next.fetch_add(1, Ordering::Relaxed))
                    && let Some(item) = items.get(index)
                {
                    let output = work(item);
                    *done[index].lock().expect("each slot is locked once") = Some(output);
                }
            });
        }
    });
    done.into_iter()
        .map(|slot| {
            slot.into_inner()
                .expect("a panic would have left the scope")
                .expect("every index was taken")
        })
        .collect()
}
