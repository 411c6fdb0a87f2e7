//! Two names share what each should have for itself.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "copy_removed",
    "a copy is missing",
    &["call", "subscript"],
    find,
);

fn find(_: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    if node.is("subscript") {
        let is_whole = node.field("subscript").is_some_and(|index| index.text() == ":");
        let is_written = node.field_name() == Some("left")
            || node.ancestors().take(3).any(|outer| outer.is("delete_statement"));
        if let Some(value) = node.field("value").filter(|_| is_whole && !is_written) {
            bugs.replace(node, value.text());
        }
        return;
    }
    let (Some(function), Some(arguments)) = (node.field("function"), node.field("arguments"))
    else {
        return;
    };
    let given = if arguments.is("argument_list") {
        positional(arguments)
    } else {
        return;
    };
    let only = match given[..] {
        [only] if arguments.n_named() == 1 => Some(only),
        _ => None,
    };
    match (function.text(), only) {
        ("list" | "dict" | "copy.copy" | "copy" | "copy.deepcopy" | "deepcopy", Some(value)) => {
            // A generator or a map is no list: without the call it would be used up once.
            let is_value = value.is_any(&["identifier", "attribute", "subscript"]);
            if is_value {
                bugs.replace(node, value.text());
                if function.text() == "copy.deepcopy" {
                    bugs.replace(function, "copy.copy");
                }
            }
        }
        (name, None) if name.ends_with(".copy") && arguments.n_named() == 0 => {
            if let Some(object) = function.field("object") {
                bugs.replace(node, object.text());
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
        body(kind, "return list(a)", &["return a"]);
        body(kind, "return a.b.copy()", &["return a.b"]);
        body(kind, "return a[:]", &["return a"]);
        body(
            kind,
            "return copy.deepcopy(a)",
            &["return a", "return copy.copy(a)"],
        );
        body(kind, "a[:] = list(map(b, c))", &[]);
        body(kind, "return list(), dict(a, b=1)", &[]);
    }
}
