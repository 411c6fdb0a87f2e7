//! A number, a text, `None` or an empty container is another one.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "constant",
    "a constant is wrong",
    &["integer", "float", "string", "none", "list", "dictionary", "tuple"],
    find,
);

fn find(code: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    let Some(parent) = node.parent() else {
        return;
    };
    if parent.is_any(&["default_parameter", "typed_default_parameter"]) {
        return;
    }
    for text in others(code, node) {
        bugs.replace(node, text);
    }
}

/// What a constant may become.
pub(super) fn others(code: &Code<'_>, node: Node<'_>) -> Vec<String> {
    let in_comparison = node
        .parent()
        .is_some_and(|parent| parent.is("comparison_operator"));
    match node.kind() {
        "integer" => [1, -1]
            .into_iter()
            .filter_map(|by| moved_integer(node.text(), by))
            .collect(),
        "float" => node
            .text()
            .parse::<f64>()
            .ok()
            .filter(|value| value.abs() < 1e6)
            .map(|value| format!("{:?}", value + 1.0))
            .into_iter()
            .collect(),
        "string" => other_string(code, node).into_iter().collect(),
        // `is None` belongs to `comparison`.
        "none" if !in_comparison => vec!["False".to_owned()],
        "list" if node.n_named() == 0 => vec!["None".to_owned(), "[None]".to_owned()],
        "dictionary" if node.n_named() == 0 => vec!["None".to_owned()],
        "tuple" if node.n_named() == 0 => vec!["None".to_owned()],
        _ => Vec::new(),
    }
}

/// A text without its last character, or a blank for an empty one. Texts with escapes or
/// placeholders stay.
fn other_string(code: &Code<'_>, node: Node<'_>) -> Option<String> {
    let begin = node.named().find(|part| part.is("string_start"))?;
    let end = node.named().find(|part| part.is("string_end"))?;
    let content = code.text(begin.end()..end.start());
    if content.contains(['\\', '{', '\n']) {
        return None;
    }
    let mut changed = content.to_owned();
    if changed.pop().is_none() {
        changed.push(' ');
    }
    Some(format!("{}{changed}{}", begin.text(), end.text()))
}

#[cfg(test)]
mod tests {
    use super::super::tests::body;

    #[test]
    fn cases() {
        let kind = &super::KIND;
        body(kind, "x = 1", &["x = 2", "x = 0"]);
        body(kind, "x = 0xff", &["x = 0x100", "x = 0xfe"]);
        body(kind, "x = 2.5", &["x = 3.5"]);
        body(kind, "x = a['key']", &["x = a['ke']"]);
        body(kind, "x = b''", &["x = b' '"]);
        body(kind, "x = None", &["x = False"]);
        body(kind, "x = []", &["x = None", "x = [None]"]);
        body(kind, "x = {}", &["x = None"]);
        body(kind, "return a is None", &[]);
        body(kind, "x = '\\n'", &[]);
        body(kind, "x = f'{a + 1}'", &[]);
        body(kind, "'''Text.'''\nassert a == 1", &[]);
        body(kind, "x = 3j", &[]);
    }
}
