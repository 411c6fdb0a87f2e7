//! A function gives something else back.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "return_value",
    "a wrong value is returned",
    &["return_statement", "yield"],
    find,
);

fn find(_: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    let Some(value) = node.named().next() else {
        return;
    };
    let keyword = if node.is("yield") { "yield" } else { "return" };
    if value.is("none") || node.token("from").is_some() {
        return;
    }
    bugs.replace(node, format!("{keyword} None"));
    match ungrouped(value).kind() {
        "comparison_operator" | "boolean_operator" => {
            bugs.replace(value, format!("not ({})", ungrouped(value).text()));
        }
        "expression_list" | "tuple" => {
            let items: Vec<Node<'_>> = ungrouped(value).named().collect();
            if let [first, second] = items[..]
                && first.text() != second.text()
                && !first.is("list_splat")
                && !second.is("list_splat")
            {
                bugs.exchange(first, second);
                bugs.replace(value, first.text());
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::body;

    #[test]
    fn cases() {
        let kind = &super::KIND;
        body(kind, "return a.b", &["return None"]);
        body(
            kind,
            "return a == b",
            &["return None", "return not (a == b)"],
        );
        body(
            kind,
            "return a, b",
            &["return None", "return b, a", "return a"],
        );
        body(kind, "yield a", &["yield None"]);
        body(kind, "yield from a", &[]);
        body(kind, "return None", &[]);
        body(kind, "return", &[]);
    }
}
