//! Tokens of program text and of prose, without what a copy changes for free.

/// The version of what counts as a token and of its hash. Changes when any hash would.
pub const TOKENS: &str = "tokens-1";

/// What a token of program text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An identifier or a keyword.
    Name,
    /// A number.
    Number,
    /// A string with its prefix and quotes.
    Text,
    /// One byte of anything else.
    Mark,
}

/// How names enter the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// As they are.
    Kept,
    /// All identifiers are one; keywords stay. Finds copies in which everything was renamed.
    Blind,
}

/// One token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The hash of what the token counts as.
    pub hash: u64,
    /// What it is.
    pub kind: Kind,
    /// Its first byte.
    pub start: usize,
    /// The byte behind it.
    pub end: usize,
    /// The line it begins in, counted from 1.
    pub line: u32,
    /// The line it ends in.
    pub last_line: u32,
    /// Column of its first byte from 0, a tab going on to the next multiple of 8.
    pub column: u32,
}

const KEYWORDS: [&[u8]; 35] = [
    b"False",
    b"None",
    b"True",
    b"and",
    b"as",
    b"assert",
    b"async",
    b"await",
    b"break",
    b"class",
    b"continue",
    b"def",
    b"del",
    b"elif",
    b"else",
    b"except",
    b"finally",
    b"for",
    b"from",
    b"global",
    b"if",
    b"import",
    b"in",
    b"is",
    b"lambda",
    b"nonlocal",
    b"not",
    b"or",
    b"pass",
    b"raise",
    b"return",
    b"try",
    b"while",
    b"with",
    b"yield",
];

/// FNV-1a with 64 bits (RFC 9923), mixed by the finaliser of SplitMix64 so that all bits depend on
/// all bytes.
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    mix(bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    }))
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64 bits.
pub(super) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Calls `each` with the tokens of Python text. Comments, white space and line ends are no tokens;
/// all strings count as one and the same, and so do all numbers. Any bytes are accepted: what is
/// no Python gives tokens too, and text without quotes and `#` of most languages gives its own.
pub fn code(text: &[u8], names: Names, mut each: impl FnMut(Token)) {
    let (mut at, mut line, mut column) = (0, 1u32, 0u32);
    let number = hash_bytes(b"\0number");
    let string = hash_bytes(b"\0text");
    let blind = hash_bytes(b"\0name");
    while let Some(&byte) = text.get(at) {
        match byte {
            b'\n' => (at, line, column) = (at + 1, line.saturating_add(1), 0),
            b'\t' => (at, column) = (at + 1, (column / 8 + 1) * 8),
            b' ' | b'\r' | b'\x0c' => (at, column) = (at + 1, column + 1),
            b'#' => {
                at += text[at..]
                    .iter()
                    .position(|b| *b == b'\n')
                    .unwrap_or(text.len() - at)
            }
            _ => {
                let (start, first_line) = (at, line);
                let (kind, hash);
                if is_name_start(byte) {
                    at += run(&text[at..], is_name);
                    if at - start <= 2
                        && matches!(text.get(at), Some(b'"' | b'\''))
                        && is_prefix(&text[start..at])
                    {
                        at = string_end(text, at, &mut line);
                        (kind, hash) = (Kind::Text, string);
                    } else {
                        let word = &text[start..at];
                        let kept = names == Names::Kept || KEYWORDS.contains(&word);
                        (kind, hash) = (Kind::Name, if kept { hash_bytes(word) } else { blind });
                    }
                } else if byte.is_ascii_digit() {
                    at += run(&text[at..], |b| is_name(b) || b == b'.');
                    (kind, hash) = (Kind::Number, number);
                } else if matches!(byte, b'"' | b'\'') {
                    at = string_end(text, at, &mut line);
                    (kind, hash) = (Kind::Text, string);
                } else {
                    at += 1;
                    (kind, hash) = (Kind::Mark, hash_bytes(&text[start..at]));
                }
                each(Token {
                    hash,
                    kind,
                    start,
                    end: at,
                    line: first_line,
                    last_line: line,
                    column,
                });
                // After a string over several lines only its last line counts, and nothing that
                // begins there begins a logical line.
                column = column.saturating_add(u32::try_from(at - start).unwrap_or(u32::MAX));
            }
        }
    }
}

/// As [`code`], line by line: a string ends with its line. For text that may begin inside a
/// docstring, as a hunk of a patch does: the quotes that end it would begin a string that takes in
/// all code below. Lines of a docstring are read as code, in every copy the same.
pub fn code_lines(text: &[u8], names: Names, mut each: impl FnMut(Token)) {
    let mut start = 0;
    for (number, line) in (0u32..).zip(text.split(|byte| *byte == b'\n')) {
        code(line, names, |token| {
            each(Token {
                start: start + token.start,
                end: start + token.end,
                line: number.saturating_add(token.line),
                last_line: number.saturating_add(token.last_line),
                ..token
            });
        });
        start += line.len() + 1;
    }
}

/// Calls `each` with the hash of every word and the byte behind it. A word is a run of letters and
/// digits, in lower case; bytes of other alphabets are letters.
pub fn words(text: &[u8], mut each: impl FnMut(u64, usize)) {
    let mut at = 0;
    let mut word = Vec::new();
    while at < text.len() {
        let length = run(&text[at..], |b| b.is_ascii_alphanumeric() || b >= 0x80);
        if length == 0 {
            at += 1;
            continue;
        }
        word.clear();
        word.extend(text[at..at + length].iter().map(u8::to_ascii_lowercase));
        at += length;
        each(hash_bytes(&word), at);
    }
}

fn run(text: &[u8], inside: impl Fn(u8) -> bool) -> usize {
    text.iter().position(|b| !inside(*b)).unwrap_or(text.len())
}

fn is_name_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn is_name(byte: u8) -> bool {
    is_name_start(byte) || byte.is_ascii_digit()
}

fn is_prefix(word: &[u8]) -> bool {
    word.iter()
        .all(|b| matches!(b.to_ascii_lowercase(), b'r' | b'b' | b'f' | b'u' | b't'))
}

/// The byte behind the string that begins with the quote at `at`. One that is not closed ends with
/// its line, or with the text when its quotes are triple.
fn string_end(text: &[u8], at: usize, line: &mut u32) -> usize {
    let quote = text[at];
    let triple = text.get(at + 1) == Some(&quote) && text.get(at + 2) == Some(&quote);
    let mut at = at + if triple { 3 } else { 1 };
    while let Some(&byte) = text.get(at) {
        match byte {
            b'\\' => {
                if text.get(at + 1) == Some(&b'\n') {
                    *line = line.saturating_add(1);
                }
                at += 2;
            }
            b'\n' if !triple => return at,
            b'\n' => {
                *line = line.saturating_add(1);
                at += 1;
            }
            b if b == quote && !triple => return at + 1,
            b if b == quote
                && text.get(at + 1) == Some(&quote)
                && text.get(at + 2) == Some(&quote) =>
            {
                return at + 3;
            }
            _ => at += 1,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<&str> {
        let mut found = Vec::new();
        code(source.as_bytes(), Names::Kept, |t| {
            found.push(&source[t.start..t.end])
        });
        found
    }

    fn hashes(source: &str, names: Names) -> Vec<u64> {
        let mut found = Vec::new();
        code(source.as_bytes(), names, |t| found.push(t.hash));
        found
    }

    #[test]
    fn tokens_are_those_of_python() {
        assert_eq!(
            texts(
                "def f(a):  # no 'string'\n\treturn rb'\\'x' + \"\"\"a\n# \"in\" \"\"\" + 0x1f.real\n"
            ),
            [
                "def",
                "f",
                "(",
                "a",
                ")",
                ":",
                "return",
                "rb'\\'x'",
                "+",
                "\"\"\"a\n# \"in\" \"\"\"",
                "+",
                "0x1f.real"
            ]
        );
        // Damaged text ends somewhere and never panics.
        assert_eq!(texts("x = 'open\ny"), ["x", "=", "'open", "y"]);
        assert_eq!(texts("x = '''open\ny"), ["x", "=", "'''open\ny"]);
        assert_eq!(texts("'\\"), ["'\\"]);
    }

    #[test]
    fn layout_comments_strings_and_numbers_do_not_count_but_names_do() {
        let plain = "def f(a, b):\n    return a + b * 2 + 'x'\n";
        let same = hashes(plain, Names::Kept);
        assert_eq!(
            same,
            hashes(
                "def f(a,b): # c\n\n  return a+b*77 + \"\"\"y\n\"\"\"",
                Names::Kept
            )
        );
        assert_ne!(
            same,
            hashes("def f(a, b):\n    return a - b * 2 + 'x'\n", Names::Kept)
        );
        let renamed = "def g(x, y):\n    return x + y * 2 + 'x'\n";
        assert_ne!(same, hashes(renamed, Names::Kept));
        assert_eq!(hashes(plain, Names::Blind), hashes(renamed, Names::Blind));
        assert_ne!(
            hashes("if a: pass", Names::Blind),
            hashes("while a: pass", Names::Blind)
        );
    }

    #[test]
    fn lines_and_columns_are_those_of_the_text() {
        let mut found = Vec::new();
        code(b"a = '''x\ny''' + b\n\tc", Names::Kept, |t| {
            found.push((t.line, t.last_line, t.column))
        });
        assert_eq!(found[2], (1, 2, 4));
        assert_eq!(found[4].0, 2);
        assert_eq!(found[5], (3, 3, 8));
    }

    #[test]
    fn a_text_that_begins_inside_a_string_has_its_code_line_by_line() {
        let rest = "the end of it.\n    \"\"\"\n    return a\n";
        let mut found = Vec::new();
        code_lines(rest.as_bytes(), Names::Kept, |t| {
            found.push((&rest[t.start..t.end], t.line, t.last_line, t.column));
        });
        assert_eq!(found[5], ("\"\"\"", 2, 2, 4));
        assert_eq!(found[6..], [("return", 3, 3, 4), ("a", 3, 3, 11)]);
        assert!(!texts(rest).contains(&"return"));
    }

    #[test]
    fn words_are_lower_case_runs() {
        let of = |text: &str| {
            let mut found = Vec::new();
            words(text.as_bytes(), |w, _| found.push(w));
            found
        };
        assert_eq!(of("The  QUICK-brown\nfox_2"), of("the quick brown fox 2"));
        assert_eq!(of("").len(), 0);
    }

    #[test]
    fn the_hash_is_the_published_one() {
        // FNV-1a of "a" is af63dc4c8601ec8c; what is added is a bijection.
        assert_eq!(hash_bytes(b"a"), mix(0xaf63_dc4c_8601_ec8c));
        // SplitMix64 with seed 0 begins with e220a8397b1dcdaf.
        assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0xe220_a839_7b1d_cdaf);
    }
}
