//! Whether a task is proven: what its tests say of the start and of the known fix, repeatedly.
//!
//! A task that is not proven measures nothing: if a fail-to-pass test passes without a fix, doing
//! nothing is rewarded; if the known fix fails, nobody can be; if a test flips by itself, so does
//! the result.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use temper_core::{TestId, TestOutcome, Verdict, verdict::Resolution};

use super::Graded;

/// What is wrong with a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Finding {
    /// A fail-to-pass test passes although nothing was fixed.
    PassesUnfixed {
        /// The test.
        test: TestId,
    },
    /// A pass-to-pass test does not pass although nothing was changed.
    FailsUnfixed {
        /// The test.
        test: TestId,
        /// What it did.
        outcome: TestOutcome,
    },
    /// A test does not pass with the known fix.
    FailsFixed {
        /// The test.
        test: TestId,
        /// What it did.
        outcome: TestOutcome,
    },
    /// The same state gave different outcomes.
    Flaky {
        /// The test.
        test: TestId,
        /// `start` or `oracle`.
        side: &'static str,
        /// Outcomes seen.
        outcomes: BTreeSet<TestOutcome>,
    },
    /// The task names no fail-to-pass test, so it cannot tell a fix from nothing.
    NoFailToPass,
    /// The known fix does not resolve the task, for a reason that no single test shows.
    OracleUnresolved {
        /// How it ended.
        resolution: Resolution,
        /// The verdict's detail.
        detail: String,
    },
    /// The task has no known fix, so nothing shows that it can be solved.
    NoOracle,
    /// A run was lost; nothing is known.
    Lost {
        /// `start` or `oracle`.
        side: &'static str,
        /// Why.
        reason: String,
    },
}

/// Judges repeated runs of a task's start and of its known fix. Findings come in a fixed order; an
/// empty list is a proof.
pub fn judge(start: &[Graded], oracle: &[Graded]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (side, runs) in [("start", start), ("oracle", oracle)] {
        if let Some(failure) = runs.iter().find_map(|run| run.failure.as_ref()) {
            findings.push(Finding::Lost {
                side,
                reason: format!("{}: {}", failure.class, failure.message),
            });
        }
    }
    if oracle.is_empty() {
        findings.push(Finding::NoOracle);
    }
    if !findings.is_empty() {
        return findings;
    }
    let has_lists = start
        .iter()
        .chain(oracle)
        .any(|run| !run.verdict.pass_to_pass.is_empty() || !run.verdict.fail_to_pass.is_empty());
    if has_lists && start.iter().all(|run| run.verdict.fail_to_pass.is_empty()) {
        findings.push(Finding::NoFailToPass);
    }
    for (test, outcomes) in outcomes(start, |verdict| &verdict.fail_to_pass) {
        if outcomes.len() > 1 {
            findings.push(Finding::Flaky {
                test,
                side: "start",
                outcomes,
            });
        } else if outcomes.iter().copied().any(passes) {
            findings.push(Finding::PassesUnfixed { test });
        }
    }
    for (test, outcomes) in outcomes(start, |verdict| &verdict.pass_to_pass) {
        not_passing(test, outcomes, "start", &mut findings);
    }
    let fail_to_pass = outcomes(oracle, |verdict| &verdict.fail_to_pass);
    let pass_to_pass = outcomes(oracle, |verdict| &verdict.pass_to_pass);
    for (test, outcomes) in fail_to_pass.into_iter().chain(pass_to_pass) {
        not_passing(test, outcomes, "oracle", &mut findings);
    }
    if !has_lists
        && start
            .iter()
            .any(|run| run.verdict.resolution == Resolution::Resolved)
    {
        findings.push(Finding::NoFailToPass);
    }
    if findings.is_empty()
        && let Some(run) = oracle
            .iter()
            .find(|run| run.verdict.resolution != Resolution::Resolved)
    {
        findings.push(Finding::OracleUnresolved {
            resolution: run.verdict.resolution,
            detail: run.verdict.detail.clone(),
        });
    }
    findings
}

fn passes(outcome: TestOutcome) -> bool {
    matches!(outcome, TestOutcome::Passed | TestOutcome::ExpectedFailure)
}

fn not_passing(
    test: TestId,
    outcomes: BTreeSet<TestOutcome>,
    side: &'static str,
    findings: &mut Vec<Finding>,
) {
    let first_bad = outcomes.iter().copied().find(|outcome| !passes(*outcome));
    match first_bad {
        _ if outcomes.len() > 1 => findings.push(Finding::Flaky {
            test,
            side,
            outcomes,
        }),
        Some(outcome) if side == "start" => findings.push(Finding::FailsUnfixed { test, outcome }),
        Some(outcome) => findings.push(Finding::FailsFixed { test, outcome }),
        None => {}
    }
}

fn outcomes(
    runs: &[Graded],
    list: impl Fn(&Verdict) -> &BTreeMap<TestId, TestOutcome>,
) -> BTreeMap<TestId, BTreeSet<TestOutcome>> {
    let mut outcomes: BTreeMap<TestId, BTreeSet<TestOutcome>> = BTreeMap::new();
    for run in runs {
        for (test, outcome) in list(&run.verdict) {
            outcomes.entry(test.clone()).or_default().insert(*outcome);
        }
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use temper_core::{Boundary, Failure};

    use super::*;

    fn run(
        resolution: Resolution,
        f2p: &[(&str, TestOutcome)],
        p2p: &[(&str, TestOutcome)],
    ) -> Graded {
        let map = |list: &[(&str, TestOutcome)]| {
            list.iter()
                .map(|(id, outcome)| (TestId::from(*id), *outcome))
                .collect()
        };
        Graded {
            verdict: Verdict {
                fail_to_pass: map(f2p),
                pass_to_pass: map(p2p),
                ..Verdict::bare(resolution, "test")
            },
            failure: None,
        }
    }

    use Resolution::{Resolved, Unresolved};
    use TestOutcome::{Failed, NotSeen, Passed};

    #[test]
    fn a_task_whose_tests_tell_fix_from_nothing_is_proven() {
        let start = run(Unresolved, &[("f", Failed)], &[("p", Passed)]);
        let oracle = run(Resolved, &[("f", Passed)], &[("p", Passed)]);
        assert_eq!(
            judge(&[start.clone(), start], &[oracle.clone(), oracle]),
            []
        );
    }

    #[test]
    fn every_way_to_be_unproven_is_named() {
        let start = run(Unresolved, &[("f", Failed)], &[("p", Passed)]);
        let oracle = run(Resolved, &[("f", Passed)], &[("p", Passed)]);
        let kinds = |start: &[Graded], oracle: &[Graded]| -> Vec<String> {
            judge(start, oracle)
                .iter()
                .map(|finding| {
                    serde_json::to_value(finding).unwrap()["kind"]
                        .as_str()
                        .unwrap()
                        .to_owned()
                })
                .collect()
        };
        let one = std::slice::from_ref;
        let passes_unfixed = run(Unresolved, &[("f", Passed)], &[("p", Passed)]);
        assert_eq!(
            kinds(one(&passes_unfixed), one(&oracle)),
            ["passes-unfixed"]
        );
        let fails_unfixed = run(Unresolved, &[("f", Failed)], &[("p", NotSeen)]);
        assert_eq!(kinds(&[fails_unfixed], one(&oracle)), ["fails-unfixed"]);
        let fails_fixed = run(Unresolved, &[("f", Failed)], &[("p", Passed)]);
        assert_eq!(kinds(one(&start), &[fails_fixed]), ["fails-fixed"]);
        assert_eq!(
            kinds(&[start.clone(), passes_unfixed.clone()], one(&oracle)),
            ["flaky"]
        );
        let flips = run(Unresolved, &[("f", Passed)], &[("p", Failed)]);
        assert_eq!(kinds(one(&start), &[oracle.clone(), flips]), ["flaky"]);
        assert_eq!(kinds(one(&start), &[]), ["no-oracle"]);
        let none = run(Unresolved, &[], &[("p", Passed)]);
        assert_eq!(
            kinds(one(&none), &[run(Resolved, &[], &[("p", Passed)])]),
            ["no-fail-to-pass"]
        );
        let canary = run(Unresolved, &[("f", Passed)], &[("p", Passed)]);
        assert_eq!(kinds(one(&start), &[canary]), ["oracle-unresolved"]);
        let mut lost = start.clone();
        lost.failure = Some(Failure {
            boundary: Boundary::Sandbox,
            class: "SandboxStart".into(),
            message: "no".into(),
            retryable: true,
        });
        assert_eq!(kinds(&[lost], one(&oracle)), ["lost"]);
    }
}
