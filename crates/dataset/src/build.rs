//! From judged trials to a data set: filter, make rows, pair, group, count.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use temper_core::{Digest, digest::Hasher};

use crate::{
    budget::{self, Budget},
    episode::Episode,
    filter::{DropReason, Dropped, FilterConfig, Replay, contamination::HeldOut, filter},
    groups::{Group, NoMember, groups},
    pairs::{PairConfig, PairRow, Unpaired, pairs},
    render::Renderer,
    row::{RowOrigin, TokenSource, TrainingRow},
    sampled::{self, FailedCommands, OnBreak, Unlearned},
};

/// What is built, and how. As a file it is TOML; a part that is left out is not made, a number that
/// is left out is the default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BuildConfig {
    /// Does the actions of each kept trial again from a clean state.
    pub replay: bool,
    /// Which trials are kept.
    pub filter: FilterConfig,
    /// What becomes of conversations whose tokens do not only grow.
    pub on_break: OnBreak,
    /// Rows with more tokens are left out and counted; none is cut.
    pub max_tokens: Option<usize>,
    /// Makes preference pairs.
    pub pairs: Option<PairConfig>,
    /// Makes groups for group-relative objectives.
    pub groups: bool,
    /// How much the data set may hold at most.
    pub budget: Option<Budget>,
}

impl BuildConfig {
    /// What is built where nobody says otherwise, with its comments.
    pub const DEFAULT_TEXT: &str = include_str!("default-build.toml");

    /// Reads the text of a file.
    ///
    /// # Errors
    /// Keys that are not known and values that are none, with their place.
    pub fn from_toml(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }
}

/// What was built.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dataset {
    /// Rows for supervised training, by origin.
    pub rows: Vec<TrainingRow>,
    /// Preference pairs.
    pub pairs: Vec<PairRow>,
    /// Groups.
    pub groups: Vec<Group>,
    /// What was counted.
    pub report: BuildReport,
}

/// Counts of a build, and what was left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuildReport {
    /// Trials given.
    pub n_trials: usize,
    /// Solved trials that passed every filter.
    pub n_kept_trials: usize,
    /// Rows for supervised training.
    pub n_rows: usize,
    /// Tokens in them.
    pub n_tokens: usize,
    /// Tokens that are learned.
    pub n_learned_tokens: usize,
    /// Rows whose ids were recorded when they were sampled; the others are rendered.
    pub n_sampled_rows: usize,
    /// Trials with a row for each reply, because the template changes what it wrote.
    pub n_split_trials: usize,
    /// Trials with content that looked like a control token and was made ordinary text.
    pub n_defused_trials: usize,
    /// Preference pairs.
    pub n_pairs: usize,
    /// Groups, and how many have different rewards.
    pub n_groups: usize,
    /// Groups whose rewards differ.
    pub n_groups_with_signal: usize,
    /// Pairs whose trials go on from one state.
    pub n_same_state_pairs: usize,
    /// Tokens that are learned in both rows of all pairs.
    pub n_learned_pair_tokens: usize,
    /// What was left out of the rows, by reason.
    pub n_dropped: BTreeMap<String, usize>,
    /// Each with its reason.
    pub dropped: Vec<Dropped>,
    /// Failed trials in no pair.
    pub unpaired: Vec<(RowOrigin, Unpaired)>,
    /// Trials in no group.
    pub ungrouped: Vec<(RowOrigin, NoMember)>,
}

/// Why nothing was built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// Nothing is left.
    #[error("build a data set: all {n_trials} trials were dropped: {reasons}")]
    NothingLeft {
        /// Trials given.
        n_trials: usize,
        /// How many for which reason.
        reasons: String,
    },
    /// A setting has no effect.
    #[error("build a data set: {0}")]
    Ineffective(&'static str),
}

impl BuildError {
    /// What the user can do.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            BuildError::NothingLeft { .. } => Some(
                "the reasons say which limit or filter to change; trials that are not solved give pairs only beside solved ones",
            ),
            BuildError::Ineffective(_) => None,
        }
    }
}

/// What a build reads besides trials.
pub struct Sources<'a> {
    /// Trials that could not be read as training episodes, with the reasons.
    pub refused: Vec<Dropped>,
    /// Spells conversations of trials whose server gave no ids; without it they are dropped.
    pub renderer: Option<&'a Renderer<'a>>,
    /// Tasks that nothing may be like.
    pub held_out: &'a HeldOut,
    /// What a trial was sampled from; groups hold trials of one.
    pub policy_of: &'a dyn Fn(&Episode) -> Digest,
}

/// Builds a data set; `replay` does the actions of trials again. The result does not depend on the
/// order of the trials.
///
/// # Errors
/// When every trial is dropped, with the reasons; when a setting has no effect.
pub fn build(
    episodes: &[Episode],
    config: &BuildConfig,
    sources: Sources<'_>,
    replay: Option<&mut dyn Replay>,
) -> Result<Dataset, BuildError> {
    let limits = [
        config.max_tokens,
        config.filter.max_per_task,
        config.filter.max_same_patch,
    ];
    if limits.contains(&Some(0)) {
        return Err(BuildError::Ineffective("a limit of 0 keeps nothing"));
    }
    if config.budget.is_some_and(|budget| budget.n == 0) {
        return Err(BuildError::Ineffective("a budget of 0 keeps nothing"));
    }
    let replay = match (config.replay, replay) {
        (true, None) => {
            return Err(BuildError::Ineffective(
                "trials are to be replayed, and there is nothing to replay them with",
            ));
        }
        (true, replay) => replay,
        (false, _) => None,
    };
    let maker = Maker {
        renderer: sources.renderer,
        config,
    };
    let mut made = BTreeMap::new();
    let mut fits = |episode: &Episode| {
        let rows = maker.rows(episode)?;
        made.insert(episode.origin(), rows);
        Ok(())
    };
    let filtered = filter(
        episodes,
        &config.filter,
        sources.held_out,
        &mut fits,
        replay,
    );
    let n_trials = episodes.len() + sources.refused.len();
    let mut report = BuildReport {
        n_trials,
        n_kept_trials: filtered.kept.len(),
        dropped: filtered.dropped,
        ..BuildReport::default()
    };
    report.dropped.extend(sources.refused);
    let mut rows = Vec::new();
    for episode in &filtered.kept {
        let origin = episode.origin();
        let Some(made) = made.remove(&origin) else {
            continue;
        };
        report.n_split_trials += usize::from(made.split);
        report.n_defused_trials += usize::from(made.defused);
        rows.extend(made.rows);
        let left_out = made.too_long.into_iter().map(|reason| Dropped {
            origin: origin.clone(),
            reason,
        });
        report.dropped.extend(left_out);
    }
    let mut dataset = Dataset {
        rows,
        ..Dataset::default()
    };
    let config_of_rows = config;
    if let Some(config) = &config.pairs {
        let (paired, unpaired) = pairs(&filtered.kept, episodes, config);
        for pair in paired {
            // A pair is of two rows; a trial that is split has no one row to compare.
            let n_shared = pair
                .shared
                .as_ref()
                .map_or(0, |shared| shared.n_steps as usize);
            // What makes the worse one worse is often just that its commands failed.
            let failed = config_of_rows.filter.failed_commands;
            let chosen = maker.only_row(pair.chosen, Unlearned { n_shared, failed });
            let failed = FailedCommands::Learn;
            let rejected = maker.only_row(pair.rejected, Unlearned { n_shared, failed });
            match (chosen, rejected) {
                (Ok(chosen), Ok(rejected)) => dataset.pairs.push(PairRow {
                    chosen,
                    rejected,
                    hardness: pair.hardness,
                    shared: pair.shared,
                }),
                (Err(reason), _) | (_, Err(reason)) => report.dropped.push(Dropped {
                    origin: pair.rejected.origin(),
                    reason,
                }),
            }
        }
        report.unpaired = unpaired;
    }
    if config.groups {
        let (made, without) = groups(episodes, sources.policy_of, config.on_break);
        dataset.groups = made;
        report.ungrouped = without;
    }
    if let Some(limit) = config.budget {
        let left_out = budget::limit(&mut dataset, limit, config.filter.seed);
        report
            .dropped
            .extend(left_out.into_iter().map(|origin| Dropped {
                origin,
                reason: DropReason::OverBudget,
            }));
    }
    count(&mut report, &dataset);
    if dataset.rows.is_empty() && dataset.pairs.is_empty() && dataset.groups.is_empty() {
        let reasons = report.n_dropped.iter();
        let reasons: Vec<String> = reasons.map(|(kind, n)| format!("{n} {kind}")).collect();
        return Err(BuildError::NothingLeft {
            n_trials,
            reasons: reasons.join(", "),
        });
    }
    dataset.report = report;
    Ok(dataset)
}

fn count(report: &mut BuildReport, dataset: &Dataset) {
    let rows = &dataset.rows;
    report.n_rows = rows.len();
    report.n_tokens = rows.iter().map(|row| row.ids().len()).sum();
    report.n_learned_tokens = rows.iter().map(TrainingRow::n_learned).sum();
    let sampled = rows
        .iter()
        .filter(|row| row.source() == TokenSource::Sampled);
    report.n_sampled_rows = sampled.count();
    report.n_pairs = dataset.pairs.len();
    let pairs = || dataset.pairs.iter();
    report.n_same_state_pairs = pairs().filter(|pair| pair.shared.is_some()).count();
    report.n_learned_pair_tokens = pairs()
        .map(|pair| pair.chosen.n_learned() + pair.rejected.n_learned())
        .sum();
    report.n_groups = dataset.groups.len();
    report.n_groups_with_signal = dataset.groups.iter().filter(|g| g.has_signal()).count();
    report.dropped.sort_by(|a, b| a.origin.cmp(&b.origin));
    for dropped in &report.dropped {
        let kind = dropped.reason.kind().to_owned();
        *report.n_dropped.entry(kind).or_default() += 1;
    }
}

struct Maker<'a> {
    renderer: Option<&'a Renderer<'a>>,
    config: &'a BuildConfig,
}

impl Maker<'_> {
    /// The rows of a trial that are short enough, and the others' reasons; of a trial without a row
    /// the reason.
    fn rows(&self, episode: &Episode) -> Result<Made, DropReason> {
        let unlearned = Unlearned {
            n_shared: episode.n_shared(),
            failed: self.config.filter.failed_commands,
        };
        let mut made = self.make(episode, unlearned)?;
        for row in std::mem::take(&mut made.rows) {
            match self.too_long(&row) {
                Some(reason) => made.too_long.push(reason),
                None => made.rows.push(row),
            }
        }
        if made.rows.is_empty()
            && let Some(reason) = made.too_long.pop()
        {
            return Err(reason);
        }
        Ok(made)
    }

    /// The one row of a trial.
    fn only_row(&self, episode: &Episode, unlearned: Unlearned) -> Result<TrainingRow, DropReason> {
        let mut rows = self.make(episode, unlearned)?.rows;
        match (rows.pop(), rows.len()) {
            (Some(row), 0) => match self.too_long(&row) {
                Some(reason) => Err(reason),
                None => Ok(row),
            },
            (_, n) => Err(DropReason::NoRows {
                detail: format!(
                    "a pair wants one row of a trial, and this one has {}",
                    n + 1
                ),
            }),
        }
    }

    /// Rows without what is not to be learned.
    fn make(&self, episode: &Episode, unlearned: Unlearned) -> Result<Made, DropReason> {
        let no_rows = |detail: String| DropReason::NoRows { detail };
        let any_ids = episode.steps().iter().any(|step| step.tokens.is_some());
        if any_ids {
            let rows = sampled::rows_without(episode, unlearned, self.config.on_break)
                .map_err(|error| no_rows(error.to_string()))?;
            return Ok(Made {
                split: rows.len() > 1,
                rows,
                too_long: Vec::new(),
                defused: false,
            });
        }
        let renderer = self.renderer.ok_or_else(|| {
            no_rows("it has text without ids, and no chat template was given".to_owned())
        })?;
        let rendered = renderer
            .rows_without(episode, unlearned, self.config.on_break)
            .map_err(|error| no_rows(error.to_string()))?;
        Ok(Made {
            split: rendered.split.is_some(),
            rows: rendered.rows,
            too_long: Vec::new(),
            defused: rendered.defused,
        })
    }

    fn too_long(&self, row: &TrainingRow) -> Option<DropReason> {
        let limit = self.config.max_tokens?;
        let n_tokens = row.ids().len();
        (n_tokens > limit).then_some(DropReason::TooLong { n_tokens, limit })
    }
}

struct Made {
    rows: Vec<TrainingRow>,
    too_long: Vec<DropReason>,
    split: bool,
    defused: bool,
}

/// The digest of trials as a build reads them, whatever their order.
pub fn episodes_digest(episodes: &[Episode]) -> Digest {
    let mut digests: Vec<Digest> = episodes
        .iter()
        .map(|episode| {
            let mut hasher = Hasher::default();
            hasher.field(episode.task().digest().as_str().as_bytes());
            hasher.field(Digest::of_value(episode.trial()).as_str().as_bytes());
            hasher.field(Digest::of_value(&episode.prompt()).as_str().as_bytes());
            hasher.field(Digest::of_value(&episode.steps()).as_str().as_bytes());
            hasher.field(Digest::of_value(&episode.tools()).as_str().as_bytes());
            hasher.finish()
        })
        .collect();
    digests.sort();
    Digest::of_value(&digests)
}
