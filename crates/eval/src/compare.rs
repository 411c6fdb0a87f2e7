//! The comparison of any number of arms.

use serde::{Deserialize, Serialize};

use crate::{
    arm::{Arm, ArmError, Gathered, gather},
    holm,
    pair::{self, Mcnemar, Pair},
    summary::{self, ArmSummary},
};

/// The level below which a corrected p value is called significant.
pub const ALPHA: f64 = 0.05;

/// What a comparison can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Bootstrap resamples.
    pub n_resamples: u32,
    /// Seed of the bootstrap.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            n_resamples: 10_000,
            seed: 0,
        }
    }
}

/// Everything an evaluation says, as strict JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// Version of this format.
    pub format: u32,
    /// What was asked for.
    pub options: Options,
    /// The arms, in the order given.
    pub arms: Vec<ArmSummary>,
    /// Every pair of arms; of each pair the arm given first is the baseline. Empty with one arm.
    pub pairs: Vec<Pair>,
    /// What a reader should know before comparing numbers.
    pub notes: Vec<String>,
    /// The profiles of the arms, where they differ and were compared all the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mixed_profiles: Vec<crate::mixing::ArmProfile>,
}

impl Comparison {
    /// The format that this code writes.
    pub const FORMAT: u32 = 1;

    /// Stamps a comparison of arms that ran under different profiles.
    pub fn stamp(&mut self, mixed: crate::mixing::MixedProfiles) {
        self.notes.insert(0, mixed.stamp());
        self.mixed_profiles = mixed.0;
    }
}

/// Summarizes every arm and compares every two of them.
///
/// The same trials, options and version give the same result on every machine. Fails where a
/// comparison would mislead: see [`ArmError`].
pub fn compare(arms: &[Arm<'_>], options: &Options) -> Result<Comparison, ArmError> {
    let gathered = gather(arms)?;
    let n_pairs = gathered.len() * (gathered.len() - 1) / 2;
    let mut pairs = Vec::with_capacity(n_pairs);
    for (index, baseline) in gathered.iter().enumerate() {
        for candidate in &gathered[index + 1..] {
            pairs.push(pair::compare(baseline, candidate, n_pairs, options));
        }
    }
    correct(&mut pairs, |pair| &mut pair.mcnemar);
    correct(&mut pairs, |pair| &mut pair.mcnemar_lost_for_baseline);
    correct(&mut pairs, |pair| &mut pair.mcnemar_lost_for_candidate);
    for pair in &mut pairs {
        pair::conclude(pair, n_pairs);
    }
    Ok(Comparison {
        format: Comparison::FORMAT,
        options: *options,
        arms: gathered
            .iter()
            .map(|arm| summary::summarize(arm, options))
            .collect(),
        pairs,
        notes: notes(&gathered),
        mixed_profiles: Vec::new(),
    })
}

fn correct(pairs: &mut [Pair], test: impl Fn(&mut Pair) -> &mut Mcnemar) {
    let p_values: Vec<f64> = pairs.iter_mut().map(|pair| test(pair).exact_p).collect();
    for (pair, p) in pairs.iter_mut().zip(holm::adjust(&p_values)) {
        test(pair).holm_p = p;
    }
}

fn notes(arms: &[Gathered<'_>]) -> Vec<String> {
    let mut notes = Vec::new();
    for arm in arms {
        let counts = || arm.tasks.values().map(std::collections::BTreeMap::len);
        if let (Some(fewest), Some(most)) = (counts().min(), counts().max())
            && fewest != most
        {
            notes.push(format!(
                "{} has between {fewest} and {most} attempts per task; every task weighs the same in paired differences",
                arm.name
            ));
        }
        if arm.tasks.is_empty() {
            notes.push(format!("{} has no trials", arm.name));
        }
    }
    let most = |arm: &Gathered<'_>| {
        arm.tasks
            .values()
            .map(std::collections::BTreeMap::len)
            .max()
    };
    if arms.windows(2).any(|pair| most(&pair[0]) != most(&pair[1])) {
        notes.push("the arms differ in attempts per task".into());
    }
    let mut judged_differently: Vec<&str> = Vec::new();
    let tasks: std::collections::BTreeSet<_> = arms
        .iter()
        .flat_map(|arm| arm.tasks.keys().copied())
        .collect();
    for task in tasks {
        // A lost verdict may come from whoever noticed, so only scored ones are held together.
        let mut verifiers = arms
            .iter()
            .filter_map(|arm| arm.tasks.get(task))
            .flat_map(|trials| trials.values())
            .filter(|trial| trial.solved().is_some())
            .map(|trial| trial.verdict.verifier.as_str());
        if let Some(first) = verifiers.next()
            && verifiers.any(|other| other != first)
        {
            judged_differently.push(task.as_str());
        }
    }
    if let Some(first) = judged_differently.first() {
        notes.push(format!(
            "{} judged by different verifiers or rules, the first of them {first}",
            match judged_differently.len() {
                1 => "1 task was".into(),
                n => format!("{n} tasks were"),
            }
        ));
    }
    notes
}
