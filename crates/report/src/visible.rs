//! Makes characters that act, or hide, into characters that show.

use std::fmt::Write;

/// Text for a page: colour codes are taken out, and every other control or direction-changing
/// character becomes a visible sign, except line breaks and tabs.
///
/// Colour codes (`ESC [ … m`) carry nothing but looks and make logs unreadable when shown; all
/// other escape sequences stay visible as `⟨U+001B⟩[…`. Code points are named rather than drawn as
/// control pictures, which few fonts have.
pub fn for_page(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(length) = colour_code(rest) {
            rest = &rest[length..];
            continue;
        }
        rest = &rest[c.len_utf8()..];
        match c {
            // The line break of Windows is one line break to a reader.
            '\r' if rest.starts_with('\n') => {}
            '\n' | '\t' => out.push(c),
            c if c.is_control() || hides(c) => write!(out, "\u{27e8}U+{:04X}\u{27e9}", c as u32)
                .expect("writing to a string succeeds"),
            c => out.push(c),
        }
    }
    out
}

/// Text for one line of a terminal: every control or direction-changing character is written as
/// an escape (`\n`, `\u{1b}`), so nothing can move the cursor, change colours or forge a line.
pub fn for_terminal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || hides(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// Whether a character changes the order or the presence of others without being seen: C1
/// controls, direction marks, overrides and isolates, and interlinear annotations.
fn hides(c: char) -> bool {
    matches!(c,
        '\u{80}'..='\u{9f}'
        | '\u{61c}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}')
}

/// The length of the colour code that `text` starts with.
fn colour_code(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\u{1b}[")?;
    let end = parameters.find(|c: char| !matches!(c, '0'..='9' | ';' | ':'))?;
    (parameters.as_bytes()[end] == b'm').then_some(2 + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_show_what_would_act() {
        for (text, shown) in [
            ("plain\n\tline\r\n", "plain\n\tline\n"),
            ("\u{1b}[31;1mred\u{1b}[0m", "red"),
            (
                "\u{1b}[2Jx\rover",
                "\u{27e8}U+001B\u{27e9}[2Jx\u{27e8}U+000D\u{27e9}over",
            ),
            (
                "a\0b\u{7f}",
                "a\u{27e8}U+0000\u{27e9}b\u{27e8}U+007F\u{27e9}",
            ),
            ("if\u{202e}nimda", "if\u{27e8}U+202E\u{27e9}nimda"),
            ("\u{1b}[38;5;9", "\u{27e8}U+001B\u{27e9}[38;5;9"),
            ("\u{9b}31m", "\u{27e8}U+009B\u{27e9}31m"),
            ("snow \u{2603} \u{1f600}", "snow \u{2603} \u{1f600}"),
        ] {
            assert_eq!(for_page(text), shown, "{text:?}");
        }
    }

    #[test]
    fn terminals_get_one_harmless_line() {
        assert_eq!(for_terminal("a\u{1b}[2J\nb"), "a\\u{1b}[2J\\nb");
        assert_eq!(for_terminal("x\u{202e}y"), "x\\u{202e}y");
        assert_eq!(for_terminal("\u{9b}2J"), "\\u{9b}2J");
        assert_eq!(for_terminal("naïve 雪"), "naïve 雪");
    }
}
