//! A part of a condition is missing.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "condition_dropped",
    "a part of a condition is missing",
    &["boolean_operator", "if_clause"],
    find,
);

fn find(code: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    if node.is("if_clause") {
        // Without its guard, a pattern may make the ones below it unreachable, which is an error.
        if node.parent().is_some_and(|outer| outer.is("case_clause")) {
            return;
        }
        // With the blank before it.
        let text = code.source.text();
        let gap = text[..node.start()].len() - text[..node.start()].trim_end_matches(' ').len();
        bugs.edit(Edit::new(node.start() - gap..node.end(), ""));
        return;
    }
    if let (Some(left), Some(right)) = (node.field("left"), node.field("right")) {
        bugs.replace(node, left.text());
        bugs.replace(node, right.text());
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
            "return (a\n        and b)",
            &["return (a)", "return (b)"],
        );
        body(
            kind,
            "return [x for x in a if x]",
            &["return [x for x in a]"],
        );
        body(kind, "return not a", &[]);
    }
}
