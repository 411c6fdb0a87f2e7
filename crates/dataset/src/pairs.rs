//! Preference pairs: a solved trial against a failed one of the same task.
//!
//! Both were judged by executed tests. A failed trial that came close teaches more than one that
//! did nothing, so pairs say how close it came, and the closest come first.
//!
//! Two trials that go on from one state share a beginning. It is in both rows and learned in
//! neither, so the pair compares what was done from there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use temper_core::{
    Digest, Patch, TaskId,
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
    /// What both begin with, where they go on from one state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedPrefix>,
}

/// The beginning that two trials have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedPrefix {
    /// Digest of the prompts and steps.
    pub prefix: Digest,
    /// How many steps.
    pub n_steps: u32,
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

/// Where the trials of a pair part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Parting {
    /// In one state where there is such a pair, else at the task's start.
    #[default]
    Any,
    /// In one state within a trial.
    SameState,
    /// At the task's start.
    Start,
}

/// Which pairs are made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PairConfig {
    /// Pairs of one task.
    pub max_per_task: usize,
    /// Makes hard negatives only.
    pub hard_only: bool,
    /// A patch this near to the solved one is a hard negative.
    pub hard_distance: f64,
    /// Where the two part.
    pub parting: Parting,
}

impl Default for PairConfig {
    fn default() -> Self {
        PairConfig {
            max_per_task: 4,
            hard_only: false,
            hard_distance: 0.5,
            parting: Parting::Any,
        }
    }
}

/// A pair of trials.
#[derive(Clone, Debug)]
pub struct Pair<'a> {
    /// The solved one.
    pub chosen: &'a Episode,
    /// The failed one.
    pub rejected: &'a Episode,
    /// How close it came.
    pub hardness: Hardness,
    /// What both begin with, where they go on from one state.
    pub shared: Option<SharedPrefix>,
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
    /// No solved one goes on from a state of it, or parts from it where pairs are to part.
    OtherState,
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

/// Each failed trial with a solved one: one that shares most with it, of these the one whose patch
/// is nearest. Hardest first.
fn candidates<'a>(
    solved: &[&'a Episode],
    failed: &[&'a Episode],
    config: &PairConfig,
) -> (Vec<Pair<'a>>, Vec<(RowOrigin, Unpaired)>) {
    let mut seen: BTreeMap<(Digest, Option<SharedPrefix>), RowOrigin> = BTreeMap::new();
    let mut left_out = Vec::new();
    let mut pairs: Vec<Pair<'a>> = Vec::new();
    for episode in failed {
        let mut leave = |reason| left_out.push((episode.origin(), reason));
        let mut same_prompt = solved
            .iter()
            .filter(|other| other.prompt() == episode.prompt())
            .peekable();
        if same_prompt.peek().is_none() {
            leave(Unpaired::OtherPrompt);
            continue;
        }
        let own = ChangedLines::of(patch_of(episode));
        let chosen = same_prompt
            .filter_map(|other| Some((parting(other, episode, config.parting)?, *other)))
            .map(|(shared, other)| {
                let distance = own.distance(&ChangedLines::of(patch_of(other)));
                (shared, distance, other)
            })
            .min_by(|a, b| {
                let n_shared = |shared: &Option<SharedPrefix>| {
                    shared.as_ref().map_or(0, |shared| shared.n_steps)
                };
                let most_first = n_shared(&b.0).cmp(&n_shared(&a.0));
                most_first
                    .then_with(|| a.1.total_cmp(&b.1))
                    .then_with(|| a.2.origin().cmp(&b.2.origin()))
            });
        let Some((shared, patch_distance, chosen)) = chosen else {
            leave(Unpaired::OtherState);
            continue;
        };
        let key = (normalised_digest(patch_of(episode)), shared.clone());
        if let Some(kept) = seen.get(&key) {
            leave(Unpaired::SamePatch { kept: kept.clone() });
            continue;
        }
        let hardness = Hardness {
            passes_public: passes_public(episode),
            patch_distance,
        };
        if config.hard_only && !hardness.is_hard(config.hard_distance) {
            leave(Unpaired::NotHard);
            continue;
        }
        seen.insert(key, episode.origin());
        pairs.push(Pair {
            chosen,
            rejected: episode,
            hardness,
            shared,
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

/// What a pair of two would share; `None` where they may not be paired. A continuation is compared
/// only with what goes on from its state: the steps before are not its own.
fn parting(solved: &Episode, failed: &Episode, wanted: Parting) -> Option<Option<SharedPrefix>> {
    let begins = |episode: &Episode, other: &Episode| {
        let branch = episode.branch()?;
        other.begins_with(branch).then(|| SharedPrefix {
            prefix: branch.prefix.clone(),
            n_steps: branch.n_steps,
        })
    };
    let shared = begins(solved, failed).or_else(|| begins(failed, solved));
    let from_start = solved.branch().is_none() && failed.branch().is_none();
    match (shared, wanted) {
        (Some(shared), Parting::Any | Parting::SameState) => Some(Some(shared)),
        (None, Parting::Any | Parting::Start) if from_start => Some(None),
        _ => None,
    }
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
