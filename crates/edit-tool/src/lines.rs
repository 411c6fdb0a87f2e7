//! Line ends, line numbers and tabs.

#[derive(Clone, Copy, PartialEq)]
pub enum LineEnd {
    Lf,
    CrLf,
    Cr,
}

/// The text with every line end as LF, and what each of them was.
pub fn universal_newlines(text: &str) -> (String, Vec<LineEnd>) {
    let mut normal = String::with_capacity(text.len());
    let mut ends = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['\r', '\n']) {
        let (end, length) = if rest[at..].starts_with("\r\n") {
            (LineEnd::CrLf, 2)
        } else if rest[at..].starts_with('\r') {
            (LineEnd::Cr, 1)
        } else {
            (LineEnd::Lf, 1)
        };
        normal.push_str(&rest[..at]);
        normal.push('\n');
        ends.push(end);
        rest = &rest[at + length..];
    }
    normal.push_str(rest);
    (normal, ends)
}

pub fn restore_newlines(text: &str, mut ends: impl Iterator<Item = LineEnd>, out: &mut String) {
    for piece in text.split_inclusive('\n') {
        let Some(line) = piece.strip_suffix('\n') else {
            out.push_str(piece);
            continue;
        };
        out.push_str(line);
        out.push_str(match ends.next() {
            Some(LineEnd::CrLf) => "\r\n",
            Some(LineEnd::Cr) => "\r",
            Some(LineEnd::Lf) | None => "\n",
        });
    }
}

/// The line end for new text in place of the line ends from `first` up to `next`: the first of
/// those, else the one before, else the one after.
pub fn line_end_at(ends: &[LineEnd], first: usize, next: usize) -> LineEnd {
    let replaced = ends[first..next].first();
    let before = ends[..first].last();
    let after = ends[next..].first();
    *replaced.or(before).or(after).unwrap_or(&LineEnd::Lf)
}

pub fn newlines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

/// The line of each position, counted from 1; positions ascend.
pub fn line_numbers(text: &str, positions: &[usize]) -> Vec<usize> {
    let (mut line, mut from) = (1, 0);
    positions
        .iter()
        .map(|at| {
            line += newlines(&text[from..*at]);
            from = *at;
            line
        })
        .collect()
}

pub fn snippet(text: &str, line: usize, context: i64, new: &str) -> String {
    let n_lines = newlines(text) as i64 + 1;
    let line = line as i64;
    let start = line.saturating_sub(context).max(1);
    let end = line
        .saturating_add(context)
        .saturating_add(newlines(new) as i64)
        .min(n_lines);
    let width = end.to_string().len();
    let shown: Vec<String> = text
        .split('\n')
        .zip(1..)
        .filter(|(_, number)| (start..=end).contains(number))
        .map(|(content, number): (&str, i64)| format!("{number:>width$} | {content}"))
        .collect();
    shown.join("\n")
}

/// Python's `str.expandtabs`: columns are characters, and start again after LF and CR.
pub fn expand_tabs(text: &str, size: i64) -> String {
    let mut out = String::with_capacity(text.len());
    let mut column: i64 = 0;
    for c in text.chars() {
        match c {
            '\t' if size > 0 => {
                let n = size - column % size;
                out.extend(std::iter::repeat_n(' ', n as usize));
                column += n;
            }
            '\t' => {}
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            _ => {
                out.push(c);
                column += 1;
            }
        }
    }
    out
}
