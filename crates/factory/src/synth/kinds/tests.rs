//! How the cases of the kinds are written, and what holds for all kinds.

use std::collections::{BTreeMap, BTreeSet};

use temper_core::{Entry, TreePath, patch};

use super::{Kind, kinds};
use crate::synth::{Options, Synthesis, synthesize};

fn run(kind: &Kind, source: &str, likelihood: f64, seed: u64) -> Vec<String> {
    let path: TreePath = "a.py".parse().unwrap();
    let files = BTreeMap::from([(path.clone(), Entry::file(source))]);
    let options = Options {
        seed,
        kinds: Some(BTreeSet::from([kind.name.to_owned()])),
        likelihood: BTreeMap::from([(kind.name.to_owned(), likelihood)]),
        ..Options::default()
    };
    let Synthesis {
        candidates,
        skipped,
        n_invalid,
        ..
    } = synthesize(&files, &options).unwrap();
    assert_eq!(skipped, [], "{source}");
    assert_eq!(n_invalid, 0, "{} breaks {source}", kind.name);
    candidates
        .iter()
        .map(|candidate| {
            let applied =
                patch::apply(&candidate.patch, &mut |path| files.get(path).cloned()).unwrap();
            match &applied.changes[&path] {
                Some(Entry::File { content, .. }) => String::from_utf8(content.clone()).unwrap(),
                other => panic!("{other:?}"),
            }
        })
        .collect()
}

/// With every coin on its head, some seed gives each of these results, and none gives another.
pub(super) fn always(kind: &Kind, source: &str, results: &[&str]) {
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        for result in run(kind, source, 1.0, seed) {
            assert!(
                results.contains(&result.as_str()),
                "{} makes of\n{source}\nthis:\n{result}",
                kind.name
            );
            seen.insert(result);
        }
    }
    assert_eq!(seen.len(), results.len(), "{} of\n{source}", kind.name);
}

/// With a fair coin, some seed gives each of these results.
pub(super) fn sometimes(kind: &Kind, source: &str, results: &[&str]) {
    let seen: BTreeSet<String> = (0..100)
        .flat_map(|seed| run(kind, source, 0.5, seed))
        .collect();
    for result in results {
        assert!(seen.contains(*result), "{}: {seen:#?}", kind.name);
    }
}

/// Nothing is found.
pub(super) fn never(kind: &Kind, source: &str) {
    always(kind, source, &[]);
}

/// `before` is a statement of a function; exactly these statements come out of it.
pub(super) fn body(kind: &Kind, before: &str, after: &[&str]) {
    let wrap = |text: &str| {
        let mut out = "def f(self, a, b, c=None, *, d=4):\n".to_owned();
        for line in text.lines() {
            out.push_str("    ");
            out.push_str(line);
            out.push('\n');
        }
        out
    };
    module(
        kind,
        &wrap(before),
        &after.iter().map(|text| wrap(text)).collect::<Vec<_>>(),
    );
}

/// As [`body`] with `await` allowed.
pub(super) fn module<T: AsRef<str>>(kind: &Kind, before: &str, after: &[T]) {
    let seen: BTreeSet<String> = run(kind, before, 1.0, 0).into_iter().collect();
    let wanted: BTreeSet<String> = after.iter().map(|text| text.as_ref().to_owned()).collect();
    assert_eq!(seen, wanted, "{} of\n{before}", kind.name);
}

#[test]
fn names_are_those_of_the_files_and_unique() {
    let names: BTreeSet<&str> = kinds().iter().map(|kind| kind.name).collect();
    assert_eq!(names.len(), kinds().len());
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src/synth/kinds");
    for entry in std::fs::read_dir(directory).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let stem = file.trim_end_matches(".rs");
        assert!(
            names.contains(stem) || ["mod", "common", "tests"].contains(&stem),
            "{file} is not in the list"
        );
    }
}
