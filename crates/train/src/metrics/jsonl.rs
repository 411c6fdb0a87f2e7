//! Events in strict JSON, one a line: `metrics.jsonl`.
//!
//! NaN, the infinities and "not recorded" stay apart (see [`temper_core::metric::MetricValue`]). A
//! run that begins, anew or from a snapshot, first drops the lines of updates that it has not done,
//! and a line that a kill left half-written, so each update stands in the file once.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::Serialize;
use serde_json::Value;

use crate::events::{Event, EventSink};

/// Writes events as lines.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    file: File,
}

#[derive(Serialize)]
struct Line<'a> {
    /// Seconds since 1970.
    at: f64,
    #[serde(flatten)]
    event: &'a Event,
}

impl JsonLines {
    /// Opens or makes the file.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(JsonLines {
            path: path.to_owned(),
            file: OpenOptions::new().create(true).append(true).open(path)?,
        })
    }

    /// Keeps whole lines, and of updates, snapshots and diagnoses those up to `update`.
    fn go_back_to(&mut self, update: u64) -> io::Result<()> {
        let text = fs::read(&self.path)?;
        let mut kept = Vec::with_capacity(text.len());
        for line in text.split_inclusive(|&byte| byte == b'\n') {
            let Ok(value) = serde_json::from_slice::<Value>(line) else {
                continue;
            };
            let is_numbered = matches!(
                value["event"].as_str(),
                Some("update" | "snapshot" | "diagnosis" | "stopped" | "finished")
            );
            let is_later = value["update"].as_u64().is_some_and(|it| it > update);
            if line.ends_with(b"\n") && !(is_numbered && is_later) {
                kept.extend_from_slice(line);
            }
        }
        if kept != text {
            let temporary = self.path.with_extension("jsonl.new");
            let mut file = File::create(&temporary)?;
            file.write_all(&kept)?;
            file.sync_all()?;
            fs::rename(&temporary, &self.path)?;
            self.file = OpenOptions::new().append(true).open(&self.path)?;
        }
        Ok(())
    }
}

impl EventSink for JsonLines {
    fn record(&mut self, at: f64, event: &Event) -> io::Result<()> {
        if let Event::Begun(begun) = event {
            self.go_back_to(begun.from_update)?;
        }
        let mut line = serde_json::to_vec(&Line { at, event })?;
        line.push(b'\n');
        self.file.write_all(&line)
    }
}
