//! A loop ends or goes on where it should not.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "loop_control",
    "a loop ends or goes on where it should not",
    &["break_statement", "continue_statement"],
    find,
);

fn find(code: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    if node.is("continue_statement") {
        bugs.replace(node, "break");
        bugs.edit(code.removal(node));
        return;
    }
    let inner = node
        .ancestors()
        .find(|outer| outer.is_any(&["for_statement", "while_statement"]));
    // Nothing else ends an endless loop, and a test that never ends teaches nothing.
    let is_endless = inner.is_none_or(|inner| {
        inner
            .field("condition")
            .is_some_and(|condition| condition.is_any(&["true", "integer"]))
    });
    if !is_endless {
        bugs.replace(node, "continue");
        bugs.edit(code.removal(node));
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
            "for x in a:\n    if x:\n        b()\n        continue\n    break",
            &[
                "for x in a:\n    if x:\n        b()\n        break\n    break",
                "for x in a:\n    if x:\n        b()\n    break",
                "for x in a:\n    if x:\n        b()\n        continue\n    continue",
                "for x in a:\n    if x:\n        b()\n        continue",
            ],
        );
        body(kind, "while True:\n    if a: break", &[]);
    }
}
