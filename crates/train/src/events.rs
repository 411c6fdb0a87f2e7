//! What a training run tells: typed events that the terminal, the log file and TensorBoard share.

use std::{io, path::PathBuf};

use serde::Serialize;

use crate::{metrics::Metrics, order::Position, sft::SelfTest};

/// Something that happened in a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
#[non_exhaustive]
pub enum Event {
    /// The run begins, anew or from a snapshot. What files hold of later updates is of an attempt
    /// that was lost.
    Begun(Begun),
    /// A snapshot was not used, with the reason.
    PassedOver {
        /// Its folder.
        snapshot: PathBuf,
        /// Why.
        reason: String,
    },
    /// One batch was split in several ways, and the gradients agreed.
    SelfTest(SelfTest),
    /// Log-probabilities of the reference are known.
    Reference {
        /// Replies that were scored now.
        n_scored: usize,
        /// Replies whose log-probabilities were kept from before.
        n_cached: usize,
    },
    /// An update is done, or failed with the numbers that it has.
    Update(UpdateRecord),
    /// A snapshot is whole.
    Snapshot {
        /// Updates that it has done.
        update: u64,
        /// Its folder.
        snapshot: PathBuf,
    },
    /// Something about the numbers so far that a person should know.
    Diagnosis {
        /// The update that showed it.
        update: u64,
        /// Its name.
        name: &'static str,
        /// What it means and what can be done.
        text: String,
    },
    /// The run ended early.
    Stopped {
        /// The last update that changed weights.
        update: u64,
        /// Why.
        reason: String,
    },
    /// The run is done.
    Finished {
        /// Updates in all.
        update: u64,
    },
}

/// What a run is going to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Begun {
    /// The objective's name.
    pub objective: &'static str,
    /// Updates that are done already: 0 for a run that begins anew.
    pub from_update: u64,
    /// The snapshot that it goes on from.
    pub from_snapshot: Option<PathBuf>,
    /// Rows, or pairs.
    pub n_rows: usize,
    /// Tokens of all rows.
    pub n_tokens: u64,
    /// Supervised tokens of all rows.
    pub n_supervised: u64,
    /// Updates of an epoch.
    pub updates_per_epoch: u64,
    /// Updates in all.
    pub total_updates: u64,
    /// The digest of everything that changes results.
    pub identity: String,
    /// Bytes that everything will take on the device.
    pub memory_bytes: usize,
    /// The memory as a table.
    pub memory: String,
}

/// One update.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UpdateRecord {
    /// Its number, from 1.
    pub update: u64,
    /// Updates in all.
    pub total_updates: u64,
    /// Where in the data its window lies.
    pub position: Position,
    /// Whether weights changed.
    pub applied: bool,
    /// What was measured.
    pub metrics: Metrics,
}

/// What takes events: a view, a file, or several of them.
pub trait EventSink {
    /// Takes an event that happened at a time, in seconds since 1970.
    ///
    /// # Errors
    /// When it cannot be kept; the run then ends.
    fn record(&mut self, at: f64, event: &Event) -> io::Result<()>;
}

impl<F: FnMut(f64, &Event) -> io::Result<()>> EventSink for F {
    fn record(&mut self, at: f64, event: &Event) -> io::Result<()> {
        self(at, event)
    }
}

/// Several sinks, in order.
impl EventSink for Vec<Box<dyn EventSink + '_>> {
    fn record(&mut self, at: f64, event: &Event) -> io::Result<()> {
        self.iter_mut().try_for_each(|sink| sink.record(at, event))
    }
}
