//! Assignments are gone.

use super::common::*;

pub(super) const KIND: Kind = Kind::unit(
    "func_pm_remove_assign",
    "an assignment is missing",
    DefinitionKind::Function,
    change,
);

fn change(code: &Code<'_>, unit: usize, coin: &mut Coin) -> Vec<Edit> {
    let statements = chosen(code, unit, coin, |node| {
        is_assignment(node) && code.is_removable(node)
    });
    code.removals(&statements)
}

/// A statement that assigns without an annotation, plainly or with an operator.
fn is_assignment(statement: Node<'_>) -> bool {
    statement.is("expression_statement")
        && statement.named().next().is_some_and(|value| {
            value.is("augmented_assignment")
                || value.is("assignment") && value.field("type").is_none()
        })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{always, never};

    #[test]
    fn cases() {
        let kind = &super::KIND;
        always(
            kind,
            "def f(a):\n    b = a; c = b\n    b += 1\n    return b\n",
            &["def f(a):\n    pass; pass\n    return b\n"],
        );
        never(kind, "def f(a):\n    b: int = a\n    return b\n");
        never(
            kind,
            "def f(a):\n    b = a\n    def g():\n        nonlocal b\n    return g\n",
        );
    }
}
