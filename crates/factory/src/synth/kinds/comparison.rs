//! A comparison says the opposite or looks the other way.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "comparison",
    "a comparison is wrong",
    &["comparison_operator"],
    find,
);

const ALTERNATIVES: &[(&str, &[&str])] = &[
    ("==", &["!="]),
    ("!=", &["=="]),
    ("<", &[">=", ">"]),
    ("<=", &[">", ">="]),
    (">", &["<=", "<"]),
    (">=", &["<", "<="]),
    ("is", &["is not"]),
    ("is not", &["is"]),
    ("in", &["not in"]),
    ("not in", &["in"]),
];

fn find(_: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    for operator in comparisons(node) {
        for (from, alternatives) in ALTERNATIVES {
            if operator.is(from) {
                for to in *alternatives {
                    bugs.replace(operator, *to);
                }
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
        body(kind, "return a < b", &["return a >= b", "return a > b"]);
        body(kind, "return a is  not b", &["return a is b"]);
        body(
            kind,
            "return a in b == c",
            &["return a not in b == c", "return a in b != c"],
        );
        body(kind, "for x in a: pass", &[]);
    }
}
