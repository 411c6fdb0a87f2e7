//! A call lacks an argument that has a default.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "argument_omitted",
    "a call lacks an optional argument",
    &["call"],
    find,
);

/// Functions and methods whose last positional argument may be left out, and how many they have
/// with it.
const OPTIONAL: &[(&str, usize)] = &[
    ("get", 2),
    ("pop", 2),
    ("getattr", 3),
    ("next", 2),
    ("round", 2),
    ("int", 2),
    ("sum", 2),
    ("enumerate", 2),
    ("range", 3),
    ("split", 2),
    ("rsplit", 2),
    ("replace", 3),
    ("strip", 1),
    ("lstrip", 1),
    ("rstrip", 1),
    ("setdefault", 2),
    ("ljust", 2),
    ("rjust", 2),
    ("center", 2),
    ("find", 2),
    ("index", 2),
    ("count", 2),
    ("startswith", 2),
    ("endswith", 2),
];

fn find(code: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    let (Some(function), Some(arguments)) = (node.field("function"), node.field("arguments"))
    else {
        return;
    };
    if !arguments.is("argument_list") {
        return;
    }
    for argument in arguments.named().filter(|part| part.is("keyword_argument")) {
        // These only say how something is shown.
        let name = argument.field("name").map_or("", |name| name.text());
        if !["file", "flush", "stacklevel", "exc_info"].contains(&name) {
            bugs.maybe(without_item(code, argument));
        }
    }
    let name = function.text().rsplit('.').next().unwrap_or_default();
    let given = positional(arguments);
    if let Some(last) = given.last()
        && given.len() == arguments.n_named()
        && OPTIONAL.contains(&(name, given.len()))
    {
        bugs.maybe(without_item(code, *last));
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
            "return g(a, key=b, c=1)",
            &["return g(a, c=1)", "return g(a, key=b)"],
        );
        body(kind, "return g(key=b)", &["return g()"]);
        body(kind, "return g(\n    key=b,\n)", &["return g(\n    \n)"]);
        body(kind, "return a.get(b, c)", &["return a.get(b)"]);
        body(kind, "return a.get(b)", &[]);
        body(kind, "return g(a, b)", &[]);
    }
}
