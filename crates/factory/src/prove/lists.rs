//! The two test lists of a task, from what the screen saw.

use serde::{Deserialize, Serialize};
use temper_core::{TestId, task::TestLists};

use super::Screened;
use crate::measure::{Measurement, TestIndex};

/// How long lists may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListOptions {
    /// Fail-to-pass tests; more are left out from the end of the suite.
    pub max_fail_to_pass: usize,
    /// Pass-to-pass tests, the nearest to the changed code.
    pub max_pass_to_pass: usize,
}

impl Default for ListOptions {
    fn default() -> Self {
        ListOptions {
            max_fail_to_pass: 100,
            max_pass_to_pass: 40,
        }
    }
}

/// Fail-to-pass are the affected tests that fail with the bug. Pass-to-pass are the affected tests
/// that pass with it, the nearest to the changed code: those that execute the changed lines, then
/// those that execute least besides. Both are in file order.
pub fn lists(measurement: &Measurement, screened: &Screened, options: &ListOptions) -> TestLists {
    let ids = |tests: &[TestIndex], most: usize| -> Vec<TestId> {
        let mut tests: Vec<TestIndex> = tests.iter().copied().take(most).collect();
        tests.sort();
        tests
            .into_iter()
            .map(|test| measurement.id(test).clone())
            .collect()
    };
    TestLists {
        fail_to_pass: ids(&screened.failing, options.max_fail_to_pass),
        pass_to_pass: ids(&screened.passing, options.max_pass_to_pass),
    }
}
