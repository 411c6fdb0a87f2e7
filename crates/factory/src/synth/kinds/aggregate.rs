//! A collection is judged by the wrong rule: `any` for `all`, `min` for `max`.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "aggregate",
    "a collection is summed up by the wrong function",
    &["call"],
    find,
);

const COUNTERPARTS: &[(&str, &str)] = &[
    ("any", "all"),
    ("all", "any"),
    ("min", "max"),
    ("max", "min"),
    ("sum", "len"),
];

fn find(_: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    let Some(function) = node.field("function").filter(|f| f.is("identifier")) else {
        return;
    };
    let arguments = node.field("arguments");
    let is_generator = arguments.is_some_and(|arguments| !arguments.is("argument_list"));
    for (from, to) in COUNTERPARTS {
        // A generator has no length.
        if function.text() == *from && !(*to == "len" && is_generator) {
            bugs.replace(function, *to);
        }
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
            "return any(x for x in a)",
            &["return all(x for x in a)"],
        );
        body(kind, "return max(a, b)", &["return min(a, b)"]);
        body(kind, "return sum(a)", &["return len(a)"]);
        body(kind, "return sum(x for x in a), a.max()", &[]);
    }
}
