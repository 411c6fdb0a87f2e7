//! What an experiment promises before it runs, and whether its final test may run.
//!
//! A contract says the question, the arms, what they get the same of, the metric, how a candidate
//! is selected, the seeds and the test. It is frozen by the digest of all that and of the files
//! that it names. Nothing here reads a file.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use temper_core::Digest;

/// An experiment as it is declared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contract {
    /// Version of this format.
    pub format: u32,
    /// Its name.
    pub name: String,
    /// What is to be found out.
    pub question: String,
    /// The training seeds of every arm.
    pub seeds: Vec<u64>,
    /// The model that every arm starts from.
    pub model: String,
    /// What every arm gets the same of.
    pub equal: Equal,
    /// The number that answers the question.
    #[serde(default)]
    pub primary_metric: Metric,
    /// How a candidate is chosen of a run's snapshots.
    pub selection: SelectionRule,
    /// What candidates are measured on.
    pub test: Test,
    /// Candidates that arms are trained on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub collections: Vec<Collecting>,
    /// What is compared, the reference first.
    pub arms: Vec<ArmPlan>,
}

/// What is held equal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Equal {
    /// Of what.
    pub what: EqualUnit,
    /// How much: tokens, trials, dollars or seconds. Without it as much as the smallest arm has,
    /// which only data sets can say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount: Option<f64>,
}

/// A unit in which arms are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EqualUnit {
    /// Tokens that are learned, of the data sets.
    LearnedTokens,
    /// All tokens, of the data sets.
    Tokens,
    /// Trials with rows, of the data sets.
    Trials,
    /// Dollars of each collection.
    Money,
    /// Seconds of each collection.
    WallTime,
}

impl EqualUnit {
    /// Whether data sets are made equal; otherwise their collections are.
    pub fn is_of_data(self) -> bool {
        !matches!(self, EqualUnit::Money | EqualUnit::WallTime)
    }
}

/// A primary metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// The mean over tasks of the share of attempts that solve them.
    #[default]
    SolvedRate,
}

/// How a candidate is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SelectionRule {
    /// By execution on dev tasks; the start takes part, and a tie keeps the earlier.
    DevExecution,
    /// The last snapshot.
    LastSnapshot,
}

/// The final test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Test {
    /// The suite, whose test split is used.
    pub suite: String,
    /// Trials of each task.
    #[serde(default = "one")]
    pub attempts: u32,
    /// At most this many tasks, the first by id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

fn one() -> u32 {
    1
}

/// A collection that the experiment makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Collecting {
    /// What arms call it.
    pub name: String,
    /// Flags of `temper collect`, without suite and output.
    pub arguments: Vec<String>,
    /// Another suite than the test's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suite: Option<String>,
}

/// One arm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArmPlan {
    /// Its name.
    pub name: String,
    /// Names of collections, or paths of jobs and collections, that its data set is built of.
    pub data: Vec<String>,
    /// The file that says how; without it the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    /// The file of the recipe, without data, seeds, suite and output: these are the contract's.
    pub recipe: String,
    /// Another suite than the test's: the same tasks otherwise told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suite: Option<String>,
}

/// Why a contract cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("declare the experiment: {setting}: {reason}")]
pub struct ContractError {
    /// The setting.
    pub setting: String,
    /// What is wrong.
    pub reason: String,
}

impl Contract {
    /// The format that this code reads and writes.
    pub const FORMAT: u32 = 1;

    /// Whether it can be kept.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn check(&self) -> Result<(), ContractError> {
        let wrong = |setting: &str, reason: String| {
            Err(ContractError {
                setting: setting.to_owned(),
                reason,
            })
        };
        if self.format != Self::FORMAT {
            let reason = format!(
                "it is {}, and this version has {}",
                self.format,
                Self::FORMAT
            );
            return wrong("format", reason);
        }
        for (setting, text) in [("name", &self.name), ("question", &self.question)] {
            if text.trim().is_empty() {
                return wrong(setting, "it is empty".to_owned());
            }
        }
        if self.seeds.is_empty()
            || self.seeds.iter().collect::<BTreeSet<_>>().len() != self.seeds.len()
        {
            return wrong("seeds", "there must be some, each once".to_owned());
        }
        match self.equal {
            Equal { what, amount: None } if !what.is_of_data() => {
                return wrong("equal.amount", "money and wall time need one".to_owned());
            }
            Equal {
                amount: Some(amount),
                ..
            } if !(amount.is_finite() && amount > 0.0) => {
                return wrong("equal.amount", format!("{amount} is no amount"));
            }
            _ => {}
        }
        if self.arms.len() < 2 {
            return wrong("arms", "a comparison needs two".to_owned());
        }
        let names = |names: Vec<&str>| -> Option<String> {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            let mut seen = BTreeSet::new();
            names.into_iter().find_map(|name| {
                if name.is_empty() || !name.chars().all(plain) || name.starts_with('.') {
                    return Some(format!(
                        "{name:?} is no name of letters, digits, -, _ and ."
                    ));
                }
                (!seen.insert(name)).then(|| format!("{name} is there twice"))
            })
        };
        let arms = self.arms.iter().map(|arm| arm.name.as_str());
        if let Some(reason) = names(arms.collect()) {
            return wrong("arms.name", reason);
        }
        let collections = self.collections.iter().map(|it| it.name.as_str());
        if let Some(reason) = names(collections.collect()) {
            return wrong("collections.name", reason);
        }
        if let Some(arm) = self.arms.iter().find(|arm| arm.data.is_empty()) {
            return wrong("arms.data", format!("{} has none", arm.name));
        }
        let unused = self.collections.iter().find(|collection| {
            let mut data = self.arms.iter().flat_map(|arm| &arm.data);
            !data.any(|name| *name == collection.name)
        });
        if let Some(unused) = unused {
            return wrong("collections", format!("no arm uses {}", unused.name));
        }
        for collection in &self.collections {
            let taken = ["--suite", "-s", "--output", "-o", "--format", "--split"];
            let mut arguments = collection.arguments.iter();
            if let Some(flag) = arguments.find(|it| taken.contains(&it.as_str())) {
                let reason = format!(
                    "{} gives {flag}, which the contract decides",
                    collection.name
                );
                return wrong("collections.arguments", reason);
            }
        }
        Ok(())
    }

    /// The files that it names, as they are named.
    pub fn files(&self) -> BTreeSet<&str> {
        let builds = self.arms.iter().filter_map(|arm| arm.build.as_deref());
        let recipes = self.arms.iter().map(|arm| arm.recipe.as_str());
        builds.chain(recipes).collect()
    }

    /// The digest of the contract and of the content of the files that it names.
    pub fn digest(&self, files: &BTreeMap<String, Digest>) -> Digest {
        Digest::of_value(&(self, files))
    }
}

/// The first place in which two values differ, by its path; `None` if they are equal.
pub fn first_difference(a: &Value, b: &Value) -> Option<String> {
    fn walk(path: String, a: &Value, b: &Value) -> Option<String> {
        match (a, b) {
            (Value::Object(a), Value::Object(b)) => {
                let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
                keys.into_iter().find_map(|key| {
                    let at = |map: &serde_json::Map<String, Value>| {
                        map.get(key).cloned().unwrap_or(Value::Null)
                    };
                    let path = if path.is_empty() {
                        key.clone()
                    } else {
                        format!("{path}.{key}")
                    };
                    walk(path, &at(a), &at(b))
                })
            }
            (Value::Array(a), Value::Array(b)) if a.len() == b.len() => a
                .iter()
                .zip(b)
                .enumerate()
                .find_map(|(index, (a, b))| walk(format!("{path}[{index}]"), a, b)),
            (a, b) => (a != b).then_some(path),
        }
    }
    walk(String::new(), a, b)
}

/// Something that happened to an experiment. Events are only added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// RFC 3339.
    pub at: String,
    /// The contract that was in force.
    pub contract: Digest,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum What {
    /// It was declared.
    Declared,
    /// Its contract was changed.
    Amended {
        /// The one before.
        before: Digest,
        /// The first place that differs.
        first_difference: String,
        /// Why, in the words of who did it.
        reason: String,
    },
    /// A collection is complete, or its budget is spent.
    Collected {
        /// Its name.
        collection: String,
    },
    /// Data sets were made equal.
    Equalised {
        /// The most that each may hold; absent where collections were made equal.
        budget: Option<u64>,
        /// What each arm's rows hold.
        held: BTreeMap<String, u64>,
    },
    /// An arm was trained and its candidates are selected.
    Trained {
        /// The arm.
        arm: String,
    },
    /// An arm's final test began.
    TestBegun {
        /// The arm.
        arm: String,
        /// Why it is not the first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        again: Option<String>,
    },
    /// It is over.
    TestFinished {
        /// The arm.
        arm: String,
    },
}

/// Whether an arm's final test may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestAdmission {
    /// For the first time, or to go on with one that was begun under the same contract.
    Run,
    /// It is over, under this contract.
    Done,
    /// A second time, for this reason.
    Again(String),
    /// It saw the test tasks before and nobody says why it should again.
    Refused {
        /// When.
        at: String,
        /// Whether the contract has changed since.
        changed: bool,
    },
}

/// Whether an arm's final test may run under a contract. A test that was begun or finished under
/// another contract was a look at the test tasks, too.
pub fn admit(events: &[Event], arm: &str, contract: &Digest, again: Option<&str>) -> TestAdmission {
    let mut tests = events.iter().filter(|event| match &event.what {
        What::TestBegun { arm: of, .. } | What::TestFinished { arm: of } => of == arm,
        _ => false,
    });
    let Some(last) = tests.next_back() else {
        return TestAdmission::Run;
    };
    let changed = last.contract != *contract;
    match (&last.what, again) {
        (What::TestBegun { .. }, _) if !changed => TestAdmission::Run,
        (_, Some(reason)) => TestAdmission::Again(reason.to_owned()),
        (What::TestFinished { .. }, None) if !changed => TestAdmission::Done,
        _ => TestAdmission::Refused {
            at: last.at.clone(),
            changed,
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(contract: &str, what: What) -> Event {
        Event {
            at: "then".into(),
            contract: Digest::of(contract.as_bytes()),
            what,
        }
    }

    #[test]
    fn an_arm_is_tested_once_under_one_contract() {
        let (one, other) = (Digest::of(b"one"), Digest::of(b"other"));
        let begun = event(
            "one",
            What::TestBegun {
                arm: "a".into(),
                again: None,
            },
        );
        let finished = event("one", What::TestFinished { arm: "a".into() });
        let events = [begun.clone()];
        assert_eq!(admit(&[], "a", &one, None), TestAdmission::Run);
        assert_eq!(admit(&[], "a", &one, Some("why")), TestAdmission::Run);
        assert_eq!(admit(&events, "a", &one, None), TestAdmission::Run);
        assert_eq!(admit(&events, "b", &one, None), TestAdmission::Run);
        let refused = |changed| TestAdmission::Refused {
            at: "then".into(),
            changed,
        };
        assert_eq!(admit(&events, "a", &other, None), refused(true));
        let events = [begun, finished];
        assert_eq!(admit(&events, "a", &one, None), TestAdmission::Done);
        assert_eq!(admit(&events, "a", &other, None), refused(true));
        let again = TestAdmission::Again("a fault in the suite".into());
        assert_eq!(
            admit(&events, "a", &one, Some("a fault in the suite")),
            again
        );
    }

    #[test]
    fn the_first_difference_is_named() {
        let a = json!({"a": [1, {"b": 2}], "c": 3});
        assert_eq!(first_difference(&a, &a), None);
        for (b, path) in [
            (json!({"a": [1, {"b": 9}], "c": 3}), "a[1].b"),
            (json!({"a": [1], "c": 3}), "a"),
            (json!({"a": [1, {"b": 2}]}), "c"),
        ] {
            assert_eq!(first_difference(&a, &b).as_deref(), Some(path));
        }
    }
}
