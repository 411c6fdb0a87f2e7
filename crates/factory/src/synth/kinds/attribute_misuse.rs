//! Another attribute of `self` is read.
//!
//! The other one is read or written by the same function, and used in the same way there: called,
//! indexed, asked for an attribute, or none of these.

use std::collections::BTreeMap;

use super::common::*;

pub(super) const KIND: Kind = Kind::functions(
    "attribute_misuse",
    "the wrong attribute is used",
    find,
);

const MAX_OTHERS: usize = 2;

fn find(code: &Code<'_>, unit: usize, bugs: &mut Bugs) {
    let attributes: Vec<(Node<'_>, Node<'_>)> = code
        .own(unit)
        .filter(|node| node.is("attribute"))
        .filter_map(|node| {
            let object = node.field("object")?;
            let is_own = ["self", "cls"].contains(&object.text());
            is_own.then(|| node.field("attribute").map(|name| (node, name)))?
        })
        .collect();
    // By use, the names in order of first appearance.
    let mut names: BTreeMap<Use, Vec<&str>> = BTreeMap::new();
    for (node, name) in &attributes {
        let list = names.entry(use_of(*node)).or_default();
        if list.len() < 64 && !list.contains(&name.text()) {
            list.push(name.text());
        }
    }
    for (node, name) in attributes {
        if node.field_name() == Some("left") {
            continue;
        }
        let others = names.get(&use_of(node)).into_iter().flatten();
        for other in others.filter(|other| **other != name.text()).take(MAX_OTHERS) {
            bugs.replace(name, *other);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Called,
    Indexed,
    Asked,
    Plain,
}

fn use_of(node: Node<'_>) -> Use {
    match (node.parent().map(|parent| parent.kind()), node.field_name()) {
        (Some("call"), Some("function")) => Use::Called,
        (Some("subscript"), Some("value")) => Use::Indexed,
        (Some("attribute"), Some("object")) => Use::Asked,
        _ => Use::Plain,
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
            "self.x = self.y\nreturn self.f()",
            &["self.x = self.x\nreturn self.f()"],
        );
        body(
            kind,
            "return self.x[0] + self.y[1]",
            &["return self.y[0] + self.y[1]", "return self.x[0] + self.x[1]"],
        );
        body(kind, "return a.x + a.y + self.z", &[]);
    }
}
