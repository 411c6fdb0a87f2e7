//! A call that is made for its effect is missing.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "call_removed",
    "a call is missing",
    &["expression_statement"],
    find,
);

fn find(code: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    let Some(mut value) = node.named().next().filter(|_| node.n_named() == 1) else {
        return;
    };
    if value.is("await")
        && let Some(inner) = value.named().next()
    {
        value = inner;
    }
    if value.is("call") && code.is_removable(node) {
        bugs.edit(code.removal(node));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::body;

    #[test]
    fn cases() {
        let kind = &super::KIND;
        body(kind, "super().f(a)\nreturn b", &["return b"]);
        body(kind, "a.b()", &["pass"]);
        body(kind, "a = b()", &[]);
        body(kind, "logger.debug(a)", &[]);
    }
}
