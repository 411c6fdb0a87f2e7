//! The code of one file as the kinds see it: which parts may be changed, and in which function or
//! class each lies.
//!
//! Changed is only code of functions and classes. Never changed are docstrings and other strings
//! that stand alone, type annotations, decorators, imports, `assert`, patterns of `match`, the
//! inside of f-strings, names with double underscores at class level (`__slots__`), what stands
//! below `if TYPE_CHECKING`, functions marked `@overload` and `__repr__` (nobody asserts on them,
//! or everybody does), calls that only log or warn, and the messages of `raise`: such changes are
//! either noise or break every caller at once.

use std::{collections::BTreeMap, ops::Range};

use super::edit::Edit;
use crate::syntax::{
    Definition, DefinitionKind, Node, Source, definitions, is_docstring_statement, is_type_checking,
};

/// A parsed file with its definitions.
pub(crate) struct Code<'a> {
    pub(crate) source: &'a Source,
    pub(crate) definitions: Vec<Definition>,
    /// For each node, 1 + the index of the innermost definition whose body or parameters hold it,
    /// or 0.
    unit: Vec<u32>,
    open: Vec<bool>,
    /// Names that some function declares `nonlocal`: each needs a binding in a function around.
    nonlocal_names: Vec<&'a str>,
}

impl<'a> Code<'a> {
    pub(crate) fn new(source: &'a Source) -> Self {
        let definitions = definitions(source);
        let mut code = Code {
            source,
            unit: vec![0; source.n_nodes()],
            open: vec![false; source.n_nodes()],
            nonlocal_names: Vec::new(),
            definitions,
        };
        code.assign_units();
        code.open_nodes();
        code
    }

    fn assign_units(&mut self) {
        for (at, definition) in self.definitions.iter().enumerate() {
            let node = self.source.node(definition.node);
            // Inner definitions come later in the list and overwrite.
            for index in node.index() + 1..node.next_index() {
                self.unit[index] = at as u32 + 1;
            }
        }
    }

    fn open_nodes(&mut self) {
        let mut index = 0;
        while index < self.source.n_nodes() {
            let node = self.source.node(index);
            if node.is("nonlocal_statement") {
                let names = node.named().map(|name| name.text());
                self.nonlocal_names.extend(names);
            }
            if self.is_closed(node) {
                index = node.next_index();
                continue;
            }
            self.open[index] = self.unit[index] != 0;
            index = if node.is("raise_statement") {
                node.next_index()
            } else {
                index + 1
            };
        }
    }

    fn is_closed(&self, node: Node<'_>) -> bool {
        if matches!(
            node.field_name(),
            Some("type" | "return_type" | "type_parameters" | "name")
        ) && node
            .parent()
            .is_some_and(|parent| !parent.is("keyword_argument"))
            || node.field_name() == Some("superclasses")
        {
            return true;
        }
        match node.kind() {
            "comment"
            | "decorator"
            | "import_statement"
            | "import_from_statement"
            | "future_import_statement"
            | "assert_statement"
            | "type_alias_statement"
            | "print_statement"
            | "exec_statement"
            | "case_pattern"
            | "interpolation"
            | "global_statement"
            | "nonlocal_statement"
            | "type_parameter" => true,
            "expression_statement" => is_docstring_statement(node) || is_noise(node),
            "if_statement" => node.field("condition").is_some_and(is_type_checking),
            "raise_statement" => node.text().contains("NotImplemented"),
            "function_definition" => {
                node.field("name")
                    .is_some_and(|name| name.text() == "__repr__")
                    || node.parent().is_some_and(|outer| {
                        outer.is("decorated_definition")
                            && outer.named().any(|part| {
                                part.is("decorator") && part.text().ends_with("overload")
                            })
                    })
            }
            "assignment" => {
                let is_in_class = self
                    .unit(node)
                    .is_some_and(|unit| self.definitions[unit].kind == DefinitionKind::Class);
                is_in_class
                    && node
                        .field("left")
                        .is_some_and(|left| left.text().starts_with("__"))
            }
            "call" => node.field("function").is_some_and(|function| {
                let name = function.text().rsplit('.').next().unwrap_or_default();
                ["TypeVar", "ParamSpec", "TypeVarTuple", "NewType", "cast"].contains(&name)
            }),
            _ => false,
        }
    }

    /// Whether a node may be changed.
    pub(crate) fn is_open(&self, node: Node<'_>) -> bool {
        self.open[node.index()]
    }

    /// Index of the innermost definition that holds a node in its parameters or body.
    pub(crate) fn unit(&self, node: Node<'_>) -> Option<usize> {
        (self.unit[node.index()] as usize).checked_sub(1)
    }

    /// The nodes that may be changed and belong to this definition and to no inner one, in order.
    pub(crate) fn own(&self, unit: usize) -> impl Iterator<Item = Node<'a>> + Clone + '_ {
        let node = self.source.node(self.definitions[unit].node);
        (node.index() + 1..node.next_index())
            .filter(move |index| self.open[*index] && self.unit[*index] as usize == unit + 1)
            .map(|index| self.source.node(index))
    }

    /// The statement that a node is or lies in.
    pub(crate) fn statement(&self, node: Node<'a>) -> Option<Node<'a>> {
        std::iter::once(node)
            .chain(node.ancestors())
            .find(|node| is_statement(*node))
    }

    /// Whether a statement can be taken away without breaking the syntax: it must not be a binding
    /// that some `nonlocal` needs.
    pub(crate) fn is_removable(&self, statement: Node<'_>) -> bool {
        self.nonlocal_names.is_empty()
            || !statement
                .descendants()
                .any(|part| part.is("identifier") && self.nonlocal_names.contains(&part.text()))
    }

    /// Takes a statement away: its lines when it has them for itself, else `pass` stands for it.
    pub(crate) fn removal(&self, statement: Node<'_>) -> Edit {
        let statement = whole(statement);
        let is_only = statement.parent().is_none_or(|block| block.n_named() < 2);
        self.removal_or_pass(statement, is_only)
    }

    /// Takes several statements away, of which none lies in another; a block that loses all of them
    /// gets a `pass`.
    pub(crate) fn removals(&self, statements: &[Node<'_>]) -> Vec<Edit> {
        let mut left: BTreeMap<usize, usize> = BTreeMap::new();
        let mut edits = Vec::new();
        for statement in statements.iter().map(|statement| whole(*statement)) {
            let is_last = statement.parent().is_none_or(|block| {
                let count = left.entry(block.index()).or_insert(block.n_named());
                *count = count.saturating_sub(1);
                *count == 0
            });
            edits.push(self.removal_or_pass(statement, is_last));
        }
        edits
    }

    fn removal_or_pass(&self, statement: Node<'_>, pass: bool) -> Edit {
        let end = statement.code_end();
        let lines = self.source.line_start(statement.start())..self.source.line_end(end);
        let text = self.source.text();
        let before = &text[lines.start..statement.start()];
        let after = text[end..lines.end].trim_start();
        if pass
            || !before.bytes().all(|byte| byte.is_ascii_whitespace())
            || !(after.is_empty() || after.starts_with('#'))
        {
            return Edit::new(statement.start()..end, "pass");
        }
        Edit::new(lines, "")
    }

    /// Whether a statement begins its line and nothing but a comment follows it on its last.
    pub(crate) fn has_own_lines(&self, statement: Node<'_>) -> bool {
        let end = statement.code_end();
        let text = self.source.text();
        let before = &text[self.source.line_start(statement.start())..statement.start()];
        let after = text[end..self.source.line_end(end)].trim_start();
        before.bytes().all(|byte| byte.is_ascii_whitespace())
            && (after.is_empty() || after.starts_with('#'))
    }

    /// Exchanges two blocks of one statement, or `None` when their layouts differ.
    pub(crate) fn exchanged_blocks(&self, a: Node<'a>, b: Node<'a>) -> Option<Vec<Edit>> {
        let (first_a, first_b) = (a.named().next()?, b.named().next()?);
        let text = self.source.text();
        let before = |node: Node<'_>| &text[self.source.line_start(node.start())..node.start()];
        let is_white = |text: &str| text.bytes().all(|byte| byte.is_ascii_whitespace());
        let (before_a, before_b) = (before(first_a), before(first_b));
        let same = match (is_white(before_a), is_white(before_b)) {
            (true, true) => before_a == before_b,
            (false, false) => true,
            _ => false,
        };
        let range = |first: Node<'_>, block: Node<'_>| first.start()..block.code_end();
        let (a, b) = (range(first_a, a), range(first_b, b));
        same.then(|| {
            vec![
                Edit::new(a.clone(), &text[b.clone()]),
                Edit::new(b, &text[a]),
            ]
        })
    }

    /// A block's statements moved to the place of `statement`, as text for its range: one level
    /// less deep, and without the header. `None` when a line of it cannot be moved: it continues a
    /// string, is indented otherwise, or the block stands on the line of its header.
    pub(crate) fn lifted(&self, block: Node<'_>, statement: Node<'_>) -> Option<String> {
        let text = self.source.text();
        let outer = &text[self.source.line_start(statement.start())..statement.start()];
        let first = block.named().next()?;
        let inner = &text[self.source.line_start(first.start())..first.start()];
        let is_white = |text: &str| text.bytes().all(|byte| byte == b' ' || byte == b'\t');
        if !is_white(outer) || !is_white(inner) || !inner.starts_with(outer) || inner == outer {
            return None;
        }
        let range = first.start()..block.code_end();
        let is_split_string = block
            .descendants()
            .any(|part| part.is("string") && text[part.range()].contains('\n'));
        if is_split_string {
            return None;
        }
        let mut lifted = String::new();
        for (at, line) in text[range].split_inclusive('\n').enumerate() {
            if at == 0 {
                lifted.push_str(line);
                continue;
            }
            match line.strip_prefix(inner) {
                Some(rest) => {
                    lifted.push_str(outer);
                    lifted.push_str(rest);
                }
                // Less deep than the block: an empty line, a comment or the inside of brackets.
                None if line.trim().is_empty() || line.trim_start().starts_with('#') => {
                    lifted.push_str(line);
                }
                None => return None,
            }
        }
        Some(lifted)
    }

    /// The text of a range.
    pub(crate) fn text(&self, range: Range<usize>) -> &'a str {
        &self.source.text()[range]
    }
}

/// A definition with its decorators, any other statement itself.
fn whole(statement: Node<'_>) -> Node<'_> {
    match statement.parent() {
        Some(outer) if outer.is("decorated_definition") => outer,
        _ => statement,
    }
}

/// Whether a node is a statement (a decorated definition is one).
pub(crate) fn is_statement(node: Node<'_>) -> bool {
    node.parent()
        .is_some_and(|parent| parent.is("block") || parent.is("module"))
        && node.is_named()
        && !node.is_extra()
}

/// Whether a statement only logs, warns or does nothing.
fn is_noise(statement: Node<'_>) -> bool {
    let Some(value) = statement.named().next() else {
        return true;
    };
    if value.is("ellipsis") {
        return true;
    }
    let Some(function) = value.field("function").filter(|_| value.is("call")) else {
        return false;
    };
    let Some((object, method)) = function.text().rsplit_once('.') else {
        return function.text() == "warn";
    };
    let object = object.rsplit('.').next().unwrap_or(object);
    let object = object.trim_start_matches('_').to_ascii_lowercase();
    match method {
        "warn" => object == "warnings" || object.starts_with("log"),
        "debug" | "info" | "warning" | "error" | "exception" | "critical" | "log" => {
            object.starts_with("log") || object.ends_with("logger") || object.ends_with("log")
        }
        _ => false,
    }
}
