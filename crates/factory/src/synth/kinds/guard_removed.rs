//! A function or a loop does not leave early where it should.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "guard_removed",
    "an early exit is missing",
    &["if_statement"],
    find,
);

fn find(code: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    let Some(body) = node.field("consequence") else {
        return;
    };
    let leaves = body.n_named() == 1
        && body.named().all(|statement| {
            statement.is_any(&["return_statement", "raise_statement", "continue_statement"])
        });
    let is_only = node.parent().is_none_or(|block| block.n_named() < 2);
    if leaves && !is_only && node.field("alternative").is_none() && code.is_removable(node) {
        bugs.edit(code.removal(node));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::body;

    #[test]
    fn cases() {
        let kind = &super::KIND;
        body(kind, "if not a:\n    return b\nreturn c", &["return c"]);
        body(
            kind,
            "for x in a:\n    if x: continue\n    b(x)",
            &["for x in a:\n    b(x)"],
        );
        body(kind, "if a:\n    b()\nreturn c", &[]);
        body(kind, "if a:\n    return b\nelse:\n    c()\nreturn c", &[]);
    }
}
