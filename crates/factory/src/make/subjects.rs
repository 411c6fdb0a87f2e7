//! What of a library its failing tests are about: public functions and classes that they name.

use std::collections::{BTreeMap, BTreeSet};

use temper_core::{Entry, Place, TestId, Tree, TreePath};
use tree_sitter::{Node, Parser};

use crate::{Repository, statement::Subject};

/// Subjects that a statement can use.
const MAX_SUBJECTS: usize = 3;
/// Documentation that is kept of one subject.
const MAX_DOCUMENTATION: usize = 2000;
/// Definitions inside one another that are looked at.
const MAX_DEPTH: usize = 20;

/// A function or class of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Definition {
    /// `Class.method`.
    pub(super) name: String,
    /// Its text, decorators included.
    pub(super) text: String,
    /// Its docstring, without indentation.
    pub(super) documentation: Option<String>,
}

/// The functions, methods and classes of a Python file, those inside functions left out.
pub(super) fn definitions(source: &[u8]) -> Vec<Definition> {
    let mut parser = Parser::new();
    let mut found = Vec::new();
    if parser
        .set_language(&tree_sitter_python::LANGUAGE.into())
        .is_ok()
        && let Some(tree) = parser.parse(source, None)
    {
        collect(tree.root_node(), source, "", 0, &mut found);
    }
    found
}

fn collect(block: Node, source: &[u8], prefix: &str, depth: usize, found: &mut Vec<Definition>) {
    if depth > MAX_DEPTH {
        return;
    }
    let text = |node: Node| String::from_utf8_lossy(&source[node.byte_range()]).into_owned();
    let mut cursor = block.walk();
    for statement in block.named_children(&mut cursor) {
        let definition = match statement.kind() {
            "decorated_definition" => statement
                .child_by_field_name("definition")
                .unwrap_or(statement),
            _ => statement,
        };
        match definition.kind() {
            kind @ ("function_definition" | "class_definition") => {
                let (Some(name), Some(body)) = (
                    definition.child_by_field_name("name"),
                    definition.child_by_field_name("body"),
                ) else {
                    continue;
                };
                let name = format!("{prefix}{}", text(name));
                found.push(Definition {
                    name: name.clone(),
                    text: text(statement),
                    documentation: docstring(body, source),
                });
                if kind == "class_definition" {
                    collect(body, source, &format!("{name}."), depth + 1, found);
                }
            }
            "if_statement" | "try_statement" | "else_clause" | "except_clause" => {
                let mut cursor = definition.walk();
                for inner in definition.named_children(&mut cursor) {
                    let inside = if matches!(
                        inner.kind(),
                        "else_clause" | "except_clause" | "elif_clause"
                    ) {
                        inner.child_by_field_name("body").or_else(|| {
                            inner.named_child(inner.named_child_count().saturating_sub(1) as u32)
                        })
                    } else {
                        Some(inner)
                    };
                    if let Some(inside) = inside.filter(|node| node.kind() == "block") {
                        collect(inside, source, prefix, depth + 1, found);
                    }
                }
            }
            _ => {}
        }
    }
}

fn docstring(body: Node, source: &[u8]) -> Option<String> {
    let first = body
        .named_child(0)
        .filter(|node| node.kind() == "expression_statement")?;
    let string = first
        .named_child(0)
        .filter(|node| node.kind() == "string")?;
    let mut cursor = string.walk();
    let content = string
        .named_children(&mut cursor)
        .find(|node| node.kind() == "string_content")?;
    let text = String::from_utf8_lossy(&source[content.byte_range()]).into_owned();
    let indent = text
        .lines()
        .skip(1)
        .filter(|line| !line.trim().is_empty())
        .map(|line| line.len() - line.trim_start().len())
        .min()
        .unwrap_or(0);
    let lines: Vec<&str> = text
        .lines()
        .enumerate()
        .map(|(number, line)| {
            if number == 0 {
                line.trim()
            } else {
                line.get(indent..).unwrap_or("").trim_end()
            }
        })
        .collect();
    let text = lines.join("\n").trim().to_owned();
    if text.is_empty() {
        return None;
    }
    if text.len() <= MAX_DOCUMENTATION {
        return Some(text);
    }
    let mut end = MAX_DOCUMENTATION;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Some(format!("{}\n…", text[..end].trim_end()))
}

/// The public names of a library and how often its tests use them.
pub(super) struct Names {
    /// By last component: what can be meant by it.
    public: BTreeMap<String, Vec<Named>>,
    /// In how many test functions a word occurs.
    n_tests: BTreeMap<String, usize>,
    /// Test functions by file and dotted name.
    tests: BTreeMap<(String, String), String>,
}

#[derive(Clone)]
struct Named {
    subject: Subject,
    file: TreePath,
    /// Within its file.
    dotted: String,
}

impl Names {
    pub(super) fn new(repository: &Repository, tree: &Tree) -> Self {
        let content = |path: &TreePath| match tree.get(path) {
            Some(Entry::File { content, .. }) => content.as_slice(),
            _ => &[],
        };
        let exported = exported(repository, tree);
        let mut public: BTreeMap<String, Vec<Named>> = BTreeMap::new();
        for file in &repository.source_files {
            let Some(module) = module_of(&file.to_text(), &repository.python_path) else {
                continue;
            };
            let top = module.split('.').next().unwrap_or_default().to_owned();
            for definition in definitions(content(file)) {
                if definition.name.split('.').any(|part| part.starts_with('_')) {
                    continue;
                }
                let first = definition.name.split('.').next().unwrap_or_default();
                let last = definition
                    .name
                    .rsplit('.')
                    .next()
                    .unwrap_or_default()
                    .to_owned();
                let place = if exported
                    .get(&top)
                    .is_some_and(|names| names.contains(first))
                {
                    &top
                } else {
                    &module
                };
                public.entry(last).or_default().push(Named {
                    subject: Subject {
                        name: format!("{place}.{}", definition.name),
                        documentation: definition.documentation,
                    },
                    file: file.clone(),
                    dotted: definition.name,
                });
            }
        }
        let mut tests = BTreeMap::new();
        let mut n_tests: BTreeMap<String, usize> = BTreeMap::new();
        for file in &repository.test_files {
            for definition in definitions(content(file)) {
                for word in words(&definition.text) {
                    if public.contains_key(word) {
                        *n_tests.entry(word.to_owned()).or_default() += 1;
                    }
                }
                tests.insert(
                    (file.to_text().into_owned(), definition.name),
                    definition.text,
                );
            }
        }
        Names {
            public,
            n_tests,
            tests,
        }
    }

    /// The text of a test's function.
    pub(super) fn test_source(&self, id: &TestId) -> Option<&str> {
        let bare = id.as_str().split('[').next()?;
        let (file, name) = bare.split_once("::")?;
        self.tests
            .get(&(file.to_owned(), name.replace("::", ".")))
            .map(String::as_str)
    }

    /// What the failing tests name: what most of them name comes first, and of equals what fewest
    /// other tests name. What lies in a changed file is preferred, since a bug shows nearby.
    pub(super) fn subjects<'t>(
        &self,
        failing: impl Iterator<Item = &'t TestId>,
        places: &[Place],
    ) -> Vec<Subject> {
        let mut n_failing: BTreeMap<&str, usize> = BTreeMap::new();
        for id in failing {
            for word in self.test_source(id).map(words).unwrap_or_default() {
                if let Some((word, _)) = self.public.get_key_value(word) {
                    *n_failing.entry(word).or_default() += 1;
                }
            }
        }
        let near = |named: &Named| places.iter().any(|place| place.file == named.file);
        let same = |named: &Named| {
            places.iter().any(|place| {
                place.file == named.file && place.function.as_deref() == Some(&named.dotted)
            })
        };
        let mut ranked: Vec<_> = n_failing
            .iter()
            .flat_map(|(word, n)| {
                let n_all = self.n_tests.get(*word).copied().unwrap_or(0);
                self.public[*word]
                    .iter()
                    .map(move |named| (named, *n, n_all))
            })
            .map(|(named, n, n_all)| {
                (
                    (
                        !same(named),
                        !near(named),
                        std::cmp::Reverse(n),
                        n_all,
                        named.subject.name.clone(),
                    ),
                    named,
                )
            })
            .collect();
        ranked.sort_by(|a, b| a.0.cmp(&b.0));
        let mut seen = BTreeSet::new();
        ranked
            .into_iter()
            .filter(|(_, named)| seen.insert(named.subject.name.clone()))
            .take(MAX_SUBJECTS)
            .map(|(_, named)| named.subject.clone())
            .collect()
    }
}

/// Names that the `__init__.py` of each top-level package mentions.
fn exported(repository: &Repository, tree: &Tree) -> BTreeMap<String, BTreeSet<String>> {
    let mut exported: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in &repository.source_files {
        let text = file.to_text();
        if let Some(module) = module_of(&text, &repository.python_path)
            && text.ends_with("/__init__.py")
            && !module.contains('.')
            && let Some(Entry::File { content, .. }) = tree.get(file)
        {
            let text = String::from_utf8_lossy(content);
            exported
                .entry(module)
                .or_default()
                .extend(words(&text).into_iter().map(str::to_owned));
        }
    }
    exported
}

/// `src/thing/core.py` as `thing.core`.
fn module_of(path: &str, python_path: &[String]) -> Option<String> {
    let rest = python_path.iter().find_map(|root| match root.as_str() {
        "." => Some(path),
        root => path.strip_prefix(root)?.strip_prefix('/'),
    })?;
    let stem = rest
        .strip_suffix("/__init__.py")
        .or_else(|| rest.strip_suffix(".py"))?;
    Some(stem.replace('/', "."))
}

fn words(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_come_with_their_text_and_documentation() {
        let source = b"def f():\n    '''One.\n\n      Two.\n    Three.\n    '''\n    def inner(): pass\n\nclass C:\n    @property\n    def p(self):\n        \"p\"\n        return 1\nif X:\n    def g(): pass\nelse:\n    def h(): pass\ntry:\n    pass\nexcept E:\n    def i(): pass\n";
        let found = definitions(source);
        let names: Vec<&str> = found.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["f", "C", "C.p", "g", "h", "i"]);
        assert_eq!(
            found[0].documentation.as_deref(),
            Some("One.\n\n  Two.\nThree.")
        );
        assert_eq!(found[2].documentation.as_deref(), Some("p"));
        assert!(found[2].text.starts_with("@property"));
        assert_eq!(definitions(b"\xff((("), []);
    }

    #[test]
    fn modules_are_named_from_the_module_path() {
        let src = vec!["src".to_owned()];
        assert_eq!(module_of("src/a/b.py", &src).as_deref(), Some("a.b"));
        assert_eq!(module_of("src/a/__init__.py", &src).as_deref(), Some("a"));
        assert_eq!(
            module_of("a/b.py", &[".".to_owned()]).as_deref(),
            Some("a.b")
        );
        assert_eq!(module_of("other/b.py", &src), None);
    }
}
