//! Operands are exchanged, where that may matter.

use super::common::*;

pub(super) const KIND: Kind = Kind::unit(
    "func_pm_op_swap",
    "operands are in the wrong order",
    DefinitionKind::Function,
    change,
);

fn change(code: &Code<'_>, unit: usize, coin: &mut Coin) -> Vec<Edit> {
    chosen(code, unit, coin, |node| operands(node).is_some())
        .into_iter()
        .filter_map(operands)
        .flat_map(|(left, right)| exchanged(left, right))
        .collect()
}

/// The operands of an operation whose value depends on their order.
fn operands(node: Node<'_>) -> Option<(Node<'_>, Node<'_>)> {
    if !node.is_any(&["binary_operator", "boolean_operator"]) {
        return None;
    }
    let (left, right) = (node.field("left")?, node.field("right")?);
    let is_commutative = match operator(node)?.text() {
        "*" | "&" | "|" | "^" => true,
        "+" => is_number(left) || is_number(right),
        "%" => is_string(left),
        _ => false,
    };
    (!is_commutative && left.text() != right.text()).then_some((left, right))
}

fn exchanged(left: Node<'_>, right: Node<'_>) -> [Edit; 2] {
    // What was computed first still is: a - b - c becomes c - (a - b).
    let moved_right = if left.is("binary_operator") {
        grouped(left)
    } else {
        left.text().to_owned()
    };
    [
        Edit::new(left.range(), right.text()),
        Edit::new(right.range(), moved_right),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::tests::{always, never};

    #[test]
    fn cases() {
        let kind = &super::KIND;
        always(
            kind,
            "def f(a, b, c):\n    return a - b - c\n",
            &["def f(a, b, c):\n    return c - (a - b)\n"],
        );
        always(
            kind,
            "def f(a, b):\n    return a and a.b\n",
            &["def f(a, b):\n    return a.b and a\n"],
        );
        never(kind, "def f(a, b):\n    return a * b\n");
        never(kind, "def f(a, b):\n    return 1 + a\n");
        never(kind, "def f(a, b):\n    return a - a\n");
    }
}
