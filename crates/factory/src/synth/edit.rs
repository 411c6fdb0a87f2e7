//! Changes of text.

use std::ops::Range;

/// Replaces the bytes of `range` by `text`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Edit {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) text: String,
}

impl Edit {
    pub(crate) fn new(range: Range<usize>, text: impl Into<String>) -> Self {
        Edit {
            start: range.start,
            end: range.end,
            text: text.into(),
        }
    }

    /// One edit that does what all of `edits` do; `None` when two of them overlap or nothing
    /// changes. What is equal at both ends is left out, so that two ways to write the same result
    /// mostly become the same edit.
    pub(crate) fn merged(mut edits: Vec<Edit>, text: &str) -> Option<Edit> {
        edits.sort();
        edits.dedup();
        let first = edits.first()?;
        let (start, mut end) = (first.start, first.start);
        let mut merged = String::new();
        for edit in &edits {
            // Two insertions at one place have no order.
            if edit.start < end || (edit.start == end && end != start && edit.start == edit.end) {
                return None;
            }
            merged.push_str(&text[end..edit.start]);
            merged.push_str(&edit.text);
            end = edit.end;
        }
        Edit::new(start..end, merged).trimmed(text)
    }

    /// Without what is equal at both ends; the beginning also moves on beyond the end as long as
    /// the result is the same, within a bound.
    fn trimmed(self, text: &str) -> Option<Edit> {
        const MAX_SLIDE: usize = 4096;
        let old = &text.as_bytes()[self.start..(self.end + MAX_SLIDE).min(text.len())];
        let tail = &text.as_bytes()[self.end..(self.end + MAX_SLIDE).min(text.len())];
        let new = self.text.bytes().chain(tail.iter().copied());
        let mut prefix = old.iter().zip(new).take_while(|(a, b)| **a == *b).count();
        while !text.is_char_boundary(self.start + prefix) {
            prefix -= 1;
        }
        // The slid edit covers the same lengths further on.
        let slide = prefix.saturating_sub((self.end - self.start).min(self.text.len()));
        let (start, end) = (self.start, self.end + slide);
        if !text.is_char_boundary(end) {
            return self.trimmed_in_place(text);
        }
        let mut new = self.text;
        new.push_str(&text[self.end..end]);
        Edit::new(start..end, new).trimmed_in_place(text)
    }

    fn trimmed_in_place(self, text: &str) -> Option<Edit> {
        let (old, new) = (&text[self.start..self.end], self.text.as_str());
        if old == new {
            return None;
        }
        let mut prefix = old
            .bytes()
            .zip(new.bytes())
            .take_while(|(a, b)| a == b)
            .count();
        while !old.is_char_boundary(prefix) || !new.is_char_boundary(prefix) {
            prefix -= 1;
        }
        let (old, new) = (&old[prefix..], &new[prefix..]);
        let mut suffix = old
            .bytes()
            .rev()
            .zip(new.bytes().rev())
            .take_while(|(a, b)| a == b)
            .count();
        while !old.is_char_boundary(old.len() - suffix) || !new.is_char_boundary(new.len() - suffix)
        {
            suffix -= 1;
        }
        Some(Edit::new(
            self.start + prefix..self.end - suffix,
            &new[..new.len() - suffix],
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(edits: &[(Range<usize>, &str)], text: &str) -> Option<(usize, usize, String)> {
        let edits = edits
            .iter()
            .map(|(range, text)| Edit::new(range.clone(), *text))
            .collect();
        Edit::merged(edits, text).map(|edit| (edit.start, edit.end, edit.text))
    }

    #[test]
    fn equal_results_are_equal_edits() {
        let text = "ab ab ab";
        // Either of three equal words taken away.
        assert_eq!(merged(&[(0..3, "")], text), merged(&[(3..6, "")], text));
        assert_eq!(merged(&[(0..2, "ab")], text), None);
        assert_eq!(merged(&[(0..2, "ac")], text), Some((1, 2, "c".into())));
        assert_eq!(merged(&[(0..2, "x"), (1..3, "y")], text), None);
        assert_eq!(
            merged(&[(0..1, "x"), (3..4, "x")], text),
            Some((0, 4, "xb x".into()))
        );
        // Half of a character is never left.
        assert_eq!(merged(&[(0..2, "è")], "é"), Some((0, 2, "è".into())));
    }
}
