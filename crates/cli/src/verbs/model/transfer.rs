//! Shows how far a download or an export is: one line that renews itself on a terminal, a line now
//! and then elsewhere.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

/// How often a line comes where it cannot renew itself.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);
/// How often a line renews itself.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(200);

/// A line of progress on standard error.
pub struct Transfer {
    label: String,
    is_terminal: bool,
    quiet: bool,
    shown: Option<Instant>,
    is_open: bool,
}

impl Transfer {
    /// Progress of what `label` says.
    pub fn new(label: &str, quiet: bool) -> Self {
        Transfer {
            label: label.to_owned(),
            is_terminal: std::io::stderr().is_terminal()
                && std::env::var_os("TERM").is_none_or(|term| term != "dumb"),
            quiet,
            shown: None,
            is_open: false,
        }
    }

    /// Takes in bytes that are here, of so many where that is known.
    pub fn bytes(&mut self, n_done: u64, n_bytes: Option<u64>) {
        let text = match n_bytes {
            Some(n_bytes) => format!(
                "{:.1} of {:.1} MB",
                n_done as f64 / 1e6,
                n_bytes as f64 / 1e6
            ),
            None => format!("{:.1} MB", n_done as f64 / 1e6),
        };
        self.show(&text, n_bytes == Some(n_done));
    }

    /// Takes in what is done, of so many.
    pub fn count(&mut self, n_done: usize, n: usize, what: &str) {
        self.show(&format!("{n_done} of {n} {what}"), n_done == n);
    }

    /// Names what comes next.
    pub fn label(&mut self, label: &str) {
        if self.label != label {
            self.label = label.to_owned();
            self.shown = None;
        }
    }

    fn show(&mut self, text: &str, is_last: bool) {
        let interval = if self.is_terminal {
            TERMINAL_INTERVAL
        } else {
            PLAIN_INTERVAL
        };
        // What is over before the first line is due needs none.
        let shown = *self.shown.get_or_insert_with(Instant::now);
        if self.quiet || (shown.elapsed() < interval && !(is_last && self.is_open)) {
            return;
        }
        self.shown = Some(Instant::now());
        let line: String = format!("{}: {text}", self.label)
            .chars()
            .filter(|c| !c.is_control())
            .collect();
        let mut stderr = std::io::stderr().lock();
        // Progress is no result: a closed terminal must not end the work.
        let _ = match self.is_terminal {
            true => write!(stderr, "\r\x1b[2K{line}").and_then(|()| stderr.flush()),
            false => writeln!(stderr, "{line}"),
        };
        self.is_open = true;
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if self.is_open && self.is_terminal {
            let _ = writeln!(std::io::stderr().lock());
        }
    }
}
