//! A value is replaced where it should grow.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "accumulation",
    "a value is replaced where it should grow",
    &["augmented_assignment"],
    find,
);

fn find(_: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    if let Some(operator) = operator(node) {
        bugs.replace(operator, "=");
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::body;

    #[test]
    fn cases() {
        body(&super::KIND, "a += b", &["a = b"]);
        body(&super::KIND, "a.b //= c", &["a.b = c"]);
        body(&super::KIND, "a = b", &[]);
    }
}
