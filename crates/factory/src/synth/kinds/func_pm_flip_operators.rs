//! Operators become their opposites.

use super::{common::*, func_pm_op_change::is_formatting};

pub(super) const KIND: Kind = Kind::unit(
    "func_pm_flip_operators",
    "operators are replaced by their opposites",
    DefinitionKind::Function,
    change,
);

const OPPOSITES: &[(&str, &str)] = &[
    ("+", "-"),
    ("-", "+"),
    ("*", "/"),
    ("/", "*"),
    ("//", "%"),
    ("%", "//"),
    ("**", "*"),
    ("<<", ">>"),
    (">>", "<<"),
    ("&", "^"),
    ("|", "&"),
    ("^", "&"),
    ("and", "or"),
    ("or", "and"),
    ("==", "!="),
    ("!=", "=="),
    ("<", ">"),
    (">", "<"),
    ("<=", ">="),
    (">=", "<="),
    ("is", "is not"),
    ("is not", "is"),
    ("in", "not in"),
    ("not in", "in"),
];

fn change(code: &Code<'_>, unit: usize, coin: &mut Coin) -> Vec<Edit> {
    let mut edits = Vec::new();
    let has_operator = ["binary_operator", "boolean_operator", "comparison_operator"];
    for node in code.own(unit).filter(|node| node.is_any(&has_operator)) {
        if node.is("binary_operator") && is_formatting(node) {
            continue;
        }
        for operator in operator(node).into_iter().chain(comparisons(node)) {
            let opposite = OPPOSITES.iter().find(|(from, _)| operator.is(from));
            if let Some((_, to)) = opposite
                && coin.flip()
            {
                edits.push(Edit::new(operator.range(), *to));
            }
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
            "def f(a, b):\n    return a < b and b not  in a or a is not b\n",
            &["def f(a, b):\n    return a > b or b in a and a is b\n"],
        );
        always(
            kind,
            "def f(a, b):\n    return a + b * 2\n",
            &["def f(a, b):\n    return a - b / 2\n"],
        );
        never(kind, "def f(a, b):\n    return f(a, b)\n");
    }
}
