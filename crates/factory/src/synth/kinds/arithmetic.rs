//! A calculation uses another operator or lost a sign.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "arithmetic",
    "a calculation uses the wrong operator",
    &["binary_operator", "unary_operator", "augmented_assignment"],
    find,
);

const ALTERNATIVES: &[(&str, &[&str])] = &[
    ("+", &["-"]),
    ("-", &["+"]),
    ("*", &["/", "+"]),
    ("/", &["*", "//"]),
    ("//", &["/"]),
    ("%", &["//"]),
    ("**", &["*"]),
    ("<<", &[">>"]),
    (">>", &["<<"]),
    ("&", &["|"]),
    ("|", &["&"]),
    ("^", &["|"]),
];

fn find(_: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    let Some(operator) = operator(node) else {
        return;
    };
    if node.is("unary_operator") {
        if let Some(argument) = node.field("argument")
            && !operator.is("+")
        {
            bugs.replace(node, argument.text());
        }
        return;
    }
    // A text or a list takes part: the other operators would only raise an error.
    let is_sequence = |operand: Node<'_>| {
        is_string(operand)
            || ungrouped(operand).is_any(&["list", "tuple", "list_comprehension", "expression_list"])
    };
    if [node.field("left"), node.field("right")]
        .into_iter()
        .flatten()
        .any(is_sequence)
    {
        return;
    }
    let is_augmented = node.is("augmented_assignment");
    let text = operator.text();
    let plain = if is_augmented { text.trim_end_matches('=') } else { text };
    for (from, alternatives) in ALTERNATIVES {
        if plain == *from {
            for to in *alternatives {
                let suffix = if is_augmented { "=" } else { "" };
                bugs.replace(operator, format!("{to}{suffix}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::body;

    #[test]
    fn cases() {
        let kind = &super::KIND;
        body(kind, "return a + b", &["return a - b"]);
        body(kind, "return a * -b", &["return a / -b", "return a + -b", "return a * b"]);
        body(kind, "a -= 1", &["a += 1"]);
        body(kind, "return a // b", &["return a / b"]);
        body(kind, "return '%s' % a + 'x'", &[]);
        body(kind, "a += [b]", &[]);
    }
}
