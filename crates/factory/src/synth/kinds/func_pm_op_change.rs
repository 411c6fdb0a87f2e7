//! Operators become others of their family.

use super::common::*;

pub(super) const KIND: Kind = Kind::unit(
    "func_pm_op_change",
    "operators are replaced by similar ones",
    DefinitionKind::Function,
    change,
);

const FAMILIES: &[&[&str]] = &[
    &["+", "-"],
    &["*", "/", "//", "%"],
    &["&", "|", "^"],
    &["<<", ">>"],
    &["**", "*"],
];

fn change(code: &Code<'_>, unit: usize, coin: &mut Coin) -> Vec<Edit> {
    let mut edits = Vec::new();
    for node in code.own(unit).filter(|node| node.is("binary_operator")) {
        let Some(operator) = operator(node).filter(|_| !is_formatting(node)) else {
            continue;
        };
        let family = FAMILIES
            .iter()
            .find(|family| family.contains(&operator.text()));
        let Some(family) = family.filter(|_| coin.flip()) else {
            continue;
        };
        let others: Vec<&str> = family
            .iter()
            .copied()
            .filter(|other| *other != operator.text())
            .collect();
        edits.push(Edit::new(operator.range(), coin.pick(&others)));
    }
    edits
}

/// Whether `%` fills a string.
pub(super) fn is_formatting(node: Node<'_>) -> bool {
    node.field("left").is_some_and(is_string)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{always, never};

    #[test]
    fn cases() {
        let kind = &super::KIND;
        always(
            kind,
            "def f(a, b):\n    return a + b\n",
            &["def f(a, b):\n    return a - b\n"],
        );
        always(
            kind,
            "def f(a, b):\n    return a ** b\n",
            &["def f(a, b):\n    return a * b\n"],
        );
        always(
            kind,
            "def f(a, b):\n    return a << b\n",
            &["def f(a, b):\n    return a >> b\n"],
        );
        never(kind, "def f(a, b):\n    return 'x%s' % a\n");
        never(kind, "def f(a, b):\n    return a @ b\n");
    }
}
