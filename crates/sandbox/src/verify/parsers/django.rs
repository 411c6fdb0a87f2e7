//! Django's runner (verbose `unittest`): `test_name (module.Class) ... ok`.
//!
//! Output of a test can stand between the name and its `ok`, so a line that begins with `ok`
//! belongs to the last name that was announced. Upstream's readings of three interrupted forms and
//! its two special cases are kept, because the published lists were made with them.

use memchr::memmem::Finder;

use super::{
    LineParser, Status, StatusMap,
    lines::{Statuses, find, rfind, strip_controls},
};

/// Reads logs of Django's `runtests.py`.
pub struct Django {
    /// Searches that every line goes through, made once.
    announces: Finder<'static>,
    version: Finder<'static>,
    map: Statuses,
    last_announced: Option<Vec<u8>>,
    /// Names whose `ok` stands alone on the line after a message, found as upstream finds them;
    /// they are applied at the end.
    interrupted: Vec<Vec<u8>>,
    /// A name whose message started and has not ended.
    open_message: Option<Vec<u8>>,
    /// The name whose message ended on the line before.
    awaits_ok: Option<Vec<u8>>,
}

impl Default for Django {
    fn default() -> Self {
        Django {
            announces: Finder::new(b" ... "),
            version: Finder::new(VERSION),
            map: Statuses::default(),
            last_announced: None,
            interrupted: Vec::new(),
            open_message: None,
            awaits_ok: None,
        }
    }
}

const DIRECTLY_PASSED: [&[u8]; 3] = [b" ... ok", b" ... OK", b" ...  OK"];

impl Django {
    fn statuses(&mut self, line: &[u8]) {
        if self.version.find(line).is_some() {
            self.map.insert(VERSION, Status::Passed);
        }
        for (prefix, status) in [
            (b"FAIL:".as_slice(), Status::Failed),
            (b"ERROR:", Status::Error),
        ] {
            if line.starts_with(prefix)
                && let Some(word) = line
                    .split(u8::is_ascii_whitespace)
                    .filter(|word| !word.is_empty())
                    .nth(1)
            {
                self.map.insert(word, status);
            }
        }
        if let Some(at) = self.announces.find(line) {
            self.announced(line, at);
        }
        if line.starts_with(b"ok")
            && let Some(name) = &self.last_announced
        {
            self.map.insert(name, Status::Passed);
        }
    }

    /// A line with ` ... ` in it, the first at `at`.
    fn announced(&mut self, line: &[u8], at: usize) {
        let name = self.last_announced.get_or_insert_default();
        name.clear();
        name.extend_from_slice(&line[..at]);
        for suffix in DIRECTLY_PASSED {
            if line.ends_with(suffix) {
                let mut line = line;
                if line.starts_with(b"Applying sites.0002_alter_domain_unique...test_no_migrations")
                    && let Some(at) = find(line, b"...")
                {
                    line = line[at + 3..].trim_ascii();
                }
                let end = rfind(line, suffix).unwrap_or(line.len());
                self.map.insert(&line[..end], Status::Passed);
                break;
            }
        }
        if let Some(at) = find(line, b" ... skipped") {
            self.map.insert(&line[..at], Status::Skipped);
        }
        for (suffix, status) in [
            (b" ... FAIL".as_slice(), Status::Failed),
            (b" ... ERROR", Status::Error),
        ] {
            if line.ends_with(suffix)
                && let Some(at) = find(line, suffix)
            {
                self.map.insert(&line[..at], status);
            }
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
        if line.ends_with(b" silenced).") {
            if let Some(at) = find(line, MESSAGE) {
                self.open_message.get_or_insert_with(|| line[..at].to_vec());
            }
            self.awaits_ok = self.open_message.clone();
        } else if line.ends_with(b"/") || line.ends_with(b"(0 silenced)") {
            for start in [SERVER_ERROR, CHECK] {
                if let Some(at) = find(line, start)
                    && line.len() > at + start.len() - usize::from(start == CHECK)
                {
                    self.awaits_ok = Some(line[..at].to_vec());
                }
            }
        }
        if self.open_message.is_none()
            && line.len() > MESSAGE.len()
            && !line.ends_with(b" ... ok")
            && let Some(at) = find(line, MESSAGE)
        {
            self.open_message = Some(line[..at].to_vec());
        }
    }
}

const VERSION: &[u8] = b"--version is equivalent to version";
const MESSAGE: &[u8] = b" ... Testing against Django installed in ";
const SERVER_ERROR: &[u8] = b" ... Internal Server Error: /";
const CHECK: &[u8] = b" ... System check identified no issues (0 silenced)";

impl LineParser for Django {
    fn line(&mut self, line: &[u8]) {
        let line = strip_controls(line);
        self.interruptions(&line);
        self.statuses(line.trim_ascii());
    }

    fn finish(self: Box<Self>) -> StatusMap {
        let mut map = self.map;
        for name in self.interrupted {
            map.insert(&name, Status::Passed);
        }
        map.finish()
    }
}
