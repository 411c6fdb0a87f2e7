//! Values come in the wrong order.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "ordering",
    "values come in the wrong order",
    &["call", "expression_statement"],
    find,
);

fn find(code: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    if node.is("expression_statement") {
        if let Some(call) = node.named().next()
            && let Some((_, method, _)) = method_call(call)
            && ["sort", "reverse"].contains(&method.text())
        {
            bugs.edit(code.removal(node));
        }
        return;
    }
    let Some(function) = node.field("function") else {
        return;
    };
    let Some(arguments) = node.field("arguments").filter(|a| a.is("argument_list")) else {
        return;
    };
    let name = function.text().rsplit('.').next().unwrap_or_default();
    let given = positional(arguments);
    match (name, &given[..]) {
        ("sorted", [values]) if function.is("identifier") => {
            bugs.replace(node, format!("list({})", values.text()));
        }
        ("reversed", [values]) if function.is("identifier") => {
            bugs.replace(node, format!("iter({})", values.text()));
        }
        _ => {}
    }
    // `reverse=True` itself is a constant of `boolean`.
    let has_reverse = arguments.named().any(|argument| {
        argument.is("keyword_argument")
            && argument.field("name").is_some_and(|name| name.text() == "reverse")
    });
    if ["sorted", "sort"].contains(&name) && !has_reverse {
        // In front of the closing bracket, behind the last argument and its comma.
        let before = arguments.children().filter(|part| !part.is_extra() && !part.is(")"));
        let last = before.last();
        let end = last.map_or(arguments.start(), |part| part.end());
        let comma = match last {
            Some(part) if part.is_named() => ", ",
            Some(part) if part.is(",") => " ",
            _ => "",
        };
        bugs.edit(Edit::new(end..end, format!("{comma}reverse=True")));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::body;

    #[test]
    fn cases() {
        let kind = &super::KIND;
        body(
            kind,
            "return sorted(a, key=b)",
            &["return list(a)", "return sorted(a, key=b, reverse=True)"],
        );
        body(
            kind,
            "a.sort()\nreturn a",
            &["return a", "a.sort(reverse=True)\nreturn a"],
        );
        body(kind, "return list(reversed(a))", &["return list(iter(a))"]);
        body(kind, "return sorted(a, reverse=b)", &["return list(a)"]);
        body(kind, "return a.sorted", &[]);
    }
}
