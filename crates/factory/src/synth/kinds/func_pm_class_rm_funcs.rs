//! Methods are gone, and `None` stands where the class called them.

use std::collections::BTreeSet;

use super::common::*;

pub(super) const KIND: Kind = Kind::unit(
    "func_pm_class_rm_funcs",
    "a class lacks some of its methods",
    DefinitionKind::Class,
    change,
);

fn change(code: &Code<'_>, unit: usize, coin: &mut Coin) -> Vec<Edit> {
    let class = code.source.node(code.definitions[unit].node);
    let Some(body) = class.field("body") else {
        return Vec::new();
    };
    let mut removed = Vec::new();
    let mut names = BTreeSet::new();
    for statement in body.named() {
        if let Some(name) = method_name(statement)
            && code.is_removable(statement)
            && coin.flip()
        {
            names.insert(name);
            removed.push(statement);
        }
    }
    let mut edits = code.removals(&removed);
    let mut index = body.index();
    while index < body.next_index() {
        let node = code.source.node(index);
        if removed.contains(&node) {
            index = node.next_index();
            continue;
        }
        index += 1;
        if node.is("call")
            && code.is_open(node)
            && let Some((object, method, _)) = method_call(node)
            && ["self", "cls"].contains(&object.text())
            && names.contains(method.text())
        {
            edits.push(Edit::new(node.range(), "None"));
            index = node.next_index();
        }
    }
    edits
}

/// The name of a method that a statement of a class defines.
pub(super) fn method_name(statement: Node<'_>) -> Option<&str> {
    let function = if statement.is("decorated_definition") {
        statement.field("definition")?
    } else {
        statement
    };
    (function.is("function_definition")).then(|| function.field("name").map(|name| name.text()))?
}

#[cfg(test)]
mod tests {
    use super::super::tests::{always, never};

    #[test]
    fn cases() {
        let kind = &super::KIND;
        always(
            kind,
            "class A:\n    @p\n    def f(self):\n        return 1\n\n    x = 2\n",
            &["class A:\n\n    x = 2\n"],
        );
        always(
            kind,
            "class A:\n    def f(self):\n        return self.f(self.f())\n",
            &["class A:\n    pass\n"],
        );
        never(kind, "class A:\n    x = 1\n");
    }

    #[test]
    fn calls_of_what_is_gone_become_none() {
        let before = "class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return self.f() + self.g()\n";
        let after = "class A:\n\n    def g(self):\n        return None + self.g()\n";
        super::super::tests::sometimes(&super::KIND, before, &[after]);
    }
}
