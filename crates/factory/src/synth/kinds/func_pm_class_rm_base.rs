//! A base class is gone.

use super::common::*;

pub(super) const KIND: Kind = Kind::unit(
    "func_pm_class_rm_base",
    "a class lacks one of its base classes",
    DefinitionKind::Class,
    change,
);

fn change(code: &Code<'_>, unit: usize, coin: &mut Coin) -> Vec<Edit> {
    let class = code.source.node(code.definitions[unit].node);
    let Some(list) = class.field("superclasses") else {
        return Vec::new();
    };
    // Without these a class behaves as before.
    let is_idle = |base: Node<'_>| {
        let name = base.text().rsplit('.').next().unwrap_or_default();
        ["object", "ABC"].contains(&name)
            || name.starts_with("Generic")
            || name.starts_with("Protocol")
    };
    let bases: Vec<Node<'_>> = list
        .named()
        .filter(|base| !base.is("keyword_argument") && !is_idle(*base))
        .collect();
    if bases.is_empty() || !coin.flip() {
        return Vec::new();
    }
    let base = coin.pick(&bases);
    if list.n_named() == 1 {
        return vec![Edit::new(list.range(), "")];
    }
    without_item(code, base).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{always, never};

    #[test]
    fn cases() {
        let kind = &super::KIND;
        always(kind, "class A(B):\n    x = 1\n", &["class A:\n    x = 1\n"]);
        always(
            kind,
            "class A(B, C, metaclass=M):\n    x = 1\n",
            &[
                "class A(C, metaclass=M):\n    x = 1\n",
                "class A(B, metaclass=M):\n    x = 1\n",
            ],
        );
        always(
            kind,
            "class A(\n    B,\n    C,\n):\n    pass\n",
            &[
                "class A(\n    C,\n):\n    pass\n",
                "class A(\n    B,\n):\n    pass\n",
            ],
        );
        never(kind, "class A(object):\n    x = 1\n");
        never(kind, "class A(metaclass=M):\n    x = 1\n");
    }
}
