//! Conditional statements are gone with all that was in them.

use super::common::*;

pub(super) const KIND: Kind = Kind::unit(
    "func_pm_remove_cond",
    "a conditional statement is missing",
    DefinitionKind::Function,
    change,
);

fn change(code: &Code<'_>, unit: usize, coin: &mut Coin) -> Vec<Edit> {
    let statements = chosen(code, unit, coin, |node| {
        node.is("if_statement") && code.is_removable(node)
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
            "def f(a):\n    if a:\n        return 1\n    elif b:\n        return 2\n    return 3\n",
            &["def f(a):\n    return 3\n"],
        );
        always(
            kind,
            "def f(a):\n    if a: return 1\n    if b: return 2\n",
            &["def f(a):\n    pass\n"],
        );
        never(kind, "def f(a):\n    return 1 if a else 2\n");
    }
}
