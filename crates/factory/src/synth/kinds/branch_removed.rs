//! An `elif`, an `else` or a `finally` is gone.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "branch_removed",
    "a branch is missing",
    &["elif_clause", "else_clause", "finally_clause"],
    find,
);

fn find(code: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    let Some(statement) = node.parent() else {
        return;
    };
    // A try needs one or the other.
    let is_needed = node.is("finally_clause")
        && !statement.named().any(|part| part.is("except_clause"));
    if is_needed || !code.has_own_lines(node) || !code.is_removable(node) {
        return;
    }
    let start = code.source.line_start(node.start());
    let end = code.source.line_end(node.code_end());
    bugs.edit(Edit::new(start..end, ""));
}

#[cfg(test)]
mod tests {
    use super::super::tests::body;

    #[test]
    fn cases() {
        let kind = &super::KIND;
        body(
            kind,
            "if a:\n    b()\nelif c:\n    d()\nelse:\n    e()\nreturn a",
            &[
                "if a:\n    b()\nelse:\n    e()\nreturn a",
                "if a:\n    b()\nelif c:\n    d()\nreturn a",
            ],
        );
        body(
            kind,
            "try:\n    a()\nexcept b:\n    c()\nfinally:\n    d()",
            &["try:\n    a()\nexcept b:\n    c()"],
        );
        body(kind, "try:\n    a()\nfinally:\n    d()", &[]);
        body(kind, "if a:\n    b()", &[]);
    }
}
