//! The bodies of `if` and `else` are exchanged.

use super::common::*;

pub(super) const KIND: Kind = Kind::unit(
    "func_pm_ctrl_invert_if",
    "the bodies of if and else are exchanged",
    DefinitionKind::Function,
    change,
);

fn change(code: &Code<'_>, unit: usize, coin: &mut Coin) -> Vec<Edit> {
    chosen(code, unit, coin, |node| bodies(node).is_some())
        .into_iter()
        .filter_map(|node| {
            let (a, b) = bodies(node)?;
            code.exchanged_blocks(a, b)
        })
        .flatten()
        .collect()
}

/// The two blocks of an `if` that has an `else` and no `elif`.
pub(super) fn bodies(node: Node<'_>) -> Option<(Node<'_>, Node<'_>)> {
    if !node.is("if_statement") || node.named().any(|part| part.is("elif_clause")) {
        return None;
    }
    let otherwise = node.field("alternative")?;
    Some((node.field("consequence")?, otherwise.field("body")?))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{always, never};

    #[test]
    fn cases() {
        let kind = &super::KIND;
        always(
            kind,
            "def f(x):\n    if x > 0:  # why\n        return 1\n    else:\n        # no\n        y = 2\n        return y\n",
            &[
                "def f(x):\n    if x > 0:  # why\n        y = 2\n        return y\n    else:\n        # no\n        return 1\n",
            ],
        );
        always(
            kind,
            "def f(x):\n    if x: return 1\n    else: return 2\n",
            &["def f(x):\n    if x: return 2\n    else: return 1\n"],
        );
        never(kind, "def f(x):\n    if x == 0:\n        return 0\n");
        never(
            kind,
            "def f(x):\n    if x: return 0\n    elif y: return 1\n    else: return 2\n",
        );
    }
}
