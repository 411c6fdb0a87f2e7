//! Text as words and signs, so that code is found in prose however it is wrapped, quoted or
//! indented.

/// The words (letters, digits, underscores) and the single signs of a text. White space, quotes and
/// backticks separate and are not kept: `"a b"`, `'a b'` and a line break in between are the same.
pub(crate) fn tokens(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut word: Option<usize> = None;
    for (index, c) in text.char_indices() {
        if c == '_' || c.is_alphanumeric() {
            word.get_or_insert(index);
            continue;
        }
        if let Some(start) = word.take() {
            found.push(&text[start..index]);
        }
        if !c.is_whitespace() && !matches!(c, '\'' | '"' | '`') {
            found.push(&text[index..index + c.len_utf8()]);
        }
    }
    if let Some(start) = word {
        found.push(&text[start..]);
    }
    found
}

/// Whether `needle` stands in `text` as it is. An empty needle stands nowhere.
pub(super) fn contains(text: &[&str], needle: &[&str]) -> bool {
    !needle.is_empty() && text.windows(needle.len()).any(|window| window == needle)
}

/// Whether a token is a word rather than a sign.
pub(super) fn is_word(token: &str) -> bool {
    token
        .chars()
        .next()
        .is_some_and(|c| c == '_' || c.is_alphanumeric())
}

/// How many characters the tokens have together.
pub(super) fn length(tokens: &[&str]) -> usize {
    tokens.iter().map(|token| token.chars().count()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapping_and_quoting_do_not_matter() {
        let needle = tokens("return  x[1:] + \"a b\"");
        for text in [
            "it should `return x[1:]\n    + 'a b'` instead",
            "return x [ 1 : ] + a b",
        ] {
            assert!(contains(&tokens(text), &needle), "{text}");
        }
        assert!(!contains(&tokens("returns x[1:] + 'a b'"), &needle));
        assert!(!contains(&tokens("anything"), &[]));
        assert_eq!(tokens("don't é_1"), ["don", "t", "é_1"]);
    }
}
