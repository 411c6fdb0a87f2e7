//! Which public behaviour failing tests exercise: the names of the library that they use.
//!
//! Only the tests and their imports are looked at, never the fix, so what is named is what a user
//! would name. A test that reaches the bug through several names gives all of them.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use temper_core::{Entry, TestId, Tree, TreePath, tree::Changes};

use super::Subject;
use crate::context::modules::{Module, Modules};

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
    Subjects::new(tests_tree, start, python_path).of(tests.iter().copied(), &Changes::new())
}

/// The tests of a repository and its library, for many tasks: every file is read once.
pub struct Subjects<'a> {
    library: Modules<'a>,
    tests: Modules<'a>,
    files: Mutex<BTreeMap<TreePath, Option<Arc<TestFile>>>>,
}

struct TestFile {
    module: Arc<Module>,
    /// What of the library is named where, in order.
    names: Vec<Used>,
}

struct Used {
    range: Range<usize>,
    /// Its module and its name.
    name: (String, String),
}

impl<'a> Subjects<'a> {
    /// `tests_tree` holds the tests, hidden ones included, `library` the code below the directories
    /// of `python_path`.
    pub fn new(tests_tree: &'a Tree, library: &'a Tree, python_path: &[String]) -> Self {
        Subjects {
            library: Modules::new(library, python_path),
            tests: Modules::new(tests_tree, &[]),
            files: Mutex::default(),
        }
    }

    /// What the tests name, what most of them name first, with its documentation. `changes` is what
    /// a solver sees otherwise than it is in the library: documentation that is not there any more
    /// is not given.
    pub fn of<'t>(
        &self,
        tests: impl IntoIterator<Item = &'t TestId>,
        changes: &Changes,
    ) -> Vec<Subject> {
        // By name: in how many tests, and when it was first seen.
        let mut used: BTreeMap<(String, String), (usize, usize)> = BTreeMap::new();
        for test in tests {
            let Some((file, definition)) = self.function(test) else {
                continue;
            };
            let range = file.module.definitions[definition].decorated_bytes.clone();
            let mut unique: Vec<&(String, String)> = Vec::new();
            for found in &file.names {
                let inside = range.start <= found.range.start && found.range.end <= range.end;
                if inside && !unique.contains(&&found.name) {
                    unique.push(&found.name);
                }
            }
            for name in unique {
                let order = used.len();
                used.entry(name.clone()).or_insert((0, order)).0 += 1;
            }
        }
        let mut used: Vec<_> = used.into_iter().collect();
        used.sort_by_key(|(_, (n_tests, order))| (std::cmp::Reverse(*n_tests), *order));
        let subject = |((module, name), _): ((String, String), (usize, usize))| {
            let (file, definition) = self.library.definition(&module, &name)?;
            let parsed = self.library.parse(file)?;
            let literal = definition
                .docstring
                .clone()
                .map(|range| &parsed.source.text()[range]);
            let is_there = |text: &str| match changes.get(file) {
                None => true,
                Some(Some(Entry::File { content, .. })) => {
                    String::from_utf8_lossy(content).contains(text)
                }
                Some(_) => false,
            };
            Some(Subject {
                name: format!("{module}.{name}"),
                documentation: literal
                    .filter(|text| is_there(text))
                    .and_then(documentation),
            })
        };
        used.into_iter()
            .filter_map(subject)
            .take(MAX_SUBJECTS)
            .collect()
    }

    /// The text of a test's function, decorators included.
    pub fn test_source(&self, test: &TestId) -> Option<String> {
        let (file, definition) = self.function(test)?;
        let range = file.module.definitions[definition].decorated_bytes.clone();
        Some(file.module.source.text()[range].to_owned())
    }

    fn function(&self, test: &TestId) -> Option<(Arc<TestFile>, usize)> {
        let id = test.as_str().split('[').next().unwrap_or_default();
        let mut parts = id.split("::");
        let file = self.file(&parts.next()?.parse().ok()?)?;
        let name = parts.collect::<Vec<_>>().join(".");
        let mut definitions = file.module.definitions.iter();
        let place = definitions.position(|definition| definition.name == name)?;
        Some((file, place))
    }

    fn file(&self, path: &TreePath) -> Option<Arc<TestFile>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = files.get(path) {
            return known.clone();
        }
        let file = self.tests.parse(path).map(|module| {
            let names = names_in(&module, &self.library);
            Arc::new(TestFile { module, names })
        });
        files.insert(path.clone(), file.clone());
        file
    }
}

/// The text of a docstring, as `inspect.cleandoc` gives it.
fn documentation(literal: &str) -> Option<String> {
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

/// Everything of the library that a file names, in order.
fn names_in(module: &Module, library: &Modules<'_>) -> Vec<Used> {
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
        let name = if node.is("identifier") && node.field_name() != Some("attribute") {
            names
                .get(node.text())
                .map(|(module, name)| ((*module).to_owned(), (*name).to_owned()))
        } else if node.is("attribute") {
            let (object, name) = (node.field("object"), node.field("attribute"));
            let module = object.and_then(|object| modules.get(object.text()));
            module
                .zip(name)
                .map(|(module, name)| (module.clone(), name.text().to_owned()))
        } else {
            None
        };
        found.extend(
            name.filter(|(_, name)| !name.starts_with('_'))
                .map(|name| Used {
                    range: node.range(),
                    name,
                }),
        );
    }
    found
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
