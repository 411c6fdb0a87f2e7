//! The string constants of a template: what it may look for in content.

/// Constants longer than this are prose; nothing compares content with them.
const MAX_LITERAL_CHARS: usize = 64;
const MAX_LITERALS: usize = 4096;

/// The string constants between `{{ }}` and `{% %}`, unescaped, sorted, without repeats.
///
/// It may find too many (as in a comment), never too few: a constant that is missed only makes a
/// template unsegmentable that looks for it.
pub(super) fn string_literals(source: &str) -> Vec<String> {
    let mut literals = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find("{{").into_iter().chain(rest.find("{%")).min() {
        rest = &rest[at + 2..];
        rest = read_tag(rest, &mut literals);
        if literals.len() >= MAX_LITERALS {
            break;
        }
    }
    literals.retain(|text| {
        let n = text.chars().count();
        (2..=MAX_LITERAL_CHARS).contains(&n) && !text.trim().is_empty()
    });
    literals.sort_unstable();
    literals.dedup();
    literals
}

/// Reads to the end of a tag and returns what follows.
fn read_tag<'a>(tag: &'a str, literals: &mut Vec<String>) -> &'a str {
    let mut characters = tag.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '%' | '}' if tag[at + 1..].starts_with('}') => return &tag[at + 2..],
            quote @ ('\'' | '"') => {
                let mut text = String::new();
                loop {
                    match characters.next() {
                        None => return "",
                        Some((_, c)) if c == quote => break,
                        Some((_, '\\')) => match characters.next() {
                            Some((_, 'n')) => text.push('\n'),
                            Some((_, 't')) => text.push('\t'),
                            Some((_, 'r')) => text.push('\r'),
                            Some((_, c)) => text.push(c),
                            None => return "",
                        },
                        Some((_, c)) => text.push(c),
                    }
                }
                literals.push(text);
            }
            _ => {}
        }
    }
    ""
}
