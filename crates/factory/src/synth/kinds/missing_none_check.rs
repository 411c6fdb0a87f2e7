//! Nobody asks whether a value is there.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "missing_none_check",
    "a check for None is missing",
    &["if_statement", "boolean_operator", "conditional_expression"],
    find,
);

fn find(code: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    match node.kind() {
        "if_statement" => {
            let (Some(condition), Some(body)) =
                (node.field("condition"), node.field("consequence"))
            else {
                return;
            };
            let is_plain = node.field("alternative").is_none();
            match tested(ungrouped(condition)) {
                Some(true) if is_plain && code.is_removable(node) => bugs.edit(code.removal(node)),
                Some(false) if is_plain => {
                    if let Some(lifted) = code.lifted(body, node) {
                        bugs.edit(Edit::new(node.start()..node.code_end(), lifted));
                    }
                }
                _ => {}
            }
        }
        "boolean_operator" => {
            let (Some(left), Some(right)) = (node.field("left"), node.field("right")) else {
                return;
            };
            if tested(ungrouped(left)).is_some() {
                bugs.replace(node, right.text());
            }
            if tested(ungrouped(right)).is_some() {
                bugs.replace(node, left.text());
            }
        }
        _ => {
            let parts: Vec<Node<'_>> = node.named().collect();
            let [there, condition, otherwise] = parts[..] else {
                return;
            };
            match tested(ungrouped(condition)) {
                Some(false) => bugs.replace(node, there.text()),
                Some(true) => bugs.replace(node, otherwise.text()),
                None => {}
            }
        }
    }
}

/// `Some(true)` for `x is None` and `x == None`, `Some(false)` for their negations.
fn tested(condition: Node<'_>) -> Option<bool> {
    let ends_in_none = condition.named().last()?.is("none");
    if !condition.is("comparison_operator") || condition.n_named() != 2 || !ends_in_none {
        return None;
    }
    match comparisons(condition).next()?.kind() {
        "is" | "==" => Some(true),
        "is not" | "!=" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::body;

    #[test]
    fn cases() {
        let kind = &super::KIND;
        body(
            kind,
            "if a is None:\n    a = 1\nreturn a",
            &["return a"],
        );
        body(
            kind,
            "if a is not None:\n    b = 1\n\n    c = 2\nreturn a",
            &["b = 1\n\nc = 2\nreturn a"],
        );
        body(kind, "return a is not None and a.b", &["return a.b"]);
        body(kind, "return a if a is not None else b", &["return a"]);
        body(kind, "return b if a is None else a", &["return a"]);
        body(kind, "if a is None:\n    b()\nelse:\n    c()", &[]);
        body(kind, "if a is b:\n    c()", &[]);
    }
}
