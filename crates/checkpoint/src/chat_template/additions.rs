//! Makes the addition of lists pay for itself.
//!
//! The engine joins lists lazily and for free, and copies what was joined only after thirty-two
//! joins, so a template that doubles a list asks for 2^32 items at once. Here each operand of a chain
//! of additions is passed through a function that copies lists and charges for the copy.

/// The function that copies lists.
pub(super) const COPY: &str = "temper_copy";

/// Words that end an operand of an addition.
const KEYWORDS: [&str; 10] = [
    "or",
    "and",
    "not",
    "in",
    "if",
    "else",
    "elif",
    "for",
    "recursive",
    "import",
];

/// Wraps the operands of additions between `{{ }}` and `{% %}`.
pub(super) fn rewrite(source: &str) -> String {
    let mut out = String::with_capacity(source.len() + source.len() / 8);
    let mut rest = source;
    while let Some(at) = ["{{", "{%", "{#"]
        .iter()
        .filter_map(|open| rest.find(open))
        .min()
    {
        let (text, tag) = rest.split_at(at);
        out.push_str(text);
        if tag.starts_with("{#") {
            let end = tag.find("#}").map_or(tag.len(), |end| end + 2);
            out.push_str(&tag[..end]);
            rest = &tag[end..];
            continue;
        }
        let end = tag_end(tag);
        out.push_str(&rewrite_tag(&tag[..end]));
        rest = &tag[end..];
        if is_raw(&tag[..end]) {
            let end = rest.find("endraw").unwrap_or(rest.len());
            out.push_str(&rest[..end]);
            rest = &rest[end..];
        }
    }
    out.push_str(rest);
    out
}

fn is_raw(tag: &str) -> bool {
    tag.starts_with("{%")
        && tag.trim_matches(['{', '%', '-', '+', '}', ' ', '\n', '\t', '\r']) == "raw"
}

/// The length of a tag with its delimiters.
fn tag_end(tag: &str) -> usize {
    let close = if tag.starts_with("{{") { "}}" } else { "%}" };
    let mut at = 2;
    let mut depth = 0_usize;
    while at < tag.len() {
        let rest = &tag[at..];
        if depth == 0 && rest.starts_with(close) {
            return at + 2;
        }
        match rest.as_bytes()[0] {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += token_len(rest);
    }
    tag.len()
}

/// The length of a string, word, number, operator or space at the front of a text.
fn token_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let run = |from: usize, keep: fn(u8) -> bool| {
        from + bytes[from..].iter().take_while(|b| keep(**b)).count()
    };
    match bytes[0] {
        quote @ (b'\'' | b'"') => {
            let mut at = 1;
            while at < bytes.len() && bytes[at] != quote {
                at += if bytes[at] == b'\\' { 2 } else { 1 };
            }
            (at + 1).min(bytes.len())
        }
        b'0'..=b'9' => {
            let end = run(1, |b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.');
            match bytes.get(end) {
                // The sign of an exponent.
                Some(b'+' | b'-') if matches!(bytes[end - 1], b'e' | b'E') => {
                    run(end + 1, |b| b.is_ascii_digit())
                }
                _ => end,
            }
        }
        b if is_word(b) => run(1, is_word),
        b'=' | b'!' | b'<' | b'>' if bytes.get(1) == Some(&b'=') => 2,
        _ => 1,
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// A chain of additions between two delimiters.
#[derive(Default)]
struct Chain {
    /// Where its operands begin and end.
    operands: Vec<(usize, usize)>,
    has_addition: bool,
}

fn rewrite_tag(tag: &str) -> String {
    let mut inserts: Vec<(usize, String)> = Vec::new();
    let mut chains = vec![Chain::default()];
    let close = |chain: &mut Chain, inserts: &mut Vec<(usize, String)>| {
        let chain = std::mem::take(chain);
        if chain.has_addition {
            for (start, end) in chain.operands {
                inserts.push((start, format!("{COPY}(")));
                inserts.push((end, ")".to_owned()));
            }
        }
    };
    let lead = 2 + usize::from(tag[2..].starts_with(['-', '+']));
    let body_end = tag.len().saturating_sub(2).max(lead);
    let body_end = match tag.as_bytes()[..body_end].last() {
        Some(b'-' | b'+') if body_end > lead => body_end - 1,
        _ => body_end,
    };
    let mut at = lead;
    let mut is_first_word = tag.starts_with("{%");
    // Whether an operand is under way, so that a sign would join it to another.
    let mut in_operand = false;
    let mut after_is = false;
    // Whether a product or a concatenation waits for its other side: a sign there is no addition.
    let mut waits = false;
    while at < body_end {
        let len = token_len(&tag[at..body_end]);
        let token = &tag[at..at + len];
        let (start, end) = (at, at + len);
        at = end;
        if token.trim().is_empty() {
            continue;
        }
        let is_delimiter = match token {
            "," | ":" | "=" | "==" | "!=" | "<" | ">" | "<=" | ">=" => true,
            "not" if after_is => false,
            word if KEYWORDS.contains(&word) => true,
            word if is_first_word && is_word(word.as_bytes()[0]) => true,
            _ => false,
        };
        is_first_word = false;
        after_is = token == "is";
        let Some(chain) = chains.last_mut() else {
            break;
        };
        match token {
            _ if is_delimiter => {
                close(chain, &mut inserts);
                in_operand = false;
                waits = false;
                continue;
            }
            "+" | "-" if in_operand && !waits => {
                chain.has_addition |= token == "+";
                in_operand = false;
                continue;
            }
            ")" | "]" | "}" => {
                close(chain, &mut inserts);
                if chains.len() > 1 {
                    chains.pop();
                }
                if let Some((_, operand_end)) =
                    chains.last_mut().and_then(|c| c.operands.last_mut())
                {
                    *operand_end = end;
                }
                in_operand = true;
                waits = false;
                continue;
            }
            _ => {}
        }
        match chain.operands.last_mut() {
            Some((_, operand_end)) if in_operand => *operand_end = end,
            _ => chain.operands.push((start, end)),
        }
        in_operand = true;
        waits = matches!(token, "*" | "/" | "%" | "~");
        if matches!(token, "(" | "[" | "{") {
            chains.push(Chain::default());
            in_operand = false;
        }
    }
    while let Some(mut chain) = chains.pop() {
        close(&mut chain, &mut inserts);
    }
    inserts.sort_by_key(|(at, text)| (*at, text != ")"));
    let mut out = String::with_capacity(tag.len() + 16 * inserts.len());
    let mut done = 0;
    for (at, text) in inserts {
        out.push_str(&tag[done..at]);
        out.push_str(&text);
        done = at;
    }
    out.push_str(&tag[done..]);
    out
}

#[cfg(test)]
mod tests {
    use super::rewrite;

    #[test]
    fn operands_are_wrapped() {
        for (source, expected) in [
            ("{{ a }}", "{{ a }}"),
            ("{{- a + b -}}", "{{- temper_copy(a) + temper_copy(b) -}}"),
            ("{{ a - b }}", "{{ a - b }}"),
            (
                "{{ a - -b + 'x+y' }}",
                "{{ temper_copy(a) - temper_copy(-b) + temper_copy('x+y') }}",
            ),
            (
                "{{ f(a + b)[1] + c | trim }}",
                "{{ temper_copy(f(temper_copy(a) + temper_copy(b))[1]) + temper_copy(c | trim) }}",
            ),
            (
                "{% set x = a ~ b + c %}",
                "{% set x = temper_copy(a ~ b) + temper_copy(c) %}",
            ),
            (
                "{%+ if a + 1 == b and c is not none +%}",
                "{%+ if temper_copy(a) + temper_copy(1) == b and c is not none +%}",
            ),
            (
                "{% for x in a + b if c %}",
                "{% for x in temper_copy(a) + temper_copy(b) if c %}",
            ),
            (
                "{{ {'k': a + [1]} }}",
                "{{ {'k': temper_copy(a) + temper_copy([1])} }}",
            ),
            (
                "{# a + b #}{% raw %}{{ a + b }}{% endraw %}",
                "{# a + b #}{% raw %}{{ a + b }}{% endraw %}",
            ),
            (
                "{{ '}}' + \"%}\" }} + {{ 1 }}",
                "{{ temper_copy('}}') + temper_copy(\"%}\") }} + {{ 1 }}",
            ),
            (
                "{{ a * -b + c }}",
                "{{ temper_copy(a * -b) + temper_copy(c) }}",
            ),
        ] {
            assert_eq!(rewrite(source), expected);
        }
    }
}
