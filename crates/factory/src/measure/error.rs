//! Why a repository's tests could not be measured, and what pytest said.

use std::collections::BTreeMap;

use crate::pool::PoolError;

/// Why a repository's tests could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The runs could not be made.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A run of the suite gave nothing at all.
    #[error("run the test suite: {reason}")]
    NoRun {
        /// What happened.
        reason: String,
        /// The end of pytest's output.
        log: String,
    },
    /// No test can be trusted.
    #[error(
        "find tests that can be trusted: {n_found} found, {n_excluded} excluded{}, {n_broken} files not collected",
        counted(.reasons)
    )]
    NoTests {
        /// Tests that were collected.
        n_found: usize,
        /// Tests that were excluded.
        n_excluded: usize,
        /// How many of them for which reason.
        reasons: BTreeMap<&'static str, usize>,
        /// Test files that could not be collected.
        n_broken: usize,
        /// The end of pytest's output.
        log: String,
    },
}

impl MeasureError {
    /// What the user can do, where there is something.
    pub fn hint(&self) -> Option<String> {
        match self {
            MeasureError::Pool(error) => error.hint(),
            MeasureError::NoRun { log, .. } => Some(format!("pytest said: {}", said(log)?)),
            MeasureError::NoTests {
                n_found,
                n_broken,
                log,
                ..
            } => {
                let said = said(log).filter(|_| *n_broken > 0 || *n_found > 0);
                let advice = match &said {
                    Some(said) if said.contains("ModuleNotFoundError") => {
                        "--with REQUIREMENT adds what the tests import, --tests PATH names other tests"
                    }
                    _ => {
                        "tasks need tests that pass in the repository as it is, without network; --tests PATH names other tests"
                    }
                };
                Some(match said {
                    Some(said) => format!("pytest said: {said}; {advice}"),
                    None => advice.to_owned(),
                })
            }
        }
    }
}

fn counted(reasons: &BTreeMap<&'static str, usize>) -> String {
    if reasons.is_empty() {
        return String::new();
    }
    let each: Vec<String> = reasons
        .iter()
        .map(|(reason, n)| format!("{reason} {n}"))
        .collect();
    format!(" ({})", each.join(", "))
}

/// The last error of a log of pytest with short tracebacks, and where it was raised.
fn said(log: &str) -> Option<String> {
    let lines: Vec<&str> = log
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let is_error = |line: &&str| line.starts_with("E ") && line.contains("Error");
    let at = lines
        .iter()
        .rposition(is_error)
        .or_else(|| lines.iter().rposition(|line| line.starts_with("FAILED ")))
        .or_else(|| lines.iter().rposition(|line| line.contains("Error")))
        .or(lines.len().checked_sub(1))?;
    let place = lines[..at].iter().rev().take(8).find_map(|line| {
        // `E     File "FILE", line 3`, as of a syntax error, or `FILE:3: in NAME`.
        if let Some((_, rest)) = line.split_once("File \"") {
            let (file, line) = rest.split_once("\", line ")?;
            return Some(format!("{file}, line {}", line.split(',').next()?));
        }
        let (place, _) = line.split_once(": in ")?;
        let (file, line) = place.rsplit_once(':')?;
        (file.ends_with(".py")).then(|| format!("{file}, line {line}"))
    });
    let error = lines[at].trim_start_matches("E ").trim();
    Some(match place {
        Some(place) if lines[at].starts_with("E ") => format!("{error} ({place})"),
        _ => error.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_is_said_with_its_place() {
        // Ends of logs of pytest 8.4.2 with short tracebacks.
        for (log, expected) in [
            (
                "==== ERRORS ====\n___ ERROR collecting tests/test_a.py ___\nImportError while importing test module '/testbed/tests/test_a.py'.\nHint: make sure your test modules/packages have valid Python names.\nTraceback:\ntests/test_a.py:1: in <module>\n    from nose.tools import eq_\nE   ModuleNotFoundError: No module named 'nose'\n==== short test summary info ====\nERROR tests/test_a.py\n1 error in 0.05s\n",
                "ModuleNotFoundError: No module named 'nose' (tests/test_a.py, line 1)",
            ),
            (
                "tests/test_a.py:1: in <module>\n    from pkg import double\nE     File \"/testbed/pkg/__init__.py\", line 1\nE       def double(x:\nE                 ^\nE   SyntaxError: '(' was never closed\n=== short test summary info ===\nERROR tests/test_a.py\n",
                "SyntaxError: '(' was never closed (/testbed/pkg/__init__.py, line 1)",
            ),
            (
                "F\n=== FAILURES ===\n___ test_a ___\ntests/test_a.py:3: in test_a\n    assert double(2) == 5\nE   assert 4 == 5\nE    +  where 4 = double(2)\n=== short test summary info ===\nFAILED tests/test_a.py::test_a - assert 4 == 5\n1 failed in 0.02s\n",
                "FAILED tests/test_a.py::test_a - assert 4 == 5",
            ),
            ("\nno tests ran in 0.01s\n", "no tests ran in 0.01s"),
        ] {
            assert_eq!(said(log).as_deref(), Some(expected));
        }
        assert_eq!(said(" \n"), None);
    }
}
