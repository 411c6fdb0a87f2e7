//! What the tests say of candidates, and combinations of the killed.

use std::collections::{BTreeMap, BTreeSet};

use temper_core::{Digest, Entry, TreePath};

use super::{Event, Factory, MakeError, MakeOptions, Resumed, Stage, journal};
use crate::{
    Candidate,
    measure::{Measurement, coverage::Index},
    pool::{Cost, Subject},
    prove::{self, Screened, Status},
    synth::{
        self,
        combine::{CombineOptions, Proven},
    },
};

/// Candidates that are screened between two savings.
const SCREEN_CHUNK: usize = 64;

/// Killed candidates for each wanted task. Those that become no task are the wrong versions of the
/// fix by which the others' tests are judged.
const KILLED_PER_TASK: usize = 2;

/// How many killed candidates are enough.
pub(super) fn n_wanted(options: &MakeOptions) -> usize {
    options
        .limit
        .map_or(usize::MAX, |limit| limit.saturating_mul(KILLED_PER_TASK))
}

/// How many candidates the tests noticed in an orderly way.
pub(super) fn n_killed(screened: &[Screened]) -> usize {
    screened
        .iter()
        .filter(|screened| screened.status == Status::Killed)
        .count()
}

/// Combinations of killed candidates.
pub(super) fn combined(
    files: &BTreeMap<TreePath, Entry>,
    candidates: &[Candidate],
    screened: &[Screened],
    measurement: &Measurement,
    options: &MakeOptions,
) -> Vec<Candidate> {
    let wanted = |kind: &str| {
        options
            .kinds
            .as_ref()
            .is_none_or(|kinds| kinds.contains(kind))
    };
    let failing: Vec<BTreeSet<String>> = screened
        .iter()
        .map(|screened| {
            let failing = screened.failing.iter();
            failing
                .map(|test| measurement.id(*test).0.clone())
                .collect()
        })
        .collect();
    let proven: Vec<Proven<'_>> = candidates
        .iter()
        .zip(screened)
        .zip(&failing)
        // What came from a history or a model is a bug by itself.
        .filter(|((candidate, screened), _)| {
            screened.status == Status::Killed
                && !synth::OTHER_KINDS.contains(&candidate.kind.as_str())
        })
        .map(|((candidate, _), fail_to_pass)| Proven {
            candidate,
            fail_to_pass,
        })
        .collect();
    let combine = CombineOptions {
        seed: options.seed,
        ..CombineOptions::default()
    };
    synth::combine::combine(files, &proven, &combine)
        .into_iter()
        .map(|combined| combined.candidate)
        .filter(|candidate| wanted(&candidate.kind))
        .collect()
}

/// What candidates are run with.
pub(super) struct Screening<'a> {
    pub(super) subject: &'a Subject,
    pub(super) index: &'a Index<'a>,
    pub(super) measured: &'a Digest,
    pub(super) options: &'a MakeOptions,
    pub(super) factory: &'a Factory<'a>,
}

impl Screening<'_> {
    /// Runs the candidates chunk by chunk until `n_wanted` of them are killed. That and an
    /// interruption leave the last ones out.
    pub(super) fn run(
        &self,
        candidates: &[Candidate],
        n_wanted: usize,
        cost: &mut Cost,
        on_event: &mut dyn FnMut(Event),
    ) -> Result<Vec<Screened>, MakeError> {
        let stage = Stage::Screen;
        let n_total = candidates.len();
        on_event(Event::Started { stage, n_total });
        let mut all: Vec<Screened> = Vec::with_capacity(n_total);
        let (mut n_known, mut n_new) = (0, 0);
        for chunk in candidates.chunks(SCREEN_CHUNK) {
            if (self.factory.stopped)() || n_killed(&all) >= n_wanted {
                break;
            }
            let names: Vec<Digest> = chunk.iter().map(Candidate::digest).collect();
            let key = Digest::of_value(&("screen", self.measured, &self.options.screen, names));
            let (screened, resumed) = journal::stage(self.factory.cache, &key, || {
                let (screened, spent) = prove::screen(
                    self.subject,
                    &self.factory.workshop,
                    self.index,
                    chunk,
                    &self.options.screen,
                )?;
                cost.add(spent);
                Ok::<Vec<Screened>, MakeError>(screened)
            })?;
            *(if resumed { &mut n_known } else { &mut n_new }) += chunk.len();
            all.extend(screened);
            on_event(Event::Advanced {
                stage,
                n_done: all.len(),
                n_total,
            });
        }
        let n_killed = n_killed(&all);
        on_event(Event::Finished {
            stage,
            summary: format!("{n_killed} of {} candidates killed", all.len()),
            resumed: Resumed::of(n_known, n_new),
        });
        Ok(all)
    }

    /// Survivors that compile to the code without a bug.
    pub(super) fn equivalents(
        &self,
        candidates: &[Candidate],
        screened: &[Screened],
        cost: &mut Cost,
    ) -> Result<BTreeSet<usize>, MakeError> {
        let key = Digest::of_value(&("equivalents", self.measured, screened));
        let (found, _) = journal::stage(self.factory.cache, &key, || {
            let (found, spent) =
                prove::equivalents(self.subject, &self.factory.workshop, candidates, screened)?;
            cost.add(spent);
            Ok::<BTreeSet<usize>, MakeError>(found)
        })?;
        Ok(found)
    }
}
