//! Printing: data to standard output, errors and notes to standard error.

use std::io::Write;

use crate::error::CliError;

/// Writes text to standard output. A reader that went away is no error: there is nobody left to
/// tell.
pub fn data(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
}

/// Tells the user something that is not a result.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", printable(text));
}

/// Prints an error with its hint.
pub fn error(error: &CliError) {
    let mut stderr = std::io::stderr().lock();
    let _ = writeln!(stderr, "error: failed to {}", printable(&error.message));
    if let Some(hint) = &error.hint {
        let _ = writeln!(stderr, "hint: {}", printable(hint));
    }
}

/// Text without control characters other than newline and tab: what a task, a model or a server
/// wrote must not steer the terminal.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' | '\t' => c,
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
        .collect()
}
