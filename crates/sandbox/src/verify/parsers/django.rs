//! Django's runner (verbose `unittest`): `test_name (module.Class) ... ok`.
//!
//! Output of a test can stand between the name and its `ok`, so a line that begins with `ok`
//! belongs to the last name that was announced. Upstream's readings of three interrupted forms and
//! its two special cases are kept, because the published lists were made with them.

use super::{
    LineParser, Status, StatusMap,
    lines::{find, rfind, strip_controls, text},
};

/// Reads logs of Django's `runtests.py`.
#[derive(Default)]
pub struct Django {
    map: StatusMap,
    last_announced: Option<String>,
    /// Names whose `ok` stands alone on the line after a message, found as upstream finds them;
    /// they are applied at the end.
    interrupted: Vec<String>,
    /// A name whose message started and has not ended.
    open_message: Option<String>,
    /// The name whose message ended on the line before.
    awaits_ok: Option<String>,
}

const DIRECTLY_PASSED: [&[u8]; 3] = [b" ... ok", b" ... OK", b" ...  OK"];

impl Django {
    fn statuses(&mut self, line: &[u8]) {
        if find(line, b"--version is equivalent to version").is_some() {
            self.map.insert(
                "--version is equivalent to version".to_owned(),
                Status::Passed,
            );
        }
        if let Some(at) = find(line, b" ... ") {
            self.last_announced = Some(text(&line[..at]));
        }
        for suffix in DIRECTLY_PASSED {
            if line.ends_with(suffix) {
                let mut line = line;
                if line.starts_with(b"Applying sites.0002_alter_domain_unique...test_no_migrations")
                    && let Some(at) = find(line, b"...")
                {
                    line = line[at + 3..].trim_ascii();
                }
                let end = rfind(line, suffix).unwrap_or(line.len());
                self.map.insert(text(&line[..end]), Status::Passed);
                break;
            }
        }
        if let Some(at) = find(line, b" ... skipped") {
            self.map.insert(text(&line[..at]), Status::Skipped);
        }
        for (suffix, prefix, status) in [
            (b" ... FAIL".as_slice(), b"FAIL:".as_slice(), Status::Failed),
            (b" ... ERROR", b"ERROR:", Status::Error),
        ] {
            if line.ends_with(suffix)
                && let Some(at) = find(line, suffix)
            {
                self.map.insert(text(&line[..at]), status);
            }
            if line.starts_with(prefix)
                && let Some(word) = line
                    .split(u8::is_ascii_whitespace)
                    .filter(|word| !word.is_empty())
                    .nth(1)
            {
                self.map.insert(text(word), status);
            }
        }
        if line.starts_with(b"ok")
            && let Some(name) = &self.last_announced
        {
            self.map.insert(name.clone(), Status::Passed);
        }
    }

    fn interruptions(&mut self, line: &[u8]) {
        if let Some(name) = self.awaits_ok.take()
            && line == b"ok"
        {
            self.interrupted.push(name);
            self.open_message = None;
            return;
        }
        if let Some(at) = find(line, b" ... Testing against Django installed in ") {
            self.open_message.get_or_insert_with(|| text(&line[..at]));
        }
        if line.ends_with(b" silenced).") {
            self.awaits_ok = self.open_message.clone();
        }
        for (start, end) in [
            (b" ... Internal Server Error: /".as_slice(), b"/".as_slice()),
            (
                b" ... System check identified no issues (0 silenced)",
                b"(0 silenced)",
            ),
        ] {
            if let Some(at) = find(line, start)
                && line.ends_with(end)
                && line.len() > at + start.len() - 1
            {
                self.awaits_ok = Some(text(&line[..at]));
            }
        }
    }
}

impl LineParser for Django {
    fn line(&mut self, line: &[u8]) {
        let line = strip_controls(line);
        self.interruptions(&line);
        self.statuses(line.trim_ascii());
    }

    fn finish(self: Box<Self>) -> StatusMap {
        let mut map = self.map;
        for name in self.interrupted {
            map.insert(name, Status::Passed);
        }
        map
    }
}
