//! A parameter has another default.

use super::{common::*, constant::others};

pub(super) const KIND: Kind = Kind::places(
    "default_value",
    "a parameter has the wrong default",
    &["default_parameter", "typed_default_parameter"],
    find,
);

fn find(code: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    let Some(value) = node.field("value") else {
        return;
    };
    match value.kind() {
        "true" => bugs.replace(value, "False"),
        "false" => bugs.replace(value, "True"),
        // `None` mostly means that the function finds out for itself.
        "none" => {}
        _ => {
            for text in others(code, value) {
                bugs.replace(value, text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::module;

    #[test]
    fn cases() {
        module(
            &super::KIND,
            "def f(a, b=1, *, c: bool = True, d=None, e=''):\n    return b\n",
            &[
                "def f(a, b=2, *, c: bool = True, d=None, e=''):\n    return b\n",
                "def f(a, b=0, *, c: bool = True, d=None, e=''):\n    return b\n",
                "def f(a, b=1, *, c: bool = False, d=None, e=''):\n    return b\n",
                "def f(a, b=1, *, c: bool = True, d=None, e=' '):\n    return b\n",
            ],
        );
    }
}
