//! The audit of a trajectory data set: what its rows are, before anybody trains on them.
//!
//! Rows are read one after another by one thread, taken apart by others, and put together in
//! their order by the caller's, so the report does not depend on the number of threads. Memory is
//! bounded whatever the files hold.
//!
//! A row of such a set can say that an agent submitted; whether the work was right is not in it,
//! and no statement here is about that.

mod duplicates;
mod fold;
mod overlap;
mod report;
mod row;
mod script;
mod work;

use std::{
    any::Any,
    collections::BTreeMap,
    io,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    sync::{
        Mutex,
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
    thread,
};

use serde::Serialize;

pub use duplicates::{EDIT_NGRAM_WORDS, MAX_SIGNED, MAX_TRACKED, MIN_SIMILARITY, Near};
pub use overlap::{MIN_TEXT_SHARE, NGRAM_WORDS, Overlap, References, Tie};
pub use report::{
    Denominator, Distribution, Figure, FigureName, FileSummary, Finding, FindingKind,
    InstanceSummary, OverlapSummary, Report,
};
pub use row::{Ending, FormatFault, RowFacts, SelfTest, Truncation};

use crate::rows::{RawRow, ReadError, RowReader};
use duplicates::{Sketch, Sketcher};

/// Counts the tokens of a text.
pub type TokenCounter<'a> = &'a (dyn Fn(&str) -> u64 + Sync);

/// What an audit compares with and how it works.
pub struct Options<'a> {
    /// Threads that take rows apart, besides the one that reads; at least one.
    pub workers: usize,
    /// Tasks that rows are compared with.
    pub references: &'a References,
    /// Counts tokens, where a tokenizer is given.
    pub tokens: Option<TokenCounter<'a>>,
    /// Rows with more tokens are a finding.
    pub max_tokens: Option<u64>,
}

/// Where a row lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct RowPlace {
    /// Number of the file, from 0 in the order they were given.
    pub file: u32,
    /// Number of the row in it, from 0.
    pub row: u64,
}

/// What is known of one row in the end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RowAudit {
    /// Where it lies.
    #[serde(flatten)]
    pub place: RowPlace,
    /// What it is by itself.
    #[serde(flatten)]
    pub facts: RowFacts,
    /// The earlier row with the same messages.
    pub duplicate_of: Option<RowPlace>,
    /// The earlier row with nearly the same edits; not for a duplicate.
    pub near_duplicate_of: Option<Near>,
    /// Tasks it is tied to.
    pub overlaps: Vec<Overlap>,
}

/// Why an audit ended early.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A row's record could not be given on.
    #[error("write the record of a row: {0}")]
    Write(#[from] io::Error),
}

impl AuditError {
    /// What the user can do.
    pub fn hint(&self) -> Option<String> {
        match self {
            AuditError::Read(error) => error.hint(),
            AuditError::Write(_) => None,
        }
    }
}

/// Audits the rows of `files` as one set. `each_row` gets every row in order.
pub fn audit(
    files: &[PathBuf],
    options: &Options<'_>,
    each_row: &mut dyn FnMut(&RowAudit) -> io::Result<()>,
) -> Result<Report, AuditError> {
    let summaries = files.iter().map(|path| summary(path));
    let summaries = summaries.collect::<Result<Vec<_>, _>>()?;
    let workers = options.workers.max(1);
    let sketcher = Sketcher::new();
    let (permit, permits) = sync_channel::<()>(2 * workers + 2);
    let (batch_sender, batches) = channel::<Batch>();
    let (result_sender, results) = channel::<Outcome>();
    let batches = Mutex::new(batches);
    // The permits bound how much text is in memory: the reader takes one for each batch, and gets
    // it back when the batch is folded in.
    for _ in 0..2 * workers + 2 {
        permit.send(()).expect("the receiver is in scope");
    }
    thread::scope(|scope| {
        let reader_results = result_sender.clone();
        scope.spawn(move || read(files, &permits, &batch_sender, &reader_results));
        for _ in 0..workers {
            let (batches, sketcher) = (&batches, &sketcher);
            let results = result_sender.clone();
            scope.spawn(move || work(batches, options, sketcher, &results));
        }
        drop(result_sender);
        let fold = fold::Fold::new(summaries, options);
        collect(fold, &results, permit, each_row)
    })
}

/// A file before its rows are read.
fn summary(path: &Path) -> Result<FileSummary, ReadError> {
    Ok(FileSummary {
        path: path.to_owned(),
        n_rows: 0,
        columns: RowReader::open(path)?.columns(),
    })
}

/// A batch ends once it has this much text or this many rows.
const BATCH_BYTES: u64 = 4 << 20;
const BATCH_ROWS: usize = 2048;

struct Batch {
    number: u64,
    first: RowPlace,
    rows: Vec<RawRow>,
}

struct Analysed {
    facts: RowFacts,
    sketch: Option<Sketch>,
    overlaps: Vec<Overlap>,
}

enum Outcome {
    Batch {
        number: u64,
        first: RowPlace,
        rows: Vec<Analysed>,
    },
    /// All files were read; so many batches were sent.
    End {
        n_batches: u64,
    },
    Failed(ReadError),
    Panicked(Box<dyn Any + Send>),
}

fn read(
    files: &[PathBuf],
    permits: &Receiver<()>,
    batches: &Sender<Batch>,
    results: &Sender<Outcome>,
) {
    let mut number = 0;
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
        for (file, path) in files.iter().enumerate() {
            let mut reader = RowReader::open(path)?;
            let mut first = RowPlace {
                file: file as u32,
                row: 0,
            };
            loop {
                if permits.recv().is_err() {
                    return Ok(());
                }
                let mut rows = Vec::new();
                let mut n_bytes = 0;
                while n_bytes < BATCH_BYTES && rows.len() < BATCH_ROWS {
                    let Some(row) = reader.next_row()? else {
                        break;
                    };
                    n_bytes += row.n_bytes;
                    rows.push(row);
                }
                let n_rows = rows.len() as u64;
                let batch = Batch {
                    number,
                    first,
                    rows,
                };
                // An empty batch is sent too: it gives the permit back.
                if batches.send(batch).is_err() {
                    return Ok(());
                }
                number += 1;
                first.row += n_rows;
                if n_rows == 0 {
                    break;
                }
            }
        }
        Ok(())
    }));
    // Whoever collects may have stopped listening; nobody is left to tell then.
    let _ = results.send(match outcome {
        Ok(Ok(())) => Outcome::End { n_batches: number },
        Ok(Err(error)) => Outcome::Failed(error),
        Err(payload) => Outcome::Panicked(payload),
    });
}

fn work(
    batches: &Mutex<Receiver<Batch>>,
    options: &Options<'_>,
    sketcher: &Sketcher,
    results: &Sender<Outcome>,
) {
    loop {
        let batch = {
            let Ok(batches) = batches.lock() else { return };
            batches.recv()
        };
        let Ok(batch) = batch else { return };
        let analysed = panic::catch_unwind(AssertUnwindSafe(|| {
            let rows = batch.rows.iter();
            rows.map(|row| analyse(row, options, sketcher)).collect()
        }));
        let outcome = match analysed {
            Ok(rows) => Outcome::Batch {
                number: batch.number,
                first: batch.first,
                rows,
            },
            Err(payload) => Outcome::Panicked(payload),
        };
        if results.send(outcome).is_err() {
            return;
        }
    }
}

fn analyse(raw: &RawRow, options: &Options<'_>, sketcher: &Sketcher) -> Analysed {
    let row = match raw.parse() {
        Ok(row) => row,
        Err(fault) => {
            return Analysed {
                facts: RowFacts::unreadable(raw.n_bytes, fault),
                sketch: None,
                overlaps: Vec::new(),
            };
        }
    };
    let (mut facts, edits) = RowFacts::of(&row, raw.n_bytes);
    if let Some(count) = options.tokens {
        let messages = row.messages.iter();
        facts.n_tokens = Some(messages.map(|message| count(&message.content)).sum());
    }
    Analysed {
        sketch: sketcher.sketch(&edits),
        overlaps: options.references.overlaps(&row),
        facts,
    }
}

fn collect(
    mut fold: fold::Fold,
    results: &Receiver<Outcome>,
    permit: SyncSender<()>,
    each_row: &mut dyn FnMut(&RowAudit) -> io::Result<()>,
) -> Result<Report, AuditError> {
    let mut waiting = BTreeMap::new();
    let mut next = 0;
    let mut last = None;
    for outcome in results {
        match outcome {
            Outcome::Batch {
                number,
                first,
                rows,
            } => {
                waiting.insert(number, (first, rows));
            }
            Outcome::End { n_batches } => last = Some(n_batches),
            Outcome::Failed(error) => return Err(error.into()),
            Outcome::Panicked(payload) => panic::resume_unwind(payload),
        }
        while let Some((first, rows)) = waiting.remove(&next) {
            for (index, analysed) in rows.into_iter().enumerate() {
                let place = RowPlace {
                    file: first.file,
                    row: first.row + index as u64,
                };
                each_row(&fold.add(place, analysed))?;
            }
            next += 1;
            // The reader may have ended.
            let _ = permit.try_send(());
        }
        if last == Some(next) {
            break;
        }
    }
    Ok(fold.report())
}
