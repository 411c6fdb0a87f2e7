//! Aligned text tables for terminals.

use unicode_width::UnicodeWidthStr as _;

use crate::visible::for_terminal;

/// How a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table. Cells are made harmless when they are added; widths count columns of the terminal, so
/// wide characters align.
#[derive(Clone, Debug)]
pub struct Table {
    heads: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new(heads: &[(&str, Align)]) -> Self {
        Table {
            heads: heads
                .iter()
                .map(|&(name, align)| (for_terminal(name), align))
                .collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. Missing cells are empty; further ones are an error of the program.
    ///
    /// # Panics
    /// If there are more cells than columns.
    pub fn row<S: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let cells: Vec<String> = cells
            .into_iter()
            .map(|cell| for_terminal(cell.as_ref()))
            .collect();
        assert!(cells.len() <= self.heads.len(), "more cells than columns");
        self.rows.push(cells);
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl std::fmt::Display for Table {
    /// Heads, a rule, rows; two spaces between columns, none at the end of a line.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let heads: Vec<String> = self.heads.iter().map(|head| head.0.clone()).collect();
        let widths: Vec<usize> = (0..heads.len())
            .map(|column| {
                std::iter::once(&heads)
                    .chain(&self.rows)
                    .filter_map(|row| row.get(column))
                    .map(|cell| cell.width())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let rule: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
        for row in [&heads, &rule].into_iter().chain(&self.rows) {
            let mut line = String::new();
            for (column, &width) in widths.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                let padding = " ".repeat(width - cell.width());
                if column > 0 {
                    line.push_str("  ");
                }
                match self.heads[column].1 {
                    Align::Left => line.extend([cell, &padding]),
                    Align::Right => line.extend([padding.as_str(), cell]),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligns_wide_characters_and_disarms_cells() {
        let mut table = Table::new(&[("task", Align::Left), ("n", Align::Right)]);
        table.row(["雪", "1"]);
        table.row(["a\u{1b}[31m\nb", "1,000"]);
        table.row(["short"]);
        assert_eq!(
            table.to_string(),
            "task                n\n\
             --------------  -----\n\
             雪                  1\n\
             a\\u{1b}[31m\\nb  1,000\n\
             short\n"
        );
        // Columns of the terminal, not characters: the wide character counts as two.
        for line in table.to_string().lines().take(4) {
            assert_eq!(line.width(), 21);
        }
    }
}
