//! Which tests of a task an agent may see, and the test files without the others.
//!
//! The rule has a name with a version ([`RULE`]), because a task says by which rule it was divided.
//! Test functions are divided, not test ids: the ids of one parametrized function stay together,
//! since its parameters are all in one place of the file. Of two or more failing functions half are
//! hidden, rounded up; of one, all. Which ones is decided by their digests together with the bug's,
//! so it depends neither on the order nor on the number of other tasks. Pass-to-pass tests are
//! public unless their function is hidden.
//!
//! Hidden functions are cut out of the public test files, decorators included, and everything else
//! stays byte for byte. A function that cannot be cut out cleanly is never hidden: one that is
//! inherited, generated, or named elsewhere in its file.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use temper_core::{Digest, Entry, TestId, TreePath, task::TestLists, tree::Changes};
use tree_sitter::{Node, Parser};

/// The name of the rule above.
pub const RULE: &str = temper_core::construction::FUNCTION_HALVES;

/// A task's tests, divided.
#[derive(Clone, Debug, PartialEq)]
pub struct Division {
    /// Tests the agent can see.
    pub public: TestLists,
    /// Tests it cannot.
    pub hidden: TestLists,
    /// The files of all of them, sorted.
    pub test_files: Vec<String>,
    /// The test files without the hidden functions, relative to the pristine files.
    pub changes: Changes,
}

/// Why tests could not be divided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HiddenError {
    /// A file does not parse without the functions.
    #[error("cut test functions out of {file}: it does not parse without them")]
    NotCut {
        /// The file.
        file: String,
    },
    /// None of the failing functions can be cut out of its file.
    #[error("hide a test: none of {n_functions} failing test functions can be cut out of its file")]
    NothingToHide {
        /// How many there are.
        n_functions: usize,
    },
}

/// A test function: its file, the classes around it, its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Function {
    file: String,
    classes: Vec<String>,
    name: String,
}

impl Function {
    fn of(id: &TestId) -> Option<Function> {
        // What is in brackets may hold anything.
        let bare = id.as_str().split('[').next()?;
        let mut parts = bare.split("::").map(str::to_owned);
        let file = parts.next()?;
        let mut classes: Vec<String> = parts.collect();
        let name = classes.pop()?;
        Some(Function {
            file,
            classes,
            name,
        })
    }
}

type Reader<'a> = dyn Fn(&TreePath) -> Option<Vec<u8>> + Send + Sync + 'a;

/// The pristine test files of a repository, read and parsed once.
pub struct TestSources<'a> {
    read: Box<Reader<'a>>,
    /// The repository's test functions, by file.
    ids: BTreeMap<String, Vec<Function>>,
    files: Mutex<BTreeMap<String, Option<Arc<Source>>>>,
}

struct Source {
    content: Vec<u8>,
    /// Functions that may be cut out.
    removable: BTreeSet<(Vec<String>, String)>,
}

impl Division {
    /// Adds tests to the hidden pass-to-pass ones, unless they are listed already.
    pub fn add_hidden(&mut self, tests: Vec<TestId>) {
        let listed: BTreeSet<TestId> = [&self.public, &self.hidden]
            .into_iter()
            .flat_map(|lists| lists.fail_to_pass.iter().chain(&lists.pass_to_pass))
            .cloned()
            .collect();
        let mut files: BTreeSet<String> = self.test_files.drain(..).collect();
        for test in tests {
            if listed.contains(&test) {
                continue;
            }
            files.extend(Function::of(&test).map(|function| function.file));
            self.hidden.pass_to_pass.push(test);
        }
        self.test_files = files.into_iter().collect();
    }
}

impl<'a> TestSources<'a> {
    /// `ids` are all tests of the repository, trusted or not; `read` gives pristine files.
    pub fn new<'i>(
        ids: impl IntoIterator<Item = &'i TestId>,
        read: impl Fn(&TreePath) -> Option<Vec<u8>> + Send + Sync + 'a,
    ) -> Self {
        let mut by_file: BTreeMap<String, BTreeSet<Function>> = BTreeMap::new();
        for function in ids.into_iter().filter_map(Function::of) {
            by_file
                .entry(function.file.clone())
                .or_default()
                .insert(function);
        }
        TestSources {
            read: Box::new(read),
            ids: by_file
                .into_iter()
                .map(|(file, functions)| (file, functions.into_iter().collect()))
                .collect(),
            files: Mutex::new(BTreeMap::new()),
        }
    }

    /// Divides a task's tests. `bug` is the digest of its candidate.
    pub fn divide(&self, bug: &Digest, lists: &TestLists) -> Result<Division, HiddenError> {
        let functions: BTreeSet<Function> =
            lists.fail_to_pass.iter().filter_map(Function::of).collect();
        let mut choice: Vec<(Digest, &Function)> = functions
            .iter()
            .filter(|function| self.is_removable(function))
            .map(|function| {
                let key = (bug, &function.file, &function.classes, &function.name);
                (Digest::of_value(&key), function)
            })
            .collect();
        choice.sort();
        choice.truncate(functions.len().div_ceil(2));
        if choice.is_empty() {
            return Err(HiddenError::NothingToHide {
                n_functions: functions.len(),
            });
        }
        let chosen: BTreeSet<&Function> = choice.iter().map(|(_, function)| *function).collect();
        let mut division = Division {
            public: TestLists::default(),
            hidden: TestLists::default(),
            test_files: Vec::new(),
            changes: Changes::new(),
        };
        let is_hidden =
            |id: &TestId| Function::of(id).is_some_and(|function| chosen.contains(&function));
        (division.hidden.fail_to_pass, division.public.fail_to_pass) =
            lists.fail_to_pass.iter().cloned().partition(is_hidden);
        (division.hidden.pass_to_pass, division.public.pass_to_pass) =
            lists.pass_to_pass.iter().cloned().partition(is_hidden);
        let all = lists.fail_to_pass.iter().chain(&lists.pass_to_pass);
        let files: BTreeSet<String> = all
            .filter_map(Function::of)
            .map(|function| function.file)
            .collect();
        division.test_files = files.into_iter().collect();
        let mut by_file: BTreeMap<&str, BTreeSet<(&[String], &str)>> = BTreeMap::new();
        for function in &chosen {
            by_file
                .entry(&function.file)
                .or_default()
                .insert((&function.classes, &function.name));
        }
        for (file, functions) in by_file {
            let not_cut = || HiddenError::NotCut {
                file: file.to_owned(),
            };
            let content = self
                .source(file)
                .and_then(|source| without(&source.content, &functions))
                .ok_or_else(not_cut)?;
            let path = TreePath::new(file).map_err(|_| not_cut())?;
            division.changes.insert(path, Some(Entry::file(content)));
        }
        Ok(division)
    }

    fn is_removable(&self, function: &Function) -> bool {
        self.source(&function.file).is_some_and(|source| {
            source
                .removable
                .contains(&(function.classes.clone(), function.name.clone()))
        })
    }

    fn source(&self, file: &str) -> Option<Arc<Source>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = files.get(file) {
            return known.clone();
        }
        let found = TreePath::new(file)
            .ok()
            .and_then(|path| (self.read)(&path))
            .and_then(|content| {
                let ids = self.ids.get(file).map_or(&[][..], Vec::as_slice);
                Source::new(content, ids)
            })
            .map(Arc::new);
        files.insert(file.to_owned(), found.clone());
        found
    }
}

impl Source {
    fn new(content: Vec<u8>, ids: &[Function]) -> Option<Source> {
        let tree = parse(&content)?;
        let mut definitions = Definitions::default();
        definitions.collect(tree.root_node(), &content, &mut Vec::new());
        let known = &definitions.found;
        // A name that a class has without defining it comes from a base; cutting it out of one
        // place would not hide it, or would hide another test with it.
        let inherited: BTreeSet<&str> = ids
            .iter()
            .filter(|id| !known.contains_key(&(id.classes.clone(), id.name.clone())))
            .map(|id| id.name.as_str())
            .collect();
        // A function that is named elsewhere, be it in a comment or a string, may be needed there.
        let mut counts: HashMap<&[u8], usize> = HashMap::new();
        for word in words(&content) {
            *counts.entry(word).or_default() += 1;
        }
        let removable = known
            .iter()
            .filter(|((_, name), _)| !inherited.contains(name.as_str()))
            .filter(|((classes, name), ranges)| {
                let inside = ranges.iter().map(|range| {
                    words(&content[range.clone()])
                        .filter(|word| *word == name.as_bytes())
                        .count()
                });
                // Tests of other classes may have the same name.
                let others = known
                    .iter()
                    .filter(|((other, same), _)| same == name && other != classes)
                    .map(|(_, ranges)| ranges.len());
                let expected = inside.sum::<usize>() + others.sum::<usize>();
                counts.get(name.as_bytes()) == Some(&expected)
            })
            .map(|(key, _)| key.clone())
            .collect();
        Some(Source { content, removable })
    }
}

fn parse(content: &[u8]) -> Option<tree_sitter::Tree> {
    let mut parser = Parser::new();
    parser
        .set_language(&tree_sitter_python::LANGUAGE.into())
        .ok()?;
    let tree = parser.parse(content, None)?;
    (!tree.root_node().has_error()).then_some(tree)
}

/// No file of tests nests deeper.
const MAX_DEPTH: usize = 100;

#[derive(Default)]
struct Definitions {
    found: BTreeMap<(Vec<String>, String), Vec<Range<usize>>>,
}

impl Definitions {
    fn collect(&mut self, block: Node<'_>, content: &[u8], classes: &mut Vec<String>) {
        if classes.len() > MAX_DEPTH {
            return;
        }
        for statement in statements(block) {
            let definition = definition_of(statement);
            let name = name_of(definition, content);
            match (definition.kind(), name) {
                ("function_definition", Some(name)) => self
                    .found
                    .entry((classes.clone(), name))
                    .or_default()
                    .push(statement.byte_range()),
                ("class_definition", Some(name)) => {
                    if let Some(body) = definition.child_by_field_name("body") {
                        classes.push(name);
                        self.collect(body, content, classes);
                        classes.pop();
                    }
                }
                _ => {
                    for inner in blocks(definition) {
                        self.collect(inner, content, classes);
                    }
                }
            }
        }
    }
}

/// The statements of a block or module, comments left out.
fn statements(block: Node<'_>) -> Vec<Node<'_>> {
    let mut cursor = block.walk();
    block
        .named_children(&mut cursor)
        .filter(|node| node.kind() != "comment")
        .collect()
}

/// The function or class within its decorators.
fn definition_of(statement: Node<'_>) -> Node<'_> {
    if statement.kind() == "decorated_definition" {
        statement
            .child_by_field_name("definition")
            .unwrap_or(statement)
    } else {
        statement
    }
}

fn name_of(definition: Node<'_>, content: &[u8]) -> Option<String> {
    let name = definition.child_by_field_name("name")?;
    Some(name.utf8_text(content).ok()?.to_owned())
}

/// The blocks of a conditional, `try`, `with` or loop.
fn blocks(statement: Node<'_>) -> Vec<Node<'_>> {
    let mut found = Vec::new();
    let mut cursor = statement.walk();
    for child in statement.named_children(&mut cursor) {
        match child.kind() {
            "block" => found.push(child),
            "elif_clause"
            | "else_clause"
            | "except_clause"
            | "except_group_clause"
            | "finally_clause" => found.extend(blocks(child)),
            _ => {}
        }
    }
    found
}

/// The names and keywords of a file, in comments and strings too.
fn words(content: &[u8]) -> impl Iterator<Item = &[u8]> {
    content
        .split(|byte| !(byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80))
        .filter(|word| !word.is_empty())
}

type Wanted<'w> = BTreeSet<(&'w [String], &'w str)>;

/// The file without the functions; `None` when it would not parse any more.
fn without(content: &[u8], functions: &Wanted<'_>) -> Option<Vec<u8>> {
    let tree = parse(content)?;
    let mut edits = Vec::new();
    cut(
        tree.root_node(),
        content,
        functions,
        &mut Vec::new(),
        &mut edits,
    );
    edits.sort_by_key(|(range, _): &(Range<usize>, Vec<u8>)| range.start);
    let mut out = Vec::with_capacity(content.len());
    let mut at = 0;
    for (range, replacement) in edits {
        if range.start < at {
            return None;
        }
        out.extend_from_slice(&content[at..range.start]);
        out.extend_from_slice(&replacement);
        at = range.end;
    }
    out.extend_from_slice(&content[at..]);
    parse(&out)?;
    Some(out)
}

/// Cuts functions out of a block. Whether nothing but comments is left of it.
fn cut(
    block: Node<'_>,
    content: &[u8],
    functions: &Wanted<'_>,
    classes: &mut Vec<String>,
    edits: &mut Vec<(Range<usize>, Vec<u8>)>,
) -> bool {
    if classes.len() > MAX_DEPTH {
        return false;
    }
    let mut n_left = 0;
    let mut n_cut = 0;
    for statement in statements(block) {
        let definition = definition_of(statement);
        let name = name_of(definition, content);
        match (definition.kind(), name) {
            ("function_definition", Some(name))
                if functions.contains(&(classes.as_slice(), name.as_str())) =>
            {
                edits.push((lines_of(statement, content), Vec::new()));
                n_cut += 1;
            }
            ("class_definition", Some(name)) => {
                let Some(body) = definition.child_by_field_name("body") else {
                    continue;
                };
                let before = edits.len();
                classes.push(name.clone());
                let emptied = cut(body, content, functions, classes, edits);
                classes.pop();
                let n_named = words(content).filter(|word| *word == name.as_bytes());
                if emptied && n_named.count() == 1 {
                    edits.truncate(before);
                    edits.push((lines_of(statement, content), Vec::new()));
                    n_cut += 1;
                    continue;
                }
                if emptied {
                    keep_open(body, content, &mut edits[before..]);
                }
                n_left += 1;
            }
            _ => {
                for inner in blocks(definition) {
                    let before = edits.len();
                    if cut(inner, content, functions, classes, edits) {
                        keep_open(inner, content, &mut edits[before..]);
                    }
                }
                n_left += 1;
            }
        }
    }
    n_cut > 0 && n_left == 0
}

/// Puts `pass` where the first statement of an emptied block was.
fn keep_open(block: Node<'_>, content: &[u8], edits: &mut [(Range<usize>, Vec<u8>)]) {
    let Some((range, replacement)) = edits.iter_mut().min_by_key(|(range, _)| range.start) else {
        return;
    };
    let first = statements(block)
        .first()
        .map_or(range.start, |s| s.start_byte());
    replacement.extend_from_slice(&content[range.start..first]);
    replacement.extend_from_slice(b"pass");
    replacement.extend_from_slice(line_end(content, range.end));
}

/// The line ending before a position: none, `\n` or `\r\n`.
fn line_end(content: &[u8], end: usize) -> &[u8] {
    let line = &content[..end];
    let length = match line {
        [.., b'\r', b'\n'] => 2,
        [.., b'\n'] => 1,
        _ => 0,
    };
    &line[end - length..]
}

/// The whole lines that a statement is on.
fn lines_of(statement: Node<'_>, content: &[u8]) -> Range<usize> {
    let start = content[..statement.start_byte()]
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    // What ends with a line ending is not carried on to the next line.
    let last = statement.end_byte().max(start + 1);
    let end = content[last - 1..]
        .iter()
        .position(|byte| *byte == b'\n')
        .map_or(content.len(), |length| last + length);
    start..end
}

#[cfg(test)]
mod tests;
