//! Where a task points to, by what a solver sees.

use std::collections::{BTreeMap, BTreeSet};

use temper_core::{TestId, TreePath};

use super::{Request, modules::Modules};
use crate::statement::subjects;

/// Public tests whose uses are looked at.
const MAX_TESTS: usize = 20;

/// What was found.
pub(super) struct Evidence {
    /// The likeliest first; no tests among them.
    pub(super) files: Vec<TreePath>,
    /// Names of functions and classes that the statement, the tests or tracebacks mention.
    pub(super) names: BTreeSet<String>,
}

/// A frame of a failing test says most, then what the statement names, then what tests use.
pub(super) fn find(request: &Request<'_>, modules: &Modules<'_>, tests: &[TreePath]) -> Evidence {
    let mut weights: BTreeMap<TreePath, (u32, usize)> = BTreeMap::new();
    let mut add = |file: &TreePath, weight: u32| {
        if !tests.contains(file) {
            let order = weights.len();
            weights.entry(file.clone()).or_insert((0, order)).0 += weight;
        }
    };
    let words: BTreeSet<&str> = request
        .statement
        .split(|c: char| c != '_' && !c.is_alphanumeric())
        .filter(|word| word.len() >= 3)
        .collect();
    let mut names: BTreeSet<String> = words.iter().map(|word| (*word).to_owned()).collect();
    for path in request.start.keys() {
        let text = path.to_text();
        if !text.ends_with(".py") {
            continue;
        }
        for output in request.outputs {
            // `pkg/a.py:12: in f` and `File "/testbed/pkg/a.py", line 12, in f`.
            let n_frames = output
                .lines()
                .filter(|line| {
                    line.starts_with(&format!("{text}:"))
                        || line.contains(&format!("/{text}\", line "))
                })
                .count();
            if n_frames > 0 {
                add(path, 100 + n_frames.min(10) as u32);
            }
        }
        if request.statement.contains(&*text) {
            add(path, 60);
        }
    }
    for output in request.outputs {
        for line in output.lines() {
            if let Some((_, function)) = line.rsplit_once(" in ") {
                names.insert(function.trim().to_owned());
            }
        }
    }
    // Dotted names of the statement: `pkg.seq.pairs`, `pkg.pairs`.
    for word in request
        .statement
        .split(|c: char| c != '_' && c != '.' && !c.is_alphanumeric())
    {
        let word = word.trim_matches('.');
        if let Some((module, name)) = word.rsplit_once('.')
            && let Some((file, _)) = modules.definition(module, name)
        {
            add(file, 50);
        }
    }
    let public: Vec<&TestId> = request.public_tests.iter().take(MAX_TESTS).collect();
    for (index, subject) in subjects(&public, request.start, request.start, request.python_path)
        .iter()
        .enumerate()
    {
        if let Some((module, name)) = subject.name.rsplit_once('.') {
            if let Some((file, _)) = modules.definition(module, name) {
                let is_named = words.contains(name);
                add(
                    file,
                    10 - index.min(9) as u32 + if is_named { 30 } else { 0 },
                );
            }
            names.insert(name.to_owned());
        }
    }
    let mut files: Vec<_> = weights.into_iter().collect();
    files.sort_by_key(|(_, (weight, order))| (std::cmp::Reverse(*weight), *order));
    Evidence {
        files: files.into_iter().map(|(file, _)| file).collect(),
        names,
    }
}
