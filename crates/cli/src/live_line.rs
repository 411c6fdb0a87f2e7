//! One line on standard error that renews itself on a terminal; plain lines elsewhere.

use std::{
    io::{IsTerminal, Write},
    time::Duration,
};

/// How often plain progress lines come where there is no terminal.
pub const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// The line. Progress is no result: a closed terminal must not end the work, and what a task or
/// model is called must not steer it.
#[derive(Clone, Copy, Debug)]
pub struct LiveLine {
    /// Whether a line can be renewed.
    pub is_terminal: bool,
    quiet: bool,
}

impl LiveLine {
    /// A line of this process; a quiet one is never shown.
    pub fn new(quiet: bool) -> Self {
        LiveLine {
            is_terminal: std::io::stderr().is_terminal()
                && std::env::var_os("TERM").is_none_or(|term| term != "dumb"),
            quiet,
        }
    }

    /// Shows text in place of what the line showed before.
    pub fn renew(&self, text: &str) {
        if self.quiet {
            return;
        }
        let line: String = text.chars().filter(|c| !c.is_control()).take(100).collect();
        let mut stderr = std::io::stderr().lock();
        let _ = write!(stderr, "\r\x1b[2K{line}");
        let _ = stderr.flush();
    }

    /// Writes a line that stays.
    pub fn line(&self, text: &str) {
        if self.quiet {
            return;
        }
        let text: String = text.chars().filter(|c| !c.is_control()).collect();
        let clear = if self.is_terminal { "\r\x1b[2K" } else { "" };
        let _ = writeln!(std::io::stderr().lock(), "{clear}{text}");
    }
}

/// Seconds for people.
pub fn duration(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s:02} s"),
        (h, m, _) => format!("{h} h {m:02} min"),
    }
}
