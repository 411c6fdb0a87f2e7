//! Another variable of the same function is read.
//!
//! The other one has a value by then (it is a parameter, or was assigned earlier in the text of the
//! same function), and is used in the same way somewhere: called, indexed, asked for an attribute,
//! or none of these. Of several, the two nearest before the place are taken.

use std::collections::BTreeMap;

use super::common::*;

pub(super) const KIND: Kind = Kind::functions(
    "variable_misuse",
    "the wrong variable is used",
    find,
);

const MAX_OTHERS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Called,
    Indexed,
    Asked,
    Plain,
}

fn find(code: &Code<'_>, unit: usize, bugs: &mut Bugs) {
    let function = code.source.node(code.definitions[unit].node);
    let Some(parameters) = function.field("parameters") else {
        return;
    };
    let identifiers: Vec<Node<'_>> = code
        .own(unit)
        .filter(|node| node.is("identifier") && is_variable(*node))
        .collect();
    // Uses of each name, so that a name is only taken for another of its like.
    let mut uses: BTreeMap<&str, Vec<Use>> = BTreeMap::new();
    for node in identifiers.iter().filter(|node| !is_bound_here(**node)) {
        uses.entry(node.text()).or_default().push(use_of(*node));
    }
    // The latest binding or use is the nearest one.
    let mut known: Vec<&str> = parameters.named().filter_map(parameter_name).collect();
    known.retain(|name| !["self", "cls"].contains(name));
    let mut pending: Vec<(usize, &str)> = Vec::new();
    for node in identifiers {
        // A name is bound behind the statement that binds it.
        let (ready, later) = pending
            .iter()
            .partition::<Vec<(usize, &str)>, _>(|(end, _)| *end <= node.start());
        pending = later;
        for (_, name) in ready {
            known.retain(|other| *other != name);
            known.push(name);
        }
        if known.len() > 64 {
            known.remove(0);
        }
        let name = node.text();
        if is_bound_here(node) {
            let end = code.statement(node).map_or(node.end(), |statement| {
                // In a loop or a with, the body has the name already.
                statement.field("body").map_or(statement.end(), |body| body.start())
            });
            if !in_comprehension(node) {
                pending.push((end, name));
            }
            continue;
        }
        if !known.contains(&name) {
            continue;
        }
        let wanted = use_of(node);
        known
            .iter()
            .rev()
            .filter(|other| **other != name)
            .filter(|other| uses.get(**other).is_some_and(|uses| uses.contains(&wanted)))
            .take(MAX_OTHERS)
            .for_each(|other| bugs.replace(node, *other));
        known.retain(|other| *other != name);
        known.push(name);
    }
}

fn parameter_name(parameter: Node<'_>) -> Option<&str> {
    match parameter.kind() {
        "identifier" => Some(parameter.text()),
        "typed_parameter" | "list_splat_pattern" | "dictionary_splat_pattern" => {
            let inner = parameter.named().next()?;
            inner.is("identifier").then(|| inner.text())
        }
        _ => parameter.field("name").map(|name| name.text()),
    }
}

/// Whether an identifier names a variable, and not an attribute, a keyword or a parameter.
fn is_variable(node: Node<'_>) -> bool {
    let Some(parent) = node.parent() else {
        return false;
    };
    match parent.kind() {
        "attribute" => node.field_name() == Some("object"),
        "keyword_argument" => node.field_name() == Some("value"),
        "parameters" | "lambda_parameters" | "typed_parameter" | "typed_default_parameter"
        | "default_parameter" | "list_splat_pattern" | "dictionary_splat_pattern"
        | "dotted_name" | "aliased_import" | "function_definition" | "class_definition" => false,
        _ => !["self", "cls", "super"].contains(&node.text()),
    }
}

/// Whether a variable gets a value where it stands.
fn is_bound_here(node: Node<'_>) -> bool {
    let mut inner = node;
    for outer in node.ancestors() {
        match outer.kind() {
            "pattern_list" | "tuple_pattern" | "list_pattern" => inner = outer,
            "as_pattern_target" | "delete_statement" => return true,
            "assignment" | "augmented_assignment" | "for_statement" | "for_in_clause" => {
                return inner.field_name() == Some("left");
            }
            "named_expression" => return inner.field_name() == Some("name"),
            "except_clause" => return inner.field_name() == Some("alias"),
            _ => return false,
        }
    }
    false
}

fn in_comprehension(node: Node<'_>) -> bool {
    node.ancestors()
        .take_while(|outer| !outer.is("block"))
        .any(|outer| outer.is_any(&["for_in_clause", "lambda"]))
}

fn use_of(node: Node<'_>) -> Use {
    let Some(parent) = node.parent() else {
        return Use::Plain;
    };
    match (parent.kind(), node.field_name()) {
        ("call", Some("function")) => Use::Called,
        ("subscript", Some("value")) => Use::Indexed,
        ("attribute", Some("object")) => Use::Asked,
        _ => Use::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::module;

    #[test]
    fn cases() {
        let kind = &super::KIND;
        module(
            kind,
            "def f(a, b):\n    c = a + b\n    return c\n",
            &[
                "def f(a, b):\n    c = b + b\n    return c\n",
                "def f(a, b):\n    c = a + a\n    return c\n",
                "def f(a, b):\n    c = a + b\n    return b\n",
                "def f(a, b):\n    c = a + b\n    return a\n",
            ],
        );
        // Not yet bound, used in another way, of another function, or no variable.
        module(
            kind,
            "def f(a, b):\n    b[0]\n    a.x = 1\n    c = 1\n    g(c=c)\n",
            &[""; 0],
        );
    }
}
