//! A condition is connected, negated or answered wrongly.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "boolean",
    "a truth value is wrong",
    &[
        "boolean_operator",
        "not_operator",
        "true",
        "false",
        "if_statement",
        "elif_clause",
        "while_statement",
        "conditional_expression",
        "if_clause",
    ],
    find,
);

fn find(_: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    match node.kind() {
        "boolean_operator" => {
            if let Some(operator) = operator(node) {
                bugs.replace(operator, if operator.is("and") { "or" } else { "and" });
            }
        }
        "not_operator" => {
            if let Some(argument) = node.field("argument") {
                bugs.replace(node, argument.text());
            }
        }
        kind @ ("true" | "false") => {
            // Those of parameters are the business of `default_value`; `while True` without end
            // would become code that never runs.
            let is_default = node.field_name() == Some("value")
                && node.parent().is_some_and(|parent| {
                    parent.is_any(&["default_parameter", "typed_default_parameter"])
                });
            let is_condition = node.field_name() == Some("condition");
            if !is_default && !is_condition {
                bugs.replace(node, if kind == "true" { "False" } else { "True" });
            }
        }
        _ => {
            let condition = match node.kind() {
                "conditional_expression" => node.named().nth(1),
                "if_clause" => node.named().next(),
                _ => node.field("condition"),
            };
            // Comparisons have their own kind, and `not` is handled above.
            let is_plain = |condition: &Node<'_>| {
                condition.is_any(&["identifier", "attribute", "call", "subscript"])
            };
            if let Some(condition) = condition.filter(is_plain) {
                bugs.replace(condition, format!("not {}", condition.text()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::body;

    #[test]
    fn cases() {
        let kind = &super::KIND;
        body(kind, "return a and not b", &["return a or not b", "return a and b"]);
        body(kind, "return g(x=True)", &["return g(x=False)"]);
        body(kind, "if a.b: return 1", &["if not a.b: return 1"]);
        body(
            kind,
            "return [x for x in a if x]",
            &["return [x for x in a if not x]"],
        );
        body(kind, "return a if b else c", &["return a if not b else c"]);
        body(kind, "while True: a()", &[]);
        body(kind, "if a == b: a()", &[]);
    }
}
