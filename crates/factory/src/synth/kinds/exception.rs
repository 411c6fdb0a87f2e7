//! An error is not raised, is of another type, or is not caught.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "exception",
    "an error is not raised or not caught as it should",
    &["raise_statement", "except_clause", "try_statement"],
    find,
);

/// Types that are easily confused, in both directions.
const CONFUSED: &[(&str, &str)] = &[
    ("ValueError", "TypeError"),
    ("KeyError", "IndexError"),
    ("AttributeError", "NameError"),
    ("OSError", "RuntimeError"),
    ("StopIteration", "GeneratorExit"),
    ("FileNotFoundError", "FileExistsError"),
    ("ImportError", "LookupError"),
    ("UnicodeDecodeError", "UnicodeEncodeError"),
    ("ZeroDivisionError", "OverflowError"),
];

fn confused(name: &str) -> Option<&'static str> {
    CONFUSED.iter().find_map(|(a, b)| {
        if name == *a {
            Some(*b)
        } else if name == *b {
            Some(*a)
        } else {
            None
        }
    })
}

fn find(code: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    match node.kind() {
        "raise_statement" => {
            bugs.edit(code.removal(node));
            let error = node.named().next();
            let class = error.map(|error| error.field("function").unwrap_or(error));
            if let Some(class) = class
                && let Some(other) = confused(class.text())
            {
                bugs.replace(class, other);
            }
        }
        "except_clause" => caught(node, bugs),
        _ => handlers(code, node, bugs),
    }
}

/// Changes of the types that a handler catches.
fn caught(clause: Node<'_>, bugs: &mut Bugs) {
    let Some(mut types) = clause.field("value") else {
        return;
    };
    if types.is("as_pattern")
        && let Some(inner) = types.named().next()
    {
        types = inner;
    }
    if let Some(other) = confused(types.text()) {
        bugs.replace(types, other);
    }
    if types.is("tuple") {
        let items: Vec<Node<'_>> = types.named().collect();
        for dropped in &items {
            let left: Vec<&str> = items
                .iter()
                .filter(|item| *item != dropped)
                .map(|item| item.text())
                .collect();
            match left[..] {
                [] => {}
                [only] => bugs.replace(types, only),
                _ => bugs.replace(types, format!("({})", left.join(", "))),
            }
        }
    }
}

/// Handlers taken away: one of several, or the whole `try` around its body.
fn handlers(code: &Code<'_>, statement: Node<'_>, bugs: &mut Bugs) {
    let clauses: Vec<Node<'_>> = statement
        .named()
        .filter(|part| part.is("except_clause"))
        .collect();
    if clauses.len() > 1 {
        for clause in clauses {
            if code.has_own_lines(clause) {
                let start = code.source.line_start(clause.start());
                let end = code.source.line_end(clause.code_end());
                bugs.edit(Edit::new(start..end, ""));
            }
        }
        return;
    }
    if statement.n_named() == 2
        && clauses.len() == 1
        && let Some(body) = statement.field("body")
        && let Some(lifted) = code.lifted(body, statement)
    {
        bugs.edit(Edit::new(statement.start()..statement.code_end(), lifted));
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
            "if a:\n    raise ValueError('x')",
            &["if a:\n    pass", "if a:\n    raise TypeError('x')"],
        );
        body(
            kind,
            "try:\n    a()\n    if b:\n        c()\nexcept KeyError as e:\n    c = e",
            &[
                "try:\n    a()\n    if b:\n        c()\nexcept IndexError as e:\n    c = e",
                "a()\nif b:\n    c()",
            ],
        );
        body(
            kind,
            "try:\n    a()\nexcept (A, B):\n    b()\nexcept C:\n    c()\nfinally:\n    pass",
            &[
                "try:\n    a()\nexcept B:\n    b()\nexcept C:\n    c()\nfinally:\n    pass",
                "try:\n    a()\nexcept A:\n    b()\nexcept C:\n    c()\nfinally:\n    pass",
                "try:\n    a()\nexcept C:\n    c()\nfinally:\n    pass",
                "try:\n    a()\nexcept (A, B):\n    b()\nfinally:\n    pass",
            ],
        );
        body(kind, "raise NotImplementedError", &[]);
        body(kind, "try:\n    a()\nfinally:\n    b()", &[]);
    }
}
