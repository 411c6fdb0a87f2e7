//! Where candidates come from: the operators, the repository's history, an earlier release, a model.

use std::collections::{BTreeMap, BTreeSet};

use temper_core::{Digest, Entry, Tree, TreePath};
use temper_tasks::git::LogLimits;

use super::{Event, Factory, MakeError, MakeOptions, choose, journal};
use crate::{
    Candidate, Repository,
    chat::ChatModel,
    measure::coverage::Index,
    synth::{
        self,
        model_written::{ModelOptions, write_bugs},
        pr_mirror::{MirrorLimits, Mirrors, from_commits, from_release},
    },
};

/// Sources of bugs that a repository does not have itself.
#[derive(Default)]
pub struct Extra<'a> {
    /// The files of an earlier release, of which what changed since is undone.
    pub earlier: Option<&'a Tree>,
    /// A model that writes bugs.
    pub model: Option<AskedModel<'a>>,
}

/// A model that writes bugs.
pub struct AskedModel<'a> {
    /// What answers.
    pub model: &'a mut dyn ChatModel,
    /// Everything that can change its answers: what it wrote is kept under this name, and it is not
    /// asked again.
    pub name: String,
    /// The most questions.
    pub n_calls: usize,
}

/// What is known of a repository when candidates are written.
pub(super) struct Read<'a> {
    pub(super) repository: &'a Repository,
    pub(super) tree: &'a Tree,
    /// The source files.
    pub(super) files: &'a BTreeMap<TreePath, Entry>,
    pub(super) index: &'a Index<'a>,
    /// Names the repository.
    pub(super) base: &'a Digest,
}

/// Candidates that some test executes, in the order in which they are screened. Those of the history
/// and of models are few and come first, so that a limit takes from the operators'.
pub(super) fn candidates(
    read: &Read<'_>,
    extra: Extra<'_>,
    options: &MakeOptions,
    factory: &Factory<'_>,
    on_event: &mut dyn FnMut(Event),
) -> Result<Vec<Candidate>, MakeError> {
    let wanted = |kind: &str| {
        options
            .kinds
            .as_ref()
            .is_none_or(|kinds| kinds.contains(kind))
    };
    let mut all = Vec::new();
    let source_files: BTreeSet<TreePath> = read.files.keys().cloned().collect();
    let limits = MirrorLimits::default();
    if let (Some(history), Some(commit), Some(git)) = (
        &read.repository.history,
        &read.repository.commit,
        factory.tools.git(),
    ) && wanted(synth::pr_mirror::PR_MIRROR)
    {
        let commits = git.changes(history, commit, &LogLimits::default())?;
        let mirrors = from_commits(&commits, read.tree, &source_files, &limits);
        on_event(Event::Note(said(&mirrors, "commits")));
        all.extend(mirrors.candidates);
    }
    if let Some(earlier) = extra.earlier
        && wanted(synth::pr_mirror::RELEASE_HISTORY)
    {
        let mirrors = from_release(earlier, read.tree, &source_files, &limits);
        on_event(Event::Note(said(
            &mirrors,
            "changes since the earlier release",
        )));
        all.extend(mirrors.candidates);
    }
    if let Some(asked) = extra.model {
        all.extend(written(read, asked, options, factory, on_event)?);
    }
    all.retain(|candidate| wanted(&candidate.kind));
    all.extend(operators(read.files, options, factory, on_event)?);
    let n_all = all.len();
    let mut patches = BTreeSet::new();
    all.retain(|candidate| {
        let is_executed = candidate
            .places
            .iter()
            .any(|place| read.index.executes(place));
        is_executed && patches.insert(candidate.patch.digest())
    });
    if all.len() < n_all {
        on_event(Event::Note(format!(
            "{} of {n_all} candidates change code that no trusted test executes, or are there twice",
            n_all - all.len()
        )));
    }
    let is_rare = |candidate: &Candidate| synth::OTHER_KINDS.contains(&candidate.kind.as_str());
    let (rare, common): (Vec<Candidate>, Vec<Candidate>) = all.into_iter().partition(is_rare);
    let mut chosen = choose::to_screen(rare, options.max_candidates, options.seed);
    let left = options.max_candidates - chosen.len();
    chosen.extend(choose::to_screen(common, left, options.seed));
    Ok(chosen)
}

fn said(mirrors: &Mirrors, what: &str) -> String {
    format!(
        "{} candidates undo {what}, of {} that qualify; {} no longer apply, {} change no behaviour",
        mirrors.candidates.len(),
        mirrors.n_qualified,
        mirrors.n_not_applied,
        mirrors.n_without_effect
    )
}

/// What a model writes, or wrote when it was asked the same before.
fn written(
    read: &Read<'_>,
    asked: AskedModel<'_>,
    options: &MakeOptions,
    factory: &Factory<'_>,
    on_event: &mut dyn FnMut(Event),
) -> Result<Vec<Candidate>, MakeError> {
    let files: Vec<(TreePath, Entry)> = read
        .files
        .iter()
        .map(|(path, entry)| (path.clone(), entry.clone()))
        .collect();
    let model_options = ModelOptions {
        seed: options.seed,
        n_calls: asked.n_calls,
        ..ModelOptions::default()
    };
    let key = Digest::of_value(&("model", read.base, &asked.name, asked.n_calls, options.seed));
    let AskedModel { model, .. } = asked;
    let ((candidates, n_calls), _): ((Vec<Candidate>, usize), bool) =
        journal::stage(factory.cache, &key, || {
            let bugs = write_bugs(&files, model, &model_options)?;
            Ok::<_, MakeError>((bugs.candidates, bugs.n_calls))
        })?;
    on_event(Event::Note(format!(
        "{} candidates are a model's, of {n_calls} that it was asked for",
        candidates.len()
    )));
    Ok(candidates)
}

/// Bugs by the operators.
fn operators(
    files: &BTreeMap<TreePath, Entry>,
    options: &MakeOptions,
    factory: &Factory<'_>,
    on_event: &mut dyn FnMut(Event),
) -> Result<Vec<Candidate>, MakeError> {
    let synthesis = synth::synthesize(
        files,
        &synth::Options {
            seed: options.seed,
            // The others are not made by looking for places.
            kinds: options.kinds.as_ref().map(|kinds| {
                kinds
                    .iter()
                    .filter(|kind| {
                        !synth::OTHER_KINDS
                            .iter()
                            .chain(&synth::combine::KINDS)
                            .any(|other| *kind == other)
                    })
                    .cloned()
                    .collect()
            }),
            n_workers: factory.workshop.n_workers,
            // Some of them change what no test executes, and writing takes longer than finding.
            max_candidates: Some(options.max_candidates + options.max_candidates / 2),
            ..synth::Options::default()
        },
    )?;
    for skipped in &synthesis.skipped {
        on_event(Event::Note(format!(
            "{} is left out: {}",
            skipped.file, skipped.reason
        )));
    }
    Ok(synthesis.candidates)
}
