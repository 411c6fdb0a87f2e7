//! What makes a recipe wrong before anything is opened: contradictions and settings without effect.

use std::collections::BTreeSet;

use temper_train::Method;

use super::{Recipe, RecipeError};

/// The model that is trained, as a teacher.
const POLICY: &str = "policy";

impl Recipe {
    /// Checks every setting against the others. What depends on data, model or device is checked
    /// where these are known.
    pub(super) fn check(&self) -> Result<(), RecipeError> {
        self.check_data()?;
        self.check_trials()?;
        self.check_training()
    }

    fn check_data(&self) -> Result<(), RecipeError> {
        match (&self.data, self.collect.is_empty(), &self.build) {
            (Some(_), true, None) => {}
            (Some(_), false, _) => {
                return refuse(
                    "collect",
                    "[data] names a data set, so nothing is collected",
                );
            }
            (Some(_), _, Some(_)) => {
                return refuse("build", "[data] names a data set, so none is built");
            }
            (None, true, None) => {
                return refuse(
                    "data",
                    "there is nothing to train on: name a data set in [data], or [[collect]] and \
                     [build] one",
                );
            }
            (None, true, Some(_)) => {
                return refuse(
                    "build",
                    "there is no [[collect]], so there are no candidates",
                );
            }
            (None, false, None) => {
                return refuse("collect", "there is no [build], so candidates go nowhere");
            }
            (None, false, Some(_)) => {}
        }
        for (index, collect) in self.collect.iter().enumerate() {
            let at = |key: &str| format!("collect[{index}].{key}");
            if collect.attempts == 0 {
                return refuse(&at("attempts"), "no candidate would be sampled");
            }
            if collect.steps_back.is_some() && collect.branches.is_none() {
                return refuse(&at("steps_back"), "it is for branches, and there are none");
            }
            if collect.temperature.is_some() && collect.teacher != POLICY {
                return refuse(
                    &at("temperature"),
                    "it is for the teacher \"policy\"; others have their own",
                );
            }
            let temperature = collect
                .temperature
                .unwrap_or_else(|| self.agent.as_ref().map_or(0.0, |agent| agent.temperature));
            if !(temperature.is_finite() && temperature >= 0.0) {
                return refuse(&at("temperature"), "it is negative or no number");
            }
            if collect.teacher == POLICY && collect.attempts > 1 && temperature == 0.0 {
                return refuse(
                    &at("attempts"),
                    "at temperature 0 every candidate of a task is the same",
                );
            }
            if collect.limit == Some(0) {
                return refuse(&at("limit"), "no task would be left");
            }
            if self.collect[..index].contains(collect) {
                return refuse(
                    &at("teacher"),
                    "the same teacher is asked for the same twice",
                );
            }
        }
        if self.build.as_ref().is_some_and(|build| build.groups) {
            return refuse("build.groups", "no stage of a recipe learns from groups");
        }
        let pairs = self.build.as_ref().map(|build| build.pairs.is_some());
        match (pairs, &self.preference) {
            (Some(true), None) => refuse(
                "build.pairs",
                "there is no [preference], so pairs would go nowhere",
            ),
            (Some(false), Some(_)) => refuse(
                "preference",
                "there is no [build.pairs], so there are no pairs",
            ),
            _ => Ok(()),
        }
    }

    fn check_trials(&self) -> Result<(), RecipeError> {
        match (self.runs_trials(), &self.suite, &self.agent) {
            (true, None, _) => {
                return refuse("suite", "collecting, selection and evaluation need tasks");
            }
            (false, Some(_), _) => {
                return refuse("suite", "no stage runs tasks, so it has no effect");
            }
            (false, _, Some(_)) => {
                return refuse("agent", "no stage runs trials, so it has no effect");
            }
            _ => {}
        }
        if let Some(agent) = &self.agent {
            if agent.trial_timeout_seconds == 0 {
                return refuse("agent.trial_timeout_seconds", "a trial needs time");
            }
            if agent.reply_tokens == Some(0) || agent.steps == Some(0) {
                return refuse("agent", "a trial needs a step and a reply a token");
            }
            if !(agent.temperature.is_finite() && agent.temperature >= 0.0) {
                return refuse("agent.temperature", "it is negative or no number");
            }
        }
        if self.model.context.is_some() && !self.runs_trials() {
            return refuse("model.context", "no stage runs trials, so it has no effect");
        }
        let limits = [
            (
                "select",
                self.select.as_ref().map(|it| (it.attempts, it.limit)),
            ),
            (
                "evaluate",
                self.evaluate.as_ref().map(|it| (it.attempts, it.limit)),
            ),
        ];
        for (section, limits) in limits {
            match limits {
                Some((0, _)) => {
                    return refuse(&format!("{section}.attempts"), "no trial would be run");
                }
                Some((_, Some(0))) => {
                    return refuse(&format!("{section}.limit"), "no task would be left");
                }
                _ => {}
            }
        }
        match self.evaluate.as_ref().map(|it| it.resamples) {
            Some(n) if !(100..=10_000_000).contains(&n) => {
                refuse("evaluate.resamples", "it is not from 100 to 10,000,000")
            }
            _ => Ok(()),
        }
    }

    fn check_training(&self) -> Result<(), RecipeError> {
        let seeds = &self.train.seeds;
        if seeds.is_empty() {
            return refuse("train.seeds", "nothing would be trained");
        }
        if seeds.iter().collect::<BTreeSet<_>>().len() < seeds.len() {
            return refuse(
                "train.seeds",
                "one is named twice, and would train the same",
            );
        }
        if self.preference.is_some() && self.train.sft.training.method == Method::Full {
            return refuse(
                "preference",
                "it goes on from an adapter, and [train] trains the whole model",
            );
        }
        if self.model.adapter.is_some() && self.train.sft.training.method == Method::Full {
            return refuse(
                "model.adapter",
                "an adapter has no place in a model that is trained whole: merge it first",
            );
        }
        Ok(())
    }
}

fn refuse<T>(setting: &str, reason: &str) -> Result<T, RecipeError> {
    Err(RecipeError::Setting {
        setting: setting.to_owned(),
        reason: reason.to_owned(),
    })
}
