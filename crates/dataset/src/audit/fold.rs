//! Rows in their order, put together to a report.

use std::collections::BTreeMap;

use temper_core::{Split, digest::Hasher};

use super::{
    Analysed, Options, RowAudit, RowPlace,
    duplicates::{Instances, Seen},
    overlap::Tie,
    report::{
        Denominator, Distribution, Figure, FigureName, FileSummary, Finding, FindingKind,
        Histogram, InstanceSummary, OverlapSummary, Report,
    },
    row::{Ending, FormatFault, RowFacts, Truncation},
};

/// Rows that a finding names.
const MAX_EXAMPLES: usize = 5;

pub(super) struct Fold {
    files: Vec<FileSummary>,
    max_tokens: Option<u64>,
    n_rows: u64,
    n_bytes: u64,
    digest: Hasher,
    n_readable: u64,
    n_submit_ready: u64,
    n_format_valid_and_submit_ready: u64,
    n_self_tested: u64,
    n_self_tested_after_last_edit: u64,
    n_cut_command: u64,
    format_faults: BTreeMap<FormatFault, u64>,
    endings: BTreeMap<Ending, u64>,
    truncations: BTreeMap<Truncation, u64>,
    messages: Histogram,
    bytes: Histogram,
    tokens: Histogram,
    seen: Seen,
    instances: Instances,
    overlaps: BTreeMap<(String, Split), OverlapSummary>,
    found: BTreeMap<FindingKind, (u64, Vec<RowPlace>)>,
}

impl Fold {
    pub(super) fn new(files: Vec<FileSummary>, options: &Options<'_>) -> Self {
        let overlaps = options.references.parts().into_iter();
        Fold {
            files,
            max_tokens: options.max_tokens.filter(|_| options.tokens.is_some()),
            n_rows: 0,
            n_bytes: 0,
            digest: Hasher::default(),
            n_readable: 0,
            n_submit_ready: 0,
            n_format_valid_and_submit_ready: 0,
            n_self_tested: 0,
            n_self_tested_after_last_edit: 0,
            n_cut_command: 0,
            format_faults: FormatFault::ALL.map(|fault| (fault, 0)).into(),
            endings: Ending::ALL.map(|ending| (ending, 0)).into(),
            truncations: Truncation::ALL.map(|sign| (sign, 0)).into(),
            messages: Histogram::default(),
            bytes: Histogram::default(),
            tokens: Histogram::default(),
            seen: Seen::default(),
            instances: Instances::default(),
            overlaps: overlaps
                .map(|((suite, split), (n_tasks, n_tasks_with_text))| {
                    let summary = OverlapSummary {
                        suite: suite.clone(),
                        split,
                        n_tasks,
                        n_tasks_with_text,
                        n_rows_by_id: 0,
                        n_rows_by_repository: 0,
                        n_rows_by_text: 0,
                        n_rows: 0,
                        of: 0,
                    };
                    ((suite, split), summary)
                })
                .collect(),
            found: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, place: RowPlace, analysed: Analysed) -> RowAudit {
        let Analysed {
            facts,
            sketch,
            overlaps,
        } = analysed;
        self.n_rows += 1;
        self.n_bytes += facts.n_bytes;
        self.files[place.file as usize].n_rows += 1;
        let digest = facts.content_digest.as_ref();
        self.digest
            .field(digest.map_or("", |digest| digest.as_str()).as_bytes());
        let mut row = RowAudit {
            place,
            facts,
            duplicate_of: None,
            near_duplicate_of: None,
            overlaps,
        };
        if row.facts.unreadable.is_some() {
            self.find(FindingKind::Unreadable, place);
            return row;
        }
        self.n_readable += 1;
        if let Some(digest) = &row.facts.content_digest {
            row.duplicate_of = self.seen.same(place, digest);
        }
        if row.duplicate_of.is_none() {
            row.near_duplicate_of = sketch.and_then(|sketch| self.seen.near(place, sketch));
        }
        if let Some(id) = &row.facts.instance_id {
            self.instances.add(id);
        }
        self.count(&row.facts, place);
        if row.duplicate_of.is_some() {
            self.find(FindingKind::Duplicate, place);
        }
        if row.near_duplicate_of.is_some() {
            self.find(FindingKind::NearDuplicate, place);
        }
        self.count_overlaps(&row);
        row
    }

    fn count(&mut self, facts: &RowFacts, place: RowPlace) {
        self.messages.add(facts.n_messages.into());
        self.bytes.add(facts.n_bytes);
        for fault in &facts.format {
            *self.format_faults.entry(*fault).or_default() += 1;
        }
        *self.endings.entry(facts.ending).or_default() += 1;
        if !facts.is_format_valid() {
            self.find(FindingKind::FormatInvalid, place);
        }
        if facts.ending == Ending::SubmitReady {
            self.n_submit_ready += 1;
            self.n_format_valid_and_submit_ready += u64::from(facts.is_format_valid());
            self.n_self_tested += u64::from(facts.self_test.any());
            self.n_self_tested_after_last_edit += u64::from(facts.self_test.after_last_edit);
            if !facts.self_test.any() {
                self.find(FindingKind::NotSelfTested, place);
            }
        } else {
            self.find(FindingKind::NotSubmitReady, place);
        }
        if facts.is_empty() {
            self.find(FindingKind::Empty, place);
        }
        if let Some(sign) = facts.truncated {
            *self.truncations.entry(sign).or_default() += 1;
            self.find(FindingKind::Truncated, place);
        }
        self.n_cut_command += u64::from(facts.n_cut_commands > 0);
        if let Some(n_tokens) = facts.n_tokens {
            self.tokens.add(n_tokens);
            if self.max_tokens.is_some_and(|limit| n_tokens > limit) {
                self.find(FindingKind::OverTokenLimit, place);
            }
        }
    }

    fn count_overlaps(&mut self, row: &RowAudit) {
        let mut parts: Vec<(String, Split)> = Vec::new();
        for overlap in &row.overlaps {
            let part = (overlap.suite.clone(), overlap.split);
            let Some(summary) = self.overlaps.get_mut(&part) else {
                continue;
            };
            match overlap.tie {
                Tie::InstanceId => summary.n_rows_by_id += 1,
                Tie::Repository => summary.n_rows_by_repository += 1,
                Tie::TaskText => summary.n_rows_by_text += 1,
            }
            if parts.last() != Some(&part) {
                summary.n_rows += 1;
                parts.push(part);
            }
        }
        for (suite, split) in parts {
            if split != Split::Train {
                self.find(FindingKind::HeldOutOverlap { suite, split }, row.place);
            }
        }
    }

    fn find(&mut self, kind: FindingKind, place: RowPlace) {
        let (n, examples) = self.found.entry(kind).or_default();
        *n += 1;
        if examples.len() < MAX_EXAMPLES {
            examples.push(place);
        }
    }

    fn n_found(&self, kind: &FindingKind) -> u64 {
        self.found.get(kind).map_or(0, |(n, _)| *n)
    }

    pub(super) fn report(mut self) -> Report {
        let figures = self.figures();
        let findings = std::mem::take(&mut self.found)
            .into_iter()
            .map(|(kind, (n, examples))| {
                let (of, denominator) = self.denominator(&kind);
                Finding {
                    kind,
                    n,
                    of,
                    denominator,
                    examples,
                }
            })
            .collect();
        let tokens = self.tokens.distribution();
        let n_readable = self.n_readable;
        Report {
            format: Report::FORMAT,
            files: self.files,
            n_rows: self.n_rows,
            n_bytes: self.n_bytes,
            rows_digest: self.digest.finish(),
            figures,
            format_faults: self.format_faults.into_iter().collect(),
            endings: self.endings.into_iter().collect(),
            truncations: self.truncations.into_iter().collect(),
            messages: self.messages.distribution(),
            bytes: self.bytes.distribution(),
            tokens: (tokens != Distribution::default()).then_some(tokens),
            instances: InstanceSummary {
                n_distinct: self.instances.n_distinct(),
                n_repeated: self.instances.n_repeated(),
                most_rows: self.instances.most_rows(),
            },
            overlaps: self
                .overlaps
                .into_values()
                .map(|summary| OverlapSummary {
                    of: n_readable,
                    ..summary
                })
                .collect(),
            findings,
        }
    }

    fn denominator(&self, kind: &FindingKind) -> (u64, Denominator) {
        match kind {
            FindingKind::Unreadable => (self.n_rows, Denominator::Rows),
            FindingKind::Duplicate => (self.seen.n_tracked, Denominator::ComparedRows),
            FindingKind::NearDuplicate => (self.seen.n_signed, Denominator::RowsWithEdits),
            FindingKind::NotSelfTested => (self.n_submit_ready, Denominator::SubmitReadyRows),
            FindingKind::HeldOutOverlap { .. }
            | FindingKind::Empty
            | FindingKind::Truncated
            | FindingKind::FormatInvalid
            | FindingKind::NotSubmitReady
            | FindingKind::OverTokenLimit => (self.n_readable, Denominator::ReadableRows),
        }
    }

    fn figures(&self) -> Vec<Figure> {
        use Denominator::{
            ComparedRows, ReadableRows, Rows, RowsWithEdits, RowsWithInstance, SubmitReadyRows,
        };
        let found = |kind| self.n_found(&kind);
        let n_format_valid = self.n_readable - found(FindingKind::FormatInvalid);
        let list = [
            (FigureName::Readable, self.n_readable, self.n_rows, Rows),
            (
                FigureName::FormatValid,
                n_format_valid,
                self.n_readable,
                ReadableRows,
            ),
            (
                FigureName::SubmitReady,
                self.n_submit_ready,
                self.n_readable,
                ReadableRows,
            ),
            (
                FigureName::FormatValidAndSubmitReady,
                self.n_format_valid_and_submit_ready,
                self.n_readable,
                ReadableRows,
            ),
            (
                FigureName::SelfTested,
                self.n_self_tested,
                self.n_submit_ready,
                SubmitReadyRows,
            ),
            (
                FigureName::SelfTestedAfterLastEdit,
                self.n_self_tested_after_last_edit,
                self.n_submit_ready,
                SubmitReadyRows,
            ),
            (
                FigureName::Empty,
                found(FindingKind::Empty),
                self.n_readable,
                ReadableRows,
            ),
            (
                FigureName::Truncated,
                found(FindingKind::Truncated),
                self.n_readable,
                ReadableRows,
            ),
            (
                FigureName::CutCommand,
                self.n_cut_command,
                self.n_readable,
                ReadableRows,
            ),
            (
                FigureName::Duplicate,
                found(FindingKind::Duplicate),
                self.seen.n_tracked,
                ComparedRows,
            ),
            (
                FigureName::NearDuplicate,
                found(FindingKind::NearDuplicate),
                self.seen.n_signed,
                RowsWithEdits,
            ),
            (
                FigureName::RepeatedInstance,
                self.instances.n_repeated_rows(),
                self.instances.n_rows,
                RowsWithInstance,
            ),
        ];
        let over = self.max_tokens.map(|_| {
            (
                FigureName::OverTokenLimit,
                found(FindingKind::OverTokenLimit),
                self.n_readable,
                ReadableRows,
            )
        });
        list.into_iter()
            .chain(over)
            .map(|(name, n, of, denominator)| Figure {
                name,
                n,
                of,
                denominator,
            })
            .collect()
    }
}
