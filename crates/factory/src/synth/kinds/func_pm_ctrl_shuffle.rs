//! The statements of a function stand in another order.

use super::common::*;
use crate::syntax::is_docstring_statement;

pub(super) const KIND: Kind = Kind::unit(
    "func_pm_ctrl_shuffle",
    "statements of a function are in the wrong order",
    DefinitionKind::Function,
    change,
);

/// SWE-smith, too, leaves alone what is not simple.
const MAX_STATEMENTS: usize = 10;

fn change(code: &Code<'_>, unit: usize, coin: &mut Coin) -> Vec<Edit> {
    let function = code.source.node(code.definitions[unit].node);
    let has_loop = code
        .own(unit)
        .any(|node| node.is_any(&["for_statement", "while_statement"]));
    let Some(body) = function.field("body").filter(|_| has_loop) else {
        return Vec::new();
    };
    let mut statements: Vec<Node<'_>> = body.named().take(MAX_STATEMENTS + 2).collect();
    // A name may not be used before it is declared global.
    let declared = statements
        .iter()
        .rposition(|statement| statement.is_any(&["global_statement", "nonlocal_statement"]));
    let has_docstring = statements.first().is_some_and(|s| is_docstring_statement(*s));
    let n_fixed = declared.map_or(usize::from(has_docstring), |last| last + 1);
    statements.drain(..n_fixed);
    if statements.len() < 2
        || statements.len() > MAX_STATEMENTS
        || !statements.iter().all(|statement| code.has_own_lines(*statement))
        || statements.iter().any(|statement| declares(*statement))
        || !coin.flip()
    {
        return Vec::new();
    }
    let mut order: Vec<usize> = (0..statements.len()).collect();
    coin.shuffle(&mut order);
    let range = |at: usize| statements[at].start()..statements[at].code_end();
    order
        .iter()
        .enumerate()
        .map(|(to, from)| Edit::new(range(to), code.text(range(*from))))
        .collect()
}

/// Whether a declaration hides somewhere in a statement of this function.
fn declares(statement: Node<'_>) -> bool {
    statement
        .descendants()
        .any(|part| part.is_any(&["global_statement", "nonlocal_statement"]))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{always, never};

    #[test]
    fn cases() {
        let kind = &super::KIND;
        always(
            kind,
            "def f(x):\n    \"\"\"Doc.\"\"\"\n    for y in x:\n        g(y)  # each\n    return x  # all\n",
            &[
                "def f(x):\n    \"\"\"Doc.\"\"\"\n    return x  # each\n    for y in x:\n        g(y)  # all\n",
            ],
        );
        never(kind, "def f(x):\n    a = x\n    return a\n");
        never(
            kind,
            "def f(x):\n    for y in x:\n        global z\n        z = y\n    return x\n",
        );
    }
}
