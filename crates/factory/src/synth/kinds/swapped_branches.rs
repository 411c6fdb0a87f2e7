//! Two branches are exchanged.

use super::{common::*, func_pm_ctrl_invert_if::bodies};

pub(super) const KIND: Kind = Kind::places(
    "swapped_branches",
    "two branches are exchanged",
    &["if_statement", "conditional_expression"],
    find,
);

fn find(code: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    if node.is("conditional_expression") {
        let parts: Vec<Node<'_>> = node.named().collect();
        if let [then, _, otherwise] = parts[..]
            && then.text() != otherwise.text()
        {
            let then = match then.kind() {
                "conditional_expression" => grouped(then),
                _ => then.text().to_owned(),
            };
            let moved = match otherwise.kind() {
                "conditional_expression" | "lambda" => grouped(otherwise),
                _ => otherwise.text().to_owned(),
            };
            bugs.edits(vec![
                Edit::new(parts[0].range(), moved),
                Edit::new(otherwise.range(), then),
            ]);
        }
        return;
    }
    if let Some((a, b)) = bodies(node) {
        bugs.maybe_edits(code.exchanged_blocks(a, b));
        return;
    }
    let blocks: Vec<Node<'_>> = node
        .field("consequence")
        .into_iter()
        .chain(
            node.named()
                .filter(|part| part.is("elif_clause"))
                .filter_map(|part| part.field("consequence")),
        )
        .collect();
    for pair in blocks.windows(2) {
        bugs.maybe_edits(code.exchanged_blocks(pair[0], pair[1]));
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
            "if a:\n    b()\nelse:\n    c()\n    d()",
            &["if a:\n    c()\n    d()\nelse:\n    b()"],
        );
        body(
            kind,
            "if a:\n    b()\nelif c:\n    d()",
            &["if a:\n    d()\nelif c:\n    b()"],
        );
        body(kind, "return a if b else c", &["return c if b else a"]);
        body(kind, "if a:\n    b()", &[]);
        body(kind, "if a: b()\nelse:\n    c()", &[]);
    }
}
