//! How a log's statuses decide, by the rules of each harness version, as pure functions.
//!
//! | status | SWE-bench 4.1, SWE-smith 0.0.9 | SWE-bench 5.0 | SWE-smith cf2e649d |
//! | --- | --- | --- | --- |
//! | PASSED, XFAIL | passed | passed | passed |
//! | FAILED, ERROR | failed | failed | failed |
//! | absent | failed | failed | passed |
//! | SKIPPED, fail-to-pass | in neither list | failed | in neither list |
//! | SKIPPED, pass-to-pass | in neither list | passed | in neither list |
//!
//! In repositories whose parsers record failures only, nothing but FAILED fails.
//!
//! Published lists hold ids that were cut at a space inside their parameters. SWE-bench 5.0 lets
//! such an id stand for all that start with it, if they agree. Since our parsers keep ids whole, we
//! do so under every rule set, unless an upstream reading made the map: then ids are cut alike.

use std::collections::BTreeMap;

use temper_core::{
    TestId,
    task::{ResolutionRules, TestLists},
    verdict::{Resolution, TestOutcome},
};

use super::parsers::{Status, StatusMap};

/// How a status map is to be judged.
#[derive(Clone, Copy, Debug)]
pub struct Judging {
    /// The version of the rules.
    pub rules: ResolutionRules,
    /// The repository's parser records failures only.
    pub fail_only: bool,
    /// Ids that were cut inside their parameters match by prefix, whatever the version.
    pub match_truncated: bool,
}

/// What the rules make of a status map.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The answer: resolved, partial or unresolved.
    pub resolution: Resolution,
    /// Fail-to-pass tests.
    pub fail_to_pass: ListReport,
    /// Pass-to-pass tests.
    pub pass_to_pass: ListReport,
}

/// One list's part of a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListReport {
    /// Tests that count as passed, in the list's order.
    pub success: Vec<TestId>,
    /// Tests that count as failed. A skipped test can be in neither.
    pub failure: Vec<TestId>,
    /// What the log says of each.
    pub outcomes: BTreeMap<TestId, TestOutcome>,
}

#[derive(Clone, Copy, PartialEq)]
enum List {
    FailToPass,
    PassToPass,
}

/// Applies the rules. An empty list holds.
pub fn resolve(map: &StatusMap, lists: &TestLists, judging: Judging) -> Report {
    let fail_to_pass = judge_list(map, &lists.fail_to_pass, List::FailToPass, judging);
    let pass_to_pass = judge_list(map, &lists.pass_to_pass, List::PassToPass, judging);
    let resolution = match (
        fail_to_pass.success.is_empty(),
        fail_to_pass.failure.is_empty(),
        pass_to_pass.failure.is_empty(),
    ) {
        (_, true, true) => Resolution::Resolved,
        (false, false, true) => Resolution::Partial,
        _ => Resolution::Unresolved,
    };
    Report {
        resolution,
        fail_to_pass,
        pass_to_pass,
    }
}

fn judge_list(map: &StatusMap, ids: &[TestId], list: List, judging: Judging) -> ListReport {
    let mut report = ListReport::default();
    for id in ids {
        let by_prefix = judging.match_truncated
            || (judging.rules == ResolutionRules::SweBench5 && !judging.fail_only);
        let status = find(map, id.as_str(), by_prefix);
        match passed(status, list, judging) {
            Some(true) => report.success.push(id.clone()),
            Some(false) => report.failure.push(id.clone()),
            None => {}
        }
        report.outcomes.insert(id.clone(), outcome(status));
    }
    report
}

/// Whether a test counts as passed, or `None` where it is in neither list.
fn passed(status: Option<Status>, list: List, judging: Judging) -> Option<bool> {
    if judging.fail_only {
        return Some(status != Some(Status::Failed));
    }
    match (status, judging.rules) {
        (Some(Status::Passed | Status::ExpectedFailure), _) => Some(true),
        (Some(Status::Failed | Status::Error), _) => Some(false),
        (None, ResolutionRules::SweSmithCf2e649d) => Some(true),
        (None, _) => Some(false),
        (Some(Status::Skipped), ResolutionRules::SweBench5) => Some(list == List::PassToPass),
        (Some(Status::Skipped), _) => None,
    }
}

/// The status of an id. An id with more `[` than `]` was cut; where it is not in the map, all that
/// start with it decide, if they agree on passing.
fn find(map: &StatusMap, id: &str, by_prefix: bool) -> Option<Status> {
    if let Some(status) = map.get(id) {
        return Some(*status);
    }
    let count = |bracket| id.bytes().filter(|byte| *byte == bracket).count();
    if !by_prefix || count(b'[') <= count(b']') {
        return None;
    }
    let passes = |status| matches!(status, Status::Passed | Status::ExpectedFailure);
    let matches = || {
        map.range(id.to_owned()..)
            .take_while(|(other, _)| other.starts_with(id))
            .map(|(_, status)| *status)
    };
    let first = matches().next()?;
    if matches().any(|status| passes(status) != passes(first)) {
        return None;
    }
    // Upstream takes the first in the log; among failed and skipped ones the failed one counts here.
    Some(
        matches()
            .find(|status| *status != Status::Skipped)
            .unwrap_or(first),
    )
}

fn outcome(status: Option<Status>) -> TestOutcome {
    match status {
        Some(Status::Passed) => TestOutcome::Passed,
        Some(Status::Failed) => TestOutcome::Failed,
        Some(Status::Skipped) => TestOutcome::Skipped,
        Some(Status::Error) => TestOutcome::Error,
        Some(Status::ExpectedFailure) => TestOutcome::ExpectedFailure,
        None => TestOutcome::NotSeen,
    }
}

/// Whether the rules treat a repository as one whose log names failures only.
pub fn is_fail_only(repository: &str, rules: ResolutionRules) -> bool {
    match repository {
        "chartjs/Chart.js" | "processing/p5.js" | "markedjs/marked" => matches!(
            rules,
            ResolutionRules::SweBench4 | ResolutionRules::SweBench5
        ),
        "bpmn-io/bpmn-js" | "openlayers/openlayers" | "eslint/eslint" => {
            rules == ResolutionRules::SweBench5
        }
        _ => false,
    }
}
