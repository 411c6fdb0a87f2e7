//! The end of a range is on the wrong side.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "boundary",
    "the end of a range is on the wrong side",
    &["comparison_operator"],
    find,
);

fn find(_: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    for operator in comparisons(node) {
        for (from, to) in [("<", "<="), ("<=", "<"), (">", ">="), (">=", ">")] {
            if operator.is(from) {
                bugs.replace(operator, to);
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
        body(
            kind,
            "return a <= b < c",
            &["return a < b < c", "return a <= b <= c"],
        );
        body(kind, "return a == b", &[]);
    }
}
