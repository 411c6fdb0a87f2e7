//! `with` and `try` are gone with all that was in them.

use super::common::*;

pub(super) const KIND: Kind = Kind::unit(
    "func_pm_remove_wrapper",
    "a with or try statement is missing",
    DefinitionKind::Function,
    change,
);

fn change(code: &Code<'_>, unit: usize, coin: &mut Coin) -> Vec<Edit> {
    let statements = chosen(code, unit, coin, |node| {
        node.is_any(&["with_statement", "try_statement"]) && code.is_removable(node)
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
            "def f(a):\n    with a:\n        b()\n    try:\n        c()\n    finally:\n        d()\n    return 1\n",
            &["def f(a):\n    return 1\n"],
        );
        never(kind, "def f(a):\n    return a\n");
    }
}
