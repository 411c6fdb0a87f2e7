//! Log parsers: a test command's output becomes a map from test to status. One file per runner.
//!
//! A parser is bound to a task by name, never guessed from the log. Parsers read line by line, in
//! one pass, and keep nothing but the map.
//!
//! Where a runner's output has structure, the parser uses it: a pytest status line counts in the
//! summary or the progress listing of its session and not in what a test printed, and an id is
//! kept whole, spaces and ` - ` in its parameters included. Upstream's parsers take any line that
//! starts with a status word and cut ids at the first space; lists that were made with them can
//! hold such cut ids, which `resolution` matches by prefix, and a few hold text that is no test at
//! all (`[100%]`). For numbers that must equal a leaderboard's, the upstream readings are there
//! under the names `swebench4:NAME`, `swebench5:NAME` and `swesmith:pytest` (`upstream`).

mod cargo;
mod django;
mod go;
mod jest;
mod lines;
mod pytest;
mod sympy;
mod tap;
mod upstream;
mod vitest;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use lines::strip_controls;

/// What a log says of one test, in SWE-bench's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Status {
    /// It passed.
    #[serde(rename = "PASSED")]
    Passed,
    /// It failed.
    #[serde(rename = "FAILED")]
    Failed,
    /// It was skipped.
    #[serde(rename = "SKIPPED")]
    Skipped,
    /// It could not be run.
    #[serde(rename = "ERROR")]
    Error,
    /// It failed as expected.
    #[serde(rename = "XFAIL")]
    ExpectedFailure,
}

/// Each test that the log mentions, with its last status. Ids are text; bytes that are not UTF-8
/// become U+FFFD.
pub type StatusMap = BTreeMap<String, Status>;

/// Reads a log line by line.
pub trait LineParser {
    /// Takes the next line, without its line feed.
    fn line(&mut self, line: &[u8]);

    /// What the lines said.
    fn finish(self: Box<Self>) -> StatusMap;
}

type Start = fn() -> Box<dyn LineParser>;

/// A parser, to be started for each log.
#[derive(Clone, Copy)]
pub struct Parser {
    start: Start,
}

impl Parser {
    /// Starts to read a log.
    pub fn start(&self) -> Box<dyn LineParser> {
        (self.start)()
    }

    /// Reads a whole log.
    pub fn parse(&self, log: &[u8]) -> StatusMap {
        let mut parser = self.start();
        let mut rest = log;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            parser.line(&rest[..end]);
            rest = &rest[end + 1..];
        }
        parser.line(rest);
        parser.finish()
    }
}

/// The names and parsers, in the order in which they are listed to people.
const PARSERS: &[(&str, Start)] = &[
    ("pytest", || Box::new(pytest::Pytest::plain())),
    ("pytest-options", || Box::new(pytest::Pytest::options())),
    ("pytest-v2", || Box::new(pytest::Pytest::plain())),
    ("matplotlib", || Box::new(pytest::Pytest::matplotlib())),
    ("seaborn", || Box::new(pytest::Pytest::seaborn())),
    ("django", || Box::new(django::Django::default())),
    ("sympy", || Box::new(sympy::Sympy::default())),
    ("cargo", || Box::new(cargo::Cargo::default())),
    ("gotest", || Box::new(go::Go::default())),
    ("jest", || Box::new(jest::Jest::default())),
    ("tap", || Box::new(tap::Tap::default())),
    ("vitest", || Box::new(vitest::Vitest::default())),
    ("swebench4:pytest", || {
        Box::new(upstream::Upstream::pytest(4))
    }),
    ("swebench4:pytest-options", || {
        Box::new(upstream::Upstream::options(4))
    }),
    ("swebench4:pytest-v2", || {
        Box::new(upstream::Upstream::pytest_v2(4))
    }),
    ("swebench4:matplotlib", || {
        Box::new(upstream::Upstream::matplotlib(4))
    }),
    ("swebench4:seaborn", || {
        Box::new(upstream::Upstream::seaborn())
    }),
    ("swebench5:pytest", || {
        Box::new(upstream::Upstream::pytest(5))
    }),
    ("swebench5:pytest-options", || {
        Box::new(upstream::Upstream::options(5))
    }),
    ("swebench5:pytest-v2", || {
        Box::new(upstream::Upstream::pytest_v2(5))
    }),
    ("swebench5:matplotlib", || {
        Box::new(upstream::Upstream::matplotlib(5))
    }),
    ("swebench5:seaborn", || {
        Box::new(upstream::Upstream::seaborn())
    }),
    (
        "swesmith:pytest",
        || Box::new(upstream::SweSmith::default()),
    ),
];

/// SWE-bench's per-repository names for parsers that are another one.
const ALIASES: &[(&str, &str)] = &[
    ("astroid", "pytest"),
    ("astropy", "pytest-v2"),
    ("flask", "pytest"),
    ("go", "gotest"),
    ("marshmallow", "pytest"),
    ("pvlib", "pytest"),
    ("pydicom", "pytest-options"),
    ("pylint", "pytest-options"),
    ("pyvista", "pytest"),
    ("requests", "pytest-options"),
    ("scikit", "pytest-v2"),
    ("sphinx", "pytest-v2"),
    ("sqlfluff", "pytest"),
    ("xarray", "pytest"),
];

/// The parser of a name. SWE-bench's own spelling (`parse_log_pytest_v2`) is understood.
pub fn by_name(name: &str) -> Option<Parser> {
    let (reading, rest) = match name.split_once(':') {
        Some((reading, rest)) => (format!("{reading}:"), rest),
        None => (String::new(), name),
    };
    let plain = rest
        .strip_prefix("parse_log_")
        .unwrap_or(rest)
        .replace('_', "-");
    let plain = ALIASES
        .iter()
        .find(|(alias, _)| *alias == plain)
        .map_or(plain.as_str(), |(_, name)| name);
    let wanted = format!("{reading}{plain}");
    PARSERS
        .iter()
        .find(|(name, _)| *name == wanted)
        .map(|(_, start)| Parser { start: *start })
}

/// All names that [`by_name`] knows, aliases left out.
pub fn names() -> impl Iterator<Item = &'static str> {
    PARSERS.iter().map(|(name, _)| *name)
}

/// The parser of a Python repository in SWE-bench 4.1, which binds parsers to repositories.
pub fn of_repository(repository: &str) -> Option<&'static str> {
    Some(match repository {
        "django/django" => "django",
        "sympy/sympy" => "sympy",
        "matplotlib/matplotlib" => "matplotlib",
        "mwaskom/seaborn" => "seaborn",
        "psf/requests" | "pydicom/pydicom" | "pylint-dev/pylint" => "pytest-options",
        "astropy/astropy" | "scikit-learn/scikit-learn" | "sphinx-doc/sphinx" => "pytest-v2",
        "marshmallow-code/marshmallow"
        | "pallets/flask"
        | "pvlib/pvlib-python"
        | "pydata/xarray"
        | "pylint-dev/astroid"
        | "pytest-dev/pytest"
        | "pyvista/pyvista"
        | "sqlfluff/sqlfluff" => "pytest",
        _ => return None,
    })
}
