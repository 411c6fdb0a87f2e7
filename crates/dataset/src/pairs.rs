//! Preference pairs: a solved trial against a failed one of the same task.
//!
//! Both were judged by executed tests. A failed trial that came close teaches more than one that
//! did nothing, so pairs say how close it came, and the closest come first.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use temper_core::{
    Patch, TaskId,
    verdict::{LayerName, LayerOutcome},
};

use crate::{
    episode::Episode,
    filter::{
        Label, label,
        patch::{ChangedLines, normalised_digest},
    },
    row::{RowOrigin, TrainingRow},
};

/// A pair as rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairRow {
    /// The better one.
    pub chosen: TrainingRow,
    /// The worse one.
    pub rejected: TrainingRow,
    /// How close the worse one came.
    pub hardness: Hardness,
}

/// How close a failed trial came to the solved one it is paired with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardness {
    /// It passes the tests that the agent could see and fails the others.
    pub passes_public: bool,
    /// Changed lines that only one of the two patches has, over all of both; 0 to 1.
    pub patch_distance: f64,
}

impl Hardness {
    /// Whether it is a hard negative: it passes public tests, or is nearly the solved patch.
    pub fn is_hard(self, max_distance: f64) -> bool {
        self.passes_public || self.patch_distance <= max_distance
    }
}

/// Which pairs are made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairConfig {
    /// Pairs of one task.
    pub max_per_task: usize,
    /// Makes hard negatives only.
    pub hard_only: bool,
    /// A patch this near to the solved one is a hard negative.
    pub hard_distance: f64,
}

impl Default for PairConfig {
    fn default() -> Self {
        PairConfig {
            max_per_task: 4,
            hard_only: false,
            hard_distance: 0.5,
        }
    }
}

/// A pair of trials.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// The solved one.
    pub chosen: &'a Episode,
    /// The failed one.
    pub rejected: &'a Episode,
    /// How close it came.
    pub hardness: Hardness,
}

/// Why a failed trial is in no pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Unpaired {
    /// No trial of the task that is kept is solved.
    NothingSolved,
    /// It has no label; see the reasons of dropped trials.
    NoLabel,
    /// Another failed trial of the task has the same patch.
    SamePatch {
        /// The one that stands for both.
        kept: RowOrigin,
    },
    /// It opens with other messages than every solved one.
    OtherPrompt,
    /// It is not a hard negative, and only those are wanted.
    NotHard,
    /// The task has as many pairs as are made.
    OverCap,
}

/// Pairs, hardest first for each task, and the failed trials that are in none.
pub fn pairs<'a>(
    solved: &[&'a Episode],
    episodes: &'a [Episode],
    config: &PairConfig,
) -> (Vec<Pair<'a>>, Vec<(RowOrigin, Unpaired)>) {
    let mut solved_of: BTreeMap<&TaskId, Vec<&'a Episode>> = BTreeMap::new();
    for episode in solved {
        solved_of
            .entry(&episode.task().id)
            .or_default()
            .push(episode);
    }
    let mut failed_of: BTreeMap<&TaskId, Vec<&'a Episode>> = BTreeMap::new();
    let mut unpaired = Vec::new();
    for episode in episodes {
        match label(episode) {
            Ok(Label::Solved) => {}
            Ok(Label::Failed) => failed_of
                .entry(&episode.task().id)
                .or_default()
                .push(episode),
            Err(_) => unpaired.push((episode.origin(), Unpaired::NoLabel)),
        }
    }
    let mut pairs = Vec::new();
    for (task, mut failed) in failed_of {
        failed.sort_by_cached_key(|episode| episode.origin());
        let solved = solved_of.get(task).map_or(&[][..], Vec::as_slice);
        if solved.is_empty() {
            let none = failed.iter().map(|e| (e.origin(), Unpaired::NothingSolved));
            unpaired.extend(none);
            continue;
        }
        let (candidates, left_out) = candidates(solved, &failed, config);
        unpaired.extend(left_out);
        for (index, pair) in candidates.into_iter().enumerate() {
            if index < config.max_per_task {
                pairs.push(pair);
            } else {
                unpaired.push((pair.rejected.origin(), Unpaired::OverCap));
            }
        }
    }
    unpaired.sort_by(|a, b| a.0.cmp(&b.0));
    (pairs, unpaired)
}

/// Each failed trial with the solved one whose patch is nearest, hardest first.
fn candidates<'a>(
    solved: &[&'a Episode],
    failed: &[&'a Episode],
    config: &PairConfig,
) -> (Vec<Pair<'a>>, Vec<(RowOrigin, Unpaired)>) {
    let mut seen = BTreeMap::new();
    let mut left_out = Vec::new();
    let mut pairs: Vec<Pair<'a>> = Vec::new();
    for episode in failed {
        let digest = normalised_digest(patch_of(episode));
        if let Some(kept) = seen.get(&digest) {
            let kept: &RowOrigin = kept;
            left_out.push((episode.origin(), Unpaired::SamePatch { kept: kept.clone() }));
            continue;
        }
        let own = ChangedLines::of(patch_of(episode));
        let nearest = solved
            .iter()
            .filter(|other| other.prompt() == episode.prompt())
            .map(|other| (own.distance(&ChangedLines::of(patch_of(other))), *other))
            .min_by(|a, b| {
                let by_distance = a.0.total_cmp(&b.0);
                by_distance.then_with(|| a.1.origin().cmp(&b.1.origin()))
            });
        let Some((patch_distance, chosen)) = nearest else {
            left_out.push((episode.origin(), Unpaired::OtherPrompt));
            continue;
        };
        let hardness = Hardness {
            passes_public: passes_public(episode),
            patch_distance,
        };
        if config.hard_only && !hardness.is_hard(config.hard_distance) {
            left_out.push((episode.origin(), Unpaired::NotHard));
            continue;
        }
        seen.insert(digest, episode.origin());
        pairs.push(Pair {
            chosen,
            rejected: episode,
            hardness,
        });
    }
    pairs.sort_by(|a, b| {
        let public = b.hardness.passes_public.cmp(&a.hardness.passes_public);
        let distance = a
            .hardness
            .patch_distance
            .total_cmp(&b.hardness.patch_distance);
        public.then(distance)
    });
    (pairs, left_out)
}

fn patch_of(episode: &Episode) -> &Patch {
    static EMPTY: std::sync::LazyLock<Patch> = std::sync::LazyLock::new(Patch::default);
    episode.trial().patch.as_ref().unwrap_or(&EMPTY)
}

/// Whether the public layer ran and passed, and the hidden one ran and failed.
fn passes_public(episode: &Episode) -> bool {
    let outcome = |name: LayerName| {
        let mut layers = episode.trial().verdict.layers.iter();
        layers
            .find(|layer| layer.name == name)
            .map(|layer| layer.outcome)
    };
    outcome(LayerName::Public) == Some(LayerOutcome::Passed)
        && outcome(LayerName::Hidden) == Some(LayerOutcome::Failed)
}
