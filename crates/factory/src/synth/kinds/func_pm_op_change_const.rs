//! Integers in operations are off by one.

use super::common::*;

pub(super) const KIND: Kind = Kind::unit(
    "func_pm_op_change_const",
    "constants in operations are off by one",
    DefinitionKind::Function,
    change,
);

fn change(code: &Code<'_>, unit: usize, coin: &mut Coin) -> Vec<Edit> {
    let mut edits = Vec::new();
    for node in code.own(unit).filter(|node| node.is("binary_operator")) {
        let integers: Vec<Node<'_>> = [node.field("left"), node.field("right")]
            .into_iter()
            .flatten()
            .filter(|operand| operand.is("integer"))
            .collect();
        if integers.is_empty() || !coin.flip() {
            continue;
        }
        for integer in integers {
            let by = coin.pick(&[-1, 1]);
            edits.extend(
                moved_integer(integer.text(), by).map(|text| Edit::new(integer.range(), text)),
            );
        }
    }
    edits
}

#[cfg(test)]
mod tests {
    use super::super::tests::{always, never};

    #[test]
    fn cases() {
        let kind = &super::KIND;
        always(
            kind,
            "def f(a):\n    return a + 0x0f\n",
            &[
                "def f(a):\n    return a + 0x10\n",
                "def f(a):\n    return a + 0xe\n",
            ],
        );
        always(
            kind,
            "def f(a):\n    return a * 0\n",
            &[
                "def f(a):\n    return a * 1\n",
                "def f(a):\n    return a * -1\n",
            ],
        );
        never(kind, "def f(a):\n    return a + b\n");
        never(kind, "def f(a):\n    return a < 1\n");
    }
}
