//! A method of collections is confused with another, or a look-up forgives what it should not.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "collection_method",
    "a collection is used in the wrong way",
    &["call", "subscript"],
    find,
);

const COUNTERPARTS: &[(&str, &str)] = &[
    ("append", "extend"),
    ("extend", "append"),
    ("appendleft", "append"),
    ("popleft", "pop"),
    ("setdefault", "get"),
    ("keys", "values"),
    ("values", "keys"),
    ("union", "intersection"),
    ("intersection", "union"),
    ("difference", "symmetric_difference"),
    ("symmetric_difference", "difference"),
    ("issubset", "issuperset"),
    ("issuperset", "issubset"),
    ("discard", "remove"),
    ("remove", "discard"),
];

fn find(_: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    if node.is("subscript") {
        if let Some((object, key)) = looked_up(node) {
            bugs.replace(node, format!("{}.get({})", object.text(), key.text()));
        }
        return;
    }
    let Some((object, method, arguments)) = method_call(node) else {
        return;
    };
    let name = method.text();
    for (from, to) in COUNTERPARTS {
        if name == *from {
            bugs.replace(method, *to);
        }
    }
    let given: Vec<Node<'_>> = arguments.named().collect();
    match (name, &given[..]) {
        ("get", [key] | [key, _]) if positional(arguments).len() == given.len() => {
            bugs.replace(node, format!("{}[{}]", object.text(), key.text()));
        }
        ("pop", []) => bugs.replace(arguments, "(0)"),
        ("pop", [first]) if first.text() == "0" => bugs.replace(arguments, "()"),
        ("insert", [first, value]) if first.text() == "0" => {
            bugs.edits(vec![
                Edit::new(method.range(), "append"),
                Edit::new(arguments.range(), format!("({})", value.text())),
            ]);
        }
        _ => {}
    }
}

/// The object and the key of a look-up by a text, where the value is only read.
fn looked_up(node: Node<'_>) -> Option<(Node<'_>, Node<'_>)> {
    let object = node.field("value")?;
    let key = node.field("subscript")?;
    let is_written = node.ancestors().take(6).any(|outer| {
        outer.is_any(&["delete_statement", "pattern_list", "tuple_pattern", "with_item"])
    }) || matches!(node.field_name(), Some("left"))
        && node.parent().is_some_and(|parent| {
            parent.is_any(&[
                "assignment",
                "augmented_assignment",
                "for_statement",
                "for_in_clause",
            ])
        });
    (!is_written && node.n_named() == 2 && key.is("string")).then_some((object, key))
}

#[cfg(test)]
mod tests {
    use super::super::tests::body;

    #[test]
    fn cases() {
        let kind = &super::KIND;
        body(kind, "a.append(b)", &["a.extend(b)"]);
        body(kind, "return a.get(b, c)", &["return a[b]"]);
        body(kind, "return a['x']", &["return a.get('x')"]);
        body(kind, "return a.pop()", &["return a.pop(0)"]);
        body(kind, "return a.pop(0)", &["return a.pop()"]);
        body(kind, "a.insert(0, b)", &["a.append(b)"]);
        body(kind, "a['x'] = 1\na['x'] += 1\ndel a['x']", &[]);
        body(kind, "for a['x'], b in c: pass", &[]);
        body(kind, "return a[b], a.get(key=b)", &[]);
    }
}
