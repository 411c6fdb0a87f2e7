//! The functions and classes of a file.

use std::ops::Range;

use super::{Node, Source};

/// What is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DefinitionKind {
    /// `def` or `async def`, methods included.
    Function,
    /// `class`.
    Class,
}

/// A function or a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Which.
    pub kind: DefinitionKind,
    /// Names from the outside to the inside, joined by dots: `Class.method`, `outer.inner`. As
    /// Python's `__qualname__` without `<locals>`. It is not unique: a file may define a name twice.
    pub name: String,
    /// Index of the definition around it in the list of [`definitions`].
    pub parent: Option<usize>,
    /// From `def`, `async` or `class` to the end of the last statement.
    pub bytes: Range<usize>,
    /// The same with its decorators.
    pub decorated_bytes: Range<usize>,
    /// From `def`, `async` or `class` to the colon, which is included.
    pub signature: Range<usize>,
    /// Its statements, from the first (a docstring is one) to the last.
    pub body: Range<usize>,
    /// The string that documents it.
    pub docstring: Option<Range<usize>>,
    /// What stands behind each `@`.
    pub decorators: Vec<String>,
    /// First line with decorators, counted from 1.
    pub first_line: u32,
    /// Last line.
    pub last_line: u32,
    /// Index of its node in the [`Source`].
    pub node: usize,
}

/// The functions and classes of a file in the order of their beginnings, at all depths.
pub fn definitions(source: &Source) -> Vec<Definition> {
    let mut list: Vec<Definition> = Vec::new();
    let mut open: Vec<(usize, usize)> = Vec::new();
    for index in 0..source.n_nodes() {
        let node = source.node(index);
        let kind = match node.kind() {
            "function_definition" => DefinitionKind::Function,
            "class_definition" => DefinitionKind::Class,
            _ => continue,
        };
        while open.last().is_some_and(|(end, _)| *end <= index) {
            open.pop();
        }
        let parent = open.last().map(|(_, at)| *at);
        open.push((node.next_index(), list.len()));
        let own = node.field("name").map_or("", |name| name.text());
        let name = match parent {
            Some(parent) => format!("{}.{own}", list[parent].name),
            None => own.to_owned(),
        };
        let outer = node
            .parent()
            .filter(|parent| parent.is("decorated_definition"));
        let decorators = outer
            .iter()
            .flat_map(Node::named)
            .filter(|part| part.is("decorator"))
            .map(|part| part.text().trim_start_matches('@').trim().to_owned())
            .collect();
        let decorated_bytes = outer.unwrap_or(node).start()..node.code_end();
        let body = node.field("body");
        list.push(Definition {
            kind,
            name,
            parent,
            bytes: node.start()..node.code_end(),
            signature: node.start()
                ..node
                    .children()
                    .filter(|part| part.is(":"))
                    .last()
                    .map_or(node.end(), |colon| colon.end()),
            body: body.map_or(node.end()..node.end(), |body| body.start()..body.code_end()),
            docstring: body.and_then(docstring).map(|string| string.range()),
            decorators,
            first_line: source.line(decorated_bytes.start),
            last_line: source.line(decorated_bytes.end.saturating_sub(1)),
            decorated_bytes,
            node: index,
        });
    }
    list
}

/// The string literal that begins a block or a module and documents it.
pub(crate) fn docstring(body: Node<'_>) -> Option<Node<'_>> {
    body.named()
        .next()
        .filter(|first| is_docstring_statement(*first))
        .and_then(|first| first.named().next())
}

/// Whether a statement is nothing but a string: a docstring, or text that somebody left there.
pub(crate) fn is_docstring_statement(statement: Node<'_>) -> bool {
    statement.is("expression_statement")
        && statement.n_named() == 1
        && statement
            .named()
            .all(|value| value.is_any(&["string", "concatenated_string"]))
}
