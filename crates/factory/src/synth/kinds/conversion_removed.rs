//! A value is not converted to the type it should have.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "conversion_removed",
    "a conversion is missing",
    &["call"],
    find,
);

const CONVERSIONS: &[&str] = &[
    "int", "str", "float", "bool", "bytes", "tuple", "set", "frozenset", "abs", "round", "repr",
];

fn find(_: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    let Some((function, arguments)) = name_call(node) else {
        return;
    };
    let given = positional(arguments);
    if let [value] = given[..]
        && arguments.n_named() == 1
        && CONVERSIONS.contains(&function.text())
        && value.is_any(&["identifier", "attribute", "call", "subscript"])
    {
        bugs.replace(node, value.text());
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::body;

    #[test]
    fn cases() {
        let kind = &super::KIND;
        body(kind, "return int(a.b)", &["return a.b"]);
        body(kind, "return set(a) - b", &["return a - b"]);
        body(kind, "return int(a, 16), tuple(), a.int(b)", &[]);
    }
}
