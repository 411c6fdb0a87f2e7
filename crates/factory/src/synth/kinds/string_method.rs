//! A method of texts is confused with its counterpart, or left out.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "string_method",
    "the wrong method of a text is called",
    &["call"],
    find,
);

const COUNTERPARTS: &[(&str, &[&str])] = &[
    ("strip", &["lstrip", "rstrip"]),
    ("lstrip", &["rstrip", "strip"]),
    ("rstrip", &["lstrip", "strip"]),
    ("startswith", &["endswith"]),
    ("endswith", &["startswith"]),
    ("lower", &["upper"]),
    ("upper", &["lower"]),
    ("find", &["rfind"]),
    ("rfind", &["find"]),
    ("rindex", &["index"]),
    ("partition", &["rpartition"]),
    ("rpartition", &["partition"]),
    ("ljust", &["rjust"]),
    ("rjust", &["ljust"]),
    ("removeprefix", &["removesuffix"]),
    ("removesuffix", &["removeprefix"]),
    ("capitalize", &["title"]),
    ("title", &["capitalize"]),
    ("islower", &["isupper"]),
    ("isupper", &["islower"]),
    ("isdigit", &["isalnum"]),
    ("isalpha", &["isalnum"]),
    ("isalnum", &["isalpha"]),
    ("splitlines", &["split"]),
];

/// Methods that make texts comparable; without them the text is taken as it is.
const NORMALISING: &[&str] = &[
    "strip", "lstrip", "rstrip", "lower", "upper", "casefold", "title", "capitalize", "replace",
    "expandtabs",
];

fn find(_: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    let Some((object, method, arguments)) = method_call(node) else {
        return;
    };
    let name = method.text();
    for (from, alternatives) in COUNTERPARTS {
        if name == *from && !(name == "splitlines" && arguments.n_named() > 0) {
            for to in *alternatives {
                bugs.replace(method, *to);
            }
        }
    }
    // From which side is a question only when there is a limit.
    if arguments.n_named() == 2 {
        match name {
            "split" => bugs.replace(method, "rsplit"),
            "rsplit" => bugs.replace(method, "split"),
            _ => {}
        }
    }
    let is_plain = arguments.n_named() == 0 || name == "replace" && arguments.n_named() == 2;
    if NORMALISING.contains(&name) && is_plain {
        bugs.replace(node, object.text());
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
            "return a.strip()",
            &["return a.lstrip()", "return a.rstrip()", "return a"],
        );
        body(kind, "return a.startswith(b)", &["return a.endswith(b)"]);
        body(kind, "return a.split(b, 1)", &["return a.rsplit(b, 1)"]);
        body(kind, "return a.replace(b, c)", &["return a"]);
        body(kind, "return a.split(b), strip(a)", &[]);
    }
}
