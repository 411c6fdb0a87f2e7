//! What several kinds need.

pub(super) use super::{Bugs, Code, Coin, DefinitionKind, Edit, Kind, Node};

/// The operator of a binary or boolean operation.
pub(super) fn operator(node: Node<'_>) -> Option<Node<'_>> {
    node.field("operator")
}

/// The operators of a comparison.
pub(super) fn comparisons(node: Node<'_>) -> impl Iterator<Item = Node<'_>> {
    node.children()
        .filter(|part| part.field_name() == Some("operators"))
}

/// What is within brackets that only group.
pub(super) fn ungrouped(mut node: Node<'_>) -> Node<'_> {
    while node.is("parenthesized_expression")
        && let Some(inner) = node.named().next()
    {
        node = inner;
    }
    node
}

/// Whether a node is a literal string.
pub(super) fn is_string(node: Node<'_>) -> bool {
    ungrouped(node).is_any(&["string", "concatenated_string"])
}

/// Whether a node is a literal number.
pub(super) fn is_number(node: Node<'_>) -> bool {
    ungrouped(node).is_any(&["integer", "float"])
}

/// Text in brackets unless it binds as tightly as a name.
pub(super) fn grouped(node: Node<'_>) -> String {
    let is_tight = node.is_any(&[
        "identifier",
        "attribute",
        "call",
        "subscript",
        "parenthesized_expression",
        "list",
        "tuple",
        "dictionary",
        "set",
        "string",
        "true",
        "false",
        "none",
        "list_comprehension",
        "dictionary_comprehension",
        "set_comprehension",
        "generator_expression",
    ]);
    if is_tight {
        node.text().to_owned()
    } else {
        format!("({})", node.text())
    }
}

/// An integer literal moved by `by`, in its own base; `None` for what is no plain integer or too
/// large.
pub(super) fn moved_integer(text: &str, by: i128) -> Option<String> {
    let plain: String = text.chars().filter(|c| *c != '_').collect();
    let lower = plain.to_ascii_lowercase();
    let (radix, digits) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..]),
        Some("0o") => (8, &lower[2..]),
        Some("0b") => (2, &lower[2..]),
        _ => (10, lower.as_str()),
    };
    let value = i128::from_str_radix(digits, radix).ok()?.checked_add(by)?;
    let sign = if value < 0 { "-" } else { "" };
    let magnitude = value.unsigned_abs();
    Some(match radix {
        16 => format!("{sign}0x{magnitude:x}"),
        8 => format!("{sign}0o{magnitude:o}"),
        2 => format!("{sign}0b{magnitude:b}"),
        _ => format!("{sign}{magnitude}"),
    })
}

/// Takes one item out of a list with commas.
pub(super) fn without_item(code: &Code<'_>, item: Node<'_>) -> Option<Edit> {
    let list = item.parent()?;
    let items: Vec<Node<'_>> = list.children().filter(|part| !part.is_extra()).collect();
    let at = items.iter().position(|part| *part == item)?;
    let next = items.get(at + 1)?;
    if next.is(",") {
        // Up to the next item, or up to the closing bracket.
        let after = items.get(at + 2).map_or(next.end(), |part| part.start());
        let is_last = items.get(at + 2).is_none_or(|part| !part.is_named());
        if !is_last {
            let gap = code.text(next.end()..after);
            // A comment between two items stays where it is.
            let end = if gap.contains('#') { next.end() } else { after };
            return Some(Edit::new(item.start()..end, ""));
        }
        return match at.checked_sub(1).map(|before| items[before]) {
            Some(before) if before.is(",") => Some(Edit::new(before.start()..item.end(), "")),
            _ => Some(Edit::new(item.start()..next.end(), "")),
        };
    }
    match at.checked_sub(1).map(|before| items[before]) {
        Some(before) if before.is(",") => {
            let gap = code.text(before.end()..item.start());
            let start = if gap.contains('#') {
                item.start()
            } else {
                before.start()
            };
            Some(Edit::new(start..item.end(), ""))
        }
        _ => Some(Edit::new(item.range(), "")),
    }
}

/// The name of a called method and the call's arguments, for `OBJECT.METHOD(ARGUMENTS)`.
pub(super) fn method_call(call: Node<'_>) -> Option<(Node<'_>, Node<'_>, Node<'_>)> {
    let function = call.field("function")?;
    let arguments = call.field("arguments")?;
    if !function.is("attribute") || !arguments.is("argument_list") {
        return None;
    }
    Some((
        function.field("object")?,
        function.field("attribute")?,
        arguments,
    ))
}

/// The name of a called function and its arguments, for `NAME(ARGUMENTS)`.
pub(super) fn name_call(call: Node<'_>) -> Option<(Node<'_>, Node<'_>)> {
    let function = call.field("function")?;
    let arguments = call.field("arguments")?;
    (function.is("identifier") && arguments.is("argument_list")).then_some((function, arguments))
}

/// Positional arguments before the first that is unpacked or has a keyword.
pub(super) fn positional(arguments: Node<'_>) -> Vec<Node<'_>> {
    arguments
        .named()
        .take_while(|argument| {
            !argument.is_any(&["keyword_argument", "list_splat", "dictionary_splat"])
        })
        .collect()
}

/// The nodes of these kinds in a unit for which the coin falls, without what lies in another one.
pub(super) fn chosen<'a>(
    code: &Code<'a>,
    unit: usize,
    coin: &mut Coin,
    mut is_wanted: impl FnMut(Node<'a>) -> bool,
) -> Vec<Node<'a>> {
    let mut list: Vec<Node<'a>> = Vec::new();
    for node in code.own(unit) {
        let is_inside = list
            .last()
            .is_some_and(|outer| node.index() < outer.next_index());
        if !is_inside && is_wanted(node) && coin.flip() {
            list.push(node);
        }
    }
    list
}
