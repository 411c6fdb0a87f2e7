//! Two neighbouring arguments of a call are exchanged.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "argument_order",
    "the arguments of a call are in the wrong order",
    &["call"],
    find,
);

/// Functions for which another order says the same or can only be an error of type.
const LEFT_ALONE: &[&str] = &[
    "isinstance", "issubclass", "hasattr", "getattr", "setattr", "delattr", "print", "super",
    "min", "max", "type", "open",
];

fn find(_: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    let (Some(function), Some(arguments)) = (node.field("function"), node.field("arguments"))
    else {
        return;
    };
    if !arguments.is("argument_list") || LEFT_ALONE.contains(&function.text()) {
        return;
    }
    for pair in positional(arguments).windows(2) {
        if pair[0].text() != pair[1].text() {
            bugs.exchange(pair[0], pair[1]);
        }
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
            "return g(a, b, c, d=1)",
            &["return g(b, a, c, d=1)", "return g(a, c, b, d=1)"],
        );
        body(kind, "return g(a, a, *b)", &[]);
        body(kind, "return isinstance(a, b)", &[]);
        body(kind, "return max(a, b)", &[]);
    }
}
