//! Edits of the right place that do not mend it, for demonstrations of recovering from a failure.

use super::{edit::fragments, words::Choice};

/// Pairs of which one is written in the place of the other.
const SWAPS: &[(&str, &str)] = &[
    (" <= ", " < "),
    (" >= ", " > "),
    (" < ", " > "),
    (" == ", " != "),
    (" is not ", " is "),
    (" not in ", " in "),
    (" and ", " or "),
    (" + 1", " - 1"),
    (" + ", " - "),
    ("True", "False"),
    ("min(", "max("),
    ("[0]", "[-1]"),
    ("if not ", "if "),
];

/// New lines in the place of `old` that are neither these nor `new`. `None` if nothing suits.
pub fn lines(old: &[String], new: &[String], choice: &mut Choice) -> Option<Vec<String>> {
    let mut found: Vec<Vec<String>> = Vec::new();
    // Another change at the same place: the right lines with one operator turned.
    for (index, line) in new.iter().enumerate() {
        for other in turned(line) {
            let mut lines = new.to_vec();
            lines[index] = other;
            found.push(lines);
        }
    }
    // The same for what is there now: a change of something that was not at fault.
    for (index, line) in old.iter().enumerate() {
        for other in turned(line).into_iter().chain(idle(line)) {
            let mut lines = old.to_vec();
            lines[index] = other;
            found.push(lines);
        }
    }
    // Half of the change.
    if let ([one], [other]) = (old, new)
        && let Some((from, to)) = fragments(one, other)
        && let Some(half) = to.split_once(' ').map(|(half, _)| half)
        && half.len() > 2
    {
        found.push(vec![one.replacen(&from, half, 1)]);
    }
    found.retain(|lines| lines != old && lines != new && balanced(lines));
    found.dedup();
    (!found.is_empty()).then(|| found.swap_remove(choice.below(found.len())))
}

/// The line with one operator turned, in each way.
pub fn turned(line: &str) -> Vec<String> {
    let mut lines = Vec::new();
    if line.trim_start().starts_with('#') {
        return lines;
    }
    for (one, other) in SWAPS {
        for (from, to) in [(one, other), (other, one)] {
            if line.matches(*from).count() == 1 {
                lines.push(line.replace(*from, to));
            }
        }
    }
    lines
}

/// The line with parentheses that change nothing.
fn idle(line: &str) -> Option<String> {
    let body = line.trim_start();
    let indent = &line[..line.len() - body.len()];
    let plain = |text: &str| balanced(&[text.to_owned()]) && !text.is_empty();
    if let Some(value) = body.strip_prefix("return ").filter(|value| plain(value)) {
        return (!value.contains('#')).then(|| format!("{indent}return ({value})"));
    }
    if let Some(condition) = body.strip_prefix("if ").and_then(|b| b.strip_suffix(':'))
        && plain(condition)
        && !condition.contains('#')
    {
        return Some(format!("{indent}if ({condition}):"));
    }
    None
}

/// Whether brackets and quotes are even: what is written has to be a program.
fn balanced(lines: &[String]) -> bool {
    let text = lines.join("\n");
    let count = |c: char| text.matches(c).count();
    count('(') == count(')')
        && count('[') == count(']')
        && count('{') == count('}')
        && count('"') % 2 == 0
        && count('\'') % 2 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_edit_is_neither_the_start_nor_the_fix() {
        let owned = |lines: &[&str]| lines.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>();
        for (old, new) in [
            (owned(&["    if a < b:"]), owned(&["    if a <= b:"])),
            (owned(&["    return x"]), owned(&["    return x + 1"])),
            (owned(&[]), owned(&["    if not a:", "        return"])),
        ] {
            for seed in 0..20 {
                let wrong = lines(&old, &new, &mut Choice::new(seed)).unwrap();
                assert!(wrong != old && wrong != new, "{wrong:?}");
            }
        }
        assert_eq!(lines(&owned(&["x"]), &[], &mut Choice::new(1)), None);
    }
}
