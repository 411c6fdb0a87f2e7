//! Text as Python sees it, since the protocols are defined by what a Python program does with it.
//!
//! Python's white space is Unicode's plus U+001C to U+001F, and `str.splitlines` knows more line
//! ends than LF. Both differ from Rust's `str` methods, which are therefore not used here.

/// Whether Python's `str.isspace` holds for a character.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Python's `str.strip` without arguments.
pub fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// Python's `str.splitlines(keepends=True)`: ends at LF, CR, CRLF, VT, FF, U+001C to U+001E,
/// U+0085, U+2028 and U+2029.
pub fn split_lines(text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut start = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let ends = matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        );
        if !ends {
            continue;
        }
        let mut end = at + c.len_utf8();
        if c == '\r' && chars.peek().is_some_and(|(_, next)| *next == '\n') {
            chars.next();
            end += 1;
        }
        lines.push(&text[start..end]);
        start = end;
    }
    if start < text.len() {
        lines.push(&text[start..]);
    }
    lines
}

/// Bytes as UTF-8 text. Each maximal part of an invalid sequence becomes one U+FFFD, which is what
/// both Python's `errors="replace"` and Rust do.
pub fn decode(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// CRLF and lone CR become LF, as in Python's text mode.
pub fn universal_newlines(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

/// Splits a cut output into what is before and after the gap, both moved to a character boundary,
/// and says how many bytes are missing between them in all.
///
/// Only a character that the cut itself went through is dropped; bytes that were invalid before
/// the cut stay and are replaced visibly when decoded.
pub fn split_at_gap(output: &[u8], at: usize, omitted: u64) -> (&[u8], &[u8], u64) {
    let at = at.min(output.len());
    let (head, tail) = output.split_at(at);
    let head_end = head.len() - incomplete_suffix(head);
    let tail_start = if omitted == 0 {
        0
    } else {
        tail.iter()
            .take(3)
            .take_while(|byte| **byte & 0xc0 == 0x80)
            .count()
    };
    let dropped = (head.len() - head_end + tail_start) as u64;
    (
        &head[..head_end],
        &tail[tail_start..],
        omitted.saturating_add(dropped),
    )
}

/// Length of a character's beginning at the end of `bytes` that lacks its remaining bytes.
fn incomplete_suffix(bytes: &[u8]) -> usize {
    for length in 1..=bytes.len().min(3) {
        let suffix = &bytes[bytes.len() - length..];
        if suffix[0] & 0xc0 == 0x80 {
            continue;
        }
        return match std::str::from_utf8(suffix) {
            Err(error) if error.valid_up_to() == 0 && error.error_len().is_none() => length,
            _ => 0,
        };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_where_python_ends_them() {
        // `"a\nb\rc\r\nd\x0be\x0cf\x1cg\x1dh\x1ei\x85j\u2028k\u2029l\x1fm".splitlines(True)`
        let text = "a\nb\rc\r\nd\u{b}e\u{c}f\u{1c}g\u{1d}h\u{1e}i\u{85}j\u{2028}k\u{2029}l\u{1f}m";
        assert_eq!(
            split_lines(text),
            [
                "a\n",
                "b\r",
                "c\r\n",
                "d\u{b}",
                "e\u{c}",
                "f\u{1c}",
                "g\u{1d}",
                "h\u{1e}",
                "i\u{85}",
                "j\u{2028}",
                "k\u{2029}",
                "l\u{1f}m"
            ]
        );
        assert!(split_lines("").is_empty());
        assert_eq!(split_lines("\n"), ["\n"]);
    }

    #[test]
    fn python_space_includes_the_separators_rust_leaves_out() {
        for c in [
            '\u{1c}', '\u{1d}', '\u{1e}', '\u{1f}', '\u{a0}', '\u{85}', ' ',
        ] {
            assert!(is_space(c), "{c:?}");
        }
        for c in ['\u{200b}', '\u{feff}', '\u{180e}', 'a', '\u{8}'] {
            assert!(!is_space(c), "{c:?}");
        }
        assert_eq!(strip("\u{1f}\u{3000} x \u{2003}\u{1c}"), "x");
    }

    #[test]
    fn a_gap_never_splits_a_character() {
        let text = "aé€😀".as_bytes();
        for at in 0..=text.len() {
            for resume in at..=text.len() {
                let mut kept = text[..at].to_vec();
                kept.extend(&text[resume..]);
                let omitted = (resume - at) as u64;
                let (head, tail, missing) = split_at_gap(&kept, at, omitted);
                if omitted > 0 {
                    assert!(std::str::from_utf8(head).is_ok(), "{at} {resume}");
                    assert!(std::str::from_utf8(tail).is_ok(), "{at} {resume}");
                }
                assert_eq!(head.len() as u64 + missing + tail.len() as u64, 10);
            }
        }
    }

    #[test]
    fn bytes_that_were_invalid_anyway_stay_visible_at_a_gap() {
        let (head, tail, missing) = split_at_gap(&[b'a', 0xff, b'b'], 2, 5);
        assert_eq!((head, tail, missing), (&[b'a', 0xff][..], &b"b"[..], 5));
    }
}
