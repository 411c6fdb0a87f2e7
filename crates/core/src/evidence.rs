//! How a value in a report is known.

use serde::{Deserialize, Serialize};

/// The evidence behind a value, from strongest to weakest. A report may not print a value at a
/// stronger level than its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// Measured by this installation, from files whose digests the report names.
    Measured,
    /// Stated by a source that the report names, and not measured here.
    Reported,
    /// Our own choice where no source states a value.
    Decided,
    /// Not known. It stays so; it is never filled in.
    Unknown,
}
