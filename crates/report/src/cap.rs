//! Bounds on what a page shows of one text: its beginning, its end, and how much is between.

/// At most `head` characters from the beginning and `tail` from the end, with a line between that
/// says how many bytes were left out. A text that fits is returned whole.
///
/// Cuts lie on character boundaries and, where a line break is near, at a line break.
pub fn middle_out(text: &str, head: usize, tail: usize) -> String {
    if text.chars().nth(head + tail).is_none() {
        return text.to_owned();
    }
    let mut start = text
        .char_indices()
        .nth(head)
        .map_or(text.len(), |(at, _)| at);
    let mut end = match tail {
        0 => text.len(),
        _ => text
            .char_indices()
            .nth_back(tail - 1)
            .map_or(0, |(at, _)| at),
    };
    if let Some(at) = text[..start].rfind('\n')
        && start - at < head / 4
    {
        start = at + 1;
    }
    if let Some(at) = text[end..].find('\n')
        && at < tail / 4
    {
        end += at + 1;
    }
    let separator = if text[..start].ends_with('\n') || start == 0 {
        ""
    } else {
        "\n"
    };
    format!(
        "{}{separator}\u{22ef} {} bytes left out of this view \u{22ef}\n{}",
        &text[..start],
        crate::words::thousands((end - start) as u64),
        &text[end..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_exactly_how_much_is_missing() {
        assert_eq!(middle_out("short", 3, 2), "short");
        let text = "é".repeat(5_000);
        let cut = middle_out(&text, 1_000, 500);
        assert!(
            cut.contains("7,000 bytes left out"),
            "{}",
            &cut[2_000..2_100]
        );
        let kept = cut.chars().filter(|&c| c == 'é').count();
        assert_eq!(kept, 1_500);
    }

    #[test]
    fn prefers_to_cut_between_lines() {
        let text: String = (0..1_000).map(|i| format!("line {i}\n")).collect();
        let cut = middle_out(&text, 400, 200);
        for line in cut.lines() {
            assert!(
                line.strip_prefix("line ")
                    .is_some_and(|n| n.parse::<u32>().is_ok())
                    || line.contains("bytes left out"),
                "{line}"
            );
        }
        let left_out = cut.lines().find(|line| line.contains("left out")).unwrap();
        let bytes: usize = left_out
            .split_whitespace()
            .nth(1)
            .unwrap()
            .replace(',', "")
            .parse()
            .unwrap();
        assert_eq!(cut.len() - left_out.len() - 1 + bytes, text.len());
    }

    #[test]
    fn takes_no_tail_if_none_is_asked_for() {
        assert!(middle_out(&"x".repeat(100), 10, 0).starts_with("xxxxxxxxxx\n\u{22ef} 90 bytes"));
    }
}
