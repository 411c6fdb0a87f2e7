//! An index, a bound of a slice or the end of a range is off by one.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "slice",
    "an index or a bound is off by one",
    &["subscript", "slice", "call", "binary_operator"],
    find,
);

fn find(_: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    match node.kind() {
        "subscript" => {
            for index in node.named().skip(1) {
                let inner = ungrouped(index);
                let is_negative = inner.is("unary_operator")
                    && inner.field("argument").is_some_and(|part| part.is("integer"));
                if inner.is("integer") || is_negative || near(inner).is_some() {
                    shifted(index, bugs);
                }
            }
        }
        "slice" => bounds(node, bugs),
        "call" => {
            if let Some((function, arguments)) = name_call(node)
                && function.text() == "range"
            {
                let arguments = positional(arguments);
                match arguments[..] {
                    [end] => shifted(end, bugs),
                    [start, end, ..] => {
                        if start.text() == "1" {
                            bugs.replace(start, "0");
                        }
                        shifted(end, bugs);
                    }
                    [] => {}
                }
            }
        }
        _ => {
            // The last index of a sequence.
            if let (Some(left), Some(right)) = (node.field("left"), node.field("right"))
                && left.text().starts_with("len(")
                && right.text() == "1"
                && operator(node).is_some_and(|operator| operator.is("-"))
            {
                bugs.replace(node, left.text());
            }
        }
    }
}

/// The parts of a slice between its colons.
fn bounds(node: Node<'_>, bugs: &mut Bugs) {
    let mut n_colons = 0;
    for part in node.children().filter(|part| !part.is_extra()) {
        if part.is(":") {
            n_colons += 1;
        } else if n_colons < 2 {
            shifted(part, bugs);
            // A bound that is not there is the end of the sequence.
            bugs.edit(Edit::new(part.range(), ""));
        } else {
            let colon = node.children().filter(|part| part.is(":")).nth(1);
            if let Some(colon) = colon {
                bugs.edit(Edit::new(colon.start()..part.end(), ""));
            }
        }
    }
}

/// `x` of `x + 1` and `x - 1`.
fn near(node: Node<'_>) -> Option<Node<'_>> {
    let is_one = node.is("binary_operator") && node.field("right")?.text() == "1";
    let operator = operator(node)?;
    (is_one && ["+", "-"].contains(&operator.text())).then(|| node.field("left"))?
}

/// A value and its neighbours.
fn shifted(node: Node<'_>, bugs: &mut Bugs) {
    let inner = ungrouped(node);
    if inner.is("integer") {
        let moves: &[i128] = if inner.text() == "0" { &[1] } else { &[1, -1] };
        for by in moves {
            if let Some(text) = moved_integer(inner.text(), *by) {
                bugs.replace(node, text);
            }
        }
    } else if inner.is("unary_operator")
        && let Some(number) = inner.field("argument").filter(|part| part.is("integer"))
        && let Some(text) = moved_integer(number.text(), 1)
        && inner.text().starts_with('-')
    {
        bugs.replace(node, format!("-{text}"));
    } else if let Some(left) = near(inner) {
        bugs.replace(node, left.text());
    } else if inner.is_any(&["identifier", "attribute", "call", "subscript", "binary_operator"]) {
        bugs.replace(node, format!("{} + 1", node.text()));
        bugs.replace(node, format!("{} - 1", node.text()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::body;

    #[test]
    fn cases() {
        let kind = &super::KIND;
        body(kind, "return a[0]", &["return a[1]"]);
        body(kind, "return a[-1]", &["return a[-2]"]);
        body(kind, "return a[b + 1]", &["return a[b]"]);
        body(
            kind,
            "return a[1:b]",
            &[
                "return a[2:b]",
                "return a[0:b]",
                "return a[:b]",
                "return a[1:b + 1]",
                "return a[1:b - 1]",
                "return a[1:]",
            ],
        );
        body(kind, "return a[::-1]", &["return a[:]"]);
        body(
            kind,
            "return range(1, a)",
            &["return range(0, a)", "return range(1, a + 1)", "return range(1, a - 1)"],
        );
        body(kind, "return len(a) - 1", &["return len(a)"]);
        body(kind, "return a['x'], a[b]", &[]);
    }
}
