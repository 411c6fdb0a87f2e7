//! When two statements are one.

/// The words of a statement, in lower case and with one space between them: two tasks whose
/// statements give the same text here are in one source group, and nothing that is compared later
/// may use another text.
pub fn statement_words(statement: &str) -> String {
    let words: Vec<&str> = statement.split_whitespace().collect();
    words.join(" ").to_lowercase()
}
