//! A chain of operations lacks a link.

use super::{common::*, func_pm_op_change::is_formatting};

pub(super) const KIND: Kind = Kind::unit(
    "func_pm_op_break_chains",
    "a chain of operations lacks a link",
    DefinitionKind::Function,
    change,
);

fn change(code: &Code<'_>, unit: usize, coin: &mut Coin) -> Vec<Edit> {
    chosen(code, unit, coin, |node| broken(node).is_some())
        .into_iter()
        .filter_map(broken)
        .collect()
}

/// `(a + b) + c` becomes `a + c`, and `a + (b + c)` becomes `a + c`.
fn broken(node: Node<'_>) -> Option<Edit> {
    if !node.is("binary_operator") || is_formatting(node) {
        return None;
    }
    let (left, right) = (node.field("left")?, node.field("right")?);
    let inner = ungrouped(left);
    if inner.is("binary_operator") && !is_formatting(inner) {
        return Some(Edit::new(left.range(), inner.field("left")?.text()));
    }
    let inner = ungrouped(right);
    if inner.is("binary_operator") {
        return Some(Edit::new(right.range(), inner.field("right")?.text()));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::tests::{always, never};

    #[test]
    fn cases() {
        let kind = &super::KIND;
        always(
            kind,
            "def f(a, b, c):\n    return a + b + c\n",
            &["def f(a, b, c):\n    return a + c\n"],
        );
        always(
            kind,
            "def f(a, b, c):\n    return a * (b - c)\n",
            &["def f(a, b, c):\n    return a * c\n"],
        );
        never(kind, "def f(a, b, c):\n    return a + b\n");
    }
}
