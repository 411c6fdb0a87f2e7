//! The message of the commit that a PR mirror undoes: what its author found worth saying.

use super::{Drafts, Facts, MAX_BYTES, cut, template};
use crate::Note;

const MIN_WORDS: usize = 4;

pub(super) fn write(facts: &Facts<'_>) -> Drafts {
    let Some(Note::Commit { message, .. }) = facts.note else {
        return Err("the bug does not undo a commit".to_owned());
    };
    let (title, body) = clean(message);
    if title.split_whitespace().count() < MIN_WORDS && body.is_empty() {
        return Err(format!("the commit's message says too little: {title:?}"));
    }
    let draft = |body: &str| {
        let quoted: Vec<String> = [title.as_str(), body]
            .iter()
            .filter(|part| !part.is_empty())
            .map(|part| {
                let lines: Vec<String> = part
                    .lines()
                    .map(|line| format!("> {line}").trim_end().to_owned())
                    .collect();
                lines.join("\n")
            })
            .collect();
        let text = format!(
            "{}{}The project's history describes a change whose effect is missing here:\n\n{}\n\n{}",
            template::heading(facts),
            template::opening(facts),
            quoted.join("\n>\n"),
            template::tests(facts)
        );
        cut(&text, MAX_BYTES)
    };
    Ok(vec![draft(&body), draft("")])
}

/// Title and body without trailers, references and marks of services.
fn clean(message: &str) -> (String, String) {
    const TRAILERS: [&str; 9] = [
        "signed-off-by:",
        "co-authored-by:",
        "change-id:",
        "reviewed-by:",
        "reviewed-on:",
        "acked-by:",
        "cc:",
        "git-svn-id:",
        "differential revision:",
    ];
    let mut lines = message
        .lines()
        .map(|line| {
            line.chars()
                .filter(|c| !c.is_control() || *c == '\t')
                .collect::<String>()
        })
        .filter(|line| {
            let lower = line.trim_start().to_lowercase();
            !TRAILERS.iter().any(|trailer| lower.starts_with(trailer))
        });
    let title = without_references(lines.next().unwrap_or_default().trim());
    let body: Vec<String> = lines
        .map(|line| without_references(line.trim_end()))
        .collect();
    (title, body.join("\n").trim().to_owned())
}

/// Without `#123` and `(GH-123)`, which mean nothing without the service they point to.
fn without_references(line: &str) -> String {
    let is_reference = |word: &str| {
        let word =
            word.trim_matches(|c: char| matches!(c, '(' | ')' | '[' | ']' | ',' | '.' | ':'));
        let number = word
            .strip_prefix('#')
            .or_else(|| word.strip_prefix("GH-"))
            .or_else(|| word.strip_prefix("gh-"));
        number
            .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
    };
    if !line.split_whitespace().any(is_reference) {
        return line.to_owned();
    }
    let kept: Vec<&str> = line
        .split_whitespace()
        .filter(|word| !is_reference(word))
        .collect();
    // "Fixes #12." leaves a word that points nowhere.
    match kept.as_slice() {
        [word] if word.to_lowercase().trim_matches(':').ends_with("es") => String::new(),
        _ => kept.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_and_references_go() {
        let message = "Fix slices of an empty set (#12)\n\nThey raised before.\nFixes #11.\n\nSigned-off-by: A <a@b>\nCo-authored-by: B\n";
        assert_eq!(
            clean(message),
            (
                "Fix slices of an empty set".to_owned(),
                "They raised before.".to_owned()
            )
        );
        assert_eq!(clean(""), (String::new(), String::new()));
        assert_eq!(clean("a\u{1b}[31mb c").0, "a[31mb c");
        assert_eq!(clean("Use #fff as colour").0, "Use #fff as colour");
    }
}
