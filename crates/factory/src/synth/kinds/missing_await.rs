//! A coroutine is not awaited.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "missing_await",
    "an await is missing",
    &["await"],
    find,
);

fn find(_: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    if let Some(value) = node.named().next() {
        bugs.replace(node, value.text());
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::module;

    #[test]
    fn cases() {
        module(
            &super::KIND,
            "async def f(a):\n    x = await a.b() + 1\n    return x\n",
            &["async def f(a):\n    x = a.b() + 1\n    return x\n"],
        );
        module(&super::KIND, "def f(a):\n    return a()\n", &[""; 0]);
    }
}
