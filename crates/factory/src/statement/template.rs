//! The statement that can always be made: which public behaviour is wrong, what its documentation
//! promises, which tests show it and how to run them.

use super::{Drafts, Facts, cut};

/// Tests that are named one by one.
const MAX_TESTS: usize = 10;
/// Of a subject's documentation.
const MAX_DOCUMENTATION_BYTES: usize = 1200;

pub(super) fn write(facts: &Facts<'_>) -> Drafts {
    if facts.subjects.is_empty() && facts.failures.is_empty() {
        return Err("no public behaviour and no public test is known".to_owned());
    }
    let mut full = heading(facts);
    full.push_str(&opening(facts));
    full.push_str(&documentation(facts));
    full.push_str(&tests(facts));
    // Documentation can be part of what the bug changed.
    let mut short = heading(facts);
    short.push_str(&opening(facts));
    short.push_str(&tests(facts));
    Ok(vec![full, short])
}

/// The title, with the exception that a user sees, where there is one.
pub(super) fn heading(facts: &Facts<'_>) -> String {
    let subject = match facts.subjects.first() {
        Some(subject) => format!("`{}`", subject.name),
        None => facts.project.to_owned(),
    };
    match facts.exception {
        Some(exception) => format!("# {subject} raises {exception}\n\n"),
        None => format!("# {subject} gives wrong results\n\n"),
    }
}

/// What is wrong, in a sentence.
pub(super) fn opening(facts: &Facts<'_>) -> String {
    let names: Vec<String> = facts
        .subjects
        .iter()
        .take(3)
        .map(|subject| format!("`{}`", subject.name))
        .collect();
    if names.is_empty() {
        return format!(
            "{} no longer does what its tests expect.\n\n",
            facts.project
        );
    }
    format!(
        "In this version of {}, {} {} not behave as documented and tested.\n\n",
        facts.project,
        join(&names),
        if names.len() == 1 { "does" } else { "do" }
    )
}

fn join(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
    }
}

/// The documentation of the first subject, quoted.
pub(super) fn documentation(facts: &Facts<'_>) -> String {
    let Some((name, text)) = facts.subjects.first().and_then(|subject| {
        let text = subject.documentation.as_deref()?.trim();
        (!text.is_empty()).then_some((&subject.name, text))
    }) else {
        return String::new();
    };
    // Examples are the documentation's own; a rule of the text itself could end the quotation.
    let quoted: Vec<String> = cut(text, MAX_DOCUMENTATION_BYTES)
        .lines()
        .map(|line| format!("> {line}").trim_end().to_owned())
        .collect();
    format!(
        "The documentation of `{name}` says:\n\n{}\n\n",
        quoted.join("\n")
    )
}

/// Which public tests fail, and how to run the tests where that is known.
pub(super) fn tests(facts: &Facts<'_>) -> String {
    let mut text = String::new();
    if !facts.failures.is_empty() {
        text.push_str(if facts.failures.len() == 1 {
            "This test fails and should pass:\n\n"
        } else {
            "These tests fail and should pass:\n\n"
        });
        for failure in facts.failures.iter().take(MAX_TESTS) {
            text.push_str(&format!("    {}\n", one_line(failure.test.as_str())));
        }
        if let Some(more @ 1..) = facts.failures.len().checked_sub(MAX_TESTS) {
            text.push_str(&format!("    and {more} more\n"));
        }
        text.push('\n');
    }
    if facts.test_arguments.is_empty() {
        return text;
    }
    text.push_str(&format!(
        "Tests that pass must go on passing. Run the tests with:\n\n    {}\n",
        format!("python -m pytest -q {}", facts.test_arguments).trim_end()
    ));
    text
}

fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}
