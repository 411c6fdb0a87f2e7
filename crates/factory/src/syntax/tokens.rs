//! Code as a sequence of tokens in which what does not matter for likeness is gone: layout,
//! comments, docstrings and, by option, names and literals.

use std::{collections::HashMap, ops::Range};

use super::{Node, Source, definitions::docstring};

/// How names appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identifiers {
    /// As they are.
    Kept,
    /// All alike.
    Same,
    /// Numbered by first appearance, so that consistent renaming changes nothing.
    Numbered,
}

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenOptions {
    /// Names.
    pub identifiers: Identifiers,
    /// Whether strings and numbers appear as they are; otherwise only their type does.
    pub literals: bool,
    /// Whether type annotations appear.
    pub annotations: bool,
}

impl Default for TokenOptions {
    fn default() -> Self {
        TokenOptions {
            identifiers: Identifiers::Numbered,
            literals: false,
            annotations: false,
        }
    }
}

/// The tokens of the statements and expressions that lie within `range`; for a function, give
/// [`super::Definition::bytes`]. Blocks are marked by `{` and `}` so that nesting is seen.
pub fn tokens(source: &Source, range: Range<usize>, options: TokenOptions) -> Vec<String> {
    let mut out = Vec::new();
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let mut closing: Vec<usize> = Vec::new();
    let mut index = 0;
    while index < source.n_nodes() {
        let node = source.node(index);
        while closing.last().is_some_and(|end| *end <= index) {
            closing.pop();
            out.push("}".to_owned());
        }
        if node.end() <= range.start || node.start() >= range.end {
            index = node.next_index();
            continue;
        }
        let is_inside = range.start <= node.start() && node.end() <= range.end;
        let is_docstring = node.is_any(&["string", "concatenated_string"])
            && node
                .parent()
                .and_then(|statement| statement.parent())
                .and_then(docstring)
                == Some(node);
        if node.is_extra() || is_docstring || !options.annotations && is_annotation(node) {
            index = node.next_index();
            continue;
        }
        if is_inside && node.is("block") {
            out.push("{".to_owned());
            closing.push(node.next_index());
        }
        let whole_string =
            node.is("string") && !node.children().any(|part| part.is("interpolation"));
        if !is_inside || !(node.is_leaf() || whole_string) || node.start() == node.end() {
            index += 1;
            continue;
        }
        out.push(match node.kind() {
            "identifier" => match options.identifiers {
                Identifiers::Kept => node.text().to_owned(),
                Identifiers::Same => "name".to_owned(),
                Identifiers::Numbered => {
                    let next = numbers.len();
                    format!("name{}", numbers.entry(node.text()).or_insert(next))
                }
            },
            kind @ ("string" | "string_content" | "integer" | "float") if !options.literals => {
                kind.to_owned()
            }
            "string_start" | "string_end" => "\"".to_owned(),
            _ => node.text().to_owned(),
        });
        index = node.next_index();
    }
    out.extend(closing.iter().map(|_| "}".to_owned()));
    out
}

/// Whether a node is a type annotation or the punctuation before one.
fn is_annotation(node: Node<'_>) -> bool {
    let annotated = ["typed_parameter", "typed_default_parameter", "assignment"];
    match node.kind() {
        ":" => node
            .parent()
            .is_some_and(|parent| parent.is_any(&annotated)),
        "->" => true,
        _ => matches!(node.field_name(), Some("type" | "return_type")),
    }
}
