//! Proof that a context holds nothing hidden.
//!
//! **What it finds.** Everything that a statement must not say, and any run of [`N`] words and signs
//! that stands in a hidden test or in the lines of the fix and not in the start. **What it lets
//! pass.** Whatever stands in the start, since a solver has that anyway.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use temper_core::{Entry, Patch, Tree};

use crate::statement::{HiddenTest, Leak, Secrets, added_lines, find_leaks, words};

/// The length of the runs that are compared.
pub const N: usize = 8;
/// A run of fewer characters says nothing.
const MIN_CHARACTERS: usize = 16;

/// What must not be in a context.
#[derive(Clone, Copy, Debug)]
pub struct Hidden<'a> {
    /// From the start to the fixed state.
    pub fix: &'a Patch,
    /// The hidden tests.
    pub tests: &'a [HiddenTest<'a>],
}

/// Something in a context that must not be there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Finding {
    /// As in a statement.
    Leak {
        /// Which.
        leak: Leak,
    },
    /// A run of words and signs.
    Fragment {
        /// The run, joined by spaces.
        text: String,
    },
}

/// What `text` holds and must not. Empty is the proof.
pub fn audit(text: &str, start: &Tree, hidden: &Hidden<'_>) -> Vec<Finding> {
    let visible: Vec<&str> = start
        .values()
        .filter_map(|entry| match entry {
            Entry::File { content, .. } => std::str::from_utf8(content).ok(),
            Entry::Symlink { .. } => None,
        })
        .collect();
    let secrets = Secrets {
        fix: hidden.fix,
        hidden: hidden.tests,
        visible: &visible,
        places: None,
    };
    let mut findings: Vec<Finding> = find_leaks(text, &secrets)
        .into_iter()
        .map(|leak| Finding::Leak { leak })
        .collect();
    let added = added_lines(hidden.fix).join("\n");
    let secret_texts = hidden
        .tests
        .iter()
        .map(|test| test.source)
        .chain([added.as_str()]);
    let said = words(text);
    let shown: BTreeSet<&[&str]> = said.windows(N).collect();
    let mut suspects: BTreeSet<Vec<&str>> = BTreeSet::new();
    for secret in secret_texts {
        let tokens = words(secret);
        for window in tokens.windows(N) {
            let n_characters: usize = window.iter().map(|token| token.chars().count()).sum();
            if n_characters >= MIN_CHARACTERS
                && let Some(found) = shown.get(window)
            {
                suspects.insert(found.to_vec());
            }
        }
    }
    for text in &visible {
        if suspects.is_empty() {
            break;
        }
        for window in words(text).windows(N) {
            suspects.remove(window);
        }
    }
    findings.extend(suspects.iter().map(|run| Finding::Fragment {
        text: run.join(" "),
    }));
    findings
}
