//! The report of an audit: figures with their denominators, and findings with examples.
//!
//! There is no field for a solved or rewarded row, and there must be none: these data sets hold no
//! result of any test.

use std::path::PathBuf;

use serde::Serialize;
use temper_core::{Digest, Split};

use super::{
    RowPlace,
    row::{Ending, FormatFault, Truncation},
};

/// What an audit found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Version of this report's format.
    pub format: u32,
    /// The files, in the order they were read.
    pub files: Vec<FileSummary>,
    /// All rows.
    pub n_rows: u64,
    /// Bytes of text in all rows.
    pub n_bytes: u64,
    /// SHA-256 over the content digests of all rows in order: what was audited.
    pub rows_digest: Digest,
    /// The figures, in a fixed order.
    pub figures: Vec<Figure>,
    /// What is wrong with the form, rows by kind; a row can have several.
    pub format_faults: Vec<(FormatFault, u64)>,
    /// How rows end.
    pub endings: Vec<(Ending, u64)>,
    /// Signs that a row was cut off.
    pub truncations: Vec<(Truncation, u64)>,
    /// Messages of a readable row.
    pub messages: Distribution,
    /// Bytes of text of a readable row.
    pub bytes: Distribution,
    /// Tokens of a readable row, where they were counted; without what a chat template adds.
    pub tokens: Option<Distribution>,
    /// Rows by instance id.
    pub instances: InstanceSummary,
    /// Rows tied to tasks, by suite and split.
    pub overlaps: Vec<OverlapSummary>,
    /// What deserves attention, worst first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The format that this code writes.
    pub const FORMAT: u32 = 1;

    /// A figure by name.
    pub fn figure(&self, name: FigureName) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.name == name)
    }
}

/// One file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileSummary {
    /// As it was given.
    pub path: PathBuf,
    /// Its rows.
    pub n_rows: u64,
    /// Its columns, the unread ones included; absent for JSON Lines, where each line has its own.
    pub columns: Option<Vec<String>>,
}

/// A count and what it is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Figure {
    /// What is counted.
    pub name: FigureName,
    /// How many.
    pub n: u64,
    /// Of how many.
    pub of: u64,
    /// Of what.
    pub denominator: Denominator,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FigureName {
    /// Rows that could be read.
    Readable,
    /// Rows without a fault of form.
    FormatValid,
    /// Rows whose last action submits.
    SubmitReady,
    /// Both.
    FormatValidAndSubmitReady,
    /// Rows in which tests or a reproduction ran before the submission.
    SelfTested,
    /// The same, and one of them after the last edit.
    SelfTestedAfterLastEdit,
    /// Rows without a turn of the assistant.
    Empty,
    /// Rows that seem cut off.
    Truncated,
    /// Rows with a command that a code fence inside it cut off.
    CutCommand,
    /// Rows that were there before, word for word.
    Duplicate,
    /// Rows whose edits are nearly those of an earlier row.
    NearDuplicate,
    /// Rows with an instance id that other rows have too.
    RepeatedInstance,
    /// Rows longer than the token limit.
    OverTokenLimit,
}

impl FigureName {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            FigureName::Readable => "readable",
            FigureName::FormatValid => "format-valid",
            FigureName::SubmitReady => "submit-ready",
            FigureName::FormatValidAndSubmitReady => "format-valid and submit-ready",
            FigureName::SelfTested => "self-tested before submitting",
            FigureName::SelfTestedAfterLastEdit => "self-tested after the last edit",
            FigureName::Empty => "empty",
            FigureName::Truncated => "cut off",
            FigureName::CutCommand => "a command cut by a fence inside it",
            FigureName::Duplicate => "duplicate, word for word",
            FigureName::NearDuplicate => "near duplicate by edits",
            FigureName::RepeatedInstance => "instance id of other rows too",
            FigureName::OverTokenLimit => "over the token limit",
        }
    }
}

/// What a figure is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Denominator {
    /// All rows.
    Rows,
    /// Rows that could be read.
    ReadableRows,
    /// Submit-ready rows.
    SubmitReadyRows,
    /// Rows whose content was remembered: all, up to a bound.
    ComparedRows,
    /// Rows with edits that were compared: all, up to a bound.
    RowsWithEdits,
    /// Rows with an instance id.
    RowsWithInstance,
}

impl Denominator {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Denominator::Rows => "rows",
            Denominator::ReadableRows => "readable rows",
            Denominator::SubmitReadyRows => "submit-ready rows",
            Denominator::ComparedRows => "rows compared",
            Denominator::RowsWithEdits => "rows whose edits were compared",
            Denominator::RowsWithInstance => "rows with an instance id",
        }
    }
}

/// Rows by instance id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct InstanceSummary {
    /// Different ids.
    pub n_distinct: u64,
    /// Ids with more than one row.
    pub n_repeated: u64,
    /// Most rows of one id.
    pub most_rows: u64,
}

/// Rows tied to the tasks of a suite's part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OverlapSummary {
    /// Name of the suite.
    pub suite: String,
    /// The part.
    pub split: Split,
    /// Tasks in it.
    pub n_tasks: u64,
    /// Tasks whose statement is long enough to be looked for.
    pub n_tasks_with_text: u64,
    /// Rows with a task's id.
    pub n_rows_by_id: u64,
    /// Rows about a task's repository.
    pub n_rows_by_repository: u64,
    /// Rows that hold a task's statement, or half of it.
    pub n_rows_by_text: u64,
    /// Rows with any of these.
    pub n_rows: u64,
    /// Readable rows.
    pub of: u64,
}

/// Something that deserves attention before the rows are used.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// What it is.
    pub kind: FindingKind,
    /// Rows it concerns.
    pub n: u64,
    /// Of how many.
    pub of: u64,
    /// Of what.
    pub denominator: Denominator,
    /// The first of them.
    pub examples: Vec<RowPlace>,
}

/// Kinds of findings, worst first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum FindingKind {
    /// Rows are tied to tasks that are held out.
    HeldOutOverlap {
        /// The suite.
        suite: String,
        /// The part.
        split: Split,
    },
    /// Rows cannot be read.
    Unreadable,
    /// Rows without a turn of the assistant.
    Empty,
    /// Rows that seem cut off.
    Truncated,
    /// Rows whose form is wrong.
    FormatInvalid,
    /// Rows that do not submit.
    NotSubmitReady,
    /// Rows that were there before.
    Duplicate,
    /// Rows whose edits were nearly there before.
    NearDuplicate,
    /// Submit-ready rows in which nothing was tested.
    NotSelfTested,
    /// Rows longer than the token limit.
    OverTokenLimit,
}

impl FindingKind {
    /// In words.
    pub fn words(&self) -> String {
        match self {
            FindingKind::HeldOutOverlap { suite, split } => {
                let split = match split {
                    Split::Train => "train",
                    Split::Dev => "dev",
                    Split::Test => "test",
                    Split::Unassigned => "unassigned, hence held out",
                };
                format!("tied to held-out tasks of {suite} ({split})")
            }
            FindingKind::Unreadable => "cannot be read".to_owned(),
            FindingKind::Empty => "have no turn of the assistant".to_owned(),
            FindingKind::Truncated => "seem cut off".to_owned(),
            FindingKind::FormatInvalid => "are not of the agent's format".to_owned(),
            FindingKind::NotSubmitReady => "do not submit".to_owned(),
            FindingKind::Duplicate => "were there before, word for word".to_owned(),
            FindingKind::NearDuplicate => "have nearly the edits of an earlier row".to_owned(),
            FindingKind::NotSelfTested => "submit without having tested anything".to_owned(),
            FindingKind::OverTokenLimit => "are longer than the token limit".to_owned(),
        }
    }
}

/// Where values lie. Quantiles come from a histogram with eight buckets an octave: they are upper
/// ends of buckets, at most an eighth too high.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// How many values.
    pub n: u64,
    /// Exact.
    pub min: u64,
    /// Exact.
    pub mean: f64,
    /// Half of the values are at most this.
    pub median: u64,
    /// Nine tenths are.
    pub p90: u64,
    /// 99 of 100 are.
    pub p99: u64,
    /// Exact.
    pub max: u64,
}

/// Collects a [`Distribution`] in constant memory.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    buckets: Vec<u64>,
    n: u64,
    sum: u128,
    min: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            buckets: vec![0; 62 * 8],
            n: 0,
            sum: 0,
            min: u64::MAX,
            max: 0,
        }
    }
}

impl Histogram {
    pub(super) fn add(&mut self, value: u64) {
        self.buckets[bucket(value)] += 1;
        self.n += 1;
        self.sum += u128::from(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    pub(super) fn distribution(&self) -> Distribution {
        if self.n == 0 {
            return Distribution::default();
        }
        let quantile = |share: f64| {
            let rank = (share * self.n as f64).ceil() as u64;
            let mut seen = 0;
            let at = self.buckets.iter().position(|n| {
                seen += n;
                seen >= rank
            });
            at.map_or(self.max, upper_end).clamp(self.min, self.max)
        };
        Distribution {
            n: self.n,
            min: self.min,
            mean: self.sum as f64 / self.n as f64,
            median: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            max: self.max,
        }
    }
}

/// Values below 8 have a bucket each; above, an octave has eight.
fn bucket(value: u64) -> usize {
    if value < 8 {
        return value as usize;
    }
    let octave = value.ilog2() as usize;
    let eighth = (value >> (octave - 3)) as usize & 7;
    (octave - 2) * 8 + eighth
}

/// The largest value of a bucket.
fn upper_end(bucket: usize) -> u64 {
    if bucket < 8 {
        return bucket as u64;
    }
    let octave = bucket / 8 + 2;
    let first = (8 + (bucket % 8) as u64) << (octave - 3);
    first + ((1u64 << (octave - 3)) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_all_values_in_order() {
        for value in (0..100_000).chain((1..64).flat_map(|shift| {
            let power = 1u64 << shift;
            [power - 1, power, power + 1]
        })) {
            let bucket = bucket(value);
            assert!(value <= upper_end(bucket), "{value}");
            assert!(bucket == 0 || value > upper_end(bucket - 1), "{value}");
            assert!(upper_end(bucket) as f64 <= value as f64 * 1.125 + 1.0);
        }
        assert!(super::bucket(u64::MAX) < Histogram::default().buckets.len());
    }

    #[test]
    fn quantiles_are_close() {
        let mut histogram = Histogram::default();
        for value in 1..=1000 {
            histogram.add(value);
        }
        let distribution = histogram.distribution();
        assert_eq!((distribution.min, distribution.max), (1, 1000));
        assert_eq!(distribution.mean, 500.5);
        for (got, exact) in [
            (distribution.median, 500),
            (distribution.p90, 900),
            (distribution.p99, 990),
        ] {
            assert!(got >= exact && got as f64 <= exact as f64 * 1.125, "{got}");
        }
    }
}
