//! Files that are too long: functions as they are or as their signatures.

use std::{collections::BTreeSet, ops::Range};

use crate::syntax::{DefinitionKind, Source, definitions};

/// The text as it is if it fits; else with functions shortened until it does, the named ones last.
/// `None` if even all signatures are too much, or the file cannot be parsed.
pub(super) fn to_fit(
    text: &str,
    names: &BTreeSet<String>,
    fits: &dyn Fn(&(String, usize)) -> bool,
    count: &dyn Fn(&str) -> usize,
    budget: usize,
) -> Option<(String, usize)> {
    let whole = (text.to_owned(), 0);
    if fits(&whole) {
        return Some(whole);
    }
    let source = Source::parse(text.as_bytes()).ok()?;
    // Functions of the module and of its classes; what is inside them goes with them.
    let all = definitions(&source);
    let is_inner = |parent: Option<usize>| {
        let mut at = parent;
        while let Some(index) = at {
            if all[index].kind == DefinitionKind::Function {
                return true;
            }
            at = all[index].parent;
        }
        false
    };
    let functions: Vec<(bool, Range<usize>)> = all
        .iter()
        .filter(|d| d.kind == DefinitionKind::Function && !is_inner(d.parent))
        .filter(|d| !d.body.is_empty())
        .map(|d| {
            let is_named = d.name.split('.').any(|part| names.contains(part));
            (is_named, d.signature.end..d.bytes.end)
        })
        .collect();
    let mut shown = vec![false; functions.len()];
    let shortest = render(text, &functions, &shown);
    if !fits(&shortest) {
        return None;
    }
    let mut used = count(&shortest.0);
    let mut order: Vec<usize> = (0..functions.len()).collect();
    order.sort_by_key(|index| (!functions[*index].0, *index));
    let mut added = Vec::new();
    let mut named_is_missing = false;
    for index in order {
        // Others are no use where one that matters is missing.
        if named_is_missing && !functions[index].0 {
            break;
        }
        let cost = count(&text[functions[index].1.clone()]);
        if used + cost <= budget {
            used += cost;
            shown[index] = true;
            added.push(index);
        } else {
            named_is_missing |= functions[index].0;
        }
    }
    loop {
        let candidate = render(text, &functions, &shown);
        if fits(&candidate) {
            return Some(candidate);
        }
        // Costs were counted one by one; the least important goes.
        shown[added.pop()?] = false;
    }
}

fn render(text: &str, functions: &[(bool, Range<usize>)], shown: &[bool]) -> (String, usize) {
    let mut out = String::new();
    let (mut at, mut n_shortened) = (0, 0);
    for ((_, body), shown) in functions.iter().zip(shown) {
        if *shown {
            continue;
        }
        out.push_str(&text[at..body.start]);
        out.push_str(" ...");
        at = body.end;
        n_shortened += 1;
    }
    out.push_str(&text[at..]);
    (out, n_shortened)
}
