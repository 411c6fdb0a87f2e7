//! vitest with `--reporter=verbose`: `✓ file > suite > name 3ms`, `× …`, `↓ … [skipped]`.

use super::{
    LineParser, Status, StatusMap,
    jest::marked,
    lines::{Statuses, strip_controls},
};

/// Reads vitest logs.
#[derive(Default)]
pub struct Vitest {
    map: Statuses,
}

impl LineParser for Vitest {
    fn line(&mut self, line: &[u8]) {
        let line = strip_controls(line);
        if let Some((status, name)) = marked(
            line.trim_ascii(),
            [
                ("✓", Status::Passed),
                ("×", Status::Failed),
                ("↓", Status::Skipped),
            ],
        ) {
            self.map.insert(without_end(name), status);
        }
    }

    fn finish(self: Box<Self>) -> StatusMap {
        self.map.finish()
    }
}

/// The name without ` 12ms`, ` 12 ms`, ` 12` or ` [skipped]` at its end.
fn without_end(name: &[u8]) -> &[u8] {
    if let Some(rest) = name.strip_suffix(b" [skipped]") {
        return rest;
    }
    let unit = name.strip_suffix(b"s").unwrap_or(name);
    let unit = unit.strip_suffix(b"m").unwrap_or(unit);
    let unit = unit.trim_ascii_end();
    let n_digits = unit
        .iter()
        .rev()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    match unit[..unit.len() - n_digits].split_last() {
        Some((b' ', rest)) if n_digits > 0 && !rest.is_empty() => rest,
        _ => name,
    }
}
