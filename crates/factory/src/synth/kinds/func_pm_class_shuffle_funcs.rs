//! The methods of a class stand in another order, which matters where one name is defined twice or
//! something at class level uses a method.
//!
//! Methods change places with each other only; SWE-smith also moves all other statements in front
//! of them, so that its patches rewrite whole classes.

use super::{common::*, func_pm_class_rm_funcs::method_name};

pub(super) const KIND: Kind = Kind::unit(
    "func_pm_class_shuffle_funcs",
    "the methods of a class are in the wrong order",
    DefinitionKind::Class,
    change,
);

fn change(code: &Code<'_>, unit: usize, coin: &mut Coin) -> Vec<Edit> {
    let class = code.source.node(code.definitions[unit].node);
    let Some(body) = class.field("body") else {
        return Vec::new();
    };
    let methods: Vec<Node<'_>> = body
        .named()
        .filter(|statement| method_name(*statement).is_some())
        .collect();
    let have_own_lines = methods.iter().all(|method| code.has_own_lines(*method));
    if methods.len() < 2 || !have_own_lines || !coin.flip() {
        return Vec::new();
    }
    let mut order: Vec<usize> = (0..methods.len()).collect();
    coin.shuffle(&mut order);
    let range = |at: usize| methods[at].start()..methods[at].code_end();
    order
        .iter()
        .enumerate()
        .map(|(to, from)| Edit::new(range(to), code.text(range(*from))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{always, never};

    #[test]
    fn cases() {
        let kind = &super::KIND;
        always(
            kind,
            "class A:\n    x = 1\n    def f(self):\n        return 1\n\n    @p\n    def g(self): return 2\n",
            &[
                "class A:\n    x = 1\n    @p\n    def g(self): return 2\n\n    def f(self):\n        return 1\n",
            ],
        );
        never(kind, "class A:\n    def f(self):\n        return 1\n");
    }
}
