//! Loops are gone with all that was in them.

use super::common::*;

pub(super) const KIND: Kind = Kind::unit(
    "func_pm_remove_loop",
    "a loop is missing",
    DefinitionKind::Function,
    change,
);

fn change(code: &Code<'_>, unit: usize, coin: &mut Coin) -> Vec<Edit> {
    let statements = chosen(code, unit, coin, |node| {
        node.is_any(&["for_statement", "while_statement"]) && code.is_removable(node)
    });
    code.removals(&statements)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{always, never};

    #[test]
    fn cases() {
        let kind = &super::KIND;
        always(
            kind,
            "def f(a):\n    x = 0\n    for b in a:\n        x += b  # add\n    return x\n",
            &["def f(a):\n    x = 0\n    return x\n"],
        );
        always(
            kind,
            "def f(a):\n\twhile a: a -= 1\n",
            &["def f(a):\n\tpass\n"],
        );
        never(kind, "def f(a):\n    return [b for b in a]\n");
    }
}
