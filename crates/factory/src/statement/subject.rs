//! Which public behaviour failing tests exercise: the names of the library that they use.
//!
//! Only the tests and their imports are looked at, never the fix, so what is named is what a user
//! would name. A test that reaches the bug through several names gives all of them.

use std::{collections::BTreeMap, ops::Range};

use temper_core::{TestId, Tree, TreePath};

use super::Subject;
use crate::{
    context::modules::{Module, Modules},
    syntax::Definition,
};

/// Subjects that are of use in a statement.
const MAX_SUBJECTS: usize = 5;

/// The names of the library that `tests` use, those of most tests first, with their documentation.
/// `tests_tree` holds the tests as they are run, hidden ones included; `start` is what a solver
/// sees, and only names that are defined there are given.
pub fn subjects(
    tests: &[&TestId],
    tests_tree: &Tree,
    start: &Tree,
    python_path: &[String],
) -> Vec<Subject> {
    let modules = Modules::new(start, python_path);
    let test_modules = Modules::new(tests_tree, &[]);
    let mut files: BTreeMap<TreePath, Option<Module>> = BTreeMap::new();
    // By name: in how many tests, and when it was first seen.
    let mut used: BTreeMap<(String, String), (usize, usize)> = BTreeMap::new();
    for test in tests {
        let id = test.as_str().split('[').next().unwrap_or_default();
        let mut parts = id.split("::");
        let Some(Ok(file)) = parts.next().map(str::parse::<TreePath>) else {
            continue;
        };
        let name = parts.collect::<Vec<_>>().join(".");
        let module = files
            .entry(file.clone())
            .or_insert_with(|| test_modules.parse(&file));
        let Some(module) = module else {
            continue;
        };
        let Some(function) = module.definitions.iter().find(|d| d.name == name) else {
            continue;
        };
        let mut names = names_in(module, function.decorated_bytes.clone(), &modules);
        names.dedup();
        for name in names {
            let order = used.len();
            used.entry(name).or_insert((0, order)).0 += 1;
        }
    }
    let mut used: Vec<_> = used.into_iter().collect();
    used.sort_by_key(|(_, (n_tests, order))| (std::cmp::Reverse(*n_tests), *order));
    let mut found = Vec::new();
    for ((module, name), _) in used {
        let Some((file, definition)) = modules.definition(&module, &name) else {
            continue;
        };
        found.push(Subject {
            name: format!("{module}.{name}"),
            documentation: modules
                .parse(file)
                .and_then(|parsed| documentation(&parsed, &definition)),
        });
        if found.len() == MAX_SUBJECTS {
            break;
        }
    }
    found
}

/// The text of a docstring, as `inspect.cleandoc` gives it.
fn documentation(module: &Module, definition: &Definition) -> Option<String> {
    let literal = &module.source.text()[definition.docstring.clone()?];
    let body = literal.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    let body = ["\"\"\"", "'''", "\"", "'"]
        .iter()
        .find_map(|quote| body.strip_prefix(quote)?.strip_suffix(quote))?;
    let mut lines: Vec<&str> = body.lines().map(str::trim_end).collect();
    let margin = lines
        .iter()
        .skip(1)
        .filter(|line| !line.is_empty())
        .map(|line| line.len() - line.trim_start().len())
        .min()
        .unwrap_or(0);
    for (index, line) in lines.iter_mut().enumerate() {
        *line = if index == 0 {
            line.trim_start()
        } else {
            line.get(margin..).unwrap_or("")
        };
    }
    let text = lines.join("\n").trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// Module and name of everything of the library that stands in `range`, in order.
fn names_in(module: &Module, range: Range<usize>, library: &Modules<'_>) -> Vec<(String, String)> {
    // What the file's imports call things: a module, or a name of one.
    let mut modules: BTreeMap<String, String> = BTreeMap::new();
    let mut names: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    for import in module.imports.iter().filter(|import| import.level == 0) {
        if import.names.is_empty() && !import.is_wildcard {
            let called = import.alias.as_ref().unwrap_or(&import.module);
            modules.insert(called.clone(), import.module.clone());
        }
        for name in &import.names {
            let called = name.alias.as_deref().unwrap_or(&name.name);
            let whole = format!("{}.{}", import.module, name.name);
            if library.file(&whole).is_some() {
                modules.insert(called.to_owned(), whole);
            } else if library.file(&import.module).is_some() {
                names.insert(called, (&import.module, &name.name));
            }
        }
    }
    let mut found = Vec::new();
    for node in module.source.root().descendants() {
        if node.start() < range.start || node.end() > range.end {
            continue;
        }
        if node.is("identifier") && node.field_name() != Some("attribute") {
            if let Some((module, name)) = names.get(node.text()) {
                found.push(((*module).to_owned(), (*name).to_owned()));
            }
        } else if node.is("attribute")
            && let (Some(object), Some(name)) = (node.field("object"), node.field("attribute"))
            && let Some(module) = modules.get(object.text())
        {
            found.push((module.clone(), name.text().to_owned()));
        }
    }
    let mut unique = Vec::new();
    for name in found {
        if !name.1.starts_with('_') && !unique.contains(&name) {
            unique.push(name);
        }
    }
    unique
}

#[cfg(test)]
mod tests {
    use super::*;
    use temper_core::Entry;

    #[test]
    fn tests_name_what_they_use() {
        let tree: Tree = [
            ("src/pkg/__init__.py", "from .seq import pairs, Box\nfrom .extra import *\n"),
            (
                "src/pkg/seq.py",
                "def pairs(xs):\n    r'''Neighbours of a list.\n\n        Two by two.\n    '''\n    return _help(xs)\n\ndef _help(xs): pass\n\nclass Box:\n    'A box.'\n",
            ),
            ("src/pkg/extra.py", "def late(): pass\n"),
            (
                "tests/test_seq.py",
                "import os\nimport pkg.seq as s\nfrom pkg import Box as B, pairs, late\nfrom pkg.seq import _help\n\nclass TestAll:\n    def test_a(self):\n        assert pairs(B()) == os.getcwd()\n    def test_b(self):\n        _help(late()); pairs([s.pairs])\n\ndef test_c():\n    helper.pairs()\n",
            ),
        ]
        .into_iter()
        .map(|(name, text)| (name.parse().unwrap(), Entry::file(text)))
        .collect();
        let ids = [
            "tests/test_seq.py::TestAll::test_a[x-1]",
            "tests/test_seq.py::TestAll::test_b",
            "tests/test_seq.py::test_c",
            "tests/gone.py::test_d",
            "../up.py::x",
        ]
        .map(TestId::from);
        let ids: Vec<&TestId> = ids.iter().collect();
        let found = subjects(&ids, &tree, &tree, &["src".to_owned()]);
        let names: Vec<_> = found.iter().map(|subject| subject.name.as_str()).collect();
        assert_eq!(names, ["pkg.pairs", "pkg.Box", "pkg.late", "pkg.seq.pairs"]);
        assert_eq!(
            found[0].documentation.as_deref(),
            Some("Neighbours of a list.\n\nTwo by two.")
        );
        assert_eq!(found[1].documentation.as_deref(), Some("A box."));
        assert_eq!(found[2].documentation, None);
    }
}
