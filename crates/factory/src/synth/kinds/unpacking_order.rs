//! Two names get each other's value when something is taken apart.

use super::common::*;

pub(super) const KIND: Kind = Kind::places(
    "unpacking_order",
    "names are unpacked in the wrong order",
    &["pattern_list", "tuple_pattern"],
    find,
);

fn find(_: &Code<'_>, node: Node<'_>, bugs: &mut Bugs) {
    let items: Vec<Node<'_>> = node.named().collect();
    for pair in items.windows(2) {
        let are_names = pair.iter().all(|item| item.is_any(&["identifier", "attribute"]));
        // What nobody reads can as well be another thing.
        let is_read = pair.iter().all(|item| !item.text().starts_with('_'));
        if are_names && is_read && pair[0].text() != pair[1].text() {
            bugs.exchange(pair[0], pair[1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::body;

    #[test]
    fn cases() {
        let kind = &super::KIND;
        body(kind, "a, b = c", &["b, a = c"]);
        body(
            kind,
            "for a, (b, x) in c: pass",
            &["for a, (x, b) in c: pass"],
        );
        body(kind, "a, _ = c\n[a, *b] = c", &[]);
    }
}
